"""An order that declares its state machine: created, paid or timed out, packed and shipped at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from detent import Decider, Decision, EffectContext, Retry, Transition

HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class State:
    status: str = "new"
    paid: int = 0


@dataclass(frozen=True)
class Create:
    id: str
    email: str = "a@b"


@dataclass(frozen=True)
class Pay:
    id: str
    amount: int


@dataclass(frozen=True)
class PaymentTimeout:
    id: str


@dataclass(frozen=True)
class MailSent:
    id: str


@dataclass(frozen=True)
class Ship:
    id: str


@dataclass(frozen=True)
class Created:
    email: str


@dataclass(frozen=True)
class Paid:
    amount: int


@dataclass(frozen=True)
class Mailed: ...


@dataclass(frozen=True)
class TimedOut: ...


@dataclass(frozen=True)
class Packed: ...


@dataclass(frozen=True)
class Shipped: ...


@dataclass(frozen=True)
class Refused:
    why: str


@dataclass(frozen=True)
class SendEmail:
    to: str
    id: str


Input = Create | Pay | PaymentTimeout | MailSent | Ship
Event = Created | Paid | TimedOut | Refused | Mailed | Packed | Shipped


class Order(Decider[State, Input, Event, SendEmail]):
    """Ends when it is shipped, or when nobody pays within an hour."""

    type = "order"
    observe = True
    retry = Retry(attempts=3, first=timedelta(minutes=1))
    transitions = (
        Transition("new", Create, "created", effects=("SendEmail",), timers=("PaymentTimeout",)),
        Transition("created", Pay, "paid"),
        Transition("created", "PaymentTimeout", "timed out"),
        Transition("paid", Ship, "shipped"),
    )

    def initial(self) -> State:
        return State()

    def decide(self, state: State, input: Input, now: datetime) -> Decision:
        match input, state.status:
            case Create(id, email), "new":
                return (
                    Decision.event(Created(email))
                    .with_effect(SendEmail(email, id))
                    .with_timer(after=HOUR, input=PaymentTimeout(id), key="payment")
                )
            case Pay(amount=amount), "created":
                if amount < 0:
                    raise ValueError("nobody pays less than nothing")
                return Decision.event(Paid(amount)).cancel_timer("payment")
            case PaymentTimeout(), "created":
                return Decision.event(TimedOut())
            case Ship(), "paid":
                return Decision.event(Packed(), Shipped())
            case MailSent(), _:
                return Decision.event(Mailed())
        return Decision.event(Refused(f"{type(input).__name__} in {state.status}"))

    def evolve(self, state: State, event: Event) -> State:
        match event:
            case Created():
                return replace(state, status="created")
            case Paid(amount):
                return replace(state, status="paid", paid=amount)
            case TimedOut():
                return replace(state, status="timed out")
            case Packed():
                return replace(state, status="packed")
            case Shipped():
                return replace(state, status="shipped")
        return state

    def is_terminal(self, state: State) -> bool:
        return state.status in ("shipped", "timed out")

    def handle(self, effect: SendEmail, ctx: EffectContext) -> Input | None:
        return MailSent(effect.id)
