"""One run: its header, its attempts and steps, its messages, its history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...app.liveness import alive, why_unserved
from ...app.views import Execution, executions_of, history_of
from ...clock import from_micros
from ...execution.failures import decode_error
from ...kernel.decide import DECIDER
from ...kernel.rows import MAIN, RunRow
from ...kernel.versions import all_versions
from ...stores.driver import Tx
from ...stores.verbs import statistics
from .phases import phases
from .runs import run_documents, summary
from .source import Document, Source, error_document, seconds_between

CHILDREN = 20
MESSAGES = 200
PUBLISHED = 1_000
STREAMS = 50
ENTRIES = 100  # of a stream that are read at once
STEPS = 100  # on a page
HISTORY = 500  # the newest lines
WAITS = frozenset({"sleep", "receive"})


def run_header(source: Source, row: RunRow) -> Document:
    """What is known of a run as a whole, and why it is in its state."""
    document = {**summary(source, row), **phases(source, [row])[row.id]}
    children = source.engine.store.runs(limit=CHILDREN + 1, parent=row.id)
    document |= {
        "priority": row.priority,
        "deadline": None if row.deadline is None else from_micros(row.deadline),
        "forked_from": row.forked_from,
        "continues": row.continues,
        "continued_as": row.continued_as,
        "versions": list(all_versions(row.versions)),
        "pinned_to": row.pin,
        "input": source.call(row.type, row.input),
        "result": source.value(row.result),
        "error": None if row.error is None else error_document(decode_error(row.error)),
        "children": run_documents(source, children[:CHILDREN]),
        "more_children": len(children) > CHILDREN,
        "instance": row.id.partition(":")[2] if row.kind == DECIDER else None,
        "unserved": "",
        "by": None,
        "reason": None,
    }
    if document["phase"] == "queued":
        document["unserved"] = why_unserved(row, alive(source.engine.store))
    if row.state in ("paused", "canceled"):
        document |= _last_reason(source, row)
    return document


def _last_reason(source: Source, row: RunRow) -> Document:
    """Who paused or canceled it, and why, as its history says."""
    for line in reversed(history_of(source.engine, row)):
        if line.event == row.state and isinstance(line.detail, dict):
            facts = {"by": line.detail.get("by"), "reason": line.detail.get("reason"), "since": line.at}
            return {name: value for name, value in facts.items() if value}
    return {}


def executions(source: Source, row: RunRow) -> list[Execution]:
    """Attempts and steps in the order in which they began."""
    return executions_of(source.engine, row.id)


def execution_document(source: Source, one: Execution, *, payloads: bool = True) -> Document:
    """One attempt at a node, or one step."""
    due = one.scheduled_for if one.kind not in WAITS else None
    document: Document = {
        "node": one.node,
        "node_id": one.node_id,
        "job": one.job,
        "kind": one.kind,
        "attempt": one.attempt,
        "state": shown_step(one),
        "outcome": one.outcome,
        "worker": one.worker,
        "scheduled_for": one.scheduled_for,
        "started_at": one.started_at,
        "finished_at": one.finished_at,
        "seconds": seconds_between(one.started_at, one.finished_at or _running(source, one)),
        "wait_seconds": seconds_between(due, one.started_at),
        "error": error_document(one.error),
    }
    if payloads:
        document["input"] = source.call(one.job, one.stored_input)
        names = (one.job,) if one.kind == "receive" else ()
        document["result"] = source.value(one.stored_result, *names)
    return document


def shown_step(one: Execution) -> str:
    """The state of a step as people see it: one that waits is told apart from one in a queue."""
    if one.state == "retrying":
        return "retrying"
    if one.state == "waiting" or (
        one.kind == MAIN and one.state == "scheduled" and one.started_at is not None
    ):
        return "waiting"
    return one.state


def _running(source: Source, one: Execution) -> Any:
    return source.now() if one.state in ("executing", "waiting") else None


def steps_page(source: Source, items: Sequence[Execution], page: int) -> Document:
    """A page of attempts and steps."""
    pages = max(1, -(-len(items) // STEPS))
    page = min(max(1, page), pages)
    shown = items[(page - 1) * STEPS : page * STEPS]
    return {
        "steps": [execution_document(source, one) for one in shown],
        "page": page,
        "pages": pages,
        "total": len(items),
    }


def messages(source: Source, run_id: str) -> list[Document]:
    """Messages to the run, oldest first."""

    def read(tx: Tx) -> list[statistics.MessageRow]:
        return statistics.messages(tx, run_id, limit=MESSAGES)

    return [
        {
            "id": row.message_id,
            "name": row.name,
            "value": source.value(row.value, row.name),
            "sent_at": from_micros(row.sent_at),
            "received": bool(row.consumed),
        }
        for row in source.engine.store.read(read)
    ]


def published(source: Source, row: RunRow) -> list[Document]:
    """The latest values that the run published."""

    def read(tx: Tx) -> dict[str, str | None]:
        return statistics.published(tx, row.id, limit=PUBLISHED)

    found = source.engine.store.read(read)
    return [{"name": name, "value": source.value(text, name)} for name, text in found.items()]


def streams(source: Source, row: RunRow, chosen: str = "") -> Document:
    """The streams of the run, and the newest entries of one of them: the chosen one, else the first."""
    found = source.engine.store.streams(row.id, limit=STREAMS)
    places = {name: (first, last) for name, first, last in found}
    name = chosen if chosen in places else next(iter(places), "")
    entries: list[Document] = []
    if name:
        after = max(places[name][0] - 1, places[name][1] - ENTRIES)
        entries = stream_page(source, row.id, name, after=after)["entries"]
    return {
        "streams": [{"name": name, "first": first, "last": last} for name, first, last in found],
        "name": name,
        "entries": entries,
    }


def stream_page(source: Source, run_id: str, name: str, *, after: int) -> Document:
    """Entries of a stream beyond a position, in order."""
    rows = source.engine.store.stream(run_id, name, after=after, limit=ENTRIES)
    entries = [
        {
            "position": one.position,
            "value": source.value(one.value, name),
            "step": one.step,
            "attempt": one.attempt,
            "at": from_micros(one.appended_at),
        }
        for one in rows
    ]
    return {"name": name, "entries": entries, "next": rows[-1].position if len(rows) == ENTRIES else None}


def history(source: Source, row: RunRow) -> list[Document]:
    """What happened to the run, newest first."""
    lines = history_of(source.engine, row)[-HISTORY:]
    return [
        {"at": line.at, "event": line.event, "detail": source.mask(line.detail)} for line in reversed(lines)
    ]
