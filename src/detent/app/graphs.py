"""Runs with graphs, from outside: their nodes with state, drawing, freezing, repairing, verifying."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from ..clock import from_micros
from ..errors import GraphInvalid, InvalidState, MissingJob, UnknownDefinition
from ..execution.failures import decode_error
from ..execution.new_runs import read_graph
from ..kernel.ancestry import Broken, verify
from ..kernel.decide import DECIDER
from ..kernel.drawing import Drawn, Seen, folded
from ..kernel.external_changes import Freeze, ReplaceGraph
from ..kernel.graph import JOB, SPREAD, Document, Graph, json_text, structure_text, thaw
from ..kernel.rows import MAIN, Error, ExecutionRow, ExecutionState, RunRow
from .engine import Engine
from .values import Reader

PENDING = "pending"  # not reached yet


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node of a run's graph and its state.

    for node in run.nodes():
        print(node.name, node.state, node.attempts)
    """

    id: str
    name: str
    kind: str  # job, run, value, when, spread, result
    job: str | None
    depends_on: tuple[str, ...]  # names
    state: str
    outcome: str | None
    attempts: int
    scheduled_for: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    stored_result: str | None  # as text
    error: Error | None  # its class, message and traceback
    ancestry_hash: str | None
    reader: Reader = field(repr=False, compare=False)
    handles: str | None = None  # the name of the node whose failure it is run for

    @property
    def result(self) -> Any:
        """The decoded result."""
        return self.reader.result(self.job if self.kind == JOB else None, self.stored_result)


def graph_of(engine: Engine, row: RunRow) -> Graph:
    """The graph of a run: the stored one, else the code's, else the one that was kept of its class."""
    if row.kind == "function":
        raise InvalidState(
            "look at the graph of", row.id, "a durable function", "run.executions() lists its steps"
        )
    if row.kind == DECIDER:
        raise InvalidState(
            "look at the graph of",
            row.id,
            "an instance of a decider",
            "app.deciders.machine() draws its states",
        )
    try:
        return engine.services.run_graphs.of_row(row).graph
    except UnknownDefinition:
        text = engine.store.graph(row.signature or "")
        if text is None:
            raise
        return thaw(text, row.signature, f"the graph of {row.type}")


def nodes_of(engine: Engine, row: RunRow) -> list[NodeState]:
    """Graph and state, merged; nodes that the graph no longer has come last."""
    rows, reader = engine.store.executions(row.id), Reader(engine)
    if row.kind == "function":
        return [_state(reader, MAIN, MAIN, JOB, row.type, (), [item for item in rows if item.node == MAIN])]
    attempts: dict[str, list[ExecutionRow]] = {}
    for item in rows:
        attempts.setdefault(item.node, []).append(item)
    if row.kind == DECIDER:  # effects, timers, inbox: they do not wait for each other
        return [_state(reader, id, id, JOB, tried[0].job, (), tried) for id, tried in attempts.items()]
    graph = graph_of(engine, row)
    items: dict[str, list[str]] = {}
    for id in attempts:
        spread = graph.spread_of(id)
        if spread is not None:
            items.setdefault(spread, []).append(id)
    found = []
    for id, node in graph.nodes.items():
        needs = tuple(graph.nodes[needed].name for needed in node.depends_on)
        job = node.job or (f"run {node.run}" if node.run else None)
        state = _state(reader, id, node.name, node.kind, job, needs, attempts.pop(id, []))
        if node.branch is not None and graph.nodes[node.branch[0]].on_error:
            state = replace(state, handles=graph.nodes[node.branch[0]].name)
        found.append(state)
        for item_id in sorted(items.get(id, ()), key=lambda one: int(one[len(id) + 1 : -1])):
            found.append(
                _state(reader, item_id, graph.shown(item_id), JOB, node.job, needs, attempts.pop(item_id))
            )
    found += [_state(reader, id, id, JOB, None, (), gone) for id, gone in attempts.items()]
    return found


def _state(
    reader: Reader,
    id: str,
    name: str,
    kind: str,
    job: str | None,
    needs: tuple[str, ...],
    rows: Sequence[ExecutionRow],
) -> NodeState:
    latest = max(rows, key=lambda row: row.attempt) if rows else None
    if latest is None:
        return NodeState(
            id, name, kind, job, needs, PENDING, None, 0, None, None, None, None, None, None, reader
        )
    return NodeState(
        id=id,
        name=name,
        kind=kind,
        job=job,
        depends_on=needs,
        state=ExecutionState(latest.state).public,
        outcome=latest.outcome,
        attempts=len(rows),
        scheduled_for=_moment(latest.scheduled_for),
        started_at=_moment(latest.started_at),
        finished_at=_moment(latest.finished_at),
        stored_result=latest.result,
        error=None if latest.error is None else decode_error(latest.error),
        ancestry_hash=latest.ancestry_hash,
        reader=reader,
    )


def drawn_of(engine: Engine, row: RunRow, *, fold: bool = True) -> list[Drawn]:
    """The run's nodes, ready to be drawn."""
    nodes = nodes_of(engine, row)
    ids = {node.name: node.id for node in nodes}
    spreads = {node.id for node in nodes if node.kind == SPREAD}
    seen = []
    for node in nodes:
        base = node.id.rpartition("[")[0]
        needs = tuple(ids[name] for name in node.depends_on if name in ids)
        items = [one.id for one in nodes if one.id.startswith(f"{node.id}[")] if node.id in spreads else []
        # Items stand between what the spread needs and the spread, which collects them.
        needs = tuple(items) if items else needs
        kind = "item" if base in spreads else node.kind
        seen.append(Seen(node.id, node.name, kind, node.state, needs, ids.get(node.handles or "")))
    return folded(seen, fold=fold)


def export_graph(engine: Engine, row: RunRow) -> str:
    """The graph as JSON, to look at and to edit."""
    graph = graph_of(engine, row)
    document = graph.document
    frozen = document.frozen_at
    if frozen is None and row.frozen_at is not None:
        frozen = from_micros(row.frozen_at).astimezone(UTC)
    exported = Document(
        version=document.version,
        name=document.name,
        nodes=document.nodes,
        frozen_at=frozen,
        signature=graph.signature,
    )
    return msgspec.json.format(json_text(exported), indent=2)


def import_graph(engine: Engine, row: RunRow, text: str) -> None:
    """Give a paused run another graph: validated, its jobs known, signed anew, and noted in its history."""
    what = f"the graph for run {row.id}"
    if row.kind in ("function", DECIDER):
        raise InvalidState("import a graph into", row.id, f"a {row.kind}, which has no graph")
    now = engine.clock.now()
    body, signature = read_graph(text, what, now)
    graph = thaw(body, signature, what)
    for id, node in graph.nodes.items():
        if row.kind == "class":
            plan = engine.registry.plan(row.type)
            if id not in plan.nodes:
                raise GraphInvalid(what, f"{row.type} has no method {id!r}")
        elif node.job is not None and engine.registry.find(node.job) is None:
            moment = from_micros(row.frozen_at or now).isoformat()
            raise MissingJob(row.id, node.job, f"{node.name} ({id})", moment)
    run_graph = engine.services.run_graphs.by(graph, row)
    engine._change(ReplaceGraph(row.id, body, run_graph))


def freeze(engine: Engine, row: RunRow) -> None:
    """Let a class's run keep the graph of today, whatever becomes of the class."""
    if row.kind != "class":
        raise InvalidState(
            "freeze", row.id, "not of a class", "graphs built at run time are frozen from the start"
        )
    graph = engine.registry.plan(row.type).graph
    text = structure_text(graph.document)
    engine._change(Freeze(row.id, text, graph.signature))


def verify_run(engine: Engine, row: RunRow) -> list[Broken]:
    """Where the ancestry of a run was tampered with; names instead of ids."""
    graphs = {graph.signature: graph for graph in _graphs_of(engine, row)}
    rows = engine.store.executions(row.id)
    broken = verify(row.id, list(graphs.values()), rows)
    graph = next(iter(graphs.values()))
    return [Broken(graph.shown(one.node), one.attempt, one.stored, one.expected) for one in broken]


def _graphs_of(engine: Engine, row: RunRow) -> list[Graph]:
    """Every graph that the run was settled under."""
    found = [graph_of(engine, row)]
    signatures: set[str] = {row.signature or ""}
    for _, event, detail in engine.store.history(row.id):
        if event in ("healed", "frozen", "graph imported"):
            facts: dict[str, Any] = msgspec.json.decode(detail)
            signatures |= {facts.get("graph") or "", facts.get("before") or ""}
    for signature in signatures - {found[0].signature, ""}:
        text = engine.store.graph(signature)
        if text is not None:
            found.append(thaw(text, signature, f"a former graph of {row.type}"))
    return found


def _moment(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)
