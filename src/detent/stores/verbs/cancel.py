"""Canceling a run and what belongs to it: its scheduled executions, and its children.

What executes at that moment ends by itself and is recorded as canceled.  Where
something has a compensation, the run's main execution is woken to undo it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...kernel.control import taken_up
from ...kernel.operations import RunChange
from ...kernel.rows import MAIN, Claimed, HistoryRow, RunState
from ...kernel.settle import Ending, Outcome, next_attempt
from ..batch import readiness
from ..driver import Tx, batch, rows_to, write
from ..operators import signed

PARENT_CANCELED = "its parent was canceled"  # why a child was canceled, in its history
ACTIVE = (RunState.READY, RunState.PAUSED)


def cancel_run(tx: Tx, run_id: str, *, reason: str | None, now: int) -> list[str]:
    """Cancel a run that we have locked, and its children; return the ids of all that were canceled."""
    tx.run(tx.sql.cancel_run, id=run_id, now=now)
    tx.changed.append(RunChange(run_id=run_id, state=RunState.CANCELED, at=now, reason=reason))
    note(tx, run_id, "canceled", {"reason": reason}, now)
    wake_waiting(tx, [run_id], now)
    return [run_id, *cancel_rest(tx, run_id, now)]


def cancel_rest(tx: Tx, run_id: str, now: int) -> list[str]:
    """Cancel what a canceled run leaves behind; return the ids of its children that were canceled."""
    undoing = tx.query(tx.sql.undoable, id=run_id)[0][0]
    tx.run(tx.sql.cancel_executions, id=run_id, now=now, keep=MAIN if undoing else "")
    readiness.forget(tx, [run_id])
    if undoing:
        tx.run(tx.sql.unhold, id=run_id, now=now)
        readiness.wake(tx, [run_id], now)
        _call_back(tx, run_id, now)
    canceled: list[str] = []
    for child, state in tx.query(tx.sql.children, id=run_id):
        if state in ACTIVE and _lock(tx, [child])[child] in ACTIVE:
            canceled += cancel_run(tx, child, reason=PARENT_CANCELED, now=now)
    return canceled


def wake_waiting(tx: Tx, ended: Sequence[str], now: int) -> bool:
    """Make due the nodes of other runs that wait for the end of these; say whether there were any."""
    if not ended:
        return False
    targets = batch([{"target": run} for run in ended])
    waiting = sorted({(row[0], row[1]) for row in tx.query(tx.sql.graphs.waits, rows=targets)})
    if not waiting:
        return False
    rows = batch([{"run_id": run, "node": node} for run, node in waiting])
    tx.run(tx.sql.graphs.wake_nodes, rows=rows, now=now)
    tx.run(tx.sql.graphs.delete_waits, rows=targets)
    return True


def _call_back(tx: Tx, run_id: str, now: int) -> None:
    """A run that was paused by its failure has no execution left to undo it: begin another attempt."""
    stopped = {
        (node, attempt)
        for node, attempt, outcome in tx.query(tx.sql.failed_attempts, id=run_id)
        if taken_up(RunState.PAUSED, outcome)
    }
    latest: list[Claimed] = rows_to(Claimed, tx.query(tx.sql.latest, id=run_id))
    again = [
        next_attempt(row, Ending(outcome=Outcome.REATTEMPTED, now=now))
        for row in latest
        if row.node == MAIN and (row.node, row.attempt) in stopped
    ]
    write(tx, tx.sql.insert_executions, again)


def lock_family(tx: Tx, run_id: str) -> None:
    """Lock a run, its parent and all that is below it, in the one order in which runs are locked.

    Who is born meanwhile is locked when it is met: rare enough to leave the
    deadlock that this could be to the database, which makes one of us try again.
    """
    family = {run_id}
    rows = tx.query(tx.sql.run, id=run_id)
    if rows and (parent := rows[0][9]) is not None:
        family.add(parent)
    generation = [run_id]
    while generation:
        generation = [child for run in generation for child, _ in tx.query(tx.sql.children, id=run)]
        family |= set(generation)
    _lock(tx, sorted(family))


def _lock(tx: Tx, runs: list[str]) -> dict[str, str]:
    rows = tx.query(tx.sql.lock_runs, rows=batch([{"id": run} for run in runs]))
    return {row[0]: row[1] for row in rows}


def note(tx: Tx, run_id: str, event: str, detail: object, now: int) -> None:
    """Add a line to the run's history."""
    line = HistoryRow(
        run_id=run_id, happened_at=now, event=event, detail=msgspec.json.encode(signed(detail)).decode()
    )
    tx.run(tx.sql.insert_history, rows=batch([line]))
