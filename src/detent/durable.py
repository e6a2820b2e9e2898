"""What a durable function may ask for beside steps: time, chance, messages.

Everything here is recorded, so a replay sees the same.  `detent.aio` has the
awaitable forms.  Outside of a run, what makes sense there just happens.
"""

from __future__ import annotations

import random as _random
import threading
import time
import uuid as _uuid
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any

from .clock import span_micros, to_micros
from .context import Frame, current_frame, publish_here
from .errors import BlockingCall, NotInRun

MISSING: Any = object()


def sleep(
    seconds: float | timedelta = 0, *, minutes: float = 0, hours: float = 0, days: float = 0, weeks: float = 0
) -> None:
    """Sleep durably: holds no thread and no memory, and survives everything."""
    span = span_of(seconds, minutes, hours, days, weeks)
    frame = blocking_frame("sleep")
    if frame is None:
        time.sleep(span / 1e6)
    else:
        frame.drive(frame.sleep(span, None))


def sleep_until(moment: datetime) -> None:
    """Sleep durably until a moment; one that has passed does not wait."""
    frame = blocking_frame("sleep_until")
    if frame is None:
        time.sleep(max(0.0, to_micros(moment) / 1e6 - time.time()))
    else:
        frame.drive(frame.sleep(None, to_micros(moment)))


def now() -> datetime:
    """The time, recorded: a replay sees the same."""
    frame = blocking_frame("now")
    return datetime.now(UTC) if frame is None else frame.drive(frame.value("now", MISSING, datetime))


def uuid() -> _uuid.UUID:
    """A random UUID, recorded."""
    frame = blocking_frame("uuid")
    return _uuid.uuid4() if frame is None else frame.drive(frame.value("uuid", _uuid.uuid4, _uuid.UUID))


def random() -> float:
    """A random number from 0 to 1, recorded."""
    frame = blocking_frame("random")
    return _random.random() if frame is None else frame.drive(frame.value("random", _random.random, float))


def receive(
    name: str, *, timeout: timedelta | float | None = None, default: Any = MISSING, type: Any = Any
) -> Any:
    """Wait for a message, sent with `run.send(name, value)`; each is received once.

    When it does not come in time: `default` if there is one, else ReceiveTimeout.
    """
    frame = needed_frame("receive", blocking=True)
    return frame.drive(frame.receive(name, None if timeout is None else span_micros(timeout), default, type))


def publish(name: str, value: Any) -> None:
    """Show a value to anyone who asks: `run.published(name)` returns the latest.

    In a workflow it is recorded.  In a step, a node or an effect it does not wait: the value is
    durable before the record of the step is, and stays if the step fails.
    """
    frame = blocking_frame("publish")
    if frame is not None:
        frame.drive(frame.publish(name, value))
    else:
        publish_here(name, value)


def send(run_id: str, name: str, value: Any = None) -> None:
    """Send a message to another run, exactly once."""
    frame = needed_frame("send", blocking=True)
    frame.drive(frame.send(run_id, name, value))


def patched(id: str) -> bool:
    """Guard a change of a workflow's code: True for runs that reach this point with the new code."""
    frame = blocking_frame("patched")
    return True if frame is None else frame.drive(frame.patched(id))


class step_guard:  # noqa: N801 - used like a function
    """A step by hand, without a function of its own.

    with detent.step_guard("fetch") as guard:
        if guard.pending:
            guard.success(fetch())
    data = guard.result
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._guard: Any = None

    def __enter__(self) -> Any:
        self._guard = needed_frame("step_guard", blocking=True).guard(self._name)
        return self._guard

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and self._guard.pending:
            self._guard.fail(error)


def span_of(seconds: float | timedelta, minutes: float, hours: float, days: float, weeks: float) -> int:
    """Return a duration given in parts, in microseconds."""
    base = seconds if isinstance(seconds, timedelta) else timedelta(seconds=seconds)
    return span_micros(base + timedelta(minutes=minutes, hours=hours, days=days, weeks=weeks))


def blocking_frame(what: str) -> Frame | None:
    """The frame to block in; refused on a loop, where it would stop everything else."""
    frame = current_frame(what)
    if frame is not None and frame.loop_thread == threading.get_ident():
        raise BlockingCall(f"detent.{what}()", f"await detent.aio.{what}(...)")
    return frame


def needed_frame(what: str, *, blocking: bool) -> Frame:
    frame = blocking_frame(what) if blocking else current_frame(what)
    if frame is None:
        raise NotInRun(f"detent.{what}()")
    return frame
