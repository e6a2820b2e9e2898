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

from ..commit import FIRST_WAIT, LONGEST_WAIT
from ..context import Routine, Suspended
from ..stores.base import Trouble
from .bodies import acall, call
from .requests import Ask, Body, Commit, MainBody, Pause, Read, Wait
from .services import Services

T = TypeVar("T")
LINGER = 0.25  # seconds that a workflow stays whose branches may be busy with something else
# Seconds between two looks at what is awaited, while another branch keeps the run here.  Longer than
# it lingers: a look is a move.
RECHECK = 1.0


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
    """Knows when nothing goes on in an async workflow any more, and then asks it to leave."""

    def __init__(
        self, services: Services, branches: set[asyncio.Task[Any]], on_idle: Callable[[], None]
    ) -> None:
        self._services = services
        self._branches = branches
        self._on_idle = on_idle
        self._moves = 0
        self._waiting: dict[asyncio.Future[None], tuple[Wait, asyncio.Task[Any] | None]] = {}
        self.busy = 0
        self.main: asyncio.Task[Any] | None = None

    def close(self) -> None:
        """Nobody will be asked to leave any more."""
        self._on_idle = _stay

    def waits(self) -> list[Wait]:
        return [wait for wait, _ in self._waiting.values()]

    def begin(self) -> None:
        self.busy += 1
        self._moves += 1

    def end(self) -> None:
        self.busy -= 1
        self._moves += 1
        if self._waiting and not self.busy:
            asyncio.get_running_loop().call_soon(self._consider)

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
        loop.call_soon(self._consider)
        try:
            async with asyncio.timeout(self._patience(wait)):
                await future
        except TimeoutError:
            pass
        finally:
            self._waiting.pop(future, None)
            self._moves += 1

    def _patience(self, wait: Wait) -> float | None:
        if self._services.clock.virtual:
            return RECHECK
        due = None if wait.wake_at is None else (wait.wake_at - self._services.clock.now()) / 1e6
        if due is not None and due <= 0:
            return RECHECK  # it only wants to be put down; another branch keeps the run here
        if not wait.awaits:
            return due
        return RECHECK if due is None else min(due, RECHECK)

    def _consider(self) -> None:
        if self.busy or not self._waiting:
            return
        waiting = {task for _, task in self._waiting.values()}
        if self.main in waiting and self._branches <= waiting:
            self._on_idle()
        else:
            linger = LINGER / 10 if self._services.clock.virtual else LINGER
            asyncio.get_running_loop().call_later(linger, self._leave_if_still, self._moves)

    def _leave_if_still(self, moves: int) -> None:
        if moves == self._moves and self._waiting and not self.busy:
            self._on_idle()


def _stay() -> None:
    """The workflow is over."""


async def adrive(services: Services, routine: Routine[T], idling: Idling) -> T:
    """Carry a routine out on the running loop."""
    try:
        request = next(routine)
        while True:
            try:
                reply: Any = None
                if isinstance(request, Wait):
                    await idling.wait(request)
                else:
                    idling.begin()
                    try:
                        if isinstance(request, Commit):
                            reply = await services.committer.arun(request.operation, forever=True)
                        else:
                            reply = await _aperform(services, request)
                    finally:
                        idling.end()
            except BaseException as error:
                request = routine.throw(error)
            else:
                request = routine.send(reply)
    except StopIteration as done:
        value: T = done.value
        return value


async def adrive_main(
    services: Services, routine: Routine[T], waits: list[Wait], main: Callable[[MainBody], Awaitable[Any]]
) -> T:
    """The same for what surrounds the workflow's function: its own waits put the run down."""
    try:
        request = next(routine)
        while True:
            try:
                if isinstance(request, MainBody):
                    reply = await main(request)
                elif isinstance(request, Commit):
                    reply = await services.committer.arun(request.operation, forever=True)
                elif isinstance(request, Wait):
                    waits.append(request)
                    raise Suspended
                else:
                    reply = await _aperform(services, request)
            except BaseException as error:
                request = routine.throw(error)
            else:
                request = routine.send(reply)
    except StopIteration as done:
        value: T = done.value
        return value


async def _aperform(services: Services, request: Any) -> Any:
    """All but commits: those are so many that each coroutine around them counts."""
    if isinstance(request, Body):
        return await acall(services, request)
    if isinstance(request, Read):
        context = contextvars.copy_context()
        return await asyncio.wrap_future(
            services.threads.submit(lambda: context.run(_read, services, request))
        )
    if isinstance(request, Ask):
        context, ask = contextvars.copy_context(), request.function
        return await asyncio.wrap_future(services.threads.submit(lambda: context.run(ask)))
    if isinstance(request, Pause):
        return await asyncio.sleep(request.seconds)
    raise TypeError(f"no driver performs {request!r}")
