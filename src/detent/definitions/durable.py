"""Durable calls besides steps: time, random values, messages.

They are recorded, so a replay gets the same values.  `detent.aio` has the awaitable versions.
Outside a run, they are plain calls if that is possible.
"""

from __future__ import annotations

import random as _random
import threading
import time
import uuid as _uuid
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Generic, NoReturn, Protocol, TypeVar, cast, overload

from ..arguments import (
    check_count,
    check_duration,
    check_message,
    check_moment,
    check_parts,
    check_stored_id,
    check_text,
    check_timeout,
)
from ..clock import span_micros, to_micros
from ..errors import BlockingCall, NotInRun
from .context import Frame, current_frame
from .publish import append_here, publish_here

MISSING: Any = object()
T = TypeVar("T")


class StepGuardView(Protocol[T]):
    """The object of `detent.step_guard`: whether the step is pending, and its recorded result."""

    @property
    def pending(self) -> bool:
        """Whether nothing is recorded for this step yet."""
        ...

    @property
    def result(self) -> T:
        """The recorded value; raises the recorded error."""
        ...

    def success(self, value: T) -> None:
        """Record the result; once."""
        ...

    def fail(self, error: Exception) -> None:
        """Record the failure; once."""
        ...


class AsyncStepGuardView(Protocol[T]):
    """The object of `detent.aio.step_guard`."""

    @property
    def pending(self) -> bool:
        """Whether nothing is recorded for this step yet."""
        ...

    @property
    def result(self) -> T:
        """The recorded value; raises the recorded error."""
        ...

    async def success(self, value: T) -> None:
        """Record the result; once."""
        ...

    async def fail(self, error: Exception) -> None:
        """Record the failure; once."""
        ...


def sleep(
    seconds: float | timedelta = 0, *, minutes: float = 0, hours: float = 0, days: float = 0, weeks: float = 0
) -> None:
    """Sleep durably, without a thread and without memory; a crash does not change the end.

        detent.sleep(days=30)

        detent.sleep(days=2)

    A duration of 0 or less does not wait.
    """
    span = span_of(seconds, minutes, hours, days, weeks)
    frame = blocking_frame("sleep")
    if frame is None:
        time.sleep(max(0.0, span / 1e6))
    else:
        frame.drive(frame.sleep(span, None))


def sleep_until(moment: datetime) -> None:
    """Sleep durably until a moment; a moment in the past does not wait.

    detent.sleep_until(datetime(2031, 1, 1, tzinfo=UTC))
    """
    until = to_micros(check_moment("detent.sleep_until()", "moment", moment))
    frame = blocking_frame("sleep_until")
    if frame is None:
        time.sleep(max(0.0, until / 1e6 - time.time()))
    else:
        frame.drive(frame.sleep(None, until))


def now() -> datetime:
    """The current time, recorded: a replay gets the same value.

    deadline = detent.now() + timedelta(days=2)
    """
    frame = blocking_frame("now")
    return datetime.now(UTC) if frame is None else frame.drive(frame.value("now", MISSING, datetime))


def uuid() -> _uuid.UUID:
    """A random UUID, recorded: a replay gets the same value.

    token = str(detent.uuid())
    """
    frame = blocking_frame("uuid")
    return _uuid.uuid4() if frame is None else frame.drive(frame.value("uuid", _uuid.uuid4, _uuid.UUID))


def random() -> float:
    """A random number from 0 to 1, recorded: a replay gets the same value.

    wait = 60 * detent.random()
    """
    frame = blocking_frame("random")
    return _random.random() if frame is None else frame.drive(frame.value("random", _random.random, float))


def receive(
    name: str, *, timeout: timedelta | float | None = None, default: Any = MISSING, type: Any = Any
) -> Any:
    """Wait for a message that is sent with `run.send(name, value)`; each is received once.

        approved = detent.receive("approval", timeout=timedelta(days=2), default=False)

    After `timeout` it returns `default`, or raises ReceiveTimeout if there is none.
    """
    span = checked_receive(name, timeout)
    frame = needed_frame("receive", blocking=True)
    return frame.drive(frame.receive(name, span, default, type))


def publish(name: str, value: Any) -> None:
    """Make a value visible while the run continues: `run.published(name)` returns the latest.

        detent.publish("progress", 50)

        detent.publish("progress", {"done": 3, "of": 10})

    In a workflow it is recorded.  In a step, a node or an effect it does not wait: the value is
    durable before the record of the step, and stays if the step fails.
    """
    check_text("detent.publish()", "name", name, example="progress")
    frame = blocking_frame("publish")
    if frame is not None:
        frame.drive(frame.publish(name, value))
    else:
        publish_here(name, value)


def append(name: str, value: Any, *, keep: int | None = None) -> None:
    """Append a value to a stream of the run; `run.stream(name)` reads all of them in order, live or later.

        for token in model.generate(prompt):
            detent.append("tokens", token)

        detent.append("log", "page 7 is done", keep=1000)

    In a workflow each value is appended exactly once.  In a step, a node or an effect it rarely waits, and
    an attempt that is repeated appends again: `StreamEntry.attempt` tells the attempts apart.  `keep=1000`
    removes all but the latest 1000 entries of the stream.
    """
    checked_append(name, keep)
    frame = blocking_frame("append")
    if frame is not None:
        frame.drive(frame.append(name, value, keep))
    else:
        append_here(name, value, keep)


def send(run_id: str, name: str, value: Any = None) -> None:
    """Send a message to another run, exactly once.

    detent.send(other_run_id, "approval", True)
    """
    checked_send(run_id, name)
    frame = needed_frame("send", blocking=True)
    frame.drive(frame.send(run_id, name, value))


def patched(id: str) -> bool:
    """Guard a change of the code: True for runs that reach this point for the first time with the new code.

    total = new_tax(order) if detent.patched("new-tax") else old_tax(order)
    """
    check_text("detent.patched()", "id", id, example="new-tax")
    frame = blocking_frame("patched")
    return True if frame is None else frame.drive(frame.patched(id))


def continue_as_new(*args: Any, **kwargs: Any) -> NoReturn:
    """End this run, and continue with a new run of the same workflow and these arguments.

        @workflow
        def serve(customer: str, served: int = 0) -> None:
            for _ in range(100):
                handle(customer, detent.receive("request"))
                served += 1
            detent.continue_as_new(customer, served)

    An endless loop stays small this way: the new run begins with an empty journal.  It takes over unread
    messages, the parent, hero, attributes, deadline, queue, key and priority.  The call never returns, and
    `finally` blocks run.  It first waits for steps and children that the run has spawned.  Works in `def`
    and `async def` workflows alike, without `await`.  See docs/guide.md, "Endless loops".
    """
    frame = current_frame("continue_as_new")
    if frame is None:
        raise NotInRun("detent.continue_as_new()")
    frame.continue_as_new(args, kwargs)


class step_guard(Generic[T]):  # noqa: N801 - used like a function
    """A manual step, without a function of its own.

        with detent.step_guard("fetch", list[int]) as guard:
            if guard.pending:
                guard.success(fetch())
        data = guard.result

    A recorded result is decoded to the type; without a type, it is a plain JSON value.
    """

    @overload
    def __init__(self: step_guard[Any], name: str) -> None: ...
    @overload
    def __init__(self, name: str, type: type[T]) -> None: ...
    def __init__(self, name: str, type: Any = Any) -> None:
        self._name = check_text("detent.step_guard()", "name", name, example="fetch")
        self._type = type
        self._guard: Any = None

    def __enter__(self) -> StepGuardView[T]:
        frame = needed_frame("step_guard", blocking=True)
        self._guard = frame.guard(self._name, self._type)
        return cast("StepGuardView[T]", self._guard)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and self._guard.pending:
            self._guard.fail(error)


def span_of(seconds: float | timedelta, minutes: float, hours: float, days: float, weeks: float) -> int:
    """Return a duration given in parts, in microseconds."""
    total = check_duration("detent.sleep()", "seconds", seconds, least=None)
    if minutes or hours or days or weeks:
        parts = {"minutes": minutes, "hours": hours, "days": days, "weeks": weeks}
        total += check_parts("detent.sleep()", parts, least=None)
    return span_micros(total)


def checked_receive(name: str, timeout: timedelta | float | None) -> int | None:
    """Check what a workflow waits for; returns the timeout in microseconds."""
    check_text("detent.receive()", "name", name, example="approved")
    seconds = check_timeout("detent.receive()", timeout)
    return None if seconds is None else span_micros(seconds)


def checked_append(name: str, keep: int | None) -> None:
    """Check the name of a stream, and how many of its entries stay."""
    check_text("detent.append()", "name", name, example="tokens")
    if keep is not None:
        check_count("detent.append()", "keep", keep, least=1)


def checked_send(run_id: str, name: str) -> None:
    """Check to which run a workflow sends what."""
    check_stored_id("detent.send()", "run_id", run_id)
    check_message("detent.send()", name)


def blocking_frame(what: str, instead: str = "") -> Frame | None:
    """The frame to block in; refused on a loop, where it would stop everything else."""
    frame = current_frame(what)
    if frame is not None and frame.loop_thread == threading.get_ident():
        if instead:
            raise BlockingCall(what, instead)
        raise BlockingCall(f"detent.{what}()", f"await detent.aio.{what}(...)")
    return frame


def needed_frame(what: str, *, blocking: bool) -> Frame:
    frame = blocking_frame(what) if blocking else current_frame(what)
    if frame is None:
        raise NotInRun(f"detent.{what}()")
    return frame
