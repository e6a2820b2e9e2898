"""A decider that does whatever its inputs say, and the inputs that hypothesis makes up for it.

An input is a script: how many events, which timers, which effects.  What it leads to depends on the state
too: it may be refused until the instance has seen enough, and every third total leaves one more event.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

from detent import Decider, Decision, EffectContext, PermanentError, Retry

INSTANCES = ("a", "b")
KEYS = ("k", "l")
PATIENT = Retry(attempts=3, first=timedelta(0))  # how often timers and inboxes are tried here
BEGIN = datetime(2030, 1, 1, tzinfo=UTC)


class Refused(Exception):
    """The decider does not take this input now."""


class Unlucky(Exception):
    """An effect did not work out this time."""


# -- What there is ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Again:
    """Rings under its key, and once more after a while, for so many times."""

    id: str
    key: str
    times: int
    every: int


@dataclass(frozen=True)
class Reply:
    """What an effect answers."""

    id: str
    number: int
    patience: int = 0  # refused until the instance has had so many events
    ends: bool = False


@dataclass(frozen=True)
class Later:
    """A timer: seconds after its decision, or after the beginning of time."""

    seconds: int
    absolute: bool
    key: str | None
    again: Again | None = None  # one of the two
    reply: Reply | None = None

    @property
    def input(self) -> Again | Reply:
        input = self.again or self.reply
        assert input is not None
        return input


@dataclass(frozen=True)
class Errand:
    """An effect that fails so many times, or for good, and may answer."""

    number: int
    fails: int = 0
    hopeless: bool = False
    answer: Reply | None = None

    def fails_at(self, attempt: int) -> bool:
        return self.hopeless or attempt <= self.fails


@dataclass(frozen=True)
class Do:
    """Whatever it says."""

    id: str
    number: int = 0
    events: int = 1
    patience: int = 0
    cancels: tuple[str, ...] = ()
    timers: tuple[Later, ...] = ()
    errands: tuple[Errand, ...] = ()
    ends: bool = False


@dataclass(frozen=True)
class Done:
    number: int
    part: int


@dataclass(frozen=True)
class Counted:
    count: int
    at: datetime


@dataclass(frozen=True)
class Rang:
    key: str
    left: int


@dataclass(frozen=True)
class Replied:
    number: int


@dataclass(frozen=True)
class Ended:
    pass


@dataclass(frozen=True)
class State:
    count: int = 0
    total: int = 0
    over: bool = False
    seen: tuple[str, ...] = ()


Input = Do | Again | Reply
Event = Done | Counted | Rang | Replied | Ended


class Clerk(Decider[State, Input, Event, Errand]):
    """Belongs to one world: its instances are called after it."""

    type = "clerk"
    retry = Retry(attempts=3)

    def __init__(self, world: str) -> None:
        self.world = world
        self.handled: list[tuple[str, int]] = []  # which effects were tried, by the world that looks on

    def route(self, input: Input) -> str:
        return f"{self.world}-{input.id}"

    def initial(self) -> State:
        return State()

    def decide(self, state: State, input: Input, now: datetime) -> Decision:
        if isinstance(input, Again):
            return self._rung(input)
        if state.count < input.patience:
            raise Refused(f"{state.count} is less than {input.patience}")
        decision = Decision.event(Replied(input.number)) if isinstance(input, Reply) else _done(input)
        if state.total % 3 == 2:
            decision = decision.with_event(Counted(state.count, now))
        return decision.with_event(Ended()) if input.ends else decision

    def _rung(self, input: Again) -> Decision:
        decision = Decision.event(Rang(input.key, input.times))
        if not input.times:
            return decision.cancel_timer(input.key)  # that is itself, and waits no more
        return decision.with_timer(
            after=timedelta(seconds=input.every), input=replace(input, times=input.times - 1), key=input.key
        )

    def evolve(self, state: State, event: Event) -> State:
        state = replace(state, count=state.count + 1, seen=(*state.seen, type(event).__name__)[-3:])
        match event:
            case Done(number, _) | Replied(number):
                return replace(state, total=state.total + number)
            case Ended():
                return replace(state, over=True)
            case _:
                return state

    def is_terminal(self, state: State) -> bool:
        return state.over

    def handle(self, effect: Errand, ctx: EffectContext) -> Reply | None:
        self.handled.append((ctx.idempotency_key, ctx.attempt))
        if effect.hopeless:
            raise PermanentError("never")
        if ctx.attempt <= effect.fails:
            raise Unlucky(f"attempt {ctx.attempt}")
        return effect.answer


def _done(input: Do) -> Decision:
    decision = Decision.event(*(Done(input.number, part) for part in range(input.events)))
    for later in input.timers:
        span = timedelta(seconds=later.seconds)
        after, at = (None, BEGIN + span) if later.absolute else (span, None)
        decision = decision.with_timer(input=later.input, after=after, at=at, key=later.key)
    return decision.cancel_timer(*input.cancels).with_effect(*input.errands)


# -- What hypothesis makes of it -------------------------------------------------------------------

_instances = st.sampled_from(INSTANCES)
_keys = st.sampled_from(KEYS)
_few = st.integers(0, 3)
_seconds = st.sampled_from([0, 0, 1, 5, 60])
_rarely = st.integers(0, 15).map(lambda n: n == 15)
_patience = st.sampled_from([0, 0, 0, 0, 0, 4, 4, 12, 12, 99])

_replies = st.builds(Reply, id=_instances, number=_few, patience=_patience, ends=_rarely)


@st.composite
def _timers(draw: st.DrawFn) -> Later:
    key = draw(st.none() | _keys)
    again = st.builds(
        Again, id=_instances, key=st.just(key) if key else _keys, times=_few, every=st.sampled_from([0, 3])
    )
    later = Later(draw(_seconds), draw(st.booleans()), key)
    return replace(later, again=draw(again)) if draw(st.booleans()) else replace(later, reply=draw(_replies))


_errands = st.builds(
    Errand,
    number=_few,
    fails=st.sampled_from([0, 0, 0, 1, 2, 9]),
    hopeless=st.integers(0, 5).map(lambda n: n == 5),
    answer=st.none() | _replies,
)

inputs: st.SearchStrategy[Do] = st.builds(
    Do,
    id=_instances,
    number=_few,
    events=st.integers(1, 3),
    patience=_patience,
    cancels=st.lists(_keys, max_size=2).map(tuple),
    timers=st.lists(_timers(), max_size=3).map(tuple),
    errands=st.lists(_errands, max_size=2).map(tuple),
    ends=_rarely,
)
