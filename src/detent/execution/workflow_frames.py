"""The frame as definitions see it, for workflows written as `def` and as `async def`."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, NoReturn, TypeVar

from ..definitions.callers import Handle
from ..definitions.child_options import ChildOptions
from ..definitions.context import (
    Abandoned,
    Call,
    Canceled,
    CancelRun,
    Context,
    ContinueRun,
    PauseRun,
    Routine,
    Signal,
    Suspended,
)
from ..definitions.functions import FunctionWorkflow, Step
from ..kernel import rows
from ..kernel.journal import ANSWERS, CANCEL, FINAL, ORDER, Scope, cancel_key, order_key
from ..kernel.rows import Claimed, RunEnd, StepState
from ..process_forks import OneProcess
from . import completion, waits
from . import spawn as spawning
from .branches import scope_var, see_branches
from .calls import encode_checked
from .deadlines import at_deadline, deadline_exceeded
from .drivers import LINGER, RECHECK, Idling, adrive, drive
from .frame import FrameCore
from .guard import AsyncStepGuard, StepGuard
from .order import Turns, Was
from .requests import MainBody, Wait
from .services import Services

T = TypeVar("T")


class Frame(FrameCore):
    """One delivery of a run to this worker (context.Frame)."""

    replaying = False
    ending = False
    loop_thread: int | None = None
    _loop: asyncio.AbstractEventLoop | None = None
    _expired = False  # the function was cancelled at the deadline
    _flushing: frozenset[asyncio.Task[None]] = frozenset()

    def __init__(
        self,
        services: Services,
        claimed: Claimed,
        definition: FunctionWorkflow[Any, Any],
        steps: Iterable[rows.Step] = (),
    ) -> None:
        super().__init__(services, claimed, definition, steps)
        self.is_async = definition.is_async
        self.waits: list[Wait] = []  # what the run was parked for
        self.branches: set[asyncio.Task[Any]] = set()
        self._root = Scope()
        self._idling = Idling(services, self.branches, self._leave)

    @property
    def context(self) -> Context:
        """The context of the workflow's own function."""
        return Context(self.info, self.definition.name, rows.MAIN, self.claimed.attempt, self)

    def unknowable(self, what: str) -> None:
        """A worker may ask the database whatever it likes."""

    def drive(self, call: Call[T] | Routine[T]) -> T:
        try:
            if not isinstance(call, Call):
                return drive(self.services, call, self.waits)
            if self.turns is None or self._loop is None:
                return drive(self.services, call.routine, self.waits)
            return self._drive_in_turn(self._loop, self.turns, call)
        except Suspended:
            self.suspending = True
            raise

    async def adrive(self, call: Call[T] | Routine[T]) -> T:
        if self.suspending:
            raise asyncio.CancelledError
        # Which loop runs is known by the thread: to ask asyncio for it takes a system call, for each step.
        if self._loop is not None and self.loop_thread == threading.get_ident():
            loop = self._loop
        else:
            loop = asyncio.get_running_loop()
            if self._loop is None:  # asyncio.run() inside of a `def`
                see_branches(loop)
        if not isinstance(call, Call):
            return await adrive(self.services, call, self._idling, loop)
        try:
            if self.turns is not None or (
                self.journal.has_cancels and self.journal.peek(cancel_key(call.key)) is not None
            ):
                return await self._adrive_in_turn(self._turns_on(loop), call)
            # The only line of calls: there is nothing to put in order.
            begun = loop.time()
            try:
                return await adrive(self.services, call.routine, self._idling, loop)
            except asyncio.CancelledError:
                if not self.put_down:
                    self._note_cancel(call, begun)
                raise
            finally:
                if self.turns is not None:  # another thread of the workflow has started a task meanwhile
                    self.turns.drop(call.key)
        except (PauseRun, CancelRun) as signal:
            self._stop_all(signal)
            raise

    def _stop_all(self, signal: PauseRun | CancelRun | ContinueRun) -> None:
        """A task pauses, cancels or continues the run: the main task need not await it, and ends as well."""
        main = self._idling.main
        on_loop = self.loop_thread == threading.get_ident()
        if main is not None and self.signal is None and on_loop and main is not asyncio.current_task():
            self.signal = signal
            main.cancel()

    # Recorded order (order.py)

    @property
    def put_down(self) -> bool:
        """Whether the workflow ends or leaves this worker: nothing more is delivered to it."""
        leaves = self.suspending or self.ending or self._expired or not self.live
        return leaves or self.signal is not None or self.interrupt == "canceled"

    def _turns_on(self, loop: asyncio.AbstractEventLoop) -> Turns:
        """The turns on a loop: they begin with what was recorded and not asked for yet."""
        if self.turns is None or self.turns.loop is not loop:
            linger = LINGER / 10 if self.services.clock.virtual else LINGER
            self.turns = Turns(self, loop, self.journal.answers(), linger)
            if self._idling.main is not None:
                self.turns.began(self._idling.main)
        return self.turns

    async def _adrive_in_turn(self, turns: Turns, call: Call[T]) -> T:
        task, begun = asyncio.current_task(), self.now_on_loop()
        assert task is not None
        turns.enter(task)
        try:
            was = await self._busy(turns.loop, turns.recorded(call.key))
            if was is Was.CANCELED:
                self.journal.find(call.key)
                raise asyncio.CancelledError
            if was is Was.ANSWERED:
                return await adrive(self.services, call.routine, self._idling, turns.loop)
            try:
                return await self._adrive_new(turns, call)
            except asyncio.CancelledError:
                if not self.put_down:
                    turns.drop(call.key)
                    await self._cancel_in_turn(turns, self._note_cancel(call, begun))
                raise
        finally:
            turns.drop(call.key)
            turns.leave(task)

    async def _adrive_new(self, turns: Turns, call: Call[T]) -> T:
        """Carry it out; what comes of it, also an error, waits for its turn."""
        try:
            value = await adrive(self.services, call.routine, self._idling, turns.loop)
        except Exception:
            await self._busy(turns.loop, turns.turn(self._place(turns, call)))
            raise
        await self._busy(turns.loop, turns.turn(self._place(turns, call)))
        return value

    async def _cancel_in_turn(self, turns: Turns, seq: int) -> None:
        while True:
            try:
                await self._busy(turns.loop, turns.turn(seq))
                return
            except asyncio.CancelledError:  # once more
                if self.put_down:
                    return

    async def _busy(self, loop: asyncio.AbstractEventLoop, waiting: Coroutine[Any, Any, T]) -> T:
        """A workflow that waits for its turn is not idle."""
        self._idling.begin()
        try:
            return await waiting
        finally:
            self._idling.end(loop)

    def _drive_in_turn(self, loop: asyncio.AbstractEventLoop, turns: Turns, call: Call[T]) -> T:
        """A thread of an async workflow: it waits for the same turns."""
        line = self.scope().path

        def on_loop(waiting: Coroutine[Any, Any, Any]) -> Any:
            future = contextvars.Context().run(
                asyncio.run_coroutine_threadsafe, self._busy(loop, turns.for_thread(waiting, line)), loop
            )
            try:
                return future.result()
            except concurrent.futures.CancelledError:
                raise Suspended from None

        if on_loop(turns.recorded(call.key)) is Was.ANSWERED:
            return drive(self.services, call.routine, self.waits)
        try:
            try:
                value = drive(self.services, call.routine, self.waits)
            except Exception:
                on_loop(turns.turn(self._place(turns, call)))
                raise
            on_loop(turns.turn(self._place(turns, call)))
            return value
        finally:
            loop.call_soon_threadsafe(turns.drop, call.key)

    def _place(self, turns: Turns, call: Call[Any]) -> int:
        """The number of an answer: that of its record, or of a mark that travels with the next commit."""
        entry = self.journal.peek(call.key)
        if entry is not None and entry.kind in ANSWERS and entry.state in FINAL:
            return entry.seq
        return self._mark(order_key(call.key), ORDER, call.name)

    def _note_cancel(self, call: Call[Any], begun: float) -> int:
        """The workflow's own code cancels a call: a replay must not carry it out again."""
        lasted = round((self.now_on_loop() - begun) * 1e6)
        return self._mark(cancel_key(call.key), CANCEL, call.name, started_at=self.now() - lasted)

    def _mark(self, key: str, kind: str, name: str, **facts: Any) -> int:
        mark = self.entry(key, kind, name, StepState.COMPLETED, finished_at=self.now(), **facts)
        self.unwritten.append(self.journal.put(mark))
        return mark.seq

    def now_on_loop(self) -> float:
        return asyncio.get_running_loop().time()

    def scope(self) -> Scope:
        """The line of calls that we are on: the main one, or that of a task of the workflow."""
        found = scope_var.get()
        return found[1] if found is not None and found[0] is self else self._root

    def branched(self, task: asyncio.Task[Any], scope: Scope) -> None:
        """The workflow has started a task: a line of its own (branches.Branching)."""
        self.branches.add(task)
        task.add_done_callback(self.branches.discard)
        if not self.replaying:
            self._turns_on(task.get_loop()).began(task, scope.path)

    def call(self, step: Step[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call[Any]:
        key = self.scope().key(step.name)
        return Call(key, step.name, self.call_step(step, key, "step", args, kwargs))

    def child(
        self,
        workflow: FunctionWorkflow[Any, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: ChildOptions | None = None,
    ) -> Call[Any]:
        handles = self._spawned(workflow, [(args, kwargs)], options)
        return Call(handles[0].key, workflow.name, self._only(handles))

    def _only(self, handles: list[Handle[Any]]) -> Routine[Any]:
        return (yield from spawning.gathered(self, handles))[0]

    def spawn(
        self,
        definition: Any,
        calls: list[tuple[tuple[Any, ...], dict[str, Any]]],
        options: ChildOptions | None = None,
    ) -> list[Handle[Any]]:
        handles = self._spawned(definition, calls, options)
        if self.outgoing:
            if self.loop_thread == threading.get_ident():
                # Nothing may block the loop: it becomes durable a moment later, and many at once.
                # In a context of its own: it is not a branch of the workflow.
                flushing = asyncio.get_running_loop().create_task(
                    self._flush_soon(), context=contextvars.Context()
                )
                self._flushing |= {flushing}
                flushing.add_done_callback(self._flushed)
            else:
                self.drive(self.checkpoint())
        return handles

    def _spawned(
        self,
        definition: Any,
        calls: list[tuple[tuple[Any, ...], dict[str, Any]]],
        options: ChildOptions | None,
    ) -> list[Handle[Any]]:
        try:
            return spawning.spawn(self, self.scope(), definition, calls, options)
        except PauseRun as signal:
            self._stop_all(signal)
            raise

    def _flushed(self, task: asyncio.Task[None]) -> None:
        self._flushing -= {task}

    async def _flush_soon(self) -> None:
        if self.outgoing and not self.suspending:
            with contextlib.suppress(Signal):  # the code that awaits it gets the same signal
                await self.adrive(self.flush_outgoing())

    def flush_outgoing(self) -> Routine[None]:
        return spawning.flush(self)

    def gathered(self, handles: list[Handle[Any]], *, return_exceptions: bool = False) -> Call[list[Any]]:
        name = handles[0].definition.name if handles else "nothing"
        routine = spawning.gathered(self, handles, return_exceptions=return_exceptions)
        return Call(self.scope().key("await/"), name, routine)

    def mapped(
        self,
        definition: Any,
        calls: list[tuple[tuple[Any, ...], dict[str, Any]]],
        options: ChildOptions | None,
        *,
        concurrency: int,
        return_exceptions: bool,
    ) -> Call[list[Any]]:
        routine = completion.mapped(
            self,
            self.scope(),
            definition,
            calls,
            options,
            concurrency=concurrency,
            return_exceptions=return_exceptions,
        )
        return Call(self.scope().key("await/"), definition.name, routine)

    def first(self, handles: list[Handle[Any]]) -> Call[int]:
        key = self.scope().key("first/")
        return Call(key, completion.FIRST, completion.first_of(self, key, handles))

    def sleep(self, span: int | None, until: int | None) -> Call[None]:
        key = self.scope().key("sleep")
        return Call(key, "sleep", waits.sleep(self, key, span, until))

    def value(self, name: str, make: Callable[[], Any], type: Any) -> Routine[Any]:
        return waits.value(self, self.scope().key(name), name, make, type)

    def receive(self, name: str, timeout: int | None, default: Any, type: Any) -> Call[Any]:
        key = self.scope().key(f"receive/{name}")
        return Call(key, name, waits.receive(self, key, name, timeout, default, type))

    def publish(self, name: str, value: Any) -> Call[None]:
        key = self.scope().key(f"publish/{name}")
        return Call(key, name, waits.publish(self, key, name, value))

    def append(self, name: str, value: Any, keep: int | None) -> Call[None]:
        key = self.scope().key(f"append/{name}")
        return Call(key, name, waits.append(self, key, name, value, keep))

    def send(self, run_id: str, name: str, value: Any) -> Call[None]:
        key = self.scope().key(f"send/{name}")
        return Call(key, name, waits.send(self, key, run_id, name, value))

    def outcome_of(self, run_id: str, timeout: int | None) -> Call[RunEnd]:
        key = self.scope().key("result/")
        return Call(key, run_id, waits.outcome_of(self, key, run_id, timeout))

    def published_by(self, run_id: str, name: str) -> Call[list[Any]]:
        key = self.scope().key("published/")
        return Call(key, name, waits.published_by(self, key, run_id, name))

    def patched(self, id: str) -> Routine[bool]:
        return waits.patched(self, id)

    def continue_as_new(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn:
        self.refuse_if_leaving()
        definition = self.definition
        args, kwargs = definition.without_context(args, kwargs)
        definition.check_arguments(args, kwargs)
        what = f"the input of {definition.name!r}"
        signal = ContinueRun(encode_checked(self.services.codec, what, args, kwargs, definition))
        self.continuing = signal
        self._stop_all(signal)
        raise signal

    def guard(self, name: str, type: Any) -> StepGuard[Any]:
        guard: StepGuard[Any] = StepGuard(self, self.scope().key(name), name, type)
        self.drive(guard.opening())
        return guard

    def aguard(self, name: str, type: Any) -> AsyncStepGuard[Any]:
        return AsyncStepGuard(self, self.scope().key(name), name, type)

    def start_id(self, name: str) -> str:
        self.refuse_if_leaving()
        return spawning.child_id(self.run_id, self.scope().key(f"start/{name}"))

    def started(self) -> Call[None]:
        return Call(self.scope().key("started/"), "start", _nothing())

    # The workflow's function on a loop

    async def amain(self, request: MainBody, loop: asyncio.AbstractEventLoop) -> Any:
        """Await the function on this loop; being told to leave comes to it as a cancellation."""
        task = asyncio.current_task(loop)
        assert task is not None
        self._loop, self.loop_thread = loop, threading.get_ident()
        self._idling.main = task
        see_branches(loop)
        if self.interrupt is not None:
            self._told_on_loop()
        alarm = None
        if self.claimed.deadline is not None:
            alarm = at_deadline(self.services, self.claimed, self._expire)
        try:
            with OneProcess():
                return await request.definition.function(*request.args, **request.kwargs)
        except asyncio.CancelledError as error:
            reason = self._why_cancelled(task)
            if reason is not None:
                raise reason from None
            raise RuntimeError(f"{request.definition.name} awaited something that was cancelled") from error
        except Suspended:
            self.suspending = True
            raise
        finally:
            self.ending = True
            if alarm is not None:
                alarm.cancel()
            self._idling.main = None
            while task.cancelling():
                task.uncancel()
            if self.branches:
                await self._end_branches()

    def _why_cancelled(self, task: asyncio.Task[Any]) -> BaseException | None:
        if self.suspending:
            return Suspended()
        if self.signal is not None:
            return self.signal
        if self.interrupt == "canceled":
            return Canceled()
        if self._expired:
            return deadline_exceeded(self.claimed)
        return Abandoned() if task.cancelling() else None  # the loop is going down

    def _expire(self) -> None:
        """On the loop: the deadline has passed while the function runs."""
        if self._idling.main is not None and not self.suspending and not self.undoing:
            self._expired = True
            self._idling.main.cancel()

    async def _end_branches(self) -> None:
        """What the workflow has started ends with it; what executes while it is parked ends by itself."""
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


def _nothing() -> Routine[None]:
    """A routine that asks for nothing."""
    yield from ()
