"""given, when, then: tests of a decider without a database and without a clock.

    given(Order, [Created(email="a@b")]).when(Pay(id="o-1", amount=5)).then(
        events=[Paid(amount=5)], cancels=["payment"]
    )

Events, inputs and effects are encoded and decoded as in the engine: a value that cannot be
stored fails here too, and `evolve` gets what it would get after a replay.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from ..clock import from_micros, to_micros
from ..definitions.deciders import Decider, plan_decider
from ..definitions.decisions import TIMER_CANCELLED, Timer, TimerCancelled
from ..errors import DefinitionError, DetentError
from ..execution.bound_decider import LoadedDecider
from ..kernel.decide import Alarm, EventRow, Given, Turn
from ..serialization.codec import Codec
from .differences import Aspect, DecidedOtherwise, report, same

State = TypeVar("State")
Input = TypeVar("Input")
Event = TypeVar("Event")
Effect = TypeVar("Effect")

MOMENT = datetime(2030, 1, 1, tzinfo=UTC)  # `now`, unless a test says otherwise
INSTANCE = "given"


class _Unsaid:
    """An expectation that was not given; None may be one."""

    def __repr__(self) -> str:
        return "..."


UNSAID: Any = _Unsaid()


class _Said(str):
    """A description instead of a value."""

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True)
class _Outcome:
    """What became of the last input."""

    input: Any
    before: Any
    turn: Turn | None = None  # None: it was ignored, or refused
    error: Exception | None = None


def given(
    decider: type[Decider[State, Input, Event, Effect]] | Decider[State, Input, Event, Effect],
    events: Sequence[Any] = (),  # a list of several classes is nothing that a type checker can infer from
) -> Story[State, Input, Event, Effect]:
    """An instance with these past events.

        given(Order, [Created()]).when(Pay("o-1", 5)).then(events=[Paid(5)])

    Takes the class of a decider, or an object where it needs arguments.
    """
    plan = plan_decider(decider)
    if plan is None:
        raise DefinitionError(f"given() takes a decider class or object, not {decider!r}")
    bound = LoadedDecider(plan, Codec(), "default")
    rows = [_row(bound, event, number) for number, event in enumerate(events, start=1)]
    bound.fold(bound.initial(), rows)  # raises now what is wrong with them
    return Story(bound, tuple(rows), MOMENT, None)


def _row(bound: LoadedDecider, event: Any, number: int) -> EventRow:
    codec, plan = Codec(), bound.plan
    known = {**plan.events, TIMER_CANCELLED: TimerCancelled}
    name = plan.kind(known, event, "event")
    text = codec.encode(event, f"event {name} of decider {bound.name!r}", type(event))
    return _stored(bound, name, text, plan.version(name), number)


def _stored(bound: LoadedDecider, name: str, text: str, version: int, number: int) -> EventRow:
    return EventRow(
        run_id=bound.plan.run_id(INSTANCE),
        sequence=number,
        position=number,
        decider=bound.name,
        type=name,
        version=version,
        data=text,
        cause="given",
        turn="given",
        happened_at=0,
    )


@dataclass(frozen=True, repr=False, eq=False)
class Story(Generic[State, Input, Event, Effect]):
    """The past of an instance.  A story is immutable: each method returns a new one.

    story = given(Order, [Created()]).when(Pay("o-1", 5))
    story.then(events=[Paid(5)])
    """

    _bound: LoadedDecider
    _rows: tuple[EventRow, ...]
    _now: datetime
    _last: _Outcome | None

    def __repr__(self) -> str:
        return f"<story: {self._told()}>"

    def at(self, moment: datetime) -> Story[State, Input, Event, Effect]:
        """The `now` of the inputs that follow."""
        return replace(self, _now=from_micros(to_micros(moment)))  # in UTC, as `decide` is given it

    def when(self, input: Input) -> Story[State, Input, Event, Effect]:
        """Give an input to the instance."""
        __tracebackhide__ = True
        if self._last is not None and self._last.error is not None:
            raise self._last.error
        state = self.state
        try:
            known, turn = self._decided(state, input)
        except Exception as error:
            return replace(self, _last=_Outcome(input, self.state, error=error))
        rows = self._rows
        if turn is not None:
            rows += tuple(
                _stored(self._bound, event.type, event.data, event.version, number)
                for number, event in enumerate(turn.events, start=len(rows) + 1)
            )
        return replace(self, _rows=rows, _last=_Outcome(known, self.state, turn))

    def _decided(self, state: Any, input: Any) -> tuple[Any, Turn | None]:
        bound = self._bound
        name = bound.plan.input_name(input)
        known = bound.input_of(name, bound.encode_input(input))
        bound.plan.instance(known)
        if bound.terminal(state):
            return known, None
        turn = bound.decide(state, Given(input=known, type=name, turn="when"), to_micros(self._now))
        after = bound.evolved(state, turn)
        bound.terminal(after)
        if bound.observe:
            bound.status(after)
        for effect in turn.effects:
            bound.effect_of(effect.type, effect.data)
        for alarm in turn.timers:
            bound.input_of(alarm.type, alarm.data)
        return known, turn

    # What came of it

    @property
    def state(self) -> State:
        """The state after all events."""
        state: State = self._bound.fold(self._bound.initial(), self._rows)
        return state

    @property
    def terminal(self) -> bool:
        """Whether the instance has finished."""
        return self._bound.terminal(self.state)

    @property
    def events(self) -> list[Event]:
        """The events of the last decision."""
        turn = self._turn("events")
        return [] if turn is None else list(turn.seen)

    @property
    def effects(self) -> list[Effect]:
        """The effects of the last decision."""
        turn = self._turn("effects")
        return [self._bound.effect_of(one.type, one.data) for one in (() if turn is None else turn.effects)]

    @property
    def timers(self) -> list[Timer]:
        """The timers of the last decision; of several with one key, the last, as in the engine."""
        turn = self._turn("timers")
        alarms: dict[Any, Alarm] = {}
        for number, alarm in enumerate(() if turn is None else turn.timers):
            alarms[number if alarm.key is None else alarm.key] = alarm
        read = self._bound.input_of
        return [self._timer(read(one.type, one.data), one.due, one.key) for one in alarms.values()]

    @property
    def cancels(self) -> list[str]:
        """The keys of the timers that the last decision cancels, each once."""
        turn = self._turn("cancels")
        return [] if turn is None else list(dict.fromkeys(turn.cancels))

    def _timer(self, input: Any, due: int, key: str | None) -> Timer:
        """A timer as the story writes it: `after`, unless it was due before the decision."""
        at = from_micros(due)
        return Timer(input, at=at, key=key) if at < self._now else Timer(input, after=at - self._now, key=key)

    def _turn(self, what: str) -> Turn | None:
        if self._last is None:
            raise DetentError(f"there are no {what} to check: nothing was decided, write .when(input) first")
        if self._last.error is not None:
            raise self._last.error
        return self._last.turn

    # What was expected

    def then(
        self,
        *,
        events: Sequence[Event] = UNSAID,
        effects: Sequence[Effect] = UNSAID,
        timers: Sequence[Timer] = UNSAID,
        cancels: Sequence[str] = UNSAID,
        state: Callable[[State], object] | State | type = UNSAID,
        terminal: bool = UNSAID,
    ) -> Story[State, Input, Event, Effect]:
        """Check the result of the last input; arguments that are not given are not checked.

        `state` is a value, a class, or a function that returns whether a state is right.  A timer
        matches whether it is written with `after` or with `at`.
        """
        __tracebackhide__ = True
        if self._last is not None and self._last.error is not None:
            raise self._last.error
        aspects = []
        if events is not UNSAID:
            aspects.append(Aspect("events", self._known(events), self.events))
        if effects is not UNSAID:
            aspects.append(Aspect("effects", self._known(effects), self.effects))
        if timers is not UNSAID:
            aspects.append(Aspect("timers", [self._written(timer) for timer in timers], self.timers))
        if cancels is not UNSAID:
            aspects.append(Aspect("cancels", sorted(set(cancels)), sorted(self.cancels)))
        if state is not UNSAID:
            aspects += self._state_aspects(state)
        if terminal is not UNSAID:
            aspects.append(Aspect("terminal", [terminal], [self.terminal]))
        self._check(aspects)
        return self

    def then_raises(self, error: type[Exception], *, match: str | None = None) -> None:
        """Check that the last input raised this error; `match` is searched for in the message."""
        __tracebackhide__ = True
        found = None if self._last is None else self._last.error
        if found is None:
            came = "" if self._last is None else f", and these events came: {self.events}"
            raise DecidedOtherwise(f"{self._told()}\n{error.__name__} was expected{came}")
        if not isinstance(found, error):
            raise found
        if match is not None and re.search(match, str(found)) is None:
            raised = f"{type(found).__name__} was raised, and does not match {match!r}"
            raise DecidedOtherwise(f"{self._told()}\n{raised}:\n  {found}") from found

    def _known(self, expected: Sequence[Any]) -> list[Any]:
        """Expected values as they would be read back; what the decider does not know stays as it is."""
        plan, codec = self._bound.plan, Codec()
        names = {type(value): plan.names.get(type(value)) for value in expected}
        return [
            value
            if names[type(value)] is None
            else codec.decode(
                codec.encode(value, "what is expected", type(value)), type(value), "what is expected"
            )
            for value in expected
        ]

    def _written(self, timer: Timer) -> Timer:
        [input] = self._known([timer.input])
        return self._timer(input, timer.due(to_micros(self._now)), timer.key)

    def _state_aspects(self, expected: Any) -> list[Aspect]:
        actual = self.state
        if isinstance(expected, type):
            right = isinstance(actual, expected)
            return [] if right else [Aspect("state", [_Said(expected.__name__)], [actual])]
        if callable(expected) and type(expected) is not type(actual):
            name = getattr(expected, "__name__", repr(expected))
            return [] if expected(actual) else [Aspect("state", [_Said(f"one that fits {name}")], [actual])]
        return [Aspect("state", [expected], [actual])]

    def _check(self, aspects: Sequence[Aspect]) -> None:
        __tracebackhide__ = True
        wrong = [aspect for aspect in aspects if not same(aspect)]
        if wrong:
            raise DecidedOtherwise(report(self._told(), wrong))

    def _told(self) -> str:
        if self._last is None:
            return f"decider {self._bound.name!r} is in state {self.state!r}"
        before, input = self._last.before, self._last.input
        over = ", which has finished," if self._bound.terminal(before) else ""
        return f"decider {self._bound.name!r} in state {before!r}{over} was given {input!r}"
