"""LangGraph's functional API: entrypoints and tasks as coroutines, with its own checkpointers.

It has no workers: a run is driven by whoever called it, with its default durability, which lets the next
task begin before the last one's checkpoint is written.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from langgraph.func import entrypoint, task

from bench.peers import protocol as p
from bench.peers.children import limited

NO_QUEUE = "it has no queue and no workers: a run is driven by its caller"
NOTE = 'durability="async", its default'


@task
async def noop(number: int) -> int:
    return number


@task
async def stamp(sent: float) -> float:
    return time.time() - sent


@asynccontextmanager
async def saver(url: str) -> AsyncIterator[Any]:
    if url.startswith("sqlite"):
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

        async with AsyncSqliteSaver.from_conn_string(url.removeprefix("sqlite:///")) as found:
            yield found
        return
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    from psycopg.rows import dict_row
    from psycopg_pool import AsyncConnectionPool

    settings = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    async with AsyncConnectionPool(url, min_size=4, max_size=20, kwargs=settings) as pool:
        checkpointer = AsyncPostgresSaver(pool)  # type: ignore[arg-type]
        await checkpointer.setup()
        yield checkpointer


class Flows:
    """The entrypoints, which are bound to a checkpointer when they are made."""

    def __init__(self, checkpointer: Any) -> None:
        @entrypoint(checkpointer=checkpointer)
        async def run_steps(steps: int) -> int:
            for number in range(steps):
                await noop(number)
            return steps

        @entrypoint(checkpointer=checkpointer)
        async def fan_out(width: int) -> int:
            return len(await asyncio.gather(*(noop(number) for number in range(width))))

        @entrypoint(checkpointer=checkpointer)
        async def latency(sent: float) -> float:
            return await stamp(sent)

        self.run_steps, self.fan_out, self.latency = run_steps, fan_out, latency
        self.threads = 0

    async def call(self, flow: Any, argument: Any) -> Any:
        self.threads += 1
        return await flow.ainvoke(argument, {"configurable": {"thread_id": str(self.threads)}})


Work = Callable[[Flows], Awaitable[list[p.Figure]]]


def measured(work: Work) -> Callable[[str], list[p.Figure]]:
    async def main(url: str) -> list[p.Figure]:
        async with saver(url) as checkpointer:
            flows = Flows(checkpointer)
            await flows.call(flows.run_steps, 1)
            return await work(flows)

    return lambda url: asyncio.run(main(url))


async def steps(flows: Flows) -> list[p.Figure]:
    with p.window() as seen:
        await limited(p.RUNS, lambda _: flows.call(flows.run_steps, p.STEPS), p.CONCURRENCY)
    return [p.rate("steps", p.RUNS * p.STEPS, seen, NOTE)]


async def sequence(flows: Flows) -> list[p.Figure]:
    with p.window() as seen:
        await flows.call(flows.run_steps, p.SEQUENCE)
    return [p.rate("sequence", p.SEQUENCE, seen, NOTE)]


async def runs(flows: Flows) -> list[p.Figure]:
    count = p.MANY // 5
    with p.window() as seen:
        await limited(count, lambda _: flows.call(flows.run_steps, 1), p.CONCURRENCY)
    return [p.rate("runs", count, seen, f"{count} runs, called directly: no queue; {NOTE}")]


async def fan(flows: Flows) -> list[p.Figure]:
    with p.window() as seen:
        await flows.call(flows.fan_out, p.WIDTH)
    return [p.taken("fan-out", p.WIDTH, seen, NOTE)]


async def idle_latency(flows: Flows) -> list[p.Figure]:
    found = []
    for _ in range(p.SAMPLES):
        await asyncio.sleep(0.01)
        found.append(await flows.call(flows.latency, time.time()) * 1000)
    title, unit, better = p.TITLES["latency-other"]
    absent = p.Figure(title, None, unit, better, note=NO_QUEUE)
    return [p.latencies("latency-same", found, NOTE), absent]


if __name__ == "__main__":
    shapes: dict[str, Work] = {
        "steps": steps,
        "sequence": sequence,
        "runs": runs,
        "fan-out": fan,
        "latency": idle_latency,
    }
    p.serve(
        {name: measured(shape) for name, shape in shapes.items()}
        | {"import": lambda _: p.import_time("langgraph.func")},
        {"singles": NO_QUEUE, "idle": NO_QUEUE, "limits": NO_QUEUE},
    )
