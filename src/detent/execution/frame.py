"""A frame: one delivery of a run's `main` to this worker.

The frame knows the run's journal and makes routines of what the workflow asks for:
steps here, waiting in waits.py, giving work away in spawning.py, undoing in undo.py.
How a routine's requests are performed is the driver's business (drivers.py).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable
from typing import Any, NoReturn, TypeVar

from ..clock import span_micros
from ..definitions.context import (
    Abandoned,
    Call,
    Canceled,
    CancelRun,
    Context,
    ContinueRun,
    PauseRun,
    Routine,
    RunInfo,
    Suspended,
    Unawaited,
)
from ..definitions.functions import FunctionWorkflow, Step
from ..errors import PayloadError
from ..kernel import rows as kernel_rows
from ..kernel.journal import ANSWERS, FINAL, Journal
from ..kernel.operations import Record, Verdict
from ..kernel.rows import Claimed, NewEntry, StepState
from ..stores.driver import user_transaction
from .calls import encode_call
from .deadlines import deadline_exceeded, has_passed
from .drift_checks import DriftChecks
from .failures import encode_error, message_of, raisable, unwrapped
from .order import Turns
from .outgoing import Outgoing
from .publish import post_published
from .requests import Body, Commit, Pause, TransactionalBody, Wait
from .run_streams import Appending
from .services import Services

T = TypeVar("T")
SHORT_WAIT = 50_000  # microseconds: less is waited for in place


class FrameCore(Appending, DriftChecks):
    """What all routines of a frame share: journal, interrupts, records."""

    # Thousands of frames live side by side, and most of them never change these.
    live = True
    delivery = ""  # how far the worker has come with it
    signal: PauseRun | CancelRun | ContinueRun | None = None  # of a task, for the whole run
    continuing: ContinueRun | None = None  # the function has asked to continue as a new run
    suspending = False
    undoing = False
    raised: Exception | None = None  # why the run ends, for the log and the error hook
    outgoing: Outgoing | None = None
    turns: Turns | None = None  # of a workflow that runs several tasks
    taken: frozenset[int] = frozenset()  # messages that a branch of this workflow is receiving
    carrying = 0  # commits under way that carry what this or another line left unwritten
    unawaited: Unawaited | None = None  # see definitions/awaitables.py
    shown: frozenset[str] = frozenset()  # running steps that the journal shows as executing

    def __init__(
        self,
        services: Services,
        claimed: Claimed,
        definition: FunctionWorkflow[Any, Any],
        steps: Iterable[kernel_rows.Step] = (),
    ) -> None:
        self.services = services
        self.now = services.clock.now
        self.claimed = claimed
        self.definition = definition
        self.run_id = claimed.run_id
        recorded = list(steps)
        self.journal = Journal(recorded)
        # How often in a row a worker died in what this run does next.  What this attempt has recorded is
        # behind that place, so that from there on nothing is known to have died.
        moved_on = claimed.recoveries > 0 and any(
            step.written_by == claimed.attempt and step.kind != "published" for step in recorded
        )
        self.crashes = 0 if moved_on else claimed.recoveries
        self.info = RunInfo(claimed.run_id, claimed.type, claimed.parent, claimed.forked_from)
        self.interrupt: str | None = (
            claimed.run_state if claimed.run_state in ("paused", "canceled") else None
        )
        self.unwritten: list[kernel_rows.Step] = []  # records that travel with the next commit
        self.running: dict[str, tuple[Context, int]] = {}  # steps whose body runs, and since when

    # Records

    def entry(self, key: str, kind: str, name: str, state: StepState, **facts: Any) -> kernel_rows.Step:
        """A new journal entry of this run."""
        return kernel_rows.Step(
            run_id=self.run_id,
            key=key,
            seq=self.journal.next_seq(),
            kind=kind,
            name=name,
            state=state,
            written_by=self.claimed.attempt,
            **facts,
        )

    def record(
        self,
        *steps: kernel_rows.Step,
        consume: list[int] | None = None,
        appends: list[NewEntry] | None = None,
    ) -> Routine[None]:
        """Make entries durable, with whatever waits to be written."""
        if self.turns is not None:
            for step in steps:
                self.expect(step)
        carried = self.unwritten
        operation = Record(
            worker=self.claimed.worker,
            run_id=self.run_id,
            steps=[*carried, *steps],
            consume=consume or [],
            appends=appends or [],
            about=self.claimed,
        )
        if carried:
            yield from self._commit_carrying(operation, carried)
        elif not self.live:
            raise Abandoned
        elif (answer := (yield Commit(operation))) is not Verdict.APPLIED:
            self.answered(answer)
        for step in steps:
            self.journal.put(step)

    def _commit_carrying(self, operation: Record, carried: list[kernel_rows.Step]) -> Routine[None]:
        self.unwritten = []
        self.carrying += 1
        try:
            yield from self.commit(operation)
        except asyncio.CancelledError:
            # Raised in place of the commit (drivers.adrive): other tasks rely on what they left unwritten.
            self.unwritten = carried + self.unwritten
            raise
        finally:
            self.carrying -= 1

    def expect(self, step: kernel_rows.Step) -> None:
        """An answer is about to be recorded: its place in the order is known from here on."""
        if self.turns is not None and step.kind in ANSWERS and step.state in FINAL:
            self.turns.expect(step.key, step.seq)

    def replace(self, step: kernel_rows.Step) -> Routine[None]:
        """Overwrite a final entry: a failed undoing is tried again."""
        self.journal.put(step)
        yield from self.commit(
            Record(
                worker=self.claimed.worker, run_id=self.run_id, steps=[step], reopen=True, about=self.claimed
            )
        )

    def commit(self, operation: Any) -> Routine[Any]:
        if not self.live:
            raise Abandoned
        answer = yield Commit(operation)
        self.answered(answer)
        return answer

    def answered(self, answer: Any) -> None:
        """Leave where the store says that this run is no longer ours, or over."""
        if answer is Verdict.STALE:
            self.live = False
            raise Abandoned
        if answer is Verdict.CANCELED:
            self.interrupt = "canceled"
            raise Canceled

    # Interrupts

    def undisturbed(self) -> bool:
        """Whether `checkpoint` has nothing to do here: one call, before nearly every step."""
        return (
            self.live
            and not self.suspending
            and self.interrupt is None
            and self.claimed.deadline is None
            and not (self.outgoing or self.unwritten or self.carrying)
        )

    def checkpoint(self) -> Routine[None]:
        """Before anything new begins: stop here if the run is interrupted."""
        self.refuse_if_leaving()
        if not self.undoing:
            if self.interrupt == "canceled":
                raise Canceled
            while self.interrupt is not None:
                # Due at once: a resume that comes before we have left must not be missed.
                yield Wait(self.now())
            self.check_deadline()
        if self.outgoing:
            yield from self.flush_outgoing()
        elif self.unwritten or self.carrying:
            # Another branch may be recording a value that this one uses next.  Commits keep their
            # order, so an empty one behind it is enough.
            yield from self.record()

    def drive(self, call: Call[T] | Routine[T]) -> T:
        """Carry a call out, blocking (frames.Frame)."""
        raise NotImplementedError

    async def adrive(self, call: Call[T] | Routine[T]) -> T:
        """Carry a call out on the running loop (frames.Frame)."""
        raise NotImplementedError

    def refuse_if_leaving(self) -> None:
        """A workflow that is on its way out, through `finally` or a bare `except`, does nothing new."""
        if self.suspending:
            raise Suspended
        if not self.live:
            raise Abandoned

    def flush_outgoing(self) -> Routine[None]:
        """Make what was spawned durable (spawning.flush)."""
        raise NotImplementedError

    def check_deadline(self) -> None:
        """Raise where the run is not done by its deadline."""
        if self.claimed.deadline is not None and has_passed(self.services, self.claimed):
            raise deadline_exceeded(self.claimed)

    def wait_until(self, moment: int) -> Routine[None]:
        while (left := moment - self.now()) > 0:
            if left < SHORT_WAIT and not self.services.clock.virtual:
                yield Pause(left / 1e6)
            else:
                yield from self.checkpoint()
                yield Wait(self.no_later_than_deadline(moment))

    def no_later_than_deadline(self, moment: int | None) -> int | None:
        deadline = None if self.undoing else self.claimed.deadline
        if moment is None or deadline is None:
            return moment if deadline is None else deadline
        return min(moment, deadline)

    # Steps

    def call_step(
        self, step: Step[Any, Any], key: str, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Routine[Any]:
        """Answer from the journal, or call it and record what comes of it."""
        args, kwargs = step.without_context(args, kwargs)
        text = self._input(step, key, args, kwargs)
        found = self.journal.find(key)
        if found is not None and found.state in FINAL:
            self.check_drift(step, found, text)
            if found.state == StepState.FAILED:
                _raise_by_policy(step, raisable(step.name, found.error), None)
            return self.recorded(step.name, found, step.returns)
        if found is None and self.definition.strict and kind == "step":
            self.begin_new(key, kind, step.name)
        if not self.undisturbed():
            yield from self.checkpoint()
        if found is not None and found.wake_at is not None:
            yield from self.wait_until(found.wake_at)
        attempt, lost = self._attempts_made(found) if found is not None else (self.crashes, self.crashes)
        while True:
            attempt += 1
            context = Context(self.info, step.name, key, attempt, self)
            if lost:
                context.lost = lost
            started = self.now()
            try:
                if step.transactional:
                    return (yield from self._transactional(step, context, text, started, args, kwargs, kind))
                self._body_begins(context, started)
                try:
                    value = yield Body(step, context, args, kwargs)
                finally:
                    self._body_ended(key)
                what = f"the result of step {key!r}"
                result, value = self.services.codec.stored(value, what, step.returns)
            except Exception as raised:
                error = unwrapped(raised)
                done, value = yield from self._failed(step, context, kind, text, started, error)
                if done:
                    return value
                yield from self.checkpoint()
                continue
            yield from self.record(
                kernel_rows.Step(  # as `entry` makes it, which takes twice as long
                    run_id=self.run_id,
                    key=key,
                    seq=self.journal.next_seq(),
                    kind=kind,
                    name=step.name,
                    state=StepState.COMPLETED,
                    written_by=self.claimed.attempt,
                    attempt=attempt,
                    input=text,
                    result=result,
                    undo=step.compensation.name if step.compensation is not None and kind == "step" else None,
                    started_at=started,
                    finished_at=self.now(),
                )
            )
            return value

    def _attempts_made(self, entry: kernel_rows.Step) -> tuple[int, int]:
        """How many attempts at a step have begun, and how many of them died with their worker.

        Only those that failed use up the step's `Retry`; the others are limited by `max_recoveries`.
        """
        made, lost, died = entry.attempt, int(entry.progress or 0), self.crashes
        if entry.state == StepState.RETRYING:
            if (self.claimed.started_at or 0) < (entry.wake_at or 0):
                died = 0  # taken over before the retry was due: it had not begun when the worker died
        else:
            made -= 1  # only seen executing: made again, or died with its worker
            if died:  # as did each later attempt at `main`, before it was seen again
                died = 1 + max(0, self.claimed.attempt - entry.written_by - 1)
        return made + died, lost + died

    def _body_begins(self, context: Context, started: int) -> None:
        self.running[context.key] = (context, started)
        if self.services.observer.active:
            self.services.began(self.claimed, context, "undo" if self.undoing else "step")

    def _body_ended(self, key: str) -> None:
        self.crashes = 0  # the run has come past the place where its worker died
        self.running.pop(key, None)
        if self.shown:
            self.shown -= {key}

    def _transactional(
        self,
        step: Step[Any, Any],
        context: Context,
        text: str | None,
        started: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        kind: str,
    ) -> Routine[Any]:
        written: list[kernel_rows.Step] = []

        def finish(value: Any) -> Record:
            result = self.encode(value, f"the result of step {context.key!r}", step.returns)
            undo = step.compensation.name if step.compensation is not None and kind == "step" else None
            written[:] = [
                self.entry(
                    context.key,
                    kind,
                    step.name,
                    StepState.COMPLETED,
                    attempt=context.attempt,
                    input=text,
                    result=result,
                    undo=undo,
                    started_at=started,
                    finished_at=self.now(),
                )
            ]
            self.expect(written[0])
            return Record(
                worker=self.claimed.worker, run_id=self.run_id, steps=written, once=True, about=self.claimed
            )

        def recorded() -> bool:
            steps = self.services.store.journal([self.run_id])[self.run_id]
            final = [entry for entry in steps if entry.key == context.key and entry.state in FINAL]
            if any(entry.written_by != self.claimed.attempt for entry in final):
                raise Abandoned  # we were thought dead, and another attempt has executed this step
            if final:
                written[:] = final  # maybe of an earlier try, whose commit came late: that value counts
            return bool(final)

        self._body_begins(context, started)
        try:
            yield TransactionalBody(step, context, args, kwargs, finish, recorded, step.isolation)
        finally:
            self._body_ended(context.key)
        self.journal.put(written[0])
        return self.recorded(step.name, written[0], step.returns)

    def _failed(
        self,
        step: Step[Any, Any],
        context: Context,
        kind: str,
        text: str | None,
        started: int,
        error: Exception,
    ) -> Routine[tuple[bool, Any]]:
        """Record a failed attempt; (True, value) ends the step, (False, None) tries again."""
        stored = encode_error(error)
        facts: dict[str, Any] = {
            "attempt": context.attempt,
            "input": text,
            "error": stored,
            "started_at": started,
            "progress": str(context.lost) if context.lost else None,
        }
        wait = (
            None
            if isinstance(error, PayloadError)
            else step.retry.wait_after(context.attempt - context.lost, error)
        )
        if wait is not None:
            wake_at = self.now() + jittered(span_micros(wait), step.retry.jitter)
            yield from self.record(
                self.entry(context.key, kind, step.name, StepState.RETRYING, wake_at=wake_at, **facts)
            )
            self.note(
                "retrying", {"step": context.key, "attempt": context.attempt, "error": error_line(error)}
            )
            self._report(
                error, context, f"failed; the next attempt is in {(wake_at - self.now()) / 1e6:.3g} s"
            )
            yield from self.wait_until(wake_at)
            return False, None
        facts["finished_at"] = self.now()
        if step.on_exception == "skip":
            skipped = self.entry(context.key, kind, step.name, StepState.COMPLETED, result="null", **facts)
            yield from self.record(skipped)
            self._report(error, context, "failed; it is skipped")
            return True, None
        failure = self.entry(context.key, kind, step.name, StepState.FAILED, **facts)
        yield from self.record(failure)
        self._report(error, context, "failed")
        raised = raisable(step.name, stored)
        if type(raised) is type(error):
            _raise_by_policy(step, error, None)
        _raise_by_policy(step, raised, error)

    def _report(self, error: Exception, context: Context, what: str) -> None:
        what = f"step {context.key!r} (attempt {context.attempt}) {what}"
        self.services.failed(error, context, what, level=logging.WARNING)

    def recorded(self, name: str, entry: kernel_rows.Step, returns: Any) -> Any:
        """What a recorded step gives: its value, or its error."""
        if entry.state == StepState.FAILED:
            raise raisable(name, entry.error)
        if entry.error is not None:
            return None  # it failed, and its policy is to continue without it
        return self.services.codec.decode(
            entry.result or "null", returns, f"the result of step {entry.key!r}"
        )

    def encode(self, value: Any, what: str, type: Any = Any) -> str:
        return self.services.codec.encode(value, what, type)

    def _input(
        self, step: Step[Any, Any], key: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> str | None:
        """The stored arguments; a plain step may take what has no JSON form, but cannot be undone then."""
        try:
            return encode_call(self.services.codec, f"the input of step {key!r}", args, kwargs, step)
        except PayloadError:
            if step.compensation is not None or step.strict:
                raise
            return None

    def note(self, event: str, detail: object) -> None:
        """Add a line to the run's history; does not wait."""
        self.services.note(self.run_id, event, detail)

    # What a step's context asks (context.StepBackend)

    def interrupted(self) -> str | None:
        return None if self.undoing else self.interrupt

    def heartbeat(self, step: Context) -> None:
        self.show(step.key)

    def show(self, key: str) -> None:
        """Write a running step into the journal, so that people can see it; not waited for."""
        if key in self.running and key not in self.shown:
            context, started = self.running[key]
            self.shown |= {key}
            seen = self.entry(
                key,
                "step",
                context.name,
                StepState.EXECUTING,
                attempt=context.attempt,
                started_at=started,
                progress=str(context.lost) if context.lost else None,
            )
            self.services.committer.post(Record(worker=self.claimed.worker, run_id=self.run_id, steps=[seen]))

    def load_progress(self, step: Context, loop: int) -> str | None:
        entry = self.journal.find(progress_key(step.key, loop))
        return entry.progress if entry is not None else None

    def save_progress(self, step: Context, loop: int, text: str) -> None:
        if user_transaction.get() is not None:
            return  # what was done for this item is rolled back with the rest
        answer = self.services.committer.run(self._progress(step, loop, text), forever=True)
        self.answered(answer)

    async def asave_progress(self, step: Context, loop: int, text: str) -> None:
        if user_transaction.get() is not None:
            return
        answer = await self.services.committer.arun(self._progress(step, loop, text), forever=True)
        self.answered(answer)

    def post_published(self, step: Context, name: str, value: Any) -> None:
        post_published(self.services, self.claimed, name, value, seq=self.journal.next_seq())

    def _progress(self, step: Context, loop: int, text: str) -> Record:
        key = progress_key(step.key, loop)
        place = self.entry(key, "progress", step.name, StepState.WAITING, progress=text)
        self.journal.put(place)
        return Record(worker=self.claimed.worker, run_id=self.run_id, steps=[place])


def _raise_by_policy(step: Step[Any, Any], error: Exception, cause: Exception | None) -> NoReturn:
    """A step has failed for good: raise it, or pause or cancel the run with it."""
    if step.on_exception == "pause":
        raise PauseRun(error) from error
    if step.on_exception == "cancel":
        raise CancelRun(error) from error
    if cause is None:
        raise error
    raise error from cause


def progress_key(key: str, loop: int) -> str:
    """Where the place of a resumable step's loop is kept."""
    return f"progress/{key}" if loop == 1 else f"progress/{key}/{loop}"


def jittered(span: int, jitter: float) -> int:
    return round(span * (1 + jitter * random.random())) if jitter else span


def error_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {message_of(error)}"
