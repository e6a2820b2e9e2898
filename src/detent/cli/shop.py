"""The shop of `detent demo --dashboard`: orders, approvals, failures, a catalogue, subscriptions as events.

Written as a user would write it.  `populate` fills a database with runs in every state; `keep_busy` starts
new ones until it is told to stop.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import detent
from detent import (
    Context,
    Decider,
    Decision,
    EffectContext,
    PermanentError,
    Projection,
    Queue,
    Rate,
    Recorded,
    Retry,
    Transition,
    View,
    step,
    task,
    workflow,
)

PACE = 1.0  # how fast the shop works; tests make it quicker
CUSTOMERS = ("ada", "grace", "linus", "margaret", "dennis", "barbara")


def work(seconds: float) -> None:
    time.sleep(seconds * PACE * random.uniform(0.6, 1.4))


class CardDeclined(Exception):
    """The bank says no."""


class CarrierDown(Exception):
    """The parcel service does not answer."""


# -- Orders: a durable function ------------------------------------------------------------------------


@step
def reserve_stock(order: str, items: list[str]) -> int:
    work(0.3)
    return len(items)


@step
def charge_card(order: str, card_number: str, euros: int) -> str:
    work(0.5)
    if euros % 13 == 0:
        raise CardDeclined(f"card of {order} was declined: insufficient funds")
    return f"receipt-{order.rpartition('-')[2]}"


@step
def pack(item: str) -> str:
    work(0.6)
    return f"{item}, wrapped"


@step(retry=Retry(attempts=4, first=timedelta(seconds=2)))
def book_carrier(order: str) -> str:
    work(0.4)
    if random.random() < 0.45:
        raise CarrierDown("503 from carrier.example: try again later")
    return f"parcel-{order.rpartition('-')[2]}"


@step
def send_email(to: str, subject: str) -> None:
    work(0.2)


@workflow
def fulfil(order: str, customer: str, items: list[str], euros: int) -> dict[str, str]:
    """Reserve, charge, pack, ship.  Large orders wait for a person."""
    reserve_stock(order, items)
    if euros > 900:
        approval = detent.receive("approval")
        if not approval:
            return {"receipt": "", "parcel": ""}
    receipt = charge_card(order, "4111 1111 1111 1111", euros)
    detent.publish("progress", "paid")
    detent.append("log", f"{euros} euros paid: {receipt}")
    pack.map(items)
    detent.append("log", f"{len(items)} items packed")
    parcel = book_carrier(order)
    detent.append("log", f"the carrier has {parcel}")
    send_email(f"{customer}@example.org", "Your order is on its way")
    return {"receipt": receipt, "parcel": parcel}


# -- Every night: a report, started by a schedule ------------------------------------------------------


@step
def count_sales(day: str) -> int:
    work(0.4)
    return 20 + len(day)


@step(queue="mail")
def mail_report(day: str, orders: int) -> None:
    work(0.3)


@workflow
def nightly_report(ctx: Context, shop: str) -> str:
    """Count the orders of the day, and mail the report."""
    day = "today" if ctx.scheduled_for is None else f"{ctx.scheduled_for:%Y-%m-%d}"
    orders = count_sales(day)
    mail_report.spawn(day, orders).result()
    return f"{shop}: {orders} orders on {day}"


@workflow
def newsletter(customer: str) -> None:
    """One e-mail to one customer; its queue lets a few begin at a time."""
    send_email(f"{customer}@example.org", "New in the shop")


# -- A new supplier: a class with a graph --------------------------------------------------------------


class OnboardSupplier(detent.Workflow):
    """Checks run side by side; the contract waits for all of them."""

    name: str

    @step
    def register(self) -> None:
        work(0.4)

    @task(depends_on=register)
    def check_credit(self) -> None:
        work(1.2)

    @task(depends_on=register)
    def check_sanctions(self) -> None:
        work(0.8)

    @task(depends_on=register)
    def check_quality(self) -> None:
        work(1.6)
        if "risky" in self.name:
            raise ValueError(f"{self.name}: sample 3 of 5 failed the drop test")

    @step(depends_on=[check_credit, check_sanctions, check_quality])
    def draw_up_contract(self) -> None:
        work(0.9)

    @task(depends_on=draw_up_contract)
    def open_account(self) -> None:
        work(0.5)

    @task(depends_on=draw_up_contract)
    def announce(self) -> None:
        work(0.3)

    @step(depends_on=[open_account, announce])
    def go_live(self) -> None:
        work(0.3)


# -- The catalogue: a graph with a fan-out -------------------------------------------------------------


@step
def list_products(category: str) -> list[str]:
    work(0.3)
    return [f"{category}-{number}" for number in range(40)]


@step
def render_page(product: str) -> int:
    work(0.25)
    return len(product)


@step
def build_index(sizes: list[int]) -> int:
    work(0.5)
    return sum(sizes)


@step
def publish_catalogue(size: int) -> str:
    work(0.3)
    return f"{size} bytes are live"


@step
def warm_cache(size: int) -> None:
    work(0.6)


def catalogue(category: str) -> detent.Graph:
    g = detent.Graph("catalogue")
    products = g.node("list products", job=list_products, args={"category": category})
    pages = g.spread("render page", over=products.output, job=render_page, arg="product")
    index = g.node("build index", job=build_index, args={"sizes": pages.output})
    g.node("warm cache", job=warm_cache, args={"size": index.output}, depends_on=[index])
    done = g.node("publish", job=publish_catalogue, args={"size": index.output}, depends_on=[index])
    g.result(done.output)
    return g


# -- Subscriptions: a decider --------------------------------------------------------------------------


@dataclass(frozen=True)
class Subscribe:
    id: str
    email: str
    euros: int


@dataclass(frozen=True)
class Pay:
    id: str


@dataclass(frozen=True)
class Remind:
    id: str


@dataclass(frozen=True)
class Cancel:
    id: str


@dataclass(frozen=True)
class Subscribed:
    email: str
    euros: int


@dataclass(frozen=True)
class Paid:
    euros: int


@dataclass(frozen=True)
class Reminded:
    times: int


@dataclass(frozen=True)
class Cancelled:
    pass


@dataclass(frozen=True)
class Refused:
    input: str


@dataclass(frozen=True)
class Mail:
    to: str
    text: str


Input = Subscribe | Pay | Remind | Cancel
Event = Subscribed | Paid | Reminded | Cancelled | Refused


@dataclass(frozen=True)
class State:
    status: str = "new"
    email: str = ""
    euros: int = 0
    reminders: int = 0


class Subscription(Decider[State, Input, Event, Mail]):
    type = "subscription"
    transitions = (
        Transition("new", Subscribe, "trial"),
        Transition("trial", Pay, "active"),
        Transition("trial", Remind, "trial"),
        Transition("trial", Cancel, "cancelled"),
        Transition("active", Cancel, "cancelled"),
        Transition("active", Pay, "active"),
    )

    def initial(self) -> State:
        return State()

    def decide(self, state: State, input: Input, now: datetime) -> Decision:
        match state.status, input:
            case "new", Subscribe(id, email, euros):
                return (
                    Decision.event(Subscribed(email, euros))
                    .with_effect(Mail(email, "welcome"))
                    .with_timer(after=timedelta(hours=6), input=Remind(id), key="reminder")
                )
            case "trial", Pay():
                return Decision.event(Paid(state.euros)).cancel_timer("reminder")
            case "active", Pay():
                return Decision.event(Paid(state.euros))
            case "trial", Remind(id):
                return Decision.event(Reminded(state.reminders + 1)).with_effect(
                    Mail(state.email, "please pay")
                )
            case (("trial" | "active"), Cancel()):
                return Decision.event(Cancelled()).with_effect(Mail(state.email, "goodbye"))
        return Decision.event(Refused(type(input).__name__))

    def evolve(self, state: State, event: Event) -> State:
        match event:
            case Subscribed(email, euros):
                return State("trial", email, euros)
            case Paid():
                return replace(state, status="active")
            case Reminded(times):
                return replace(state, reminders=times)
            case Cancelled():
                return replace(state, status="cancelled")
        return state

    def is_terminal(self, state: State) -> bool:
        return state.status == "cancelled"

    def handle(self, effect: Mail, ctx: EffectContext) -> None:
        work(0.1)
        if "@" not in effect.to:
            raise PermanentError(f"{effect.to!r} is not an e-mail address")


class Revenue(Projection):
    """What was paid."""

    name = "revenue"
    deciders = (Subscription,)

    def apply(self, event: Recorded[Event], view: View) -> None:
        if isinstance(event.event, Paid):
            view["euros"] = view.get("euros", 0) + event.event.euros


INCLUDE = (
    fulfil, reserve_stock, charge_card, pack, book_carrier, send_email, OnboardSupplier,
    nightly_report, count_sales, mail_report, newsletter,
    list_products, render_page, build_index, publish_catalogue, warm_cache, Subscription, Revenue,
)  # fmt: skip
THINGS = (
    "kettle",
    "two cups",
    "tea towel",
    "green tea",
    "biscuits",
    "honey",
    "spoon",
    "card",
    "tray",
    "lamp",
)


def open_shop(url: str) -> detent.App:
    """The app of the shop, with its queues and schedules."""
    queues = (
        Queue("default"),
        Queue("mail", concurrency=4, rate=Rate(30, per=timedelta(minutes=1))),
        Queue("newsletter", key_concurrency=1, fair=True),
    )
    app = detent.App(url, include=INCLUDE, migrate=True, concurrency=16, queues=queues)
    app.schedule("nightly-report", nightly_report, args=("Tea & Lamps",), cron="0 3 * * *", tz="Europe/Paris")
    app.schedule("newsletter", newsletter, args=("ada",), every=timedelta(seconds=30), overlap="skip")
    return app


def order(app: detent.App, number: int, *, euros: int | None = None) -> detent.Run[dict[str, str]]:
    """Place an order."""
    customer = CUSTOMERS[number % len(CUSTOMERS)]
    items = [THINGS[(number + n) % len(THINGS)] for n in range(2 + number % 5)]
    price = euros if euros is not None else 20 + number * 7 % 400
    options = app.options(
        id=f"order-{number}", hero=("Customer", str(number)), attributes={"customer": customer}
    )
    return options.start(fulfil, f"order-{number}", customer, items, price)


def populate(app: detent.App, orders: int = 24) -> None:
    """Runs in every state, so that every page has something to show."""
    for number in range(1001, 1001 + orders):
        order(app, number)
    order(app, 1900, euros=26)  # declined
    order(app, 1901, euros=1200)  # waits for approval
    order(app, 1902, euros=990)
    order(app, 1903, euros=980).cancel(reason="the customer called")
    order(app, 1904, euros=975).pause(reason="the address looks wrong")
    app.options(id="supplier-oak").start(OnboardSupplier, name="Oak & Sons")
    app.options(id="supplier-risky").start(OnboardSupplier, name="risky Imports")
    app.options(id="catalogue-lamps").start(catalogue("lamps"))
    for customer in CUSTOMERS:
        for _ in range(3):
            app.options(queue="newsletter", key=customer).start(newsletter, customer)
        app.options(queue="mail").start(newsletter, customer)
    nightly = app.schedules["nightly-report"]
    nightly.backfill(datetime.now(UTC) - timedelta(days=3), datetime.now(UTC))
    for number, email in enumerate(
        ("ada@example.org", "grace@example.org", "linus", "dennis@example.org"), 1
    ):
        app.execute(Subscription, Subscribe(f"s-{number}", email, 9))
    app.execute(Subscription, Pay("s-1"))
    app.execute(Subscription, Pay("s-1"))
    app.execute(Subscription, Pay("s-2"))
    app.execute(Subscription, Cancel("s-2"))


def keep_busy(app: detent.App, stop: threading.Event) -> None:
    """Place an order every few seconds, and now and then something else, until `stop` is set."""
    number = 2000
    while not stop.wait(random.uniform(1.0, 4.0)):
        number += 1
        order(app, number)
        if number % 5 == 0:
            app.options(id=f"supplier-{number}").start(OnboardSupplier, name=f"Supplier {number}")
        if number % 7 == 0:
            app.options(id=f"catalogue-{number}").start(catalogue("cups"))
        if number % 3 == 0:
            app.execute(Subscription, Subscribe(f"s-{number}", f"reader{number}@example.org", 9))
            app.execute(Subscription, Pay(f"s-{number}"))
