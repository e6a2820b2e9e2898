"""Workers: who is alive, what each of them executes now."""

from __future__ import annotations

import msgspec

from ...app.listing import find_runs
from ...app.liveness import living
from ...clock import from_micros
from ...kernel.rows import ExecutionState, WorkerRow
from .source import Document, Source

NOTICED = 3_000_000  # microseconds within which a worker learns that it is drained: two heartbeats
LOOKED_AT = 200  # runs whose executions are shown


def worker_documents(source: Source, *, executions: bool = False) -> Document:
    """Every registered worker, the living ones first."""
    engine = source.engine
    _ = engine.services
    busy = engine.store.executing()
    now = source.now()
    found = [
        {
            "id": row.id,
            "name": row.name,
            "pid": row.pid,
            "version": row.version,
            "queues": row.queues.split(","),
            "concurrency": row.concurrency,
            "executing": busy.get(row.id, 0),
            "started_at": from_micros(row.started_at),
            "heartbeat_seconds": max(0.0, (now - from_micros(row.beat_at)).total_seconds()),
            "alive": lives,
            "drain_at": None if row.drain_at is None else from_micros(row.drain_at),
            "state": _state(row, lives, busy.get(row.id, 0), engine.clock.now()),
            "jobs": msgspec.json.decode(row.jobs, type=list[str]),
        }
        for row, lives in living(engine.store)
    ]
    found.sort(key=lambda worker: (not worker["alive"], worker["started_at"], worker["id"]))
    document: Document = {"workers": found}
    if executions:
        document["executions"] = _executing(source)
    return document


def _state(row: WorkerRow, lives: bool, executing: int, now: int) -> str:
    """`alive`, `draining`, `drained` or `dead`."""
    if not lives:
        return "dead"
    if row.drain_at is None:
        return "alive"
    # Until the second heartbeat is over it may still claim.
    return "draining" if executing or now - row.drain_at < NOTICED else "drained"


def _executing(source: Source) -> dict[str, list[Document]]:
    """By worker: what it executes now, longest first."""
    rows = find_runs(source.engine, "performing", {"limit": LOOKED_AT})
    found: dict[str, list[Document]] = {}
    if not rows:
        return found
    types = {row.id: row.type for row in rows}
    items = source.engine.store.executions_of([row.id for row in rows], states=[ExecutionState.EXECUTING])
    for item in sorted(items, key=lambda item: item.started_at or 0):
        found.setdefault(item.worker or "", []).append(
            {
                "run": item.run_id,
                "type": types[item.run_id],
                "node": item.node,
                "name": item.job,
                "attempt": item.attempt,
                "started_at": None if item.started_at is None else from_micros(item.started_at),
            }
        )
    return found
