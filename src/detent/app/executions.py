"""Executions over all runs: newest run first, in a run in the order of their creation.

The runs come page by page through an index (stores/verbs/listing.py), and for each page its executions
through their key, with the conditions in SQL.  So no index of their own is needed, which every claim
would pay for.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from ..arguments import check_text
from ..errors import ConfigurationError
from ..kernel.rows import SCHEDULED_STATES, ExecutionRow, ExecutionState, RunRow
from .engine import Engine
from .listing import ACTIVE, DEFAULT_LIMIT, Filters, Walk
from .views import Execution, shown_executions

STATES = ("scheduled", "executing", "completed", "failed", "canceled", "skipped")
_OF_ACTIVE = ("scheduled", "executing")  # an active run has these


def find_executions(
    engine: Engine,
    *,
    state: str | None = None,
    type: Any = None,
    queue: str | None = None,
    after: datetime | None = None,
    before: datetime | None = None,
    limit: Any = DEFAULT_LIMIT,
    cursor: Any = None,
) -> list[Execution]:
    """At most `limit` executions that fit, behind `cursor`, the last one of a page."""
    if state is not None and state not in STATES:
        raise ConfigurationError(f"state={state!r}: an execution's state is one of {', '.join(STATES)}")
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise ConfigurationError(f"limit={limit!r}: must be a whole number, 1 or more")
    if cursor is not None and (not isinstance(cursor, Execution) or cursor.created_at is None):
        raise ConfigurationError(f"cursor={cursor!r}: pass the last execution of a page")
    states = _stored(state)
    on = None if queue is None else check_text("app.executions()", "queue", queue, example="mail")
    found: list[Execution] = []
    if cursor is not None:
        run = engine.row(cursor.run_id)
        rows = engine.store.executions_of([run.id], states=states, queue=on)
        place = (cursor.created_at, cursor.node_id, cursor.attempt)
        found += shown_executions(
            engine, run, sorted((row for row in rows if _place(row) > place), key=_place)
        )
    filters: Filters = {"type": type, "after": after, "before": before}
    if cursor is not None:
        filters["cursor"] = cursor.run_id
    walk = Walk(engine, ACTIVE if state in _OF_ACTIVE else None, filters)
    for run, rows in _pages(engine, walk, states, on):
        if len(found) >= limit:
            break
        found += shown_executions(engine, run, rows)
    return found[:limit]


def _pages(
    engine: Engine, walk: Walk, states: list[ExecutionState], queue: str | None
) -> Iterator[tuple[RunRow, list[ExecutionRow]]]:
    while not walk.over:
        runs = walk.next_page()
        of: dict[str, list[ExecutionRow]] = {run.id: [] for run in runs}
        for row in engine.store.executions_of(list(of), states=states, queue=queue) if runs else []:
            of[row.run_id].append(row)
        yield from ((run, sorted(of[run.id], key=_place)) for run in runs if of[run.id])


def _place(row: ExecutionRow) -> tuple[int, str, int]:
    return row.created_at, row.node, row.attempt


def _stored(state: str | None) -> list[ExecutionState]:
    if state == "scheduled":
        return sorted(SCHEDULED_STATES)
    return list(ExecutionState) if state is None else [ExecutionState(state)]
