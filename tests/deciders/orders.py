"""Small deciders for tests, and what was recorded of them.

`Order` is the one of the documentation.  `Log` does what its inputs say: it tells
every text, schedules and cancels the timers, and sends the mails that it is given.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import detent
from detent import Decider, Decision, EffectContext, Retry

MINUTE = 60.0


# -- An order ------------------------------------------------------------------------------------------


@dataclass
class OrderState:
    status: str = "new"
    paid: int = 0
    mails: int = 0


@dataclass
class Create:
    id: str
    email: str = "a@b"


@dataclass
class Pay:
    id: str
    amount: int = 5


@dataclass
class PaymentTimeout:
    id: str


@dataclass
class MailSent:
    id: str
    key: str = ""


@dataclass
class Created:
    email: str


@dataclass
class Paid:
    amount: int


@dataclass
class TimedOut:
    pass


@dataclass
class Mailed:
    key: str


@dataclass
class Refused:
    why: str


@dataclass
class SendEmail:
    to: str
    order: str


OrderInput = Create | Pay | PaymentTimeout | MailSent
OrderEvent = Created | Paid | TimedOut | Mailed | Refused


class Order(Decider[OrderState, OrderInput, OrderEvent, SendEmail]):
    """Created, then paid within an hour or over."""

    type = "order"

    def initial(self) -> OrderState:
        return OrderState()

    def decide(self, state: OrderState, input: OrderInput, now: datetime) -> Decision:
        match input:
            case Create(id, email) if state.status == "new":
                return (
                    Decision.event(Created(email))
                    .with_effect(SendEmail(email, id))
                    .with_timer(after=timedelta(hours=1), input=PaymentTimeout(id), key="payment")
                )
            case Pay(_, amount) if state.status == "created":
                return Decision.event(Paid(amount)).cancel_timer("payment")
            case PaymentTimeout():
                return Decision.event(TimedOut())
            case MailSent(_, key):
                return Decision.event(Mailed(key))
            case _:
                return Decision.event(Refused(f"{type(input).__name__} in {state.status}"))

    def evolve(self, state: OrderState, event: OrderEvent) -> OrderState:
        match event:
            case Created():
                return replace(state, status="created")
            case Paid(amount):
                return replace(state, status="paid", paid=state.paid + amount)
            case TimedOut():
                return replace(state, status="over")
            case Mailed():
                return replace(state, mails=state.mails + 1)
        return state

    def is_terminal(self, state: OrderState) -> bool:
        return state.status == "over"

    def handle(self, effect: SendEmail, ctx: EffectContext) -> Any:
        return MailSent(effect.order, ctx.idempotency_key)


# -- A log, that does what it is told ------------------------------------------------------------------


@dataclass
class LogState:
    said: list[str] = field(default_factory=list)
    over: bool = False

    @property
    def status(self) -> str:
        return "over" if self.over else "open"


@dataclass
class Say:
    """Tell these texts; and whatever else is to follow from it."""

    id: str
    text: str = ""
    also: list[str] = field(default_factory=list)
    mails: list[str] = field(default_factory=list)
    timers: dict[str, float] = field(default_factory=dict)  # key: seconds
    cancels: list[str] = field(default_factory=list)
    every: float | None = None  # for what those timers bring: they come again


@dataclass
class Ring:
    """What a timer brings."""

    id: str
    key: str
    every: float | None = None


@dataclass
class Fail:
    """An input that cannot be decided."""

    id: str


@dataclass
class Stop:
    id: str
    mails: list[str] = field(default_factory=list)
    timers: dict[str, float] = field(default_factory=dict)


@dataclass
class Said:
    text: str
    at: datetime


@dataclass
class Stopped:
    pass


@dataclass
class Mail:
    text: str
    log: str


LogInput = Say | Ring | Fail | Stop
LogEvent = Said | Stopped


class Undecidable(Exception):
    """What `Fail` raises."""


class Log(Decider[LogState, LogInput, LogEvent, Mail]):
    """Changes its state in place, as people do."""

    type = "log"

    def initial(self) -> LogState:
        return LogState()

    def decide(self, state: LogState, input: LogInput, now: datetime) -> Decision:
        texts: list[str] = []
        match input:
            case Fail():
                raise Undecidable(f"in {input.id}")
            case Ring(_, key, every):
                ringing = Decision.event(Said(f"ring {key}", now))
                return (
                    ringing
                    if every is None
                    else ringing.with_timer(after=timedelta(seconds=every), input=input, key=key)
                )
            case Stop():
                decision = Decision.event(Stopped())
            case Say():
                texts = input.also
                decision = Decision.event(Said(input.text, now)).cancel_timer(*input.cancels)
        decision = decision.with_event(*(Said(text, now) for text in texts))
        decision = decision.with_effect(*(Mail(text, input.id) for text in input.mails))
        for key, seconds in input.timers.items():
            ring = Ring(input.id, key, input.every if isinstance(input, Say) else None)
            decision = decision.with_timer(after=timedelta(seconds=seconds), input=ring, key=key)
        return decision

    def evolve(self, state: LogState, event: LogEvent) -> LogState:
        match event:
            case Said(text):
                state.said.append(text)
            case Stopped():
                state.over = True
        return state

    def is_terminal(self, state: LogState) -> bool:
        return state.over

    def handle(self, effect: Mail, ctx: EffectContext) -> Any:
        return Say(effect.log, f"sent {effect.text}")


AT_ONCE = Retry(attempts=3, first=timedelta(0), jitter=0)
Handler = Callable[[Mail, EffectContext], Any]


def log(on_mail: Handler | None = None, **options: Any) -> type[Log]:
    """A log with other options, whose mails are handled like this."""
    if on_mail is not None:
        handler = on_mail
        options["handle"] = lambda self, effect, ctx: handler(effect, ctx)
    return type("Log", (Log,), options)


# -- Looks ---------------------------------------------------------------------------------------------


def texts(app: detent.App, decider: type[Log], instance: str = "l") -> list[str]:
    """What was said, in order."""
    return [one.event.text for one in app.events(decider, instance) if isinstance(one.event, Said)]


def types(app: detent.App, decider: Any, instance: str = "l") -> list[str]:
    """The kinds of an instance's events, in order; none where it has not begun."""
    return [one.type for one in app.events(decider, instance)]


def letters(app: detent.App, run_id: str, kind: str) -> list[tuple[str, str | None]]:
    """State and outcome of the effects, timers or inboxes of an instance, in their order."""
    return [(one.state, one.outcome) for one in executions(app, run_id, kind)]


def executions(app: detent.App, run_id: str, kind: str) -> list[Any]:
    rows = [one for one in app.run(run_id).executions() if one.kind == kind]
    return sorted(rows, key=lambda one: (_place(one.node), one.attempt))


def _place(node: str) -> list[int]:
    return [int(number) for number in node.partition(":")[2].split(".") if number]


def gap_free(app: detent.App, decider: Any, instances: Sequence[str]) -> None:
    """Sequences count up by one in each instance, and positions over all of them, without a gap."""
    positions = []
    for instance in instances:
        rows = app.events(decider, instance)
        assert [row.sequence for row in rows] == list(range(1, len(rows) + 1))
        assert [row.position for row in rows] == sorted(row.position for row in rows)
        positions += [row.position for row in rows]
    assert sorted(positions) == list(range(1, len(positions) + 1))


def sql(app: detent.App, statement: str, **params: Any) -> list[tuple[Any, ...]]:
    """Ask the database past Detent; `:name` stands for a parameter."""
    with app.engine.store._reading() as tx:
        return tx.query(tx.driver.adapt(statement), **params)


def pending_inputs(app: detent.App) -> int:
    """How many inputs wait in inboxes."""
    return int(sql(app, "SELECT COUNT(*) FROM detent_inputs WHERE state = 'pending'")[0][0])


def change(app: detent.App, statement: str, **params: Any) -> int:
    """Change the database past Detent."""
    with app.engine.store._writer.transaction() as tx:
        return tx.run(tx.driver.adapt(statement), **params)
