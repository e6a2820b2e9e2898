"""The awaitable forms of what waits."""

from __future__ import annotations

import asyncio
import random as _random
import time
import uuid as _uuid
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from ..arguments import check_moment, check_text
from ..awaiting import refuse_without_loop, watched
from ..clock import to_micros
from ..context import current_frame
from ..durable import MISSING, checked_receive, checked_send, needed_frame, span_of

P = ParamSpec("P")
T = TypeVar("T")

# The awaitable forms of detent.sleep and its neighbours.  What waits is counted when it is
# called, as steps are, and not when its turn comes in an asyncio.gather().


def _durable(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
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


@_durable
def sleep(
    seconds: float | timedelta = 0, *, minutes: float = 0, hours: float = 0, days: float = 0, weeks: float = 0
) -> Coroutine[Any, Any, None]:
    """Sleep durably: holds no task and no memory, and survives everything."""
    span = span_of(seconds, minutes, hours, days, weeks)
    frame = current_frame("sleep")
    return asyncio.sleep(span / 1e6) if frame is None else frame.adrive(frame.sleep(span, None))


@_durable
def sleep_until(moment: datetime) -> Coroutine[Any, Any, None]:
    """Sleep durably until a moment; one that has passed does not wait."""
    until = to_micros(check_moment("detent.aio.sleep_until()", "moment", moment))
    frame = current_frame("sleep_until")
    if frame is None:
        return asyncio.sleep(max(0.0, until / 1e6 - time.time()))
    return frame.adrive(frame.sleep(None, until))


@_durable
async def now() -> datetime:
    """The time, recorded: a replay sees the same."""
    frame = current_frame("now")
    return datetime.now(UTC) if frame is None else await frame.adrive(frame.value("now", MISSING, datetime))


@_durable
async def uuid() -> _uuid.UUID:
    """A random UUID, recorded."""
    frame = current_frame("uuid")
    if frame is None:
        return _uuid.uuid4()
    return cast(_uuid.UUID, await frame.adrive(frame.value("uuid", _uuid.uuid4, _uuid.UUID)))


@_durable
async def random() -> float:
    """A random number from 0 to 1, recorded."""
    frame = current_frame("random")
    if frame is None:
        return _random.random()
    return cast(float, await frame.adrive(frame.value("random", _random.random, float)))


@_durable
def receive(
    name: str, *, timeout: timedelta | float | None = None, default: Any = MISSING, type: Any = Any
) -> Coroutine[Any, Any, Any]:
    """Wait for a message; see `detent.receive`."""
    span = checked_receive(name, timeout)
    frame = needed_frame("receive", blocking=False)
    return frame.adrive(frame.receive(name, span, default, type))


@_durable
async def publish(name: str, value: Any) -> None:
    """Show a value to anyone who asks: `run.published(name)`."""
    check_text("detent.aio.publish()", "name", name, example="progress")
    frame = current_frame("publish")
    if frame is not None:
        await frame.adrive(frame.publish(name, value))


@_durable
def send(run_id: str, name: str, value: Any = None) -> Coroutine[Any, Any, None]:
    """Send a message to another run, exactly once."""
    checked_send(run_id, name)
    frame = needed_frame("send", blocking=False)
    return frame.adrive(frame.send(run_id, name, value))


@_durable
async def patched(id: str) -> bool:
    """Guard a change of a workflow's code; see `detent.patched`."""
    check_text("detent.aio.patched()", "id", id, example="new-tax")
    frame = current_frame("patched")
    return True if frame is None else await frame.adrive(frame.patched(id))
