"""Spawned steps: executions of their own, on any worker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from ..clock import span_micros
from ..definitions.context import Abandoned, Canceled, Context, Routine, RunInfo, Suspended
from ..definitions.functions import Step
from ..errors import DeadlineExceeded, PayloadError
from ..kernel import rows as kernel_rows
from ..kernel.operations import Park, Record, Settle, Settled, Verdict
from ..kernel.rows import Claimed, StepState
from ..kernel.settle import Ending, Outcome, settle
from ..stores.driver import user_transaction
from .calls import decode_call
from .deadlines import at_deadline, deadline_exceeded, has_passed
from .drivers import adrive_main, drive
from .failures import encode_error
from .frame import jittered, progress_key
from .main import key_of
from .publish import post_published
from .requests import Body, Commit, MainBody, TransactionalBody, Wait
from .run_streams import Appending
from .services import Services

_ACTIONS = {
    "raise": Outcome.FAILED,
    "reattempt": Outcome.FAILED,
    "skip": Outcome.SKIPPED_BY_EXCEPTION,
    "pause": Outcome.PAUSED_BY_EXCEPTION,
    "cancel": Outcome.CANCELED_BY_EXCEPTION,
}


class Work(Appending):
    """One attempt at something that has an execution of its own; also what its context asks."""

    is_async = False
    context_class: type[Context] = Context

    def __init__(
        self, services: Services, claimed: Claimed, name: str, steps: Iterable[kernel_rows.Step] = ()
    ) -> None:
        self.services = services
        self.claimed = claimed
        self.interrupt: str | None = (
            claimed.run_state if claimed.run_state in ("paused", "canceled") else None
        )
        self.live = True
        self.delivery = ""  # how far the worker has come with it
        self.performing = False  # the body runs, and may be cancelled at the deadline
        self.expired = False  # it was
        self.waits: list[Wait] = []
        self._places = {entry.key: entry.progress for entry in steps if entry.kind == "progress"}
        self._task: asyncio.Task[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        info = RunInfo(claimed.run_id, claimed.type, claimed.parent, claimed.forked_from)
        self.context = self.context_class(info, name, claimed.node, claimed.attempt, self)

    def run(self) -> None:
        """Run it in this thread."""
        drive(self.services, self._routine(), self.waits)

    async def arun(self) -> None:
        """Run it on this loop."""
        self._task, self._loop = asyncio.current_task(), asyncio.get_running_loop()
        alarm = at_deadline(self.services, self.claimed, self._expire)
        try:
            await adrive_main(self.services, self._routine(), self.waits, _no_main)
        finally:
            if alarm is not None:
                alarm.cancel()

    def _expire(self) -> None:
        """On the loop: the deadline of the run has passed while this executes."""
        if self.performing and self._task is not None:
            self.expired = True
            self._task.cancel()

    def _routine(self) -> Routine[None]:
        """From here to its end."""
        raise NotImplementedError

    def _recorded(self) -> bool:
        """Whether a transactional body is durable, after a commit that was cut off."""
        rows = self.services.store.executions(self.claimed.run_id)
        mine = (self.claimed.node, self.claimed.attempt)
        return any((row.node, row.attempt) == mine and row.state == "completed" for row in rows)

    def _now(self) -> int:
        return self.services.clock.now()

    def _settle(self, ending: Ending) -> Settle:
        """The operation that ends it so."""
        return Settle(
            worker=self.claimed.worker,
            key=key_of(self.claimed),
            token=self.claimed.token,
            now=ending.now,
            plan=settle(self.claimed, ending),
            about=self.claimed,
        )

    # From other threads

    def told(self, state: str | None = None) -> None:
        if state is not None:
            self.interrupt = state
        if self.interrupt == "canceled" and self._loop is not None and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)

    def abandon(self) -> None:
        self.live = False
        if self._loop is not None and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)

    # What the step's context asks

    def interrupted(self) -> str | None:
        return self.interrupt

    def heartbeat(self, step: Context) -> None:
        """The execution's row shows it as executing already."""

    def load_progress(self, step: Context, loop: int) -> str | None:
        return self._places.get(progress_key(step.key, loop))

    def save_progress(self, step: Context, loop: int, text: str) -> None:
        if user_transaction.get() is not None:
            return  # what was done for this item is rolled back with the rest
        self._check(self.services.committer.run(self._place(loop, text), forever=True))

    async def asave_progress(self, step: Context, loop: int, text: str) -> None:
        if user_transaction.get() is not None:
            return
        self._check(await self.services.committer.arun(self._place(loop, text), forever=True))

    def post_published(self, step: Context, name: str, value: Any) -> None:
        post_published(self.services, self.claimed, name, value)

    def _place(self, loop: int, text: str) -> Record:
        place = kernel_rows.Step(
            run_id=self.claimed.run_id,
            key=progress_key(self.claimed.node, loop),
            seq=0,
            kind="progress",
            name=self.context.name,
            state=StepState.WAITING,
            written_by=self.claimed.attempt,
            progress=text,
        )
        return Record(worker=self.claimed.worker, run_id=self.claimed.run_id, steps=[place])

    def _check(self, answer: Verdict) -> None:
        if answer is not Verdict.APPLIED:
            raise Abandoned


class SpawnedStep(Work):
    """One attempt at a spawned step of a durable function."""

    def __init__(
        self, services: Services, claimed: Claimed, step: Step[Any, Any], steps: Iterable[kernel_rows.Step]
    ) -> None:
        super().__init__(services, claimed, step.name, steps)
        self.step = step
        self.is_async = step.is_async
        self._raised: Exception | None = None
        if self.interrupt == "paused":
            self.interrupt = None  # it was claimed before: it ends, and is recorded

    def _routine(self) -> Routine[None]:
        try:
            self.performing = True
            ending = yield from self._ending()
            self.performing = False
            if ending is not None:
                answer: Settled = yield Commit(self._settle(ending))
                if answer.verdict is Verdict.STALE:
                    raise Abandoned
                self._report(ending)
        except Suspended:
            yield Commit(
                Park(
                    worker=self.claimed.worker,
                    key=key_of(self.claimed),
                    token=self.claimed.token,
                    now=self._now(),
                    wake_at=self._now(),
                    about=self.claimed,
                )
            )
        except Abandoned:
            return
        finally:
            self.live = False

    def _ending(self) -> Routine[Ending | None]:
        """How the attempt ended; None when a transactional step has settled itself."""
        if self.interrupt == "canceled":
            return Ending(outcome=Outcome.CANCELED_BY_OPERATOR, now=self._now())
        try:
            if has_passed(self.services, self.claimed):
                raise deadline_exceeded(self.claimed)
            args, kwargs = decode_call(self.services.codec, self.step, self.claimed.input or "{}")
            if self.step.transactional:
                yield TransactionalBody(self.step, self.context, args, kwargs, self._finish, self._recorded)
                return None
            value = yield Body(self.step, self.context, args, kwargs)
            return self._success(value)
        except Canceled:
            return Ending(outcome=Outcome.CANCELED_BY_OPERATOR, now=self._now())
        except asyncio.CancelledError:
            if self.interrupt == "canceled":
                return Ending(outcome=Outcome.CANCELED_BY_OPERATOR, now=self._now())
            if self.expired:
                return self._failure(deadline_exceeded(self.claimed))
            raise Abandoned from None
        except Exception as error:
            return self._failure(error)

    def _success(self, value: Any) -> Ending:
        text = self.services.codec.encode(
            value, f"the result of step {self.claimed.node!r}", self.step.returns
        )
        return Ending(outcome=Outcome.SUCCESS, now=self._now(), result=text)

    def _report(self, ending: Ending) -> None:
        """The state is durable: now the exception goes to the log, and to the app's error hook."""
        if self._raised is not None:
            again = ending.outcome is Outcome.REATTEMPTED_BY_EXCEPTION
            what = f"step {self.context.key!r} (attempt {self.claimed.attempt}) failed"
            what += f"; the next attempt is in {ending.wait / 1e6:g} s" if again else ""
            self.services.failed(self._raised, self.context, what, level=logging.WARNING)

    def _failure(self, error: Exception) -> Ending:
        self._raised = error
        stored = encode_error(error)
        retry = self.step.retry
        in_vain = isinstance(error, PayloadError | DeadlineExceeded)
        wait = None if in_vain else retry.wait_after(self.claimed.failures + 1, error)
        if wait is not None:
            pause = jittered(span_micros(wait), retry.jitter)
            return Ending(outcome=Outcome.REATTEMPTED_BY_EXCEPTION, now=self._now(), error=stored, wait=pause)
        outcome = _ACTIONS[self.step.on_exception]
        result = "null" if outcome is Outcome.SKIPPED_BY_EXCEPTION else None
        return Ending(outcome=outcome, now=self._now(), error=stored, result=result)

    def _finish(self, value: Any) -> Settle:
        return self._settle(self._success(value))


async def _no_main(request: MainBody) -> Any:
    raise TypeError("a spawned step has no main function")
