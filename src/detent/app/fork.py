"""Forking: a new run that keeps what another has done.

Of a durable function it keeps entries of the journal (kernel/fork.py).  Of a graph it keeps the settled
nodes, except the one that is named and everything behind it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from ..errors import NodeNotFound
from ..execution.rows import claimed_of_run
from ..execution.services import Services
from ..kernel.advance import Advance, Record, RunGraph
from ..kernel.ancestry import ancestry_hash
from ..kernel.fork import is_canceled, kept_for_fork
from ..kernel.graph import Graph, split_item
from ..kernel.heal import Past, heal
from ..kernel.operations import Start
from ..kernel.rows import MAIN, EndedExecution, ExecutionRow, NewRun, Readiness, RunRow, Step
from ..stores.store import Store
from ..stores.verbs.cancel import PARENT_CANCELED
from ..stores.verbs.graphs import parts
from .settings import Options
from .starting import fork_row, fresh_row


def kept_of(store: Store, row: RunRow, from_step: str | None) -> list[Step]:
    """What a fork of a durable function keeps of its journal."""
    mains = [execution for execution in store.executions(row.id) if execution.node == MAIN]
    # The journal is read last: so it has all compensations of a run whose function has ended.
    steps = store.journal([row.id])[row.id]
    children = [step.name for step in steps if step.kind == "child" and is_canceled(step)]
    with_parent = {child for child in children if _canceled_with_parent(store, child)}
    return kept_for_fork(row, steps, mains, from_step, canceled_with=with_parent)


def _canceled_with_parent(store: Store, child: str) -> bool:
    return any(
        event == "canceled" and msgspec.json.decode(detail) == {"reason": PARENT_CANCELED}
        for _, event, detail in store.history(child)
    )


def plan_graph_fork(services: Services, row: RunRow, from_node: str | None, options: Options) -> Start:
    """A new run that keeps what a run with a graph has done, except a node and all behind it."""
    run, chosen = fork_row(services, row, options)
    run_graph = services.run_graphs.of_row(row)
    run_graph = msgspec.structs.replace(run_graph, claimed=claimed_of_run(fresh_row(run, False)))
    text = services.store.graph(row.id) if row.frozen_at is not None else None
    start = fork_graph(run_graph, row, services.store.executions(row.id), from_node, run, text)
    start.chosen = chosen
    return start


class _Kept:
    """The inbox of the new run: what it takes over."""

    def __init__(self, rows: Mapping[str, EndedExecution]) -> None:
        self._rows = rows

    def settled(self, nodes: Collection[str]) -> dict[str, Record]:
        rows = [self._rows[id] for id in nodes if id in self._rows]
        return {row.node: (row.result, row.ancestry_hash, row.error) for row in rows}

    def items(self, spread: str, number: int) -> list[tuple[str, str | None, str | None]]:
        nodes = [f"{spread}[{index}]" for index in range(number)]
        return [(node, text, digest) for node, (text, digest, _) in self.settled(nodes).items()]


def fork_graph(
    run_graph: RunGraph,
    row: RunRow,
    rows: list[ExecutionRow],
    from_node: str | None,
    run: NewRun,
    text: str | None,
) -> Start:
    """Begin `run` with what `row` has done, except `from_node` and everything after it."""
    graph, now = run_graph.graph, run.created_at
    without: set[str] = set()
    if from_node is not None:
        node = graph.find(from_node)
        if node is None:
            raise NodeNotFound(row.id, from_node)
        without = {node, *graph.descendants(node)}
    kept = _copies(graph, run, _done(rows), without)
    # A spread that has not ended begins again, without the items that are kept.
    past = {
        id: Past(id, 1, one.state, one.outcome, one.kind)
        for id, one in kept.items()
        if (graph.spread_of(id) or id) in kept
    }
    healing = heal(graph, past)
    advance = Advance(
        graph,
        run_graph.facts(now, held=False),
        run_graph.values,
        _Kept(kept),
        counts=dict(healing.counts),
        hashes={id: one.ancestry_hash for id, one in kept.items() if one.ancestry_hash is not None},
        past=dict.fromkeys(kept, (1, True)),
    )
    advance.counted.update(healing.counts)
    advance.begin(healing.ready)
    if healing.finished:
        advance.finish()
    run.forked_from, run.signature, run.frozen_at = row.id, graph.signature, row.frozen_at
    run.hero_type, run.hero_id = row.hero_type, row.hero_id  # beside the run that it was forked from
    counts = [
        Readiness(run_id=run.id, node=id, required=count.required, settled=count.settled)
        for id, count in ((id, advance.counts[id]) for id in sorted(advance.counted))
    ]
    return Start(
        runs=[run],
        executions=advance.executions,
        ended=[*kept.values(), *advance.ended],
        readiness=counts,
        ends={run.id: advance.end} if advance.end is not None else {},
        graphs=parts(run.id, text) if text is not None else [],
        remote=True,
    )


def _done(rows: list[ExecutionRow]) -> dict[str, ExecutionRow]:
    """The settled execution of each node."""
    found = {}
    for row in sorted(rows, key=lambda row: row.attempt):
        if row.ancestry_hash is not None:
            found[row.node] = row
    return found


def _copies(
    graph: Graph, run: NewRun, done: Mapping[str, ExecutionRow], without: set[str]
) -> dict[str, EndedExecution]:
    """What the new run takes over, with hashes of its own; parents come before their children."""
    items: dict[str, list[str]] = {}
    for id in done:
        base, index = split_item(id)
        if index is not None:
            items.setdefault(base, []).append(id)
    copies: dict[str, EndedExecution] = {}

    def copy(id: str, parents: list[str]) -> None:
        row = done[id]
        digests = [copies[parent].ancestry_hash or "" for parent in parents if parent in copies]
        copies[id] = one = EndedExecution(
            run_id=run.id,
            node=id,
            attempt=1,
            kind=row.kind,
            job=row.job,
            queue=row.queue,
            precedence=-run.priority,
            state=row.state,
            outcome=row.outcome or "",
            created_at=run.created_at,
            finished_at=row.finished_at or run.created_at,
            result=row.result,
            error=row.error,
        )
        one.ancestry_hash = ancestry_hash(
            run.id, id, 1, digests, job=one.job, outcome=one.outcome, result=one.result, error=one.error
        )

    for id in _in_order(graph):
        if id in without:
            continue
        for item in items.get(id, []):
            copy(item, list(graph.needs[id]))
        if id in done:
            copy(id, items.get(id) or list(graph.needs[id]))
    return copies


def _in_order(graph: Graph) -> list[str]:
    """The nodes, each behind those that it needs."""
    left = {id: len(needs) for id, needs in graph.needs.items()}
    order = list(graph.roots)
    for id in order:  # it grows while we go
        for follower in graph.followers[id]:
            left[follower] -= 1
            if left[follower] == 0:
                order.append(follower)
    return order
