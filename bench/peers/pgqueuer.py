"""PgQueuer: a plain queue on asyncpg; in batches of 100, which did better than 10 and 500 when we tried."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, ClassVar

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.queries import Queries

from bench.peers import protocol as p
from bench.peers.children import until, worker_of

BATCH = 100
NOTE = "a plain queue: a job, not a run with a recorded step"
NO_STEPS = "a plain queue: it has no steps"


class Seen:
    """How late the jobs of this process were."""

    late: ClassVar[list[float]] = []


async def queuer(url: str, entrypoint: str) -> tuple[PgQueuer, Queries]:
    pool = await asyncpg.create_pool(url, min_size=2, max_size=10)
    driver = AsyncpgPoolDriver(pool)
    app = PgQueuer(driver)

    @app.entrypoint(entrypoint)
    async def noop(job: Any) -> None:
        pass

    @app.entrypoint(f"{entrypoint}-latency")
    async def latency(job: Any) -> None:
        late = (time.time() - float(job.payload)) * 1000
        Seen.late.append(late)
        if entrypoint == "other":
            print(late, flush=True)

    return app, Queries(driver)


Work = Callable[[Queries, Any], Awaitable[list[p.Figure]]]


def measured(work: Work) -> Callable[[str], list[p.Figure]]:
    async def main(url: str) -> list[p.Figure]:
        connection = await asyncpg.connect(url)
        await Queries(AsyncpgDriver(connection)).install()
        app, queries = await queuer(url, "noop")
        worker = asyncio.create_task(app.run(batch_size=BATCH, dequeue_timeout=timedelta(seconds=30)))
        figures = await work(queries, connection)
        worker.cancel()
        return figures

    return lambda url: asyncio.run(main(url))


async def drained(connection: Any) -> bool:
    """A job that is done is no longer in the queue's table."""
    return not await connection.fetchval("SELECT count(*) FROM pgqueuer")


async def runs(queries: Queries, connection: Any) -> list[p.Figure]:
    await queries.enqueue("noop", None)
    await until(lambda: drained(connection))
    with p.window() as seen:
        await queries.enqueue(["noop"] * p.MANY, [None] * p.MANY, [0] * p.MANY)
        await until(lambda: drained(connection))
    return [p.rate("runs", p.MANY, seen, NOTE)]


async def singles(queries: Queries, connection: Any) -> list[p.Figure]:
    await queries.enqueue("noop", None)
    await until(lambda: drained(connection))
    with p.window() as seen:
        for _ in range(p.SINGLES):
            await queries.enqueue("noop", None)
        await until(lambda: drained(connection))
    return [p.rate("singles", p.SINGLES, seen, NOTE)]


async def idle_latency(queries: Queries, connection: Any) -> list[p.Figure]:
    for number in range(p.SAMPLES):
        await asyncio.sleep(0.02)
        await queries.enqueue("noop-latency", str(time.time()).encode())
        while len(Seen.late) <= number:
            await asyncio.sleep(0.002)
    other = []
    with worker_of("bench.peers.pgqueuer", sys.argv[2]) as worker:
        assert worker.stdout is not None
        for _ in range(p.SAMPLES):
            await asyncio.sleep(0.02)
            await queries.enqueue("other-latency", str(time.time()).encode())
            other.append(float(await asyncio.to_thread(worker.stdout.readline)))
    return [p.latencies("latency-same", Seen.late, NOTE), p.latencies("latency-other", other, NOTE)]


async def idle(queries: Queries, connection: Any) -> list[p.Figure]:
    return await asyncio.to_thread(p.idle)


def worker(url: str) -> None:
    async def main() -> None:
        app, _ = await queuer(url, "other")
        work = asyncio.create_task(app.run(batch_size=10))
        await asyncio.sleep(1)
        print("ready", flush=True)
        await work

    asyncio.run(main())


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        worker(sys.argv[2])
    shapes: dict[str, Work] = {"runs": runs, "singles": singles, "latency": idle_latency, "idle": idle}
    p.serve(
        {name: measured(shape) for name, shape in shapes.items()}
        | {"import": lambda _: p.import_time("pgqueuer")},
        {
            "steps": NO_STEPS,
            "sequence": NO_STEPS,
            "fan-out": "a plain queue: it has no join",
            "limits": p.NOT_MEASURED,
        },
    )
