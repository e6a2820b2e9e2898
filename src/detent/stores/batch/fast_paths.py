"""The commonest batches in a few statements: starts and ends of functions, and records of steps.

A driver applies them by statements of its own, one for each kind, without reading first.  Each statement
checks under its locks what the long way (batch.py) would have read.  Where it does not find that, it
writes nothing, and the long way tells why.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from ...kernel.operations import Operation, Record, Settle, Settled, Start, Started, Verdict
from ...kernel.rows import MAIN, ExecutionState, NewExecution, NewRun, RunState, Step
from .names import unfit, unfit_run

MOST_STARTS = 10_000  # runs in one statement
LARGEST_INPUTS = 4 * 1024 * 1024  # characters of their inputs together
ENDED = (RunState.FINISHED, RunState.FAILED)


class Unexpected(Exception):
    """The database does not hold what a quick batch needs: it is rolled back, and the long way tells why."""


class Beginning(msgspec.Struct, gc=False):
    """The start of a function that is due at once; with a token, our worker holds it from the beginning."""

    id: str
    type: str
    queue: str
    priority: int
    input: str
    created_at: int
    token: str | None
    versions: str | None


class End(msgspec.Struct, gc=False):
    """The end of a function's only execution, and of its run with it."""

    run_id: str
    node: str
    attempt: int
    token: str
    state: str
    outcome: str
    run_state: str
    finished_at: int
    result: str | None
    error: str | None


class Quick(msgspec.Struct):
    """A batch that a driver may apply by statements of its own."""

    operations: Sequence[Operation]
    worker: str  # empty: no worker writes here
    starts: list[Beginning]
    steps: list[Step]
    ends: list[End]
    wants_help: bool  # whether a start is for other processes

    @property
    def makes_ready(self) -> bool:
        """Whether a start waits for a worker to claim it."""
        return any(start.token is None for start in self.starts)

    def begins_on(self, queues: Collection[str]) -> bool:
        """Whether a function begins on one of these queues."""
        return bool(queues) and any(start.queue in queues for start in self.starts)

    def answers(
        self, *, started: bool = False, recorded: bool = False, ended: Collection[str] = ()
    ) -> list[Any]:
        """What each operation came to; None if the long way has to tell."""
        answers: list[Any] = []
        for op in self.operations:
            if type(op) is Record:
                answers.append(Verdict.APPLIED if recorded else None)
            elif type(op) is Settle:
                ends = op.key.run_id in ended
                answers.append(Settled(verdict=Verdict.APPLIED, ended=op.plan.run) if ends else None)
            elif type(op) is Start:
                answers.append([Started(id=run.id, created=True) for run in op.runs] if started else None)
        return answers


def quick_batch(operations: Sequence[Operation]) -> Quick | None:
    """The rows of a batch of starts of functions, and of records and ends by one worker; or None."""
    worker = ""
    wants_help = False
    starts: list[Beginning] = []
    steps: dict[tuple[str, str], Step] = {}
    ends: dict[str, End] = {}
    for op in operations:
        if type(op) is Record:  # by class: a chain of isinstance() counts
            if op.executions or op.children or op.consume or op.reopen or op.once or op.appends:
                return None
            for step in op.steps:
                if (step.run_id, step.key) in steps or unfit(step) is not None:
                    return None
                steps[step.run_id, step.key] = step
            writer = op.worker
        elif type(op) is Settle:
            end = _end_of(op)
            if end is None or end.run_id in ends:
                return None
            ends[end.run_id] = end
            writer = op.worker
        elif type(op) is Start:
            wants_help = wants_help or op.remote
            begun = _beginnings_of(op)
            if begun is None or len(starts) + len(begun) > MOST_STARTS:
                return None
            starts += begun
            writer = next((row.worker for row in op.executions if row.worker is not None), worker)
        else:
            return None
        if worker and writer != worker:
            return None
        worker = writer
    if not (starts or steps or ends):
        return None
    # In the order of the keys, as all tables are written.
    return Quick(
        operations,
        worker,
        sorted(starts, key=attrgetter("id")),
        [steps[key] for key in sorted(steps)],
        [ends[id] for id in sorted(ends)],
        wants_help,
    )


def is_plain_start(op: Start) -> bool:
    """Whether it begins functions only, as far as one can tell without a look at each."""
    if op.chosen or op.steps or op.graphs or op.ended or op.readiness or op.ends:
        return False
    return len(op.runs) <= MOST_STARTS


def _beginnings_of(op: Start) -> list[Beginning] | None:
    """The functions that begin; None for any other start."""
    if not is_plain_start(op) or not op.runs or len(op.runs) != len(op.executions):
        return None
    if sum(len(run.input) for run in op.runs) > LARGEST_INPUTS:
        return None
    if len({main.worker for main in op.executions if main.worker is not None}) > 1:
        return None
    begun: list[Beginning] = []
    for run, main in zip(op.runs, op.executions, strict=True):
        if not _is_plain(run, main) or unfit_run(run) is not None:
            return None
        begun.append(
            Beginning(
                run.id, run.type, run.queue, run.priority, run.input, run.created_at, main.token, run.versions
            )
        )
    return begun


def _is_plain(run: NewRun, main: NewExecution) -> bool:
    """Whether the rows of a start hold only what a `Beginning` says, and defaults for the rest."""
    plain = NewRun(run.id, run.type, "function", run.queue, run.priority, run.input, run.created_at)
    plain.versions = run.versions
    if run != plain:
        return False
    state, deliveries, started_at = ExecutionState.READY, 0, None
    if main.token is not None:
        state, deliveries, started_at = ExecutionState.EXECUTING, 1, run.created_at
    return main == NewExecution(
        run.id,
        MAIN,
        1,
        "main",
        run.type,
        run.queue,
        -run.priority,
        state,
        run.created_at,
        run.created_at,
        worker=main.worker,
        token=main.token,
        deliveries=deliveries,
        started_at=started_at,
    )


def _end_of(op: Settle) -> End | None:
    """The end of a run that nothing else follows from; None for any other settle."""
    plan, run = op.plan, op.plan.run
    if run is None or run.state not in ENDED or (run.result, run.error) != (plan.result, plan.error):
        return None
    if op.run_graph is not None or op.parent is not None or op.waited or op.steps:
        return None
    if op.successor is not None:
        return None
    if plan.again is not None or plan.topic is not None or plan.history or plan.goes_on:
        return None
    return End(
        op.key.run_id,
        op.key.node,
        op.key.attempt,
        op.token,
        plan.state,
        plan.outcome,
        run.state,
        op.now,
        plan.result,
        plan.error,
    )
