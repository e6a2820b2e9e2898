"""Drivers: how the requests of a routine are performed.

`SyncDriver` blocks; a wait leaves the workflow by `Suspended`, and a replay comes
back.  `AsyncDriver` awaits; when every branch of the workflow waits, the workflow is
taken from memory in the same way.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ..commit.batch_attempts import FIRST_WAIT, LONGEST_WAIT
from ..commit.entries import outlast, outlast_and_cancel
from ..definitions.context import Frame, Routine, Suspended, frame_var, step_var
from ..process_forks import OneProcess
from ..stores.driver import Trouble
from .bodies import acall, awaited, call
from .failures import unwrapped
from .requests import Ask, Body, Commit, MainBody, Pause, Read, Wait
from .services import Services

T = TypeVar("T")
LINGER = 0.25  # seconds that a workflow stays whose branches may be busy with something else
# Seconds between two looks at what is awaited, while another branch keeps the run here.  Longer than
# it lingers: a look is a move.
RECHECK = 1.0
BEHIND = 0.01  # seconds after a timer of the workflow's own, when it is considered again


def drive(services: Services, routine: Routine[T], waits: list[Wait]) -> T:
    """Carry a routine out, blocking."""
    try:
        request = next(routine)
        while True:
            try:
                reply = _perform(services, request, waits)
            except BaseException as error:
                request = routine.throw(error)
            else:
                request = routine.send(reply)
    except StopIteration as done:
        value: T = done.value
        return value
    except RuntimeError as error:
        raise unwrapped(error) from error.__cause__


def _perform(services: Services, request: Any, waits: list[Wait]) -> Any:
    if isinstance(request, Commit):
        return services.committer.run(request.operation, forever=True)
    if isinstance(request, Body):
        return call(services, request)
    if isinstance(request, Read):
        return _read(services, request)
    if isinstance(request, Ask):
        return request.function()
    if isinstance(request, Wait):
        waits.append(request)
        raise Suspended
    if isinstance(request, MainBody):
        with OneProcess():
            return request.definition.function(*request.args, **request.kwargs)
    if isinstance(request, Pause):
        time.sleep(request.seconds)
        return None
    raise TypeError(f"no driver performs {request!r}")


def _read(services: Services, request: Read) -> Any:
    """Ask the store; a database that is away is waited for, as with a commit."""
    wait = FIRST_WAIT
    while True:
        try:
            return request.read()
        except Exception as error:
            if services.store.driver.trouble(error) not in (Trouble.GONE, Trouble.RETRY):
                raise
        time.sleep(wait)
        wait = min(wait * 2, LONGEST_WAIT)


class Idling:
    """Knows when an async workflow only waits, and then asks it to leave.

    Its callbacks run in empty contexts: that tells them from the workflow's own code.
    """

    __slots__ = (
        "_branches",
        "_considering",
        "_frame",
        "_moves",
        "_on_idle",
        "_services",
        "_waiting",
        "busy",
        "main",
    )

    def __init__(
        self, services: Services, branches: set[asyncio.Task[Any]], on_idle: Callable[[], None]
    ) -> None:
        self._services = services
        self._branches = branches
        self._on_idle = on_idle
        self._moves = 0
        self._waiting: dict[asyncio.Future[None], tuple[Wait, asyncio.Task[Any] | None]] = {}
        self._considering = False
        self._frame: Frame | None = None
        self.busy = 0
        self.main: asyncio.Task[Any] | None = None

    def close(self) -> None:
        """Stop asking waits to leave."""
        self._on_idle = _stay
        self._frame = None

    def waits(self) -> list[Wait]:
        return [wait for wait, _ in self._waiting.values()]

    def begin(self) -> None:
        self.busy += 1
        self._moves += 1

    def end(self, loop: asyncio.AbstractEventLoop) -> None:
        self.busy -= 1
        self._moves += 1
        if self._waiting and not self.busy:
            self._consider_soon(loop)

    def poke(self) -> None:
        """Something that is awaited may have happened."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    def leave(self, signal: type[BaseException]) -> None:
        """Raise a signal in all that waits."""
        for future in self._waiting:
            if not future.done():
                future.set_exception(signal())

    async def wait(self, wait: Wait) -> None:
        """Return when it is worth looking again."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting[future] = (wait, asyncio.current_task())
        self._frame = frame_var.get()
        self._consider_soon(loop)
        seconds = self._patience(wait)
        timer = None
        if seconds is not None:
            timer = loop.call_later(max(0.0, seconds), _look_again, future, context=contextvars.Context())
        try:
            await future
        finally:
            if timer is not None:
                timer.cancel()
            self._waiting.pop(future, None)
            self._moves += 1
            self._consider_soon(loop)

    def _patience(self, wait: Wait) -> float | None:
        if self._services.clock.virtual:
            return RECHECK
        due = None if wait.wake_at is None else (wait.wake_at - self._services.clock.now()) / 1e6
        if due is not None and due <= 0:
            return RECHECK  # it only waits; another branch keeps the run here
        if not wait.awaits:
            return due
        return RECHECK if due is None else min(due, RECHECK)

    def _consider_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Once for all that begins or ends waiting in this turn of the loop."""
        if self._waiting and not self._considering:
            self._considering = True
            loop.call_soon(self._consider, context=contextvars.Context())

    def _consider(self) -> None:
        self._considering = False
        if self.busy or not self._waiting or self._wakes_up():
            return
        waiting = {task for _, task in self._waiting.values()}
        if self._stays_for_timer():
            return
        if self.main in waiting and self._branches <= waiting:
            self._on_idle()
        else:
            linger = LINGER / 10 if self._services.clock.virtual else LINGER
            asyncio.get_running_loop().call_later(
                linger, self._leave_if_still, self._moves, context=contextvars.Context()
            )

    def _leave_if_still(self, moves: int) -> None:
        still = moves == self._moves and self._waiting and not self.busy and not self._wakes_up()
        if still and not self._stays_for_timer():
            self._on_idle()

    def _wakes_up(self) -> bool:
        """Whether a wait was told to continue or to end, and has not done so yet."""
        return any(future.done() for future in self._waiting)

    def _stays_for_timer(self) -> bool:
        """Whether the workflow's own code has set a timer, with `asyncio.timeout` or `asyncio.sleep`.

        Such a timer is lost when the workflow leaves memory, and would begin anew in every
        replay.  So the workflow stays until it is over.
        """
        loop = asyncio.get_running_loop()
        timers = [each.when() for each in getattr(loop, "_scheduled", ()) if _set_by(each, self._frame)]
        if timers:
            loop.call_at(
                max(min(timers), loop.time()) + BEHIND, self._consider, context=contextvars.Context()
            )
        return bool(timers)


def _set_by(timer: Any, frame: Any) -> bool:
    """Whether code of this workflow, outside of its steps, has set a timer."""
    context = timer._context
    return not timer.cancelled() and context.get(frame_var) is frame and context.get(step_var) is None


def _look_again(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _stay() -> None:
    """The workflow is over."""


async def adrive(  # noqa: PLR0912 - the loop of every step: a coroutine around each request would count
    services: Services, routine: Routine[T], idling: Idling, loop: asyncio.AbstractEventLoop
) -> T:
    """Carry a routine out on this loop, which runs.

    A cancellation that comes during a commit is raised behind it, whatever the routine returns.
    """
    cancelled = False
    try:
        request = next(routine)
        idling.begin()  # until its end, but for its waits
        try:
            while True:
                try:
                    reply: Any = None
                    if cancelled:
                        raise asyncio.CancelledError
                    if type(request) is Commit:
                        entry = services.committer.send(request.operation, loop, forever=True)
                        assert entry.future is not None
                        try:
                            reply = await entry.future
                        except asyncio.CancelledError:
                            cancelled = True
                            reply = await outlast(entry)
                    elif type(request) is Body and request.step.is_async and services.shuffle is None:
                        reply = await awaited(request, request.args)
                    elif type(request) is Wait:
                        idling.end(loop)
                        try:
                            await idling.wait(request)
                        finally:
                            idling.begin()
                    else:
                        reply = await _performing(services, request)
                except BaseException as error:
                    request = routine.throw(error)
                else:
                    request = routine.send(reply)
        finally:
            idling.end(loop)
    except StopIteration as done:
        if cancelled:
            raise asyncio.CancelledError from None
        value: T = done.value
        return value
    except Exception:
        if cancelled:
            raise asyncio.CancelledError from None
        raise


async def adrive_main(
    services: Services,
    routine: Routine[T],
    waits: list[Wait],
    main: Callable[[MainBody, asyncio.AbstractEventLoop], Awaitable[Any]],
) -> T:
    """The same for what surrounds the workflow's function: its own waits put the run down."""
    loop = asyncio.get_running_loop()  # once for a run: it makes a system call
    try:
        request = next(routine)
        while True:
            try:
                if type(request) is MainBody:
                    reply = await main(request, loop)
                elif type(request) is Commit:
                    entry = services.committer.send(request.operation, loop, forever=True)
                    assert entry.future is not None
                    try:
                        reply = await entry.future
                    except asyncio.CancelledError:
                        reply = await outlast_and_cancel(entry)
                elif type(request) is Wait:
                    waits.append(request)
                    raise Suspended
                else:
                    reply = await _performing(services, request)
            except BaseException as error:
                request = routine.throw(error)
            else:
                request = routine.send(reply)
    except StopIteration as done:
        value: T = done.value
        return value


def _performing(services: Services, request: Any) -> Awaitable[Any]:
    """What to await for a request.  Not a coroutine: one around each body and each commit counts."""
    if isinstance(request, Body):
        return acall(services, request)
    if isinstance(request, Read):
        context = contextvars.copy_context()
        return services.threads.run(lambda: context.run(_read, services, request))
    if isinstance(request, Ask):
        context, ask = contextvars.copy_context(), request.function
        return services.threads.run(lambda: context.run(ask))
    if isinstance(request, Pause):
        return asyncio.sleep(request.seconds)
    raise TypeError(f"no driver performs {request!r}")
