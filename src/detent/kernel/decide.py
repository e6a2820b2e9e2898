"""Deciding: what follows from an input, as rows.

A `BoundDecider` is a decider as the store knows it: it folds events, and turns an input into
a `Turn`.  The store asks it under the instance's lock and carries the turn out:

    (events so far)  -> fold ->  state
    (state, input)   -> decide ->  Turn  -> follow ->  rows

    1. An input yields at least one event, or nothing at all.
    2. Timers are cancelled, then scheduled; one that is pending leaves a record.
    3. An instance that is over is asked no more.

Nothing here reads a clock, opens a connection, or calls user code.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import field

from .operations import Operation, Settle
from .rows import NewExecution, NewRun, RunEnd
from .settle import EFFECT, INBOX, TIMER, waiting_state

DECIDER = "decider"  # the kind of an instance's run


class EventRow(msgspec.Struct, kw_only=True):
    """An event as it travels to and from the database."""

    run_id: str
    sequence: int
    position: int = 0  # given when it is written, last of all
    decider: str
    type: str
    version: int
    data: str
    cause: str
    turn: str  # of which decision it is a part
    happened_at: int


class SnapshotRow(msgspec.Struct, kw_only=True):
    run_id: str
    sequence: int
    fingerprint: str
    body: str
    taken_at: int


class NewInput(msgspec.Struct, kw_only=True):
    """An input that is remembered."""

    run_id: str
    input_id: str | None
    type: str
    data: str | None
    state: str
    received_at: int
    handled_at: int | None = None
    from_status: str | None = None
    to_status: str | None = None


class InputRow(NewInput, kw_only=True):
    """The same as it is read back; `seq` is the order of arrival."""

    seq: int


class InputState:
    PENDING = "pending"  # in the inbox
    APPLIED = "applied"
    IGNORED = "ignored"  # the instance was over
    DISCARDED = "discarded"  # by an operator


class Coded(msgspec.Struct, frozen=True):
    """An event or an effect, encoded."""

    type: str
    data: str
    version: int = 1


class Alarm(msgspec.Struct, frozen=True):
    """A timer, encoded."""

    type: str
    data: str
    due: int
    key: str | None


class Given(msgspec.Struct, kw_only=True):
    """An input on its way to a decision."""

    input: Any
    type: str
    turn: str  # ours alone: by it we know our events again
    text: str | None = None
    input_id: str | None = None
    seq: int | None = None  # its place in the inbox, if it comes from there


class Turn(msgspec.Struct, frozen=True):
    """A decision, encoded."""

    events: Sequence[Coded]
    seen: Sequence[Any]  # the events as they are read back from the database
    effects: Sequence[Coded] = ()
    timers: Sequence[Alarm] = ()
    cancels: Collection[str] = ()


class BoundDecider(Protocol):
    """A decider, as the store asks it."""

    name: str
    queue: str
    precedence: int
    observe: bool
    snapshot_every: int | None
    snapshots: str  # the version of snapshots that fit

    def initial(self) -> Any: ...

    def fold(self, state: Any, events: Sequence[EventRow]) -> Any:
        """The state after these events; UnreadableEvent where one cannot be read."""
        ...

    def read(self, events: Sequence[EventRow]) -> list[Any]:
        """The decider's own events among these, as values."""
        ...

    def terminal(self, state: Any) -> bool: ...

    def status(self, state: Any) -> str: ...

    def decide(self, state: Any, given: Given, now: int) -> Turn:
        """What follows from an input; raises what the decider raises."""
        ...

    def evolved(self, state: Any, turn: Turn) -> Any:
        """The state after a turn."""
        ...

    def input_of(self, name: str, text: str) -> Any:
        """A stored input; PayloadError where it cannot be read."""
        ...

    def told(self, turn: Turn) -> list[Any]:
        """The events of a turn, for the caller; the state may keep the objects that it was given."""
        ...

    def frozen(self, state: Any, run_id: str) -> str | None:
        """The state as a snapshot; None if it cannot be one."""
        ...

    def thawed(self, text: str) -> Any:
        """The state of a snapshot; None if it cannot be read any more."""
        ...

    def recall(self, run_id: str) -> tuple[int, Any] | None:
        """The state that we know of an instance, and after which event; it is ours until remembered again."""
        ...

    def remember(self, run_id: str, sequence: int, state: Any) -> None:
        """Keep a state whose events are durable."""
        ...

    def cancelled(self, key: str) -> Coded:
        """The event that tells of a cancelled timer."""
        ...

    def effect_job(self, effect: str) -> str: ...

    def timer_job(self, input: str) -> str: ...


class Decide(Operation):
    """Give inputs to an instance.

    With `ends`, the execution that brought them (a timer, an effect, an inbox) settles in the same commit.
    A drained inbox applies as many as it can, in order; any other operation has one input, and first
    decides what waits in the inbox, up to the input number `upto` if that is given.
    """

    bound: Any
    run_id: str
    instance: str
    inputs: list[Given]
    now: int
    ends: Settle | None = None
    timer: str | None = None  # the key of the timer that brings the input
    drain: bool = False
    upto: int | None = None


class Decided(msgspec.Struct, kw_only=True):
    """The answer: what happened, or that nothing did."""

    events: list[Any] = []
    stale: bool = False  # the lease was lost: nothing was changed
    ended: RunEnd | None = None
    applied: int = 0  # how many inputs of a drained inbox are done
    more: bool = False  # and whether others wait there
    error: Exception | None = None  # why the next one could not be
    held: bool = False  # the instance is paused: its inbox waits for the resume
    postponed: int | None = None  # not decided: ask again with `upto`, for much waits in the inbox before it


class Enqueue(Operation):
    """Put an input into an instance's inbox; the same id again changes nothing."""

    bound: Any
    run_id: str
    instance: str
    input: NewInput
    job: str
    now: int


class Enqueued(msgspec.Struct, kw_only=True):
    """The answer: whether it is new, or its id was known."""

    created: bool


def instance_run(bound: BoundDecider, run_id: str, instance: str, now: int) -> NewRun:
    """The run of an instance that begins."""
    return NewRun(
        id=run_id,
        type=bound.name,
        kind=DECIDER,
        queue=bound.queue,
        priority=-bound.precedence,
        input=msgspec.json.encode(instance).decode(),
        created_at=now,
    )


class Followed(msgspec.Struct):
    """The rows of one turn."""

    events: list[EventRow]
    executions: list[NewExecution] = field(default_factory=list)
    canceled: set[str] = field(default_factory=set)  # keys of canceled timers


def follow(
    bound: BoundDecider,
    run_id: str,
    turn: Turn,
    *,
    given: Given,
    after: int,
    pending: Collection[str],
    now: int,
) -> Followed:
    """The rows of a turn that begins after the event number `after`.

    `pending` are the keys of timers that wait: one that is cancelled leaves a record behind the events.
    """
    coded = [*turn.events, *(bound.cancelled(key) for key in dict.fromkeys(turn.cancels) if key in pending)]
    events = [
        EventRow(
            run_id=run_id,
            sequence=after + number,
            decider=bound.name,
            type=event.type,
            version=event.version,
            data=event.data,
            cause=given.type,
            turn=given.turn,
            happened_at=now,
        )
        for number, event in enumerate(coded, start=1)
    ]
    last = after + len(events)
    alarms: dict[Any, Alarm] = {}
    for number, alarm in enumerate(turn.timers):  # the last one with a key replaces those before it
        alarms[number if alarm.key is None else alarm.key] = alarm
    executions = [
        _timer(bound, run_id, f"timer:{last}.{number}", alarm, now)
        for number, alarm in enumerate(alarms.values())
    ]
    executions += [
        _effect(bound, run_id, f"effect:{last}.{number}", effect, now)
        for number, effect in enumerate(turn.effects)
    ]
    keys = {alarm.key for alarm in alarms.values() if alarm.key is not None}
    return Followed(events, executions, {*turn.cancels, *keys})


def _timer(bound: BoundDecider, run_id: str, node: str, alarm: Alarm, now: int) -> NewExecution:
    row = _letter(bound, run_id, node, TIMER, bound.timer_job(alarm.type), alarm.due, now)
    row.topic, row.input = alarm.key, alarm.data
    return row


def _effect(bound: BoundDecider, run_id: str, node: str, effect: Coded, now: int) -> NewExecution:
    row = _letter(bound, run_id, node, EFFECT, bound.effect_job(effect.type), now, now)
    row.input = effect.data
    return row


def _letter(
    bound: BoundDecider, run_id: str, node: str, kind: str, job: str, due: int, now: int
) -> NewExecution:
    return NewExecution(
        run_id=run_id,
        node=node,
        attempt=1,
        kind=kind,
        job=job,
        queue=bound.queue,
        precedence=bound.precedence,
        state=waiting_state(due, now),
        created_at=now,
        scheduled_for=due,
    )


def inbox_execution(op: Enqueue, attempt: int, state: str) -> NewExecution:
    """The execution that empties an inbox."""
    row = _letter(op.bound, op.run_id, INBOX, INBOX, op.job, op.now, op.now)
    row.attempt, row.state = attempt, state
    return row
