"""What the workers execute: every kind of definition, and what each run must leave in the ledger.

A run is identified by its owner, `run-17`.  The shape of a run follows from its number, so the judge knows
which rows to expect without asking Detent.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import detent
from detent import Projection, Recorded, View, aio, step, task, workflow
from tests.acceptance.programs import effects
from tests.acceptance.programs.chains import fresh, pause
from tests.acceptance.programs.ledger import Add, Added, Ledger

LEDGER = "chaos_ledger"
TABLE = f"CREATE TABLE {LEDGER} (owner VARCHAR(100) NOT NULL, place VARCHAR(100) NOT NULL)"
END = "end"
TICKS = 2
PARTS = 4
LETTER = "letter"

Rows = list[str]  # the places at which a run writes to the ledger


def insert(owner: str, place: str) -> str:
    return f"INSERT INTO {LEDGER} (owner, place) VALUES ('{owner}', '{place}')"


# -- Steps -----------------------------------------------------------------------------------------


@step
def plain(owner: str, place: str) -> str:
    effects.note("begin", owner, place)
    time.sleep(pause())
    value = fresh()
    effects.note("end", owner, place, value)
    return value


@step
async def aplain(owner: str, place: str) -> str:
    effects.note("begin", owner, place)
    await asyncio.sleep(pause())
    value = fresh()
    effects.note("end", owner, place, value)
    return value


@step(transactional=True)
def book(tx: Any, owner: str, place: str) -> str:
    effects.note("begin tx", owner, place)
    tx.execute(insert(owner, place))
    value = fresh()
    effects.note("end tx", owner, place, value)
    return value


@step(transactional=True)
async def abook(tx: Any, owner: str, place: str) -> str:
    effects.note("begin tx", owner, place)
    await tx.execute(insert(owner, place))
    value = fresh()
    effects.note("end tx", owner, place, value)
    return value


@step
def total(owner: str, parts: list[str]) -> int:
    effects.note("begin", owner, "total")
    for number, value in enumerate(parts):
        seen(owner, f"part {number}", value)
    effects.note("end", owner, "total", "")
    return len(set(parts))


def seen(owner: str, place: str, value: str) -> None:
    """The workflow has received this result, so it is recorded: no body of it may begin from here on."""
    effects.note("returned", owner, place, value)


# -- Functions -------------------------------------------------------------------------------------


@workflow
def sequence(owner: str) -> None:
    for number in range(3):
        seen(owner, f"plain {number}", plain(owner, f"plain {number}"))
        seen(owner, f"book {number}", book(owner, f"book {number}"))
    book(owner, END)


@workflow
async def concurrent(owner: str) -> None:
    async def one(number: int) -> None:
        seen(owner, f"plain {number}", await aplain(owner, f"plain {number}"))
        seen(owner, f"book {number}", await abook(owner, f"book {number}"))

    await asyncio.gather(*(one(number) for number in range(3)))
    await abook(owner, END)


@workflow
def child(owner: str, place: str) -> str:
    seen(owner, f"plain {place}", plain(owner, f"plain {place}"))
    return book(owner, place)


@workflow
def family(owner: str) -> None:
    spawned = [plain.spawn(owner, f"spawned {number}") for number in range(3)]
    children = [child.spawn(owner, f"book {number}") for number in range(2)]
    for number, handle in enumerate(spawned):
        seen(owner, f"spawned {number}", handle.result())
    for number, run in enumerate(children):
        seen(owner, f"book {number}", run.result())
    book(owner, END)


@workflow
async def reader(owner: str) -> None:
    """Waits for a letter of the client, for time, and for a child."""
    value = await aio.receive(LETTER, type=str)
    seen(owner, LETTER, value)
    await aio.sleep(0.1)
    seen(owner, "book 0", await child.spawn(owner, "book 0"))
    await abook(owner, END)


# -- Graphs ----------------------------------------------------------------------------------------


class Order(detent.Workflow):
    owner: str

    @step
    def first(self) -> None:
        plain_body(self.owner, "first")

    @task(depends_on="first")
    def left(self) -> None:
        plain_body(self.owner, "left")

    @task(depends_on="first", transactional=True)
    def right(self, tx: Any) -> None:
        tx.execute(insert(self.owner, "book 0"))

    @task(depends_on=["left", "right"], transactional=True)
    def last(self, tx: Any) -> None:
        for place in ("first", "left"):
            seen(self.owner, place, "")
        tx.execute(insert(self.owner, END))


def plain_body(owner: str, place: str) -> None:
    effects.note("begin", owner, place)
    time.sleep(pause())
    effects.note("end", owner, place)


def fan_out(owner: str) -> detent.Graph:
    """Some nodes side by side, and a join that gets all that they returned."""
    g = detent.Graph("chaos")
    parts = g.fan_out(
        range(PARTS),
        name=lambda i: f"part_{i}",
        job=plain,
        args=lambda i: {"owner": owner, "place": f"part {i}"},
        depends_on=None,
    )
    g.node("total", job=total, args={"owner": owner, "parts": parts.outputs})
    g.node("last", job=book, args={"owner": owner, "place": END})
    return g


# -- Deciders --------------------------------------------------------------------------------------


class Lines(Projection):
    """Writes every event of a ledger into the table, so that the judge sees it."""

    name = "chaos-lines"
    deciders = (Ledger,)

    def apply(self, event: Recorded[Any], view: View) -> None:
        assert isinstance(event.event, Added)
        view.tx.execute(insert(event.instance, event.event.line))


# -- What is started -------------------------------------------------------------------------------


def _start(definition: Any) -> Callable[[detent.App, str], None]:
    def start(app: detent.App, owner: str) -> None:
        app.options(id=owner).start(definition, owner)

    return start


def _start_order(app: detent.App, owner: str) -> None:
    app.options(id=owner).start(Order, owner=owner)


def _start_graph(app: detent.App, owner: str) -> None:
    app.options(id=owner).start(fan_out(owner))


def _start_reader(app: detent.App, owner: str) -> None:
    run = app.options(id=owner).start(reader, owner)
    run.send(LETTER, f"letter of {owner}", id=f"{owner}-letter")


def _decide(app: detent.App, owner: str) -> None:
    app.execute(Ledger, Add(owner, "line", post=True, ticks=TICKS), input_id=owner)


SHAPES: tuple[tuple[str, Callable[[detent.App, str], None], Rows], ...] = (
    ("sequence", _start(sequence), ["book 0", "book 1", "book 2", END]),
    ("concurrent", _start(concurrent), ["book 0", "book 1", "book 2", END]),
    ("family", _start(family), ["book 0", "book 1", END]),
    ("reader", _start_reader, ["book 0", END]),
    ("order", _start_order, ["book 0", END]),
    ("graph", _start_graph, [END]),
    ("decider", _decide, ["line", "posted line", *(f"tick {left}" for left in range(TICKS, 0, -1))]),
)


def owner_of(number: int) -> str:
    return f"run-{number}"


def start(app: detent.App, number: int) -> None:
    """Start the run of this number; any number of times is once."""
    _, begin, _ = SHAPES[number % len(SHAPES)]
    begin(app, owner_of(number))


def run_id(number: int) -> str:
    """The id under which Detent knows it."""
    name, _, _ = SHAPES[number % len(SHAPES)]
    return f"{Ledger.type}:{owner_of(number)}" if name == "decider" else owner_of(number)


def expected(number: int) -> Rows:
    """What it must write to the ledger, each place once."""
    return SHAPES[number % len(SHAPES)][2]
