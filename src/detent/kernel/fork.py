"""Forking: what a new run keeps of the journal of another.

    1. The order is that of the journal (`seq`).  Clocks of workers differ, so times do not count.
    2. A fork from a step keeps what was recorded before that step.  A fork without a step keeps
       everything that holds, and continues where the run ended.
    3. A step whose compensation has completed is not kept: it runs again.
    4. A spawned step or a child run is kept if it was asked for before the cut and has ended.
       Otherwise, or when it was canceled with its run, it is started again.
    5. Without a step, the failures that ended the run are not kept: those that a resume sets aside.

A spawned step or a child of a version that did not store its place (seq 0) is placed by its time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ..errors import InvalidState
from .control import GIVEN_AWAY, set_aside
from .journal import ORDER, POINTS
from .rows import MAIN, SCHEDULED_STATES, ExecutionRow, ExecutionState, RunRow, RunState, Step, StepState
from .settle import Outcome

_POINTS = (*POINTS, "result")
_NEVER_KEPT = ("undo", "progress")
_UNDO = "undo/"  # in front of the key of a step: its compensation
_SPAWNED = "spawned/"  # in front of the key of a spawned step: it has a compensation


def kept_for_fork(
    row: RunRow,
    steps: Sequence[Step],
    mains: Sequence[ExecutionRow],
    from_step: str | None,
    *,
    canceled_with: Collection[str] = (),
) -> list[Step]:
    """The entries that a fork of the run keeps, in order.

    `mains` are the executions of its function.  `from_step` is a key, or a name: then the first entry
    of that name.  `canceled_with` are the children that were canceled because the run was.
    """
    _check_undone(row, steps, mains)
    ordered = in_order(steps)
    if from_step is not None:
        ordered = _before(row.id, ordered, from_step)
        forgotten: set[str] = set()
    else:
        forgotten = {step.key for step in set_aside(list(steps), row.error, main_failed=_main_failed(mains))}
    forgotten |= {step.key for step in ordered if not _holds(step, canceled_with)}
    forgotten |= {
        step.key.removeprefix(_UNDO)
        for step in steps
        if step.kind == "undo" and step.key.startswith(_UNDO) and step.state == StepState.COMPLETED
    }
    forgotten |= {_SPAWNED + key for key in forgotten}
    # What runs again is answered later than it was: behind it, the recorded order does not hold.
    again = min(
        (step.seq for step in ordered if step.key in forgotten and step.kind in _POINTS), default=None
    )
    return [
        step
        for step in ordered
        if step.key not in forgotten and not (step.kind == ORDER and again is not None and step.seq > again)
    ]


def in_order(steps: Iterable[Step]) -> list[Step]:
    """The entries in the order of the journal."""
    placed = sorted((step for step in steps if step.seq > 0), key=lambda step: step.seq)
    ordered = [(step.seq, 0, step) for step in placed]
    for step in steps:
        if step.seq <= 0:
            moment = _moment(step)
            before = max((other.seq for other in placed if _moment(other) <= moment), default=0)
            ordered.append((before, moment + 1, step))
    return [step for _, _, step in sorted(ordered, key=lambda item: item[:2])]


def _before(run_id: str, ordered: list[Step], from_step: str) -> list[Step]:
    points = [step for step in ordered if step.kind in _POINTS]
    cut = next((step for step in points if from_step in (step.key, step.name)), None)
    if cut is None:
        keys = ", ".join(step.key for step in points) or "none yet"
        raise InvalidState(f"fork from {from_step!r} of", run_id, "missing that step", f"it has: {keys}")
    return ordered[: ordered.index(cut)]


def _holds(step: Step, canceled_with: Collection[str]) -> bool:
    """Whether an entry is an answer that the code may be given again."""
    if step.kind in _NEVER_KEPT:
        return False
    if is_canceled(step) and (step.kind == "spawn" or step.name in canceled_with):
        return False  # a spawned step is canceled only with its run
    return step.state in (StepState.COMPLETED, StepState.FAILED) or step.kind == "sleep"


def is_canceled(step: Step) -> bool:
    """Whether an entry is a spawned step or a child run that was canceled."""
    return step.kind in GIVEN_AWAY and step.state == StepState.FAILED and step.error is None


def _check_undone(row: RunRow, steps: Iterable[Step], mains: Sequence[ExecutionRow]) -> None:
    """Refuse a run whose compensations are not done yet: what they are going to undo does not hold."""
    begun = any(step.kind == "undo" for step in steps)
    undoable = any(step.undo is not None and step.state == StepState.COMPLETED for step in steps)
    if row.state == RunState.CANCELED:
        if (begun or undoable) and any(_active(main) for main in mains):
            raise InvalidState(
                "fork",
                row.id,
                "canceled, and its compensations are still running",
                "fork it when that is done",
            )
    elif begun and row.state != RunState.FAILED:
        hint = "run.resume() tries again" if row.state == RunState.PAUSED else "fork it when that is done"
        raise InvalidState("fork", row.id, "still running its compensations", hint)


def _active(main: ExecutionRow) -> bool:
    return main.state in SCHEDULED_STATES or main.state == ExecutionState.EXECUTING


def _main_failed(mains: Sequence[ExecutionRow]) -> bool:
    """Whether the function itself failed, or a policy ended it with an error."""
    latest = max((row for row in mains if row.node == MAIN), key=lambda row: row.attempt, default=None)
    return (
        latest is not None and latest.state == ExecutionState.FAILED and latest.outcome != Outcome.RECOVERED
    )


def _moment(step: Step) -> int:
    return step.started_at or step.finished_at or 0
