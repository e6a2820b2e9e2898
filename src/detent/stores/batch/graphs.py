"""Runs that continue by a graph: what a batch reads for them, and plans with the kernel.

All of it happens under the run's lock, so counts are read, changed in memory and
written back.  One query each, for all runs of a batch: counts of the nodes that may
become ready, hashes of the parents of those that settle; the values of ready nodes
when they want some.  The first two are sent together with the locks: behind them, so
that they see what the locks guard, and without a round trip of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from ...kernel.advance import Advance, Count, End
from ...kernel.graph import END, Graph
from ...kernel.heal import Past
from ...kernel.operations import Operation, Park, Record, Send, Settle, SettlePlan
from ...kernel.rows import RunEnd
from ...kernel.settle import Outcome
from ..driver import Tx, batch
from ..verbs.heal import Recorded, heal_run, past
from .changes import Changes


class MustGoAlone(Exception):
    """A run that is recounted takes one settle in a transaction; these runs have more in the batch."""

    def __init__(self, runs: Collection[str]) -> None:
        super().__init__(f"several settles of {len(runs)} runs that are to be recounted")
        self.runs = frozenset(runs)


def without_repeats(operations: Sequence[Operation], runs: Collection[str]) -> list[int]:
    """The places of the operations that can go together: one settle of each of these runs at most.

    What follows in a run behind its second settle has to wait too.
    """
    places: list[int] = []
    settled: set[str] = set()
    behind: set[str] = set()
    for place, op in enumerate(operations):
        run = _run_of(op)
        if run in runs and isinstance(op, Settle):
            (behind if run in settled else settled).add(run)
        if run not in behind:
            places.append(place)
    return places


def _run_of(op: Operation) -> str:
    if isinstance(op, Settle | Park):
        return op.key.run_id
    return op.run_id if isinstance(op, Record | Send) else ""


class Asked(msgspec.Struct, frozen=True):
    """Counts and hashes that were asked for; the rows come when they are wanted."""

    counts: Callable[[], list[tuple[Any, ...]]] = list
    hashes: Callable[[], list[tuple[Any, ...]]] = list


def ask_counts(tx: Tx, settles: Iterable[Settle]) -> Asked:
    """Ask for the counts and hashes that these settles may need; the locks are asked for before."""
    wanted: set[tuple[str, str]] = set()
    parents: set[tuple[str, str]] = set()
    for op in settles:
        graph: Graph = op.run_graph.graph
        run, node = op.key.run_id, op.key.node
        parents.update((run, parent) for parent in graph.parents(node))
        if op.plan.goes_on:
            wanted.update((run, id) for id in _counted(graph, node))
    return Asked(_ask(tx, tx.sql.graphs.counts, wanted), _ask(tx, tx.sql.graphs.hashes, parents))


def _ask(tx: Tx, statement: str, keys: set[tuple[str, str]]) -> Callable[[], list[tuple[Any, ...]]]:
    rows = [{"run_id": run, "node": node} for run, node in sorted(keys)]
    return tx.ask(statement, rows=batch(rows)) if rows else list


class Going:
    """The plans of one batch, a run each."""

    def __init__(
        self,
        tx: Tx,
        settles: Sequence[Settle],
        outdated: Mapping[str, str | None],
        changes: Changes,
        asked: Asked,
    ) -> None:
        self._tx = tx
        self._changes = changes
        self._outdated = outdated  # runs to be recounted, and the graph that they were settled under
        self._advances: dict[str, Advance] = {}
        self._counts: dict[str, dict[str, Count]] = {}
        self._hashes: dict[str, dict[str, str]] = {}
        if outdated:
            settling = Counter(op.key.run_id for op in settles)
            if repeated := [run for run in outdated if settling[run] > 1]:
                raise MustGoAlone(repeated)
        self._read(settles, asked)

    def _read(self, settles: Sequence[Settle], asked: Asked) -> None:
        """Take over what was asked for, apart from runs that do not settle here after all."""
        for op in settles:
            self._counts.setdefault(op.key.run_id, {})
            self._hashes.setdefault(op.key.run_id, {})
        for run, node, settled, required in asked.counts():
            if run in self._counts and run not in self._outdated:
                self._counts[run][node] = Count(settled, required)
        for run, node, _, digest in sorted(asked.hashes(), key=_attempt):  # the latest attempt comes last
            if run in self._hashes:
                self._hashes[run][node] = digest

    def settled(self, op: Settle, plan: SettlePlan, *, held: bool) -> tuple[str, RunEnd | None]:
        """A node has settled: plan what follows; return its hash, and the run's end if this is it."""
        if op.key.run_id in self._outdated:
            return self._recounted(op, plan, held=held)
        advance = self._advance(op, held=held)
        before = advance.end
        digest = advance.settle(op.key.node, op.key.attempt, _ended(op, plan))
        return digest, advance.end if advance.end is not before else None

    def hash(self, op: Settle, plan: SettlePlan) -> str:
        """The hash of a node after which nothing follows."""
        return self._advance(op, held=False).hash(op.key.node, op.key.attempt, _ended(op, plan))

    def take_over(self) -> None:
        """All is planned: into the changes."""
        for advance in self._advances.values():
            self._changes.advanced(advance)

    def _advance(self, op: Settle, *, held: bool) -> Advance:
        run = op.key.run_id
        advance = self._advances.get(run)
        if advance is None:
            advance = self._advances[run] = Advance(
                op.run_graph.graph,
                op.run_graph.facts(op.now, held=held),
                op.run_graph.values,
                Recorded(self._tx, run),
                counts=self._counts[run],
                hashes=self._hashes[run],
            )
        elif op.now > advance.facts.now:
            # What this settle makes ready cannot begin before it, whatever the order in the batch.
            advance.facts = msgspec.structs.replace(advance.facts, now=op.now)
        return advance

    def _recounted(self, op: Settle, plan: SettlePlan, *, held: bool) -> tuple[str, RunEnd | None]:
        """The long way: under another graph than before, or after a heal that left traces."""
        run = op.key.run_id
        digest = self.hash(op, plan)
        del self._advances[run]
        seen = past(self._tx, run)
        seen[op.key.node] = Past(op.key.node, op.key.attempt, op.plan.state, op.plan.outcome)
        advance = heal_run(
            self._tx,
            op.run_graph,
            seen,
            self._changes,
            now=op.now,
            held=held,
            before=self._outdated[run],
            hashes=self._hashes[run],
            results={op.key.node: op.plan.result},
            errors={op.key.node: plan.error}
            if plan.outcome == Outcome.BRANCHED_BY_EXCEPTION and plan.error is not None
            else {},
        )
        return digest, advance.end


def _attempt(row: tuple[Any, ...]) -> int:
    return int(row[2])


def _ended(op: Settle, plan: SettlePlan) -> End:
    return End(op.run_graph.claimed.job, plan.outcome, plan.result, plan.error)


def _counted(graph: Graph, node: str) -> Iterable[str]:
    """The nodes that settling this one may count for, where more than one counts."""
    spread = graph.spread_of(node)
    if spread is not None:
        yield f"{spread}[]"
    for id in graph.reach(node):
        if id != spread and len(graph.needs[id]) > 1:
            yield id
    if len(graph.sinks) > 1:
        yield END
