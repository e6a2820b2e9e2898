"""Deciders at work: a plan, a codec, and the states that this process remembers.

A `LoadedDecider` is what the store asks (kernel.decide.BoundDecider).  It encodes what the
decider's functions return and decodes what they are given, so that the first run
and every replay see equal values.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from ..clock import from_micros
from ..definitions.deciders import DeciderPlan, effect_job, timer_job, unknown_fields
from ..definitions.decisions import TIMER_CANCELLED, Decision, Recorded, TimerCancelled
from ..definitions.functions import Step
from ..errors import (
    CannotDecode,
    InvalidDecision,
    InvalidInput,
    PayloadError,
    PayloadTooLarge,
    ReservedException,
    UnreadableEvent,
)
from ..errors.deciders import RESERVED
from ..kernel.decide import Alarm, Coded, EventRow, Given, Turn
from ..serialization.codec import Codec, plain

log = logging.getLogger("detent")
REMEMBERED = 10_000  # states of a decider that a process keeps


class Memory:
    """States of instances, with the number of the event they are after; the least used are forgotten."""

    def __init__(self, size: int = REMEMBERED) -> None:
        self._size = size
        self._states: OrderedDict[str, tuple[int, Any]] = OrderedDict()
        self._guard = threading.Lock()

    def take(self, run_id: str) -> tuple[int, Any] | None:
        """Take a state out: the caller may change it, and puts it back when the change is durable."""
        with self._guard:
            return self._states.pop(run_id, None)

    def put(self, run_id: str, sequence: int, state: Any) -> None:
        with self._guard:
            known = self._states.get(run_id)
            if known is not None and known[0] > sequence:
                return
            self._states[run_id] = (sequence, state)
            self._states.move_to_end(run_id)
            if len(self._states) > self._size:
                self._states.popitem(last=False)


class LoadedDecider:
    """One decider of one app."""

    def __init__(self, plan: DeciderPlan, codec: Codec, queue: str) -> None:
        decider = plan.decider
        self.plan = plan
        self.name = plan.name
        self.queue = queue
        self.precedence = -(decider.priority or 0)
        self.observe = decider.observe
        self.snapshot_every = decider.snapshot_every
        self.snapshots = plan.snapshots
        self.handler = handler_of(plan)
        self._codec = codec
        self._memory = Memory()

    # What the store asks

    def initial(self) -> Any:
        try:
            return self.plan.decider.initial()
        except RESERVED as error:
            raise self._reserved("initial", error) from error

    def terminal(self, state: Any) -> bool:
        try:
            return bool(self.plan.decider.is_terminal(state))
        except RESERVED as error:
            raise self._reserved("is_terminal", error) from error

    def status(self, state: Any) -> str:
        try:
            return plain(str(self.plan.decider.status(state)))[:255]
        except RESERVED as error:
            raise self._reserved("status", error) from error

    def fold(self, state: Any, events: Sequence[EventRow]) -> Any:
        return self._evolved(state, self.read(events))

    def _evolved(self, state: Any, events: Sequence[Any]) -> Any:
        evolve = self.plan.decider.evolve
        try:
            for event in events:
                state = evolve(state, event)
        except RESERVED as error:
            raise self._reserved("evolve", error) from error
        return state

    def _reserved(self, method: str, error: BaseException) -> ReservedException:
        return ReservedException(f"{method} of decider {self.name!r}", repr(error))

    def read(self, events: Sequence[EventRow]) -> list[Any]:
        return [self._read(row) for row in events if row.type != TIMER_CANCELLED]

    def decide(self, state: Any, given: Given, now: int) -> Turn:
        try:
            decision: Any = self.plan.decider.decide(state, given.input, from_micros(now))
            if not isinstance(decision, Decision):
                reason = f"decide returned {decision!r:.80}; return a Decision with at least one event"
                raise InvalidDecision(self.name, reason)
            return self._encoded(decision, now)
        except InvalidDecision as error:
            if error.decider == "?":  # a decision does not know whose it is
                error.decider = self.name
            raise
        except RESERVED as error:
            raise self._reserved("decide", error) from error

    def evolved(self, state: Any, turn: Turn) -> Any:
        return self._evolved(state, turn.seen)

    def told(self, turn: Turn) -> list[Any]:
        decode, events = self._codec.decode, self.plan.events
        return [decode(one.data, events[one.type], f"event {one.type}") for one in turn.events]

    def cancelled(self, key: str) -> Coded:
        text = self._codec.encode(TimerCancelled(key), "the record of a cancelled timer")
        return Coded(TIMER_CANCELLED, text)

    def frozen(self, state: Any, run_id: str) -> str | None:
        try:
            text = self._codec.encode(state, f"the state of {run_id}", self.plan.state)
            if self._comes_back(text, state):
                return text
            reason = f"the state of {run_id} would be decoded to another value; annotate its fields"
        except PayloadTooLarge as error:
            log.warning("no snapshot of %s was stored: %s", run_id, error)
            return None
        except PayloadError as error:
            reason = str(error)
        self.snapshot_every = None  # said once; instances are replayed from their events
        log.warning("decider %s continues without snapshots: %s", self.name, reason)
        return None

    def _comes_back(self, text: str, state: Any) -> bool:
        """Whether a state is the same from its snapshot; one that cannot be compared is trusted."""
        again = self._codec.decode(text, self.plan.state, "its snapshot")
        equal: Any = type(state).__eq__
        return equal is object.__eq__ or bool(again == state)

    def thawed(self, text: str) -> Any:
        try:
            return self._codec.decode(text, self.plan.state, "a snapshot")
        except CannotDecode as error:
            log.warning("a snapshot of decider %s was ignored: %s", self.name, error)
            return None

    def recall(self, run_id: str) -> tuple[int, Any] | None:
        return self._memory.take(run_id)

    def remember(self, run_id: str, sequence: int, state: Any) -> None:
        self._memory.put(run_id, sequence, state)

    def effect_job(self, effect: str) -> str:
        return effect_job(self.name, effect)

    def timer_job(self, input: str) -> str:
        return timer_job(self.name, input)

    # Encoding and decoding

    def _encoded(self, decision: Decision, now: int) -> Turn:
        plan, encode = self.plan, self._codec.encode
        coded, seen = [], []
        for event in decision.events:
            name = plan.kind(plan.events, event, "event")
            text = encode(event, f"event {name} of decider {self.name!r}", plan.events[name])
            coded.append(Coded(name, text, plan.version(name)))
            seen.append(self._codec.decode(text, plan.events[name], f"event {name}"))
        effects = []
        for effect in decision.effects:
            name = plan.kind(plan.effects, effect, "effect")
            text = encode(effect, f"effect {name} of decider {self.name!r}", plan.effects[name])
            effects.append(Coded(name, text))
        timers = []
        for timer in decision.timers:
            name = plan.kind(plan.inputs, timer.input, "input")
            plan.instance(timer.input)
            text = encode(timer.input, f"timer {name} of decider {self.name!r}", plan.inputs[name])
            timers.append(Alarm(name, text, timer.due(now), timer.key))
        return Turn(coded, seen, effects, timers, decision.cancels)

    def _read(self, row: EventRow) -> Any:
        """An event as today's code knows it."""
        try:
            if (row.type, row.version) not in self.plan.upcasters:
                cls = self.plan.events.get(row.type)
                if cls is None:
                    raise self._unreadable(row, f"the code knows {', '.join(sorted(self.plan.events))}")
                return self._codec.decode(row.data, cls, f"event {row.type}")
            return self._upcast(row)
        except CannotDecode as error:
            raise self._unreadable(row, error.reason) from None

    def _upcast(self, row: EventRow) -> Any:
        name, version = row.type, row.version
        data = self._codec.decode(row.data, dict[str, Any], f"event {name}")
        while (upcaster := self.plan.upcasters.get((name, version))) is not None:
            try:
                data = upcaster.change(data)
            except (Exception, SystemExit) as error:
                reason = f"its upcaster from version {version} raised {type(error).__name__}: {error}"
                raise self._unreadable(row, reason) from error
            name, version = (upcaster.to, 1) if upcaster.to is not None else (name, version + 1)
        cls = self.plan.events.get(name)
        if cls is None:
            raise self._unreadable(row, f"its upcasters lead to {name!r}, which the code does not know")
        return _of_plain(self._codec, data, cls, f"event {name}")

    def _unreadable(self, row: EventRow, reason: str) -> UnreadableEvent:
        return UnreadableEvent(row.run_id, row.sequence, row.position, row.type, reason)

    def recorded(self, row: EventRow) -> Recorded[Any]:
        """An event with all that is known of it."""
        event = (
            self._codec.decode(row.data, TimerCancelled, "the record of a cancelled timer")
            if row.type == TIMER_CANCELLED
            else self._read(row)
        )
        return Recorded(
            event=event,
            type=row.type,
            decider=row.decider,
            instance=row.run_id.partition(":")[2],
            sequence=row.sequence,
            position=row.position,
            at=from_micros(row.happened_at),
            cause=row.cause,
        )

    def input_of(self, name: str, text: str) -> Any:
        """A stored input."""
        cls = self.plan.inputs.get(name)
        if cls is None:
            raise InvalidInput(self.name, f"the stored input {name}", "the code does not know it")
        return self._codec.decode(text, cls, f"input {name} of decider {self.name!r}")

    def effect_of(self, name: str, text: str) -> Any:
        """A stored effect."""
        return self._codec.decode(text, self.plan.effects[name], f"effect {name} of decider {self.name!r}")

    def encode_input(self, input: Any) -> str:
        name = self.plan.input_name(input)
        return self._codec.encode(input, f"input {name} of decider {self.name!r}", self.plan.inputs[name])

    def dynamic(self, payload: Any) -> Any:
        """The input that a plain mapping describes: `type` names its kind, the rest are its fields."""
        kind = payload.get("type") if isinstance(payload, Mapping) else None
        cls = self.plan.inputs.get(kind) if isinstance(kind, str) else None
        if cls is None:
            known = ", ".join(sorted(self.plan.inputs))
            raise InvalidInput(self.name, f"{payload!r:.80}", f"its `type` is one of {known}")
        tagged = getattr(getattr(cls, "__struct_config__", None), "tag_field", None) == "type"
        data = dict(payload) if tagged else {key: value for key, value in payload.items() if key != "type"}
        if unknown := unknown_fields(cls, data):
            raise InvalidInput(self.name, f"{payload!r:.80}", f"{kind} has no field {', '.join(unknown)}")
        try:
            return _of_plain(self._codec, data, cls, f"input {kind}")
        except CannotDecode as error:
            raise InvalidInput(self.name, f"{payload!r:.80}", error.reason) from None


def _of_plain(codec: Codec, data: Any, cls: type, what: str) -> Any:
    return codec.decode(codec.encode(data, what), cls, what)


def handler_of(plan: DeciderPlan) -> Step[Any, Any]:
    """What carries out the effects, as a step: it has a context, a timeout, and may be async."""
    handle = plan.decider.handle
    what = f"handle of decider {plan.name!r}"
    if plan.takes_async:

        async def aeffect(effect: Any, ctx: Any) -> Any:
            # Here, inside of the task: a SystemExit that leaves a task stops its loop.
            try:
                return await handle(effect, ctx)
            except RESERVED as error:
                raise ReservedException(what, repr(error)) from error
            except RuntimeError as error:
                if not isinstance(error.__cause__, StopIteration):
                    raise
                # Python has turned it into "coroutine raised StopIteration".
                raise ReservedException(what, repr(error.__cause__)) from error.__cause__

        return Step(aeffect, id=plan.name, timeout=plan.decider.timeout)

    def effect(effect: Any, ctx: Any) -> Any:
        try:
            return handle(effect, ctx)
        except RESERVED as error:
            raise ReservedException(what, repr(error)) from error

    return Step(effect, id=plan.name, timeout=plan.decider.timeout)
