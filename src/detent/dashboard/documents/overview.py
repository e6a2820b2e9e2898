"""The overview: counts, what needs a person, throughput and latency of the last hour.

Throughput is counted per minute through the index of ended runs.  A minute that is over does not change, so
it is counted once, and kept by this process; a view counts only the last two minutes.  A view that finds
many minutes missing counts for a twentieth of a second and leaves the older ones to the next view.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import partial

from ...app.dead_letters import count_dead
from ...app.listing import find_runs
from ...clock import from_micros
from ...kernel.rows import ExecutionRow, ExecutionState
from ...stores.driver import Tx
from ...stores.verbs import statistics
from ...stores.verbs.statistics import MOST, Ended
from .projections import projection_documents
from .runs import run_documents
from .schedules import next_firings
from .source import Document, Source
from .workers import worker_documents

MINUTE = 60_000_000
HOUR = 60
SAMPLE = 300  # ended runs that latencies are computed from
BUDGET = 0.05  # seconds that one view counts old minutes
MOST_PER_MINUTE = 1_000_000
SHOWN = 6
NEXT_FIRINGS = 4
BACKLOG = 1_000  # executions of a queue that are looked at
LETTERS = ("effect", "timer", "inbox")  # of deciders: their runs do not wait for them to begin
LOOKED_AT = 100  # active runs that are searched for messages they wait for


class Minutes:
    """How many runs ended in each minute, kept by this process."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._guard = threading.Lock()

    def last_hour(self, source: Source) -> list[int | None]:
        """Counts of the last 60 minutes, oldest first; None: not counted yet."""
        present = source.engine.clock.now() // MINUTE
        wanted = range(present, present - HOUR, -1)
        with self._guard:
            deadline = time.monotonic() + BUDGET
            # The last two are counted again: a run that is committed now may have ended a moment ago.
            known = {minute: self._counts[minute] for minute in wanted[2:] if minute in self._counts}
            for minute in wanted:
                if minute not in known and (minute > present - 2 or time.monotonic() < deadline):
                    known[minute] = self._count(source, minute)
            self._counts = known
        return [known.get(minute) for minute in reversed(wanted)]

    def _count(self, source: Source, minute: int) -> int:
        def read(tx: Tx) -> int:
            return statistics.ended_between(tx, minute * MINUTE, (minute + 1) * MINUTE, most=MOST_PER_MINUTE)

        return source.engine.store.read(read)


def overview(source: Source, minutes: Minutes) -> Document:
    """Everything that the first page shows."""
    engine = source.engine
    _ = engine.services
    counts = engine.store.read(statistics.state_counts)
    since = engine.clock.now() - HOUR * MINUTE
    ended = engine.store.read(lambda tx: statistics.recently_ended(tx, since=since, limit=SAMPLE))
    per_minute = minutes.last_hour(source)
    backlogs = _backlogs(source)
    began = _began(source, ended)
    counted = [one for one in per_minute if one is not None]
    return {
        "counts": counts,
        "most": MOST,
        "per_minute": per_minute,
        "ended_last_hour": sum(counted),
        "per_second": sum(counted[-6:-1]) / 300 if len(counted) > 5 else None,
        "latency": _latency(ended, began, "type"),
        "latency_by_queue": _latency(ended, began, "queue"),
        "failures": run_documents(source, find_runs(engine, "failed", {"limit": SHOWN})),
        "attention": _attention(source, counts, backlogs),
        "workers": worker_documents(source)["workers"],
        "backlogs": backlogs,
        "schedules": next_firings(source, NEXT_FIRINGS),
        "most_backlog": BACKLOG,
    }


def _began(source: Source, ended: Sequence[Ended]) -> dict[str, ExecutionRow]:
    """By run: the execution that began first."""
    began: dict[str, ExecutionRow] = {}
    if not ended:
        return began
    states = [ExecutionState.COMPLETED, ExecutionState.FAILED, ExecutionState.CANCELED]
    for row in source.engine.store.executions_of([one.id for one in ended], states=states):
        if row.started_at is not None and row.kind not in LETTERS:
            known = began.setdefault(row.run_id, row)
            began[row.run_id] = min(known, row, key=lambda one: one.started_at or 0)
    return began


def _latency(ended: Sequence[Ended], began: dict[str, ExecutionRow], by: str) -> list[Document]:
    """Median and 95th percentile by type or queue: how long runs waited to begin, and how long they took."""
    groups: dict[str, list[Ended]] = {}
    for one in ended:
        groups.setdefault(getattr(one, by), []).append(one)
    found = []
    for name, runs in sorted(groups.items(), key=lambda item: -len(item[1])):
        took = sorted((one.finished_at - one.created_at) / 1e6 for one in runs)
        waited = sorted(
            max(0, (first.started_at or 0) - (first.scheduled_for or first.created_at)) / 1e6
            for one in runs
            if (first := began.get(one.id)) is not None
        )
        found.append(
            {
                by: name,
                "count": len(runs),
                "failed": sum(one.state == "failed" for one in runs),
                "run_p50": percentile(took, 0.5),
                "run_p95": percentile(took, 0.95),
                "wait_p50": percentile(waited, 0.5),
                "wait_p95": percentile(waited, 0.95),
                "recent": [round(one, 4) for one in _latest(runs)],
            }
        )
    return found


def _latest(runs: Sequence[Ended]) -> list[float]:
    """How long the latest runs took, oldest first: for a sparkline."""
    return [(one.finished_at - one.created_at) / 1e6 for one in runs[:40]][::-1]


def percentile(ordered: Sequence[float], part: float) -> float | None:
    """The value below which this part of the sorted values lies."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else None


def _attention(source: Source, counts: dict[str, int], backlogs: list[Document]) -> list[Document]:
    """What needs a person, the most urgent first; each with a link to it."""
    engine = source.engine
    overdue = sum(one["overdue"] for one in backlogs)
    blocked = [one for one in projection_documents(source)["projections"] if one["blocked"]]
    paused = sum(one.paused_at is not None for one in engine.store.queues())
    waiting = _awaited_messages(source)
    entries = [
        _entry("dead", count_dead(engine, None), "dead letter", "deciders?dead=1"),
        _entry("failed", counts["failed"], "failed run", "runs?state=failed"),
        _entry("paused", counts["paused"], "paused run", "runs?state=paused"),
        _entry("overdue", overdue, "overdue execution", "runs?overdue=1"),
        _entry("blocked", len(blocked), "blocked projection", "projections"),
        _entry("paused", paused, "paused queue", "queues"),
    ]
    entries += [
        _entry(
            "message",
            number,
            f"run waiting for {name}",
            "runs?state=ready",
            plural=f"runs waiting for {name}",
        )
        for name, number in waiting
    ]
    return [entry for entry in entries if entry["count"]]


def _awaited_messages(source: Source) -> list[tuple[str, int]]:
    """Names of messages that the newest active runs wait for, and how many of them do."""
    rows = find_runs(source.engine, "ready", {"limit": LOOKED_AT})
    if not rows:
        return []
    steps = source.engine.store.read(lambda tx: statistics.waiting_steps(tx, [row.id for row in rows]))
    names: dict[str, int] = {}
    for step in steps:
        if step.kind == "receive":
            names[step.name] = names.get(step.name, 0) + 1
    return sorted(names.items(), key=lambda item: -item[1])[:3]


def _entry(kind: str, number: int, noun: str, link: str, *, plural: str = "") -> Document:
    return {
        "kind": kind,
        "count": number,
        "noun": noun if number == 1 else plural or f"{noun}s",
        "link": link,
    }


def _backlogs(source: Source) -> list[Document]:
    """Of each queue: how many executions may be claimed now, and since when the first of them."""
    now, found = source.engine.clock.now(), []
    for queue in source.engine.settings.queue_names:
        rows = source.engine.store.read(partial(statistics.backlog, queue=queue, limit=BACKLOG))
        dues = [row.since for row in rows if row.since is not None]
        first = min(rows, key=lambda row: row.since or now, default=None)
        found.append(
            {
                "queue": queue,
                "waiting": len(rows),
                "overdue": sum(due < now - MINUTE for due in dues),
                "oldest": None if first is None else from_micros(first.since or now),
                "run": None if first is None else first.run_id,
            }
        )
    return found
