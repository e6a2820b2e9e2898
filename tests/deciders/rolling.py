"""One decider at two moments of its life, for tests of rolling deploys: the new code knows more."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from detent import Decider, Decision, EffectContext


@dataclass
class State:
    seen: list[str] = field(default_factory=list)


@dataclass
class Ping:
    id: str


@dataclass
class Begin:
    """Only the new code knows it, its event, its effect and its timer."""

    id: str


@dataclass
class Later:
    id: str


@dataclass
class Pong:
    id: str


@dataclass
class Pinged:
    pass


@dataclass
class Begun:
    pass


@dataclass
class Reply:
    to: str


@dataclass
class Greet:
    to: str


class _Both(Decider[State, Any, Any, Any]):
    """What does not change from the one to the other."""

    type = "rolling"

    def initial(self) -> State:
        return State()

    def decide(self, state: State, input: Any, now: datetime) -> Decision:
        match input:
            case Begin(id):
                decision = Decision.event(Begun()).with_effect(Greet(id))
                return decision.with_timer(after=timedelta(0), input=Later(id))
            case Ping(id):
                return Decision.event(Pinged()).with_effect(Reply(id))
        return Decision.event(Pinged())

    def evolve(self, state: State, event: Any) -> State:
        return State([*state.seen, type(event).__name__])

    def handle(self, effect: Any, ctx: EffectContext) -> Any:
        return Pong(effect.to)


class Old(_Both, Decider[State, Ping | Pong, Pinged, Reply]):
    type = "rolling"


class New(_Both, Decider[State, Ping | Pong | Begin | Later, Pinged | Begun, Reply | Greet]):
    type = "rolling"
