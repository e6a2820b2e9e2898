"""Ancestry: a hash for every settled execution that proves what came before it.

    SHA-256(canonical JSON of [run id, node id, attempt, sorted hashes of the parents])

where a parent's hash is that of its latest settled execution.  Whoever changes, adds
or removes an attempt after the fact breaks the chain from there on, and `verify` says
where.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from .graph import SPREAD, Graph
from .model import ExecutionRow
from .settle import has_settled

_ENCODER = msgspec.json.Encoder()


def ancestry_hash(run_id: str, node: str, attempt: int, parents: Iterable[str]) -> str:
    """The hash of one settled execution."""
    return hashlib.sha256(_ENCODER.encode([run_id, node, attempt, sorted(parents)])).hexdigest()


class Broken(msgspec.Struct, frozen=True):
    """Where the chain of a run does not hold."""

    node: str
    attempt: int
    stored: str | None
    expected: str


def verify(run_id: str, graphs: Sequence[Graph], rows: Sequence[ExecutionRow]) -> list[Broken]:
    """Where the stored hashes are not what they must be.

    A run that was healed has settled its nodes under several graphs; each hash must
    be right under one of them, with all parents or with those that had settled by then.
    """
    settled = [row for row in rows if row.ancestry_hash is not None or _counts(row)]
    latest: dict[str, ExecutionRow] = {}
    for row in sorted(settled, key=lambda row: row.attempt):
        if _counts(row):
            latest[row.node] = row
    broken = []
    for row in sorted(settled, key=lambda row: (row.finished_at or 0, row.node, row.attempt)):
        expected = [
            ancestry_hash(run_id, row.node, row.attempt, [parent.ancestry_hash or "" for parent in parents])
            for graph in graphs  # (one that does not know the node has no parents for it)
            for parents in _ways(row, _parents(graph, row.node, latest))
        ]
        if row.ancestry_hash not in expected:
            broken.append(Broken(row.node, row.attempt, row.ancestry_hash, expected[-1]))
    return broken


def _ways(row: ExecutionRow, parents: list[ExecutionRow]) -> Iterator[list[ExecutionRow]]:
    """All parents, or those that had settled by then: in a healed run one may have come in between later.

    Within one moment nobody can tell.
    """
    moment = row.finished_at or 0
    yield [parent for parent in parents if (parent.finished_at or 0) < moment]
    yield [parent for parent in parents if (parent.finished_at or 0) <= moment]
    yield parents


def _counts(row: ExecutionRow) -> bool:
    """Whether an execution is the settled one of its node."""
    return has_settled(row.state, row.outcome) and row.kind in ("node", "inline")


def _parents(graph: Graph, node: str, latest: Mapping[str, ExecutionRow]) -> list[ExecutionRow]:
    if graph.spread_of(node) is None and node in graph.nodes and graph.nodes[node].kind == SPREAD:
        items = [row for id, row in latest.items() if graph.spread_of(id) == node]
        if items:
            return items
        # Of nothing, or skipped: then it follows what it needs, like any other node.
    return [latest[parent] for parent in graph.parents(node) if parent in latest]
