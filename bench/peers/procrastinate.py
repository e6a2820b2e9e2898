"""procrastinate: a plain queue on psycopg, with jobs as coroutines."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import procrastinate

from bench.peers import protocol as p
from bench.peers.children import until, worker_of

AT_ONCE = p.CONCURRENCY
NOTE = f"a plain queue: a job, not a run with a recorded step; {AT_ONCE} at a time"
NO_STEPS = "a plain queue: it has no steps"


class Seen:
    """How late the jobs of this process were."""

    late: ClassVar[list[float]] = []


def make(url: str) -> procrastinate.App:
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, max_size=20))

    @app.task(name="noop")
    async def noop(number: int) -> None:
        pass

    @app.task(name="latency", pass_context=True)
    async def latency(context: Any, sent: float) -> None:
        late = (time.time() - sent) * 1000
        Seen.late.append(late)
        if context.job.queue == "other":
            print(late, flush=True)

    return app


Work = Callable[[procrastinate.App], Awaitable[list[p.Figure]]]


def measured(work: Work) -> Callable[[str], list[p.Figure]]:
    async def main(url: str) -> list[p.Figure]:
        app = make(url)
        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            worker = asyncio.create_task(
                app.run_worker_async(queues=["default"], concurrency=AT_ONCE, install_signal_handlers=False)
            )
            await asyncio.sleep(1)
            figures = await work(app)
            worker.cancel()
        return figures

    return lambda url: asyncio.run(main(url))


async def drained(app: procrastinate.App) -> bool:
    found = await app.connector.execute_query_one_async(
        "SELECT count(*) AS left FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
    )
    return found["left"] == 0


async def runs(app: procrastinate.App) -> list[p.Figure]:
    count = p.MANY // 2
    task = app.tasks["noop"]
    await task.defer_async(number=0)
    await until(lambda: drained(app))
    with p.window() as seen:
        await task.batch_defer_async(*({"number": number} for number in range(count)))
        await until(lambda: drained(app), 0.1)
    return [p.rate("runs", count, seen, f"{count} jobs; {NOTE}")]


async def singles(app: procrastinate.App) -> list[p.Figure]:
    task = app.tasks["noop"]
    await task.defer_async(number=0)
    await until(lambda: drained(app))
    with p.window() as seen:
        for number in range(p.SINGLES):
            await task.defer_async(number=number)
        await until(lambda: drained(app), 0.1)
    return [p.rate("singles", p.SINGLES, seen, NOTE)]


async def limits(app: procrastinate.App) -> list[p.Figure]:
    """A lock for each key.  The jobs are moved into the queue that two other processes serve at once."""
    count = p.KEYS * p.PEER_RUNS_PER_KEY
    for key in range(p.KEYS):
        task = app.tasks["noop"].configure(queue="parked", lock=f"key-{key}")
        await task.batch_defer_async(*({"number": number} for number in range(p.PEER_RUNS_PER_KEY)))
    module, url = "bench.peers.procrastinate", sys.argv[2]
    with worker_of(module, url, "limited"), worker_of(module, url, "limited"), p.window() as seen:
        await app.connector.execute_query_async(
            "UPDATE procrastinate_jobs SET queue_name = 'limited' WHERE queue_name = 'parked'"
        )
        await app.tasks["noop"].configure(queue="limited").defer_async(number=0)  # it wakes the workers
        await until(lambda: drained(app), 0.1)
    return [p.rate("limits", count, seen, f"{count} jobs, a lock for each key; {NOTE}")]


async def idle_latency(app: procrastinate.App) -> list[p.Figure]:
    task = app.tasks["latency"]
    for number in range(p.SAMPLES):
        await asyncio.sleep(0.02)
        await task.defer_async(sent=time.time())
        while len(Seen.late) <= number:
            await asyncio.sleep(0.002)
    other = []
    with worker_of("bench.peers.procrastinate", sys.argv[2]) as worker:
        assert worker.stdout is not None
        for _ in range(p.SAMPLES):
            await asyncio.sleep(0.02)
            await task.configure(queue="other").defer_async(sent=time.time())
            other.append(float(await asyncio.to_thread(worker.stdout.readline)))
    return [p.latencies("latency-same", Seen.late, NOTE), p.latencies("latency-other", other, NOTE)]


async def idle(app: procrastinate.App) -> list[p.Figure]:
    return await asyncio.to_thread(p.idle)


def worker(url: str, queue: str) -> None:
    async def main() -> None:
        app = make(url)
        at_once = AT_ONCE if queue == "limited" else 10
        async with app.open_async():
            work = asyncio.create_task(app.run_worker_async(queues=[queue], concurrency=at_once))
            await asyncio.sleep(1)
            print("ready", flush=True)
            await work

    asyncio.run(main())


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        worker(sys.argv[2], sys.argv[3])
    shapes: dict[str, Work] = {
        "runs": runs,
        "singles": singles,
        "limits": limits,
        "latency": idle_latency,
        "idle": idle,
    }
    p.serve(
        {name: measured(shape) for name, shape in shapes.items()}
        | {"import": lambda _: p.import_time("procrastinate")},
        {"steps": NO_STEPS, "sequence": NO_STEPS, "fan-out": "a plain queue: it has no join"},
    )
