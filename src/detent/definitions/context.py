"""The context of running user code: its run, its step, and the frame that records its calls.

A frame is one delivery of a run's `main` to a worker.  The runtime creates it, and steps,
sleeps and messages go through it.  Definitions depend only on this module.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import os
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator
from datetime import datetime
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import msgspec

from ..errors import InvalidState, NotInRun, StepOutsideRun
from ..kernel.rows import MAIN, RunEnd
from ..kernel.schedules import scheduled_for

T = TypeVar("T")
Routine = Generator[Any, Any, T]


class Call(Generic[T]):
    """A durable call: its routine, and the key under which its answer is recorded."""

    __slots__ = ("key", "name", "routine")

    def __init__(self, key: str, name: str, routine: Routine[T]) -> None:
        self.key = key
        self.name = name
        self.routine = routine


class Signal(BaseException):
    """Leaves user code without being an error: `except Exception` cannot swallow it."""


class Suspended(Signal):
    """The run waits and frees its worker; a replay returns to this point."""


class Canceled(Signal):
    """The run was canceled."""


class Abandoned(Signal):
    """This worker lost its lease; another worker continues the run."""


class PauseRun(Signal):
    """The policy of a step pauses the run with this error."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class CancelRun(Signal):
    """The policy of a step cancels the run with this error."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class ContinueRun(Signal):
    """The run ends here, and a new one continues it with this input."""

    def __init__(self, input: str) -> None:
        self.input = input  # as it is stored


class FlowControl(Signal):
    """A flow control call of a node: skip, pause, cancel, reattempt, finished."""

    def __init__(self, verb: str, *, wait: int = 0, result: Any = None, after: bool = False) -> None:
        self.verb = verb  # cancel, pause, skip, reattempt, finished
        self.wait = wait
        self.result = result
        self.after = after

    @property
    def completes(self) -> bool:
        """Whether this completes the node, so that its writes stay."""
        return self.verb == "finished" or self.after


FEW_CALLS = 16  # calls that are remembered before the first look for those that have begun


class Unawaited:
    """Calls of a workflow that may not have been awaited yet."""

    __slots__ = ("calls", "most")

    def __init__(self) -> None:
        self.calls: list[tuple[str, Coroutine[Any, Any, Any]]] = []
        self.most = FEW_CALLS

    def add(self, what: str, coroutine: Coroutine[Any, Any, Any]) -> None:
        if self.calls and not _not_begun(self.calls[-1][1]):
            self.calls.pop()  # nearly always: code awaits one call before it makes the next
        if len(self.calls) >= self.most:
            self.calls = self.not_begun()
            # Doubled, so that a thousand calls which wait side by side are not looked at a thousand times.
            self.most = max(FEW_CALLS, 2 * len(self.calls))
        self.calls.append((what, coroutine))

    def not_begun(self) -> list[tuple[str, Coroutine[Any, Any, Any]]]:
        return [call for call in self.calls if _not_begun(call[1])]


def _not_begun(coroutine: Any) -> bool:
    return coroutine.cr_frame is not None and not coroutine.cr_suspended and not coroutine.cr_running


class Frame(Protocol):
    """One delivery of a run to a worker, as definitions see it."""

    run_id: str
    live: bool
    info: RunInfo
    claimed: Any  # kernel.rows.Claimed

    @property
    def replaying(self) -> bool:
        """Whether a recorded run is only read: nothing may be written."""
        ...

    def unknowable(self, what: str) -> None:
        """The database is going to be asked: a recorded run does not tell, and ends here."""
        ...

    # Calls that were made and have not begun (awaiting.py), and the tasks of the workflow.
    unawaited: Unawaited | None
    branches: set[Any]

    def drive(self, call: Call[T] | Routine[T]) -> T:
        """Carry a call out, blocking."""
        ...

    def adrive(self, call: Call[T] | Routine[T]) -> Coroutine[Any, Any, T]:
        """Carry a call out on the running loop."""
        ...

    def checkpoint(self) -> Routine[None]: ...

    def call(self, step: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call[Any]: ...

    def child(
        self, workflow: Any, args: tuple[Any, ...], kwargs: dict[str, Any], options: Any = None
    ) -> Call[Any]:
        """Start a child run and wait for it; `options` are its ChildOptions."""
        ...

    def spawn(
        self, definition: Any, calls: list[tuple[tuple[Any, ...], dict[str, Any]]], options: Any = None
    ) -> list[Any]: ...

    def gathered(self, handles: list[Any], *, return_exceptions: bool = False) -> Call[list[Any]]: ...

    def mapped(
        self,
        definition: Any,
        calls: list[tuple[tuple[Any, ...], dict[str, Any]]],
        options: Any,
        *,
        concurrency: int,
        return_exceptions: bool,
    ) -> Call[list[Any]]: ...

    def first(self, handles: list[Any]) -> Call[int]:
        """The place of the handle that was done first."""
        ...

    def sleep(self, span: int | None, until: int | None) -> Call[None]: ...

    def value(self, name: str, make: Callable[[], Any], type: Any) -> Routine[Any]: ...

    def receive(self, name: str, timeout: int | None, default: Any, type: Any) -> Call[Any]: ...

    def publish(self, name: str, value: Any) -> Call[None]: ...

    def append(self, name: str, value: Any, keep: int | None) -> Call[None]: ...

    def send(self, run_id: str, name: str, value: Any) -> Call[None]: ...

    def outcome_of(self, run_id: str, timeout: int | None) -> Call[RunEnd]: ...

    def published_by(self, run_id: str, name: str) -> Call[list[Any]]: ...

    def patched(self, id: str) -> Routine[bool]: ...

    def continue_as_new(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn: ...

    def guard(self, name: str, type: Any) -> Any: ...

    def aguard(self, name: str, type: Any) -> Any: ...

    def start_id(self, name: str) -> str: ...

    def started(self) -> Call[None]:
        """Runs were started: that has its place among the answers, too."""
        ...

    @property
    def loop_thread(self) -> int | None:
        """The thread whose loop runs this workflow, if it is async."""
        ...


class RunInfo(msgspec.Struct, frozen=True, gc=False):
    """Facts about the current run: `ctx.run.id`, `ctx.run.type`.

    @step
    def charge(ctx: detent.Context, order_id: int) -> str:
        return gateway.charge(order_id, reference=ctx.run.id)
    """

    id: str
    type: str
    parent: str | None
    forked_from: str | None


class StepBackend(Protocol):
    """The runtime's side of a step's context."""

    claimed: Any  # kernel.rows.Claimed
    services: Any  # execution.services.Services

    def heartbeat(self, step: Context) -> None: ...

    def save_progress(self, step: Context, loop: int, text: str) -> None: ...

    async def asave_progress(self, step: Context, loop: int, text: str) -> None: ...

    def load_progress(self, step: Context, loop: int) -> str | None: ...

    def interrupted(self) -> str | None: ...

    def post_published(self, step: Context, name: str, value: Any) -> None:
        """Show a value of the run to others, without waiting until it is durable."""
        ...

    def append_entry(self, step: Context, name: str, value: Any, keep: int | None) -> None:
        """Append a value to a stream of the run."""
        ...

    async def aappend_entry(self, step: Context, name: str, value: Any, keep: int | None) -> None: ...


class Context:
    """The context of a running step or workflow.

        @step
        def charge(ctx: detent.Context, amount: int) -> str:
            return gateway.charge(amount, key=ctx.idempotency_key)

        @step
        def charge(ctx: detent.Context, order_id: int) -> str:
            return gateway.charge(order_id, idempotency_key=ctx.idempotency_key)

    A first parameter named `ctx` (or annotated `detent.Context`) receives it.
    It is never recorded as input, and you can pass it on.
    """

    unwritten = 0  # characters that it appended to streams since an append last waited for its commit
    lost = 0  # how many of the attempts before this one died with their worker, where that is known
    _starts = 0
    _loops = 0
    _looping = False

    def __init__(self, run: RunInfo, name: str, key: str, attempt: int, backend: StepBackend) -> None:
        self.run = run
        self.name = name
        self.key = key
        self.attempt = attempt
        self._backend = backend

    @property
    def idempotency_key(self) -> str:
        """The same text for every attempt at this step, for services that detect duplicates."""
        return f"{self.run.id}:{self.key}"

    @property
    def node(self) -> str:
        """The name of the node or step: `charge#2`, `main`, or the name of a node of a graph."""
        return self.key

    @property
    def scheduled_for(self) -> datetime | None:
        """The time for which a schedule has started this run, in UTC; None if none did.

        A report that starts late, or is backfilled, knows its day by this.
        """
        claimed = self._backend.claimed
        return scheduled_for(claimed.run_id) or scheduled_for(claimed.forked_from or "")

    @property
    def hero(self) -> Any:
        """The hero (subject) of the run, loaded now; None if it has none or it no longer exists."""
        claimed = self._backend.claimed
        if claimed.hero_type is None or claimed.hero_id is None:
            return None
        ask_database("ctx.hero")
        return self._backend.services.heroes.load(claimed.hero_type, claimed.hero_id)

    @property
    def attributes(self) -> dict[str, str | int | bool]:
        """The attributes of the run, read from the database now."""
        ask_database("ctx.attributes")
        return dict(self._backend.services.store.run(self.run.id).attributes)

    @property
    def cancel_requested(self) -> bool:
        """Whether the run was canceled while this step runs."""
        return self._backend.interrupted() == "canceled"

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records have the attributes run, type, step and attempt."""
        return logging.LoggerAdapter(logging.getLogger("detent.run"), self.facts)

    @property
    def facts(self) -> dict[str, Any]:
        """Run, type, step and attempt, as the `extra` of a log record."""
        return {"run": self.run.id, "type": self.run.type, "step": self.key, "attempt": self.attempt}

    def heartbeat(self) -> None:
        """Show this step as executing; if the run was canceled, end the step here."""
        self._backend.heartbeat(self)
        if self.cancel_requested:
            raise Canceled

    def iterate(self, items: Iterable[T], key: Callable[[T], Any] | None = None) -> Cursor[T]:
        """Iterate durably: after a crash, a pause or a deploy, continue after the last completed item.

            for item in ctx.iterate(rows, key=lambda row: row.id): ...

        Without `key` the items are counted, so they must come in the same order again.
        A step can have several such loops, one after the other.
        """
        if self.key == MAIN:
            raise InvalidState(
                "iterate in the body of",
                self.run.id,
                "not a step",
                "use a plain loop: the steps that it calls are recorded",
            )
        self._loops += 1
        return Cursor(self, self._backend, self._loops, items, key)

    def continue_as_new(self, *args: Any, **kwargs: Any) -> NoReturn:
        """End this run, and continue with a new run of the same workflow; see `detent.continue_as_new`.

        @workflow
        def poll(ctx: detent.Context, cursor: int) -> None:
            ctx.continue_as_new(fetch_after(cursor))
        """
        frame = current_frame("ctx.continue_as_new()")
        if frame is None:
            raise NotInRun("ctx.continue_as_new()")
        frame.continue_as_new(args, kwargs)

    @contextlib.contextmanager
    def looping(self) -> Iterator[None]:
        """Held by a loop over items; one inside of another would not find its place again."""
        if self._looping:
            raise InvalidState(
                f"iterate inside another iterate in step {self.key!r} of",
                self.run.id,
                "in a loop",
                "make the inner loop a plain loop, or a separate step",
            )
        self._looping = True
        try:
            yield
        finally:
            self._looping = False

    def next_start_id(self) -> str:
        """The id of the next run that this step starts: the same again for every attempt."""
        self._starts += 1
        return f"{self.run.id}/{self.key}/{self._starts}"


class Cursor(Iterable[T]):
    """The items that are left, for `for` and `async for`.

    @step
    def import_rows(ctx: detent.Context, rows: list[int]) -> None:
        for row in ctx.iterate(rows):
            save(row)
    """

    def __init__(
        self,
        step: Context,
        backend: StepBackend,
        loop: int,
        items: Iterable[T],
        key: Callable[[T], Any] | None,
    ) -> None:
        self._step = step
        self._backend = backend
        self._loop = loop  # which loop of the step this is: each has a place of its own
        self._items = items
        self._key = key

    def __iter__(self) -> Iterator[T]:
        with self._step.looping():
            for item, place in self._left():
                yield item
                self._backend.save_progress(self._step, self._loop, place)
                self._interrupt()

    async def __aiter__(self) -> AsyncIterator[T]:
        with self._step.looping():
            for item, place in self._left():
                yield item
                await self._backend.asave_progress(self._step, self._loop, place)
                self._interrupt()

    def _interrupt(self) -> None:
        interrupted = self._backend.interrupted()
        if interrupted == "canceled":
            raise Canceled
        if interrupted is not None:
            raise Suspended

    def _left(self) -> Iterator[tuple[T, str]]:
        done = self._backend.load_progress(self._step, self._loop)
        skipping = done is not None
        for number, item in enumerate(self._items, start=1):
            place = str(number) if self._key is None else str(self._key(item))
            if not skipping:
                yield item, place
            elif place == done:
                skipping = False
        if skipping:
            raise InvalidState(
                f"continue step {self._step.key!r} of",
                self._step.run.id,
                "at an unknown item",
                f"its items no longer contain the last completed one ({done})",
            )


# Where the running code is: the frame of its run, and inside a step the step.

frame_var: contextvars.ContextVar[Frame | None] = contextvars.ContextVar("detent_frame", default=None)
step_var: contextvars.ContextVar[Context | None] = contextvars.ContextVar("detent_step", default=None)


# Set where user code runs that has no run to record in, such as a projection; says what it is.
unrecorded_var: contextvars.ContextVar[str | None] = contextvars.ContextVar("detent_unrecorded", default=None)


def _leave_run() -> None:
    """In a forked child: the run and the step are executed by the parent."""
    frame, step = frame_var.get(), step_var.get()
    if frame is not None or step is not None:
        frame_var.set(None)
        step_var.set(None)
        unrecorded_var.set("a process that was forked inside a run")
        if step is None:
            _strays.add(threading.current_thread())


os.register_at_fork(after_in_child=_leave_run)


def in_thread_of_step() -> bool:
    """Whether a step started this thread, and did not give it its context."""
    return step_var.get() is None and threading.current_thread() in _in_steps


def current_frame(what: str) -> Frame | None:
    """The frame that records what is called here; None outside of runs and inside of steps."""
    frame = frame_var.get()
    if frame is None:
        _refuse_stray_thread(what)
        return None
    return None if step_var.get() is not None else frame


def replaying() -> bool:
    """Whether the running code is a workflow that is only replayed: nothing may be written."""
    frame = frame_var.get()
    return frame is not None and frame.replaying


def ask_database(what: str) -> None:
    """Called before the database is asked outside of steps: a replay ends here, without a query."""
    frame = frame_var.get()
    if frame is not None and frame.replaying:
        frame.unknowable(what)


def current_step() -> Context | None:
    return step_var.get()


# Threads that a workflow starts do not inherit its context (before Python 3.14), so a
# step called there would run unrecorded.  Threads started inside of a run are remembered,
# and a step called in one without the run's context is refused.

_strays: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_in_steps: weakref.WeakSet[threading.Thread] = weakref.WeakSet()  # those that steps start


def watch_threads() -> None:
    """Begin to notice threads that workflows start; once for a process."""
    if _watching.is_set():
        return
    _watching.set()
    if sys.version_info >= (3, 12):
        sys.addaudithook(_on_audit)
    else:  # no audit event tells of threads
        start = threading.Thread.start

        def watched_start(self: threading.Thread) -> None:
            _remember(self)
            start(self)

        threading.Thread.start = watched_start  # type: ignore[method-assign]


_watching = threading.Event()


def _on_audit(event: str, args: tuple[Any, ...]) -> None:
    if event in ("_thread.start_new_thread", "_thread.start_joinable_thread"):
        _remember(getattr(args[0], "__self__", None))


def _remember(thread: Any) -> None:
    if not isinstance(thread, threading.Thread):
        return
    if step_var.get() is not None:
        _in_steps.add(thread)
    elif frame_var.get() is not None:
        _strays.add(thread)


def _refuse_stray_thread(what: str) -> None:
    # Also when that run is over: a pool of threads that a workflow started also serves others later.
    if _strays and threading.current_thread() in _strays:
        raise StepOutsideRun(what, "a thread or process that a workflow started")
