"""The order as events: what it decides, what follows, what the projection adds up, and what is drawn."""

from collections.abc import Iterator

import pytest

import order_events
from detent.testing import TestingApp, given
from order_events import (
    Cancel,
    Create,
    InputRefused,
    Order,
    OrderCancelled,
    OrderCreated,
    OrderPaid,
    OrderShipped,
    OrderTimedOut,
    Pay,
    PaymentTimeout,
    Revenue,
    SendEmail,
    ShipParcel,
    State,
)

CREATED = OrderCreated("ada@example.org", 30)


@pytest.fixture
def app(url: str) -> Iterator[TestingApp]:
    order_events.MAILS.clear()
    order_events.PARCELS.clear()
    with order_events.make_app(url) as app:
        app.execute(Order, Create("o-1", "ada@example.org", 30))
        yield app


def _events(app: TestingApp, id: str = "o-1") -> list[object]:
    return [one.event for one in app.events(Order, id)]


def test_paying_ships_the_order_and_stops_the_clock() -> None:
    decided = given(Order, [CREATED]).when(Pay("o-1", 30))
    decided.then(events=[OrderPaid(30)], effects=[ShipParcel("o-1")], cancels=["payment"], timers=[])


def test_what_is_not_possible_is_refused_by_an_event() -> None:
    given(Order, [CREATED]).when(Pay("o-1", 29)).then(events=[InputRefused("Pay", "created")], effects=[])
    given(Order, []).when(Pay("o-1", 30)).then(events=[InputRefused("Pay", "new")])


def test_an_order_that_is_over_ignores_what_comes() -> None:
    given(Order, [CREATED, OrderCancelled()]).when(Pay("o-1", 30)).then(events=[], terminal=True)


def test_a_paid_order_is_shipped(app: TestingApp) -> None:
    app.settle_down()  # the first mail is sent: effects of two decisions have no order
    app.execute(Order, Pay("o-1", 30))
    app.settle_down()
    app.advance(hours=2)  # the timer was cancelled
    assert app.state_at(Order, "o-1") == State("shipped", "ada@example.org", 30)
    assert _events(app)[-1] == OrderShipped("parcel-1")
    assert order_events.MAILS == [
        "ada@example.org: we have your order",
        "ada@example.org: on its way: parcel-1",
    ]
    assert app.run("order:o-1").state == "finished"


def test_an_order_that_nobody_pays_for_times_out(app: TestingApp) -> None:
    app.advance(minutes=59)
    assert app.state_at(Order, "o-1").status == "created"
    app.advance(minutes=1)
    assert _events(app) == [CREATED, OrderTimedOut()]
    assert order_events.MAILS[-1] == "ada@example.org: too late"


def test_a_payment_that_is_sent_twice_is_made_once(app: TestingApp) -> None:
    assert app.execute(Order, Pay("o-1", 30), input_id="payment-7") == [OrderPaid(30)]
    assert app.execute(Order, Pay("o-1", 30), input_id="payment-7") == []
    assert _events(app).count(OrderPaid(30)) == 1


def test_a_mail_without_an_address_is_a_dead_letter_at_once(app: TestingApp) -> None:
    app.execute(Order, Create("o-2", "nobody", 10))
    app.settle_down()
    [letter] = app.dead_letters(Order)
    assert (letter.instance, letter.type, letter.attempts) == ("o-2", "SendEmail", 1)
    assert app.state_at(Order, "o-2").status == "created"  # it goes on without it


def test_the_projection_adds_up_what_was_paid(app: TestingApp) -> None:
    app.execute(Order, Create("o-2", "bob@example.org", 20))
    app.execute(Order, Pay("o-1", 30))
    app.execute(Order, Pay("o-2", 25))
    app.settle_down()
    view = app.projections.view(Revenue)
    assert (view.get("paid"), view.get("OrderCreated"), view.get("OrderShipped")) == (55, 2, 2)


def test_the_drawing_tells_what_was_not_declared(app: TestingApp) -> None:
    app.execute(Order, Pay("o-1", 1))
    app.execute(Order, Cancel("o-1"))
    machine = app.deciders.machine(Order)
    assert [(edge.source, edge.input, edge.target) for edge in machine.undeclared] == [
        ("created", "Pay", "created")
    ]
    assert "Pay × 1<br/>! not declared" in machine.to_mermaid()
    assert {edge.input for edge in machine.unseen} == {"Pay", "PaymentTimeout", "Shipped"}


def test_mails_are_effects_and_timeouts_are_inputs() -> None:
    decided = given(Order, [CREATED]).when(PaymentTimeout("o-1"))
    decided.then(events=[OrderTimedOut()], effects=[SendEmail("ada@example.org", "too late")])
