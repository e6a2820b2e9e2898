"""The commonest batches in one or two statements: records of steps, and ends of functions.

A driver applies them by statements of its own, without reading first.  Each statement checks under its
locks what the long way (batch.py) would have read.  Where it does not find that, it writes nothing, and
the long way tells why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ...kernel.operations import Operation, Record, Settle, Settled, Verdict
from ...kernel.rows import RunState, Step
from ..driver import Tx, Way
from .names import unfit

ENDED = (RunState.FINISHED, RunState.FAILED)


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
    worker: str
    steps: list[Step]
    ends: list[End]

    def answers(self, *, recorded: bool, ended: set[str]) -> list[Any]:
        """What each operation came to; None where the long way has to tell."""
        return [
            (Verdict.APPLIED if recorded else None) if isinstance(op, Record) else _answer(op, ended)
            for op in self.operations
        ]


def records_only(
    operations: Sequence[Operation], record: Callable[[Tx, str, list[Step]], bool]
) -> Way | None:
    """The way of a driver that has a statement for records; None for any other batch."""
    found = quick_batch(operations)
    if found is None or found.ends:
        return None
    return Way(lambda tx: found.answers(recorded=record(tx, found.worker, found.steps), ended=set()))


def quick_batch(operations: Sequence[Operation]) -> Quick | None:
    """The steps and ends of a batch in which one worker records steps and ends functions; or None."""
    worker = None
    steps: dict[tuple[str, str], Step] = {}
    ends: dict[str, End] = {}
    for op in operations:
        if isinstance(op, Record):
            if op.executions or op.children or op.consume or op.reopen:
                return None
            for step in op.steps:
                if (step.run_id, step.key) in steps or unfit(step) is not None:
                    return None
                steps[step.run_id, step.key] = step
        elif isinstance(op, Settle):
            end = _end_of(op)
            if end is None or end.run_id in ends:
                return None
            ends[end.run_id] = end
        else:
            return None
        if worker is not None and op.worker != worker:
            return None
        worker = op.worker
    if worker is None or not (steps or ends):
        return None
    # In the order of the keys, as all tables are written.
    return Quick(operations, worker, [steps[key] for key in sorted(steps)], [ends[id] for id in sorted(ends)])


def _end_of(op: Settle) -> End | None:
    """The end of a run that nothing else follows from; None for any other settle."""
    plan, run = op.plan, op.plan.run
    if run is None or run.state not in ENDED or (run.result, run.error) != (plan.result, plan.error):
        return None
    if op.run_graph is not None or op.parent is not None or op.waited or op.steps:
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


def _answer(op: Operation, ended: set[str]) -> Settled | None:
    assert isinstance(op, Settle)
    return Settled(verdict=Verdict.APPLIED, ended=op.plan.run) if op.key.run_id in ended else None
