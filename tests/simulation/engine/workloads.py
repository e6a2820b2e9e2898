"""What the simulated processes run: small definitions of every kind, whose results are known beforehand."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

import detent
from detent import (
    Decider,
    Decision,
    EffectContext,
    Projection,
    Recorded,
    View,
    Workflow,
    step,
    task,
    workflow,
)
from detent.definitions.context import current_step


class Watching(Protocol):
    """The simulation, as user code sees it."""

    def body(self, run: str, key: str) -> float:
        """A body begins; returns how long it takes, in seconds."""
        ...

    def work(self, seconds: float) -> None: ...


class Here:
    """The simulation that is under way."""

    world: Watching


here = Here()


def _begin() -> float:
    context = current_step()
    assert context is not None
    return here.world.body(context.run.id, context.key)


# -- Durable functions ---------------------------------------------------------------------------------


@step
def add(value: int, more: int) -> int:
    here.world.work(_begin())
    return value + more


@step(transactional=True)
def book(tx: Any, run: str, entry: str) -> str:
    here.world.work(_begin())
    tx.execute("INSERT INTO sim_ledger (run, entry) VALUES (?, ?)", (run, entry))
    return entry


@step
async def fetch(value: int) -> int:
    await asyncio.sleep(_begin())
    return value * 2


@workflow
def transfer(run: str, value: int) -> int:
    value = add(value, 1)
    book(run, "debit")
    detent.sleep(1.5)
    value = add(value, 2)
    book(run, "credit")
    return value


@workflow
async def gathered(run: str, value: int) -> list[int]:
    return await asyncio.gather(*(fetch(value + each) for each in range(3)))


@workflow
async def raced(run: str, value: int) -> int:
    """Which answer comes first decides how it goes on; a replay must go the same way."""
    total = 0
    # As tasks: coroutines would be begun in the order of a set, which is that of their addresses.
    tasks = [asyncio.ensure_future(fetch(value + n)) for n in range(3)]
    for place, each in enumerate(asyncio.as_completed(tasks)):
        found = await each
        total += await add.aio(found, place) - place
        await book.aio(run, f"place {place}")
    await detent.aio.sleep(0.7)
    return total


@workflow
def leaf(run: str, value: int) -> int:
    value = add(value, 10)
    book(run, f"leaf {value}")
    return value


@workflow
def family(run: str, value: int) -> int:
    """Spawned steps, a child that is waited for, and one that is not at first."""
    handle = leaf.spawn(run, value)
    spawned = add.spawn(value, 1).result()
    called = leaf(run, value + 1)
    return int(handle.result() + spawned + called)


@workflow
def letters(run: str, value: int) -> int:
    """Two messages, in their order, and a wait that ends without one."""
    first = detent.receive("go")
    value = add(value, first)
    second = detent.receive("go")
    book(run, f"got {second}")
    late = detent.receive("never", timeout=0.5, default=0)
    return value + int(second) + int(late)


# -- Graphs --------------------------------------------------------------------------------------------


node: Any = step  # its types do not know that a node may be transactional


class Diamond(Workflow):
    """Two nodes side by side, and a join."""

    owner: str
    value: int

    @step
    def begin(self) -> int:
        here.world.work(_begin())
        return self.value

    @task(depends_on=begin)
    def left(self) -> int:
        here.world.work(_begin())
        return 1

    @task(depends_on=begin)
    async def right(self) -> int:
        await asyncio.sleep(_begin())
        return 2

    @node(depends_on=[left, right], transactional=True)  # type: ignore[untyped-decorator]
    def join(self, tx: Any) -> int:
        _begin()
        tx.execute("INSERT INTO sim_ledger (run, entry) VALUES (?, ?)", (self.owner, "join"))
        return self.value

    @step
    def last(self) -> int:
        here.world.work(_begin())
        return self.value + 3


# -- Deciders ------------------------------------------------------------------------------------------


@dataclass
class Put:
    id: str
    amount: int


@dataclass
class Receipt:
    id: str
    key: str


@dataclass
class Bell:
    id: str


@dataclass
class Added:
    amount: int


@dataclass
class Receipted:
    key: str


@dataclass
class Rung:
    pass


@dataclass
class Print:
    id: str


@dataclass
class AccountState:
    total: int = 0
    receipts: int = 0
    rung: int = 0


class Account(Decider[AccountState, Put | Receipt | Bell, Added | Receipted | Rung, Print]):
    """Adds; each addition prints a receipt, and sets the bell anew, which rings once at the end."""

    type = "account"

    def initial(self) -> AccountState:
        return AccountState()

    def decide(self, state: AccountState, input: Put | Receipt | Bell, now: datetime) -> Decision:
        match input:
            case Put(id, amount):
                return (
                    Decision.event(Added(amount))
                    .with_effect(Print(id))
                    .with_timer(after=timedelta(seconds=4), input=Bell(id), key="bell")
                )
            case Receipt(_, key):
                return Decision.event(Receipted(key))
            case Bell():
                return Decision.event(Rung())

    def evolve(self, state: AccountState, event: Added | Receipted | Rung) -> AccountState:
        match event:
            case Added(amount):
                return AccountState(state.total + amount, state.receipts, state.rung)
            case Receipted():
                return AccountState(state.total, state.receipts + 1, state.rung)
            case Rung():
                return AccountState(state.total, state.receipts, state.rung + 1)

    def handle(self, effect: Print, ctx: EffectContext) -> Receipt:
        here.world.work(0.01)
        return Receipt(effect.id, ctx.idempotency_key)


class Totals(Projection):
    """Complains where an event is missing, comes twice or out of order."""

    name = "totals"
    deciders = (Account,)

    def apply(self, event: Recorded[Any], view: View) -> None:
        expected = view.get("last", 0) + 1
        if event.position != expected:
            raise AssertionError(f"position {event.position} came where {expected} was next")
        view["last"] = event.position


# -- What is asked of them -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """A run that a client starts, its result, and the entries of the ledger that belong to it."""

    id: str
    definition: Any
    args: tuple[Any, ...]
    result: Any
    ledger: tuple[str, ...] = ()
    messages: tuple[int, ...] = ()
    kwargs: dict[str, Any] | None = None


def _transfer(id: str, value: int) -> Job:
    return Job(id, transfer, (id, value), value + 3, ("credit", "debit"))


def _gathered(id: str, value: int) -> Job:
    return Job(id, gathered, (id, value), [(value + each) * 2 for each in range(3)])


def _raced(id: str, value: int) -> Job:
    entries = tuple(f"place {place}" for place in range(3))
    return Job(id, raced, (id, value), sum((value + each) * 2 for each in range(3)), entries)


def _family(id: str, value: int) -> Job:
    entries = (f"leaf {value + 10}", f"leaf {value + 11}")
    return Job(id, family, (id, value), (value + 10) + (value + 1) + (value + 11), entries)


def _letters(id: str, value: int) -> Job:
    return Job(id, letters, (id, value), value + 3 + 4, ("got 4",), messages=(3, 4))


def _diamond(id: str, value: int) -> Job:
    return Job(id, Diamond, (), value + 3, ("join",), kwargs={"owner": id, "value": value})


MAKERS: list[Callable[[str, int], Job]] = [_transfer, _gathered, _raced, _family, _letters, _diamond]
INCLUDED = (transfer, gathered, raced, leaf, family, letters, Diamond, Account, Totals)
