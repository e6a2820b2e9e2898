"""Decisions as plain values: events, effects and timers; and stored events."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, Self, TypeVar

import msgspec

from ..clock import span_micros, to_micros
from ..errors import InvalidDecision

E = TypeVar("E")
LONGEST_KEY = 255
LATEST = to_micros(datetime(9999, 12, 31, tzinfo=UTC))


@dataclass(frozen=True, slots=True)
class Timer:
    """An input that arrives later: `after` a duration, or `at` a moment.

        Timer(PaymentTimeout("o-1"), after=timedelta(days=2), key="payment")

    A new timer with the same `key` replaces a pending one; `cancel_timer(key)` removes it.
    """

    input: Any
    after: timedelta | None = None
    at: datetime | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        if (self.after is None) == (self.at is None):
            raise InvalidDecision("?", f"a timer needs either after= or at=, this one has {self._given}")
        after: Any = self.after
        at: Any = self.at
        if after is not None and not isinstance(after, timedelta):
            raise InvalidDecision("?", f"after={after!r}: write timedelta(hours=1)")
        if after is not None and after < timedelta():
            raise InvalidDecision("?", f"after={after!r}: a timer cannot be due before its decision")
        if at is not None and not isinstance(at, datetime):
            raise InvalidDecision("?", f"at={at!r}: give a datetime")
        if at is not None and at.tzinfo is None:
            raise InvalidDecision("?", f"at={at!r} has no time zone; `now` has one: now + timedelta(hours=1)")
        if self.key is not None:
            _check_key(self.key)

    @property
    def _given(self) -> str:
        return "none" if self.after is None else "both"

    def due(self, now: int) -> int:
        """When it is due, in microseconds, if it is scheduled `now`."""
        if self.at is not None:
            return to_micros(self.at)
        assert self.after is not None
        due = now + span_micros(self.after)
        if due > LATEST:
            raise InvalidDecision("?", f"after={self.after!r} is too far away: no calendar has that day")
        return due


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of `decide`: at least one event, and optional effects and timers.

        Decision.event(OrderPaid(10)).with_effect(SendEmail("a@b.example")).cancel_timer("payment")

        Decision.event(Created(id="o-1"))
            .with_effect(SendEmail(to="a@b"))
            .with_timer(after=timedelta(hours=1), input=PaymentTimeout(id="o-1"), key="payment")
            .cancel_timer("reminder")

    A decision is immutable: each method returns a new one.  Timers are canceled before new
    ones are scheduled, whatever the order of the calls.
    """

    events: tuple[Any, ...]
    effects: tuple[Any, ...] = ()
    timers: tuple[Timer, ...] = ()
    cancels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.events:
            raise InvalidDecision(
                "?",
                "every input needs at least one event; what is refused or ignored is an event too "
                "(Decision.event(CancelRefused(...)))",
            )

    @classmethod
    def event(cls, *events: Any) -> Self:
        """A decision with these events, in this order."""
        return cls(tuple(events))

    def with_event(self, *events: Any) -> Self:
        """Add these events after the others."""
        return replace(self, events=(*self.events, *events))

    def with_effect(self, *effects: Any) -> Self:
        """Add these effects; each is carried out at least once, after the decision is durable."""
        return replace(self, effects=(*self.effects, *effects))

    def with_timer(
        self,
        *,
        input: Any,
        after: timedelta | None = None,
        at: datetime | None = None,
        key: str | None = None,
    ) -> Self:
        """Add an input that arrives later; it replaces a pending timer with the same key."""
        return replace(self, timers=(*self.timers, Timer(input, after, at, key)))

    def cancel_timer(self, *keys: str) -> Self:
        """Cancel the pending timers with these keys; keys without a pending timer are ignored."""
        for key in keys:
            _check_key(key)
        return replace(self, cancels=(*self.cancels, *keys))


def _check_key(key: Any) -> None:
    if not (isinstance(key, str) and 0 < len(key) <= LONGEST_KEY):
        raise InvalidDecision("?", f"key={key!r}: a timer's key is a text of 1 to {LONGEST_KEY} characters")
    if key.endswith(" ") or "\x00" in key or any("\ud800" <= char <= "\udfff" for char in key):
        reason = "a timer's key has no NUL and no lone surrogate, and does not end with a space"
        raise InvalidDecision("?", f"key={key!r}: {reason}")


class TimerCancelled(msgspec.Struct, frozen=True):
    """Recorded in the events of an instance when a pending timer is canceled; `evolve` does not see it.

    cancelled = [one for one in app.events(Order, "o-1") if isinstance(one.event, TimerCancelled)]
    """

    key: str


TIMER_CANCELLED = "detent.TimerCancelled"  # its stored type: no name of a user's class has a dot


@dataclass(frozen=True, slots=True)
class Recorded(Generic[E]):
    """A stored event with its instance, sequence, position, time and cause.

    for recorded in app.events(Order, "o-1"):
        print(recorded.sequence, recorded.at, recorded.event)
    """

    event: E
    type: str
    decider: str
    instance: str
    sequence: int  # in its instance, from 1
    position: int  # over all instances, from 1, without a gap
    at: datetime
    cause: str  # the type of the input that led to it
