"""What runs in these tests: a workflow that can fail, wait and spread, a class with a graph, a decider."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import detent
from detent import (
    Decider,
    Decision,
    EffectContext,
    PermanentError,
    Projection,
    Recorded,
    View,
    step,
    task,
    workflow,
)


@step
def charge(card: str, euros: int) -> str:
    if euros < 0:
        raise ValueError(f"{euros} is less than nothing")
    return f"receipt for {euros}"


@step
def pack(item: str) -> dict[str, str]:
    return {"item": item, "secret": "a secret value"}


@workflow
def fulfil(order: str, euros: int) -> str:
    receipt = charge("4111-1111", euros)
    detent.append("log", receipt)
    pack(order)
    if euros > 100:
        detent.receive("approval")
    detent.publish("progress", {"secret": "a secret value", "percent": 100})
    return receipt


@workflow
def parrot(text: str) -> str:
    """Returns what it is given, and fails with what it is given if that begins with an exclamation mark."""
    if text.startswith("!"):
        raise RuntimeError(text)
    return text


@workflow
def parent(order: str) -> str:
    handle = fulfil.spawn(order, 5)
    return handle.result()


class Onboard(detent.Workflow):
    name: str

    @step
    def register(self) -> None: ...

    @task(depends_on=register)
    def check(self) -> None:
        if self.name == "bad":
            raise ValueError("the sample failed")

    @task(depends_on=register)
    def announce(self) -> None: ...

    @step(depends_on=[check, announce])
    def go_live(self) -> None: ...


@dataclass(frozen=True)
class Open:
    id: str
    email: str


@dataclass(frozen=True)
class Close:
    id: str


@dataclass(frozen=True)
class Opened:
    email: str


@dataclass(frozen=True)
class Closed:
    pass


@dataclass(frozen=True)
class Mail:
    to: str


@dataclass(frozen=True)
class State:
    status: str = "new"
    email: str = ""


class Account(Decider[State, Open | Close, Opened | Closed, Mail]):
    type = "account"

    def initial(self) -> State:
        return State()

    def decide(self, state: State, input: Open | Close, now: datetime) -> Decision:
        if isinstance(input, Open):
            later = Close(input.id)
            return (
                Decision.event(Opened(input.email))
                .with_effect(Mail(input.email))
                .with_timer(after=timedelta(days=1), input=later, key="close")
            )
        return Decision.event(Closed())

    def evolve(self, state: State, event: Any) -> State:
        if isinstance(event, Opened):
            return State("open", event.email)
        return replace(state, status="closed") if isinstance(event, Closed) else state

    def is_terminal(self, state: State) -> bool:
        return state.status == "closed"

    def handle(self, effect: Mail, ctx: EffectContext) -> None:
        if "@" not in effect.to:
            raise PermanentError(f"{effect.to} is not an address")


class Count(Projection):
    name = "count"
    deciders = (Account,)

    def apply(self, event: Recorded[Any], view: View) -> None:
        view["events"] = view.get("events", 0) + 1


INCLUDE = (fulfil, charge, pack, parrot, parent, Onboard, Account, Count)
