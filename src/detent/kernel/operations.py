"""Operations: what callers ask the committer to write, and the answers."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from .rows import (
    Await,
    Claimed,
    EndedExecution,
    ExecutionKey,
    ExecutionState,
    GraphPart,
    HistoryRow,
    NewEntry,
    NewExecution,
    NewRun,
    Readiness,
    Row,
    RunEnd,
    RunState,
    Step,
)


class Operation(msgspec.Struct, kw_only=True, gc=False):
    """A write that shares its commit with others."""


class Start(Operation):
    """Begin runs.  With `chosen` ids, a run that exists already is found, not made."""

    runs: list[NewRun]
    executions: list[NewExecution]
    steps: list[Step] = []
    graphs: list[GraphPart] = []
    ended: list[EndedExecution] = []
    readiness: list[Readiness] = []
    ends: dict[str, RunEnd] = {}  # of graphs that have nothing to execute
    compiled: dict[str, Any] = {}  # the graphs that are stored with it, for the worker of this process
    chosen: bool = False
    remote: bool = False  # some of it is for other processes: wake them


class Record(Operation):
    """Write journal entries of a run that `worker` holds, and what belongs to them."""

    worker: str
    run_id: str
    steps: list[Step] = []
    executions: list[NewExecution] = []
    children: Start | None = None
    reopen: bool = False  # overwrite an entry that was final: a failed undoing is tried again
    once: bool = False  # fail where it is recorded: user code has written in the same transaction
    consume: list[int] = []
    appends: list[NewEntry] = []  # to streams of the run
    about: Claimed | None = None  # the execution that writes it, for events


class Park(Operation):
    """Put an execution down until a time, or until something that it awaits."""

    worker: str
    key: ExecutionKey
    token: str
    now: int
    wake_at: int | None = None
    awaits: list[Await] = []
    steps: list[Step] = []
    undoing: bool = False  # it undoes a canceled run: that continues, at its own pace
    about: Claimed | None = None  # the execution, for events


class Note(Operation):
    """Lines for the history of runs, and runs to mark as drifted."""

    events: list[HistoryRow] = []
    drifted: list[str] = []  # their ids
    announces: Any = None  # the event that subscribers receive when this is committed


class SettlePlan(Row):
    """What follows from one finished execution (kernel.settle makes it)."""

    state: str
    outcome: str
    result: str | None = None
    error: str | None = None
    again: NewExecution | None = None
    topic: str | None = None
    run: RunEnd | None = None
    history: list[HistoryRow] = []  # noqa: RUF012  (msgspec copies it)
    goes_on: bool = False  # the node has settled: its followers are to be looked at


class Successor(Row):
    """The run that continues another one; the store copies the rest from that run."""

    input: str
    main: NewExecution  # without the id of its run, which the store gives it
    versions: str | None = None


class Settle(Operation):
    """End an execution, and all that follows from it."""

    worker: str
    key: ExecutionKey
    token: str
    now: int
    plan: SettlePlan
    parent: str | None = None
    steps: list[Step] = []
    waited: bool = True  # it may have left a wait behind, to be cleared at the run's end
    unless_canceled: bool = False  # of a canceled run that has something to undo: not yet
    run_graph: Any = None  # of a node: the kernel's RunGraph, by which its run continues
    successor: Successor | None = None  # the run continues as a new one
    hands_slot_on: bool = True  # the worker has not given its slot to another execution yet
    about: Claimed | None = None  # the execution, for events


class Send(Operation):
    """Put a message before a run; the same id again changes nothing."""

    run_id: str
    message_id: str
    name: str
    value: str
    sent_at: int


def due_of(operation: Operation) -> int | None:
    """When something that this operation parks or starts is due."""
    if isinstance(operation, Park):
        return operation.wake_at
    if isinstance(operation, Settle):
        return operation.plan.again.scheduled_for if operation.plan.again is not None else None
    if isinstance(operation, Start):
        timers = [row.scheduled_for for row in operation.executions if row.state == ExecutionState.TIMER]
        return min((due for due in timers if due is not None), default=None)
    return None


def first_deadline(start: Start) -> int | None:
    """The earliest deadline of the runs that this operation begins."""
    return min((run.deadline for run in start.runs if run.deadline is not None), default=None)


class RunChange(Row):
    """A run that was paused, resumed, canceled or ended by something else than a settle."""

    run_id: str
    state: str  # READY: it was resumed
    at: int
    error: str | None = None
    reason: str | None = None
    type: str | None = None  # None: not read in that transaction
    queue: str | None = None


class Recovered(Row):
    """An execution whose worker is gone, and what follows."""

    execution: Claimed
    plan: SettlePlan
    at: int


class Started(Row):
    id: str
    created: bool


class Verdict(StrEnum):
    APPLIED = "applied"
    STALE = "stale"  # the lease was lost: nothing was changed
    CANCELED = "canceled"  # the run was canceled: nothing new begins in it
    OUTDATED = "outdated"  # the run has been given another graph: look at it, then settle again


class Settled(Row):
    verdict: Verdict
    run_state: str = RunState.READY
    ended: RunEnd | None = None
    woken: bool = False
