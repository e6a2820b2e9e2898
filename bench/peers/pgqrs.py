"""pgqrs: durable workflows on its Rust core; a consumer that takes batches and runs them side by side."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pgqrs

from bench.peers import protocol as p
from bench.peers.children import limited

AT_ONCE = 16  # runs under way, with as many connections; 64 were slower by a third when we tried
FEW = 2  # where there is little to take at a time: every consumer that finds nothing asks again soon
NOTE = f"{AT_ONCE} consumers"
QUEUE = "bench"


async def step(run: Any, name: str) -> None:
    """A step by hand: the decorator knows a step by its function, and so cannot be used in a loop."""
    found = await run.acquire_step(name, current_time=run.current_time)
    if found.status == pgqrs.StepResultStatus.Execute:
        await found.guard.success(1)


class Bench:
    """A store, a workflow, and consumers for it."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.consumers: list[asyncio.Task[None]] = []
        self.done = 0
        self.late: list[float] = []

    async def trigger(self, payload: Any) -> None:
        await pgqrs.workflow().name(QUEUE).store(self.store).trigger(payload).execute()

    async def handle(self, message: Any) -> None:
        run = await pgqrs.run().message(message).store(self.store).execute()
        given = message.payload.get("input", message.payload)
        if "sent" in given:
            self.late.append((time.time() - given["sent"]) * 1000)
        for number in range(given.get("steps", 1)):
            await step(run, f"step-{number}")
        if width := given.get("width", 0):
            await asyncio.gather(*(step(run, f"part-{number}") for number in range(width)))
        await run.complete({"done": True})

    async def consume(self, batch: int = 10) -> None:
        consumer = await self.store.consumer(QUEUE)
        while True:
            messages = await consumer.dequeue(batch_size=batch)
            if not messages:
                await asyncio.sleep(0.01)
            for message in messages:
                await self.handle(message)
                await consumer.archive(message.id)
                self.done += 1

    async def finished(self, wanted: int) -> None:
        while self.done < wanted:
            for task in self.consumers:
                if task.done():
                    task.result()  # raises what has ended it
            await asyncio.sleep(0.005)


Work = Callable[[Bench], Awaitable[list[p.Figure]]]


def measured(work: Work, consumers: int = AT_ONCE) -> Callable[[str], list[p.Figure]]:
    async def main(url: str) -> list[p.Figure]:
        config = pgqrs.Config.from_dsn(url)
        config.max_connections = AT_ONCE + 4
        store = await pgqrs.connect_with(config)
        await pgqrs.admin(store).install()
        await pgqrs.workflow().name(QUEUE).store(store).create()
        bench = Bench(store)
        bench.consumers = [asyncio.create_task(bench.consume()) for _ in range(consumers)]
        await bench.trigger({"steps": 1})
        await bench.finished(1)
        figures = await work(bench)
        for task in bench.consumers:
            task.cancel()
        return figures

    return lambda url: asyncio.run(main(url))


async def steps(bench: Bench) -> list[p.Figure]:
    with p.window() as seen:
        await limited(p.RUNS, lambda _: bench.trigger({"steps": p.STEPS}), AT_ONCE)
        await bench.finished(p.RUNS + 1)
    return [p.rate("steps", p.RUNS * p.STEPS, seen, NOTE)]


async def sequence(bench: Bench) -> list[p.Figure]:
    with p.window() as seen:
        await bench.trigger({"steps": p.SEQUENCE})
        await bench.finished(2)
    return [p.rate("sequence", p.SEQUENCE, seen)]


async def runs(bench: Bench) -> list[p.Figure]:
    count = p.MANY // 2
    with p.window() as seen:
        await limited(count, lambda _: bench.trigger({"steps": 1}), AT_ONCE)
        await bench.finished(count + 1)
    return [p.rate("runs", count, seen, f"{count} runs, {NOTE}; triggered by 16 callers: no bulk call")]


async def singles(bench: Bench) -> list[p.Figure]:
    with p.window() as seen:
        for _ in range(p.SINGLES):
            await bench.trigger({"steps": 1})
        await bench.finished(p.SINGLES + 1)
    return [p.rate("singles", p.SINGLES, seen, f"{FEW} consumers")]


async def fan(bench: Bench) -> list[p.Figure]:
    with p.window() as seen:
        await bench.trigger({"steps": 0, "width": p.WIDTH})
        await bench.finished(2)
    return [p.taken("fan-out", p.WIDTH, seen, "steps of one run, gathered in one process")]


async def idle_latency(bench: Bench) -> list[p.Figure]:
    for number in range(p.SAMPLES):
        await asyncio.sleep(0.02)
        await bench.trigger({"steps": 1, "sent": time.time()})
        await bench.finished(number + 2)
    title, unit, better = p.TITLES["latency-other"]
    absent = p.Figure(title, None, unit, better, note="no notification; as the one in the same process")
    return [p.latencies("latency-same", bench.late, "polled every 10 ms by our loop"), absent]


if __name__ == "__main__":
    shapes: dict[str, Callable[[str], list[p.Figure]]] = {
        "steps": measured(steps),
        "sequence": measured(sequence, 1),
        "runs": measured(runs),
        "singles": measured(singles, FEW),
        "fan-out": measured(fan, 1),
        "latency": measured(idle_latency, 1),
        "import": lambda _: p.import_time("pgqrs"),
    }
    p.serve(
        shapes,
        {"idle": "its loop, and so how often it asks, is written by its user", "limits": p.NOT_MEASURED},
    )
