"""What a second worker process adds."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import detent
from detent.stores.open import open_store

from . import workflows
from .peers.protocol import CONCURRENCY, Figure, from_window, window

RUNS = 3_000
HEAVY = 600


def scaling(kind: str, url: str) -> list[Figure]:
    """Light runs and heavy ones from a process that does not work itself, for one worker process and two."""
    with detent.App(url, include=workflows.ALL, migrate=True).open(worker=False) as app:
        return [
            _measured(app, url, name, workflow, runs, workers)
            for name, workflow, runs in (
                ("one-step runs", workflows.one_step, RUNS),
                ("runs of 3 ms", workflows.heavy, HEAVY),
            )
            for workers in (1, 2)
        ]


def _measured(app: detent.App, url: str, name: str, workflow: Any, runs: int, workers: int) -> Figure:
    with ExitStack() as stack:
        for _ in range(workers):
            stack.enter_context(_worker(url))
        _finished(app, url, workflow, 50)
        with window() as seen:
            _finished(app, url, workflow, runs)
    title = f"{name}, {workers} worker process{'es' if workers > 1 else ''}"
    return from_window(Figure(title, runs / seen.seconds, "runs/s", "higher", units=runs), seen)


def _finished(app: detent.App, url: str, workflow: Any, runs: int) -> None:
    """Start so many, and return when all are over."""
    app.start_many(workflow, [(number,) for number in range(runs)])
    connection = open_store(url).driver.connect()
    with closing(connection):
        cursor = connection.cursor()
        while True:  # to wait for each of them would be more work than they are
            cursor.execute("SELECT count(*) FROM detent_runs WHERE state = 'ready'")
            if not cursor.fetchone()[0]:
                return
            time.sleep(0.02)


@contextmanager
def _worker(url: str) -> Iterator[None]:
    code = (
        "import sys, detent, bench.workflows as w\n"
        f"with detent.App(sys.argv[1], include=w.ALL, concurrency={CONCURRENCY}):\n"
        "    print('ready', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.5)
    try:
        yield
    finally:
        process.communicate()
