"""The awaitable forms of what waits."""

from __future__ import annotations

import asyncio
import random as _random
import time
import uuid as _uuid
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from ..clock import span_micros, to_micros
from ..context import current_frame, publish_here
from ..durable import MISSING, needed_frame, span_of

# The awaitable forms of detent.sleep and its neighbours.  What waits is counted when it is
# called, as steps are, and not when its turn comes in an asyncio.gather().


def sleep(
    seconds: float | timedelta = 0, *, minutes: float = 0, hours: float = 0, days: float = 0, weeks: float = 0
) -> Coroutine[Any, Any, None]:
    """Sleep durably: holds no task and no memory, and survives everything."""
    span = span_of(seconds, minutes, hours, days, weeks)
    frame = current_frame("sleep")
    return asyncio.sleep(span / 1e6) if frame is None else frame.adrive(frame.sleep(span, None))


def sleep_until(moment: datetime) -> Coroutine[Any, Any, None]:
    """Sleep durably until a moment; one that has passed does not wait."""
    frame = current_frame("sleep_until")
    if frame is None:
        return asyncio.sleep(max(0.0, to_micros(moment) / 1e6 - time.time()))
    return frame.adrive(frame.sleep(None, to_micros(moment)))


async def now() -> datetime:
    """The time, recorded: a replay sees the same."""
    frame = current_frame("now")
    return datetime.now(UTC) if frame is None else await frame.adrive(frame.value("now", MISSING, datetime))


async def uuid() -> _uuid.UUID:
    """A random UUID, recorded."""
    frame = current_frame("uuid")
    if frame is None:
        return _uuid.uuid4()
    return cast(_uuid.UUID, await frame.adrive(frame.value("uuid", _uuid.uuid4, _uuid.UUID)))


async def random() -> float:
    """A random number from 0 to 1, recorded."""
    frame = current_frame("random")
    if frame is None:
        return _random.random()
    return cast(float, await frame.adrive(frame.value("random", _random.random, float)))


def receive(
    name: str, *, timeout: timedelta | float | None = None, default: Any = MISSING, type: Any = Any
) -> Coroutine[Any, Any, Any]:
    """Wait for a message; see `detent.receive`."""
    frame = needed_frame("receive", blocking=False)
    span = None if timeout is None else span_micros(timeout)
    return frame.adrive(frame.receive(name, span, default, type))


async def publish(name: str, value: Any) -> None:
    """Show a value to anyone who asks; see `detent.publish`."""
    frame = current_frame("publish")
    if frame is not None:
        await frame.adrive(frame.publish(name, value))
    else:
        publish_here(name, value)


def send(run_id: str, name: str, value: Any = None) -> Coroutine[Any, Any, None]:
    """Send a message to another run, exactly once."""
    frame = needed_frame("send", blocking=False)
    return frame.adrive(frame.send(run_id, name, value))


async def patched(id: str) -> bool:
    """Guard a change of a workflow's code; see `detent.patched`."""
    frame = current_frame("patched")
    return True if frame is None else await frame.adrive(frame.patched(id))
