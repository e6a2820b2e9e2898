"""Ancestry: a hash for every settled execution that covers what it did and what came before it.

    "2:" + base64url(SHA-256(canonical JSON of
        [run id, node id, attempt, job, outcome, result, error, sorted hashes of the parents]))

A parent's hash is that of its latest settled execution.  Result and error are the texts as they are
stored, so that a codec that encrypts needs no key here.  A change to any of this breaks the chain from
there on, and `verify` says where.

Hashes of version 1 have no prefix: the hex SHA-256 of [run id, node id, attempt, sorted hashes of the
parents].  They are verified by that formula.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from .graph import SPREAD, Graph
from .rows import ExecutionRow
from .settle import has_settled

_ENCODER = msgspec.json.Encoder()
_VERSION = "2:"


def ancestry_hash(
    run_id: str,
    node: str,
    attempt: int,
    parents: Iterable[str],
    *,
    job: str,
    outcome: str,
    result: str | None,
    error: str | None,
) -> str:
    """The hash of one settled execution."""
    text = _ENCODER.encode([run_id, node, attempt, job, outcome, result, error, sorted(parents)])
    return _VERSION + urlsafe_b64encode(hashlib.sha256(text).digest()).decode().rstrip("=")


def hashed_head(
    run_id: str, node: str, attempt: int, *, job: str, outcome: str, result: str | None, error: str | None
) -> str:
    """The hashed text up to the hashes of the parents, for a database that knows those itself.

    They follow in quotes, sorted, with commas between them; then `]]`.
    """
    text = _ENCODER.encode([run_id, node, attempt, job, outcome, result, error]).decode()
    return f"{text[:-1]},["


def hash_of(head: str, parents: Iterable[str]) -> str:
    """The hash of an execution whose hashed text has this head."""
    quoted = ",".join(f'"{one}"' for one in sorted(parents))
    text = f"{head}{quoted}]]"
    return _VERSION + urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


def _first_version(run_id: str, node: str, attempt: int, parents: Iterable[str]) -> str:
    return hashlib.sha256(_ENCODER.encode([run_id, node, attempt, sorted(parents)])).hexdigest()


def _expected(run_id: str, row: ExecutionRow, parents: list[ExecutionRow]) -> str:
    """The hash that an execution must have, by the version of the one that it has."""
    hashes = [parent.ancestry_hash or "" for parent in parents]
    if row.ancestry_hash is not None and not row.ancestry_hash.startswith(_VERSION):
        return _first_version(run_id, row.node, row.attempt, hashes)
    return ancestry_hash(
        run_id,
        row.node,
        row.attempt,
        hashes,
        job=row.job,
        outcome=row.outcome or "",
        result=row.result,
        error=row.error,
    )


class Broken(msgspec.Struct, frozen=True):
    """A node whose stored hash does not match its stored data.

    for broken in run.verify():
        print(broken.node, broken.stored, broken.expected)
    """

    node: str
    attempt: int
    stored: str | None
    expected: str


def verify(run_id: str, graphs: Sequence[Graph], rows: Sequence[ExecutionRow]) -> list[Broken]:
    """Where the stored hashes are not what they must be.

    A run that was healed has settled its nodes under several graphs; each hash must
    be right under one of them, with all parents or with those that had settled before.
    """
    settled = [row for row in rows if row.ancestry_hash is not None or _counts(row)]
    latest: dict[str, ExecutionRow] = {}
    for row in sorted(settled, key=lambda row: row.attempt):
        if _counts(row):
            latest[row.node] = row
    broken = []
    for row in sorted(settled, key=lambda row: (row.finished_at or 0, row.node, row.attempt)):
        expected = [
            _expected(run_id, row, parents)
            for graph in graphs  # (one that does not know the node has no parents for it)
            for parents in _ways(row, _parents(graph, row.node, latest))
        ]
        if row.ancestry_hash not in expected:
            broken.append(Broken(row.node, row.attempt, row.ancestry_hash, expected[-1]))
    return broken


def _ways(row: ExecutionRow, parents: list[ExecutionRow]) -> Iterator[list[ExecutionRow]]:
    """All parents, or those that had settled before: healing may have added a parent later.

    For equal times both are possible.
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
