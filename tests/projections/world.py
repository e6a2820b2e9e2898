"""What the tests of projections share: a decider that counts, and ways to look at read models."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import detent
from detent import Decider, Decision, Projection, Recorded, View
from detent.app.projections import ProjectionStatus
from detent.stores.store import Store

PATIENCE = 60.0


@dataclass
class Add:
    id: str
    amount: int = 1


@dataclass
class Added:
    amount: int


class Account(Decider[int, Add, Added, None]):
    type = "account"

    def initial(self) -> int:
        return 0

    def decide(self, state: int, input: Add, now: datetime) -> Decision:
        return Decision.event(Added(input.amount))

    def evolve(self, state: int, event: Added) -> int:
        return state + event.amount


@dataclass
class Say:
    id: str
    word: str


@dataclass
class Said:
    word: str


class Talk(Decider[str, Say, Said, None]):
    type = "talk"

    def initial(self) -> str:
        return ""

    def decide(self, state: str, input: Say, now: datetime) -> Decision:
        return Decision.event(Said(input.word))

    def evolve(self, state: str, event: Said) -> str:
        return event.word


class Totals(Projection):
    """The sum of each account, and a complaint when an event is missing, comes twice or out of order."""

    name = "totals"
    deciders = (Account,)

    def apply(self, event: Recorded[Any], view: View) -> None:
        expected = view.get("last", 0) + 1
        if event.position != expected:
            raise AssertionError(f"position {event.position} came where {expected} was next")
        view["last"] = event.position
        key = f"account:{event.instance}"
        view[key] = view.get(key, 0) + event.event.amount


def add(app: detent.App, *amounts: int, id: str = "a") -> None:
    for amount in amounts:
        app.execute(Account, Add(id, amount))


def wait(app: detent.App, projection: Any) -> None:
    """Wait until the projection has seen all that there is."""
    app.projections.wait(projection, timeout=PATIENCE)


def totals(app: detent.App, projection: Any = Totals) -> dict[str, int]:
    items = app.projections.view(projection).items(prefix="account:")
    return {key.removeprefix("account:"): value for key, value in items}


def status(app: detent.App, generation: int | None = None) -> ProjectionStatus:
    """The status of the one projection; of one generation, where there are two."""
    [found] = [one for one in app.projections.status() if generation in (None, one.generation)]
    return found


def rows(store: Store, statement: str) -> list[tuple[Any, ...]]:
    with store._reading() as tx:
        return tx.query(statement)


def numbers(count: int) -> Iterator[int]:
    return iter(range(1, count + 1))
