"""Pause, resume, cancel: from outside, in one transaction, under the run's lock.

Skipping and reattempting single nodes is in nodes.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from ...errors import InvalidState
from ...kernel.advance import RunGraph
from ...kernel.control import GIVEN_AWAY, check, set_aside, stops, taken_up, undone
from ...kernel.decide import DECIDER
from ...kernel.journal import ACCEPTED
from ...kernel.rows import MAIN, Attribute, Claimed, RunRow, RunState, Step, StepState, topic_of
from ...kernel.settle import Outcome
from ..batch import readiness
from ..batch.chains import lock_current
from ..batch.locks import lock
from ..driver import Tx, rows_to, write
from .cancel import cancel_run, lock_family, note
from .claims import journal
from .listing import attributes_of
from .nodes import fresh, resume_graph, set_state


def pause(tx: Tx, run_id: str, *, reason: str | None, now: int) -> RunRow:
    """Stop new executions at once; what executes ends and is recorded."""
    run = lock_current(tx, run_id)
    check("pause", run.id, run.state)
    set_state(tx, run, RunState.PAUSED, None, now, reason=reason)
    tx.run(tx.sql.hold, id=run.id)
    note(tx, run.id, "paused", {"by": "operator", "reason": reason}, now)
    return run


def resume(
    tx: Tx, run_id: str, *, now: int, run_graph: RunGraph | None = None, accept_drift: bool = False
) -> RunRow:
    """Continue a paused run, or a failed one with a new retry budget."""
    run = _lock_with_family(tx, run_id)
    run_id = run.id
    check("resume", run_id, run.state)
    if run_graph is not None:
        note(tx, run_id, "resumed", {"from": run.state}, now)
        resume_graph(tx, run, run_graph, now)
        return run
    if run.state == RunState.FAILED and undone(journal(tx, [run_id])[run_id]):
        raise InvalidState("resume", run_id, "failed and undone", "app.fork(run) continues in a new run")
    if accept_drift:
        _accept_drift(tx, run_id, now)
    _resume_locked(tx, run, now)
    return run


def _lock_with_family(tx: Tx, run_id: str) -> RunRow:
    """Lock a run, or the current run of its chain, with its parent and all that is below it."""
    lock_family(tx, run_id)
    run = lock_current(tx, run_id)
    if run.id != run_id:
        lock_family(tx, run.id)
        run = lock_current(tx, run.id)
    return run


def _accept_drift(tx: Tx, run_id: str, now: int) -> None:
    """From here on, what was recorded up to now answers other calls than those it was recorded for."""
    seq = 1 + max((step.seq for step in journal(tx, [run_id])[run_id]), default=0)
    mark = Step(
        run_id=run_id,
        key=f"{ACCEPTED}/{seq}",
        seq=seq,
        kind=ACCEPTED,
        name="drift",
        state=StepState.COMPLETED,
        written_by=0,
        finished_at=now,
    )
    write(tx, tx.sql.upsert_steps, [mark])
    note(tx, run_id, "drift_accepted", {"by": "operator"}, now)


def _resume_locked(tx: Tx, run: RunRow, now: int) -> None:
    stopped = _stopped(tx, run)
    failed = any(row.node == MAIN and outcome != Outcome.RECOVERED for row, outcome in stopped)
    forgotten = set_aside(journal(tx, [run.id])[run.id], run.error, main_failed=failed)
    own = [step for step in forgotten if step.kind not in GIVEN_AWAY]
    write(tx, tx.sql.delete_steps, [{"run_id": run.id, "step_key": step.key} for step in own])
    for step in own:
        note(tx, run.id, "set_aside", {"step": step.key, "error": _raw(step.error)}, now)
    set_state(tx, run, RunState.READY, None, now)
    tx.run(tx.sql.unhold, id=run.id, now=now)
    given = {step.key for step in forgotten if step.kind == "spawn"}
    again = [
        fresh(row, now) for row, outcome in stopped if row.node == MAIN or row.node in given or stops(outcome)
    ]
    write(tx, tx.sql.insert_executions, again)
    note(tx, run.id, "resumed", {"from": run.state}, now)
    children = {step.name for step in forgotten if step.kind == "child"}
    for child, state in tx.query(tx.sql.children, id=run.id):
        if state == RunState.FAILED and child in children:
            _resume_locked(tx, lock(tx, child), now)


def _stopped(tx: Tx, run: RunRow) -> list[tuple[Claimed, str]]:
    """The nodes whose latest attempt is what stopped the run, or failed in a run that failed; and how."""
    latest: list[Claimed] = rows_to(Claimed, tx.query(tx.sql.latest, id=run.id))
    stopped: dict[tuple[str, int], str] = {
        (node, attempt): outcome
        for node, attempt, outcome in tx.query(tx.sql.failed_attempts, id=run.id)
        if taken_up(run.state, outcome)
    }
    return [(row, stopped[row.node, row.attempt]) for row in latest if (row.node, row.attempt) in stopped]


def cancel(tx: Tx, run_id: str, *, reason: str | None, now: int) -> list[str]:
    """End a run and its children; return the ids of all that were canceled.

    What has a compensation is undone by a worker, after this.
    """
    run = _lock_with_family(tx, run_id)
    run_id = run.id
    check("cancel", run_id, run.state)
    canceled = cancel_run(tx, run_id, reason=reason, now=now)
    if run.kind == DECIDER:  # its inbox is not processed any more
        tx.run(tx.sql.deciders.ignore_inputs, id=run_id, now=now)
    if run.parent is not None:
        readiness.count(tx, Counter({(run.parent, topic_of("child", run_id)): 1}), now)
    return canceled


def set_attributes(tx: Tx, run_id: str, changes: Mapping[str, Attribute | None], *, now: int) -> None:
    """Set attributes of a run, and remove those that are None; the others stay."""
    run = lock_current(tx, run_id)
    run_id, queries = run.id, tx.driver.queries
    names = [{"run_id": run_id, "name": name} for name in sorted(changes)]
    write(tx, tx.driver.adapt(queries.delete_attributes), names)
    kept = {name: value for name, value in changes.items() if value is not None}
    write(tx, tx.driver.adapt(queries.insert_attributes), attributes_of(run_id, kept, run.created_at))
    note(tx, run_id, "attributes", dict(changes), now)


def _raw(text: str | None) -> msgspec.Raw:
    return msgspec.Raw((text or "null").encode())
