"""The awaitable versions of durable calls."""

from __future__ import annotations

import asyncio
import random as _random
import time
import uuid as _uuid
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from functools import wraps
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar, cast, overload

from ..arguments import check_moment, check_text
from ..clock import to_micros
from ..definitions.awaitables import refuse_without_loop, watched
from ..definitions.context import Call, Frame, current_frame
from ..definitions.durable import (
    MISSING,
    AsyncStepGuardView,
    checked_append,
    checked_receive,
    checked_send,
    needed_frame,
    span_of,
)
from ..definitions.publish import aappend_here, publish_here

P = ParamSpec("P")
T = TypeVar("T")

# The awaitable forms of detent.sleep and its neighbours.  What waits is counted when it is
# called, as steps are, and not when its turn comes in an asyncio.gather().


def durable(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """In a run, the call must be awaited (awaiting.py)."""
    what = f"detent.aio.{function.__name__}"
    instead = f"detent.{function.__name__}(...)"

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        frame = current_frame(what)
        if frame is None:
            return function(*args, **kwargs)
        refuse_without_loop(frame, what, instead)
        return watched(frame, what, function(*args, **kwargs))

    return call


@durable
def sleep(
    seconds: float | timedelta = 0, *, minutes: float = 0, hours: float = 0, days: float = 0, weeks: float = 0
) -> Coroutine[Any, Any, None]:
    """Sleep durably, without a task and without memory; a crash does not change the end.

    await detent.aio.sleep(days=2)
    """
    span = span_of(seconds, minutes, hours, days, weeks)
    frame = current_frame("sleep")
    return asyncio.sleep(span / 1e6) if frame is None else frame.adrive(frame.sleep(span, None))


@durable
def sleep_until(moment: datetime) -> Coroutine[Any, Any, None]:
    """Sleep durably until a moment; a moment in the past does not wait.

    await detent.aio.sleep_until(datetime(2031, 1, 1, tzinfo=UTC))
    """
    until = to_micros(check_moment("detent.aio.sleep_until()", "moment", moment))
    frame = current_frame("sleep_until")
    if frame is None:
        return asyncio.sleep(max(0.0, until / 1e6 - time.time()))
    return frame.adrive(frame.sleep(None, until))


@durable
async def now() -> datetime:
    """The current time, recorded: a replay gets the same value.

    deadline = await detent.aio.now() + timedelta(days=2)
    """
    frame = current_frame("now")
    return datetime.now(UTC) if frame is None else await frame.adrive(frame.value("now", MISSING, datetime))


@durable
async def uuid() -> _uuid.UUID:
    """A random UUID, recorded: a replay gets the same value.

    token = str(await detent.aio.uuid())
    """
    frame = current_frame("uuid")
    if frame is None:
        return _uuid.uuid4()
    return cast(_uuid.UUID, await frame.adrive(frame.value("uuid", _uuid.uuid4, _uuid.UUID)))


@durable
async def random() -> float:
    """A random number from 0 to 1, recorded: a replay gets the same value.

    wait = 60 * await detent.aio.random()
    """
    frame = current_frame("random")
    if frame is None:
        return _random.random()
    return cast(float, await frame.adrive(frame.value("random", _random.random, float)))


@durable
def receive(
    name: str, *, timeout: timedelta | float | None = None, default: Any = MISSING, type: Any = Any
) -> Coroutine[Any, Any, Any]:
    """Wait for a message; see `detent.receive`.

    approved = await detent.aio.receive("approval", timeout=timedelta(days=2), default=False)
    """
    span = checked_receive(name, timeout)
    frame = needed_frame("receive", blocking=False)
    return frame.adrive(frame.receive(name, span, default, type))


@durable
async def publish(name: str, value: Any) -> None:
    """Make a value visible while the run continues; see `detent.publish`.

    await detent.aio.publish("progress", {"done": 3, "of": 10})
    """
    check_text("detent.aio.publish()", "name", name, example="progress")
    frame = current_frame("publish")
    if frame is not None:
        await frame.adrive(frame.publish(name, value))
    else:
        publish_here(name, value)


@durable
def append(name: str, value: Any, *, keep: int | None = None) -> Coroutine[Any, Any, None]:
    """Append a value to a stream of the run; see `detent.append`.

    async for token in model.generate(prompt):
        await detent.aio.append("tokens", token)
    """
    checked_append(name, keep)
    frame = current_frame("append")
    if frame is None:
        return aappend_here(name, value, keep)
    return frame.adrive(frame.append(name, value, keep))


@durable
def send(run_id: str, name: str, value: Any = None) -> Coroutine[Any, Any, None]:
    """Send a message to another run, exactly once.

    await detent.aio.send(other_run_id, "approval", True)
    """
    checked_send(run_id, name)
    frame = needed_frame("send", blocking=False)
    return frame.adrive(frame.send(run_id, name, value))


@durable
async def patched(id: str) -> bool:
    """Guard a change of a workflow's code; see `detent.patched`.

    if await detent.aio.patched("new-tax"):
        tax = new_tax(order_id)
    else:
        tax = old_tax(order_id)
    """
    check_text("detent.aio.patched()", "id", id, example="new-tax")
    frame = current_frame("patched")
    return True if frame is None else await frame.adrive(frame.patched(id))


class timeout:  # noqa: N801 - used like a function
    """A durable `asyncio.timeout`: its time also counts while the workflow is not in memory, and its
    expiry is recorded.

        async with detent.aio.timeout(minutes=30):
            answer = await detent.aio.receive("approval")

    Raises TimeoutError at the end of the block if the time was exceeded.
    """

    def __init__(
        self,
        seconds: float | timedelta = 0,
        *,
        minutes: float = 0,
        hours: float = 0,
        days: float = 0,
        weeks: float = 0,
    ) -> None:
        self._span = span_of(seconds, minutes, hours, days, weeks)
        self._plain: asyncio.Timeout | None = None
        self._owner: asyncio.Task[Any] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._cancelling = 0
        self._expired = False

    def expired(self) -> bool:
        """Whether the time was exceeded before the block ended."""
        return self._expired if self._plain is None else self._plain.expired()

    async def __aenter__(self) -> Self:
        frame = current_frame("timeout")
        if frame is None:
            self._plain = asyncio.timeout(self._span / 1e6)
            await self._plain.__aenter__()
            return self
        self._owner = asyncio.current_task()
        assert self._owner is not None
        self._cancelling = self._owner.cancelling()
        # A task of the workflow like any other: its end has a place in the recorded order.
        self._watch = asyncio.create_task(self._expire(frame, frame.sleep(self._span, None)))
        return self

    async def _expire(self, frame: Frame, sleep: Call[None]) -> None:
        await frame.adrive(sleep)
        self._expired = True
        assert self._owner is not None
        self._owner.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._plain is not None:
            await self._plain.__aexit__(kind, error, trace)
            return
        assert self._watch is not None
        assert self._owner is not None
        if not self._expired:
            self._watch.cancel()
        elif self._owner.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error


class step_guard(Generic[T]):  # noqa: N801 - used like a function
    """A manual step in async code; see `detent.step_guard`.

    async with detent.aio.step_guard("fetch", list[int]) as guard:
        if guard.pending:
            await guard.success(await fetch())
    data = guard.result
    """

    @overload
    def __init__(self: step_guard[Any], name: str) -> None: ...
    @overload
    def __init__(self, name: str, type: type[T]) -> None: ...
    def __init__(self, name: str, type: Any = Any) -> None:
        self._name = name
        self._type = type
        self._guard: Any = None

    async def __aenter__(self) -> AsyncStepGuardView[T]:
        frame = needed_frame("step_guard", blocking=False)
        self._guard = frame.aguard(self._name, self._type)
        await frame.adrive(self._guard.opening())
        return cast("AsyncStepGuardView[T]", self._guard)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and self._guard.pending:
            await self._guard.fail(error)
