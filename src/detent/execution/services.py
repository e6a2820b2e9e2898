"""What frames and workers share: the store, the committer, the clock, the pools."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import queue
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec

from ..clock import Clock, from_micros
from ..commit.committer import Committer
from ..definitions.context import Context
from ..definitions.functions import Definition
from ..errors import UnknownDefinition, UnknownQueue
from ..events import Drifted, ExecutionBegan
from ..kernel.operations import Note
from ..kernel.rows import Claimed, ExecutionState, HistoryRow, Lease, NewExecution
from ..observe import Observer
from ..serialization.codec import Codec
from ..stores.batch.apply import drop_lease, take_lease
from ..stores.store import Store
from .bound_decider import LoadedDecider
from .processes import Processes
from .registry import Heroes, Registry
from .rows import tokens_of
from .run_graphs import RunGraphs

log = logging.getLogger("detent.worker")
PATIENCE = 5.0  # seconds that async code has to end when the app closes
FIRST_WAIT, LONGEST_WAIT = 0.05, 1.0  # seconds between two tries to start a thread
T = TypeVar("T")


class Local(Protocol):
    """The worker of this process, if there is one: it takes what was just enqueued."""

    def reserve(self, job: str, queue: str, *, handed_on: bool = False) -> Lease | None:
        """A free slot, as a lease that goes into the same commit; None: leave it to others."""
        ...

    def deliver(self, claimed: Sequence[Claimed]) -> None: ...

    def unconfirmed(self, tokens: Iterable[str]) -> None:
        """Whether these leases were committed is not known; their slots are free again."""
        ...

    def give_back(self, tokens: Iterable[str]) -> None:
        """The commit did not come to pass: the slots are free again."""
        ...

    def poke(self) -> None:
        """Look for work now: some may have become ready."""
        ...


# Called by an execution whose code has ended, before its end is committed: whether its slot is free now.
FreeSlot = Callable[[Any], bool]


class Threads:
    """A team of daemon threads that grows as needed: a hanging step never blocks the exit."""

    _shared: ClassVar[Threads | None] = None

    @classmethod
    def shared(cls) -> Threads:
        """A team for short blocking calls of async code, one for the process."""
        if cls._shared is None:
            cls._shared = cls("detent-io")
        return cls._shared

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._guard = threading.Lock()
        self._idle = 0
        self._count = 0

    def submit(self, job: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        number = 0
        with self._guard:
            if self._idle:
                self._idle -= 1
            else:
                number = self._count = self._count + 1
        if number:
            self._start(number)  # first: a job that was refused must not be done by another thread later
        self._jobs.put((future, job))
        return future

    async def run(self, job: Callable[[], T]) -> T:
        """Do a job for async code.  As long as no thread can be started, it waits."""
        wait = FIRST_WAIT
        future: Future[T] | None = None
        while future is None:
            try:
                future = self.submit(job)
            except RuntimeError as error:  # the process has as many threads as it may have
                log.warning("a call waits for a thread: %s", error)
                await asyncio.sleep(wait)
                wait = min(wait * 2, LONGEST_WAIT)
        return await asyncio.wrap_future(future)

    def _start(self, number: int) -> None:
        # A context of its own: a thread of Detent must not count as one of the workflow's.
        start = threading.Thread(target=self._work, name=f"{self._name}-{number}", daemon=True).start
        try:
            contextvars.Context().run(start)
        except BaseException:
            with self._guard:
                self._count -= 1
            raise

    def close(self) -> None:
        with self._guard:
            for _ in range(self._count):
                self._jobs.put(None)
            self._count = self._idle = 0

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            future, job = item
            if not future.set_running_or_notify_cancel():  # from here on it cannot be cancelled
                with self._guard:
                    self._idle += 1
                continue
            try:
                result = job()
            except BaseException as error:
                outcome: Callable[[], None] = _setter(future.set_exception, error)
            else:
                outcome = _setter(future.set_result, result)
            del job, item
            with self._guard:
                self._idle += 1
            outcome()
            del outcome, future


def _forget_shared() -> None:
    """In a forked child: these threads exist in the parent only."""
    Threads._shared = None


os.register_at_fork(after_in_child=_forget_shared)


def _setter(method: Callable[[Any], None], value: Any) -> Callable[[], None]:
    return lambda: method(value)


class Loop:
    """The event loop for async bodies: the user's own, or one in a thread of Detent."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop | None = None,
        on_start: Callable[[asyncio.AbstractEventLoop], None] = lambda loop: None,
    ) -> None:
        self._given = loop
        self._on_start = on_start  # called with our own loop once it runs
        self._own: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()

    def get(self) -> asyncio.AbstractEventLoop:
        if self._given is not None:
            return self._given
        with self._guard:
            if self._own is None:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=self._run, args=(loop,), name="detent-loop", daemon=True)
                try:
                    contextvars.Context().run(thread.start)
                except BaseException:  # no more threads: the next call tries again, with another loop
                    loop.close()
                    raise
                self._own, self._thread = loop, thread
                self._on_start(loop)
            return self._own

    def call(self, function: Callable[..., None], *args: Any) -> None:
        """Call a function on the loop: at once if the caller is on it."""
        loop = self.get()
        if asyncio._get_running_loop() is loop:  # else the loop would wake itself through its socket
            function(*args)
        else:
            loop.call_soon_threadsafe(function, *args)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        while True:
            try:
                loop.run_forever()
                _finish(loop)
                return
            except SystemExit:
                # asyncio raises it out of the loop when a task ends with it.  It is also the outcome of
                # that task, so that the workflow sees it; the other workflows must continue.
                log.warning("sys.exit() was called in a task of a workflow; the worker continues")

    def close(self) -> None:
        with self._guard:
            loop, thread = self._own, self._thread
            self._own = self._thread = None
        if loop is None or thread is None:
            return
        try:
            left = asyncio.run_coroutine_threadsafe(_cancel_all(), loop).result(timeout=2 * PATIENCE)
        except TimeoutError:
            left = ["something that blocks the event loop"]
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=PATIENCE)
        if left:
            log.warning("closed while async code was still running: %s", ", ".join(left))


def _finish(loop: asyncio.AbstractEventLoop) -> None:
    """In the loop's own thread, also when that was blocked for long after its app was closed."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=1.0))
    loop.close()


async def _cancel_all() -> list[str]:
    """Cancel all tasks, and return the names of those that went on."""
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    if not tasks:
        return []
    _, left = await asyncio.wait(tasks, timeout=PATIENCE)
    return [getattr(task.get_coro(), "__qualname__", task.get_name()) for task in left]


@dataclass
class Services:
    """One app's machinery, handed to whatever runs user code."""

    store: Store
    committer: Committer
    clock: Clock
    codec: Codec
    registry: Registry
    queues: tuple[str, ...]
    heroes: Heroes
    version: str = ""  # of the code
    lenient: bool = False  # a replay that asks for other arguments than recorded continues, with a warning
    local: Local | None = None
    shuffle: Callable[[], Awaitable[None]] | None = None  # of tests: concurrent steps end in another order
    on_error: Callable[[BaseException, Context], None] | None = None
    observer: Observer = field(default_factory=Observer)
    loop: Loop = field(default_factory=Loop)
    threads: Threads = field(default_factory=lambda: Threads("detent-step"))
    processes: Processes = field(default_factory=Processes)

    def __post_init__(self) -> None:
        self.run_graphs = RunGraphs(self.store, self.codec, self.registry)
        self._bound_deciders: dict[str, LoadedDecider] = {}

    def bound(self, decider: Any) -> LoadedDecider:
        """The decider of that class or type, with what it remembers."""
        plan = self.registry.decider(decider)
        bound = self._bound_deciders.get(plan.name)
        if bound is None or bound.plan is not plan:
            queue = plan.decider.queue or self.queues[0]
            if queue not in self.queues:
                raise UnknownQueue(queue, self.queues)
            bound = self._bound_deciders[plan.name] = LoadedDecider(plan, self.codec, queue)
        return bound

    def require(self, definition: Definition[Any, Any]) -> None:
        """Raise unless the app serves this very definition."""
        if definition not in self.registry:
            raise UnknownDefinition(definition.name)

    def lease(self, rows: Sequence[NewExecution]) -> list[NewExecution]:
        """Lease what is due to the worker of this process, as far as it has room."""
        leased: list[NewExecution] = []
        if self.local is None:
            return leased
        for row in rows:
            if row.state != ExecutionState.READY:
                continue
            lease = self.local.reserve(row.job, row.queue)
            if lease is None:
                break
            take_lease(row, lease)
            leased.append(row)
        return leased

    def give_back(self, leased: Sequence[NewExecution]) -> None:
        """Undo `lease` for rows that were not written."""
        if self.local is not None:
            self.local.give_back(tokens_of(leased))
        for row in leased:
            drop_lease(row)

    def note(self, run_id: str, event: str, detail: object) -> None:
        """Add a line to a run's history; does not wait."""
        self.committer.post(Note(events=[self._line(run_id, event, detail)]))

    def drifted(self, event: Drifted, line: tuple[str, object] | None = None) -> None:
        """Mark a run as one whose code differs from its record; does not wait for the commit.

        With a line for its history, the run continues: then the log has a warning.  Subscribers receive
        the event after the commit.
        """
        lines = []
        if line is not None:
            what = ", ".join(event.steps)
            what = f"recorded, but not requested: {what}" if event.kind == "unasked" else what
            facts = {"run": event.run_id, "type": event.type}
            log.warning(
                "run %s of %s differs from its record (%s): %s",
                event.run_id,
                event.type,
                line[0],
                what,
                extra=facts,
            )
            lines = [self._line(event.run_id, *line)]
        self.committer.post(Note(events=lines, drifted=[event.run_id], announces=event), forever=True)

    def _line(self, run_id: str, event: str, detail: object) -> HistoryRow:
        text = msgspec.json.encode(detail).decode()
        return HistoryRow(run_id=run_id, happened_at=self.clock.now(), event=event, detail=text)

    def began(self, claimed: Claimed, context: Context, kind: str | None = None) -> None:
        """Tell subscribers that an attempt begins here; call it only if there are some.

        `kind` is given for a step that has no execution of its own.
        """
        event = ExecutionBegan(
            time=from_micros(self.clock.now()),
            run_id=claimed.run_id,
            type=claimed.type,
            queue=claimed.queue,
            node=context.node,
            name=claimed.job if kind is None else context.name,
            kind=claimed.kind if kind is None else kind,
            attempt=context.attempt,
            worker=claimed.worker,
        )
        self.observer.emit(event)

    def failed(self, error: BaseException, context: Context, what: str, *, level: int) -> None:
        """Log a failure that is stored by now, and pass it to the app's error hook."""
        run, facts = context.run, context.facts
        log.log(level, "run %s of %s: %s", run.id, run.type, what, exc_info=error, extra=facts)
        if self.on_error is not None:
            try:
                self.on_error(error, context)
            except (Exception, SystemExit):
                log.exception("the on_error hook failed", extra=facts)

    def forked(self) -> None:
        """In a forked child: these are the parent's."""
        self.committer.forked()
        self.processes.forked()

    def close(self) -> None:
        with ExitStack() as parts:  # all of them, whatever one of them raises
            parts.callback(self.processes.close)
            parts.callback(self.threads.close)
            parts.callback(self.loop.close)
