"""The frame as definitions see it, for workflows written as `def` and as `async def`."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from ..context import Canceled, Routine, Suspended
from ..functions import FunctionWorkflow, Handle, Step
from ..kernel import model
from ..kernel.journal import Scope
from ..kernel.model import Claimed
from . import spawning, waits
from .drivers import Idling, adrive, drive
from .frame import FrameCore
from .guard import StepGuard
from .requests import MainBody, Wait
from .services import Services

T = TypeVar("T")
_scope: contextvars.ContextVar[tuple[Any, Scope] | None] = contextvars.ContextVar(
    "detent_scope", default=None
)


class Frame(FrameCore):
    """One delivery of a run to this worker (context.Frame)."""

    def __init__(
        self,
        services: Services,
        claimed: Claimed,
        definition: FunctionWorkflow[Any, Any],
        steps: Iterable[model.Step] = (),
    ) -> None:
        super().__init__(services, claimed, definition, steps)
        self.waits: list[Wait] = []  # what the run was put down for
        self.loop_thread: int | None = None
        self._root = Scope()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idling = Idling(services, self._leave)

    def drive(self, routine: Routine[T]) -> T:
        try:
            return drive(self.services, routine, self.waits)
        except Suspended:
            self.suspending = True
            raise

    async def adrive(self, routine: Routine[T]) -> T:
        if self.suspending:
            raise asyncio.CancelledError
        return await adrive(self.services, routine, self._idling)

    def scope(self) -> Scope:
        """The line of calls that we are on: the main one, or that of a task of the workflow."""
        if self._loop is None:
            return self._root
        task = asyncio.current_task()
        if task is None or task is self._idling.main:
            return self._root
        found = _scope.get()
        if found is not None and found[0] is task:
            return found[1]
        scope = (found[1] if found is not None else self._root).child()
        _scope.set((task, scope))
        return scope

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
                asyncio.get_running_loop().create_task(self._flush_soon())
            else:
                self.drive(self.checkpoint())
        return handles

    async def _flush_soon(self) -> None:
        if self.outgoing and not self.suspending:
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
        if self.interrupt is not None:
            self._told_on_loop()
        try:
            return await request.definition.function(*request.args, **request.kwargs)
        except asyncio.CancelledError:
            if self.suspending:
                raise Suspended from None
            if self.interrupt == "canceled":
                raise Canceled from None
            raise
        finally:
            self._idling.main = None
            while task.cancelling():
                task.uncancel()

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
        if not self.suspending and self._idling.main is not None:
            self.suspending = True
            self.waits = self._idling.waits()
            self._idling.main.cancel()
