"""Sleepers by the thousand, and a worker that is killed with hundreds of runs in its hands."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import detent
from detent.stores.open import open_store

from . import workflows
from .peers.protocol import CONCURRENCY, Figure, from_window, window

SLEEPERS = 10_000
IN_FLIGHT = 500
NAP = 20.0  # seconds in which all sleepers must have gone to sleep; it is checked that they have


def sleepers(kind: str, url: str) -> list[Figure]:
    """10,000 runs that sleep until the same moment: what they hold meanwhile, and how fast all have woken."""
    return asyncio.run(_sleepers(url))


async def _sleepers(url: str) -> list[Figure]:
    async with detent.AsyncApp(url, include=workflows.ALL, migrate=True, concurrency=CONCURRENCY) as app:
        await (await app.start(workflows.sleeper, datetime.now(UTC))).result()
        before = _resident()
        due = datetime.now(UTC) + timedelta(seconds=NAP)
        begun = time.perf_counter()
        started = await app.start_many(workflows.sleeper, [(due,)] * SLEEPERS)
        while (found := await asyncio.to_thread(_asleep, url)) < SLEEPERS:
            if datetime.now(UTC) >= due:
                raise RuntimeError(f"{found} of {SLEEPERS} were asleep within {NAP} s")
            await asyncio.sleep(0.1)
        asleep = time.perf_counter() - begun
        held = _resident() - before
        # Nobody waits for a result yet: that would be memory of the waiting, not of the sleeping.
        await asyncio.sleep((due - datetime.now(UTC)).total_seconds())
        with window() as seen:
            await asyncio.gather(*(run.result() for run in started))
    shape = "10,000 sleepers"
    woken = Figure(f"{shape}: woken", SLEEPERS / seen.seconds, "runs/s", "higher", units=SLEEPERS)
    return [
        from_window(woken, seen),
        Figure(f"{shape}: gone to sleep", SLEEPERS / asleep, "runs/s", "higher"),
        Figure(f"{shape}: memory while asleep", max(0.0, held) / 1024, "MiB", "lower"),
    ]


def _asleep(url: str) -> int:
    """How many runs sleep, on a connection of our own."""
    connection = open_store(url).driver.connect()
    try:
        cursor = connection.cursor()
        cursor.execute("SELECT count(*) FROM detent_executions WHERE state = 'timer'")
        return int(cursor.fetchone()[0])
    finally:
        connection.close()


def recovery(kind: str, url: str) -> list[Figure]:
    """kill -9 to a worker with 500 runs in flight: how long until another has finished all of them."""
    starter = detent.App(url, include=workflows.ALL, migrate=True).open()
    with closing(starter):  # entering the app itself would begin to work
        victim = _victim(url)
        runs = starter.start_many(workflows.held, [(number,) for number in range(IN_FLIGHT)])
        assert victim.stdout is not None
        for _ in range(IN_FLIGHT):  # one line for each that has come to its second step
            victim.stdout.readline()
    with detent.App(url, include=workflows.ALL, concurrency=IN_FLIGHT) as app:
        time.sleep(1)
        with window() as seen:
            victim.kill()
            victim.wait()
            for run in runs:
                app.run(run.id).result()
    figure = Figure("recovery: 500 in flight", seen.seconds, "s", "lower", units=IN_FLIGHT)
    return [from_window(figure, seen)]


def _victim(url: str) -> subprocess.Popen[str]:
    """A worker whose runs stop in their second step and say so."""
    code = (
        "import sys, time, detent, bench.workflows as w\n"
        "w.VICTIM.append(True)\n"
        f"with detent.App(sys.argv[1], include=w.ALL, concurrency={IN_FLIGHT}): time.sleep(3600)"
    )
    return subprocess.Popen([sys.executable, "-c", code, url], stdout=subprocess.PIPE, text=True)


def _resident() -> int:
    """KiB that this process holds now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0
