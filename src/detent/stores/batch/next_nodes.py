"""Nodes whose end alone makes their followers ready, settled in one statement, or in few.

In a chain nothing has to be counted: what follows is known before the database is asked.  So it is planned
outside of a transaction, and one statement ends the nodes and begins what follows them; on SQLite, three in
a transaction do so.  They check, under the locks of the runs, what the plan assumes:

    the worker is alive, and holds the execution by this very token
    the run is ready: neither paused nor over
    the run was last settled under the graph that this plan was made by, and counts by it

Where one of these does not hold, nothing is written for that node, and the long way (apply.py) tells why.
The database joins the hashes of the parents to the node's ancestry hash: it has them at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from ...kernel.advance import Advance, Record, RunGraph
from ...kernel.ancestry import hashed_head
from ...kernel.operations import Operation, Settle, Settled, Verdict
from ...kernel.rows import Claimed, ExecutionState, NewExecution
from ..driver import Driver, SlotOffer, Slots, Tx, Way, news
from ..verbs.queues import give_keys
from .apply import take_lease

LARGEST = 256 * 1024  # characters of results and inputs; a result is sent twice, once for its hash


class SettledNode(msgspec.Struct, gc=False):
    """The end of a node, and the executions that follow."""

    run_id: str
    node: str
    attempt: int
    token: str
    state: str
    outcome: str
    result: str | None
    error: str | None
    finished_at: int
    signature: str
    head: str  # the hashed text before the hashes of the parents
    parents: Sequence[str]
    begun: list[NewExecution]


def way_of(
    driver: Driver, operations: Sequence[Operation], *, helpers_wanted: bool, slots: Slots | None
) -> Way | None:
    """The way of a batch that only settles such nodes, of one worker; None for any other batch."""
    settle = driver.settle_nodes
    settles = _settles(operations) if settle else None
    nodes = _planned(settles) if settles is not None else None
    if settle is None or settles is None or nodes is None:
        return None
    if driver.keyed:
        give_keys((row for node in nodes for row in node.begun), driver.keyed)
    worker = settles[0].worker
    offer = SlotOffer(slots, len(settles)) if slots is not None and slots.id == worker else None
    leased = [
        _lease(op.run_graph.claimed, node.begun, offer) for op, node in zip(settles, nodes, strict=True)
    ]
    ready = any(row.state == ExecutionState.READY for node in nodes for row in node.begun)
    payload = news(work=True) if ready and helpers_wanted else ""

    def ask(tx: Tx) -> Callable[[], list[Any]]:
        asked = settle(tx, worker, nodes, payload)

        def answers() -> list[Any]:
            written = {(run, node) for run, node, *_ in asked()}
            return [
                Settled(verdict=Verdict.APPLIED) if (node.run_id, node.node) in written else None
                for node in nodes
            ]

        return answers

    alone = driver.single and driver.writing is None  # on SQLite, these are several statements
    return Way(ask, alone=alone, made_ready=ready, slots=offer, leased=leased)


def _settles(operations: Sequence[Operation]) -> list[Settle] | None:
    """The operations, if each of them settles a node of one worker, and there is nothing to count."""
    found: list[Settle] = []
    for op in operations:
        if not isinstance(op, Settle) or op.run_graph is None or not op.run_graph.graph.leads_on(op.key.node):
            return None
        plan = op.plan
        if not plan.goes_on or plan.run or plan.again or plan.history or plan.topic or op.steps:
            return None
        if op.worker != operations[0].worker:  # type: ignore[attr-defined]  # the first one is a Settle
            return None
        found.append(op)
    if len({(op.key.run_id, op.key.node) for op in found}) < len(found):
        return None  # one of them is stale
    return found or None


def _planned(settles: Iterable[Settle]) -> list[SettledNode] | None:
    """The rows, in the order of the operations; None if a follower fails at once, or they are too large."""
    nodes: list[SettledNode] = []
    size = 0
    for op in settles:
        begun = _followers(op)
        if begun is None:
            return None
        size += (
            len(op.plan.result or "") + len(op.plan.error or "") + sum(len(row.input or "") for row in begun)
        )
        if size > LARGEST:
            return None
        nodes.append(_settled(op, begun))
    return nodes


def _followers(op: Settle) -> list[NewExecution] | None:
    """What follows; None if an expression cannot be evaluated, which pauses the run."""
    by: RunGraph = op.run_graph
    node = op.key.node
    advance = Advance(
        by.graph, by.facts(op.now, held=False), by.values, _NoInbox(), results={node: op.plan.result}
    )
    advance.begin(by.graph.followers[node])
    return None if advance.ended or advance.end is not None else advance.executions


def _settled(op: Settle, begun: list[NewExecution]) -> SettledNode:
    key, plan, by = op.key, op.plan, op.run_graph
    head = hashed_head(
        key.run_id,
        key.node,
        key.attempt,
        job=by.claimed.job,
        outcome=plan.outcome,
        result=plan.result,
        error=plan.error,
    )
    return SettledNode(
        key.run_id,
        key.node,
        key.attempt,
        op.token,
        plan.state,
        plan.outcome,
        plan.result,
        plan.error,
        op.now,
        by.graph.signature,
        head,
        by.graph.parents(key.node),
        begun,
    )


def _lease(
    run: Claimed, begun: Iterable[NewExecution], slots: SlotOffer | None
) -> list[tuple[NewExecution, Claimed]]:
    """Hand what is due at once to our own worker, as far as it has room."""
    leased: list[tuple[NewExecution, Claimed]] = []
    for row in begun:
        if row.state != ExecutionState.READY:
            continue
        lease = slots.reserve(row.job, row.queue) if slots is not None else None
        if lease is None:
            break
        take_lease(row, lease)
        leased.append((row, run))
    return leased


class _NoInbox:
    """The inbox of nodes that need nothing but the result of the node before them."""

    def settled(self, nodes: Collection[str]) -> Mapping[str, Record]:
        raise LookupError(f"nothing was read of {sorted(nodes)}")

    def items(self, spread: str, number: int) -> Iterable[tuple[str, str | None, str | None]]:
        raise LookupError(f"nothing was read of {spread}")
