"""Compensation: what was done is undone in reverse order, durably.

The failure that began it is recorded first; from then on the workflow's function
does not run again, only its undoing continues, whatever crashes meanwhile.
"""

from __future__ import annotations

from ..definitions.context import CancelRun, PauseRun, Routine
from ..errors import CompensationFailed
from ..kernel import rows
from ..kernel.journal import FINAL
from ..kernel.rows import StepState
from .calls import decode_call
from .frame import FrameCore, error_line
from .requests import Wait
from .spawn import look, spawned_key

BEGUN = "undo"
CANCEL = "cancel"  # the name of the mark where a step's policy has canceled the run
PATIENCE = 300_000_000  # microseconds between two tries at undoing a canceled run
LOOK_AGAIN = 1_000_000  # microseconds between two looks at a spawned step that has not ended yet


def begun(frame: FrameCore) -> rows.Step | None:
    """The mark that this run is being undone; its error is the run's."""
    return frame.journal.find(BEGUN)


def needed(frame: FrameCore) -> bool:
    """Whether there may be something to undo."""
    return frame.journal.undoable()


def undo_all(frame: FrameCore, error: str | None, name: str = BEGUN) -> Routine[None]:
    """Undo what can be undone, latest first; CompensationFailed when one cannot."""
    if not needed(frame):
        return
    frame.undoing = True
    if begun(frame) is None:
        yield from frame.record(
            frame.entry(BEGUN, "undo", name, StepState.WAITING, error=error, started_at=frame.now())
        )
    yield from _spawned_ended(frame)
    for entry in _done(frame):
        yield from _undo(frame, entry)


def _spawned_ended(frame: FrameCore) -> Routine[None]:
    """Wait until what was given away has ended: only then is it known what was done."""
    if any(entry.kind == "spawned" for entry in frame.journal.completed()):
        yield from look(frame)
        while any(entry.state not in FINAL for _, entry in _spawned(frame)):
            yield Wait(frame.now() + LOOK_AGAIN)
            yield from look(frame)


def _spawned(frame: FrameCore) -> list[tuple[int, rows.Step]]:
    """The spawned steps that can be undone, and when they were spawned."""
    marks = [entry for entry in frame.journal.completed() if entry.kind == "spawned"]
    found = [(mark.seq, frame.journal.find(mark.key.removeprefix(spawned_key("")))) for mark in marks]
    return [(seq, entry) for seq, entry in found if entry is not None]


def _done(frame: FrameCore) -> list[rows.Step]:
    """What was done and can be undone, latest first."""
    done = [
        (entry.seq, entry)
        for entry in frame.journal.completed()
        if entry.kind == "step" and entry.undo is not None
    ]
    # One that has ended after the run was canceled counts as canceled, but it was done.
    done += [
        (seq, entry) for seq, entry in _spawned(frame) if entry.result is not None and entry.error is None
    ]
    return [entry for _, entry in sorted(done, key=lambda item: item[0], reverse=True)]


def _undo(frame: FrameCore, entry: rows.Step) -> Routine[None]:
    step = frame.services.registry.step(entry.name)
    compensation = step.compensation
    if compensation is None:
        return
    args, kwargs = decode_call(frame.services.codec, step, entry.input or "{}")
    if compensation.accepts("result"):
        kwargs["result"] = frame.services.codec.decode(
            entry.result or "null", step.returns, f"the result of step {entry.key!r}"
        )
    key = f"undo/{entry.key}"
    while True:
        try:
            yield from frame.call_step(compensation, key, "undo", args, kwargs)
            return
        except (Exception, PauseRun, CancelRun) as raised:
            error = raised if isinstance(raised, Exception) else raised.error
            if frame.interrupt != "canceled":
                raise CompensationFailed(entry.key, error_line(error)) from error
            # A canceled run cannot be paused, and what was done must be undone: try on.
            frame.note("undo_failed", {"step": entry.key, "error": error_line(error)})
            later = frame.entry(
                key, "undo", compensation.name, StepState.RETRYING, attempt=0, wake_at=frame.now() + PATIENCE
            )
            yield from frame.replace(later)
            yield Wait(later.wake_at)
