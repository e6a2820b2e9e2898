"""A long backlog of one key: what a claim for other keys and other queues costs beside it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing

import detent
from detent import Queue
from detent.ids import uuid7
from detent.kernel.rows import NewExecution, WorkerRow
from detent.stores.open import open_store
from detent.stores.sql.dialect import columns_of
from detent.stores.store import Store

from . import workflows
from .peers.protocol import Figure

SHORT = 1_000
# Each doubling copies all that waits; the long backlog is a million on PostgreSQL.
DOUBLINGS = {"postgres": 10, "mysql": 7, "sqlite": 7}
SAMPLES = 40  # the fastest counts: other load on the machine only makes a claim slower
QUEUES = [Queue("limited", key_concurrency=1), Queue("other", key_concurrency=1), Queue("plain")]


def backlog(kind: str, url: str) -> list[Figure]:
    """A claim for another key, for another limited queue and for an unlimited queue beside a long backlog."""
    doublings = int(os.environ.get("BENCH_DOUBLINGS", DOUBLINGS[kind]))
    with detent.App(url, include=workflows.ALL, queues=QUEUES, migrate=True).open(worker=False) as app:
        store, worker = open_store(url), uuid7()
        store.register(_row(worker))
        store.declare_queues({queue.name: queue.limits for queue in QUEUES}, now=time.time_ns() // 1000)
        app.options(queue="limited", key="big").start_many(workflows.one_step, [(0,)] * SHORT)
        _claim(store, worker, "limited")  # from now on the backlog has to wait for its first execution
        figures = _figures(app, store, worker, SHORT)
        for number in range(doublings):
            _double(store, number)
        return figures + _figures(app, store, worker, SHORT * 2**doublings)


def _row(worker: str) -> WorkerRow:
    now = time.time_ns() // 1000
    return WorkerRow(
        id=worker,
        name="bench",
        pid=os.getpid(),
        queues="limited,other,plain",
        concurrency=100,
        lock_no=0,
        started_at=now,
        beat_at=now,
        lease_until=now + 3_600_000_000,
        jobs="[]",
    )


def _double(store: Store, number: int) -> None:
    """Copy the executions that wait.  Their runs are not copied: nothing claims them."""
    columns = columns_of(NewExecution)
    copied = ", ".join(f"run_id || '-{number}'" if name == "run_id" else name for name in columns)
    if store.dialect == "mysql":
        copied = copied.replace(f"run_id || '-{number}'", f"CONCAT(run_id, '-{number}')")
    with closing(store.driver.connect()) as connection:
        cursor = connection.cursor()
        cursor.execute(
            f"INSERT INTO detent_executions ({', '.join(columns)}) SELECT {copied} FROM detent_executions"
            " WHERE state = 'ready' AND queue = 'limited' AND queue_key = 'big'"
        )
        connection.commit()


def _claim(store: Store, worker: str, queue: str) -> list[str]:
    """The runs that one claim leases."""
    now, tokens = time.time_ns() // 1000, [uuid7() for _ in range(10)]
    names = [workflows.one_step.name]
    if queue == "plain":
        found = store.claim(worker, queues=[queue], jobs=names, tokens=tokens, now=now)
    else:
        found = store.claim_limited(
            worker, queues=[queue], running={}, jobs=names, tokens=tokens, now=now
        ).claimed
    return [claimed.run_id for claimed in found]


def _figures(app: detent.App, store: Store, worker: str, waiting: int) -> list[Figure]:
    figures = []

    def measure(title: str, queue: str, key: Callable[[int], str | None]) -> None:
        taken = []
        for number in range(SAMPLES):
            run = app.options(queue=queue, key=key(number)).start(workflows.one_step, 0)
            begun = time.perf_counter()
            claimed = _claim(store, worker, queue)
            taken.append((time.perf_counter() - begun) * 1000)
            assert claimed == [run.id]
        name = f"claim beside {waiting:,} waiting in one key: {title}"
        figures.append(Figure(name, min(taken), "ms", "lower", samples=sorted(taken)))

    measure("another key", "limited", lambda number: f"key-{waiting}-{number}")
    app.queues["limited"].set(fair=True)
    measure("another key, fair", "limited", lambda number: f"turn-{waiting}-{number}")
    app.queues["limited"].set(fair=False)
    measure("another limited queue", "other", lambda number: f"key-{waiting}-{number}")
    measure("a queue without limits", "plain", lambda number: None)
    return figures
