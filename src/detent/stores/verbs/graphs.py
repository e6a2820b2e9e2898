"""Stored graphs: a run's own, or under its signature the one that the runs of a class share."""

from __future__ import annotations

from collections.abc import Mapping

from ...errors import InvalidState
from ...kernel.advance import RunGraph
from ...kernel.rows import GraphPart, RunState
from ..batch.locks import lock
from ..driver import Tx, write
from .cancel import note
from .heal import past
from .nodes import fresh, latest_of, renew

PART = 512 * 1024  # characters: a graph of 100,000 nodes fits no server's largest packet


def parts(id: str, text: str) -> list[GraphPart]:
    """The rows that hold a graph."""
    return [
        GraphPart(run_id=id, part=number, body=text[start : start + PART])
        for number, start in enumerate(range(0, len(text), PART))
    ]


def read(tx: Tx, id: str) -> str | None:
    rows = tx.query(tx.sql.graphs.graph, id=id)
    return "".join(row[0] for row in rows) if rows else None


def save(tx: Tx, texts: Mapping[str, str]) -> None:
    write(tx, tx.sql.graphs.insert_graphs, [part for id in sorted(texts) for part in parts(id, texts[id])])


def freeze(tx: Tx, run_id: str, text: str, signature: str, now: int) -> None:
    """From now on the run goes by this graph, whatever becomes of its class."""
    run = lock(tx, run_id)
    if run.frozen_at is not None or RunState(run.state).final:
        state = run.state if run.frozen_at is None else "frozen already"
        raise InvalidState("freeze", run_id, state)
    save(tx, {run_id: text})
    tx.run(tx.sql.graphs.set_frozen, id=run_id, frozen_at=now)
    if run.signature != signature:
        tx.run(tx.sql.graphs.set_graph, id=run_id, signature=signature, irregular=1)
    note(tx, run_id, "frozen", {"graph": signature}, now)


def replace(tx: Tx, run_id: str, text: str, *, run_graph: RunGraph, now: int) -> None:
    """Another graph for a paused run; readiness is recounted when it is resumed."""
    signature = run_graph.graph.signature
    run = lock(tx, run_id)
    if run.state != RunState.PAUSED:
        raise InvalidState("import a graph into", run_id, run.state, "pause it first")
    former = read(tx, run_id)
    if former is not None and run.signature is not None:
        save(tx, {run.signature: former})  # what was settled under it is verified by it
    tx.run(tx.sql.graphs.delete_graph, id=run_id)
    save(tx, {run_id: text})
    tx.run(tx.sql.graphs.set_frozen, id=run_id, frozen_at=now)
    tx.run(tx.sql.graphs.set_graph, id=run_id, signature=signature, irregular=1)
    scheduled = {node for node, latest in past(tx, run_id).items() if latest.scheduled}
    waiting = [fresh(row, now) for node, row in latest_of(tx, run_id).items() if node in scheduled]
    renew(tx, run_id, waiting, run_graph, now)
    rows = [
        {
            "run_id": run_id,
            "node": row.node,
            "attempt": row.attempt - 1,  # it stays the same attempt
            "job": row.job,
            "queue": row.queue,
            "precedence": row.precedence,
            "input": row.input,
            "queue_key": row.queue_key,
        }
        for row in waiting
    ]
    write(tx, tx.sql.graphs.renew, rows)
    note(tx, run_id, "graph imported", {"graph": signature, "before": run.signature}, now)
