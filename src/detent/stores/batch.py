"""A batch of operations, applied in one transaction.

The order is fixed, so that two processes cannot deadlock: workers' rows (shared),
runs (exclusive, by id), executions, then all writes.  What each operation comes to
is decided by the kernel from what was read under those locks.

An operation whose lease is lost is answered as stale; its neighbours go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ..errors import AlreadyRunning, InvalidState, RunConflict, RunNotFound
from ..kernel.journal import FINAL
from ..kernel.model import (
    ExecutionState,
    HistoryEvent,
    NewExecution,
    NewRun,
    Note,
    Operation,
    Park,
    Record,
    RunEnd,
    RunState,
    Send,
    Settle,
    Settled,
    Start,
    Started,
    Step,
    Verdict,
    topic_of,
)
from ..kernel.settle import Outcome, under, waiting_state
from . import readiness
from .base import Tx, batch, news, write
from .canceling import cancel_rest
from .fitness import unfit_operation

Delivery = tuple[str, str, int, str]  # an execution's key, and the token of its delivery


@dataclass
class Changes:
    """What a batch writes, gathered per table."""

    runs: list[NewRun] = field(default_factory=list)
    executions: list[NewExecution] = field(default_factory=list)
    steps: dict[tuple[str, str], Step] = field(default_factory=dict)
    history: list[HistoryEvent] = field(default_factory=list)
    ended_executions: list[dict[str, Any]] = field(default_factory=list)
    ended_runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    parked: list[dict[str, Any]] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    consumed: list[dict[str, Any]] = field(default_factory=list)
    settled: Counter[tuple[str, str]] = field(default_factory=Counter)
    reopened: list[tuple[str, str]] = field(default_factory=list)
    unwaited: set[str] = field(default_factory=set)
    held: set[str] = field(default_factory=set)
    canceled: set[str] = field(default_factory=set)
    now: int = 0

    def step(self, step: Step) -> None:
        # A statement may not touch a row twice: the latest state of a step is enough, and a
        # record is written once, whatever is said of the step after it.
        known = self.steps.get((step.run_id, step.key))
        if known is None or known.state not in FINAL:
            self.steps[step.run_id, step.key] = step


@dataclass(frozen=True)
class Seen:
    """What a batch has read, under its locks, before it decides anything."""

    alive: set[str]  # workers in office
    runs: dict[str, tuple[str, bool]]  # their state, and whether somebody watches
    held: set[Delivery]  # what is executing under the token of the operation that ends it
    known: dict[str, tuple[str, str]]  # type and input of the runs whose chosen ids are taken

    def state(self, run_id: str, changes: Changes) -> str:
        """A run's state, as the operations before this one have left it."""
        ended = changes.ended_runs.get(run_id)
        return self.runs[run_id][0] if ended is None else str(ended["state"])


@dataclass
class Applied:
    """The answers, one for each operation, and whom to tell."""

    answers: list[Any]
    made_ready: bool = False
    ended: list[str] = field(default_factory=list)


def apply(tx: Tx, operations: Sequence[Operation], *, helpers_wanted: bool) -> Applied:
    """Apply all of it, or raise and change nothing."""
    alive = _fence(tx, operations)
    runs = _lock_runs(tx, operations)
    seen = Seen(alive, runs, _lock_executions(tx, operations, alive), _known_runs(tx, operations))
    changes = Changes()
    answers = [_plan(operation, seen, changes) for operation in operations]
    woken, canceled = _write(tx, changes)
    watched = [run for run in changes.ended_runs if runs[run][1]] + canceled
    ready = woken or any(row.state == ExecutionState.READY for row in changes.executions)
    ready = ready or any(row["state"] == ExecutionState.READY for row in changes.parked)
    remote = any(isinstance(operation, Start) and operation.remote for operation in operations)
    if (ready and helpers_wanted) or remote or watched:
        tx.driver.notify(tx, news(work=ready or remote, runs=watched))
    return Applied(answers, made_ready=ready, ended=[*changes.ended_runs, *canceled])


def _fence(tx: Tx, operations: Iterable[Operation]) -> set[str]:
    """Which of the workers that write here are still in office; they stay so until we commit."""
    workers = {op.worker for op in operations if isinstance(op, Record | Park | Settle)}
    for start in operations:
        if isinstance(start, Start):
            workers |= {row.worker for row in start.executions if row.worker is not None}
    return {worker for worker in sorted(workers) if tx.query(tx.sql.fence, id=worker)}


def _lock_runs(tx: Tx, operations: Iterable[Operation]) -> dict[str, tuple[str, bool]]:
    """Lock the runs that the batch may change; return their state, and whether somebody watches."""
    wanted: set[str] = set()
    for op in operations:
        if isinstance(op, Park | Settle):
            wanted.add(op.key.run_id)
            if isinstance(op, Settle) and op.parent is not None:
                wanted.add(op.parent)
        elif isinstance(op, Send) or (isinstance(op, Record) and (op.children or op.executions)):
            wanted.add(op.run_id)
    if not wanted:
        return {}
    rows = tx.query(tx.sql.lock_runs, rows=batch([{"id": run} for run in sorted(wanted)]))
    return {row[0]: (row[1], bool(row[2])) for row in rows}


def _lock_executions(tx: Tx, operations: Iterable[Operation], alive: set[str]) -> set[Delivery]:
    ends = [op for op in operations if isinstance(op, Park | Settle) and op.worker in alive]
    return lock_executions(tx, {(op.key.run_id, op.key.node, op.key.attempt, op.token) for op in ends})


def lock_executions(tx: Tx, deliveries: set[Delivery]) -> set[Delivery]:
    """Lock these executions; return those that still execute under that very token."""
    if not deliveries:
        return set()
    keys = sorted({delivery[:3] for delivery in deliveries})
    rows = [{"run_id": run, "node": node, "attempt": attempt} for run, node, attempt in keys]
    return {
        (run, node, attempt, token)
        for run, node, attempt, token, state in tx.query(tx.sql.lock_executions, rows=batch(rows))
        if state == ExecutionState.EXECUTING
    } & deliveries


def _known_runs(tx: Tx, operations: Iterable[Operation]) -> dict[str, tuple[str, str]]:
    """Which of the chosen ids are taken, and by what."""
    chosen = {run.id for op in operations if isinstance(op, Start) and op.chosen for run in op.runs}
    if not chosen:
        return {}
    rows = tx.query(tx.sql.known_runs, rows=batch([{"id": run} for run in sorted(chosen)]))
    return {row[0]: (row[1], row[2]) for row in rows}


def _plan(op: Operation, seen: Seen, changes: Changes) -> Any:
    refused = unfit_operation(op)
    if refused is not None:
        return refused
    if isinstance(op, Record):
        return _record(op, seen, changes)
    if isinstance(op, Settle):
        return _settle(op, seen, changes)
    if isinstance(op, Start):
        return _start(op, seen, changes)
    if isinstance(op, Park):
        return _park(op, seen, changes)
    if isinstance(op, Send):
        return _send(op, seen, changes)
    if isinstance(op, Note):
        changes.history += op.events
        return Verdict.APPLIED
    raise TypeError(f"the store has no operation {type(op).__name__}")


def _start(op: Start, seen: Seen, changes: Changes) -> list[Started] | Exception:
    known = seen.known
    for run in op.runs:
        if run.id in known and known[run.id] != (run.type, run.input):
            return RunConflict(run.id, known[run.id][0])
    fresh = {run.id for run in op.runs if run.id not in known}
    for run in op.runs:
        if run.id in fresh:
            known[run.id] = (run.type, run.input)
            changes.runs.append(run)
    changes.executions += [_leased(row, seen) for row in op.executions if row.run_id in fresh]
    for step in op.steps:
        if step.run_id in fresh:
            changes.step(step)
    return [Started(id=run.id, created=run.id in fresh) for run in op.runs]


def _leased(row: NewExecution, seen: Seen) -> NewExecution:
    """A new execution may come with a lease; that of a worker no longer in office is void."""
    if row.worker is None or row.worker in seen.alive:
        return row
    return msgspec.structs.replace(
        row, state=ExecutionState.READY, worker=None, token=None, deliveries=0, started_at=None
    )


def _record(op: Record, seen: Seen, changes: Changes) -> Verdict:
    if op.worker not in seen.alive:
        return Verdict.STALE
    state = seen.state(op.run_id, changes) if op.run_id in seen.runs else RunState.READY
    if state == RunState.CANCELED:
        return Verdict.CANCELED
    for step in op.steps:
        changes.step(step)
    for row in op.executions:
        held = state == RunState.PAUSED and row.state != ExecutionState.EXECUTING
        changes.executions.append(msgspec.structs.replace(row, state=ExecutionState.HELD) if held else row)
    if op.children is not None:
        changes.runs += op.children.runs
        changes.executions += op.children.executions
    changes.consumed += [{"seq": seq} for seq in op.consume]
    return Verdict.APPLIED


def _settle(op: Settle, seen: Seen, changes: Changes) -> Settled:
    delivery = (op.key.run_id, op.key.node, op.key.attempt, op.token)
    if delivery not in seen.held:
        return Settled(verdict=Verdict.STALE)
    state = seen.state(op.key.run_id, changes)
    if op.unless_canceled and state == RunState.CANCELED:
        return Settled(verdict=Verdict.CANCELED, run_state=state)
    seen.held.discard(delivery)  # a second settle in the same batch is stale too
    plan = under(state, op.plan)
    changes.now = max(changes.now, op.now)
    changes.ended_executions.append(
        {
            "run_id": op.key.run_id,
            "node": op.key.node,
            "attempt": op.key.attempt,
            "state": plan.state,
            "outcome": plan.outcome,
            "result": plan.result,
            "error": plan.error,
            "finished_at": op.now,
        }
    )
    for step in op.steps:
        changes.step(step)
    if plan.again is not None:
        changes.executions.append(_leased(plan.again, seen))
    if plan.topic is not None:
        changes.settled[op.key.run_id, topic_of("steps", plan.topic)] += 1
    changes.history += plan.history
    if plan.run is not None:
        end_run(op.key.run_id, plan.run, op.now, changes)
        if not op.waited:
            changes.unwaited.discard(op.key.run_id)
        if op.parent is not None and plan.run.state != RunState.PAUSED:
            changes.settled[op.parent, topic_of("child", op.key.run_id)] += 1
    return Settled(verdict=Verdict.APPLIED, run_state=state, ended=plan.run)


def end_run(run_id: str, end: RunEnd, now: int, changes: Changes) -> None:
    """Note the run's end, or its pause."""
    final = RunState(end.state).final
    changes.ended_runs[run_id] = {
        "id": run_id,
        "state": end.state,
        "result": end.result,
        "error": end.error,
        "finished_at": now if final else None,
    }
    if end.state == RunState.CANCELED:
        changes.canceled.add(run_id)
    elif final:
        changes.unwaited.add(run_id)
    else:
        changes.held.add(run_id)
        changes.history.append(
            HistoryEvent(run_id=run_id, happened_at=now, event="paused", detail=end.error or "null")
        )


def _park(op: Park, seen: Seen, changes: Changes) -> Settled:
    delivery = (op.key.run_id, op.key.node, op.key.attempt, op.token)
    if delivery not in seen.held:
        return Settled(verdict=Verdict.STALE)
    seen.held.discard(delivery)
    changes.now = max(changes.now, op.now)
    state = seen.state(op.key.run_id, changes)
    for step in op.steps:
        changes.step(step)
    due = op.now if state == RunState.CANCELED and not op.undoing else op.wake_at
    waiting = ExecutionState.HELD if state == RunState.PAUSED else waiting_state(due, op.now)
    changes.parked.append(
        {
            "run_id": op.key.run_id,
            "node": op.key.node,
            "attempt": op.key.attempt,
            "state": waiting,
            "scheduled_for": due,
            "awaits": op.awaits,
            "now": op.now,
        }
    )
    return Settled(verdict=Verdict.APPLIED, run_state=state)


def _send(op: Send, seen: Seen, changes: Changes) -> Any:
    if op.run_id not in seen.runs:
        return RunNotFound(op.run_id)
    state = seen.state(op.run_id, changes)
    if RunState(state).final:
        return InvalidState("send to", op.run_id, state)
    changes.now = max(changes.now, op.sent_at)
    changes.messages.append(
        {
            "run_id": op.run_id,
            "message_id": op.message_id,
            "name": op.name,
            "value": op.value,
            "sent_at": op.sent_at,
        }
    )
    changes.settled[op.run_id, topic_of("message", op.name)] += 1
    return Verdict.APPLIED


def _write(tx: Tx, changes: Changes) -> tuple[bool, list[str]]:
    """Write it all; return whether a run was woken, and which children were canceled along with a run."""
    sql = tx.sql
    # Each table in the order of its keys: where an insert waits for another's, as at unique keys
    # and in MySQL's gaps, two batches then wait in one direction.
    for statement, rows in (
        (sql.insert_runs, sorted(changes.runs, key=lambda run: run.id)),
        # Ended before the next attempt begins: one active execution per node.
        (sql.end_executions, sorted(changes.ended_executions, key=lambda end: (end["run_id"], end["node"]))),
        (sql.insert_executions, sorted(changes.executions, key=execution_order)),
        (sql.upsert_steps, [changes.steps[key] for key in sorted(changes.steps)]),
        # (A run's own messages stay in the order of sending.)
        (sql.insert_messages, sorted(changes.messages, key=lambda sent: sent["run_id"])),
        (sql.consume_messages, changes.consumed),
        (sql.end_runs, list(changes.ended_runs.values())),
        (sql.insert_history, changes.history),
    ):
        write(tx, statement, rows)
    # Counted before anything is put down: what is put down looks by itself what has happened by now.
    woken = readiness.count(tx, changes.settled, changes.now)
    if changes.parked:
        readiness.park(tx, changes.parked)
    for run in sorted(changes.held):
        tx.run(sql.hold, id=run)
    readiness.forget(tx, sorted(changes.unwaited))
    canceled = [child for run in sorted(changes.canceled) for child in cancel_rest(tx, run, changes.now)]
    return woken, canceled


def execution_order(row: NewExecution) -> tuple[str, str, int]:
    return row.run_id, row.node, row.attempt


def explain_conflict(tx: Tx, op: Operation) -> Any:
    """After a unique violation of one operation alone: what is in its way, or its answer."""
    start = op.children if isinstance(op, Record) else op
    if not isinstance(start, Start):
        return already_applied(tx, op)
    known = _known_runs(tx, [Start(runs=start.runs, executions=[], chosen=True)])
    for run in start.runs:
        if run.id in known and known[run.id] != (run.type, run.input):
            return RunConflict(run.id, known[run.id][0])
    if isinstance(op, Record):
        return already_applied(tx, op)
    for run in start.runs:
        if run.exclusive and run.id not in known:
            rows = tx.query(tx.sql.hero_run, type=run.type, hero_type=run.hero_type, hero_id=run.hero_id)
            if rows:
                return AlreadyRunning(rows[0][0], run.type, f"{run.hero_type} {run.hero_id}")
    if all(run.id in known for run in start.runs):
        return [Started(id=run.id, created=False) for run in start.runs]
    return None


def already_applied(tx: Tx, op: Operation) -> Any:
    """Whether an operation whose commit was cut off went through; its answer if so.

    Ids, tokens and keys are ours alone, so finding them means that we wrote them: unless our
    worker was thought dead meanwhile, and another one has come by the same place.
    """
    if isinstance(op, Record | Settle | Park) and not tx.query(tx.sql.fence, id=op.worker):
        return None
    if isinstance(op, Start):
        known = _known_runs(tx, [Start(runs=op.runs, executions=[], chosen=True)])
        if all(known.get(run.id) == (run.type, run.input) for run in op.runs):
            return [Started(id=run.id, created=True) for run in op.runs]
    elif isinstance(op, Record):
        if op.executions or op.children:
            nodes = {row.node for row in op.executions} | {run.parent_key for run in _children(op)}
            rows = tx.query(tx.sql.journal, rows=batch([{"id": op.run_id}]))
            if nodes and nodes <= {row[1] for row in rows}:
                return Verdict.APPLIED
    elif isinstance(op, Settle | Park):
        # The token stays in the row until the next claim, so finding it there, and the execution
        # no longer executing, means that this very settle went through: or that we were buried.
        rows = tx.query(tx.sql.delivered, **_key_and_token(op))
        if rows and rows[0][0] != ExecutionState.EXECUTING and rows[0][1] != Outcome.RECOVERED:
            return Settled(verdict=Verdict.APPLIED, ended=op.plan.run if isinstance(op, Settle) else None)
    return None


def _children(op: Record) -> list[NewRun]:
    return op.children.runs if op.children is not None else []


def _key_and_token(op: Settle | Park) -> dict[str, Any]:
    return {"run_id": op.key.run_id, "node": op.key.node, "attempt": op.key.attempt, "token": op.token}
