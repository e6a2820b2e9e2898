"""Deciding, inside the transaction of a batch.

    lock the instances  ->  their states  ->  a turn for each input, in order  ->  rows

A state comes from memory when it is as far as the events are, else from the events that
are missing, else from the snapshot and what followed it.  The decider's own code runs
here, under the instances' locks: it is pure, and what it raises is the answer to its
operation alone.  Positions are given last of all, so that their lock is held for a moment.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import field
from msgspec.structs import replace

from ...errors import InvalidState, PayloadError, RunConflict
from ...ids import turn_id
from ...kernel.decide import (
    DECIDER,
    BoundDecider,
    Decide,
    Decided,
    Enqueue,
    Enqueued,
    EventRow,
    Given,
    InputState,
    NewInput,
    SnapshotRow,
    Turn,
    follow,
    inbox_execution,
    instance_run,
)
from ...kernel.operations import Operation, Settle
from ...kernel.rows import ExecutionState, NewExecution, NewRun, RunEnd, RunState
from ...kernel.settle import INBOX, TIMER, Outcome
from ..driver import Tx, batch, rows_to, write
from ..verbs.streams import load_states
from .changes import Changes, end_run
from .inboxes import Arrived, Inboxes
from .locks import Locked, lock_runs

log = logging.getLogger("detent")
SLOW = 0.1  # seconds: while a decider decides, nothing else of its process commits
_ACTIVE = frozenset({"ready", "timer", "parked", "held", "executing"})
Key = tuple[str, str]  # a run, and a timer's key


class Instance(msgspec.Struct):
    """An instance that we hold the lock of, as the operations so far have left it."""

    bound: BoundDecider
    run: NewRun
    sequence: int
    state: Any
    replayed: int  # events that had to be read for its state
    broken: Exception | None  # why its state is not known
    waits: bool  # inputs are stored in its inbox
    over: bool = False
    moved: bool = False


class _Planned(msgspec.Struct):
    """A turn that is taken, and not written down yet: what it cancels must be known first."""

    instance: Instance
    given: Given
    turn: Turn
    now: int


class Handled(NamedTuple):
    """What became of an input, as columns of its row."""

    state: str
    from_status: str | None = None
    to_status: str | None = None


class Brought(msgspec.Struct):
    """What the decisions of a batch bring, beside rows."""

    begun: list[NewRun] = field(default_factory=list)  # instances that did not exist before
    runs: dict[str, NewRun] = field(default_factory=dict)  # the instances, to lease their effects
    states: list[tuple[BoundDecider, str, int, Any]] = field(
        default_factory=list
    )  # to be remembered once durable
    ends: dict[str, RunEnd] = field(default_factory=dict)  # instances that have finished
    due: int | None = None  # the first of the timers
    events: int = 0


class Deciding:
    """The decisions of one batch."""

    def __init__(
        self, tx: Tx, operations: Sequence[Operation], locked: dict[str, Locked], changes: Changes
    ) -> None:
        self._tx = tx
        self._changes = changes
        self._locked = locked
        self._decides = [op for op in operations if isinstance(op, Decide)]
        self._enqueues = [op for op in operations if isinstance(op, Enqueue)]
        self.brought = Brought()
        self._begun = self._begin()
        self._known = self._known_inputs()
        self._instances = self._load()
        self._inboxes = self._find_inboxes()
        self._planned: list[_Planned] = []
        self._events: list[EventRow] = []
        self._inputs: list[NewInput] = []
        self._ended_inputs: list[dict[str, Any]] = []
        self._arrived = Inboxes(tx)
        self._snapshots: list[SnapshotRow] = []
        self._silenced: set[Key] = set()  # timers that a turn of this batch has cancelled or replaced
        self._canceled: list[dict[str, Any]] = []
        self._over: dict[str, int] = {}

    # What there is

    def _begin(self) -> set[str]:
        """Make the runs of instances that begin, and lock them; return which did."""
        begun: dict[str, NewRun] = {}
        operations: list[Decide | Enqueue] = [*self._decides, *self._enqueues]
        for op in operations:
            if op.run_id not in self._locked:
                begun.setdefault(op.run_id, instance_run(op.bound, op.run_id, op.instance, op.now))
        if begun:
            write(self._tx, self._tx.sql.deciders.insert_instances, [begun[run] for run in sorted(begun)])
            self._locked.update(lock_runs(self._tx, begun))
            self.brought.begun = list(begun.values())
        return set(begun)

    def _known_inputs(self) -> set[tuple[str, str]]:
        """Which of the input ids were seen before."""
        asked = {
            (op.run_id, given.input_id)
            for op in self._decides
            for given in op.inputs
            if given.input_id is not None and given.seq is None
        }
        asked |= {(op.run_id, op.input.input_id) for op in self._enqueues if op.input.input_id is not None}
        if not asked:
            return set()
        rows = batch([{"run_id": run, "input_id": id} for run, id in sorted(asked)])
        return {(row[0], row[1]) for row in self._tx.query(self._tx.sql.deciders.known_inputs, rows=rows)}

    def _load(self) -> dict[str, Instance]:
        """The instances with their states."""
        bound_deciders: dict[str, Decide] = {}
        for op in self._decides:
            if self._conflict(op) is None:
                bound_deciders.setdefault(op.run_id, op)
        loaded = load_states(self._tx, {run: op.bound for run, op in bound_deciders.items()})
        found = {}
        for run, op in bound_deciders.items():
            sequence, state, replayed, broken, waits = loaded[run]
            row = instance_run(op.bound, run, op.instance, op.now)
            instance = found[run] = Instance(op.bound, row, sequence, state, replayed, broken, waits)
            instance.over = RunState(self._locked[run].state).final
        return found

    def _find_inboxes(self) -> dict[str, tuple[int, bool]]:
        """The latest attempt at emptying each inbox, and whether it executes or was given up."""
        runs = sorted({op.run_id for op in self._enqueues})
        if not runs:
            return {}
        rows = self._tx.query(self._tx.sql.deciders.inboxes, rows=batch([{"id": run} for run in runs]))
        return {
            run: (attempt, state in _ACTIVE or outcome == Outcome.DEAD_LETTER)
            for run, attempt, state, outcome in rows
        }

    def _conflict(self, op: Decide | Enqueue) -> Exception | None:
        run = self._locked[op.run_id]
        if run.kind == DECIDER and run.type == op.bound.name:
            return None
        return RunConflict(op.run_id, run.type)

    # Turns

    def fires(self, end: Settle, key: str | None) -> bool:
        """Whether an input may be decided: it is not of a timer that was cancelled earlier in this batch."""
        run, node = end.key.run_id, end.key.node
        if node.partition(":")[0] == TIMER and run in self._over:
            return False
        return key is None or (run, key) not in self._silenced

    def decide(self, op: Decide) -> Decided | Exception:
        """Take the turns of an operation, in order."""
        conflict = self._conflict(op)
        if conflict is not None:
            return conflict
        instance = self._instances[op.run_id]
        if op.drain:
            return self._drain(op, instance)
        [given] = op.inputs
        if given.input_id is not None and (op.run_id, given.input_id) in self._known:
            return Decided()
        postponed = self._catch_up(op, instance)
        if postponed is not None:
            return Decided(postponed=postponed)
        if op.ends is not None and not self.fires(op.ends, op.timer):
            return Decided(stale=True)  # an input from the inbox has cancelled the timer
        return self._turn(op, instance, given)

    def _catch_up(self, op: Decide, instance: Instance) -> int | None:
        """Decide what arrived in the inbox before an operation; return where to continue, if necessary."""
        if not instance.waits and op.run_id not in self._arrived:
            return None
        if instance.over or instance.broken is not None or self._paused(op.run_id):
            return None
        inbox = self._arrived.of(op.run_id)
        inbox.dead = inbox.dead or self._given_up(op.run_id)
        for arrived in self._arrived.before(op.run_id, waits=instance.waits, upto=op.upto):
            try:
                given = _given(instance.bound, arrived)
            except PayloadError:  # the inbox's own execution reports this error
                break
            if isinstance(self._turn(op, instance, given, arrived), Exception):
                break
        return self._arrived.postponed(op.run_id, op.upto)

    def _given_up(self, run_id: str) -> bool:
        """Whether the inbox of an instance has become a dead letter in this batch."""
        return any(
            row["run_id"] == run_id and row["node"] == INBOX and row["outcome"] == Outcome.DEAD_LETTER
            for row in self._changes.ended_executions
        )

    def _paused(self, run_id: str) -> bool:
        return self._locked[run_id].state == RunState.PAUSED

    def _drain(self, op: Decide, instance: Instance) -> Decided:
        """As many as still wait, in order, until one cannot be decided."""
        if op.inputs and self._paused(op.run_id):
            return Decided(more=True, held=True)
        waiting = self._waiting(op)
        answer = Decided()
        for given in op.inputs:
            if given.seq not in waiting:
                continue  # it was decided before, and the answer was lost
            one = self._turn(op, instance, given)
            if isinstance(one, Exception):
                answer.error, answer.more = one, True
                return answer
            answer.ended = one.ended or answer.ended
            answer.applied += 1
            waiting.discard(given.seq)
            self._arrived.of(op.run_id).decided.add(given.seq)
        answer.more = bool(waiting or self._arrived.of(op.run_id).enqueued)
        if not answer.more and op.run_id in self._inboxes:
            self._inboxes[op.run_id] = (self._inboxes[op.run_id][0], False)
        return answer

    def _waiting(self, op: Decide) -> set[int]:
        """What waits in the inbox: all that the operation brings, and one more if there are others."""
        done = self._arrived.of(op.run_id).decided
        limit = len(op.inputs) + len(done) + 1
        rows = self._tx.query(self._tx.sql.deciders.waiting_inputs, id=op.run_id, limit=limit)
        return {seq for (seq,) in rows} - done

    def _turn(
        self, op: Decide, instance: Instance, given: Given, arrived: Arrived | None = None
    ) -> Decided | Exception:
        """One input: what it leads to, or nothing, or why it cannot be decided.

        What the decider raises is an answer; what the database raises is none, and ends the batch.
        """
        bound = instance.bound
        if instance.over:
            self._note(op, instance, given, Handled(InputState.IGNORED), arrived)
            return Decided()
        # Work that a paused instance has begun may end; other inputs wait.
        own = op.ends is not None and op.ends.key.run_id == op.run_id
        if self._paused(op.run_id) and not own:
            return InvalidState("execute an input of", op.run_id, "paused", "run.resume() continues it")
        if instance.broken is not None:
            return instance.broken
        began = time.perf_counter()
        try:
            before = bound.status(instance.state) if bound.observe else None
            turn = bound.decide(instance.state, given, op.now)
        except Exception as error:
            return error
        try:
            state = bound.evolved(instance.state, turn)
            over = bound.terminal(state)
            after = bound.status(state) if bound.observe else None
        except Exception as error:
            self._restore(instance)
            return error
        instance.state, instance.over = state, over
        self._warn_if_slow(instance, time.perf_counter() - began)
        instance.moved = True
        self._planned.append(_Planned(instance, given, turn, op.now))
        for key in (*turn.cancels, *(alarm.key for alarm in turn.timers)):
            if key is not None:
                self._silenced.add((op.run_id, key))
        self._note(op, instance, given, Handled(InputState.APPLIED, before, after), arrived)
        asked = op.ends is None and arrived is None  # no caller waits for events that a letter has caused
        events = bound.told(turn) if asked else []
        return Decided(events=events, ended=self._end(instance, op.now) if instance.over else None)

    def _restore(self, instance: Instance) -> None:
        """Fold a state anew: a turn that came to nothing may have changed half of it in place."""
        run, bound = instance.run.id, instance.bound
        loaded = load_states(self._tx, {run: bound})[run]
        instance.state, instance.broken = loaded.state, loaded.broken
        if loaded.broken is None:
            for planned in self._planned:
                if planned.instance is instance:
                    instance.state = bound.evolved(instance.state, planned.turn)

    def _warn_if_slow(self, instance: Instance, seconds: float) -> None:
        if seconds > SLOW:
            log.warning(
                "decider %s took %.0f ms to decide for %s: this process could not commit anything else",
                instance.bound.name,
                seconds * 1000,
                instance.run.id,
            )

    def _end(self, instance: Instance, now: int) -> RunEnd:
        run = instance.run.id
        end = RunEnd(state=RunState.FINISHED, result="null")
        end_run(run, end, now, self._changes)
        self._changes.now = max(self._changes.now, now)
        if self._locked[run].watched & 2:
            self._changes.over.add(run)
        self._over[run] = now
        self.brought.ends[run] = end
        return end

    def _note(
        self, op: Decide, instance: Instance, given: Given, handled: Handled, arrived: Arrived | None
    ) -> None:
        """Remember an input, where that is wanted."""
        if given.input_id is None and given.seq is None and not instance.bound.observe:
            return
        facts = {**handled._asdict(), "handled_at": op.now}
        if given.seq is not None:
            self._ended_inputs.append({"seq": given.seq, **facts})
            return
        if arrived is not None and arrived.place is not None:
            # A new row, for the same operation is asked again when its transaction has to be repeated.
            self._inputs[arrived.place] = replace(arrived.row, **facts)
            return
        if given.input_id is not None:
            self._known.add((op.run_id, given.input_id))
        self._inputs.append(
            NewInput(
                run_id=op.run_id,
                input_id=given.input_id,
                type=given.type,
                data=given.text,
                received_at=op.now,
                **facts,
            )
        )

    def enqueue(self, op: Enqueue) -> Enqueued | Exception:
        """Put an input into an inbox, and make the execution that empties it."""
        conflict = self._conflict(op)
        if conflict is not None:
            return conflict
        if op.input.input_id is not None:
            if (op.run_id, op.input.input_id) in self._known:
                return Enqueued(created=False)
            self._known.add((op.run_id, op.input.input_id))
        instance = self._instances.get(op.run_id)
        state = self._locked[op.run_id].state
        if RunState(state).final or (instance is not None and instance.over):
            self._inputs.append(_ignored(op.input, op.now))
            return Enqueued(created=True)
        self._arrived.of(op.run_id).enqueued.append(Arrived(op.input, place=len(self._inputs)))
        self._inputs.append(op.input)
        attempt, taken = self._inboxes.get(op.run_id, (0, False))
        if not taken:
            waiting = ExecutionState.HELD if state == RunState.PAUSED else ExecutionState.READY
            self._changes.executions.append(inbox_execution(op, attempt + 1, waiting))
            self._inboxes[op.run_id] = (attempt + 1, True)
            self.brought.runs[op.run_id] = instance_run(op.bound, op.run_id, op.instance, op.now)
        return Enqueued(created=True)

    # Rows

    def finish(self) -> None:
        """Plan the rows of all turns."""
        pending = self._pending_timers()
        # In this batch; at first the next attempts at timers that have failed in it.
        scheduled: dict[Key, NewExecution] = {
            (row.run_id, row.topic): row
            for row in self._changes.executions
            if row.kind == TIMER and row.topic is not None
        }
        gone: set[int] = set()  # rows of timers that were replaced before they were written
        for planned in self._planned:
            instance, run = planned.instance, planned.instance.run.id
            keys = planned.turn.cancels
            waiting = {key for key in keys if (run, key) in pending or (run, key) in scheduled}
            followed = follow(
                instance.bound,
                run,
                planned.turn,
                given=planned.given,
                after=instance.sequence,
                pending=waiting,
                now=planned.now,
            )
            instance.sequence += len(followed.events)
            self._events += followed.events
            for key in followed.canceled:
                self._canceled += [{**row, "finished_at": planned.now} for row in pending.pop((run, key), ())]
                replaced = scheduled.pop((run, key), None)
                if replaced is not None:
                    gone.add(id(replaced))
            self._add(instance, followed.executions, scheduled)
        if gone:
            self._changes.executions = [row for row in self._changes.executions if id(row) not in gone]
        self._remember()

    def _pending_timers(self) -> dict[Key, list[dict[str, Any]]]:
        """Pending timers that a turn names by key, also dead ones; what fires in this batch is gone."""
        if not self._silenced:
            return {}
        asked = batch([{"run_id": run, "name": key} for run, key in sorted(self._silenced)])
        fired = {
            (row["run_id"], row["node"], row["attempt"])
            for row in self._changes.ended_executions
            if row["outcome"] != Outcome.DEAD_LETTER
        }
        found: dict[Key, list[dict[str, Any]]] = {}
        for run, key, node, attempt, _ in self._tx.query(self._tx.sql.deciders.timers, rows=asked):
            if (run, node, attempt) not in fired:
                row = {"run_id": run, "node": node, "attempt": attempt}
                found.setdefault((run, key), []).append(row)
        return found

    def _add(
        self, instance: Instance, executions: Sequence[NewExecution], scheduled: dict[Key, NewExecution]
    ) -> None:
        run = instance.run.id
        held = self._locked[run].state == RunState.PAUSED
        for row in executions:
            if held:
                row.state = ExecutionState.HELD
            elif row.state == ExecutionState.TIMER and row.scheduled_for is not None:
                due = self.brought.due
                self.brought.due = row.scheduled_for if due is None else min(due, row.scheduled_for)
            if row.topic is not None:
                scheduled[run, row.topic] = row
            self._changes.executions.append(row)

    def _remember(self) -> None:
        """What is kept for the next time: in memory once it is durable, and now and then as a snapshot."""
        counts: dict[str, int] = {}
        for event in self._events:
            counts[event.run_id] = counts.get(event.run_id, 0) + 1
        for run, instance in self._instances.items():
            self.brought.runs[run] = instance.run
            if instance.broken is not None:
                continue
            self.brought.states.append((instance.bound, run, instance.sequence, instance.state))
            every = instance.bound.snapshot_every
            if every is None or not instance.moved:
                continue
            before = instance.sequence - counts.get(run, 0)
            if instance.sequence // every > before // every or instance.replayed >= every:
                self._snap(instance)

    def _snap(self, instance: Instance) -> None:
        body = instance.bound.frozen(instance.state, instance.run.id)
        if body is not None:
            row = SnapshotRow(
                run_id=instance.run.id,
                sequence=instance.sequence,
                fingerprint=instance.bound.snapshots,
                body=body,
                taken_at=self._events[-1].happened_at,
            )
            self._snapshots.append(row)

    def write(self) -> None:
        """Write it down, behind all other changes of the batch."""
        tx, sql = self._tx, self._tx.sql.deciders
        write(tx, sql.cancel_timers, sorted(self._canceled, key=lambda row: (row["run_id"], row["node"])))
        write(
            tx, sql.end_timers, [{"run_id": run, "finished_at": at} for run, at in sorted(self._over.items())]
        )
        write(tx, sql.end_inputs, self._ended_inputs)
        write(tx, sql.insert_inputs, sorted(self._inputs, key=lambda row: row.run_id))
        write(tx, sql.put_snapshots, sorted(self._snapshots, key=lambda row: row.run_id))
        for run in sorted(self._begun):  # an input that was refused leaves nothing behind
            instance = self._instances.get(run)
            if instance is not None and not instance.sequence:
                tx.run(sql.delete_instance, id=run)
        if self._events:
            tx.run(sql.bump, count=len(self._events))
            last: int = tx.query(sql.counter)[0][0]
            for number, event in enumerate(self._events, start=last - len(self._events) + 1):
                event.position = number
            write(tx, sql.insert_events, self._events)
        self.brought.events = len(self._events)


def _given(bound: BoundDecider, arrived: Arrived) -> Given:
    """An input from an inbox on its way to its decision."""
    row = arrived.row
    text = row.data or "null"
    return Given(
        input=bound.input_of(row.type, text),
        type=row.type,
        turn=turn_id(),
        text=text,
        input_id=row.input_id,
        seq=arrived.seq,
    )


def _ignored(row: NewInput, now: int) -> NewInput:
    return replace(row, state=InputState.IGNORED, handled_at=now)


def decided_already(tx: Tx, op: Decide | Enqueue) -> Decided | Enqueued | None:
    """Whether an operation whose commit was cut off went through; its answer if so.

    Not for a drained inbox: it can be applied again, because inputs that were decided are skipped.
    """
    if isinstance(op, Enqueue):
        row = {"run_id": op.run_id, "input_id": op.input.input_id}
        found = tx.query(tx.sql.deciders.known_inputs, rows=batch([row]))
        return Enqueued(created=True) if found else None
    rows = tx.query(tx.sql.deciders.of_turn, id=op.run_id, turn=op.inputs[0].turn)
    if not rows:
        return None
    events: list[EventRow] = rows_to(EventRow, rows)
    return Decided(events=op.bound.read(events))
