"""Deadlines of runs that wait: noticed at their time, whether or not a worker has a free slot.

A run with a deadline has a row in `detent_deadlines`.  At the deadline a worker claims the
run out of turn and without a free slot, whether it waits in a queue, is delayed, or sleeps.  The
claimed execution does not run its body.  It sees that the deadline has passed, undoes what
there is to undo, and ends the run.  What executes at that moment looks at the deadline itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ...kernel.rows import MAIN, Claimed, NewRun, RunState
from ..driver import Tx, batch
from .leases import lease

AT_ONCE = 100
LOOK_AGAIN = 2_000_000  # microseconds until a run is looked at again that executes at its deadline


def rows_of(runs: Sequence[NewRun]) -> list[dict[str, object]]:
    """The rows for those of the new runs that have a deadline."""
    return [{"run_id": run.id, "deadline": run.deadline} for run in runs if run.deadline is not None]


def claim_overdue(
    tx: Tx,
    worker: str,
    *,
    queues: Collection[str],
    jobs: Collection[str],
    token: Callable[[], str],
    now: int,
    version: str = "",
) -> Callable[[], list[Claimed]]:
    """Lease one execution of each run whose deadline has passed while it waits."""
    if not tx.query(tx.sql.fence, id=worker):
        return list
    due = sorted(row[0] for row in tx.query(tx.sql.deadlines.due, now=now, limit=AT_ONCE))
    if not due:
        return list
    states = dict(tx.query(tx.sql.deadlines.states, rows=batch([{"id": run} for run in due])))
    active = [run for run in due if states.get(run) == RunState.READY]
    found = _waiting(tx, active, queues, jobs, version) if active else {}
    # A run that is over, paused or gone needs no look any more; a resumed one looks by itself.
    done = [run for run in due if run in found or run not in active]
    if done:
        tx.run(tx.sql.deadlines.forget, rows=batch([{"run_id": run} for run in done]))
    later = [{"run_id": run, "deadline": now + LOOK_AGAIN} for run in active if run not in found]
    if later:
        tx.run(tx.sql.deadlines.postpone, rows=batch(later))
    if not found:
        return list
    leases = [
        {"run_id": run, "node": node, "attempt": attempt, "token": token()}
        for run, (node, attempt) in sorted(found.items())
    ]
    return lease(tx, worker, leases, now)


def _waiting(
    tx: Tx, runs: Sequence[str], queues: Collection[str], jobs: Collection[str], version: str
) -> dict[str, tuple[str, int]]:
    """By run, an execution that may end it: the main one of a function, any node of a graph."""
    found: dict[str, tuple[str, int]] = {}
    rows = tx.query(tx.sql.deadlines.waiting, rows=batch([{"run_id": run} for run in runs]))
    for run, node, attempt, kind, job, queue, pin in rows:
        if kind in (MAIN, "node") and job in jobs and queue in queues and pin in (None, version):
            found.setdefault(run, (node, attempt))
    return found
