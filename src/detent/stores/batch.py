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

from ..errors import AlreadyRunning, InvalidState, RunConflict, RunNotFound
from ..kernel.model import (
    Await,
    ExecutionState,
    HistoryEvent,
    NewExecution,
    NewRun,
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
from ..kernel.settle import under, waiting_state
from .base import Tx, batch


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
    readiness: list[dict[str, Any]] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    consumed: list[dict[str, Any]] = field(default_factory=list)
    settled: Counter[tuple[str, str]] = field(default_factory=Counter)
    unwaited: set[str] = field(default_factory=set)
    held: set[str] = field(default_factory=set)
    now: int = 0

    def step(self, step: Step) -> None:
        # A statement may not touch a row twice: the latest state of a step is enough.
        self.steps[step.run_id, step.key] = step


@dataclass
class Applied:
    """The answers, one for each operation, and whom to tell."""

    answers: list[Any]
    made_ready: bool = False
    ended: list[str] = field(default_factory=list)


def apply(tx: Tx, operations: Sequence[Operation], *, helpers_wanted: bool) -> Applied:
    """Apply all of it, or raise and change nothing."""
    alive = _fence(tx, operations)
    runs = _lock_runs(tx, operations, alive)
    held = _lock_executions(tx, operations, alive)
    known = _known_runs(tx, operations)
    changes = Changes()
    answers = [_plan(operation, alive, runs, held, known, changes) for operation in operations]
    _write(tx, changes)
    woken = settle_readiness(tx, changes)
    watched = [run for run in changes.ended_runs if runs[run][1]]
    ready = woken or any(row.state == ExecutionState.READY for row in changes.executions)
    ready = ready or any(row["state"] == ExecutionState.READY for row in changes.parked)
    remote = any(isinstance(operation, Start) and operation.remote for operation in operations)
    if (ready and helpers_wanted) or remote or watched:
        tx.driver.notify(tx, batch({"work": ready or remote, "runs": watched[:100]}))
    return Applied(answers, made_ready=ready, ended=list(changes.ended_runs))


def _fence(tx: Tx, operations: Iterable[Operation]) -> set[str]:
    workers = {op.worker for op in operations if isinstance(op, Record | Park | Settle)}
    if not workers:
        return set()
    rows = tx.query(tx.sql.fence, rows=batch([{"id": worker} for worker in sorted(workers)]))
    return {row[0] for row in rows}


def _lock_runs(
    tx: Tx, operations: Iterable[Operation], alive: set[str]
) -> dict[str, tuple[str, bool]]:
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


def _lock_executions(tx: Tx, operations: Iterable[Operation], alive: set[str]) -> set[tuple[str, str, int]]:
    keys = [
        {"run_id": op.key.run_id, "node": op.key.node, "attempt": op.key.attempt, "token": op.token}
        for op in operations
        if isinstance(op, Park | Settle) and op.worker in alive
    ]
    if not keys:
        return set()
    return {(row[0], row[1], row[2]) for row in tx.query(tx.sql.lock_executions, rows=batch(keys))}


def _known_runs(tx: Tx, operations: Iterable[Operation]) -> dict[str, tuple[str, str]]:
    """Which of the chosen ids are taken, and by what."""
    chosen = {run.id for op in operations if isinstance(op, Start) and op.chosen for run in op.runs}
    if not chosen:
        return {}
    rows = tx.query(tx.sql.known_runs, rows=batch([{"id": run} for run in sorted(chosen)]))
    return {row[0]: (row[1], row[2]) for row in rows}


def _plan(
    op: Operation,
    alive: set[str],
    runs: dict[str, tuple[str, bool]],
    held: set[tuple[str, str, int]],
    known: dict[str, tuple[str, str]],
    changes: Changes,
) -> Any:
    if isinstance(op, Record):
        return _record(op, alive, runs, changes)
    if isinstance(op, Settle):
        return _settle(op, runs, held, changes)
    if isinstance(op, Start):
        return _start(op, known, changes)
    if isinstance(op, Park):
        return _park(op, runs, held, changes)
    if isinstance(op, Send):
        return _send(op, runs, changes)
    raise TypeError(f"the store has no operation {type(op).__name__}")


def _start(op: Start, known: dict[str, tuple[str, str]], changes: Changes) -> list[Started] | Exception:
    for run in op.runs:
        if run.id in known and known[run.id] != (run.type, run.input):
            return RunConflict(run.id, known[run.id][0])
    fresh = {run.id for run in op.runs if run.id not in known}
    for run in op.runs:
        if run.id in fresh:
            known[run.id] = (run.type, run.input)
            changes.runs.append(run)
    changes.executions += [row for row in op.executions if row.run_id in fresh]
    for step in op.steps:
        if step.run_id in fresh:
            changes.step(step)
    return [Started(id=run.id, created=run.id in fresh) for run in op.runs]


def _record(op: Record, alive: set[str], runs: dict[str, tuple[str, bool]], changes: Changes) -> Verdict:
    if op.worker not in alive:
        return Verdict.STALE
    if op.run_id in runs and runs[op.run_id][0] == RunState.CANCELED:
        return Verdict.STALE  # nothing new begins in a canceled run
    for step in op.steps:
        changes.step(step)
    for row in op.executions:
        if op.run_id in runs and runs[op.run_id][0] == RunState.PAUSED:
            row.state = ExecutionState.HELD
        changes.executions.append(row)
    if op.children is not None:
        changes.runs += op.children.runs
        changes.executions += op.children.executions
    changes.consumed += [{"seq": seq} for seq in op.consume]
    return Verdict.APPLIED


def _settle(
    op: Settle, runs: dict[str, tuple[str, bool]], held: set[tuple[str, str, int]], changes: Changes
) -> Settled:
    key = (op.key.run_id, op.key.node, op.key.attempt)
    if key not in held:
        return Settled(verdict=Verdict.STALE)
    held.discard(key)  # a second settle in the same batch is stale too
    state = runs[op.key.run_id][0]
    pending = changes.ended_runs.get(op.key.run_id)
    if pending is not None:
        state = pending["state"]
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
        changes.executions.append(plan.again)
    if plan.topic is not None:
        changes.settled[op.key.run_id, topic_of("steps", plan.topic)] += 1
    changes.history += plan.history
    if plan.run is not None:
        end_run(op.key.run_id, plan.run, op.now, changes)
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
    if final:
        changes.unwaited.add(run_id)
    else:
        changes.held.add(run_id)
        changes.history.append(
            HistoryEvent(run_id=run_id, happened_at=now, event="paused", detail=end.error or "null")
        )


def _park(
    op: Park, runs: dict[str, tuple[str, bool]], held: set[tuple[str, str, int]], changes: Changes
) -> Settled:
    key = (op.key.run_id, op.key.node, op.key.attempt)
    if key not in held:
        return Settled(verdict=Verdict.STALE)
    held.discard(key)
    changes.now = max(changes.now, op.now)
    state = runs[op.key.run_id][0]
    for step in op.steps:
        changes.step(step)
    due = op.now if state == RunState.CANCELED else op.wake_at
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


def _send(op: Send, runs: dict[str, tuple[str, bool]], changes: Changes) -> Any:
    if op.run_id not in runs:
        return RunNotFound(op.run_id)
    state = runs[op.run_id][0]
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


def _write(tx: Tx, changes: Changes) -> None:
    sql = tx.sql
    for statement, rows in (
        (sql.insert_runs, changes.runs),
        # Ended before the next attempt begins: one active execution per node.
        (sql.end_executions, changes.ended_executions),
        (sql.insert_executions, changes.executions),
        (sql.upsert_steps, list(changes.steps.values())),
        (sql.insert_messages, changes.messages),
        (sql.consume_messages, changes.consumed),
        (sql.end_runs, list(changes.ended_runs.values())),
        (sql.insert_history, changes.history),
    ):
        if rows:
            tx.run(statement, rows=batch(rows))
    if changes.parked:
        _park_all(tx, changes)
    for run in sorted(changes.held):
        tx.run(sql.hold, id=run)
    if changes.unwaited:
        tx.run(sql.clear_readiness, rows=batch([{"id": run} for run in sorted(changes.unwaited)]))


def _park_all(tx: Tx, changes: Changes) -> None:
    """Put executions down, unless what they await has happened meanwhile."""
    awaits = [item for row in changes.parked for item in row["awaits"]]
    pending = _pending(tx, awaits) if awaits else {}
    for row in changes.parked:
        happened = [item for item in row["awaits"] if (item.run_id, item.topic) not in pending]
        if happened:
            row["scheduled_for"] = row["now"]
            if row["state"] != ExecutionState.HELD:
                row["state"] = ExecutionState.READY
        else:
            changes.readiness += [
                {"run_id": item.run_id, "node": item.topic, "required": pending[item.run_id, item.topic]}
                for item in row["awaits"]
            ]
        del row["awaits"], row["now"]
    tx.run(tx.sql.park_executions, rows=batch(changes.parked))
    if awaits:
        tx.run(tx.sql.clear_readiness, rows=batch([{"id": run} for run in sorted({a.run_id for a in awaits})]))
    if changes.readiness:
        tx.run(tx.sql.put_readiness, rows=batch(changes.readiness))


def _pending(tx: Tx, awaits: list[Await]) -> dict[tuple[str, str], int]:
    pending: dict[tuple[str, str], int] = {}
    for kind, statement in (
        ("steps", tx.sql.pending_steps),
        ("child", tx.sql.pending_children),
        ("message", tx.sql.pending_messages),
    ):
        asked = [item for item in awaits if item.kind == kind]
        if asked:
            for run, name, *count in tx.query(statement, rows=batch(asked)):
                pending[run, topic_of(kind, name)] = int(count[0]) if count else 1
    return pending


def settle_readiness(tx: Tx, changes: Changes) -> bool:
    """Count what has happened; make due the runs whose wait is over by it."""
    if not changes.settled:
        return False
    rows = [
        {"run_id": run, "node": node, "increment": count}
        for (run, node), count in sorted(changes.settled.items())
    ]
    if not tx.run(tx.sql.add_readiness, rows=batch(rows)):
        return False  # nobody waits for any of it
    full = sorted({row[0] for row in tx.query(tx.sql.full_readiness, rows=batch(rows))})
    if not full:
        return False
    wake(tx, full, changes.now)
    return True


def wake(tx: Tx, runs: Sequence[str], now: int) -> None:
    """Make the parked executions of these runs due."""
    ids = batch([{"id": run} for run in runs])
    tx.run(tx.sql.clear_readiness, rows=ids)
    tx.run(tx.sql.wake, rows=ids, now=now)


def explain_conflict(tx: Tx, op: Operation) -> Exception | list[Started] | None:
    """After a unique violation of one operation alone: what is in its way."""
    start = op.children if isinstance(op, Record) else op
    if not isinstance(start, Start):
        return None
    known = _known_runs(tx, [Start(runs=start.runs, executions=[], chosen=True)])
    for run in start.runs:
        if run.id in known and known[run.id] != (run.type, run.input):
            return RunConflict(run.id, known[run.id][0])
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

    Ids, tokens and keys are ours alone, so finding them means that we wrote them.
    """
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
        # The token stays in the row until the next claim, so finding it there, and the
        # execution no longer executing, means that this very settle went through.
        rows = tx.query(tx.sql.delivered, **_key_and_token(op))
        if rows and rows[0][0] != ExecutionState.EXECUTING:
            return Settled(verdict=Verdict.APPLIED, ended=op.plan.run if isinstance(op, Settle) else None)
    return None


def _children(op: Record) -> list[NewRun]:
    return op.children.runs if op.children is not None else []


def _key_and_token(op: Settle | Park) -> dict[str, Any]:
    return {"run_id": op.key.run_id, "node": op.key.node, "attempt": op.key.attempt, "token": op.token}
