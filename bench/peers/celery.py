"""Celery with Redis as its broker and its result store: a prefork worker with a process for each core.

Redis keeps what it is given in memory and writes it out from time to time (its default), so what was enqueued
or finished in the last seconds is lost when it crashes: the others here do not lose it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack

from celery import Celery, chain, chord, group

from bench.peers import protocol as p
from bench.peers.children import free_port, server

NOTE = "not durable at once: Redis with its defaults"
URL = os.environ.get("BENCH_REDIS", "redis://127.0.0.1:1/0")
app = Celery("bench", broker=URL, backend=URL)
app.conf.worker_prefetch_multiplier = 64  # far more than its default of 4, as its tasks are short
app.conf.worker_hijack_root_logger = False


@app.task(name="noop")
def noop(number: object = 0) -> int:
    return 1


@app.task(name="stamp")
def stamp(sent: float) -> float:
    return (time.time() - sent) * 1000


def measured(work: Callable[[], list[p.Figure]]) -> Callable[[str], list[p.Figure]]:
    """With a private Redis and one worker beside us."""

    def main(url: str) -> list[p.Figure]:
        if shutil.which("redis-server") is None:
            raise p.Missing("needs redis-server (Debian: redis-server), which is not here")
        port = free_port()
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            argv = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", folder]
            p.is_a_server(stack.enter_context(server(argv, port)))
            address = f"redis://127.0.0.1:{port}/0"
            app.conf.broker_url = app.conf.result_backend = address
            worker = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "bench.peers.celery", "worker", "-l", "ERROR"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=os.environ | {"BENCH_REDIS": address},
            )
            stack.callback(worker.kill)
            noop.delay(0).get(timeout=60)
            return work()

    return main


def runs() -> list[p.Figure]:
    with p.window() as seen:
        group(noop.s(number) for number in range(p.MANY)).apply_async().get()
    return [p.rate("runs", p.MANY, seen, f"a group; {NOTE}")]


def singles() -> list[p.Figure]:
    with p.window() as seen:
        started = [noop.delay(number) for number in range(p.SINGLES)]
        for result in started:
            result.get()
    return [p.rate("singles", p.SINGLES, seen, NOTE)]


def steps() -> list[p.Figure]:
    with p.window() as seen:
        started = [chain(*(noop.s() for _ in range(p.STEPS))).apply_async((0,)) for _ in range(p.RUNS)]
        for result in started:
            result.get()
    return [p.rate("steps", p.RUNS * p.STEPS, seen, f"chains; {NOTE}")]


def sequence() -> list[p.Figure]:
    with p.window() as seen:
        chain(*(noop.s() for _ in range(p.SEQUENCE))).apply_async((0,)).get()
    return [p.rate("sequence", p.SEQUENCE, seen, f"a chain; {NOTE}")]


def fan() -> list[p.Figure]:
    with p.window() as seen:
        chord((noop.s(number) for number in range(p.WIDTH)), noop.s()).apply_async().get()
    return [p.taken("fan-out", p.WIDTH, seen, f"a chord; {NOTE}")]


def idle_latency() -> list[p.Figure]:
    found = []
    for _ in range(p.SAMPLES):
        time.sleep(0.01)
        found.append(stamp.delay(time.time()).get())
    title, unit, better = p.TITLES["latency-same"]
    absent = p.Figure(title, None, unit, better, note="its workers are processes of their own")
    return [absent, p.latencies("latency-other", found, NOTE)]


if __name__ == "__main__":
    shapes = {
        "steps": steps,
        "sequence": sequence,
        "runs": runs,
        "singles": singles,
        "fan-out": fan,
        "latency": idle_latency,
        "idle": p.idle,
    }
    p.serve(
        {name: measured(shape) for name, shape in shapes.items()}
        | {"import": lambda _: p.import_time("celery.app.base")},  # what the lazy front door leads to
        {"limits": "tasks have no limit by key"},
    )
