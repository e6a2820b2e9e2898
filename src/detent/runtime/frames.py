"""The frame as definitions see it, for workflows written as `def` and as `async def`."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from ..context import Abandoned, Canceled, Routine, Signal, Suspended
from ..functions import FunctionWorkflow, Handle, Step
from ..kernel import model
from ..kernel.journal import Scope
from ..kernel.model import Claimed
from . import spawning, waits
from .branches import scope_var, see_branches
from .deadlines import at_deadline, deadline_exceeded
from .drivers import RECHECK, Idling, adrive, drive
from .frame import FrameCore
from .guard import StepGuard
from .requests import MainBody, Wait
from .services import Services

T = TypeVar("T")


class Frame(FrameCore):
    """One delivery of a run to this worker (context.Frame)."""

    replaying = False

    def __init__(
        self,
        services: Services,
        claimed: Claimed,
        definition: FunctionWorkflow[Any, Any],
        steps: Iterable[model.Step] = (),
    ) -> None:
        super().__init__(services, claimed, definition, steps)
        self.is_async = definition.is_async
        self.waits: list[Wait] = []  # what the run was put down for
        self.loop_thread: int | None = None
        self.branches: set[asyncio.Task[Any]] = set()
        self._root = Scope()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idling = Idling(services, self.branches, self._leave)
        self._expired = False  # the function was cancelled at the deadline
        self._flushing: frozenset[asyncio.Task[None]] = frozenset()

    def unknowable(self, what: str) -> None:
        """A worker may ask the database whatever it likes."""

    def drive(self, routine: Routine[T]) -> T:
        try:
            return drive(self.services, routine, self.waits)
        except Suspended:
            self.suspending = True
            raise

    async def adrive(self, routine: Routine[T]) -> T:
        if self.suspending:
            raise asyncio.CancelledError
        if self._loop is None:  # asyncio.run() inside of a `def`
            see_branches(asyncio.get_running_loop())
        return await adrive(self.services, routine, self._idling)

    def scope(self) -> Scope:
        """The line of calls that we are on: the main one, or that of a task of the workflow."""
        found = scope_var.get()
        return found[1] if found is not None and found[0] is self else self._root

    def branched(self, task: asyncio.Task[Any], scope: Scope) -> None:
        """The workflow has started a task: a line of its own (branches.Branching)."""
        self.branches.add(task)
        task.add_done_callback(self.branches.discard)

    def call(self, step: Step[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Routine[Any]:
        return self.call_step(step, self.scope().key(step.name), "step", args, kwargs)

    def child(
        self, workflow: FunctionWorkflow[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Routine[Any]:
        return self._only(spawning.spawn(self, self.scope(), workflow, [(args, kwargs)]))

    def _only(self, handles: list[Handle[Any]]) -> Routine[Any]:
        return (yield from spawning.gathered(self, handles))[0]

    def spawn(
        self, definition: Any, calls: list[tuple[tuple[Any, ...], dict[str, Any]]]
    ) -> list[Handle[Any]]:
        handles = spawning.spawn(self, self.scope(), definition, calls)
        if self.outgoing:
            if self.loop_thread == threading.get_ident():
                # Nothing may block the loop: it becomes durable a moment later, and many at once.
                # In a context of its own: it is no branch of the workflow.
                flushing = asyncio.get_running_loop().create_task(
                    self._flush_soon(), context=contextvars.Context()
                )
                self._flushing |= {flushing}
                flushing.add_done_callback(self._flushed)
            else:
                self.drive(self.checkpoint())
        return handles

    def _flushed(self, task: asyncio.Task[None]) -> None:
        self._flushing -= {task}

    async def _flush_soon(self) -> None:
        if self.outgoing and not self.suspending:
            with contextlib.suppress(Signal):  # whoever waits for it meets the same
                await self.adrive(self.flush_outgoing())

    def flush_outgoing(self) -> Routine[None]:
        return spawning.flush(self)

    def gathered(self, handles: list[Handle[Any]]) -> Routine[list[Any]]:
        return spawning.gathered(self, handles)

    def sleep(self, span: int | None, until: int | None) -> Routine[None]:
        return waits.sleep(self, self.scope().key("sleep"), span, until)

    def value(self, name: str, make: Callable[[], Any], type: Any) -> Routine[Any]:
        return waits.value(self, self.scope().key(name), name, make, type)

    def receive(self, name: str, timeout: int | None, default: Any, type: Any) -> Routine[Any]:
        return waits.receive(self, self.scope().key(f"receive/{name}"), name, timeout, default, type)

    def publish(self, name: str, value: Any) -> Routine[None]:
        return waits.publish(self, self.scope().key(f"publish/{name}"), name, value)

    def send(self, run_id: str, name: str, value: Any) -> Routine[None]:
        return waits.send(self, self.scope().key(f"send/{name}"), run_id, name, value)

    def patched(self, id: str) -> Routine[bool]:
        return waits.patched(self, id)

    def guard(self, name: str) -> StepGuard:
        return StepGuard(self, self.scope().key(name), name)

    def start_id(self, name: str) -> str:
        self.refuse_if_leaving()
        return spawning.child_id(self.run_id, self.scope().key(f"start/{name}"))

    # The workflow's function on a loop

    async def amain(self, request: MainBody) -> Any:
        """Await the function; being told to leave comes to it as a cancellation."""
        task = asyncio.current_task()
        assert task is not None
        self._loop = asyncio.get_running_loop()
        self.loop_thread = threading.get_ident()
        self._idling.main = task
        see_branches(self._loop)
        if self.interrupt is not None:
            self._told_on_loop()
        alarm = at_deadline(self.services, self.claimed, self._expire)
        try:
            return await request.definition.function(*request.args, **request.kwargs)
        except asyncio.CancelledError as error:
            if self.suspending:
                raise Suspended from None
            if self.interrupt == "canceled":
                raise Canceled from None
            if self._expired:
                raise deadline_exceeded(self.claimed) from None
            if task.cancelling():
                raise Abandoned from None  # the loop is going down
            raise RuntimeError(f"{request.definition.name} awaited something that was cancelled") from error
        except Suspended:
            self.suspending = True
            raise
        finally:
            if alarm is not None:
                alarm.cancel()
            self._idling.main = None
            while task.cancelling():
                task.uncancel()
            await self._end_branches()

    def _expire(self) -> None:
        """On the loop: the deadline has passed while the function runs."""
        if self._idling.main is not None and not self.suspending and not self.undoing:
            self._expired = True
            self._idling.main.cancel()

    async def _end_branches(self) -> None:
        """What the workflow has started ends with it; what executes while it is put down ends by itself."""
        while self.suspending and self.live and self._idling.busy and self.branches:
            await asyncio.wait(self.branches, return_when=asyncio.FIRST_COMPLETED, timeout=RECHECK)
        if self.branches:
            for branch in self.branches:
                branch.cancel()
            await asyncio.gather(*self.branches, return_exceptions=True)

    def close(self) -> None:
        """It is over.  Who refers to whom ends here too, or only the collector of cycles could free it."""
        self.live = False
        self._idling.close()

    # From other threads

    def told(self, state: str | None = None) -> None:
        """The run was paused or canceled, the worker drains, or what it waits for may be there."""
        if state is not None:
            self.interrupt = state
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._told_on_loop)

    def abandon(self) -> None:
        """The lease is lost: leave as soon as possible."""
        self.live = False
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._leave)

    def _told_on_loop(self) -> None:
        if self.interrupt == "canceled" and not self.undoing and self._idling.main is not None:
            self._idling.main.cancel()
        self._idling.poke()

    def _leave(self) -> None:
        """On the loop: take the workflow out of memory."""
        if self.suspending:
            return
        if self._idling.main is not None:
            self.suspending = True
            self.waits = self._idling.waits()
            self._idling.main.cancel()
        elif self._loop is None:  # asyncio.run() inside of a `def`
            self.suspending = True
            self.waits = self._idling.waits()
            self._idling.leave(Suspended)
