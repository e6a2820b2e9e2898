"""Replaying: a recorded run against today's code, without executing any step.

    recording -> frame -> the function runs until it cannot continue -> kernel.drift judges

No step, no compensation and no child begins, no message is sent, nothing is written, and
there are no real waits: an async workflow runs on a loop whose time passes only when nothing moves.
Code outside of steps does run, in a thread of its own.

The record does not tell everything, so it is read in several ways, and a difference is
what no reading explains:

    as asked       Answers come at once, as in every replay after a crash, and a sleep is
                   over when its time was known to have come.
    as recorded    Answers come in the order, and at the times, of the recording, as when
                   the run was never interrupted; so races and timeouts end as they did.
                   Sleeps are over, whatever the clocks of the workers said.
    and for a run that failed, both again with `patched` true where its mark is missing: it
    may have been lost with the failure.

Blocking code that hangs cannot be ended.  It is reported when `timeout` is over, and its
thread is left behind.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import threading
import time
from typing import Any, NoReturn, cast

from ..definitions.awaitables import refuse_unawaited
from ..definitions.context import CancelRun, ContinueRun, PauseRun, Suspended, frame_var, watch_threads
from ..definitions.functions import Definition, FunctionWorkflow
from ..errors import CannotDecode
from ..execution.branches import see_branches
from ..execution.calls import decode_call
from ..execution.failures import describe
from ..execution.registry import Registry
from ..execution.services import Services, Threads
from ..kernel import rows
from ..kernel.drift import Difference, End, Kind, Recording, Replay, judge
from ..kernel.journal import Journal, cancel_key, order_key
from ..serialization.codec import Codec
from .frame import RecordedFrame
from .virtual_loop import PIECE, VirtualLoop

DEFAULT_TIMEOUT = 30.0  # seconds of real time
_MOST_TICKS = 10_000  # timers in a row without a word from the code
_PATIENCE = 0.25  # seconds of real time, before something that is missed is said not to come


def replay(
    recording: Recording,
    definition: FunctionWorkflow[Any, Any],
    *,
    codec: Codec,
    registry: Registry,
    queues: tuple[str, ...] | None = None,
    timeout: float = DEFAULT_TIMEOUT,
) -> Replay:
    """Run a workflow's function against a recorded run; executes nothing.

    Without `queues` it may spawn whatever it likes, as if the app included everything.
    """
    watch_threads()
    first: Replay | None = None
    for patched, in_order in itertools.product((False, True), repeat=2):
        services = _services(recording, codec, registry, queues)
        frame = RecordedFrame(services, recording, definition, in_order=in_order, patched=patched)
        frame.seen.result = frame.brief(recording.row.result)
        _perform(frame, timeout)
        found = _report(frame)
        if not found.differences:
            return found
        first = first or found
        if found.end is End.STUCK or (in_order and (recording.finished or not frame.unmarked)):
            break
    assert first is not None
    return first


class _AnyApp(Services):
    """Takes what the code asks for: a replay of a file has no app that could include it."""

    def require(self, definition: Definition[Any, Any]) -> None:
        self.registry.add([definition])
        queue = getattr(definition, "queue", None)
        if queue is not None:
            self.queues = (*self.queues, queue)


class _Standstill:
    """The last moment that a recording knows."""

    virtual = True

    def __init__(self, moment: int) -> None:
        self._moment = moment

    def now(self) -> int:
        return self._moment

    def wait(self, event: threading.Event, until: int | None) -> None:
        raise AssertionError("a replay does not wait")


def _services(
    recording: Recording, codec: Codec, registry: Registry, queues: tuple[str, ...] | None
) -> Services:
    """Without a store and without a committer: who would ask for them has come to the edge before."""
    kind = _AnyApp if queues is None else Services
    return kind(
        store=cast(Any, None),
        committer=cast(Any, None),
        clock=_Standstill(recording.last_moment),
        codec=codec,
        registry=registry,
        queues=queues or (),
        heroes=cast(Any, None),
    )


def _perform(frame: RecordedFrame, timeout: float) -> None:
    """Run the function in a thread of its own, as a worker does, for as long as it may take."""
    threads = Threads("detent-replay")
    done = threads.submit(lambda: contextvars.Context().run(_run, frame, timeout))
    try:
        # A loop notices for itself that it takes too long; what blocks a thread does not.
        done.result(timeout + (1.0 if frame.definition.is_async else 0.0))
    except TimeoutError:
        frame.suspending = True
        _stuck(frame, timeout)
    finally:
        threads.close()


def _stuck(frame: RecordedFrame, timeout: float) -> None:
    frame.seen.end = End.STUCK
    frame.seen.detail = f"does not become idle within {timeout:g} s"


def _report(frame: RecordedFrame) -> Replay:
    seen = frame.seen
    return Replay(
        run_id=frame.run_id,
        workflow=frame.definition.name,
        end=seen.end,
        edge=tuple(seen.edge) if seen.end is End.EDGE else (),
        detail=seen.detail,
        differences=judge(frame.recording, seen),
    )


# Running the function


def _run(frame: RecordedFrame, timeout: float) -> None:
    definition = frame.definition
    try:
        args, kwargs = decode_call(frame.services.codec, definition, frame.claimed.run_input)
        definition.check_arguments(args, kwargs)
    except (CannotDecode, TypeError) as error:
        _unfit_input(frame, error)
        return
    if definition.wants_context:
        args = (frame.context, *args)
    if definition.is_async:
        Stage(frame, timeout).run(args, kwargs)
        return
    frame_var.set(frame)
    try:
        value = definition.function(*args, **kwargs)
        refuse_unawaited(frame)
    except BaseException as error:
        raised(frame, error)
    else:
        returned(frame, value)


def _unfit_input(frame: RecordedFrame, error: Exception) -> None:
    """The code does not take what the run was started with; nothing more can be said."""
    frame.seen.end, frame.seen.detail = End.BLIND, "its own input"
    failure = frame.recording.failure
    if failure is None or not failure.type.endswith(type(error).__name__):
        shown = frame.brief(frame.claimed.run_input)
        frame.seen.found.append(
            Difference(Kind.UNREADABLE, None, f"began with {shown}", f"does not take that: {error}")
        )


def returned(frame: RecordedFrame, value: Any) -> None:
    """The function has come out with a value."""
    if frame.leaving():  # it has swallowed the signal
        stopped(frame)
        return
    seen, codec, returns = frame.seen, frame.services.codec, frame.definition.returns
    what = f"the result of {frame.definition.name!r}"
    try:
        text = codec.encode(value, what, returns)
        typed = codec.decode(text, returns, what)
    except Exception as error:
        raised(frame, error)
        return
    seen.end, seen.detail, seen.ahead = End.RETURNED, frame.brief(text), frame.ahead()
    recorded = frame.recording.row.result or "null"
    try:
        seen.same_result = codec.decode(recorded) == codec.decode(text)
        seen.same_result = seen.same_result or bool(codec.decode(recorded, returns) == typed)
    except CannotDecode:  # by the type of today
        seen.same_result = False
    if frame.recording.row.continued_as is not None:
        seen.same_result = False


def raised(frame: RecordedFrame, error: BaseException) -> None:
    """The function has come out with an error, or a signal."""
    if frame.leaving() or isinstance(error, Suspended):
        stopped(frame)
        return
    if isinstance(error, ContinueRun):
        seen = frame.seen
        seen.end, seen.detail, seen.ahead = End.RETURNED, "continue_as_new()", frame.ahead()
        seen.same_result = frame.recording.row.continued_as is not None
        return
    if isinstance(error, PauseRun | CancelRun):
        error = error.error
    described = describe(error)
    frame.seen.end, frame.seen.error = End.RAISED, described
    frame.seen.detail = f"{described.type.rpartition('.')[2]}: {described.message}"


def stopped(frame: RecordedFrame) -> None:
    """The function was left where the record ends."""
    if frame.blind:
        frame.seen.end, frame.seen.detail = End.BLIND, frame.blind
    elif frame.seen.detail == "":
        frame.seen.end = End.EDGE


class Stage:
    """Where an async workflow is replayed: a loop, and what waits on it (recorded.Stage)."""

    def __init__(self, frame: RecordedFrame, timeout: float) -> None:
        self._frame = frame
        self._timeout = timeout
        self._loop = VirtualLoop(self._rest, self._late, time.monotonic() + timeout)
        self._loop.set_exception_handler(lambda loop, context: None)  # of tasks that were not awaited
        self._main: asyncio.Task[None] | None = None
        self._turns: list[tuple[bool, float, int, int, asyncio.Future[None]]] = []
        self._count = itertools.count()
        self._parked: dict[asyncio.Future[None], str] = {}
        self._held: list[str] = []
        self._over = threading.Event()
        self._ticks = 0
        self._asked = 0
        self._patience = _PATIENCE
        self._places = _places(frame.recording)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        frame, loop = self._frame, self._loop
        see_branches(loop)
        frame.enter(self, loop)
        try:
            self._main = loop.create_task(self._amain(args, kwargs))
            self._until(self._main)
            self._over.set()
            frame.suspending = True
            self._until(loop.create_task(self._end_branches()))
            self._until(loop.create_task(loop.shutdown_asyncgens()))
        finally:
            loop.close()

    def _until(self, task: asyncio.Task[None]) -> None:
        try:
            self._loop.run_until_complete(task)
        except RuntimeError:  # stopped: it does not listen to being cancelled
            if task.done():
                raise

    async def _amain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        frame = self._frame
        frame_var.set(frame)
        try:
            value = await frame.definition.function(*args, **kwargs)
            refuse_unawaited(frame)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and not frame.leaving():
                error = RuntimeError(f"{frame.definition.name} awaited something that was cancelled")
            self._excuse(unfinished=True)
            raised(frame, error)
        else:
            self._excuse(unfinished=True)
            returned(frame, value)

    async def _end_branches(self) -> None:
        branches = list(self._frame.branches)
        for branch in branches:
            branch.cancel()
        if branches:
            await asyncio.wait(branches, timeout=1)

    def _excuse(self, *, unfinished: bool) -> None:
        """Lines that may have got further in the recorded run."""
        if not self._frame.suspending:
            self._frame.seen.excused |= {
                line
                for line, task in self._frame.lines.items()
                if task.cancelled() or task.cancelling() or (unfinished and not task.done())
            }

    # What branches wait for (recorded.Stage)

    async def turn(self, key: str) -> None:
        if self._frame.in_order:
            # What has no place in the record comes behind all that has one.
            late, due, seq = self._places.get(key, (True, 0.0, 0))
            future: asyncio.Future[None] = self._loop.create_future()
            heapq.heappush(self._turns, (late, due, seq, next(self._count), future))
            await future

    async def park(self, key: str) -> NoReturn:
        while True:
            future: asyncio.Future[None] = self._loop.create_future()
            self._parked[future] = key
            try:
                await future
            finally:
                del self._parked[future]

    def hold(self, key: str) -> NoReturn:
        self._loop.call_soon_threadsafe(self._hold, key)
        self._over.wait()
        self._frame.leave()

    def _hold(self, key: str) -> None:
        self._held.append(key)
        self._loop.held += 1

    # When nothing moves

    def _rest(self, left: float | None) -> float | None:
        """What happens next; the answer is how much time passes (stillness.VirtualLoop)."""
        if self._frame.suspending:
            return self._hurry(left)
        if len(self._frame.seen.asked) != self._asked:
            self._ticks, self._asked, self._patience = 0, len(self._frame.seen.asked), _PATIENCE
        self._ticks += 1
        while self._turns and self._turns[0][-1].done():
            heapq.heappop(self._turns)
        now = self._loop.time()
        if self._turns and (left is None or self._turns[0][0] or self._turns[0][1] <= now + left):
            _, due, _, _, future = heapq.heappop(self._turns)
            future.set_result(None)
            return max(0.0, due - now)
        if self._ticks < _MOST_TICKS:
            if left is not None and self._worth_waiting():
                return left
            if self._frame.recording.past_deadline and self._parked:
                for future in self._parked:
                    if not future.done():
                        future.set_exception(self._frame.too_late())
                return 0.0
        if self._worth_waiting() and self._patience > 0:
            self._patience -= PIECE  # a thread that we do not know of may still say something
            return None
        self._leave()
        return 0.0

    def _worth_waiting(self) -> bool:
        """Whether something is recorded that the code has not come to yet."""
        recording = self._frame.recording
        return recording.over or any(step.key not in self._frame.seen.asked for step in recording.points())

    def _leave(self) -> None:
        """No line can continue."""
        frame = self._frame
        if not frame.seen.detail:
            frame.seen.edge = [*self._held, *self._parked.values()]
            self._excuse(unfinished=False)
            if not frame.seen.edge and self._worth_waiting():
                frame.seen.end, frame.seen.detail = End.STUCK, "waits for something that never happens"
        frame.suspending = True
        self._ticks = 0
        self._over.set()
        if self._main is not None:
            self._main.cancel()

    def _late(self) -> None:
        if not self._frame.suspending:
            _stuck(self._frame, self._timeout)
            self._leave()
        else:
            self._loop.stop()

    def _hurry(self, left: float | None) -> float:
        """Ask every thread and task to leave; those that do not are left behind."""
        self._ticks += 1
        if left is None or self._ticks > _MOST_TICKS:
            self._loop.stop()
        return left or 0.0


def _places(recording: Recording) -> dict[str, tuple[bool, float, int]]:
    """When recorded answers come, by the key of their call: seconds from the beginning, and their number.

    Times may come from several clocks, so they never go back in the order of the numbers.
    """
    moments = [step.started_at or step.finished_at for step in recording.points()]
    begin = min((moment for moment in moments if moment), default=0)
    steps = {step.key: step for step in recording.steps}
    places: dict[str, tuple[bool, float, int]] = {}
    latest = 0.0
    for answer in Journal(recording.steps).answers():
        marks = (cancel_key(answer.key), order_key(answer.key), answer.key)
        entry = next(steps[key] for key in marks if key in steps)
        latest = max(latest, (_ended(entry) - begin) / 1e6)
        places[answer.key] = (False, latest, answer.seq)
    return places


def _ended(entry: rows.Step) -> int:
    return entry.finished_at or entry.wake_at or entry.started_at or 0
