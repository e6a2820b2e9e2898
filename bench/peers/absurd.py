"""Absurd: tasks as coroutines on its asynchronous client, one worker with the defaults of its polling."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
from absurd_sdk import AsyncAbsurd

from bench.peers import protocol as p
from bench.peers.children import until, worker_of

QUEUE = "bench"
CLIENTS = 8
POLLED = "polled every 250 ms, its default"


def client(url: str, queue: str = QUEUE) -> AsyncAbsurd:
    app = AsyncAbsurd(url, queue_name=queue)

    @app.register_task(name="steps")
    async def run_steps(params: Any, ctx: Any) -> int:
        for number in range(params["steps"]):
            await ctx.step(f"step-{number}", noop)
        return 1

    @app.register_task(name="latency")
    async def latency(params: Any, ctx: Any) -> float:
        sent: float = params["sent"]

        async def stamp() -> float:
            return time.time() - sent

        return float(await ctx.step("stamp", stamp))

    @app.register_task(name="fan-out")
    async def fan_out(params: Any, ctx: Any) -> int:
        async def spawn() -> list[str]:
            return [str((await app.spawn("steps", {"steps": 1}))["task_id"]) for _ in range(params["width"])]

        # A task may not wait for a task of its own queue; so the join is the caller's.
        return len(await ctx.step("spawn", spawn))

    return app


async def noop() -> int:
    return 1


Work = Callable[[AsyncAbsurd, Callable[[int], Awaitable[None]]], Awaitable[list[p.Figure]]]


def measured(work: Work) -> Callable[[str], list[p.Figure]]:
    """With a worker, a client of its own, and a way to wait until so many tasks are completed."""

    async def main(url: str) -> list[p.Figure]:
        await prepare(url)
        working = client(url)
        worker = asyncio.create_task(working.start_worker(concurrency=p.CONCURRENCY))
        seeing = await psycopg.AsyncConnection.connect(url, autocommit=True)

        async def completed(wanted: int) -> None:
            async def all_done() -> bool:
                found = await seeing.execute(
                    f"SELECT count(*) FROM absurd.t_{QUEUE} WHERE state = 'completed'"
                )
                row = await found.fetchone()
                return row is not None and row[0] >= wanted

            await until(all_done)

        figures = await work(client(url), completed)
        worker.cancel()
        return figures

    return lambda url: asyncio.run(main(url))


async def prepare(url: str) -> None:
    control = Path(sys.executable).with_name("absurdctl")
    subprocess.run([control, "init", "-d", url], check=True, capture_output=True)
    app = AsyncAbsurd(url)
    for queue in (QUEUE, "other"):
        await app.create_queue(queue)
    await app.close()


async def steps(app: AsyncAbsurd, completed: Callable[[int], Awaitable[None]]) -> list[p.Figure]:
    seen = await many(app, completed, p.RUNS, p.STEPS)
    return [p.rate("steps", p.RUNS * p.STEPS, seen)]


async def sequence(app: AsyncAbsurd, completed: Callable[[int], Awaitable[None]]) -> list[p.Figure]:
    return [p.rate("sequence", p.SEQUENCE, await many(app, completed, 1, p.SEQUENCE), POLLED)]


async def singles(app: AsyncAbsurd, completed: Callable[[int], Awaitable[None]]) -> list[p.Figure]:
    return [p.rate("singles", p.SINGLES, await many(app, completed, p.SINGLES, 1))]


async def runs(app: AsyncAbsurd, completed: Callable[[int], Awaitable[None]]) -> list[p.Figure]:
    """Spawned by a few clients side by side, each with its own connection."""
    count = p.MANY // 5 * 2
    clients = [client(sys.argv[2]) for _ in range(CLIENTS)]
    for each in clients:
        await each.list_queues()  # connects

    async def spawn(each: AsyncAbsurd) -> None:
        for _ in range(count // CLIENTS):
            await each.spawn("steps", {"steps": 1})

    with p.window() as seen:
        await asyncio.gather(*(spawn(each) for each in clients))
        await completed(count)
    return [p.rate("runs", count, seen, f"{count} runs, enqueued by {CLIENTS} clients: no bulk call")]


async def many(
    app: AsyncAbsurd, completed: Callable[[int], Awaitable[None]], runs: int, steps: int
) -> p.Window:
    await app.spawn("steps", {"steps": 1})
    await completed(1)
    with p.window() as seen:
        for _ in range(runs):
            await app.spawn("steps", {"steps": steps})
        await completed(runs + 1)
    return seen


async def fan_out(app: AsyncAbsurd, completed: Callable[[int], Awaitable[None]]) -> list[p.Figure]:
    await app.spawn("steps", {"steps": 1})
    await completed(1)
    with p.window() as seen:
        await app.spawn("fan-out", {"width": p.WIDTH})
        await completed(p.WIDTH + 2)
    return [p.taken("fan-out", p.WIDTH, seen, "the join is not durable: the caller counts")]


async def idle_latency(app: AsyncAbsurd, completed: Callable[[int], Awaitable[None]]) -> list[p.Figure]:
    same = await latencies(app, QUEUE)
    url = sys.argv[2]
    with worker_of("bench.peers.absurd", url):
        other = await latencies(client(url, "other"), "other")
    return [p.latencies("latency-same", same, POLLED), p.latencies("latency-other", other, POLLED)]


async def latencies(app: AsyncAbsurd, queue: str) -> list[float]:
    found = []
    for _ in range(p.SAMPLES // 3):
        await asyncio.sleep(0.01)
        task = await app.spawn("latency", {"sent": time.time()}, queue=queue)
        done = await app.await_task_result(task["task_id"], queue_name=queue)
        found.append(float(done.result) * 1000)  # type: ignore[arg-type]
    return found


async def idle(app: AsyncAbsurd, completed: Callable[[int], Awaitable[None]]) -> list[p.Figure]:
    return await asyncio.to_thread(p.idle)


def worker(url: str) -> None:
    print("ready", flush=True)
    asyncio.run(client(url, "other").start_worker(concurrency=10))


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        worker(sys.argv[2])
    shapes: dict[str, Work] = {
        "steps": steps,
        "sequence": sequence,
        "runs": runs,
        "singles": singles,
        "fan-out": fan_out,
        "latency": idle_latency,
        "idle": idle,
    }
    p.serve(
        {name: measured(shape) for name, shape in shapes.items()}
        | {"import": lambda _: p.import_time("absurd_sdk")},
        {"limits": p.NOT_MEASURED},
    )
