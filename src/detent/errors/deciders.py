"""Errors of deciders, their inputs and events, dead letters and projections."""

from __future__ import annotations

from .facts import facts
from .roots import DetentError, PayloadError
from .runs import RunError


@facts
class InvalidDecision(RunError):
    """`decide` returned something that is not a valid decision.

    try:
        app.execute(Order, Pay("o-1", 5))
    except detent.InvalidDecision as error:
        print(error.decider, error.reason)
    """

    decider: str
    reason: str

    def __str__(self) -> str:
        return f"decider {self.decider!r} returned an invalid decision: {self.reason}"


# Python and asyncio use these exceptions themselves: raised through generators, futures or a loop, they end
# the wrong thing.
RESERVED = (StopIteration, StopAsyncIteration, SystemExit)


@facts
class ReservedException(RunError):
    """User code raised StopIteration, StopAsyncIteration or SystemExit; the original is the `__cause__`."""

    what: str
    raised: str

    def __str__(self) -> str:
        return (
            f"{self.what} raised {self.raised}, which Python reserves for its own control flow; "
            f"it counts as a failure"
        )


@facts
class InvalidInput(PayloadError):
    """The decider does not accept the input, or the input does not name its instance.

    try:
        app.execute(Order, "pay")
    except detent.InvalidInput as error:
        print(error.decider, error.reason)
    """

    decider: str
    input: str
    reason: str

    def __str__(self) -> str:
        return f"decider {self.decider!r} does not accept {self.input}: {self.reason}"


@facts
class UnreadableEvent(RunError):
    """The current code cannot read a stored event; nothing was changed.

    try:
        app.state_at(Order, "o-1")
    except detent.UnreadableEvent as error:
        print(error.sequence, error.type, error.reason)
    """

    instance: str
    sequence: int
    position: int
    type: str
    reason: str

    def __str__(self) -> str:
        return (
            f"event {self.sequence} of {self.instance} ({self.type}, position {self.position})"
            f" cannot be read: {self.reason}. Add an @upcaster that converts old events for the current code"
        )


class PermanentError(DetentError):
    """Raise it in `handle` if another attempt cannot succeed: the effect becomes a dead letter at once.

    async def handle(self, effect: SendEmail, ctx: EffectContext) -> None:
        if "@" not in effect.to:
            raise PermanentError(f"{effect.to!r} is not an address")
    """


@facts
class NotADeadLetter(RunError):
    """The letter is not a dead letter, so it cannot be replayed or discarded."""

    letter: str
    state: str

    def __str__(self) -> str:
        return (
            f"{self.letter} is not a dead letter (it is {self.state}); "
            f"`detent decider dead-letters` lists them"
        )


@facts
class UnknownProjection(RunError):
    """The app has no projection with this name."""

    name: str
    known: tuple[str, ...]

    def __str__(self) -> str:
        have = f"it has {', '.join(self.known)}" if self.known else "it has none"
        return f"this app has no projection {self.name!r} ({have}); add it with App(..., include=[...])"


@facts
class ProjectionNotBlocked(RunError):
    """The projection is not blocked, so there is no event to skip."""

    name: str

    def __str__(self) -> str:
        return f"projection {self.name!r} is not blocked by an event, so there is nothing to skip"


@facts
class ProjectionBlocked(RunError):
    """`wait` cannot succeed, because an event blocks the projection."""

    name: str
    position: int
    error: str

    def __str__(self) -> str:
        return (
            f"projection {self.name!r} is blocked by the event at position {self.position} ({self.error}); "
            f"it is retried automatically; app.projections.skip(...) continues after it"
        )


@facts
class ProjectionBehind(RunError, TimeoutError):
    """`wait(timeout=...)` ended before the projection reached the position."""

    name: str
    position: int
    reached: int

    def __str__(self) -> str:
        return (
            f"projection {self.name!r} has reached position {self.reached}, not {self.position}; "
            f"workers that include it continue, ask again later"
        )
