"""Schedules: when each fires next, what became of its last runs, what operators did."""

from __future__ import annotations

from ...app import schedule_control as verbs
from ...app.listing import find_runs
from ...app.schedules import Schedule
from ...app.views import HistoryEvent
from ...clock import from_micros
from ...durations import duration_text
from ...kernel.schedules import CODE, ScheduleRow
from .queues import line_document
from .runs import run_documents
from .source import Document, Source

SHOWN = 200  # schedules that a page lists
NEXT = 3
AHEAD = 10  # firings that the page of one schedule shows
LOOKED_AT = 200  # newest runs of its type, among which its own are looked for
RUNS = 20
HISTORY = 100


def schedule_documents(source: Source, *, after: str = "") -> Document:
    """Schedules in the order of their names, beyond a name."""
    engine = source.engine
    rows = _rows(source, after)
    states = verbs.last_states(engine, rows[:SHOWN])
    return {
        "schedules": [_document(source, row, states, NEXT) for row in rows[:SHOWN]],
        "next": rows[SHOWN - 1].name if len(rows) > SHOWN else None,
    }


def _rows(source: Source, after: str) -> list[ScheduleRow]:
    """At most one more than a page.  What the code declares and no worker has stored yet is among them.

    It is not stored here: a view changes nothing.
    """
    engine = source.engine
    _ = engine.services
    rows = engine.store.schedules(after=after, limit=SHOWN + 1)
    known, now = {row.name for row in rows}, engine.clock.now()
    last = rows[-1].name if len(rows) > SHOWN else None
    for name, one in engine.declarations.items():
        if name not in known and name > after and (last is None or name < last):
            rows.append(one.row(CODE, now))
    return sorted(rows, key=lambda row: row.name)[: SHOWN + 1]


def next_firings(source: Source, limit: int) -> list[Document]:
    """The active schedules that fire next, soonest first."""
    rows = _rows(source, "")
    states = verbs.last_states(source.engine, rows)
    found = [_document(source, row, states, 1) for row in rows if row.state == "active"]
    return sorted((one for one in found if one["next"]), key=lambda one: one["next"][0])[:limit]


def schedule_document(source: Source, name: str) -> Document:
    """One schedule: its next firings, its last runs, its history."""
    engine = source.engine
    row = verbs.find(engine, name)
    document = _document(source, row, verbs.last_states(engine, [row]), AHEAD)
    newest = find_runs(engine, None, {"type": row.job, "limit": LOOKED_AT})
    own = [run for run in newest if run.id.startswith(f"{name}@")][:RUNS]
    lines = Schedule(engine, row).history()[-HISTORY:]
    return document | {
        "input": source.call(row.job, row.input),
        "runs": run_documents(source, own),
        "history": [_line(source, line) for line in reversed(lines)],
    }


def _line(source: Source, line: HistoryEvent) -> Document:
    """A line of the history; times in it are stored as microseconds."""
    document = line_document(source, line)
    if isinstance(line.detail, dict):
        document["detail"] |= {
            name: from_micros(line.detail[name])
            for name in ("from", "until")
            if isinstance(line.detail.get(name), int)
        }
    return document


def _document(source: Source, row: ScheduleRow, states: dict[str, str], ahead: int) -> Document:
    one = Schedule(source.engine, row)
    upcoming = one.upcoming(ahead)
    return {
        "name": one.name,
        "type": one.type,
        "source": one.source,
        "state": one.state,
        "reason": one.reason,
        "error": one.error,
        "when": f"every {duration_text(one.every)}" if one.every is not None else one.cron,
        "cron": one.cron,
        "every_seconds": None if one.every is None else one.every.total_seconds(),
        "tz": one.tz,
        "jitter_seconds": one.jitter.total_seconds(),
        "overlap": one.overlap,
        "catch_up": one.catch_up,
        "next": upcoming if one.state == "active" else [],
        "waiting_for": one.waiting_for,
        "last_run": one.last_run_id,
        "last_scheduled_for": one.last_scheduled_for,
        "last_state": states.get(one.last_run_id or ""),
        "fired": one.fired,
        "skipped": one.skipped,
    }
