"""What can be wrong with a decider, its inputs, its events, and what follows from them."""

from __future__ import annotations

from .facts import facts
from .roots import DetentError, PayloadError
from .runs import RunError


@facts
class InvalidDecision(RunError):
    """What `decide` returned is no decision, or one that cannot be carried out.

    try:
        app.execute(Order, Pay("o-1", 5))
    except detent.InvalidDecision as error:
        print(error.decider, error.reason)
    """

    decider: str
    reason: str

    def __str__(self) -> str:
        return f"decider {self.decider!r} decided what cannot be: {self.reason}"


# Exceptions that Python or asyncio act upon by themselves: raised through generators, futures or a loop, they
# end the wrong thing.
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
    """An input that the decider does not take, or that does not say which instance it is for.

    try:
        app.execute(Order, "pay")
    except detent.InvalidInput as error:
        print(error.decider, error.reason)
    """

    decider: str
    input: str
    reason: str

    def __str__(self) -> str:
        return f"decider {self.decider!r} cannot take {self.input}: {self.reason}"


@facts
class UnreadableEvent(RunError):
    """A stored event that today's code cannot read; nothing was changed.

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
            f" cannot be read: {self.reason}. An @upcaster turns old events into what the code of today knows"
        )


class PermanentError(DetentError):
    """Raise it in `handle` where trying again is of no use: the effect becomes a dead letter at once.

    async def handle(self, effect: SendEmail, ctx: EffectContext) -> None:
        if "@" not in effect.to:
            raise PermanentError(f"{effect.to!r} is not an address")
    """


@facts
class NotADeadLetter(RunError):
    """What was to be replayed or discarded is not waiting for that."""

    letter: str
    state: str

    def __str__(self) -> str:
        return (
            f"{self.letter} is no dead letter (it is {self.state}); `detent decider dead-letters` lists them"
        )


@facts
class UnknownProjection(RunError):
    name: str
    known: tuple[str, ...]

    def __str__(self) -> str:
        have = f"it has {', '.join(self.known)}" if self.known else "it has none"
        return f"no projection is called {self.name!r} in this app ({have}); App(..., include=[...]) adds one"


@facts
class ProjectionNotBlocked(RunError):
    name: str

    def __str__(self) -> str:
        return f"projection {self.name!r} is not blocked by an event, so there is nothing to skip"


@facts
class ProjectionBlocked(RunError):
    """An event stands in the way of what was waited for."""

    name: str
    position: int
    error: str

    def __str__(self) -> str:
        return (
            f"projection {self.name!r} is blocked by the event at position {self.position} ({self.error}); "
            f"it is tried again by itself, or app.projections.skip(...) goes on behind it"
        )


@facts
class ProjectionBehind(RunError, TimeoutError):
    """A projection has not come as far as was waited for."""

    name: str
    position: int
    reached: int

    def __str__(self) -> str:
        return (
            f"projection {self.name!r} has come to position {self.reached}, not to {self.position} yet; "
            f"workers that include it go on, ask again later"
        )
