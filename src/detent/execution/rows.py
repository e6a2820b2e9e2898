"""Rows that several kinds of executions make: a run that begins, an execution as a claim returns it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..definitions.functions import FunctionWorkflow
from ..kernel.rows import MAIN, Claimed, ExecutionState, NewExecution, NewRun, RunRow


def new_run(
    workflow: FunctionWorkflow[Any, Any],
    run_id: str,
    text: str,
    *,
    queue: str,
    priority: int,
    now: int,
    due: int | None = None,
    deadline: int | None = None,
    queue_key: str | None = None,
    version: str | None = None,
) -> tuple[NewRun, NewExecution]:
    """The rows of a run that begins: itself, and the first execution of its main node."""
    pin = version if workflow.pin else None
    run = NewRun(
        id=run_id,
        type=workflow.name,
        kind="function",
        queue=queue,
        priority=priority,
        input=text,
        created_at=now,
        deadline=deadline,
        queue_key=queue_key,
        versions=version,
        pin=pin,
    )
    main = NewExecution(
        run_id=run_id,
        node=MAIN,
        attempt=1,
        kind="main",
        job=workflow.name,
        queue=queue,
        precedence=-priority,
        state=ExecutionState.TIMER if due is not None and due > now else ExecutionState.READY,
        created_at=now,
        scheduled_for=max(due or now, now),
        queue_key=queue_key,
        pin=pin,
    )
    return run, main


def claimed_of(row: NewExecution, run: NewRun | RunRow | Claimed) -> Claimed:
    """A new execution as a claim would return it; `run` is its run, or another execution of it."""
    if isinstance(run, Claimed):
        input, kind, queue, priority = run.run_input, run.run_kind, run.run_queue, run.run_priority
        key, versions = run.run_key, run.versions
    else:
        input, kind, queue, priority = run.input, run.kind, run.queue, run.priority
        key, versions = run.queue_key, run.versions
    return Claimed(
        run_id=row.run_id,
        node=row.node,
        attempt=row.attempt,
        kind=row.kind,
        job=row.job,
        queue=row.queue,
        precedence=row.precedence,
        worker=row.worker or "",
        token=row.token or "",
        deliveries=row.deliveries,
        recoveries=row.recoveries,
        failures=row.failures,
        input=row.input,
        topic=row.topic,
        type=run.type,
        run_input=input,
        run_state="ready",
        parent=run.parent,
        parent_key=run.parent_key,
        deadline=run.deadline,
        forked_from=run.forked_from,
        started_at=row.started_at,
        run_kind=kind,
        run_queue=queue,
        run_priority=priority,
        hero_type=run.hero_type,
        hero_id=run.hero_id,
        signature=run.signature,
        frozen_at=run.frozen_at,
        queue_key=row.queue_key,
        run_key=key,
        versions=versions,
        pin=row.pin,
    )


def claimed_of_run(run: NewRun | RunRow) -> Claimed:
    """The facts of a run of which no execution is claimed yet, for its RunGraph."""
    nothing = NewExecution(
        run_id=run.id,
        node="",
        attempt=0,
        kind="node",
        job="",
        queue=run.queue,
        precedence=-run.priority,
        state="",
        created_at=run.created_at,
        scheduled_for=None,
        pin=run.pin,
    )
    claimed = claimed_of(nothing, run)
    if isinstance(run, RunRow):
        claimed.run_state = run.state
    return claimed


def tokens_of(leased: Sequence[NewExecution]) -> set[str]:
    return {row.token for row in leased if row.token is not None}
