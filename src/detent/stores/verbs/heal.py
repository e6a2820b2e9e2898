"""Healing in the database: recount a run by the graph of today, under its lock."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from ...errors import AnonymousStepMoved, StepNotDefined
from ...kernel.advance import Advance, Record, RunGraph
from ...kernel.anonymous import moved
from ...kernel.graph import Graph, thaw
from ...kernel.heal import Healing, Past, heal
from ...kernel.rows import SCHEDULED_STATES, HistoryRow, RunEnd, RunState, WorkerRow, stored_error
from ...kernel.settle import Outcome
from ..batch.changes import Changes
from ..driver import Tx, batch, rows_to


def past(tx: Tx, run: str) -> dict[str, Past]:
    """The latest attempt at each node of a run."""
    found: dict[str, Past] = {}
    for row in tx.query(tx.sql.graphs.past, id=run):
        latest = Past(*row)
        if latest.node not in found or found[latest.node].attempt < latest.attempt:
            found[latest.node] = latest
    return found


def heal_run(
    tx: Tx,
    run_graph: RunGraph,
    seen: Mapping[str, Past],
    changes: Changes,
    *,
    now: int,
    held: bool,
    before: str | None,
    hashes: dict[str, str] | None = None,
    results: Mapping[str, str | None] | None = None,
    errors: Mapping[str, str] | None = None,
    mine: str | None = None,
) -> Advance:
    """Plan what a run needs to continue by the run_graph's graph, and put it into the changes.

    `before` is the signature of the graph that it was settled under until now; `results` and `errors`
    are of nodes that settle in this transaction, so nothing is recorded of them yet.
    """
    run = run_graph.claimed.run_id
    graph = run_graph.graph
    moves = _moved(tx, graph, seen, before, mine)
    if moves:
        # A worker may have claimed it for this code, and not begun: then it heals the run itself.
        undecided = mine is None and results is None and not any(seen[node].done for node in moves)
        return _refused(
            tx, run_graph, seen, changes, {} if undecided else moves, now=now, held=held, mine=mine
        )
    healing, seen = _planned(tx, run, graph, seen, mine)
    advance = Advance(
        graph,
        run_graph.facts(now, held=held),
        run_graph.values,
        Recorded(tx, run),
        counts=dict(healing.counts),
        hashes=hashes,
        past=_past(healing, seen),
        results=results,
        errors=errors,
    )
    advance.counted.update(healing.counts)
    changes.withdrawn += [_withdrawn(run, seen[node], now, mine=node == mine) for node in healing.withdrawn]
    _go_on(tx, run_graph, seen, healing, advance)
    _bypass(healing, advance)
    if before != graph.signature:
        detail = {"graph": graph.signature, "before": before, **healing.changes}
        line = HistoryRow(
            run_id=run, happened_at=now, event="healed", detail=msgspec.json.encode(detail).decode()
        )
        changes.history.append(line)
    changes.signatures[run] = (graph.signature, int(healing.irregular))
    changes.advanced(advance)
    return advance


def _past(healing: Healing, seen: Mapping[str, Past]) -> dict[str, tuple[int, bool]]:
    """The latest attempt at each node, and whether the plan leaves the node as it is."""
    past = {
        node: (latest.attempt, latest.done or latest.active or latest.stopped)
        for node, latest in seen.items()
        if node not in healing.withdrawn
    }
    past.update({node: (seen[node].attempt, False) for node in healing.withdrawn})
    for node in healing.expanded | healing.passed:
        past[node] = (seen[node].attempt if node in seen else 0, True)
    return past


def _planned(
    tx: Tx, run: str, graph: Graph, seen: Mapping[str, Past], mine: str | None
) -> tuple[Healing, Mapping[str, Past]]:
    """Return what the run needs, and what is recorded of its nodes, with all that is withdrawn locked.

    A claim takes no lock on the run.  A node that a worker has claimed since it was read is executing: it
    is not withdrawn, and must not begin again when an inline node makes it ready.
    """
    healing = heal(graph, seen, mine=mine)
    keys = [
        {"run_id": run, "node": node, "attempt": seen[node].attempt}
        for node in sorted(healing.withdrawn)
        if node != mine
    ]
    locked = tx.query(tx.sql.lock_executions, rows=batch(keys)) if keys else []
    states = {node: state for _, node, _, _, state in locked if state not in SCHEDULED_STATES}
    if not states:
        return healing, seen
    seen = {**seen, **{node: replace(seen[node], state=state) for node, state in states.items()}}
    return heal(graph, seen, mine=mine), seen


def _withdrawn(run: str, latest: Past, now: int, *, mine: bool) -> dict[str, Any]:
    return {
        "run_id": run,
        "node": latest.node,
        "attempt": latest.attempt,
        "finished_at": now,
        "mine": int(mine),
    }


def _moved(
    tx: Tx, graph: Graph, seen: Mapping[str, Past], before: str | None, mine: str | None
) -> dict[str, str]:
    """The anonymous steps that the run has done, and that have another body in this graph."""
    if before is None or before == graph.signature or not graph.anonymous:
        return {}
    text = "".join(row[0] for row in tx.query(tx.sql.graphs.graph, id=before))
    return moved(thaw(text, before, "the former graph"), graph, seen, mine=mine) if text else {}


def _refused(
    tx: Tx,
    run_graph: RunGraph,
    seen: Mapping[str, Past],
    changes: Changes,
    moves: dict[str, str],
    *,
    now: int,
    held: bool,
    mine: str | None,
) -> Advance:
    """Leave the run as it is, under its former graph, and pause it; a resume looks at it again."""
    run = run_graph.claimed.run_id
    facts = run_graph.facts(now, held=held)
    advance = Advance(run_graph.graph, facts, run_graph.values, Recorded(tx, run))
    if not moves:
        return advance
    error = AnonymousStepMoved(run, run_graph.claimed.type, *next(iter(moves.items())))
    advance.end = RunEnd(state=RunState.PAUSED, error=stored_error(error))
    if mine is not None:
        changes.withdrawn.append(_withdrawn(run, seen[mine], now, mine=True))
    return advance


def _bypass(healing: Healing, advance: Advance) -> None:
    """Record what is bypassed, and what a resume takes up and has no new attempt after the evaluation.

    Without a new attempt, such a node would still be recorded as failed, and would wait for another resume.
    """
    begun = {row.node for row in advance.executions} | {row.node for row in advance.ended}
    healing.bypassed += [
        node for node in healing.resumed if node not in begun and node not in healing.bypassed
    ]
    advance.ended += [advance.passed_over(node, Outcome.BYPASSED_BY_DEPLOY) for node in healing.bypassed]


def _go_on(tx: Tx, run_graph: RunGraph, seen: Mapping[str, Past], healing: Healing, advance: Advance) -> None:
    if healing.finished:
        advance.finish()
        return
    advance.begin(healing.ready)
    busy = {node for node, latest in seen.items() if latest.active} - set(healing.withdrawn)
    ended = advance.end is not None and advance.end.state == RunState.FINISHED and not advance.concluded
    if ended and (busy or advance.executions or healing.undefined):
        advance.end = None  # the end waits for a node that is under way, or that is gone and was not done
    if advance.end is None and healing.undefined and not advance.facts.held:
        lost = unknown(tx, run_graph.claimed.type, healing.undefined)
        if lost:
            error = StepNotDefined(advance.facts.id, run_graph.claimed.type, lost[0])
            advance.end = RunEnd(state=RunState.PAUSED, error=stored_error(error))


def unknown(tx: Tx, type: str, nodes: Iterable[str]) -> list[str]:
    """Those nodes of a class that no worker knows; another version of the code may still be running."""
    known = known_jobs(rows_to(WorkerRow, tx.query(tx.sql.workers)))
    return [node for node in nodes if f"{type}.{node}" not in known]


def known_jobs(workers: Sequence[WorkerRow]) -> set[str]:
    """All that some worker can run."""
    return {job for worker in workers for job in msgspec.json.decode(worker.jobs or "[]", type=list[str])}


class Recorded:
    """The inbox of a run's nodes: what was recorded of those before them."""

    def __init__(self, tx: Tx, run: str) -> None:
        self._tx = tx
        self._run = run

    def settled(self, nodes: Collection[str]) -> dict[str, Record]:
        rows = [{"run_id": self._run, "node": node} for node in sorted(nodes)]
        found = self._tx.query(self._tx.sql.graphs.outputs, rows=batch(rows))
        found.sort(key=lambda row: row[1])  # the latest attempt comes last
        return {node: (text, digest, error) for node, _, text, digest, error in found}

    def items(self, spread: str, number: int) -> list[tuple[str, str | None, str | None]]:
        nodes = [f"{spread}[{index}]" for index in range(number)]
        return [(node, text, digest) for node, (text, digest, _) in self.settled(nodes).items()]
