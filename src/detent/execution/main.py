"""A run's main function, from delivery to settling.

claimed -> frame -> the function runs -> value, error or signal -> settle, or park
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Any

from ..definitions.awaitables import close_unawaited, refuse_unawaited
from ..definitions.context import (
    Abandoned,
    Canceled,
    CancelRun,
    ContinueRun,
    PauseRun,
    Routine,
    Suspended,
    frame_var,
)
from ..errors import CompensationFailed, StepMismatch, StepsNotAsked
from ..events import Drifted
from ..kernel.operations import Park, Settle, Settled, Successor, Verdict
from ..kernel.rows import Claimed, ExecutionKey
from ..kernel.settle import Ending, Outcome, settle
from . import spawn, undo
from .bodies import exited
from .calls import decode_call
from .drivers import adrive_main, drive
from .failures import encode_error, raisable
from .requests import Commit, MainBody
from .rows import new_run
from .services import FreeSlot
from .workflow_frames import Frame

log = logging.getLogger("detent.worker")
_REPORTED = ("step", "spawn", "child", "receive", "sleep")


class MainFrame(Frame):
    """The frame of a run's main function, which a worker executes as it does every kind of work."""

    free_slot: FreeSlot | None = None  # of its worker

    def run(self) -> None:
        """Run a workflow written as `def`, in this thread."""
        frame_var.set(self)
        drive(self.services, _main(self), self.waits)

    def arun(self) -> Awaitable[None]:
        """Run a workflow written as `async def`, on this loop: what its task awaits."""
        frame_var.set(self)
        return adrive_main(self.services, _main(self), self.waits, self.amain)

    def show_long_steps(self, since: int) -> None:
        """Write steps into the journal that began before, and still run."""
        for key, (_, started) in list(self.running.items()):
            if started <= since:
                self.show(key)


def _main(frame: MainFrame) -> Routine[None]:
    try:
        try:
            ending = yield from _workflow(frame)
        except Suspended:
            yield from _park(frame)
        else:
            yield from _settle(frame, ending)
            _report(frame, ending)
    except (Abandoned, asyncio.CancelledError):
        log.info("run %s was released; another worker continues it", frame.run_id)
    finally:
        frame.close()


def _workflow(frame: Frame) -> Routine[Ending]:
    """Run the function, or continue to undo it; return how it ended."""
    if frame.interrupt == "canceled":
        return (yield from _canceled(frame))
    mark = undo.begun(frame) if frame.journal else None
    if mark is not None and mark.name == undo.CANCEL:
        return (yield from _canceled_by_step(frame, mark.error))
    if mark is not None:
        return (yield from _failed(frame, mark.error))
    try:
        return (yield from _function(frame))
    except Canceled:
        return (yield from _canceled(frame))
    except PauseRun as signal:
        frame.raised = signal.error
        if isinstance(signal.error, StepMismatch | StepsNotAsked):
            frame.services.drifted(_drift(frame, signal.error))  # committed with the pause, or before it
        return Ending(outcome=Outcome.PAUSED_BY_EXCEPTION, now=frame.now(), error=encode_error(signal.error))
    except CancelRun as signal:
        frame.raised = signal.error
        return (yield from _canceled_by_step(frame, encode_error(signal.error)))
    except Exception as error:
        frame.raised = error
        stored = encode_error(error)
        if frame.definition.on_exception == "pause":
            return Ending(outcome=Outcome.PAUSED_BY_EXCEPTION, now=frame.now(), error=stored)
        return (yield from _failed(frame, stored))


def _function(frame: Frame) -> Routine[Ending]:
    """Run the function to its own end: a result, or a new run that continues it."""
    try:
        value = yield from _body(frame)
        if frame.signal is not None:
            raise frame.signal
        if frame.continuing is not None:
            raise frame.continuing  # the code swallowed the signal with a bare `except:`
    except ContinueRun as signal:
        yield from spawn.all_ended(frame)
        frame.continuing = signal
        _report_unasked(frame)
        return Ending(outcome=Outcome.CONTINUED, now=frame.now())
    what = f"the result of {frame.definition.name!r}"
    result, _ = frame.services.codec.stored(value, what, frame.definition.returns)  # and can be read back
    if frame.outgoing or frame.unwritten or frame.interrupt == "canceled":
        yield from frame.checkpoint()
    _report_unasked(frame)
    return Ending(outcome=Outcome.SUCCESS, now=frame.now(), result=result)


def _body(frame: Frame) -> Routine[Any]:
    definition, has_deadline = frame.definition, frame.claimed.deadline is not None
    if has_deadline:
        frame.check_deadline()
    args, kwargs = decode_call(frame.services.codec, definition, frame.claimed.run_input)
    if definition.wants_context:
        args = (frame.context, *args)
    try:
        value = yield MainBody(definition, args, kwargs)
    except BaseException as error:
        close_unawaited(frame)
        if isinstance(error, SystemExit):
            raise exited(definition.name, error) from error
        raise
    if frame.suspending or (frame.waits and not definition.is_async):
        # The code swallowed the signal with a bare `except:`; it leaves anyway.
        raise Suspended
    if frame.unawaited is not None:
        refuse_unawaited(frame)
    if has_deadline:
        frame.check_deadline()  # a function without steps has not looked at it before
    return value


def _failed(frame: Frame, error: str | None) -> Routine[Ending]:
    try:
        yield from undo.undo_all(frame, error)
    except CompensationFailed as failure:
        frame.raised = failure
        return Ending(outcome=Outcome.PAUSED_BY_EXCEPTION, now=frame.now(), error=encode_error(failure))
    return Ending(outcome=Outcome.FAILED, now=frame.now(), error=error)


def _canceled(frame: Frame) -> Routine[Ending]:
    yield from undo.undo_all(frame, None)
    return Ending(outcome=Outcome.CANCELED_BY_OPERATOR, now=frame.now())


def _canceled_by_step(frame: Frame, error: str | None) -> Routine[Ending]:
    """A step's policy cancels the run with its error."""
    frame.interrupt = "canceled"
    yield from undo.undo_all(frame, error, undo.CANCEL)
    return Ending(outcome=Outcome.CANCELED_BY_EXCEPTION, now=frame.now(), error=error)


def _report_unasked(frame: Frame) -> None:
    """Report what is recorded, and the code of today did not ask for: the record is kept."""
    if frame.claimed.deliveries > 1:
        accepted = frame.journal.accepted
        unasked = [
            step
            for step in frame.journal.unasked()
            if step.kind in _REPORTED and (not step.seq or step.seq > accepted)
        ]
        if unasked:
            keys = [step.key for step in unasked]
            frame.services.drifted(frame.drift("unasked", *keys), ("unasked", {"steps": keys}))


def _drift(frame: Frame, error: StepMismatch | StepsNotAsked) -> Drifted:
    if isinstance(error, StepsNotAsked):
        return frame.drift("unasked", *error.recorded, asked=error.step, paused=True)
    return frame.drift("mismatch", error.step, recorded=error.recorded, asked=error.asked, paused=True)


def _settle(frame: MainFrame, ending: Ending) -> Routine[None]:
    answer: Settled = yield Commit(_settling(frame, ending))
    if answer.verdict is Verdict.CANCELED:
        # It was canceled before it could end, and has something to undo.
        ending = yield from _canceled(frame)
        answer = yield Commit(_settling(frame, ending))
    if answer.verdict is Verdict.STALE:
        raise Abandoned


_CONSEQUENCES = {
    Outcome.FAILED: "it has failed",
    Outcome.PAUSED_BY_EXCEPTION: "it is paused by an error",
    Outcome.CANCELED_BY_EXCEPTION: "it is canceled by an error",
}


def _report(frame: Frame, ending: Ending) -> None:
    """The end is durable: now the exception goes to the log, and to the app's error hook."""
    what = _CONSEQUENCES.get(ending.outcome)
    if what is not None:
        # Undoing may have taken several deliveries: then only the stored error is left.
        error = frame.raised or raisable(frame.definition.name, ending.error)
        frame.raised = None
        frame.services.failed(error, frame.context, what, level=logging.ERROR)


def _settling(frame: MainFrame, ending: Ending) -> Settle:
    claimed = frame.claimed
    may_undo = not frame.undoing and undo.needed(frame)
    # Only then is there nothing left to execute, whatever the settle answers.
    free_slot = frame.free_slot if ending.outcome is Outcome.SUCCESS and not may_undo else None
    return Settle(
        worker=claimed.worker,
        key=key_of(claimed),
        token=claimed.token,
        now=ending.now,
        plan=settle(claimed, ending),
        parent=claimed.parent,
        waited=claimed.deliveries > 1,
        about=claimed,
        unless_canceled=may_undo,
        successor=_successor(frame) if ending.outcome is Outcome.CONTINUED else None,
        hands_slot_on=not (free_slot is not None and free_slot(frame)),
    )


def _successor(frame: Frame) -> Successor:
    """The run that continues this one: begun by this version of the code."""
    claimed = frame.claimed
    assert frame.continuing is not None
    run, main = new_run(
        frame.definition,
        "",
        frame.continuing.input,
        queue=claimed.run_queue or claimed.queue,
        priority=claimed.run_priority,
        now=frame.now(),
        queue_key=claimed.run_key,
        version=frame.services.version,
    )
    return Successor(input=run.input, main=main, versions=run.versions)


def _park(frame: Frame) -> Routine[None]:
    """Put the run down until what it waits for; with nothing to wait for, it is due at once."""
    if not frame.live:
        raise Abandoned
    times = [wait.wake_at for wait in frame.waits if wait.wake_at is not None]
    awaits = {(item.kind, item.name): item for wait in frame.waits for item in wait.awaits}
    steps, frame.unwritten = frame.unwritten, []
    yield Commit(
        Park(
            worker=frame.claimed.worker,
            key=key_of(frame.claimed),
            token=frame.claimed.token,
            now=frame.now(),
            wake_at=min(times) if times else None if awaits else frame.now(),
            awaits=list(awaits.values()),
            steps=steps,
            undoing=frame.undoing,
            about=frame.claimed,
        )
    )


def key_of(claimed: Claimed) -> ExecutionKey:
    return ExecutionKey(run_id=claimed.run_id, node=claimed.node, attempt=claimed.attempt)
