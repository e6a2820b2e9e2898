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
from .peers.protocol import CONCURRENCY, KEYS, RUNS_PER_KEY, TITLES, Figure, from_window, window

BIG_BACKLOG = 20_000
FEW_KEYS, RUNS_PER_FEW = 10, 100  # how fast one execution of a key follows another
QUEUE = "limited"
# In the order of an index, so that the wait costs the server next to nothing.
LEFT = """
SELECT 1 FROM detent_executions
 WHERE {waiting} AND queue_key >= 'key-' AND queue_key < 'key.' ORDER BY queue_key LIMIT 1"""
READY = {"mysql": f"keyed_queue = '{QUEUE}'"}


def limits(kind: str, url: str) -> list[Figure]:
    """10,000 one-step runs over 1,000 keys with key_concurrency=1, two worker processes."""
    title, most = TITLES["limits"][0], (KEYS, RUNS_PER_KEY)
    few = f"{FEW_KEYS * RUNS_PER_FEW:,} runs, {FEW_KEYS} keys, one at a time per key"
    return [
        _measured(url, title, most),
        _measured(url, f"{title}, fair", most, fair=True),
        _measured(url, f"{title}, and {BIG_BACKLOG:,} runs of another key", most, backlog=BIG_BACKLOG),
        _measured(url, few, (FEW_KEYS, RUNS_PER_FEW)),
    ]


def _measured(
    url: str, title: str, amount: tuple[int, int], *, fair: bool = False, backlog: int = 0
) -> Figure:
    keys, each = amount
    queue = Queue(QUEUE, key_concurrency=1, fair=fair)
    with detent.App(url, include=workflows.ALL, queues=[queue], migrate=True).open(worker=False) as app:
        app.queues[QUEUE].pause()
        app.options(key="big").start_many(workflows.one_step, [(0,)] * backlog)
        for key in range(keys):
            app.options(key=f"key-{key}").start_many(workflows.one_step, [(0,)] * each)
        with ExitStack() as stack:
            for _ in range(2):
                stack.enter_context(_worker(url, fair=fair))
            applied = app.queues[QUEUE].limits  # the workers declare the same
            assert (applied["key_concurrency"], applied["fair"]) == (1, fair)
            with window() as seen:
                app.queues[QUEUE].resume()
                _wait(url)
            app.queues[QUEUE].pause()
    figure = Figure(title, keys * each / seen.seconds, "runs/s", "higher", units=keys * each)
    return from_window(figure, seen)


def _wait(url: str) -> None:
    """Return when all runs are over, apart from those of the big backlog."""
    store = open_store(url)
    conditions = [READY.get(store.dialect, f"state = 'ready' AND queue = '{QUEUE}'"), "state = 'executing'"]
    with closing(store.driver.connect()) as connection:
        cursor = connection.cursor()
        while conditions:
            cursor.execute(LEFT.format(waiting=conditions[0]))
            if cursor.fetchone():
                time.sleep(0.02)
            else:
                conditions.pop(0)


@contextmanager
def _worker(url: str, *, fair: bool) -> Iterator[None]:
    code = (
        "import sys, detent, bench.workflows as w\n"
        f"queues = [detent.Queue({QUEUE!r}, key_concurrency=1, fair={fair})]\n"
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
