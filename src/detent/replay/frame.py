"""A frame that answers from the journal only.

It is a frame like any other (frames.py), and runs the same routines; but where one of them
asks its driver for anything at all, to call a step, to commit, to wait, the journal has no
answer, and the line that asked has come to its edge.  So nothing is ever executed here.

A few things pass without a request and become durable later: values, the marks of
`patched`, spawns of async code, sleeps too short to park the run.  A run that failed just
then has lost them.  So a line may go ahead without them; what it asks for next is beyond
the edge anyway.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any, NoReturn, Protocol, TypeVar

import msgspec

from ..clock import from_micros
from ..definitions.callers import Handle
from ..definitions.child_options import ChildOptions
from ..definitions.context import Call, Routine, Suspended
from ..definitions.functions import Definition, FunctionWorkflow
from ..errors import CannotDecode, DeadlineExceeded
from ..execution import spawn as spawning
from ..execution import waits
from ..execution.branches import see_branches
from ..execution.calls import same_call
from ..execution.frame import SHORT_WAIT
from ..execution.guard import AsyncStepGuard, StepGuard
from ..execution.requests import Wait
from ..execution.rows import claimed_of_run
from ..execution.services import Services
from ..execution.workflow_frames import Frame
from ..kernel import rows
from ..kernel.drift import Difference, Kind, Recording, Seen
from ..kernel.journal import FINAL, Journal, Scope, cancel_key
from ..kernel.rows import Claimed

T = TypeVar("T")


class Stage(Protocol):
    """Where the branches of an async workflow wait (replaying.Stage)."""

    async def turn(self, key: str) -> None:
        """Return when this call would have been answered."""
        ...

    async def park(self, key: str) -> NoReturn:
        """A branch has come to its edge."""
        ...

    def hold(self, key: str) -> NoReturn:
        """So has a thread that the workflow waits for."""
        ...


# Where the running line is: ahead of the record by that key, or leaving because of it.
_ahead: contextvars.ContextVar[tuple[Any, str] | None] = contextvars.ContextVar("detent_ahead", default=None)
_left: contextvars.ContextVar[Any] = contextvars.ContextVar("detent_left", default=None)
# What the running routine has looked for in the journal.
_looking: contextvars.ContextVar[list[str] | None] = contextvars.ContextVar("detent_looking", default=None)


class RecordedFrame(Frame):
    """A run as the journal tells it (context.Frame)."""

    replaying = True

    def __init__(
        self,
        services: Services,
        recording: Recording,
        definition: FunctionWorkflow[Any, Any],
        *,
        in_order: bool,
        patched: bool,
    ) -> None:
        super().__init__(services, _claimed(recording), definition)
        self.recording = recording
        self.seen = Seen()
        self.stage: Stage | None = None
        self.lines: dict[str, asyncio.Task[Any]] = {}
        self.unmarked = False  # `patched` was asked for, without a mark, in a run that is over
        self.blind = ""  # what only the database could answer
        self.in_order = in_order  # answers come as they were recorded, and every recorded sleep is over
        self._trusting = patched  # a mark that is missing was lost with the failure of the run
        self._recorded = {step.key: step for step in recording.steps}
        self._threads: set[int] = set()
        self._root = _Line(self)
        self.journal = _Journal(self, recording.steps)

    def enter(self, stage: Stage, loop: asyncio.AbstractEventLoop) -> None:
        """The workflow runs on this thread's loop."""
        self.stage, self._loop, self.loop_thread = stage, loop, threading.get_ident()

    # Where we are

    def called(self, key: str) -> None:
        """The code asks for this."""
        if not self.leaving():
            self.seen.asked.add(key)
            self._threads.add(threading.get_ident())
            # Lines of threads have no names: one that lags behind looks like one that does not ask.
            self.seen.loose = self.seen.loose or len(self._threads) > 1

    def looked(self, key: str) -> None:
        """A routine has looked for this in the journal."""
        keys = _looking.get()
        if keys is not None:
            keys.append(key)
        ahead, entry = self.ahead(), self._recorded.get(key)
        # The mark of a patch belongs to no line: another one may have left it.
        if ahead is not None and entry is not None and entry.kind != "patched" and not self.leaving():
            self.seen.added.setdefault(ahead, key)

    def ahead(self) -> str | None:
        """What this line has gone on without."""
        found = _ahead.get()
        return found[1] if found is not None and found[0] is self else None

    def leaving(self) -> bool:
        return self.suspending or _left.get() is self

    def leave(self) -> NoReturn:
        """This line does nothing more."""
        _left.set(self)
        raise Suspended

    def unknowable(self, what: str) -> None:
        if not self.leaving():
            self.blind = self.blind or what
        self.leave()

    def _go_ahead(self, key: str) -> None:
        if not self.leaving() and self.ahead() is None:
            _ahead.set((self, key))

    def refuse_if_leaving(self) -> None:
        if self.leaving():
            raise Suspended

    def undisturbed(self) -> bool:
        return False

    def checkpoint(self) -> Routine[None]:
        self.refuse_if_leaving()
        if self.ahead() is not None:
            yield Wait()

    def branched(self, task: asyncio.Task[Any], scope: Scope) -> None:
        super().branched(task, scope)
        self.lines[scope.path] = task

    # Answers, and the edge

    def drive(self, call: Call[T] | Routine[T]) -> T:
        answered, value, keys = self._answer(_routine(call))
        if answered:
            if isinstance(value, _Raised):
                raise value.error
            return value  # type: ignore[no-any-return]
        if self.leaving():
            raise Suspended
        key = self._edge(keys)
        if self.stage is not None:
            self.stage.hold(key)
        if self.recording.past_deadline:
            raise self.too_late()
        self.seen.edge.append(key)
        self.leave()

    async def adrive(self, call: Call[T] | Routine[T]) -> T:
        routine = _routine(call)
        if self.leaving():
            routine.close()
            raise asyncio.CancelledError
        if isinstance(call, Call) and cancel_key(call.key) in self._recorded:
            self.journal.find(call.key)
            routine.close()
            await self._canceled_again(call.key)
        if self.stage is None:  # asyncio.run() inside of a `def`
            see_branches(asyncio.get_running_loop())
            self.seen.loose = True  # we do not know that loop, and cannot tell when it is at rest
        answered, value, keys = self._answer(routine)
        if not answered:
            await self._park(self._edge(keys))
        if self.stage is not None and isinstance(call, Call):
            await self.stage.turn(call.key)
        if isinstance(value, _Raised):
            raise value.error
        return value  # type: ignore[no-any-return]

    async def _canceled_again(self, key: str) -> NoReturn:
        """Wait until the code cancels the call, as it did when it was recorded."""
        try:
            await self._park(key)
        except asyncio.CancelledError:
            if self.stage is not None and not self.leaving():
                await self.stage.turn(key)
            raise

    def _answer(self, routine: Routine[Any]) -> tuple[bool, Any, list[str]]:
        """Whether the journal holds an answer, the answer, and what was looked for."""
        keys: list[str] = []
        token = _looking.set(keys)
        try:
            next(routine)
        except StopIteration as done:
            return True, done.value, keys
        except BaseException as error:
            return True, _Raised(error), keys
        finally:
            _looking.reset(token)
        routine.close()
        return False, None, keys

    def _edge(self, keys: list[str]) -> str:
        """What the code has asked for, of all that a routine has looked for."""
        missing = (key for key in keys if not self._done(key))
        return next(missing, self.ahead() or "a checkpoint")

    def _done(self, key: str) -> bool:
        entry = self._recorded.get(key)
        return entry is not None and entry.state in FINAL

    async def _park(self, key: str) -> NoReturn:
        if self.stage is not None:
            await self.stage.park(key)
        self.seen.edge.append(key)
        while True:
            try:
                await self._idling.wait(Wait())
            except Suspended:
                self.leave()

    def too_late(self) -> DeadlineExceeded:
        return DeadlineExceeded(self.run_id, from_micros(self.claimed.deadline or 0).isoformat())

    # What the code asks for

    def spawn(
        self,
        definition: Any,
        calls: list[tuple[tuple[Any, ...], dict[str, Any]]],
        options: ChildOptions | None = None,
    ) -> list[Handle[Any]]:
        handles = spawning.spawn(self, self.scope(), definition, calls, options)
        new = [handle.key for handle in handles if handle.key not in self._recorded]
        # A fork keeps what has ended, and so may have left out a spawn that came before what it kept.
        if new and self.recording.row.forked_from is None:
            if self.loop_thread != threading.get_ident():
                self.drive(self._beyond(new[0]))  # sync code continues when it is durable
            self._go_ahead(new[0])
        return handles

    def first(self, handles: list[Handle[Any]]) -> Call[int]:
        call = super().first(handles)
        # Without a record the first one is not known, even if some are done by now.
        return call if call.key in self._recorded else Call(call.key, call.name, self._beyond(call.key))

    def sleep(self, span: int | None, until: int | None) -> Call[None]:
        key = self.scope().key("sleep")
        return Call(key, "sleep", self._sleep(key, span, until))

    def _sleep(self, key: str, span: int | None, until: int | None) -> Routine[None]:
        if key in self._recorded:
            return waits.sleep(self, key, span, until)
        left = span if span is not None else (until or 0) - self.now()
        if left >= SHORT_WAIT:
            return self._beyond(key)
        self._go_ahead(key)
        return _given(None)

    def wait_until(self, moment: int) -> Routine[None]:
        if not self.in_order:
            yield from super().wait_until(moment)

    def value(self, name: str, make: Callable[[], Any], type: Any) -> Routine[Any]:
        key = self.scope().key(name)
        if key not in self._recorded:
            self._go_ahead(key)
        return waits.value(self, key, name, make, type)

    def patched(self, id: str) -> Routine[bool]:
        key = f"patched/{id}"
        if key in self._recorded:
            return waits.patched(self, id)
        if self.recording.over:
            self.unmarked = True
            if not self._trusting:
                return _given(False)  # it went past with the code of then
        return self._patch(key, id)

    def _patch(self, key: str, id: str) -> Routine[bool]:
        new = yield from waits.patched(self, id)
        if new:
            self._go_ahead(key)
        return new

    def guard(self, name: str, type: Any) -> StepGuard[Any]:
        key = self.scope().key(name)
        if not self._done(key):
            self.drive(self._beyond(key))  # or the code would do the step's work
        guard: StepGuard[Any] = StepGuard(self, key, name, type)
        self.drive(guard.opening())
        return guard

    def aguard(self, name: str, type: Any) -> AsyncStepGuard[Any]:
        key = self.scope().key(name)
        guard = AsyncStepGuard if self._done(key) else _Beyond
        return guard(self, key, name, type)

    def _beyond(self, key: str) -> Routine[Any]:
        self.journal.find(key)
        yield Wait()

    # What is compared

    def check_drift(self, step: Definition[Any, Any], entry: rows.Step, text: str | None) -> None:
        if text is None or entry.input is None or self.leaving():
            return
        if not same_call(self.services.codec, step, entry.input, text):
            self.seen.found.append(
                Difference(
                    Kind.ARGUMENTS,
                    entry.key,
                    f"recorded with {self.brief(entry.input)}",
                    f"requests it with {self.brief(text)}",
                )
            )

    def check_message(self, entry: rows.Step, call: str) -> None:
        """What a message said does not change what the workflow does."""

    def recorded(self, name: str, entry: rows.Step, returns: Any) -> Any:
        try:
            return super().recorded(name, entry, returns)
        except CannotDecode as error:
            if not self.leaving():
                self.seen.unreadable.append((entry, f"it does not fit {error.type}: {error.reason}"))
            raise

    def begin_new(self, key: str, kind: str, name: str) -> None:
        """What is new is judged when the replay is over."""

    def note(self, event: str, detail: object, *, drifted: bool = False) -> None:
        """The history is not written to."""


class _Beyond(AsyncStepGuard[Any]):
    """A guard whose step is not: the code must not do its work."""

    def opening(self) -> Routine[None]:
        self._frame.journal.find(self._key)
        yield Wait()


class _Raised:
    """An answer that is an error."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class _Journal(Journal):
    """Tells the frame what is looked for."""

    __slots__ = ("_frame",)

    def __init__(self, frame: RecordedFrame, steps: tuple[rows.Step, ...]) -> None:
        super().__init__(steps)
        self._frame = frame

    def find(self, key: str) -> rows.Step | None:
        self._frame.looked(key)
        return super().find(key)


class _Line(Scope):
    """Tells the frame what is called: a step is asked for when it is called, not when its turn comes."""

    __slots__ = ("_frame",)

    def __init__(self, frame: RecordedFrame, path: str = "") -> None:
        super().__init__(path)
        self._frame = frame

    def key(self, name: str) -> str:
        key = super().key(name)
        self._frame.called(key)
        return key

    def child(self, name: str) -> Scope:
        return _Line(self._frame, super().child(name).path)


def _routine(call: Call[T] | Routine[T]) -> Routine[T]:
    return call.routine if isinstance(call, Call) else call


def _given(value: T) -> Routine[T]:
    return value
    yield  # a routine, though it asks for nothing


def _claimed(recording: Recording) -> Claimed:
    """The run as if a worker had claimed it."""
    row = recording.row
    return msgspec.structs.replace(
        claimed_of_run(row),
        node=rows.MAIN,
        attempt=max([1, *(step.written_by for step in recording.steps)]),
        kind="main",
        job=row.type,
        deliveries=2,
        run_state="ready",
    )
