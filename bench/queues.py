"""Queues with limits: many keys that may each execute one at a time."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import detent
from detent import Queue
from detent.stores.open import open_store

from . import workflows
from .peers.protocol import CONCURRENCY, Figure, from_window, window

KEYS = 1_000
RUNS_PER_KEY = 10
BIG_BACKLOG = 20_000
QUEUE = "limited"


def limits(kind: str, url: str) -> list[Figure]:
    """10,000 one-step runs over 1,000 keys with key_concurrency=1, two worker processes."""
    return [
        _measured(url, "key_concurrency=1", fair=False, backlog=0),
        _measured(url, "key_concurrency=1, fair", fair=True, backlog=0),
        _measured(url, f"and one key with {BIG_BACKLOG:,} more", fair=False, backlog=BIG_BACKLOG),
    ]


def _measured(url: str, title: str, *, fair: bool, backlog: int) -> Figure:
    queue = Queue(QUEUE, key_concurrency=1, fair=fair)
    with detent.App(url, include=workflows.ALL, queues=[queue], migrate=True).open(worker=False) as app:
        app.queues[QUEUE].pause()
        app.queues[QUEUE].set(fair=fair)
        app.options(key="big").start_many(workflows.one_step, [(0,)] * backlog)
        for key in range(KEYS):
            app.options(key=f"key-{key}").start_many(workflows.one_step, [(0,)] * RUNS_PER_KEY)
        with ExitStack() as stack:
            for _ in range(2):
                stack.enter_context(_worker(url))
            with window() as seen:
                app.queues[QUEUE].resume()
                _wait(url)
            app.queues[QUEUE].pause()
    name = f"{KEYS * RUNS_PER_KEY:,} runs, {KEYS:,} keys, {title}"
    figure = Figure(name, KEYS * RUNS_PER_KEY / seen.seconds, "runs/s", "higher", units=KEYS * RUNS_PER_KEY)
    return from_window(figure, seen)


def _wait(url: str) -> None:
    """Return when all runs are over, apart from those of the big backlog."""
    with closing(open_store(url).driver.connect()) as connection:
        cursor = connection.cursor()
        while True:
            cursor.execute(
                "SELECT COUNT(*) FROM detent_executions"
                " WHERE state IN ('ready', 'executing') AND queue_key LIKE 'key-%'"
            )
            if not cursor.fetchone()[0]:
                return
            time.sleep(0.05)


@contextmanager
def _worker(url: str) -> Iterator[None]:
    code = (
        "import sys, detent, bench.workflows as w\n"
        f"queues = [detent.Queue({QUEUE!r}, key_concurrency=1)]\n"
        f"with detent.App(sys.argv[1], include=w.ALL, queues=queues, concurrency={CONCURRENCY}):\n"
        "    print('ready', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield
    finally:
        process.communicate()
