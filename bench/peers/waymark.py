"""waymark: workflows that it compiles to a graph, its bridge and its pool of workers beside us.

Waiting for a result asks once a second by default, which would measure the asking: we ask every 20 ms.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from waymark import bridge

from bench.peers import protocol as p
from bench.peers.children import free_port, server
from bench.peers.waymark_flows import FanOut, Latency, Steps

MODULE = "bench.peers.waymark_flows"
NOTE = "records are written every 500 ms, its default: a crash repeats what was done since"


async def finished(instance: Any) -> Any:
    return await bridge.wait_for_instance(instance_id=instance, poll_interval_secs=0.02)


Work = Callable[[], Awaitable[list[p.Figure]]]


def measured(work: Work) -> Callable[[str], list[p.Figure]]:
    def main(url: str) -> list[p.Figure]:
        calls, workers = free_port(), free_port()
        settings = {
            "WAYMARK_DATABASE_URL": url,
            "WAYMARK_BRIDGE_GRPC_ADDR": f"127.0.0.1:{calls}",
            "WAYMARK_WORKER_GRPC_ADDR": f"127.0.0.1:{workers}",
            "WAYMARK_USER_MODULE": MODULE,
            "WAYMARK_CONCURRENT_PER_WORKER": str(p.CONCURRENCY // 2),
        }
        tools = Path(sys.executable).parent
        settings["PATH"] = f"{tools}{os.pathsep}{os.environ['PATH']}"  # it starts waymark-worker by its name
        os.environ.update(settings)
        with ExitStack() as stack:
            for tool, port in (("waymark-bridge", calls), ("waymark-start-workers", workers)):
                p.is_a_server(stack.enter_context(server([str(tools / tool)], port, settings)))
            return asyncio.run(_warm(work))

    return main


async def _warm(work: Work) -> list[p.Figure]:
    await finished(await Steps().run(1, _blocking=False))
    return await work()


async def many(runs: int, count: int) -> p.Window:
    with p.window() as seen:
        started = [await Steps().run(count, _blocking=False) for _ in range(runs)]
        for instance in started:
            await finished(instance)
    return seen


async def steps() -> list[p.Figure]:
    return [p.rate("steps", p.RUNS * p.STEPS, await many(p.RUNS, p.STEPS), NOTE)]


async def sequence() -> list[p.Figure]:
    return [p.rate("sequence", p.SEQUENCE, await many(1, p.SEQUENCE), NOTE)]


async def singles() -> list[p.Figure]:
    return [p.rate("singles", p.SINGLES, await many(p.SINGLES, 1), NOTE)]


async def runs() -> list[p.Figure]:
    payload = Steps._build_registration_payload(Steps._build_initial_context((1,), {}))
    with p.window() as seen:
        batch = await bridge.run_instances_batch(
            payload.SerializeToString(), count=p.MANY, include_instance_ids=True
        )
        for instance in batch.workflow_instance_ids:
            await finished(instance)
    return [p.rate("runs", p.MANY, seen, NOTE)]


async def fan() -> list[p.Figure]:
    with p.window() as seen:
        await finished(await FanOut().run(list(range(p.WIDTH)), _blocking=False))
    return [p.taken("fan-out", p.WIDTH, seen, NOTE)]


async def idle_latency() -> list[p.Figure]:
    found = []
    for _ in range(p.SAMPLES // 3):
        await asyncio.sleep(0.01)
        found.append(await Latency().run(time.time()) * 1000)
    title, unit, better = p.TITLES["latency-same"]
    absent = p.Figure(title, None, unit, better, note="its workers are processes of their own")
    return [absent, p.latencies("latency-other", found)]


async def idle() -> list[p.Figure]:
    return await asyncio.to_thread(p.idle)


if __name__ == "__main__":
    shapes: dict[str, Work] = {
        "steps": steps,
        "sequence": sequence,
        "runs": runs,
        "singles": singles,
        "fan-out": fan,
        "latency": idle_latency,
        "idle": idle,
    }
    p.serve(
        {name: measured(shape) for name, shape in shapes.items()}
        | {"import": lambda _: p.import_time("waymark")},
        {"limits": p.NOT_MEASURED},
    )
