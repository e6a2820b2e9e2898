"""AsyncApp: the front of the engine, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast, overload

from ..app import deciders as deciding
from ..app.app import App
from ..app.engine import Engine
from ..app.projections import AsyncProjections
from ..app.settings import Options, checked_options
from ..app.starting import START_MANY, calls_of
from ..app.user_connections import loop_tx
from ..app.views import Execution, id_of
from ..app.within import join
from ..arguments import check_stored_id
from ..definitions.context import Context, current_frame, replaying
from ..definitions.deciders import Decider
from ..definitions.decisions import Recorded, TimerCancelled
from ..definitions.functions import FunctionWorkflow
from ..definitions.graphs import Graph, Template
from ..definitions.workflows import Workflow
from ..events import Event
from ..kernel.operations import Operation, Start
from .deciders import AsyncDeadLetters, AsyncDeciders
from .run import AsyncRun, AsyncRuns
from .threads import in_thread

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
In = TypeVar("In")
E = TypeVar("E")


class AsyncApp:
    """The same as `detent.App`, for asyncio: what waits is awaited."""

    def __init__(self, url: str, *, include: Any = (), **settings: Any) -> None:
        self._sync = App(url, include=include, **settings)

    @property
    def sync(self) -> App:
        """The same app, for sync code."""
        return self._sync

    @property
    def engine(self) -> Engine:
        return self._sync.engine

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        await in_thread(lambda: self.engine.enter(loop))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await in_thread(self.engine.leave)

    async def open(self, *, worker: bool = False) -> Self:
        """Open the database, with or without a worker; see `App.open`."""
        loop = asyncio.get_running_loop()
        await in_thread(lambda: self.engine.open(worker=worker, loop=loop))
        return self

    async def ensure_open(self) -> None:
        """Open the database without blocking the loop, where nobody did yet."""
        if not self.engine.is_open and not replaying():
            await in_thread(self.engine.ensure_open)

    async def close(self) -> None:
        await in_thread(self.engine.close)

    async def migrate(self) -> list[str]:
        return await in_thread(self.engine.migrate)

    def hero(
        self,
        cls: type,
        *,
        key: Callable[[Any], Any],
        load: Callable[[str], Any] | None = None,
        name: str | None = None,
    ) -> None:
        self._sync.hero(cls, key=key, load=load, name=name)

    def subscribe(
        self, function: Callable[[Any], Any], *, events: Collection[type[Event]] | None = None
    ) -> Callable[[], None]:
        """Call a function or a coroutine function with what happens in this process; see `App.subscribe`.

            unsubscribe = app.subscribe(page_somebody, events=(events.RunFailed, events.Drifted))

        A coroutine function runs on the event loop in which the app was opened.
        """
        return self._sync.subscribe(function, events=events)

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
        return AsyncStarter(self, checked_options(options) if options else Options())

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
        answer = await engine.services.committer.arun(operation)
        if deciding.may_be_repeated(answer, input_id):
            return await in_thread(lambda: deciding.decided_before(engine, operation))
        return cast(list[E], answer.events)

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
        frame = current_frame("enqueue_input")
        if frame is not None:
            routine = deciding.enqueue_in(frame, self.engine, decider, input, input_id)
            return cast(bool, await frame.adrive(routine))
        operation = deciding.enqueuing_of(self.engine, decider, input, input_id)
        created: bool = (await self.engine.services.committer.arun(operation)).created
        return created or input_id is None  # another attempt at a step has put it there

    async def state_at(
        self, decider: type[Decider[S, Any, Any, Any]], instance: str, *, sequence: int | None = None
    ) -> S:
        """The state of an instance after an event; see `App.state_at`."""
        return await in_thread(lambda: self._sync.state_at(decider, instance, sequence=sequence))

    async def events(
        self,
        decider: type[Decider[Any, Any, E, Any]],
        instance: str,
        *,
        after: int = 0,
        limit: int | None = None,
    ) -> list[Recorded[E | TimerCancelled]]:
        """The events of an instance; see `App.events`."""
        return await in_thread(lambda: self._sync.events(decider, instance, after=after, limit=limit))

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

        Takes psycopg's AsyncConnection, connections of asyncpg, aiosqlite and aiomysql,
        SQLAlchemy's AsyncConnection or AsyncSession, the `tx` of a transactional step, and the
        sync connections that `App.within` takes.
        """
        return AsyncWithin(self, connection, Options())

    async def run(self, id: str) -> AsyncRun[Any]:
        check_stored_id("app.run()", "id", id)
        return AsyncRun(self.engine, await in_thread(lambda: self.engine.row(id)))

    @property
    def runs(self) -> AsyncRuns:
        """Finds runs; see `App.runs`: `await app.runs.failed()`, `async for run in app.runs.each()`."""
        return AsyncRuns(self.engine)

    async def executions(self, **filters: Any) -> list[Execution]:
        """Executions of all runs; see `App.executions`."""
        return await in_thread(lambda: self._sync.executions(**filters))

    async def gc(self, *, older_than: timedelta, limit: int | None = None) -> int:
        """Remove runs that ended longer ago; see `App.gc`."""
        return await in_thread(lambda: self.engine.remove_old(older_than, limit))

    async def delete(self, run: AsyncRun[Any] | str) -> int:
        """Remove a run that is over, with its children; see `App.delete`."""
        run_id = id_of("app.delete()", "run", run)
        return await in_thread(lambda: self.engine.delete(run_id))

    async def fork(
        self, run: AsyncRun[R] | str, *, from_step: str | None = None, id: str | None = None
    ) -> AsyncRun[R]:
        """Begin a new run that keeps what another has done; see `App.fork`."""
        run_id = id_of("app.fork()", "run", run)
        start = await in_thread(lambda: self.engine.fork(run_id, from_step, Options(id=id)))
        return (await self._start(start))[0]

    async def _start(self, start: Start) -> list[AsyncRun[Any]]:
        runs = await self._started(start)
        frame = current_frame("start")
        if frame is not None:
            await frame.adrive(frame.started())
        return runs

    async def _started(self, start: Start) -> list[AsyncRun[Any]]:
        if replaying():
            return [AsyncRun(self.engine, row) for row in self.engine.fresh(start)]
        try:
            answers = await self.engine.services.committer.arun(start)
            if all(answer.created for answer in answers):
                rows = self.engine.started(start, answers)
            else:
                rows = await in_thread(lambda: self.engine.started(start, answers))
        except BaseException:
            self.engine.started(start, None)
            raise
        created = {answer.id for answer in answers if answer.created}
        return [AsyncRun(self.engine, row, fresh=row.id in created) for row in rows]


class AsyncStarter:
    """`app.options(...)`: starts runs with these options."""

    def __init__(self, app: AsyncApp, options: Options) -> None:
        self._app = app
        self._options = options

    async def start(self, definition: Any, *args: Any, **kwargs: Any) -> AsyncRun[Any]:
        if deciding.starts_instance(self._app.engine, definition):
            return await self._begin(definition, deciding.first_input(definition, args, kwargs))
        return (await self._app._start(await self._prepared(definition, [(args, kwargs)])))[0]

    async def _begin(self, decider: Any, input: Any) -> AsyncRun[Any]:
        """Begin an instance by giving it an input."""
        await self._app.execute(decider, input, input_id=deciding.only_id(self._options))
        return await self._app.run(self._app.engine.registry.decider(decider).address(input))

    async def start_many(self, definition: Any, calls: Iterable[tuple[Any, ...]]) -> list[AsyncRun[Any]]:
        given = calls_of(START_MANY, calls)
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

    def options(self, **options: Any) -> AsyncWithin:
        """The same as `app.options(...).within(connection)`; the keywords are those of `App.options`."""
        return self._app.options(**{**self._options.given, **options}).within(self._connection)

    async def start(self, definition: Any, *args: Any, **kwargs: Any) -> AsyncRun[Any]:
        """Start a run with your transaction; nobody sees it before your commit."""
        return (await self._start(definition, [(args, kwargs)]))[0]

    async def start_many(self, definition: Any, calls: Iterable[tuple[Any, ...]]) -> list[AsyncRun[Any]]:
        return await self._start(definition, calls_of(START_MANY, calls))

    async def _start(
        self, definition: Any, calls: list[tuple[tuple[Any, ...], dict[str, Any]]]
    ) -> list[AsyncRun[Any]]:
        engine = self._app.engine
        await self._app.ensure_open()
        start = engine.planned(definition, calls, self._options)
        start.remote = True
        if replaying():
            return [AsyncRun(engine, row) for row in engine.fresh(start)]
        await self._join(start)
        return [AsyncRun(engine, row) for row in engine.fresh(start)]

    async def enqueue_input(
        self, decider: type[Decider[Any, In, Any, Any]], input: In, *, input_id: str | None = None
    ) -> bool:
        """Put an input into its instance's inbox, if and only if your transaction commits."""
        await self._app.ensure_open()
        operation = deciding.enqueuing_of(self._app.engine, decider, input, input_id, within=True)
        return cast(bool, (await self._join(operation)).created)

    async def _join(self, operation: Operation) -> Any:
        store = self._app.engine.store
        target = await loop_tx(store, self._connection)
        if target is None:  # a sync connection blocks anyway, and may belong to this thread
            return join(store, self._connection, operation)
        return await in_thread(lambda: join(store, target, operation))
