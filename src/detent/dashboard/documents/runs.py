"""The list of runs: filters as they stand in the URL, one page at a time."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from ...app.listing import STATES, Filters, find_runs
from ...app.views import cursor_of, shown_state
from ...clock import to_micros
from ...durations import parse_duration
from ...execution.failures import decode_error
from ...kernel.rows import RunRow
from .phases import phases
from .source import Document, Source, error_document

PAGE = 50
OVERDUE = timedelta(minutes=1)
LOOKED_AT = 400  # active runs among which a page of overdue ones is looked for
SCANNED = 1_000  # runs that a search by text looks at, before it asks to continue
NAMES = (
    "q",
    "type",
    "state",
    "hero",
    "queue",
    "attribute",
    "parent",
    "after",
    "before",
    "overdue",
    "drifted",
    "cursor",
)


class BadFilter(ValueError):
    """A filter in a URL that makes no sense."""


@dataclass(frozen=True, slots=True)
class RunFilters:
    """What is asked for, as text."""

    given: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, params: Mapping[str, str]) -> RunFilters:
        return cls({name: params[name].strip() for name in NAMES if params.get(name, "").strip()})

    def get(self, name: str) -> str:
        return self.given.get(name, "")

    def all(self) -> dict[str, str]:
        """All filters by name; empty: not given."""
        return {name: self.get(name) for name in NAMES}


def list_runs(source: Source, asked: RunFilters, *, limit: int = PAGE) -> Document:
    """A page of runs, newest first."""
    state, filters = parse_filters(source, asked)
    text = asked.get("q")
    searched = 0
    if text:
        rows, cursor, searched = _search(source, state, filters, text, limit)
    else:
        found = _overdue(source, state, filters, limit + 1)
        if found is None:
            found = find_runs(source.engine, state, {**filters, "limit": limit + 1})
        rows = found[:limit]
        cursor = cursor_of(rows[-1]) if len(found) > limit else None
    return {"runs": run_documents(source, rows), "next": cursor, "searched": searched}


def _overdue(source: Source, state: str | None, filters: Filters, limit: int) -> list[RunRow] | None:
    """A full page of overdue runs, if the newest active runs fill it; else None.

    The listing of overdue runs sorts all of them, which takes half a second if there are 50,000.  Where there
    are that many, a few hundred active runs contain a page of them.
    """
    if "overdue" not in filters or state not in (None, "active"):
        return None
    due = source.now() - OVERDUE
    before = filters.get("before")
    # A run cannot be due before it was created.
    wanted: Filters = {**filters, "before": due if before is None else min(before, due), "limit": LOOKED_AT}
    del wanted["overdue"]
    rows = find_runs(source.engine, "active", wanted)
    late = {one.run_id for one in source.engine.store.overdue([row.id for row in rows], due=to_micros(due))}
    found = [row for row in rows if row.id in late][:limit]
    return found if len(found) == limit else None


def run_documents(source: Source, rows: list[RunRow]) -> list[Document]:
    """Runs as they stand in a list."""
    explained = phases(source, rows)
    return [{**summary(source, row), **explained[row.id]} for row in rows]


def summary(source: Source, row: RunRow) -> Document:
    """A run in one line."""
    created = _moment(row.created_at)
    finished = None if row.finished_at is None else _moment(row.finished_at)
    error = None if row.error is None else error_document(decode_error(row.error), traceback=False)
    return {
        "id": row.id,
        "type": row.type,
        "kind": row.kind,
        "state": shown_state(row),
        "queue": row.queue,
        "created_at": created,
        "finished_at": finished,
        "seconds": ((finished or source.now()) - created).total_seconds(),
        "error": error,
        "hero": None if row.hero_type is None else [row.hero_type, row.hero_id],
        "parent": row.parent,
        "attributes": source.attributes(row.attributes),
        "drifted": row.drifted,
    }


def _search(
    source: Source, state: str | None, filters: Filters, text: str, limit: int
) -> tuple[list[RunRow], str | None, int]:
    """Runs whose id, type or error contains the text, among the newest that fit the other filters."""
    exact = source.engine.store.find_run(text) if filters.get("cursor") is None else None
    if exact is not None:
        return [exact], None, 0
    wanted, found, seen = text.casefold(), list[RunRow](), 0
    cursor = filters.get("cursor")
    while seen < SCANNED:
        rows = find_runs(source.engine, state, {**filters, "cursor": cursor, "limit": 200})
        for row in rows:
            seen += 1
            cursor = cursor_of(row)
            if wanted in _searched(row):
                found.append(row)
                if len(found) == limit:
                    return found, cursor_of(row), seen
        if len(rows) < 200:
            return found, None, seen
    return found, str(cursor), seen


def _searched(row: RunRow) -> str:
    error = decode_error(row.error) if row.error is not None else None
    words = [row.id, row.type, *((error.type, error.message) if error is not None else ())]
    return "\0".join(words).casefold()


def parse_filters(source: Source, asked: RunFilters) -> tuple[str | None, Filters]:
    state = asked.get("state") or None
    if state is not None and state not in STATES:
        raise BadFilter(f"state={state}: it is one of {', '.join(STATES)}")
    filters: Filters = {}
    for name in ("type", "queue", "parent", "cursor"):
        if asked.get(name):
            filters[name] = asked.get(name)
    if asked.get("hero"):
        type, slash, id = asked.get("hero").partition("/")
        if not slash or not type or not id:
            raise BadFilter(f"hero={asked.get('hero')}: write TYPE/ID, such as Customer/7")
        filters["hero"] = (type, id)
    if asked.get("attribute"):
        filters["attributes"] = _attribute(source, asked.get("attribute"))
    now = source.now()
    for name in ("after", "before"):
        if asked.get(name):
            filters[name] = parse_moment(name, asked.get(name), now)  # type: ignore[literal-required]
    if asked.get("overdue"):
        filters["overdue"] = OVERDUE
    if asked.get("drifted"):
        filters["drifted"] = True
    return state, filters


def _attribute(source: Source, text: str) -> dict[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise BadFilter(f"attribute={text}: write NAME=VALUE, such as customer=acme")
    if source.mask.hides(name):
        raise BadFilter(f"attribute={name}: this attribute is masked, and cannot be searched for here")
    return {name: value}


def parse_moment(name: str, text: str, now: datetime) -> datetime:
    """`2h` (two hours ago), `3d`, or a date and time of ISO 8601; without a zone it is UTC."""
    if text[-1:].isalpha():  # digits alone are a date of ISO 8601
        with suppress(ValueError, OverflowError):
            return now - parse_duration(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadFilter(f"{name}={text}: write 30m, 2h, 7d, or a time such as 2026-11-16T12:00") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _moment(micros: int) -> datetime:
    return datetime.fromtimestamp(micros / 1e6, UTC)


def types(source: Source) -> list[str]:
    """The names of what can be started: for the filter."""
    registry = source.engine.registry
    return sorted({*registry.workflows, *(plan.name for plan in registry.deciders)})
