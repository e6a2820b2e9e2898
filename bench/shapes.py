"""The shapes of work that are measured.  Each takes an empty database and returns its figures."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import detent

from . import limits, workflows
from .peers import protocol
from .peers.protocol import (
    CONCURRENCY,
    MANY,
    RUNS,
    SAMPLES,
    SEQUENCE,
    SINGLES,
    STEPS,
    WIDTH,
    Figure,
    from_window,
    latencies,
    rate,
    taken,
    window,
)

Shape = Callable[[str, str], list[Figure]]


def many_steps(kind: str, url: str) -> list[Figure]:
    """500 workflows of 5 steps, as coroutines."""
    return [rate("steps", RUNS * STEPS, asyncio.run(_many(url, workflows.five_async, RUNS)))]


def many_steps_in_threads(kind: str, url: str) -> list[Figure]:
    """The same as plain functions in threads."""
    seen = asyncio.run(_many(url, workflows.five_sync, RUNS))
    units = RUNS * STEPS
    figure = Figure("500 x 5 steps (def)", units / seen.seconds, "steps/s", "higher", units=units)
    return [from_window(figure, seen)]


def many_runs(kind: str, url: str) -> list[Figure]:
    """5,000 runs of one step, enqueued at once, one worker."""
    return [rate("runs", MANY, asyncio.run(_many(url, workflows.one_step, MANY)))]


async def _many(url: str, workflow: Any, runs: int) -> protocol.Window:
    async with detent.AsyncApp(url, include=workflows.ALL, migrate=True, concurrency=CONCURRENCY) as app:
        await (await app.start(workflow, 0)).result()
        with window() as seen:
            started = await app.start_many(workflow, [(number,) for number in range(runs)])
            await app.results(started)
        return seen


def single_runs(kind: str, url: str) -> list[Figure]:
    """Runs of one step, each durable before the same caller starts the next."""

    async def main() -> protocol.Window:
        async with detent.AsyncApp(url, include=workflows.ALL, migrate=True, concurrency=CONCURRENCY) as app:
            await (await app.start(workflows.one_step, 0)).result()
            with window() as seen:
                started = [await app.start(workflows.one_step, number) for number in range(SINGLES)]
                await app.results(started)
            return seen

    return [rate("singles", SINGLES, asyncio.run(main()))]


def sequence(kind: str, url: str) -> list[Figure]:
    """One workflow, 100 steps one after the other, beside the server's own commit rate."""
    commits = limits.one_row_commits(url)
    with detent.App(url, include=workflows.ALL, migrate=True) as app:
        app.start(workflows.hundred_sync, 10).result()
        with window() as seen:
            app.start(workflows.hundred_sync, SEQUENCE).result()
    figure = rate("sequence", SEQUENCE, seen)
    rows = limits.batched_rows(url)
    return [
        figure,
        Figure(figure.shape, commits, "commits/s", "higher", system="limit:one-row-commits"),
        Figure("batched insert", rows, "rows/s", "higher", system="limit:batched-rows"),
    ]


def fan_out(kind: str, url: str) -> list[Figure]:
    """One workflow gives 1,000 steps away and waits for all of them."""
    with detent.App(url, include=workflows.ALL, migrate=True, concurrency=CONCURRENCY) as app:
        app.start(workflows.fan_out, 10).result()
        with window() as seen:
            app.start(workflows.fan_out, WIDTH).result()
    return [taken("fan-out", WIDTH, seen)]


def idle_latency(kind: str, url: str) -> list[Figure]:
    """From start() to the first line of the step, when nothing else goes on."""
    with detent.App(url, include=workflows.ALL, migrate=True) as app:
        same = _latencies(app)
    with worker_process(url), detent.App(url, include=workflows.ALL).open(worker=False) as app:
        app.start(workflows.latency, time.time()).result()
        other = _latencies(app)
    return [latencies("latency-same", same), latencies("latency-other", other)]


def _latencies(app: detent.App) -> list[float]:
    found = []
    for _ in range(SAMPLES):
        time.sleep(0.01)
        found.append(app.start(workflows.latency, time.time()).result() * 1000)
    return found


class worker_process:  # noqa: N801 - used like a function
    """A worker in another process, until the end of the block."""

    def __init__(self, url: str) -> None:
        code = (
            "import sys, detent, bench.workflows as w\n"
            "with detent.App(sys.argv[1], include=w.ALL): print('ready', flush=True); sys.stdin.read()"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> subprocess.Popen[str]:
        assert self._process.stdout is not None
        self._process.stdout.readline()
        return self._process

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


def idle_worker(kind: str, url: str) -> list[Figure]:
    """What a worker costs that has nothing to do, as its server counts it."""
    with detent.App(url, include=workflows.ALL, migrate=True):
        return protocol.idle()


def import_time(kind: str, url: str) -> list[Figure]:
    """How long it takes to load what a program with an app needs, beside Python's own start."""
    return protocol.import_time(
        "detent.app.app, detent.definitions.functions"
    )  # what `import detent` loads lazily


SHAPES: dict[str, Shape] = {
    "steps": many_steps,
    "threads": many_steps_in_threads,
    "sequence": sequence,
    "runs": many_runs,
    "singles": single_runs,
    "fan-out": fan_out,
    "latency": idle_latency,
    "idle": idle_worker,
    "import": import_time,
}
