"""Prefect: flows and tasks as coroutines, with its own API server on the database.

Its figures are from fewer runs, as it would not be done otherwise; rates compare all the same.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

from bench.peers import protocol as p
from bench.peers.children import free_port, limited, server

AT_ONCE = 10
FEW = 20
WIDTH = 200
NOTE = "flows called directly, not deployed"


def settings(url: str, port: int, home: str) -> dict[str, str]:
    database = url.replace("postgresql://", "postgresql+asyncpg://").replace(
        "sqlite:///", "sqlite+aiosqlite:///"
    )
    return {
        "PREFECT_HOME": home,
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_API_DATABASE_CONNECTION_URL": database,
        "PREFECT_LOGGING_LEVEL": "CRITICAL",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }


Work = Callable[["Flows"], Awaitable[list[p.Figure]]]


class Flows:
    """Imported only when the settings are in the environment: Prefect reads them then."""

    def __init__(self) -> None:
        from prefect import flow, task

        # Without a stored result a task would run again after a crash, as the others' steps do not.
        @task(persist_result=True)
        async def noop(number: int) -> int:
            return number

        @task(persist_result=True)
        async def stamp(sent: float) -> float:
            return time.time() - sent

        @flow
        async def run_steps(steps: int) -> int:
            for number in range(steps):
                await noop(number)
            return steps

        @flow
        async def fan_out(width: int) -> int:
            futures = noop.map(range(width))
            return len([future.result() for future in futures])

        @flow
        async def latency(sent: float) -> float:
            return await stamp(sent)

        self.run_steps, self.fan_out, self.latency = run_steps, fan_out, latency


def measured(work: Work) -> Callable[[str], list[p.Figure]]:
    def main(url: str) -> list[p.Figure]:
        port = free_port()
        with ExitStack() as stack:
            home = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
            environment = settings(url, port, home)
            os.environ.update(environment)
            prefect = str(Path(sys.executable).with_name("prefect"))
            argv = [prefect, "server", "start", "--host", "127.0.0.1", "--port", str(port)]
            p.is_a_server(stack.enter_context(server(argv, port, environment)))
            return asyncio.run(_warm(work))

    return main


async def _warm(work: Work) -> list[p.Figure]:
    flows = Flows()
    await flows.run_steps(1)
    return await work(flows)


async def steps(flows: Flows) -> list[p.Figure]:
    with p.window() as seen:
        await limited(FEW, lambda _: flows.run_steps(p.STEPS), AT_ONCE)
    return [p.rate("steps", FEW * p.STEPS, seen, f"{FEW} flows, {AT_ONCE} at a time; {NOTE}")]


async def sequence(flows: Flows) -> list[p.Figure]:
    with p.window() as seen:
        await flows.run_steps(p.SEQUENCE)
    return [p.rate("sequence", p.SEQUENCE, seen, NOTE)]


async def runs(flows: Flows) -> list[p.Figure]:
    with p.window() as seen:
        await limited(2 * FEW, lambda _: flows.run_steps(1), AT_ONCE)
    return [p.rate("runs", 2 * FEW, seen, f"{2 * FEW} flows, {AT_ONCE} at a time; {NOTE}")]


async def fan(flows: Flows) -> list[p.Figure]:
    with p.window() as seen:
        await flows.fan_out(WIDTH)
    figure = p.taken("fan-out", WIDTH, seen)
    assert figure.value is not None
    figure.value *= p.WIDTH / WIDTH
    figure.note = f"{WIDTH} tasks measured, times {p.WIDTH // WIDTH}"
    return [figure]


async def idle_latency(flows: Flows) -> list[p.Figure]:
    found = []
    for _ in range(p.SAMPLES // 4):
        await asyncio.sleep(0.01)
        found.append(await flows.latency(time.time()) * 1000)
    title, unit, better = p.TITLES["latency-other"]
    absent = p.Figure(title, None, unit, better, note="a deployment starts a process: seconds")
    return [p.latencies("latency-same", found, NOTE), absent]


async def idle(flows: Flows) -> list[p.Figure]:
    return await asyncio.to_thread(p.idle)


if __name__ == "__main__":
    shapes: dict[str, Work] = {
        "steps": steps,
        "sequence": sequence,
        "runs": runs,
        "fan-out": fan,
        "latency": idle_latency,
        "idle": idle,
    }
    p.serve(
        {name: measured(shape) for name, shape in shapes.items()}
        | {"import": lambda _: p.import_time("prefect.flows")},
        {
            "singles": "flows are called directly; a deployment starts a process for each run",
            "limits": p.NOT_MEASURED,
        },
    )
