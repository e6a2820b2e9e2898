"""An event-sourced order: create, pay, time out, ship, refuse.

A decider turns inputs into events, which are stored; effects, which are carried out; and timers, which
bring inputs later.  A projection sums up the events, and the state machine is drawn from what happened.
`TestingApp` has a clock that is moved by hand; production would run the same decider.
"""

import logging
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from detent import (
    Decider,
    Decision,
    EffectContext,
    PermanentError,
    Projection,
    Recorded,
    TimerCancelled,
    Transition,
    View,
)
from detent.testing import TestingApp
from running import database_url

# Inputs: commands, and news from outside.


@dataclass(frozen=True)
class Create:
    id: str
    email: str
    total: int


@dataclass(frozen=True)
class Pay:
    id: str
    amount: int


@dataclass(frozen=True)
class PaymentTimeout:
    id: str


@dataclass(frozen=True)
class Shipped:
    id: str
    parcel: str


@dataclass(frozen=True)
class Cancel:
    id: str


# Events: what happened.


@dataclass(frozen=True)
class OrderCreated:
    email: str
    total: int


@dataclass(frozen=True)
class OrderPaid:
    amount: int


@dataclass(frozen=True)
class OrderTimedOut:
    pass


@dataclass(frozen=True)
class OrderShipped:
    parcel: str


@dataclass(frozen=True)
class OrderCancelled:
    pass


@dataclass(frozen=True)
class InputRefused:
    input: str
    status: str


# Effects: what to do outside.


@dataclass(frozen=True)
class SendEmail:
    to: str
    text: str


@dataclass(frozen=True)
class ShipParcel:
    order: str


Input = Create | Pay | PaymentTimeout | Shipped | Cancel
Event = OrderCreated | OrderPaid | OrderTimedOut | OrderShipped | OrderCancelled | InputRefused
Effect = SendEmail | ShipParcel

PAYMENT = timedelta(hours=1)

# Stand-ins for a mail server and a warehouse; the warehouse detects duplicates by the key.
MAILS: list[str] = []
PARCELS: dict[str, str] = {}


@dataclass(frozen=True)
class State:
    status: str = "new"
    email: str = ""
    total: int = 0


class Order(Decider[State, Input, Event, Effect]):
    type = "order"
    observe = True
    transitions = (
        Transition("new", Create, "created", effects=("SendEmail",), timers=("payment",)),
        Transition("created", Pay, "paid", effects=("ShipParcel",)),
        Transition("created", PaymentTimeout, "timed out", effects=("SendEmail",)),
        Transition("created", Cancel, "cancelled"),
        Transition("paid", Shipped, "shipped", effects=("SendEmail",)),
    )

    def initial(self) -> State:
        return State()

    def decide(self, state: State, input: Input, now: datetime) -> Decision:
        match state.status, input:
            case "new", Create(id, email, total):
                return (
                    Decision.event(OrderCreated(email, total))
                    .with_effect(SendEmail(email, "we have your order"))
                    .with_timer(after=PAYMENT, input=PaymentTimeout(id), key="payment")
                )
            case "created", Pay(id, amount) if amount >= state.total:
                return Decision.event(OrderPaid(amount)).with_effect(ShipParcel(id)).cancel_timer("payment")
            case "created", PaymentTimeout():
                return Decision.event(OrderTimedOut()).with_effect(SendEmail(state.email, "too late"))
            case "created", Cancel():
                return Decision.event(OrderCancelled())
            case "paid", Shipped(_, parcel):
                return Decision.event(OrderShipped(parcel)).with_effect(
                    SendEmail(state.email, f"on its way: {parcel}")
                )
            case _:
                return Decision.event(InputRefused(type(input).__name__, state.status))

    def evolve(self, state: State, event: Event) -> State:
        match event:
            case OrderCreated(email, total):
                return State("created", email, total)
            case OrderPaid():
                return replace(state, status="paid")
            case OrderTimedOut():
                return replace(state, status="timed out")
            case OrderShipped():
                return replace(state, status="shipped")
            case OrderCancelled():
                return replace(state, status="cancelled")
            case InputRefused():
                return state

    def is_terminal(self, state: State) -> bool:
        return state.status in ("shipped", "timed out", "cancelled")

    async def handle(self, effect: Effect, ctx: EffectContext) -> Input | None:
        match effect:
            case SendEmail(to, _) if "@" not in to:
                raise PermanentError(f"{to!r} is no address")
            case SendEmail(to, text):
                MAILS.append(f"{to}: {text}")
            case ShipParcel(order):
                number = len(PARCELS) + 1
                return Shipped(order, PARCELS.setdefault(ctx.idempotency_key, f"parcel-{number}"))
        return None


class Revenue(Projection):
    """The amount paid, and the number of orders in each state."""

    name = "revenue"
    deciders = (Order,)

    def apply(self, event: Recorded[Event], view: View) -> None:
        if isinstance(event.event, OrderPaid):
            view["paid"] = view.get("paid", 0) + event.event.amount
        if not isinstance(event.event, InputRefused | TimerCancelled):
            kind = type(event.event).__name__
            view[kind] = view.get(kind, 0) + 1


def make_app(url: str) -> TestingApp:
    return TestingApp(url, include=[Order, Revenue])


def main(url: str) -> None:
    logging.getLogger("detent.worker").setLevel(logging.ERROR)  # it logs every effect that fails
    with make_app(url) as app:
        app.execute(Order, Create("o-1", "ada@example.org", 30))
        app.execute(Order, Create("o-2", "bob@example.org", 20))
        app.execute(Order, Create("o-3", "nobody", 10))

        print(app.execute(Order, Pay("o-1", 5)))  # not enough: the refusal is an event, too
        app.execute(Order, Pay("o-1", 30), input_id="payment-7")
        assert app.execute(Order, Pay("o-1", 30), input_id="payment-7") == []  # sent twice, paid once
        app.execute(Order, Cancel("o-3"))
        app.settle_down()
        app.advance(hours=2)  # nobody pays for o-2

        for id in ("o-1", "o-2", "o-3"):
            print(f"order {id} is {app.state_at(Order, id).status}:")
            for one in app.events(Order, id):
                print(f"  {one.sequence} {one.event} because of {one.cause}")
        print(f"order o-1 was {app.state_at(Order, 'o-1', sequence=1).status} after its first event")
        print("mails:", MAILS)

        app.settle_down()
        print("revenue:", dict(app.projections.view(Revenue).items()))
        for letter in app.dead_letters():
            print("given up:", letter.id, letter.type, "-", letter.error.message if letter.error else "")

        machine = app.deciders.machine(Order)
        print("happened, and not declared:", [f"{e.input} in {e.source}" for e in machine.undeclared])
        print("declared, and never happened:", [f"{e.input} in {e.source}" for e in machine.unseen])
        print(machine.to_mermaid())


if __name__ == "__main__":
    main(database_url())
