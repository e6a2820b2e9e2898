"""Claims, leases and rescue.

A worker's lease is one row for all that it holds: renewing it is one statement,
and every write of a worker checks that row under a shared lock.  Who finds a
worker dead deletes the row under the exclusive one, so that from then on nothing
of that worker can commit, and gives its executions back in the same transaction.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..errors import TooManyRecoveries
from ..kernel.model import (
    Claimed,
    Error,
    HistoryEvent,
    NewExecution,
    RunState,
    Step,
    WorkerRow,
)
from ..kernel.settle import recover
from .base import Tx, batch, rows_to
from .batch import Changes, end_run


def claim(
    tx: Tx, worker: str, *, queues: Sequence[str], jobs: Sequence[str], tokens: Sequence[str], now: int
) -> list[Claimed]:
    """Lease what is due to `worker`, at most as many as there are tokens; twice claims the next ones.

    A worker that is no longer in office gets nothing.
    """
    if not tx.query(tx.sql.fence, rows=batch([{"id": worker}])):
        return []
    tx.run(tx.sql.promote, now=now)
    known = batch([{"job": job} for job in jobs])
    found: list[tuple[str, str, int]] = []
    for queue in queues:
        room = len(tokens) - len(found)
        if room:
            rows = tx.query(tx.sql.claim, queue=queue, rows=known, limit=room)
            found += [(row[0], row[1], row[2]) for row in rows]
    if not found:
        return []
    leases = [
        {"run_id": run, "node": node, "attempt": attempt, "token": token}
        for (run, node, attempt), token in zip(found, tokens, strict=False)
    ]
    keys = batch(leases)
    tx.run(tx.sql.claimed, rows=keys, worker=worker, now=now)
    return rows_to(Claimed, tx.query(tx.sql.claimed_runs, rows=keys))


def journal(tx: Tx, runs: Sequence[str]) -> dict[str, list[Step]]:
    """All that was recorded of these runs."""
    steps: dict[str, list[Step]] = {run: [] for run in runs}
    rows = tx.query(tx.sql.journal, rows=batch([{"id": run} for run in runs]))
    for step in rows_to(Step, rows):
        steps[step.run_id].append(step)
    return steps


def register(tx: Tx, worker: WorkerRow) -> None:
    tx.run(
        tx.sql.insert_worker,
        id=worker.id,
        name=worker.name,
        pid=worker.pid,
        queues=worker.queues,
        concurrency=worker.concurrency,
        lock_no=worker.lock_no,
        now=worker.started_at,
        lease_until=worker.lease_until,
    )


def workers(tx: Tx) -> list[WorkerRow]:
    return rows_to(WorkerRow, tx.query(tx.sql.workers))


def release(tx: Tx, claimed: Sequence[Claimed]) -> None:
    """Hand executions back that were not begun; others may claim them at once."""
    keys = [{"run_id": c.run_id, "node": c.node, "attempt": c.attempt, "token": c.token} for c in claimed]
    tx.run(tx.sql.release, rows=batch(keys))


def bury(tx: Tx, worker: str, *, max_recoveries: int, now: int) -> list[NewExecution] | None:
    """Take a dead worker out of office and give its executions back.

    None when somebody else did it.  Executions of paused runs come back held.
    """
    if not tx.query(tx.sql.lock_worker, id=worker):
        return None
    tx.run(tx.sql.delete_worker, id=worker)
    orphans: list[Claimed] = rows_to(Claimed, tx.query(tx.sql.held_by, worker=worker))
    if not orphans:
        return []
    # The runs' states were read before we had their locks.
    locked = tx.query(tx.sql.lock_runs, rows=batch([{"id": run} for run in sorted({o.run_id for o in orphans})]))
    states = {row[0]: row[1] for row in locked}
    asked = batch([{"run_id": o.run_id, "attempt": o.attempt} for o in orphans])
    progressed = {(row[0], row[1]) for row in tx.query(tx.sql.progressed, rows=asked)}
    changes = Changes(now=now)
    for orphan in orphans:
        orphan.run_state = states[orphan.run_id]
        _return(orphan, (orphan.run_id, orphan.attempt) in progressed, max_recoveries, changes)
    tx.run(tx.sql.end_executions, rows=batch(changes.ended_executions))
    if changes.executions:
        tx.run(tx.sql.insert_executions, rows=batch(changes.executions))
    if changes.ended_runs:
        tx.run(tx.sql.end_runs, rows=batch(list(changes.ended_runs.values())))
    for run in sorted(changes.held):
        tx.run(tx.sql.hold, id=run)
    tx.run(tx.sql.insert_history, rows=batch(changes.history))
    return changes.executions


def _return(orphan: Claimed, progressed: bool, max_recoveries: int, changes: Changes) -> None:
    cause = TooManyRecoveries(orphan.node, orphan.recoveries)
    error = Error(type="detent.errors.TooManyRecoveries", message=str(cause), fields=vars(cause), rebuildable=True)
    plan = recover(
        orphan,
        progressed=progressed,
        max_recoveries=max_recoveries,
        error=msgspec.json.encode(error).decode(),
        now=changes.now,
    )
    changes.ended_executions.append(
        {
            "run_id": orphan.run_id,
            "node": orphan.node,
            "attempt": orphan.attempt,
            "state": plan.state,
            "outcome": plan.outcome,
            "result": None,
            "error": plan.error,
            "finished_at": changes.now,
        }
    )
    changes.history += plan.history or [
        HistoryEvent(run_id=orphan.run_id, happened_at=changes.now, event=plan.outcome)
    ]
    if plan.again is not None:
        changes.executions.append(plan.again)
    if plan.run is not None and plan.run.state == RunState.PAUSED:
        end_run(orphan.run_id, plan.run, changes.now, changes)
