"""Deciders: inputs over many instances and over one, effects, timers, inboxes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import detent
from detent import Decider, Decision, EffectContext, Projection, Recorded, View

from .peers.protocol import CONCURRENCY, Figure, Window, from_window, window

INSTANCES = 1_000
INPUTS = 10_000
LETTERS = 5_000
IN_FLIGHT = 1_000  # callers at a time


@dataclass(frozen=True)
class Counted:
    value: int = 0


@dataclass(frozen=True)
class Add:
    id: str
    amount: int


@dataclass(frozen=True)
class Ask:
    """An input that leads to an effect, and one that leads to a timer."""

    id: str
    at: datetime | None = None


@dataclass(frozen=True)
class Added:
    amount: int


@dataclass(frozen=True)
class Asked:
    pass


@dataclass(frozen=True)
class Reply:
    id: str


class Counter(Decider[Counted, Add | Ask, Added | Asked, Reply]):
    type = "counter"

    def initial(self) -> Counted:
        return Counted()

    def decide(self, state: Counted, input: Add | Ask, now: datetime) -> Decision:
        if isinstance(input, Add):
            return Decision.event(Added(input.amount))
        asked = Decision.event(Asked())
        if input.at is None:
            return asked.with_effect(Reply(input.id))
        return asked.with_timer(at=input.at, input=Add(input.id, 1))

    def evolve(self, state: Counted, event: Added | Asked) -> Counted:
        return replace(state, value=state.value + event.amount) if isinstance(event, Added) else state

    async def handle(self, effect: Reply, ctx: EffectContext) -> Add:
        return Add(effect.id, 1)


def many_instances(kind: str, url: str) -> list[Figure]:
    """10,000 inputs over 1,000 instances that have begun, a thousand callers at a time."""
    return _inputs(kind, url, [f"c-{n % INSTANCES}" for n in range(INPUTS)], "decider: 1,000 instances")


def hot_instance(kind: str, url: str) -> list[Figure]:
    """10,000 inputs to one instance."""
    return _inputs(kind, url, ["hot"] * INPUTS, "decider: one hot instance")


def _inputs(kind: str, url: str, ids: list[str], shape: str) -> list[Figure]:
    async def main() -> Window:
        async with detent.AsyncApp(url, include=[Counter], migrate=True) as app:
            await _all(app, [Add(id, 0) for id in dict.fromkeys(ids)])
            with window() as seen:
                await _all(app, [Add(id, 1) for id in ids])
            return seen

    return [_rate(shape, len(ids), "inputs/s", asyncio.run(main()))]


def _rate(shape: str, units: int, unit: str, seen: Window) -> Figure:
    return from_window(Figure(shape, units / seen.seconds, unit, "higher", units=units), seen)


async def _all(app: detent.AsyncApp, inputs: Sequence[Add | Ask]) -> None:
    """Execute all of them, so many at a time."""
    waiting = iter(inputs)

    async def caller() -> None:
        for input in waiting:
            await app.execute(Counter, input)

    await asyncio.gather(*(caller() for _ in range(IN_FLIGHT)))


def effects(kind: str, url: str) -> list[Figure]:
    """5,000 effects over 1,000 instances, each answered by an input, from the first decision to the last."""

    async def main() -> Window:
        async with detent.AsyncApp(url, include=[Counter], migrate=True, concurrency=CONCURRENCY) as app:
            ids = [f"e-{n % INSTANCES}" for n in range(LETTERS)]
            await _all(app, [Add(id, 0) for id in dict.fromkeys(ids)])
            with window() as seen:
                await _all(app, [Ask(id) for id in ids])
                await _positions(app, INSTANCES + 2 * LETTERS)
            return seen

    return [_rate("decider: 5,000 effects with answers", LETTERS, "effects/s", asyncio.run(main()))]


def timers(kind: str, url: str) -> list[Figure]:
    """5,000 timers of 1,000 instances, due at one moment: how fast they fire; and how late one alone is."""

    async def main() -> tuple[float, list[float]]:
        async with detent.AsyncApp(url, include=[Counter], migrate=True, concurrency=CONCURRENCY) as app:
            due = datetime.now(UTC) + timedelta(seconds=5)
            await _all(app, [Ask(f"t-{n % INSTANCES}", due) for n in range(LETTERS)])
            await asyncio.sleep(max(0.0, (due - datetime.now(UTC)).total_seconds()))
            await _positions(app, 2 * LETTERS)
            taken = (datetime.now(UTC) - due).total_seconds()
            late = []
            for number in range(30):
                at = datetime.now(UTC) + timedelta(milliseconds=20)
                await app.execute(Counter, Ask(f"alone-{number}", at))
                await _positions(app, 2 * LETTERS + 2 * (number + 1))
                fired = (await app.events(Counter, f"alone-{number}"))[-1].at
                late.append((fired - at).total_seconds() * 1000)
            return taken, sorted(late)

    taken, late = asyncio.run(main())
    return [
        Figure("decider: 5,000 timers at once", LETTERS / taken, "timers/s", "higher"),
        Figure("decider: a timer is late by", late[len(late) // 2], "ms", "lower", samples=late),
    ]


def inbox(kind: str, url: str) -> list[Figure]:
    """10,000 inputs through the inboxes of 1,000 instances, until the last is decided."""

    async def main() -> Window:
        async with detent.AsyncApp(url, include=[Counter], migrate=True, concurrency=CONCURRENCY) as app:
            waiting = iter(Add(f"i-{n % INSTANCES}", 1) for n in range(INPUTS))

            async def caller() -> None:
                for input in waiting:
                    await app.enqueue_input(Counter, input)

            with window() as seen:
                await asyncio.gather(*(caller() for _ in range(IN_FLIGHT)))
                await _positions(app, INPUTS)
            return seen

    return [_rate("decider: 10,000 inputs by inbox", INPUTS, "inputs/s", asyncio.run(main()))]


class Sums(Projection):
    name = "sums"
    deciders = (Counter,)

    def apply(self, event: Recorded[Added | Asked], view: View) -> None:
        if isinstance(event.event, Added):
            view[event.instance] = view.get(event.instance, 0) + event.event.amount


def projection(kind: str, url: str) -> list[Figure]:
    """A projection over 10,000 events from zero; and how far it is behind an event that comes alone."""

    async def main() -> tuple[float, list[float]]:
        async with detent.AsyncApp(url, include=[Counter], migrate=True) as app:
            await _all(app, [Add(f"p-{n % INSTANCES}", 1) for n in range(INPUTS)])
        begun = time.perf_counter()  # a worker begins with it while the app opens
        async with detent.AsyncApp(url, include=[Counter, Sums]) as app:
            await app.projections.wait(Sums)
            taken = time.perf_counter() - begun
            behind = []
            for number in range(60):
                await asyncio.sleep(0.01)
                await app.execute(Counter, Add(f"p-{number}", 1))
                begun = time.perf_counter()
                await app.projections.wait(Sums)
                behind.append((time.perf_counter() - begun) * 1000)
            return taken, sorted(behind)

    taken, behind = asyncio.run(main())
    return [
        Figure("projection: 10,000 events", INPUTS / taken, "events/s", "higher"),
        Figure("projection: behind by", behind[len(behind) // 2], "ms", "lower", samples=behind),
    ]


async def _positions(app: detent.AsyncApp, wanted: int) -> None:
    """Wait until so many events are stored."""
    while app.engine.store.head() < wanted:
        await asyncio.sleep(0.002)
