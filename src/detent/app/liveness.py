"""Which workers are alive, as another worker would see it, and whether one of them serves a run."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from ..kernel.rows import RunRow, WorkerRow
from ..stores.store import Store


def living(store: Store) -> list[tuple[WorkerRow, bool]]:
    """Every registered worker, and whether its process is alive."""
    rows = store.workers()
    if not rows:
        return []
    now = store.read_heartbeat(now=time.time_ns() // 1000).now
    liveness = store.driver.liveness()
    try:
        vacant = liveness.vacant(rows)
    finally:
        liveness.leave()
    return [(row, row.id not in vacant and row.lease_until >= now) for row in rows]


def alive(store: Store) -> list[WorkerRow]:
    """The workers that are alive."""
    return [row for row, lives in living(store) if lives]


def why_unserved(run: RunRow, workers: Sequence[WorkerRow]) -> str:
    """Why none of these live workers executes the run; empty if one of them may."""
    if not workers:
        return "no worker is alive"
    workers = [worker for worker in workers if worker.drain_at is None]
    if not workers:
        return "all live workers are drained"
    serving = [worker for worker in workers if run.queue in worker.queues.split(",")]
    if not serving:
        return f"no live worker takes from the queue {run.queue!r}"
    if run.pin is not None:
        serving = [worker for worker in serving if worker.version == run.pin]
        if not serving:
            return f"no live worker on the queue {run.queue!r} has the version {run.pin!r} of the code"
    # The nodes of a graph that was built at run time are jobs of their own: it names no definition.
    if run.kind != "graph" and not any(run.type in _jobs(worker) for worker in serving):
        return f"no live worker on the queue {run.queue!r} includes {run.type!r}"
    return ""


def _jobs(worker: WorkerRow) -> list[str]:
    return msgspec.json.decode(worker.jobs, type=list[str])
