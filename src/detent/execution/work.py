"""What the kinds of executions share: spawned steps, nodes of graphs, effects, timers and inboxes.

    claimed -> `_execute`: the body, then the settle -> its error goes to the log and to the error hook

One routine runs every kind (`Work._routine`): it parks what is interrupted, drops what another worker has
taken over, and reports errors after their end is durable.  A kind says in `_execute` what it does between.
The main function of a run has a frame instead (frame.py): it has a journal, and calls that are answered
from it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Any

from ..definitions.context import Abandoned, Context, Routine, RunInfo, Suspended
from ..kernel import rows as kernel_rows
from ..kernel.operations import Park, Record, Settle, Verdict
from ..kernel.rows import Await, Claimed, StepState
from ..kernel.settle import Ending, Outcome, settle
from ..stores.driver import user_transaction
from .deadlines import at_deadline
from .drivers import adrive_main, drive
from .frame import progress_key
from .main import key_of
from .publish import post_published
from .requests import Commit, MainBody, Wait
from .run_streams import Appending
from .services import FreeSlot, Services


class Work(Appending):
    """One attempt at an execution that is not a run's main function; also what its context asks."""

    is_async = False
    free_slot: FreeSlot | None = None  # of its worker
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
        self._raised: BaseException | None = None  # why the attempt failed, for the log and the error hook
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

    def show_long_steps(self, since: int) -> None:
        """The execution's row shows it already."""

    def _expire(self) -> None:
        """On the loop: the deadline of the run has passed while this executes."""
        if self.performing and self._task is not None:
            self.expired = True
            self._task.cancel()

    def _routine(self) -> Routine[None]:
        """From here to its end."""
        try:
            yield from self._execute()
        except Suspended:
            yield Commit(self._park())
        except Abandoned:
            return
        finally:
            self.live = False
        if self._raised is not None:
            self.services.failed(self._raised, self.context, self._failure_text(), level=logging.WARNING)

    def _execute(self) -> Routine[None]:
        """Perform it, and settle; Suspended parks it, Abandoned leaves it to another worker."""
        raise NotImplementedError

    def _failure_text(self) -> str:
        """What the log says of `_raised`, after the end of the attempt is durable."""
        raise NotImplementedError

    def _end(self, outcome: Outcome, *, result: str | None = None, wait: int = 0) -> Ending:
        return Ending(outcome=outcome, now=self._now(), result=result, wait=wait)

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

    def _park(self, awaits: Sequence[Await] = ()) -> Park:
        """Put it down until what it waits for; with nothing to wait for, it is due at once."""
        now = self._now()
        return Park(
            worker=self.claimed.worker,
            key=key_of(self.claimed),
            token=self.claimed.token,
            now=now,
            wake_at=None if awaits else now,
            awaits=list(awaits),
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


async def _no_main(request: MainBody, loop: asyncio.AbstractEventLoop) -> Any:
    raise TypeError("this kind of execution has no main function")
