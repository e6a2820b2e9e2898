"""A batch of operations, applied in one transaction.

The order is fixed, so that two processes cannot deadlock: workers' rows (shared),
runs (exclusive, by id), executions, then all writes.  What each operation comes to
is decided by the kernel from what was read under those locks.

An operation whose lease is lost is answered as stale; the others are applied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import field
from msgspec.structs import replace

from ...errors import InvalidState, RunConflict, RunNotFound
from ...kernel.decide import Decide, Decided, Enqueue
from ...kernel.operations import (
    Note,
    Operation,
    Park,
    Record,
    Recovered,
    RunChange,
    Send,
    Settle,
    Settled,
    SettlePlan,
    Start,
    Started,
    Successor,
    Verdict,
)
from ...kernel.rows import Claimed, ExecutionState, Lease, NewExecution, NewRun, RunEnd, RunState, topic_of
from ...kernel.settle import LETTERS, NODE, has_settled, under, waiting_state
from ..driver import SlotOffer, Tx, batch, news
from . import chains
from .changes import Changes, end_run, write_changes
from .conflicts import Known, ask_known, conflict_of, conflict_of_children, known_of
from .deciders import Brought, Deciding
from .graphs import Asked, Going, ask_counts
from .locks import Locked, ask_runs
from .names import unfit_operation

HANDED_ON = frozenset({NODE, *LETTERS})  # the kinds that our own worker may take at once
Delivery = tuple[str, str, int, str]  # an execution's key, and the token of its delivery


class Seen(msgspec.Struct, frozen=True):
    """What a batch has read, under its locks, before it decides anything."""

    alive: set[str]  # workers alive
    runs: dict[str, Locked]
    held: set[Delivery]  # what is executing under the token of the operation that ends it
    known: dict[str, Known]  # the runs whose chosen ids are taken
    asked: Asked  # of runs that continue by a graph

    def state(self, run_id: str, changes: Changes) -> str:
        """A run's state, as the operations before this one have left it."""
        ended = changes.ended_runs.get(run_id)
        return self.runs[run_id].state if ended is None else str(ended["state"])


class Applied(msgspec.Struct):
    """The answers, one for each operation, and whom to tell."""

    answers: list[Any]
    made_ready: bool = False
    ended: list[str] = field(default_factory=list)
    leased: list[tuple[NewExecution, Claimed | NewRun]] = field(default_factory=list)  # to our own worker
    decided: Brought = field(default_factory=Brought)
    changed: list[RunChange | Recovered] = field(default_factory=list)  # runs canceled with others


def apply(
    tx: Tx, operations: Sequence[Operation], *, helpers_wanted: bool, slots: SlotOffer | None = None
) -> Applied:
    """Apply all of it, or raise and change nothing.

    Nodes that become ready are handed to the worker behind `slots`, as far as it has room.
    """
    seen = _look(tx, operations, slots)
    runs = seen.runs
    changes = Changes()
    plans = Plans(
        tx, seen, changes, _going(tx, operations, seen, changes), _deciding(tx, operations, runs, changes)
    )
    answers = [_plan(operation, plans) for operation in operations]
    if plans.going is not None:
        plans.going.take_over()
    if plans.deciding is not None:
        plans.deciding.finish()
    leased = _lease(operations, plans, slots) if slots is not None else []
    woken, canceled = write_changes(tx, changes)
    if plans.deciding is not None:
        plans.deciding.write()
    brought = plans.deciding.brought if plans.deciding is not None else Brought()
    watched = [run for run in changes.ended_runs if run in runs and runs[run].watched & 1] + canceled
    ready = woken or any(row.state == ExecutionState.READY for row in changes.executions)
    ready = ready or any(row["state"] == ExecutionState.READY for row in changes.parked)
    remote = any(isinstance(operation, Start) and operation.remote for operation in operations)
    moved = ready or bool(brought.events)  # for workers, or for projections
    if (moved and helpers_wanted) or remote or watched:
        tx.driver.notify(tx, news(work=moved or remote, runs=watched))
    ended = [*changes.ended_runs, *canceled]
    return Applied(answers, made_ready=ready, ended=ended, leased=leased, decided=brought, changed=tx.changed)


def _deciding(
    tx: Tx, operations: Sequence[Operation], runs: dict[str, Locked], changes: Changes
) -> Deciding | None:
    """The decisions of the batch, where there are any."""
    fit = [op for op in operations if isinstance(op, Decide | Enqueue) and unfit_operation(op) is None]
    return Deciding(tx, fit, runs, changes) if fit else None


def _going(tx: Tx, operations: Sequence[Operation], seen: Seen, changes: Changes) -> Going | None:
    """The plans for runs that continue by a graph, if there are any."""
    settles = [
        op
        for op in operations
        if isinstance(op, Settle)
        and op.run_graph is not None
        and _delivery(op) in seen.held
        and not _replaced(op, seen.runs[op.key.run_id])
    ]
    if not settles:
        return None
    outdated = {
        op.key.run_id: run.signature
        for op in settles
        if (run := seen.runs[op.key.run_id]).irregular or run.signature != op.run_graph.graph.signature
    }
    return Going(tx, settles, outdated, changes, seen.asked)


def _replaced(op: Settle, run: Locked) -> bool:
    """Whether the run was given a graph of its own that this settle does not know."""
    return (
        op.run_graph is not None
        and run.frozen_at is not None
        and run.signature != op.run_graph.graph.signature
    )


def _lease(
    operations: Sequence[Operation], plans: Plans, slots: SlotOffer
) -> list[tuple[NewExecution, Claimed | NewRun]]:
    """Hand what became ready to our own worker, so that a chain does not pay a claim per node."""
    runs: dict[str, Claimed | NewRun] = {
        op.key.run_id: op.run_graph.claimed
        for op in operations
        if isinstance(op, Settle) and op.run_graph is not None and op.worker == slots.id
    }
    if plans.deciding is not None:
        runs |= plans.deciding.brought.runs
    leased: list[tuple[NewExecution, Claimed | NewRun]] = []
    if not runs or slots.id not in plans.seen.alive:
        return leased
    for row in plans.changes.executions:
        run = runs.get(row.run_id)
        if run is None or row.state != ExecutionState.READY or row.kind not in HANDED_ON:
            continue
        if row.deliveries:
            continue  # it continues another attempt, and needs what that one left: a claim reads it
        if plans.seen.state(row.run_id, plans.changes) == RunState.PAUSED:
            continue
        if row.kind == NODE and plans.seen.state(row.run_id, plans.changes) != RunState.READY:
            continue
        lease = slots.reserve(row.job, row.queue)
        if lease is None:
            break
        take_lease(row, lease)
        leased.append((row, run))
    return leased


def take_lease(row: NewExecution, lease: Lease) -> None:
    """Make a new execution one that a worker holds from the beginning."""
    row.state = ExecutionState.EXECUTING
    row.worker, row.token = lease.worker, lease.token
    row.deliveries = 1
    row.started_at = row.created_at


def drop_lease(row: NewExecution) -> None:
    """The opposite, for a row that was not written."""
    if row.worker is not None:
        row.state = ExecutionState.READY
        row.worker = row.token = row.started_at = None
        row.deliveries = 0


def _look(tx: Tx, operations: Sequence[Operation], slots: SlotOffer | None) -> Seen:
    """Take the locks, in their order, and see what they guard; all of it asked at once."""
    liveness_of = _fence(tx, operations, slots)
    runs = _lock_runs(tx, operations)
    # Also those of workers declared dead: who is, is not known yet.
    held = _ask_executions(tx, {_delivery(end) for end in _ends(operations)})
    known = ask_known(tx, operations)
    by_graph = [op for op in operations if isinstance(op, Settle) and op.run_graph is not None]
    counts = ask_counts(tx, by_graph) if by_graph else Asked()
    alive = {worker for worker, asked in liveness_of.items() if asked()}
    lost = {_delivery(end) for end in _ends(operations) if end.worker not in alive}
    return Seen(alive, runs(), held() - lost, known(), counts)


def _fence(
    tx: Tx, operations: Sequence[Operation], slots: SlotOffer | None
) -> dict[str, Callable[[], list[tuple[Any, ...]]]]:
    """Ask which of the workers that write here are still alive; they stay so until we commit."""
    workers = {op.worker for op in operations if isinstance(op, Record)}
    workers |= {end.worker for end in _ends(operations)}
    if slots is not None and any(isinstance(op, Decide | Enqueue) for op in operations):
        workers.add(slots.id)  # it may take the effects
    for start in operations:
        if isinstance(start, Start):
            workers |= {row.worker for row in start.executions if row.worker is not None}
    return {worker: tx.ask(tx.sql.fence, id=worker) for worker in sorted(workers)}


def _lock_runs(tx: Tx, operations: Iterable[Operation]) -> Callable[[], dict[str, Locked]]:
    """Lock the runs that the batch may change, or whose end it depends on."""
    wanted: set[str] = set()
    for op in operations:
        if isinstance(op, Record) and not (op.children or op.executions or op.appends):
            continue
        if isinstance(op, Record | Send):
            wanted.add(op.run_id)
        elif isinstance(op, Decide | Enqueue) and unfit_operation(op) is None:
            wanted.add(op.run_id)  # (one that no database can store must not be asked for, either)
    for end in _ends(operations):
        wanted.add(end.key.run_id)
        if isinstance(end, Settle) and end.parent is not None:
            wanted.add(end.parent)
        elif isinstance(end, Park):
            wanted.update(item.name for item in end.awaits if item.kind == "run")
    return ask_runs(tx, wanted)


def _ends(operations: Iterable[Operation]) -> Iterator[Park | Settle]:
    """What ends or parks an execution, also together with a decision."""
    for op in operations:
        if isinstance(op, Decide):
            if op.ends is not None:
                yield op.ends
        elif isinstance(op, Park | Settle):
            yield op


def _delivery(op: Park | Settle) -> Delivery:
    return op.key.run_id, op.key.node, op.key.attempt, op.token


def lock_executions(tx: Tx, deliveries: set[Delivery]) -> set[Delivery]:
    """Lock these executions; return those that still execute under that very token."""
    return _ask_executions(tx, deliveries)()


def _ask_executions(tx: Tx, deliveries: set[Delivery]) -> Callable[[], set[Delivery]]:
    if not deliveries:
        return set
    keys = sorted({delivery[:3] for delivery in deliveries})
    rows = [{"run_id": run, "node": node, "attempt": attempt} for run, node, attempt in keys]
    asked = tx.ask(tx.sql.lock_executions, rows=batch(rows))
    return lambda: (
        {
            (run, node, attempt, token)
            for run, node, attempt, token, state in asked()
            if state == ExecutionState.EXECUTING
        }
        & deliveries
    )


class Plans(msgspec.Struct, frozen=True):
    """What the operations of a batch are planned with."""

    tx: Tx
    seen: Seen
    changes: Changes
    going: Going | None
    deciding: Deciding | None


def _plan(op: Operation, plans: Plans) -> Any:
    seen, changes = plans.seen, plans.changes
    refused = unfit_operation(op)
    if refused is not None:
        return refused
    if isinstance(op, Record):
        return _record(op, seen, changes)
    if isinstance(op, Settle):
        return _settle(op, plans)
    if isinstance(op, Decide):
        return _decide(op, plans)
    if isinstance(op, Enqueue):
        assert plans.deciding is not None
        return plans.deciding.enqueue(op)
    if isinstance(op, Start):
        return _start(op, seen, changes)
    if isinstance(op, Park):
        return _park(op, seen, changes)
    if isinstance(op, Send):
        return _send(op, plans)
    if isinstance(op, Note):
        changes.history += op.events
        changes.drifted.update(op.drifted)
        return Verdict.APPLIED
    raise TypeError(f"the store has no operation {type(op).__name__}")


def _start(op: Start, seen: Seen, changes: Changes) -> list[Started] | Exception:
    known = seen.known
    if (conflict := conflict_of(op.runs, known)) is not None:
        return conflict
    fresh = {run.id for run in op.runs if run.id not in known}
    known.update(known_of(run for run in op.runs if run.id in fresh))
    _begin(op, fresh, seen, changes)
    return [Started(id=run.id, created=run.id in fresh) for run in op.runs]


def _begin(op: Start, fresh: set[str], seen: Seen, changes: Changes) -> None:
    """Write down those of the runs that are not there already."""
    changes.runs += [run for run in op.runs if run.id in fresh]
    changes.executions += [_leased(row, seen) for row in op.executions if row.run_id in fresh]
    for step in op.steps:
        if step.run_id in fresh:
            changes.step(step)
    changes.graphs += [part for part in op.graphs if part.run_id in fresh]
    changes.ended += [row for row in op.ended if row.run_id in fresh]
    changes.counts.update({(row.run_id, row.node): row for row in op.readiness if row.run_id in fresh})
    for run_id, end in op.ends.items():
        if run_id in fresh:
            now = op.runs[0].created_at
            changes.now = max(changes.now, now)
            end_run(run_id, end, now, changes)
            if RunState(end.state).final:
                changes.finished.add(run_id)


def _leased(row: NewExecution, seen: Seen) -> NewExecution:
    """A new execution may come with a lease; that of a worker no longer alive is void."""
    if row.worker is None or row.worker in seen.alive:
        return row
    return replace(row, state=ExecutionState.READY, worker=None, token=None, deliveries=0, started_at=None)


def _record(op: Record, seen: Seen, changes: Changes) -> Verdict | RunConflict:
    if op.worker not in seen.alive:
        return Verdict.STALE
    state = seen.state(op.run_id, changes) if op.run_id in seen.runs else RunState.READY
    # (Undoing continues in a canceled run; everything else is refused.)
    # (A step that is still executing appends to its streams until it ends.)
    if state == RunState.CANCELED and not _may_end(op):
        return Verdict.CANCELED
    if op.children is not None and op.children.chosen:
        conflict = conflict_of_children(op.children.runs, seen.known)
        if conflict is not None:
            return conflict
        seen.known.update(known_of(op.children.runs))
    for step in op.steps:
        if op.reopen:
            changes.reopen(step)
        elif op.once:
            changes.steps_once.append(step)
        else:
            changes.step(step)
    for row in op.executions:
        held = state == RunState.PAUSED and row.state != ExecutionState.EXECUTING
        changes.executions.append(replace(row, state=ExecutionState.HELD) if held else row)
    if op.children is not None:
        _begin(op.children, {run.id for run in op.children.runs}, seen, changes)
    changes.consumed += [{"seq": seq} for seq in op.consume]
    changes.appends += op.appends
    return Verdict.APPLIED


def _may_end(op: Record) -> bool:
    """Whether a record belongs to what still executes in a canceled run."""
    return any(step.kind == "undo" for step in op.steps) or (bool(op.appends) and not op.steps)


def _settle(op: Settle, plans: Plans) -> Settled:
    seen, changes, going = plans.seen, plans.changes, plans.going
    delivery = _delivery(op)
    if delivery not in seen.held:
        return Settled(verdict=Verdict.STALE)
    if _replaced(op, seen.runs[op.key.run_id]):
        return Settled(verdict=Verdict.OUTDATED)
    state = seen.state(op.key.run_id, changes)
    if op.unless_canceled and state == RunState.CANCELED:
        return Settled(verdict=Verdict.CANCELED, run_state=state)
    seen.held.discard(delivery)  # a second settle in the same batch is stale too
    plan = under(state, op.plan)
    changes.now = max(changes.now, op.now)
    digest = None
    if going is not None and op.run_graph is not None:
        plan, digest = _go_on(op, plan, state, going)
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
            "ancestry_hash": digest,
        }
    )
    for step in op.steps:
        changes.step(step)
    if plan.again is not None:
        # A copy: it may get a lease, and the plan is asked again when its transaction has to be repeated.
        changes.executions.append(replace(_leased(plan.again, seen)))
    if plan.topic is not None:
        changes.settled[op.key.run_id, topic_of("steps", plan.topic)] += 1
    changes.history += plan.history
    ended = plan.run
    if ended is not None and op.successor is not None:
        ended = _continue(op, ended, op.successor, plans, paused=state == RunState.PAUSED)
    elif ended is not None:
        _end(op, ended, seen, changes)
    return Settled(verdict=Verdict.APPLIED, run_state=state, ended=ended)


def _decide(op: Decide, plans: Plans) -> Any:
    """Take a decision, and end what brought its input with it."""
    assert plans.deciding is not None
    if op.ends is None:
        return plans.deciding.decide(op)
    if _delivery(op.ends) not in plans.seen.held or not plans.deciding.fires(op.ends, op.timer):
        return Decided(stale=True)
    answer = plans.deciding.decide(op)
    if isinstance(answer, Decided) and _is_done(answer):
        _settle(op.ends, plans)
    return answer


def _is_done(answer: Decided) -> bool:
    """Whether what brought the input ends with this answer."""
    return answer.error is None and answer.postponed is None and not (answer.more or answer.stale)


def _go_on(op: Settle, plan: SettlePlan, state: str, going: Going) -> tuple[SettlePlan, str | None]:
    """What follows a node in its graph, and its ancestry hash."""
    if plan.goes_on:
        held = RunState.PAUSED in (state, plan.run.state if plan.run is not None else None)
        digest, end = going.settled(op, plan, held=held)
        if end is not None and (plan.run is None or end.error is not None):
            plan = replace(plan, run=end)  # (a pause that was asked for comes before the end)
        return plan, digest
    if has_settled(plan.state, plan.outcome):
        return plan, going.hash(op, plan)
    return plan, None


def _end(op: Settle, end: RunEnd, seen: Seen, changes: Changes) -> None:
    """The run ends, or pauses, with this execution."""
    run_id = op.key.run_id
    end_run(run_id, end, op.now, changes)
    if not op.waited:
        changes.unwaited.discard(run_id)
    if end.state == RunState.PAUSED:
        return
    if op.parent is not None:
        changes.settled[op.parent, topic_of("child", run_id)] += 1
    if op.run_graph is not None and end.state == RunState.FINISHED:
        changes.finished.add(run_id)
    if seen.runs[run_id].watched & 2:
        changes.over.add(run_id)


def _continue(op: Settle, end: RunEnd, successor: Successor, plans: Plans, *, paused: bool) -> RunEnd:
    """The run ends, and a new one takes over what addresses it."""
    run_id, changes = op.key.run_id, plans.changes
    watched = plans.seen.runs[run_id].watched
    one = chains.plan(plans.tx, run_id, successor, paused=paused, watched=watched, now=op.now)
    end_run(run_id, end, op.now, changes)
    changes.continued[run_id] = one
    changes.executions.append(one.main)
    changes.history += one.history
    return replace(end, continued_as=one.new_id)


def _park(op: Park, seen: Seen, changes: Changes) -> Settled:
    delivery = _delivery(op)
    if delivery not in seen.held:
        return Settled(verdict=Verdict.STALE)
    seen.held.discard(delivery)
    changes.now = max(changes.now, op.now)
    state = seen.state(op.key.run_id, changes)
    for step in op.steps:
        changes.step(step)
    due = op.now if state == RunState.CANCELED and not op.undoing else op.wake_at
    targets = [item.name for item in op.awaits if item.kind == "run"]
    if targets:
        # It waits for other runs to end; they are locked too, so they cannot end unseen.
        active = [run for run in targets if run in seen.runs and not RunState(seen.state(run, changes)).final]
        due = due if len(active) == len(targets) else op.now
        changes.waits += [{"target": run, "run_id": op.key.run_id, "node": op.key.node} for run in active]
    waiting = ExecutionState.HELD if state == RunState.PAUSED else waiting_state(due, op.now)
    if seen.runs[op.key.run_id].signature is not None and RunState(state).final:
        # A node of a graph that is over: it ends with the others that were scheduled.
        (changes.canceled if state == RunState.CANCELED else changes.finished).add(op.key.run_id)
    changes.parked.append(
        {
            "run_id": op.key.run_id,
            "node": op.key.node,
            "attempt": op.key.attempt,
            "state": waiting,
            "scheduled_for": due,
            "awaits": [item for item in op.awaits if item.kind != "run"],
            "now": op.now,
        }
    )
    return Settled(verdict=Verdict.APPLIED, run_state=state)


def _send(op: Send, plans: Plans) -> Any:
    seen, changes = plans.seen, plans.changes
    if op.run_id not in seen.runs:
        return RunNotFound(op.run_id)
    run_id, state = op.run_id, seen.state(op.run_id, changes)
    message = {
        "run_id": run_id,
        "message_id": op.message_id,
        "name": op.name,
        "value": op.value,
        "sent_at": op.sent_at,
    }
    # (What is sent to a run that continues in this batch goes on with the others that it has not read.)
    if RunState(state).final and run_id not in changes.continued:
        # Sent again, because its sender did not see the answer; the run has ended meanwhile.
        if plans.tx.query(plans.tx.sql.sent_message, run_id=run_id, message_id=op.message_id):
            return Verdict.APPLIED
        current = chains.lock_current(plans.tx, run_id)
        state = seen.state(current.id, changes) if current.id in seen.runs else current.state
        if RunState(state).final and current.id not in changes.continued:
            return InvalidState("send to", current.id, state)
        # Noted here as well: sent again, it is found, wherever the chain has come to by then.
        changes.received.append({**message, "value": "null", "consumed": 1})
        message["run_id"] = run_id = current.id
    changes.now = max(changes.now, op.sent_at)
    changes.messages.append(message)
    changes.settled[run_id, topic_of("message", op.name)] += 1
    return Verdict.APPLIED
