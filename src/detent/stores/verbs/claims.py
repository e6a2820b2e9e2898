"""Claims, leases and rescue.

A worker's lease is one row for all that it holds: renewing it is one statement,
and every write of a worker checks that row under a shared lock.  Who finds a
worker dead deletes the row under the exclusive one, so that from then on nothing
of that worker can commit, and gives its executions back in the same transaction.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ...errors import DetentError, TooManyRecoveries
from ...kernel.graph import thaw
from ...kernel.operations import Recovered, SettlePlan
from ...kernel.rows import (
    Claimed,
    ExecutionState,
    HeartbeatReading,
    HistoryRow,
    NewExecution,
    RunState,
    Step,
    WorkerRow,
    stored_error,
)
from ...kernel.settle import NODE, recover
from ..batch.apply import lock_executions
from ..batch.changes import Changes, end_run, execution_order
from ..claim_cursor import SLOW, ClaimCursor
from ..driver import Tx, batch, rows_to
from ..sql.dialect import columns_of
from .leases import lease

PROMOTED_AT_ONCE = 1000


def claim(
    tx: Tx,
    worker: str,
    *,
    queues: Sequence[str],
    jobs: Sequence[str],
    tokens: Sequence[str],
    now: int,
    version: str = "",
    claim_cursor: ClaimCursor | None = None,
    timers: bool = True,
) -> Callable[[], list[Claimed]]:
    """Lease what is due to `worker`, at most as many as there are tokens; twice claims the next ones.

    Without `timers`, those that are due stay timers.  A worker that is no longer alive gets nothing.  What
    was claimed is told after the commit, with which it is asked for.
    """
    claim_cursor = claim_cursor or ClaimCursor()
    claim_cursor.begin()
    if not queues:
        return list
    if not timers and tx.driver.quick_claim is not None and claim_cursor.wanted():
        quick = tx.driver.quick_claim(
            tx, worker, queues=queues, jobs=jobs, tokens=tokens, now=now, version=version
        )
        if quick is not None:
            for place in quick.places:
                claim_cursor.claimed(*place)
            _looked(tx, worker, quick.searches, quick.seconds, claim_cursor)
            return lambda: quick.claimed
    known = {"rows": batch([{"job": job} for job in jobs]), "version": version}
    found = _find(tx, worker, queues, known, len(tokens), now if timers else None, claim_cursor)
    if not found:
        return list
    leases = [
        {"run_id": run, "node": node, "attempt": attempt, "token": token}
        for (run, node, attempt), token in zip(found, tokens, strict=False)
    ]
    return lease(tx, worker, leases, now)


def claim_at_once(
    tx: Tx,
    worker: str,
    *,
    queue: str,
    jobs: Sequence[str],
    tokens: Sequence[str],
    now: int,
    version: str,
    claim_cursor: ClaimCursor,
) -> tuple[list[Claimed], float]:
    """Lease what is ready in one queue, by one statement; return it, and how many seconds the search took.

    Timers that are due stay timers.
    """
    rows = tx.query(
        tx.sql.claim_at_once,
        worker=worker,
        queue=queue,
        limit=len(tokens),
        tokens=f"{{{','.join(tokens)}}}",
        now=now,
        rows=batch([{"job": job} for job in jobs]),
        version=version,
    )
    claim_cursor.begin()
    seconds: float = rows[0][0]
    if rows[0][1] is None:
        return [], seconds
    rows.sort(key=_order_of_claims)
    claimed: list[Claimed] = rows_to(Claimed, [row[1:-1] for row in rows])
    for item, row in zip(claimed, rows, strict=True):
        claim_cursor.claimed(queue, item.precedence, row[-1])
    return claimed, seconds


_PRECEDENCE = columns_of(Claimed).index("precedence") + 1


def _order_of_claims(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return row[_PRECEDENCE], row[-1], row[1]


def _find(
    tx: Tx,
    worker: str,
    queues: Sequence[str],
    known: Mapping[str, str],
    room: int,
    now: int | None,
    claim_cursor: ClaimCursor,
) -> list[tuple[str, str, int]]:
    """Lock what is to be claimed: from the cursor on, or all.  Timers due `now` become ready first."""
    found: dict[tuple[str, str, int], None] = {}

    def take(queue: str, rows: Sequence[Sequence[Any]]) -> None:
        for run, node, attempt, precedence, due in rows:
            if len(found) < room:
                found[run, node, attempt] = None
                claim_cursor.claimed(queue, precedence, due)

    def look(queues: Sequence[str]) -> int:
        """Over everything in these queues; return how often it was asked."""
        looks = 0
        for queue in queues:
            if len(found) < room:
                # Our own locks are not skipped: what was found before is found again.
                take(queue, tx.query(tx.sql.claim, queue=queue, limit=room, **known))
                looks += 1
        return looks

    liveness = tx.ask(tx.sql.fence, id=worker)
    whole = claim_cursor.wanted()
    begun = time.perf_counter()
    floor = 0 if whole else claim_cursor.timers  # a timer from a machine whose clock is behind lies below it
    timers: Callable[[], list[Any]] = list
    if now is not None:
        timers = tx.ask(tx.sql.due_timers, now=now, limit=PROMOTED_AT_ONCE, floor=floor)
    # Mostly there is one queue, and no timer due: then this is all that there is to ask.
    first = tx.ask(tx.sql.claim, queue=queues[0], limit=room, **known) if whole else list
    if not liveness():
        return []
    promoted = _promote(tx, timers(), claim_cursor)
    if whole:
        take(queues[0], first())
        looks = 1 + (now is not None) + look(queues if promoted else queues[1:])  # one for the timers
    else:
        for queue in queues:
            for precedence, floor in claim_cursor.places(queue):
                if limit := room - len(found):
                    place = {"queue": queue, "precedence": precedence, "floor": floor}
                    take(queue, tx.query(tx.sql.claim_on, limit=limit, **place, **known))
        if len(found) == room:
            return list(found)
        if not claim_cursor.affordable():
            claim_cursor.skipped = True
            return list(found)
        begun = time.perf_counter()
        looks = look(queues)
    _looked(tx, worker, looks, time.perf_counter() - begun, claim_cursor)
    return list(found)


def _looked(tx: Tx, worker: str, looks: int, seconds: float, claim_cursor: ClaimCursor) -> None:
    """So many looks over everything took so long."""
    claim_cursor.looked(seconds if seconds <= SLOW else seconds - looks * _way(tx, worker))


def _way(tx: Tx, worker: str) -> float:
    """Seconds of a round trip to the database, which is no measure of the index."""
    begun = time.perf_counter()
    tx.query(tx.sql.fence, id=worker)
    return time.perf_counter() - begun


def promote(tx: Tx, now: int) -> bool:
    """Make timers ready whose time has come, wherever they are, and say whether there were any."""
    return _promote(tx, tx.query(tx.sql.due_timers, now=now, limit=PROMOTED_AT_ONCE, floor=0), ClaimCursor())


def _promote(tx: Tx, due: Sequence[Sequence[Any]], claim_cursor: ClaimCursor) -> bool:
    """Make timers ready whose time has come, and say whether there were any."""
    if due:
        keys = [{"run_id": run, "node": node, "attempt": attempt} for run, node, attempt, _ in due]
        tx.send(tx.sql.promote, rows=batch(keys))
        claim_cursor.promoted(due[-1][3])
    return bool(due)


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
        jobs=worker.jobs,
        version=worker.version,
        drain_at=worker.drain_at,
    )


def workers(tx: Tx) -> list[WorkerRow]:
    return rows_to(WorkerRow, tx.query(tx.sql.workers))


def release(tx: Tx, claimed: Sequence[Claimed]) -> None:
    """Hand executions back that were not begun; others may claim them at once.

    Under the runs' locks: what is handed back while its run is being paused is held.
    """
    states = _lock_runs(tx, claimed)
    rows = [
        {
            "run_id": c.run_id,
            "node": c.node,
            "attempt": c.attempt,
            "token": c.token,
            "state": ExecutionState.HELD if states[c.run_id] == RunState.PAUSED else ExecutionState.READY,
        }
        for c in sorted(claimed, key=_key)
    ]
    tx.run(tx.sql.release, rows=batch(rows))
    for c in sorted(claimed, key=_key):
        # A node of a graph that is over; it was not executed, so it ends when it began.
        if c.kind == NODE and states[c.run_id] == RunState.FINISHED:
            tx.run(tx.sql.graphs.finish_rest, id=c.run_id, now=c.started_at)
        elif c.kind == NODE and states[c.run_id] == RunState.CANCELED:
            tx.run(tx.sql.cancel_executions, id=c.run_id, now=c.started_at, keep="")


def disclaim(tx: Tx, worker: str, tokens: Collection[str]) -> int:
    """Hand back what is leased under these tokens, and return how much: this worker does not execute it."""
    held: list[Claimed] = rows_to(Claimed, tx.query(tx.sql.held_by, worker=worker))
    lost = [c for c in held if c.token in tokens]
    if lost:
        release(tx, lost)
    return len(lost)


def _lock_runs(tx: Tx, claimed: Sequence[Claimed]) -> dict[str, str]:
    runs = sorted({c.run_id for c in claimed})
    return {row[0]: row[1] for row in tx.query(tx.sql.lock_runs, rows=batch([{"id": run} for run in runs]))}


def _key(claimed: Claimed) -> tuple[str, str, int]:
    return claimed.run_id, claimed.node, claimed.attempt


def reap(
    tx: Tx,
    worker: str,
    *,
    counted: bool,
    max_recoveries: int,
    now: int,
    unless_renewed: int | None = None,
) -> list[NewExecution] | None:
    """Take a worker declared dead and give its executions back; `counted` where it died.

    None if another worker did it, or it has renewed its lease since it was found dead.  Executions of
    paused runs come back held.
    """
    found_alive = tx.query(tx.sql.lock_worker, id=worker)
    if not found_alive or unless_renewed not in (None, found_alive[0][1]):
        return None
    tx.run(tx.sql.delete_worker, id=worker)
    found: list[Claimed] = rows_to(Claimed, tx.query(tx.sql.held_by, worker=worker))
    # That was read before we had any locks: look again at the runs' states, and at what was
    # handed back meanwhile.
    states = _lock_runs(tx, found) if found else {}
    held = lock_executions(tx, {(*_key(orphan), orphan.token) for orphan in found})
    orphans = [orphan for orphan in found if (*_key(orphan), orphan.token) in held]
    if not orphans:
        return []
    asked = batch([{"run_id": o.run_id, "attempt": o.attempt} for o in orphans])
    progressed = {(row[0], row[1]) for row in tx.query(tx.sql.progressed, rows=asked)}
    suspicion = {_key(o): 0 if (o.run_id, o.attempt) in progressed else o.recoveries for o in orphans}
    worst = max(suspicion.values())
    changes = Changes(now=now)
    random.shuffle(orphans)  # they take turns, each time in another order
    for turn, orphan in enumerate(sorted(orphans, key=lambda o: suspicion[_key(o)] == 0)):
        orphan.run_state = states[orphan.run_id]
        # Who dies beside one that has died more often is not blamed for it.
        blamed = counted and suspicion[_key(orphan)] == worst
        got_somewhere = (orphan.run_id, orphan.attempt) in progressed
        name = _shown(tx, orphan) if orphan.recoveries >= max_recoveries else orphan.node
        plan = _return(orphan, name, got_somewhere, blamed, max_recoveries, turn, changes)
        tx.changed.append(Recovered(execution=orphan, plan=plan, at=now))
    tx.run(tx.sql.end_executions, rows=batch(changes.ended_executions))
    if changes.executions:
        tx.run(tx.sql.insert_executions, rows=batch(sorted(changes.executions, key=execution_order)))
    if changes.ended_runs:
        tx.run(tx.sql.end_runs, rows=batch(list(changes.ended_runs.values())))
    for run in sorted(changes.held):
        tx.run(tx.sql.hold, id=run)
    tx.run(tx.sql.insert_history, rows=batch(changes.history))
    return changes.executions


def _shown(tx: Tx, orphan: Claimed) -> str:
    """The name of a node, which a stored graph knows."""
    if orphan.kind != NODE or orphan.frozen_at is None:
        return orphan.node
    text = "".join(row[0] for row in tx.query(tx.sql.graphs.graph, id=orphan.run_id))
    try:
        return thaw(text, orphan.signature, "its graph").shown(orphan.node)
    except DetentError:  # it says so when it is executed
        return orphan.node


def _return(
    orphan: Claimed,
    name: str,
    progressed: bool,
    counted: bool,
    max_recoveries: int,
    turn: int,
    changes: Changes,
) -> SettlePlan:
    cause = TooManyRecoveries(name, 0 if progressed else orphan.recoveries)
    plan = recover(
        orphan,
        progressed=progressed,
        counted=counted,
        max_recoveries=max_recoveries,
        error=stored_error(cause),
        now=changes.now,
        turn=turn,
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
            "ancestry_hash": None,
        }
    )
    changes.history += plan.history or [
        HistoryRow(run_id=orphan.run_id, happened_at=changes.now, event=plan.outcome)
    ]
    if plan.again is not None:
        changes.executions.append(plan.again)
    if plan.run is not None and plan.run.state == RunState.PAUSED:
        end_run(orphan.run_id, plan.run, changes.now, changes)
    return plan


def read_heartbeat(tx: Tx, *, runs: Sequence[str], now: int, claim_cursor: ClaimCursor) -> HeartbeatReading:
    """All that a worker wants to know now and then, in one statement."""
    found = HeartbeatReading(now=now)
    running = batch([{"id": run} for run in runs])
    facts = {"now": now, "floor": claim_cursor.timers, "look": int(not claim_cursor.slow_scan)}
    for kind, text, number, other, held in tx.query(tx.sql.heartbeat, rows=running, **facts):
        if kind == "worker":
            found.workers.append((text, number, other, bool(held)))
        elif kind == "drained":
            found.drained.append(text)
        elif kind == "now":
            found.now = number
        elif kind == "due":
            found.next_due = number or None
        elif kind == "deadline":
            found.next_deadline = number or None
        elif kind == "schedule":
            found.next_schedule = number or None
        elif kind == "head":
            found.head = number
        elif kind == "ready":
            found.ready = bool(number)
        elif kind == "limited":
            found.limited[text] = number > 1
        else:
            found.interrupted.append((text, kind))
    return found
