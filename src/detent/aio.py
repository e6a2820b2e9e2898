"""Detent for asyncio: AsyncApp, and the awaitable forms of what waits.

    async with detent.AsyncApp("postgresql://...", include=[fulfil]) as app:
        run = await app.start(fulfil, 42)
        print(await run.result())

Async workflows and steps run on the loop that opened the app.
"""

from __future__ import annotations

import asyncio
import random as _random
import time
import uuid as _uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, cast, overload

from .app import App
from .clock import span_micros, to_micros
from .context import Context, ask_database, current_frame, current_step, replaying
from .deciders import Decider, is_decider
from .decisions import Recorded, TimerCancelled
from .durable import MISSING, needed_frame, span_of
from .engine import Engine, Options, deciding, graphs
from .engine.graphs import NodeState
from .engine.letters import Backlog, DeadLetter, DeadLetters
from .engine.machines import DECISIONS, HISTORY, INSTANCES, Deciders, InstanceView
from .engine.projecting import AsyncProjections
from .engine.queries import Filters, RunQueries, Walk, find_runs
from .engine.views import Execution, Happening, RunFacts, ended_row, executions_of, history_of
from .engine.within import LoopTx, async_execute, join
from .errors import ResultTimeout
from .functions import FunctionWorkflow
from .graphs import Graph, Template
from .kernel.ancestry import Broken
from .kernel.drawing import to_dot, to_mermaid
from .kernel.machine import StateMachineView
from .kernel.model import Operation, RunEnd, RunRow, RunState, Start
from .runtime.services import Threads
from .workflows import Workflow

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
S = TypeVar("S")
In = TypeVar("In")
E = TypeVar("E")


class AsyncApp:
    """The same as `detent.App`, for asyncio: what waits is awaited."""

    def __init__(self, url: str, *, include: Iterable[Any] = (), **settings: Any) -> None:
        self._sync = App(url, include=include, **settings)

    @property
    def sync(self) -> App:
        """The same app, for sync code."""
        return self._sync

    @property
    def engine(self) -> Engine:
        return self._sync.engine

    async def __aenter__(self) -> Self:
        return await self.open(worker=True)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self, *, worker: bool = False) -> Self:
        loop = asyncio.get_running_loop()
        await _in_thread(lambda: self.engine.open(worker=worker, loop=loop))
        return self

    async def ensure_open(self) -> None:
        """Open the database without blocking the loop, where nobody did yet."""
        if not self.engine.is_open and not replaying():
            await _in_thread(lambda: self.engine.open(worker=False))

    async def close(self) -> None:
        await _in_thread(self.engine.close)

    async def migrate(self) -> list[str]:
        return await _in_thread(self.engine.migrate)

    def hero(
        self,
        cls: type,
        *,
        key: Callable[[Any], Any],
        load: Callable[[str], Any] | None = None,
        name: str | None = None,
    ) -> None:
        self._sync.hero(cls, key=key, load=load, name=name)

    @overload
    async def start(
        self,
        definition: FunctionWorkflow[Concatenate[Context, P], Coroutine[Any, Any, R]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> AsyncRun[R]: ...
    @overload
    async def start(
        self, definition: FunctionWorkflow[P, Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs
    ) -> AsyncRun[R]: ...
    @overload
    async def start(
        self, definition: FunctionWorkflow[Concatenate[Context, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> AsyncRun[R]: ...
    @overload
    async def start(
        self, definition: FunctionWorkflow[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> AsyncRun[R]: ...
    @overload
    async def start(self, definition: Template[P], *args: P.args, **kwargs: P.kwargs) -> AsyncRun[Any]: ...
    @overload
    async def start(self, definition: type[Decider[Any, In, Any, Any]], input: In) -> AsyncRun[None]: ...
    @overload
    async def start(
        self, definition: type[Workflow] | Graph | str, *args: Any, **kwargs: Any
    ) -> AsyncRun[Any]: ...
    async def start(self, definition: Any, *args: Any, **kwargs: Any) -> AsyncRun[Any]:
        """Start a run; it is durable when this returns."""
        return await self.options().start(definition, *args, **kwargs)

    async def start_many(self, definition: Any, calls: Iterable[tuple[Any, ...]]) -> list[AsyncRun[Any]]:
        """Start a run for each tuple of arguments, all in one commit."""
        return await self.options().start_many(definition, calls)

    def options(self, **options: Any) -> AsyncStarter:
        """How the next run is started; the keywords are those of `App.options`."""
        return AsyncStarter(self, Options(**options))

    async def execute(
        self, decider: type[Decider[Any, In, E, Any]], input: In, *, input_id: str | None = None
    ) -> list[E]:
        """Give an input to its instance, and return the events that it caused; see `App.execute`."""
        await self.ensure_open()
        engine = self.engine
        frame = current_frame("execute")
        if frame is not None:
            routine = deciding.call_in(frame, engine, decider, input, input_id)
            return deciding.events_of(engine, decider, await frame.adrive(routine))
        operation = deciding.decision_of(engine, decider, input, input_id)
        return cast(list[E], (await engine.services.committer.arun(operation)).events)

    async def execute_dynamic(
        self, decider: str, payload: Mapping[str, Any], *, input_id: str | None = None
    ) -> list[Any]:
        """The same by names; see `App.execute_dynamic`."""
        await self.ensure_open()
        input = deciding.dynamic_input(self.engine, decider, payload)
        return await self.execute(cast(Any, decider), input, input_id=input_id)

    async def enqueue_input(
        self, decider: type[Decider[Any, In, Any, Any]], input: In, *, input_id: str | None = None
    ) -> bool:
        """Put an input into its instance's inbox; see `App.enqueue_input`."""
        await self.ensure_open()
        operation = deciding.enqueuing_of(self.engine, decider, input, input_id)
        return cast(bool, (await self.engine.services.committer.arun(operation)).created)

    async def state_at(
        self, decider: type[Decider[S, Any, Any, Any]], instance: str, *, sequence: int | None = None
    ) -> S:
        """The state of an instance after an event; see `App.state_at`."""
        return await _in_thread(lambda: self._sync.state_at(decider, instance, sequence=sequence))

    async def events(
        self,
        decider: type[Decider[Any, Any, E, Any]],
        instance: str,
        *,
        after: int = 0,
        limit: int | None = None,
    ) -> list[Recorded[E | TimerCancelled]]:
        """The events of an instance; see `App.events`."""
        return await _in_thread(lambda: self._sync.events(decider, instance, after=after, limit=limit))

    @property
    def deciders(self) -> AsyncDeciders:
        """Looks at deciders; see `App.deciders`."""
        return AsyncDeciders(self._sync.deciders)

    @property
    def dead_letters(self) -> AsyncDeadLetters:
        """What deciders have given up; see `App.dead_letters`."""
        return AsyncDeadLetters(self._sync.dead_letters)

    @property
    def projections(self) -> AsyncProjections:
        """Read models of events; see `App.projections`."""
        return AsyncProjections(self.engine)

    def within(self, connection: Any) -> AsyncWithin:
        """Start runs inside your own transaction: they exist if and only if it commits.

        Takes psycopg's AsyncConnection, SQLAlchemy's AsyncConnection or AsyncSession, the
        `tx` of a transactional step, and the sync connections that `App.within` takes.
        """
        return AsyncWithin(self, connection, Options())

    async def run(self, id: str) -> AsyncRun[Any]:
        return AsyncRun(self, await _in_thread(lambda: self.engine.row(id)))

    @property
    def runs(self) -> AsyncRuns:
        """Finds runs; see `App.runs`: `await app.runs.failed()`, `async for run in app.runs.each()`."""
        return AsyncRuns(self)

    async def gc(self, *, older_than: timedelta, limit: int | None = None) -> int:
        """Remove runs that ended longer ago; see `App.gc`."""
        return await _in_thread(lambda: self.engine.remove_old(older_than, limit))

    async def fork(self, run: AsyncRun[R] | str, *, from_step: str, id: str | None = None) -> AsyncRun[R]:
        run_id = run if isinstance(run, str) else run.id
        start = await _in_thread(lambda: self.engine.fork(run_id, from_step, Options(id=id)))
        return (await self._start(start))[0]

    async def _start(self, start: Start) -> list[AsyncRun[Any]]:
        if replaying():
            return [AsyncRun(self, row) for row in self.engine.fresh(start)]
        try:
            answers = await self.engine.services.committer.arun(start)
        except BaseException:
            self.engine.started(start, None)
            raise
        if all(answer.created for answer in answers):
            rows = self.engine.started(start, answers)
        else:
            rows = await _in_thread(lambda: self.engine.started(start, answers))
        created = {answer.id for answer in answers if answer.created}
        return [AsyncRun(self, row, fresh=row.id in created) for row in rows]


class AsyncDeciders:
    """`app.deciders`: looks at deciders; see `App.deciders`."""

    def __init__(self, deciders: Deciders) -> None:
        self._deciders = deciders

    async def machine(
        self,
        decider: type[Decider[Any, Any, Any, Any]] | str,
        *,
        source: str = HISTORY,
        limit: int | None = INSTANCES,
    ) -> StateMachineView:
        return await _in_thread(lambda: self._deciders.machine(decider, source=source, limit=limit))

    async def instance(
        self, decider: type[Decider[S, Any, Any, Any]], instance: str, *, history: int | None = DECISIONS
    ) -> InstanceView[S]:
        return await _in_thread(lambda: self._deciders.instance(decider, instance, history=history))

    async def inboxes(self) -> list[Backlog]:
        return await _in_thread(self._deciders.inboxes)


class AsyncDeadLetters:
    """`app.dead_letters`: what was given up; see `App.dead_letters`."""

    def __init__(self, letters: DeadLetters) -> None:
        self._letters = letters

    async def __call__(
        self, decider: Any = None, instance: str | None = None, *, limit: int | None = None
    ) -> list[DeadLetter]:
        return await _in_thread(lambda: self._letters(decider, instance, limit=limit))

    async def count(self, decider: Any = None) -> int:
        return await _in_thread(lambda: self._letters.count(decider))

    async def replay(self, letter: DeadLetter | str) -> None:
        await _in_thread(lambda: self._letters.replay(letter))

    async def replay_all(self, decider: Any = None) -> int:
        return await _in_thread(lambda: self._letters.replay_all(decider))

    async def discard(self, letter: DeadLetter | str) -> None:
        await _in_thread(lambda: self._letters.discard(letter))


class AsyncStarter:
    """`app.options(...)`: starts runs with these options."""

    def __init__(self, app: AsyncApp, options: Options) -> None:
        self._app = app
        self._options = options

    async def start(self, definition: Any, *args: Any, **kwargs: Any) -> AsyncRun[Any]:
        if is_decider(definition):
            return await self._begin(definition, *args, **kwargs)
        return (await self._app._start(await self._prepared(definition, [(args, kwargs)])))[0]

    async def _begin(self, decider: Any, input: Any) -> AsyncRun[Any]:
        """Begin an instance by giving it an input."""
        await self._app.execute(decider, input, input_id=deciding.only_id(self._options))
        return await self._app.run(self._app.engine.registry.decider(decider).address(input))

    async def start_many(self, definition: Any, calls: Iterable[tuple[Any, ...]]) -> list[AsyncRun[Any]]:
        given: list[tuple[tuple[Any, ...], dict[str, Any]]] = [(tuple(args), {}) for args in calls]
        return await self._app._start(await self._prepared(definition, given)) if given else []

    async def _prepared(self, definition: Any, calls: list[tuple[tuple[Any, ...], dict[str, Any]]]) -> Start:
        engine = self._app.engine
        await self._app.ensure_open()
        frame = current_frame("start")
        if frame is not None:
            await frame.adrive(frame.checkpoint())
        return engine.prepare(definition, calls, self._options)

    def within(self, connection: Any) -> AsyncWithin:
        """The same inside of your transaction."""
        return AsyncWithin(self._app, connection, self._options)


class AsyncWithin:
    """`app.within(connection)`: starts runs in somebody else's transaction."""

    def __init__(self, app: AsyncApp, connection: Any, options: Options) -> None:
        self._app = app
        self._connection = connection
        self._options = options

    async def start(self, definition: Any, *args: Any, **kwargs: Any) -> AsyncRun[Any]:
        """Start a run with your transaction; nobody sees it before your commit."""
        return (await self._start(definition, [(args, kwargs)]))[0]

    async def start_many(self, definition: Any, calls: Iterable[tuple[Any, ...]]) -> list[AsyncRun[Any]]:
        return await self._start(definition, [(tuple(args), {}) for args in calls])

    async def _start(
        self, definition: Any, calls: list[tuple[tuple[Any, ...], dict[str, Any]]]
    ) -> list[AsyncRun[Any]]:
        engine = self._app.engine
        await self._app.ensure_open()
        start = engine.planned(definition, calls, self._options)
        start.remote = True
        if replaying():
            return [AsyncRun(self._app, row) for row in engine.fresh(start)]
        await self._join(start)
        return [AsyncRun(self._app, row) for row in engine.fresh(start)]

    async def enqueue_input(
        self, decider: type[Decider[Any, In, Any, Any]], input: In, *, input_id: str | None = None
    ) -> bool:
        """Put an input into its instance's inbox, if and only if your transaction commits."""
        await self._app.ensure_open()
        operation = deciding.enqueuing_of(self._app.engine, decider, input, input_id, within=True)
        return cast(bool, (await self._join(operation)).created)

    async def _join(self, operation: Operation) -> Any:
        store = self._app.engine.store
        execute = async_execute(self._connection)
        if execute is None:  # a sync connection blocks anyway, and may belong to this thread
            return join(store, self._connection, operation)
        target = LoopTx(store.driver, asyncio.get_running_loop(), execute)
        return await _in_thread(lambda: join(store, target, operation))


class AsyncRun(RunFacts, Generic[R]):
    """One workflow in the database; see `detent.Run`."""

    def __init__(self, app: AsyncApp, row: RunRow, *, fresh: bool = False) -> None:
        self._app = app
        self._row = row
        self._fresh = fresh

    async def refresh(self) -> Self:
        self._row = await _in_thread(lambda: self._app.engine.row(self.id))
        return self

    async def result(self, *, timeout: timedelta | float | None = None, wait_paused: bool = False) -> R:
        """Wait for the run's end, and return its value; see `Run.result`."""
        engine = self._app.engine
        end = engine.waiters.recent(self.id) or await self._wait(timeout, wait_paused=wait_paused)
        self._row = ended_row(self._row, end)
        return cast(R, engine.outcome(self._row, end))

    async def _wait(self, timeout: timedelta | float | None, *, wait_paused: bool) -> RunEnd:
        engine = self._app.engine
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[RunEnd] = loop.create_future()
        waiter = engine.wait_for(
            self._row,
            lambda end: None if answer.done() else answer.set_result(end),
            wants_pauses=not wait_paused,
            fresh=self._fresh,
            loop=loop,
        )
        self._fresh = False
        try:
            if timeout is None:
                return await answer
            async with asyncio.timeout(span_micros(timeout) / 1e6):
                return await answer
        except TimeoutError:
            row = (await self.refresh()).row
            if RunState(row.state).final:
                return RunEnd(state=row.state, result=row.result, error=row.error)
            raise ResultTimeout(self.id, self.state) from None
        finally:
            engine.waiters.remove(waiter)

    async def send(self, name: str, value: Any = None, *, id: str | None = None) -> None:
        frame = current_frame("send")
        if frame is not None and id is None:
            await frame.adrive(frame.send(self.id, name, value))
            return
        step = current_step()
        engine = self._app.engine
        message_id = id if id is not None or step is None else step.next_start_id()
        await engine.services.committer.arun(engine.message(self.id, name, value, message_id))

    async def published(self, name: str, default: Any = None) -> Any:
        engine = self._app.engine
        text = await _in_thread(lambda: engine.store.published(self.id, name))
        return default if text is None else engine.services.codec.decode(text)

    async def pause(self, *, reason: str | None = None) -> None:
        self._row = await _in_thread(lambda: self._app.engine.pause(self.id, reason))

    async def resume(self) -> None:
        self._row = await _in_thread(lambda: self._app.engine.resume(self.id))

    async def cancel(self, *, reason: str | None = None) -> None:
        self._row = await _in_thread(lambda: self._app.engine.cancel(self.id, reason))

    async def skip(self, node: str) -> None:
        self._row = await _in_thread(lambda: self._app.engine.skip(self.id, node))

    async def reattempt(self, node: str) -> None:
        self._row = await _in_thread(lambda: self._app.engine.reattempt(self.id, node))

    async def nodes(self) -> list[NodeState]:
        return await self._seen(graphs.nodes_of)

    async def to_mermaid(self, *, fold: bool = True) -> str:
        return to_mermaid(await self._seen(graphs.drawn_of, fold=fold))

    async def to_dot(self, *, fold: bool = True) -> str:
        return to_dot(await self._seen(graphs.drawn_of, fold=fold), self.type)

    async def freeze(self) -> None:
        await self._seen(graphs.freeze)
        await self.refresh()

    async def export_graph(self) -> str:
        return await self._seen(graphs.export_graph)

    async def import_graph(self, text: str) -> None:
        await self._seen(graphs.import_graph, text)
        await self.refresh()

    async def verify(self) -> list[Broken]:
        return await self._seen(graphs.verify_run)

    async def _seen(self, look: Callable[..., T], *args: Any, **options: Any) -> T:
        """Look at the run as it is now, in a thread."""
        engine = self._app.engine
        row = (await self.refresh()).row
        return await _in_thread(lambda: look(engine, row, *args, **options))

    async def executions(self) -> list[Execution]:
        return await _in_thread(lambda: executions_of(self._app.engine, self.id))

    async def history(self) -> list[Happening]:
        return await _in_thread(lambda: history_of(self._app.engine, self._row))


class AsyncRuns(RunQueries[Coroutine[Any, Any, list[AsyncRun[Any]]]]):
    """`app.runs`: finds runs; see `App.runs`."""

    def __init__(self, app: AsyncApp) -> None:
        self._app = app

    async def _answer(self, state: str | None, filters: Filters) -> list[AsyncRun[Any]]:
        rows = await _in_thread(lambda: find_runs(self._app.engine, state, filters))
        return [AsyncRun(self._app, row) for row in rows]

    def each(self, *, state: str | None = None, **filters: Unpack[Filters]) -> AsyncIterator[AsyncRun[Any]]:
        """All runs that fit (at most `limit`, if that is given), read page by page."""
        return self._pages(Walk(self._app.engine, state, filters))

    async def _pages(self, walk: Walk) -> AsyncIterator[AsyncRun[Any]]:
        while not walk.over:
            for row in await _in_thread(walk.next_page):
                yield AsyncRun(self._app, row)


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
    """Show a value to anyone who asks: `run.published(name)`."""
    frame = current_frame("publish")
    if frame is not None:
        await frame.adrive(frame.publish(name, value))


def send(run_id: str, name: str, value: Any = None) -> Coroutine[Any, Any, None]:
    """Send a message to another run, exactly once."""
    frame = needed_frame("send", blocking=False)
    return frame.adrive(frame.send(run_id, name, value))


async def patched(id: str) -> bool:
    """Guard a change of a workflow's code; see `detent.patched`."""
    frame = current_frame("patched")
    return True if frame is None else await frame.adrive(frame.patched(id))


async def _in_thread(job: Callable[[], T]) -> T:
    """Run blocking work in a thread, never in the loop's default executor: that one is the user's."""
    ask_database("the database")
    return cast(T, await asyncio.wrap_future(Threads.shared().submit(job)))
