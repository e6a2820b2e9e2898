"""Compensation: what was done is undone in reverse order, durably.

The failure that began it is recorded first; from then on the workflow's function
does not run again, only its undoing goes on, whatever crashes meanwhile.
"""

from __future__ import annotations

from typing import Any

from ..context import Routine
from ..errors import CompensationFailed, UnknownDefinition
from ..functions import Step
from ..kernel import model
from ..kernel.model import StepState
from .calls import decode_call
from .failures import raisable
from .frame import FrameCore, error_line
from .requests import Wait

BEGUN = "undo"
PATIENCE = 300_000_000  # microseconds between two tries at undoing a canceled run


def begun(frame: FrameCore) -> model.Step | None:
    """The mark that this run is being undone; its error is the run's."""
    return frame.journal.find(BEGUN)


def undo_all(frame: FrameCore, error: str | None) -> Routine[None]:
    """Undo what can be undone, latest first; CompensationFailed when one cannot."""
    todo = [
        (entry, step) for entry in reversed(frame.journal.completed()) if (step := _undoable(frame, entry))
    ]
    if not todo:
        return
    frame.undoing = True
    if begun(frame) is None:
        mark = frame.entry(BEGUN, "undo", BEGUN, StepState.WAITING, error=error, started_at=frame.now())
        yield from frame.record(mark)
    for entry, step in todo:
        yield from _undo(frame, entry, step)


def _undoable(frame: FrameCore, entry: model.Step) -> Step[Any, Any] | None:
    if (entry.kind == "step" and entry.undo is None) or entry.kind not in ("step", "spawn"):
        return None
    try:
        return frame.services.registry.step(entry.name)
    except UnknownDefinition:
        if entry.kind == "step":
            raise
        return None


def _undo(frame: FrameCore, entry: model.Step, step: Step[Any, Any]) -> Routine[None]:
    compensation = step.compensation
    if compensation is None:
        return
    args, kwargs = decode_call(frame.services.codec, step, entry.input or "{}")
    if compensation.accepts("result"):
        kwargs["result"] = frame.recorded(step.name, entry, step.returns)
    key = f"undo/{entry.key}"
    while True:
        try:
            yield from frame.call_step(compensation, key, "undo", args, kwargs)
            return
        except Exception as error:
            if frame.interrupt != "canceled":
                raise CompensationFailed(entry.key, error_line(error)) from error
            # A canceled run cannot be paused, and what was done must be undone: try on.
            frame.note("undo_failed", {"step": entry.key, "error": error_line(error)})
            later = frame.entry(
                key, "undo", compensation.name, StepState.RETRYING, attempt=0, wake_at=frame.now() + PATIENCE
            )
            yield from frame.replace(later)
            yield Wait(later.wake_at)


def original_error(mark: model.Step) -> Exception | None:
    """The failure that the undoing began with; None where it was a cancel."""
    return raisable("main", mark.error) if mark.error is not None else None
