"""Routines that wait, and values that are recorded: sleep, receive, publish, append, send, now, patched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..clock import from_micros
from ..definitions.context import Routine
from ..definitions.durable import MISSING
from ..errors import InvalidState, ReceiveTimeout, ResultTimeout, RunNotFound
from ..kernel.journal import FINAL, POINTS, order_key
from ..kernel.operations import Send
from ..kernel.rows import MAIN, Await, Message, NewEntry, RunEnd, RunRow, RunState, Step, StepState
from .calls import encode_call
from .failures import encode_error
from .frame import FrameCore
from .requests import Commit, Read, Wait


def sleep(frame: FrameCore, key: str, span: int | None, until: int | None) -> Routine[None]:
    """Wait until the recorded moment; the first time, record it."""
    entry = frame.journal.find(key)
    if entry is None:
        frame.begin_new(key, "sleep", "sleep")
        yield from frame.checkpoint()
        wake_at = until if until is not None else frame.now() + max(0, span or 0)
        entry = frame.entry(key, "sleep", "sleep", StepState.WAITING, wake_at=wake_at, started_at=frame.now())
        frame.unwritten.append(frame.journal.put(entry))
    if frame.journal.peek(order_key(key)) is None:  # it has ended, by another worker's clock
        yield from frame.wait_until(entry.wake_at or 0)


def value(frame: FrameCore, key: str, name: str, make: Callable[[], Any], type: Any) -> Routine[Any]:
    """A value of the outside world, the same on every replay.

    It is durable before anything that could depend on it: it travels with the next
    commit, and no step begins before that.
    """
    entry = frame.journal.find(key)
    if entry is None:
        frame.refuse_if_leaving()
        made = from_micros(frame.now()) if make is MISSING else make()
        text = frame.encode(made, f"{name}()")
        entry = frame.entry(key, "value", name, StepState.COMPLETED, result=text, finished_at=frame.now())
        frame.unwritten.append(frame.journal.put(entry))
    return frame.recorded(name, entry, type)
    yield  # a routine, though it asks for nothing


def patched(frame: FrameCore, id: str) -> Routine[bool]:
    """True if the new code comes first; a run that went past with the old code stays with it."""
    key = f"patched/{id}"
    if frame.journal.find(key) is not None:
        return True
    if any(step.kind in POINTS for step in frame.journal.unasked()):
        return False
    frame.refuse_if_leaving()
    entry = frame.entry(key, "patched", id, StepState.COMPLETED, result="true", finished_at=frame.now())
    frame.unwritten.append(frame.journal.put(entry))
    return True
    yield  # a routine, though it asks for nothing


def publish(frame: FrameCore, key: str, name: str, value: Any) -> Routine[None]:
    if frame.journal.find(key) is None:
        frame.begin_new(key, "publish", name)
        text = frame.encode(value, f"the published value {name!r}")
        yield from frame.checkpoint()
        yield from frame.record(
            frame.entry(key, "publish", name, StepState.COMPLETED, result=text, finished_at=frame.now())
        )


def append(frame: FrameCore, key: str, name: str, value: Any, keep: int | None) -> Routine[None]:
    """Append and record in one commit: the entry is stored exactly once."""
    if frame.journal.find(key) is None:
        frame.begin_new(key, "append", name)
        text = frame.encode(value, f"a value of the stream {name!r}")
        yield from frame.checkpoint()
        entry = NewEntry(
            run_id=frame.run_id,
            name=name,
            entry_id=key,
            step=MAIN,
            attempt=1,
            value=text,
            appended_at=frame.now(),
            keep=keep,
        )
        facts = {"result": "null", "finished_at": frame.now()}
        yield from frame.record(
            frame.entry(key, "append", name, StepState.COMPLETED, **facts), appends=[entry]
        )


def send(frame: FrameCore, key: str, run_id: str, name: str, value: Any) -> Routine[None]:
    """Send, then record: a crash between the two sends the same message id again, which changes nothing."""
    entry = frame.journal.find(key)
    call = encode_call(frame.services.codec, f"the message {name!r}", (run_id, value), {})
    if entry is not None:
        frame.check_message(entry, call)
        return
    frame.begin_new(key, "send", name)
    text = frame.encode(value, f"the message {name!r}")
    yield from frame.checkpoint()
    yield Commit(
        Send(
            run_id=run_id,
            message_id=f"{frame.run_id}:{key}",
            name=name,
            value=text,
            sent_at=frame.now(),
        )
    )
    facts = {"input": call, "result": "null", "finished_at": frame.now()}
    yield from frame.record(frame.entry(key, "send", name, StepState.COMPLETED, **facts))


def receive(
    frame: FrameCore, key: str, name: str, timeout: int | None, default: Any, type: Any
) -> Routine[Any]:
    """Take the oldest message of that name, once; or time out, for good."""
    entry = frame.journal.find(key)
    if entry is not None and entry.state in FINAL:
        if entry.state == StepState.FAILED and default is not MISSING:
            return default
        return frame.recorded(name, entry, type)
    if entry is None:
        frame.begin_new(key, "receive", name)
    begun = entry.started_at if entry is not None else frame.now()
    expires = entry.wake_at if entry is not None else None if timeout is None else frame.now() + timeout
    while True:
        yield from frame.checkpoint()
        message = yield from _take(frame, name)
        facts = {"started_at": begun, "finished_at": frame.now()}
        if message is not None:
            got = frame.entry(key, "receive", name, StepState.COMPLETED, result=message.value, **facts)
            yield from frame.record(got, consume=[message.seq])
            return frame.recorded(name, got, type)
        if expires is not None and frame.now() >= expires:
            late = ReceiveTimeout(name)
            yield from frame.record(
                frame.entry(key, "receive", name, StepState.FAILED, error=encode_error(late), **facts)
            )
            if default is not MISSING:
                return default
            raise late
        if entry is None:  # travels with the wait itself, for people to see and for the time to count
            entry = frame.entry(key, "receive", name, StepState.WAITING, wake_at=expires, started_at=begun)
            frame.unwritten.append(frame.journal.put(entry))
        yield Wait(
            frame.no_later_than_deadline(expires), (Await(run_id=frame.run_id, kind="message", name=name),)
        )


def _take(frame: FrameCore, name: str) -> Routine[Message | None]:
    """The oldest message that no other branch of this workflow is just taking."""
    messages: list[Message] = yield Read(
        lambda: frame.services.store.unread(frame.run_id, name, limit=len(frame.taken) + 1)
    )
    for message in messages:
        if message.seq not in frame.taken:
            frame.taken |= {message.seq}
            return message
    return None


def outcome_of(frame: FrameCore, key: str, run_id: str, timeout: int | None) -> Routine[RunEnd]:
    """Wait until another run is over, and record how it ended; the worker is free meanwhile."""
    entry = frame.journal.find(key)
    if entry is not None and entry.state in FINAL:
        return _ended(frame, entry)
    if run_id == frame.run_id:
        raise InvalidState("wait for the result of", run_id, "the waiting run itself", "it would never end")
    if entry is None:
        frame.begin_new(key, "result", run_id)
    begun = entry.started_at if entry is not None else frame.now()
    expires = entry.wake_at if entry is not None else None if timeout is None else frame.now() + timeout
    while True:
        yield from frame.checkpoint()
        row: RunRow | None = yield Read(lambda: frame.services.store.find_current(run_id))
        facts = {"started_at": begun, "finished_at": frame.now()}
        if row is None:
            missing = RunNotFound(run_id)
            text = encode_error(missing)
            yield from frame.record(frame.entry(key, "result", run_id, StepState.FAILED, error=text, **facts))
            raise missing
        if RunState(row.state).final:  # (of a chain: the end of its last run)
            text = frame.encode([row.state, row.result, row.error], f"the result of run {run_id}")
            got = frame.entry(key, "result", run_id, StepState.COMPLETED, result=text, **facts)
            yield from frame.record(got)
            return _ended(frame, got)
        if expires is not None and frame.now() >= expires:
            late = ResultTimeout(run_id, row.state)
            text = encode_error(late)
            yield from frame.record(frame.entry(key, "result", run_id, StepState.FAILED, error=text, **facts))
            raise late
        if entry is None:
            entry = frame.entry(key, "result", run_id, StepState.WAITING, wake_at=expires, started_at=begun)
            frame.unwritten.append(frame.journal.put(entry))
        ends = Await(run_id=frame.run_id, kind="run", name=row.id)
        yield Wait(frame.no_later_than_deadline(expires), (ends,))


def _ended(frame: FrameCore, entry: Step) -> RunEnd:
    state, result, error = frame.recorded(entry.name, entry, tuple[str, str | None, str | None])
    return RunEnd(state=state, result=result, error=error)


def published_by(frame: FrameCore, key: str, run_id: str, name: str) -> Routine[list[Any]]:
    """What another run shows under a name, as it is when this is first asked: one value, or none."""
    entry = frame.journal.find(key)
    if entry is None:
        frame.begin_new(key, "result", name)
        yield from frame.checkpoint()
        text: str | None = yield Read(lambda: frame.services.store.published(run_id, name))
        values = [] if text is None else [frame.services.codec.decode(text)]
        stored = frame.encode(values, f"the published value {name!r}")
        entry = frame.entry(key, "result", name, StepState.COMPLETED, result=stored, finished_at=frame.now())
        yield from frame.record(entry)
    found: list[Any] = frame.recorded(name, entry, list)
    return found
