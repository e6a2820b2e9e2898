"""Single nodes, steered from outside: skip, reattempt; and the resume of a run that goes by a graph.

All under the run's lock, in one transaction.  Readiness is recounted each time: an
operator's hand is rare, and what it leaves behind must be right whatever was before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ...errors import CannotReattempt, InvalidState, NodeNotFound
from ...kernel.advance import Advance, RunGraph
from ...kernel.ancestry import ancestry_hash
from ...kernel.control import taken_up
from ...kernel.graph import Graph
from ...kernel.heal import Past
from ...kernel.operations import RunChange
from ...kernel.rows import (
    MAIN,
    Claimed,
    EndedExecution,
    ExecutionState,
    NewExecution,
    RunRow,
    RunState,
    topic_of,
)
from ...kernel.settle import Ending, Outcome, next_attempt
from ..batch import readiness
from ..batch.changes import Changes, end_run, write_changes
from ..batch.locks import lock
from ..driver import Tx, rows_to, write
from .cancel import note
from .heal import Recorded, heal_run, past

_OVER = {RunState.FINISHED, RunState.FAILED, RunState.CANCELED}


def skip(tx: Tx, run_id: str, node: str, *, run_graph: RunGraph | None, now: int) -> RunRow:
    """Go on as if a node had completed; one that executes is left alone."""
    run = _active(tx, "skip a node of", run_id)
    seen = past(tx, run_id)
    latest = _reached(run, node, seen, run_graph, "skip")
    if latest.state == ExecutionState.EXECUTING or latest.done:
        state = "executing" if latest.state == ExecutionState.EXECUTING else str(latest.state)
        raise InvalidState(f"skip node {_shown(run_graph, node)!r} of", run_id, state)
    note(tx, run_id, "skipped", {"node": _shown(run_graph, node), "by": "operator"}, now)
    if latest.kind == "step" or run_graph is None:
        _skip_step(tx, run, latest, now)
        return run
    attempt = latest.attempt if latest.scheduled else latest.attempt + 1
    found = Recorded(tx, run_id).settled(run_graph.graph.parents(node)) if run_graph.graph.knows(node) else {}
    row = latest_of(tx, run_id)[node]
    digest = ancestry_hash(
        run_id,
        node,
        attempt,
        [hash for _, hash, _ in found.values() if hash is not None],
        job=row.job,
        outcome=Outcome.SKIPPED_BY_OPERATOR,
        result=None,
        error=None,
    )
    if latest.scheduled:
        _skip_scheduled(tx, run_id, latest, _shown(run_graph, node), now, digest=digest)
    else:
        write(tx, tx.sql.graphs.insert_ended, [_skipped(row, attempt, digest, now)])
    seen[node] = Past(node, attempt, ExecutionState.SKIPPED, Outcome.SKIPPED_BY_OPERATOR)
    _carry_on(tx, run, run_graph, seen, now)
    return run


def reattempt(tx: Tx, run_id: str, node: str, *, run_graph: RunGraph | None, now: int) -> RunRow:
    """Begin another attempt at a node that failed or was canceled, with a fresh budget."""
    run = _active(tx, "reattempt a node of", run_id)
    seen = past(tx, run_id)
    name = _shown(run_graph, node)
    latest = _reached(run, node, seen, run_graph, "reattempt")
    hint = "app.fork(run, from_step=...) runs it again in a new run"
    if latest.active:
        raise CannotReattempt("reattempt", run_id, f"its latest attempt is {latest.public}", "", name)
    if latest.done:
        branched = latest.outcome == Outcome.BRANCHED_BY_EXCEPTION
        why = "it has failed, and its error branch ran" if branched else f"it is {latest.state}"
        raise CannotReattempt("reattempt", run_id, why, hint, name)
    if run_graph is not None:
        for later in sorted(run_graph.graph.descendants(node)):
            if later in seen and seen[later].done:
                shown = run_graph.graph.shown(later)
                raise CannotReattempt("reattempt", run_id, f"{shown!r} has completed after it", hint, name)
    elif not taken_up(run.state, latest.outcome or ""):
        raise CannotReattempt("reattempt", run_id, "the workflow has continued after its failure", hint, name)
    note(tx, run_id, "reattempted", {"node": name, "by": "operator"}, now)
    _begin_again(tx, run_id, [node], seen, run_graph, now)
    if run_graph is None:
        _let_go_on(tx, run, seen, now)
    else:
        _carry_on(tx, run, run_graph, seen, now)
    return run


def resume_graph(tx: Tx, run: RunRow, run_graph: RunGraph, now: int) -> None:
    """Continue a paused run: what stopped begins again, and readiness is recounted."""
    seen = past(tx, run.id)
    set_state(tx, run, RunState.READY, None, now)
    tx.run(tx.sql.unhold, id=run.id, now=now)
    stopped = [node for node, latest in seen.items() if latest.stopped]
    _begin_again(tx, run.id, stopped, seen, run_graph, now)
    _recount(tx, run, run_graph, seen, now, held=False)


def reconcile(tx: Tx, run_id: str, *, run_graph: RunGraph, now: int, mine: str | None = None) -> bool:
    """Heal a run whose graph is another by now; False when `mine` was withdrawn by that, or it is over."""
    run = lock(tx, run_id)
    if run.state != RunState.READY:
        return mine is not None
    if run.frozen_at is not None:
        return True
    if run.signature == run_graph.graph.signature and mine is None:
        return True
    # Where another worker has healed it since `mine` was claimed, that node was left alone as one that
    # executes; but it has not begun, and may have to wait for others now.
    seen = past(tx, run_id)
    _recount(tx, run, run_graph, seen, now, held=False, mine=mine)
    return mine is None or past(tx, run_id)[mine].active


def pause_with(tx: Tx, run_id: str, error: str, now: int) -> bool:
    """Pause an active run with an error, unless it has stopped meanwhile."""
    run = lock(tx, run_id)
    if run.state != RunState.READY:
        return False
    set_state(tx, run, RunState.PAUSED, error, now)
    tx.run(tx.sql.hold, id=run_id)
    note(tx, run_id, "paused", {"by": "worker"}, now)
    return True


def set_state(
    tx: Tx, run: RunRow, state: RunState, error: str | None, now: int, *, reason: str | None = None
) -> None:
    report(tx, run, state, now, error=error, reason=reason)
    tx.run(
        tx.sql.set_run_state,
        id=run.id,
        state=str(state),
        error=error,
        finished_at=now if state.final else None,
    )


def report(
    tx: Tx, run: RunRow, state: str, now: int, *, error: str | None = None, reason: str | None = None
) -> None:
    """Have a run's new state reported when it is committed."""
    change = RunChange(
        run_id=run.id, state=state, at=now, error=error, reason=reason, type=run.type, queue=run.queue
    )
    tx.changed.append(change)


def fresh(execution: Claimed, now: int) -> NewExecution:
    """Another attempt, with a fresh budget."""
    again = next_attempt(execution, Ending(outcome=Outcome.REATTEMPTED, now=now))
    again.failures = 0
    again.recoveries = 0
    return again


def _active(tx: Tx, verb: str, run_id: str) -> RunRow:
    run = lock(tx, run_id)
    if run.state in _OVER:
        raise InvalidState(verb, run_id, run.state, "app.fork(run) continues it in a new run")
    return run


def _reached(run: RunRow, node: str, seen: Mapping[str, Past], run_graph: RunGraph | None, verb: str) -> Past:
    if node == MAIN and run.kind == "function":
        raise InvalidState(
            f"{verb} the main function of", run.id, run.state, "use run.resume() or run.cancel()"
        )
    if node in seen:
        if run_graph is not None and not seen[node].done:
            _check_items(run, node, seen, run_graph.graph, verb)
        return seen[node]
    if run_graph is None or not run_graph.graph.knows(node):
        raise NodeNotFound(run.id, node)
    name = run_graph.graph.shown(node)
    if verb == "reattempt":
        raise CannotReattempt(verb, run.id, "it has not been reached yet", "", name)
    raise InvalidState(f"{verb} node {name!r} of", run.id, "not reached yet")


def _check_items(run: RunRow, node: str, seen: Mapping[str, Past], graph: Graph, verb: str) -> None:
    """A spread with items is under way, also if it has an attempt of its own, from a graph before."""
    if not any(graph.spread_of(other) == node for other in seen):
        return
    name, hint = graph.shown(node), f"{verb} its items instead"
    if verb == "reattempt":
        raise CannotReattempt(verb, run.id, "its items are under way", hint, name)
    raise InvalidState(f"{verb} node {name!r} of", run.id, "executing", hint)


def _shown(run_graph: RunGraph | None, node: str) -> str:
    return node if run_graph is None else run_graph.graph.shown(node)


def latest_of(tx: Tx, run_id: str) -> dict[str, Claimed]:
    rows: list[Claimed] = rows_to(Claimed, tx.query(tx.sql.latest, id=run_id))
    return {row.node: row for row in rows}


def renew(tx: Tx, run_id: str, rows: Sequence[NewExecution], run_graph: RunGraph, now: int) -> None:
    """Give attempts that are yet to begin what the graph says of their nodes now."""
    Advance(run_graph.graph, run_graph.facts(now, held=False), run_graph.values, Recorded(tx, run_id)).renew(
        rows
    )


def _begin_again(
    tx: Tx, run_id: str, nodes: list[str], seen: dict[str, Past], run_graph: RunGraph | None, now: int
) -> None:
    """Another attempt at nodes that stopped.  Inline ones are left to the recount, which evaluates them.

    So are nodes that were jobs when they failed, and are inline in the graph of now.
    """
    if not nodes:
        return
    known_nodes = {} if run_graph is None else run_graph.graph.nodes
    latest = latest_of(tx, run_id)
    again = []
    for node in nodes:
        known = seen[node]
        if known.kind == "inline" or (node in known_nodes and known_nodes[node].inline):
            seen[node] = Past(node, known.attempt, ExecutionState.CANCELED, Outcome.REATTEMPTED, "inline")
        else:
            row = fresh(latest[node], now)
            again.append(row)
            seen[node] = Past(node, row.attempt, row.state, None, row.kind)
    if run_graph is not None:
        renew(tx, run_id, again, run_graph, now)
    write(tx, tx.sql.insert_executions, again)


def _carry_on(tx: Tx, run: RunRow, run_graph: RunGraph, seen: dict[str, Past], now: int) -> None:
    """After a change by an operator: continue the run, if nothing else stops it."""
    resumed = _let_go_on(tx, run, seen, now)
    _recount(tx, run, run_graph, seen, now, held=run.state == RunState.PAUSED and not resumed)


def _let_go_on(tx: Tx, run: RunRow, seen: Mapping[str, Past], now: int) -> bool:
    """A run that an error has paused continues when that error was the last one that stopped it.

    A paused run stays paused: what was begun again waits for the resume.
    """
    stuck = any(latest.stopped for latest in seen.values())
    if run.state != RunState.PAUSED:
        return False
    if run.error is None or stuck:
        tx.run(tx.sql.hold, id=run.id)
        return False
    set_state(tx, run, RunState.READY, None, now)
    tx.run(tx.sql.unhold, id=run.id, now=now)
    return True


def _recount(
    tx: Tx,
    run: RunRow,
    run_graph: RunGraph,
    seen: dict[str, Past],
    now: int,
    *,
    held: bool,
    mine: str | None = None,
) -> None:
    changes = Changes(now=now)
    advance = heal_run(tx, run_graph, seen, changes, now=now, held=held, before=run.signature, mine=mine)
    if advance.end is not None and not (held and advance.end.state == RunState.PAUSED):
        end_run(run.id, advance.end, now, changes)
        report(tx, run, advance.end.state, now, error=advance.end.error)
        if RunState(advance.end.state).final:
            changes.finished.add(run.id)
            changes.over.add(run.id)
            if run.parent is not None:
                changes.settled[run.parent, topic_of("child", run.id)] += 1
    write_changes(tx, changes)


def _skip_step(tx: Tx, run: RunRow, latest: Past, now: int) -> None:
    """A spawned step of a durable function: its value is None, and runs that wait for it continue."""
    row = latest_of(tx, run.id)[latest.node]
    if not latest.scheduled and not taken_up(run.state, latest.outcome or ""):
        raise InvalidState(
            f"skip step {latest.node!r} of", run.id, "failed, and the workflow has continued after it"
        )
    # One of a map with a limit that had not begun makes room for no other.
    waiting = latest.scheduled and row.topic is not None and readiness.waits(tx, run.id, row.topic, row.node)
    if latest.scheduled:
        _skip_scheduled(tx, run.id, latest, latest.node, now, result="null")
    else:
        ended = _skipped(row, latest.attempt + 1, None, now)
        ended.result = "null"
        write(tx, tx.sql.graphs.insert_ended, [ended])
    seen = past(tx, run.id)
    _let_go_on(tx, run, seen, now)
    if row.topic is not None:
        settled = Counter({(run.id, topic_of("steps", row.topic)): 1})
        readiness.count(tx, settled, now)
        if not waiting:
            readiness.release(tx, settled, now)


def _skip_scheduled(
    tx: Tx,
    run_id: str,
    latest: Past,
    name: str,
    now: int,
    *,
    digest: str | None = None,
    result: str | None = None,
) -> None:
    """Skip what waits.  Claiming takes no lock on the run: a worker may have begun it since it was read."""
    skipped = tx.run(
        tx.sql.graphs.skip_execution,
        id=run_id,
        node=latest.node,
        attempt=latest.attempt,
        result=result,
        now=now,
        digest=digest,
    )
    if not skipped:
        raise InvalidState(f"skip node {name!r} of", run_id, "executing")


def _skipped(row: Claimed, attempt: int, digest: str | None, now: int) -> EndedExecution:
    return EndedExecution(
        run_id=row.run_id,
        node=row.node,
        attempt=attempt,
        kind=row.kind,
        job=row.job,
        queue=row.queue,
        precedence=row.precedence,
        state=ExecutionState.SKIPPED,
        outcome=Outcome.SKIPPED_BY_OPERATOR,
        created_at=now,
        finished_at=now,
        ancestry_hash=digest,
    )
