"""The shapes of work that are measured.  Each takes an empty database and returns its figures."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import detent

from . import limits, workflows
from .databases import server_cpu

CONCURRENCY = 200
RUNS, STEPS = 500, 5
MANY = 5000
WIDTH = 1000
SAMPLES = 60


@dataclass
class Figure:
    """One measured value; `better` is `higher` or `lower`."""

    shape: str
    value: float
    unit: str
    better: str
    cpu_ms: float | None = None
    system: str = "detent"
    samples: list[float] = field(default_factory=list)


Shape = Callable[[str, str], list[Figure]]


def many_steps(kind: str, url: str) -> list[Figure]:
    """500 workflows of 5 steps, as coroutines."""
    return _throughput(kind, url, workflows.five_async, RUNS, "500 x 5 steps", "steps/s", STEPS)


def many_steps_in_threads(kind: str, url: str) -> list[Figure]:
    """The same as plain functions in threads."""
    return _throughput(kind, url, workflows.five_sync, RUNS, "500 x 5 steps (def)", "steps/s", STEPS)


def many_runs(kind: str, url: str) -> list[Figure]:
    """5,000 runs of one step, enqueued at once, one worker."""
    return _throughput(kind, url, workflows.one_step, MANY, "5,000 one-step runs", "runs/s", 1)


def _throughput(
    kind: str, url: str, workflow: Any, runs: int, shape: str, unit: str, per_run: int
) -> list[Figure]:
    async def main() -> tuple[float, float]:
        async with detent.AsyncApp(url, include=workflows.ALL, migrate=True, concurrency=CONCURRENCY) as app:
            await (await app.start(workflow, 0)).result()
            cpu = time.process_time() + server_cpu(kind)
            begun = time.perf_counter()
            started = await app.start_many(workflow, [(number,) for number in range(runs)])
            await asyncio.gather(*(run.result() for run in started))
            taken = time.perf_counter() - begun
            return taken, time.process_time() + server_cpu(kind) - cpu

    taken, cpu = asyncio.run(main())
    units = runs * per_run
    return [Figure(shape, units / taken, unit, "higher", cpu_ms=cpu * 1000 / units)]


def sequence(kind: str, url: str) -> list[Figure]:
    """One workflow, 100 steps one after the other, beside the server's own commit rate."""
    rate = limits.one_row_commits(url)
    with detent.App(url, include=workflows.ALL, migrate=True) as app:
        app.start(workflows.hundred_sync, 10).result()
        begun = time.perf_counter()
        app.start(workflows.hundred_sync, 100).result()
        taken = time.perf_counter() - begun
    shape = "1 x 100 steps"
    return [
        Figure(shape, 100 / taken, "steps/s", "higher"),
        Figure(shape, rate, "commits/s", "higher", system="limit:one-row-commits"),
        Figure("batched insert", limits.batched_rows(url), "rows/s", "higher", system="limit:batched-rows"),
    ]


def fan_out(kind: str, url: str) -> list[Figure]:
    """One workflow gives 1,000 steps away and waits for all of them."""
    with detent.App(url, include=workflows.ALL, migrate=True, concurrency=CONCURRENCY) as app:
        app.start(workflows.fan_out, 10).result()
        begun = time.perf_counter()
        app.start(workflows.fan_out, WIDTH).result()
        taken = time.perf_counter() - begun
    return [Figure("fan-out 1,000 + join", taken, "s", "lower")]


def idle_latency(kind: str, url: str) -> list[Figure]:
    """From start() to the first line of the step, when nothing else goes on."""
    with detent.App(url, include=workflows.ALL, migrate=True) as app:
        same = _latencies(app)
    other = []
    with _worker_process(url), detent.App(url, include=workflows.ALL).open(worker=False) as app:
        app.start(workflows.latency, time.time()).result()
        other = _latencies(app)
    return [
        Figure("idle start, same process", statistics.median(same), "ms", "lower", samples=sorted(same)),
        Figure("idle start, other process", statistics.median(other), "ms", "lower", samples=sorted(other)),
    ]


def _latencies(app: detent.App) -> list[float]:
    found = []
    for _ in range(SAMPLES):
        time.sleep(0.01)
        found.append(app.start(workflows.latency, time.time()).result() * 1000)
    return found


class _worker_process:  # noqa: N801 - used like a function
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
    seconds = 15.0
    with detent.App(url, include=workflows.ALL, migrate=True) as app:
        counted = _server_count(kind, app)
        time.sleep(4)
        asked, cpu, begun = counted(), time.process_time(), time.perf_counter()
        time.sleep(seconds)
        taken = time.perf_counter() - begun
        used = time.process_time() - cpu
        asked = counted() - asked - 1  # asking for the count is one of them
    figures = [Figure("idle worker, CPU", 100 * used / taken, "%", "lower")]
    if kind != "sqlite":  # it has no server that could count
        figures.append(Figure("idle worker, queries", asked / taken, "1/s", "lower"))
    return figures


def _server_count(kind: str, app: detent.App) -> Callable[[], int]:
    """How many statements (MySQL) or transactions (PostgreSQL) the server has seen so far.

    Asked on one connection that stays open: connecting is itself counted.  What the store
    sends is not all: listening and showing that one lives have connections of their own.
    """
    if kind == "sqlite":
        return lambda: 0
    cursor = app.engine.store.driver.connect().cursor()
    statement = {
        "postgres": "SELECT xact_commit + xact_rollback FROM pg_stat_database"
        " WHERE datname = current_database()",
        "mysql": "SHOW GLOBAL STATUS LIKE 'Questions'",
    }[kind]

    def count() -> int:
        cursor.execute(statement)
        return int(cursor.fetchone()[-1])

    return count


def import_time(kind: str, url: str) -> list[Figure]:
    """How long `import detent` takes, beside Python's own start."""
    times = []
    for _ in range(5):
        code = "import time; t = time.perf_counter(); import detent; print((time.perf_counter() - t) * 1000)"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
        )
        times.append(float(done.stdout))
    return [Figure("import detent", min(times), "ms", "lower", samples=sorted(times))]


SHAPES: dict[str, Shape] = {
    "steps": many_steps,
    "threads": many_steps_in_threads,
    "sequence": sequence,
    "runs": many_runs,
    "fan-out": fan_out,
    "latency": idle_latency,
    "idle": idle_worker,
    "import": import_time,
}
ONCE = {"import"}  # does not depend on the database
