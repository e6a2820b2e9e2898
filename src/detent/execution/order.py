"""Recorded order: answers reach a concurrent workflow one at a time, in the order of their records.

An async workflow that runs several tasks sees which answer comes first: through
`asyncio.wait`, `as_completed`, a shared list, a race between a message and a timer.  So
the order of the answers is part of what a replay has to repeat:

    1. Every answer has a number: the sequence number of its record.
    2. The next answer is delivered when the workflow is at rest, that is, when none of
       its tasks can run without it.
    3. The first execution obeys 1 and 2, too.  Otherwise a replay could not repeat it.
    4. New work begins when all recorded answers were delivered.
    5. A cancellation by the workflow's own code is an answer like any other.

A workflow with a single line of calls needs none of this: `Turns` exists from the first
task on that a workflow starts.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
from collections import Counter, deque
from collections.abc import Coroutine
from enum import Enum
from typing import Any, Protocol, TypeVar

from ..definitions.context import PauseRun, frame_var, step_var
from ..errors import StepMismatch
from ..kernel.journal import Answer

T = TypeVar("T")
MOST_SPINS = 1000  # turns of the loop until code that polls counts as at rest
QUIET_TICKS = 8  # turns of a loop that does not show what is ready, until it counts as at rest
SPARE = 10.0  # seconds beyond the recorded time that code has to cancel a step again
FIRST_LOOK, LONGEST_LOOK = 0.0005, 0.02  # seconds between two looks at what a thread does ...
THREAD_TIME = 1.0  # ... which has so many to call again, or to end, before the next answer is delivered
CANCELED = "a call that the workflow's own code cancelled"
NOT_CANCELED = "its answer: the code no longer cancels it"


class Was(Enum):
    """What the record says of a call."""

    NEW = "new"  # nothing: it begins now
    ANSWERED = "answered"
    CANCELED = "canceled"  # by the workflow's own code


class Workflow(Protocol):
    """A frame, as its turns see it."""

    run_id: str

    @property
    def put_down(self) -> bool:
        """Whether the workflow leaves this worker: nothing more is delivered to it."""
        ...


class _Waiting:
    """A task that waits for its turn."""

    __slots__ = ("future", "task")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[None] = loop.create_future()
        self.task = asyncio.current_task()


class _Away:
    """A thread that got its answer.  The loop sees only when the task of the thread continues."""

    __slots__ = ("_owner", "_waiter", "caller", "calls", "line")

    def __init__(
        self, caller: asyncio.Task[Any] | None, line: str, calls: int, owner: asyncio.Task[Any] | None
    ) -> None:
        self.caller = caller  # the task that waited for the turn
        self.line = line
        self.calls = calls  # by threads of this line so far
        self._owner = owner  # the task that awaits the thread
        self._waiter = _waiter_of(owner)

    @property
    def returned(self) -> bool:
        """Whether the task has what the thread returned."""
        return self._waiter is None or self._waiter.done() or _waiter_of(self._owner) is not self._waiter


def _waiter_of(task: asyncio.Task[Any] | None) -> asyncio.Future[Any] | None:
    """The future that a task awaits now."""
    return None if task is None else task._fut_waiter  # type: ignore[attr-defined]


class Turns:
    """Who gets the next answer, and when."""

    def __init__(
        self, frame: Workflow, loop: asyncio.AbstractEventLoop, recorded: list[Answer], linger: float
    ) -> None:
        self.loop = loop
        self._frame = frame
        self._linger = linger
        # Of the replay
        self._recorded = {answer.key: answer for answer in recorded}
        self._pending = deque(recorded)
        self._asked: dict[str, _Waiting] = {}
        self._late: set[str] = set()  # recorded, and not asked for when their turn came
        self._held: list[asyncio.Future[None]] = []  # new work
        self._lingering: asyncio.TimerHandle | None = None
        self._owed: set[asyncio.Task[Any]] = set()  # cancelled before an answer that the record puts first
        self._canceling: set[str] = set()  # calls that the code has to cancel again
        self._moving: set[asyncio.Task[Any] | None] = set()  # about to return with their answer
        # Of what is new
        self._expected: dict[str, int] = {}  # answers that are being recorded
        self._places: list[tuple[int, str]] = []  # the same as a heap; may hold some that were dropped
        self._ready: list[tuple[int, int, _Waiting]] = []
        self._count = itertools.count()
        # Of the tasks
        self._outside: set[asyncio.Task[Any]] = set()  # run the workflow's code
        self._inside: set[asyncio.Task[Any]] = set()  # wait for an answer
        self._lines: dict[str, asyncio.Task[Any]] = {}  # the task of each line of calls
        self._thread_calls: Counter[str] = Counter()  # by line
        self._armed = False
        self._spins = 0
        self._quiet = 0

    # Tasks

    def began(self, task: asyncio.Task[Any], line: str = "") -> None:
        """A task of the workflow exists from now on; `line` is the path of its calls."""
        self._outside.add(task)
        self._lines[line] = task
        task.add_done_callback(self._ended, context=contextvars.Context())

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._outside.discard(task)
        self._owed.discard(task)
        self._arm()

    def enter(self, task: asyncio.Task[Any]) -> None:
        """A task waits for an answer."""
        self._outside.discard(task)
        self._inside.add(task)
        self._arm()

    def leave(self, task: asyncio.Task[Any]) -> None:
        """A task continues with the workflow's code."""
        self._inside.discard(task)
        self._moving.discard(task)
        self._outside.add(task)
        self._arm()

    async def for_thread(self, waiting: Coroutine[Any, Any, T], line: str) -> T:
        """Wait for a turn on behalf of a thread of this line, which then continues on its own."""
        self._thread_calls[line] += 1
        value = await waiting
        answer: object = value
        if answer is not Was.NEW:
            task, owner = asyncio.current_task(), self._lines.get(line)
            self._moving.add(task)
            self._let_thread_go_on(_Away(task, line, self._thread_calls[line], owner), 0.0)
        return value

    def _let_thread_go_on(self, away: _Away, waited: float) -> None:
        """Deliver nothing until a thread that got its answer has called again or returned to its task."""
        called = self._thread_calls[away.line] != away.calls
        if not called and waited < THREAD_TIME and not away.returned:
            look = min(max(FIRST_LOOK, waited / 4), LONGEST_LOOK)
            args = (away, waited + look)
            self.loop.call_later(look, self._let_thread_go_on, *args, context=contextvars.Context())
        else:
            self._moving.discard(away.caller)
            self._arm()

    # Replay

    async def recorded(self, key: str) -> Was:
        """Wait for the turn of a recorded answer; new work waits for the end of the replay."""
        answer = self._recorded.get(key)
        task = asyncio.current_task()
        if answer is not None and answer.canceled:
            await self._canceled_again(answer, task)
            return Was.CANCELED
        while True:
            try:
                await (self._until_new() if answer is None else self._turn_of(key))
                break
            except asyncio.CancelledError:
                if self._frame.put_down:
                    raise
                # By the record this comes later: it waits for its turn.
                if task is not None:
                    self._owed.add(task)
        if answer is not None:
            return Was.ANSWERED
        if self._is_owed(task):
            raise asyncio.CancelledError
        return Was.NEW

    def _is_owed(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a cancellation of this task waits for its turn, and is still wanted."""
        if task is None or task not in self._owed:
            return False
        self._owed.discard(task)
        return task.cancelling() > 0

    async def _until_new(self) -> None:
        if self._pending:
            future = self.loop.create_future()
            self._held.append(future)
            self._arm()
            await future

    async def _canceled_again(self, answer: Answer, task: asyncio.Task[Any] | None) -> None:
        """Return when the code has cancelled the call again, and it is the turn of that."""
        if not self._is_owed(task):
            await self._until_canceled(answer)
        while answer.key in self._recorded:
            try:
                await self._turn_of(answer.key)
            except asyncio.CancelledError:
                if self._frame.put_down:
                    raise

    async def _until_canceled(self, answer: Answer) -> None:
        self._canceling.add(answer.key)
        try:
            async with asyncio.timeout(answer.lasted / 1e6 + SPARE):
                await self.loop.create_future()
        except TimeoutError:
            raise PauseRun(StepMismatch(self._frame.run_id, answer.key, CANCELED, NOT_CANCELED)) from None
        except asyncio.CancelledError:
            if self._frame.put_down:
                raise
        finally:
            self._canceling.discard(answer.key)

    async def _turn_of(self, key: str) -> None:
        if key not in self._recorded:
            return
        waiting = self._asked[key] = _Waiting(self.loop)
        self._arm()
        try:
            await waiting.future
        finally:
            self._asked.pop(key, None)

    def _passed(self, key: str) -> None:
        self._recorded.pop(key, None)
        self._late.discard(key)
        while self._pending and self._pending[0].key not in self._recorded:
            self._pending.popleft()
        self._arm()

    # What is new

    def expect(self, key: str, seq: int) -> None:
        """An answer is being recorded: later ones wait for it."""
        self._expected[key] = seq
        heapq.heappush(self._places, (seq, key))

    def drop(self, key: str) -> None:
        """The answer does not come, or was delivered."""
        if self._expected.pop(key, None) is not None:
            self._arm()

    async def turn(self, seq: int) -> None:
        """Wait until all earlier answers were delivered, and the workflow is at rest."""
        if not self._ready and not self._moving and self._is_first(seq) and self.at_rest():
            return
        waiting = _Waiting(self.loop)
        heapq.heappush(self._ready, (seq, next(self._count), waiting))
        self._arm()
        await waiting.future

    def _is_first(self, seq: int) -> bool:
        """Whether no earlier answer is still being recorded."""
        places = self._places
        while places and self._expected.get(places[0][1]) != places[0][0]:
            heapq.heappop(places)
        return not places or seq <= places[0][0]

    # Deliveries

    def _arm(self) -> None:
        """Look soon whether something can be delivered."""
        if self.loop.is_closed():
            return
        if not self._armed and (self._pending or self._ready or self._held or self._asked):
            self._armed = True
            self.loop.call_soon(self._look, context=contextvars.Context())

    def _look(self) -> None:
        self._armed = False
        if self._moving:
            return  # leave() looks again
        if not self.at_rest():
            self._spins += 1
            if self._spins < MOST_SPINS:
                self._arm()
                return
        self._spins = 0
        if self._pending or self._asked or self._held:
            self._next_recorded()
        else:
            self._next_new()

    def _next_recorded(self) -> None:
        for key in self._late & self._asked.keys():
            self._deliver(key)
            return
        while self._pending:
            answer = self._pending[0]
            if answer.key in self._asked:
                self._deliver(answer.key)
                return
            if answer.key in self._canceling:
                return
            if self._outside:
                self._wait_for_code()
                return
            self._pass_over()
        for key in self._asked:
            self._deliver(key)
            return
        held, self._held = self._held, []
        for future in held:
            if not future.done():
                future.set_result(None)
        self._arm()

    def _wait_for_code(self) -> None:
        """The code has not asked for the next answer: something outside of steps may keep it."""
        if self._lingering is None:
            self._lingering = self.loop.call_later(
                self._linger, self._lingered, self._pending[0].key, context=contextvars.Context()
            )

    def _lingered(self, key: str) -> None:
        self._lingering = None
        if not self._pending:
            return
        asked = key in self._asked or key in self._canceling
        if self._pending[0].key == key and not asked and self.at_rest():
            self._pass_over()
        self._arm()

    def _pass_over(self) -> None:
        self._late.add(self._pending.popleft().key)

    def _deliver(self, key: str) -> None:
        waiting = self._asked[key]
        self._passed(key)
        self._wake(waiting)

    def _wake(self, waiting: _Waiting) -> None:
        """The task continues with its answer; nothing else is delivered before it has."""
        if not waiting.future.done():
            self._moving.add(waiting.task)
            waiting.future.set_result(None)

    def _next_new(self) -> None:
        while self._ready and self._ready[0][2].future.done():
            heapq.heappop(self._ready)
        if self._ready and self._is_first(self._ready[0][0]):
            self._wake(heapq.heappop(self._ready)[2])
            self._arm()

    # Rest

    def at_rest(self) -> bool:
        """Whether no code of the workflow can run before something is delivered to it."""
        for task in self._outside:
            waiter = _waiter_of(task)
            if waiter is None or waiter.done():
                self._quiet = 0
                return False
        ready: Any = getattr(self.loop, "_ready", None)
        if ready is None:  # a loop that does not show what it will run next, such as uvloop
            self._quiet += 1
            return self._quiet > QUIET_TICKS
        # A copy: other threads add callbacks at any time.
        return not any(self._is_code(handle) for handle in list(ready))

    def _is_code(self, handle: Any) -> bool:
        """Whether a callback belongs to the workflow's own code, such as the end of a `gather`."""
        context = handle._context
        if context.get(frame_var) is not self._frame or context.get(step_var) is not None:
            return False
        owner = getattr(handle._callback, "__self__", None)
        return not (isinstance(owner, asyncio.Task) and owner in self._inside)
