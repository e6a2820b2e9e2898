"""DBOS: workflows and steps as coroutines, started directly; queues for what is enqueued."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
from dbos import DBOS, SetEnqueueOptions

from bench.peers import protocol as p
from bench.peers.children import limited, stay, worker_of

QUEUE = "bench"
NOTE = "enqueued by 50 callers, as there is no bulk call"


@DBOS.step()
async def noop(number: int) -> int:
    return number


@DBOS.workflow()
async def run_steps(steps: int) -> int:
    for number in range(steps):
        await noop(number)
    return steps


@DBOS.workflow()
async def fan_out(width: int) -> int:
    handles = [await DBOS.start_workflow_async(run_steps, 1) for _ in range(width)]
    return len([await handle.get_result() for handle in handles])


@DBOS.step()
async def stamp(sent: float) -> float:
    return time.time() - sent


@DBOS.workflow()
async def latency(sent: float) -> float:
    return await stamp(sent)


def launch(url: str, queue: str = QUEUE) -> None:
    DBOS(
        config={
            "name": "bench",
            "system_database_url": url,
            "sys_db_pool_size": 50,
            "log_level": "ERROR",
            "application_version": "1",
        }
    )
    DBOS.listen_queues([queue])
    DBOS.launch()


async def register() -> None:
    # Ten times as often as by default, which would add a second to everything.
    await asyncio.to_thread(
        DBOS.register_queue, QUEUE, worker_concurrency=p.CONCURRENCY, polling_interval_sec=0.1
    )


def measured(work: Callable[[str], Awaitable[list[p.Figure]]]) -> Callable[[str], list[p.Figure]]:
    async def main(url: str) -> list[p.Figure]:
        launch(url)
        await register()
        return await work(url)

    return lambda url: asyncio.run(main(url))


async def all_done(handles: list[Any]) -> None:
    """One after the other: each handle that waits asks the database every now and then."""
    for handle in handles:
        await handle.get_result(polling_interval_sec=0.1)


async def steps(url: str) -> list[p.Figure]:
    async def one(number: int) -> None:
        await (await DBOS.start_workflow_async(run_steps, p.STEPS)).get_result()

    await one(0)
    with p.window() as seen:
        await limited(p.RUNS, one, p.CONCURRENCY)
    return [p.rate("steps", p.RUNS * p.STEPS, seen)]


async def sequence(url: str) -> list[p.Figure]:
    await (await DBOS.start_workflow_async(run_steps, 10)).get_result()
    with p.window() as seen:
        await (await DBOS.start_workflow_async(run_steps, p.SEQUENCE)).get_result()
    return [p.rate("sequence", p.SEQUENCE, seen)]


async def runs(url: str) -> list[p.Figure]:
    await (await DBOS.enqueue_workflow_async(QUEUE, run_steps, 1)).get_result()
    count = p.MANY // 5
    with p.window() as seen:
        handles = await limited(count, lambda _: DBOS.enqueue_workflow_async(QUEUE, run_steps, 1), 50)
        await all_done(handles)
    return [p.rate("runs", count, seen, f"{count} runs; {NOTE}")]


async def singles(url: str) -> list[p.Figure]:
    await (await DBOS.enqueue_workflow_async(QUEUE, run_steps, 1)).get_result()
    count = p.SINGLES // 2
    with p.window() as seen:
        handles = [await DBOS.enqueue_workflow_async(QUEUE, run_steps, 1) for _ in range(count)]
        await all_done(handles)
    return [p.rate("singles", count, seen, f"{count} runs")]


async def fan(url: str) -> list[p.Figure]:
    await (await DBOS.start_workflow_async(fan_out, 10)).get_result()
    with p.window() as seen:
        await (await DBOS.start_workflow_async(fan_out, p.WIDTH)).get_result()
    return [p.taken("fan-out", p.WIDTH, seen, "child workflows")]


async def limits(url: str) -> list[p.Figure]:
    """A partition for each key.  The runs are moved into the queue that two other processes serve at once."""
    if not url.startswith("postgres"):
        raise p.Missing("measured on PostgreSQL only: two worker processes")
    count = p.KEYS * p.PEER_RUNS_PER_KEY

    async def enqueue(number: int) -> Any:
        with SetEnqueueOptions(queue_partition_key=f"key-{number % p.KEYS}"):
            return await DBOS.enqueue_workflow_async("parked", run_steps, 1)

    await asyncio.to_thread(DBOS.register_queue, "parked", partition_concurrency=1)
    await limited(count, enqueue, 50)
    with (
        worker_of("bench.peers.dbos", url, "limited"),
        worker_of("bench.peers.dbos", url, "limited"),
        psycopg.connect(url, autocommit=True) as connection,
    ):
        await asyncio.sleep(1)
        with p.window() as seen:
            connection.execute(
                "UPDATE dbos.workflow_status SET queue_name = 'limited' WHERE queue_name = 'parked'"
            )
            left = "SELECT 1 FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING') LIMIT 1"
            while connection.execute(left).fetchone():
                await asyncio.sleep(0.1)
    note = f"{count} runs; a partition for each key, polled every 100 ms"
    return [p.rate("limits", count, seen, note)]


async def idle_latency(url: str) -> list[p.Figure]:
    same = []
    for _ in range(p.SAMPLES):
        await asyncio.sleep(0.01)
        same.append(await (await DBOS.start_workflow_async(latency, time.time())).get_result() * 1000)
    figures = [p.latencies("latency-same", same)]
    other = []
    with worker_of("bench.peers.dbos", url):
        for _ in range(p.SAMPLES // 3):
            await asyncio.sleep(0.01)
            handle = await DBOS.enqueue_workflow_async("other", latency, time.time())
            other.append(await handle.get_result() * 1000)
    return [*figures, p.latencies("latency-other", other, "a queue polled every 100 ms")]


def idle(url: str) -> list[p.Figure]:
    """With its defaults: what polls more often would cost more."""
    launch(url)
    DBOS.register_queue(QUEUE, worker_concurrency=p.CONCURRENCY)
    return p.idle()


def worker(url: str, queue: str) -> None:
    """A worker in another process, for a queue that the measuring process does not listen to."""
    launch(url, queue)
    if queue == "limited":
        DBOS.register_queue(queue, partition_concurrency=1, polling_interval_sec=0.1)
    else:
        DBOS.register_queue(queue, worker_concurrency=10, polling_interval_sec=0.1)
    stay()


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        worker(sys.argv[2], sys.argv[3])
    shapes = {
        "steps": steps,
        "sequence": sequence,
        "runs": runs,
        "singles": singles,
        "fan-out": fan,
        "limits": limits,
        "latency": idle_latency,
    }
    others = {"idle": idle, "import": lambda _: p.import_time("dbos")}
    p.serve({name: measured(shape) for name, shape in shapes.items()} | others)
