"""AsyncApp: the front of the engine, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, cast, overload

from ..app import deciders as deciding
from ..app import keyed_starts, within
from ..app.app import App
from ..app.engine import Engine
from ..app.projections import AsyncProjections
from ..app.settings import (
    APP_DEFAULTS,
    SCHEDULE_DEFAULTS,
    START_DEFAULTS,
    AppSettings,
    Options,
    ScheduleKeywords,
    StartOptions,
    checked_options,
)
from ..app.starters import calls_of
from ..app.user_connections import loop_tx
from ..app.views import Execution, id_of
from ..app.within import join
from ..arguments import check_stored_id
from ..definitions.context import current_frame, replaying
from ..definitions.deciders import Decider
from ..definitions.decisions import Recorded, TimerCancelled
from ..events import Event
from ..kernel.operations import Operation, Start
from ..keywords import shows
from .deciders import AsyncDeadLetters, AsyncDeciders
from .queues import AsyncQueues
from .run import AsyncRun, AsyncRuns, results_of
from .schedules import AsyncSchedules
from .starters import AsyncStarts
from .threads import in_thread

R = TypeVar("R")
S = TypeVar("S")
In = TypeVar("In")
E = TypeVar("E")


class AsyncApp(AsyncStarts):
    """The same as `detent.App`, for asyncio: what waits is awaited.

    async with detent.AsyncApp("sqlite:///shop.db", include=[fulfil]) as app:
        run = await app.start(fulfil, 42)
        print(await run.result())
    """

    @shows(AppSettings, defaults=APP_DEFAULTS)
    def __init__(self, url: str, *, include: Any = (), **settings: Unpack[AppSettings]) -> None:
        self._sync = App(url, include=include, **settings)

    @property
    def sync(self) -> App:
        """The same app, for sync code."""
        return self._sync

    @property
    def engine(self) -> Engine:
        """The engine behind this app."""
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
        """Stop the worker and close the database; see `App.close`."""
        await in_thread(self.engine.close)

    async def migrate(self) -> list[str]:
        """Bring the database's schema up to date; see `App.migrate`."""
        return await in_thread(self.engine.migrate)

    def hero(
        self,
        cls: type,
        *,
        key: Callable[[Any], Any],
        load: Callable[[str], Any] | None = None,
        name: str | None = None,
    ) -> None:
        """Say how objects of a class are named as heroes; see `App.hero`."""
        self._sync.hero(cls, key=key, load=load, name=name)

    def subscribe(
        self, function: Callable[[Any], Any], *, events: Collection[type[Event]] | None = None
    ) -> Callable[[], None]:
        """Call a function or a coroutine function with what happens in this process; see `App.subscribe`.

            unsubscribe = app.subscribe(page_somebody, events=(events.RunFailed, events.Drifted))

        A coroutine function runs on the event loop in which the app was opened.
        """
        return self._sync.subscribe(function, events=events)

    async def _start_one(
        self, definition: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> AsyncRun[Any]:
        return await self.options()._start_one(definition, args, kwargs)

    async def _start_each(self, definition: Any, calls: Iterable[tuple[Any, ...]]) -> list[AsyncRun[Any]]:
        return await self.options()._start_each(definition, calls)

    @shows(StartOptions, defaults=START_DEFAULTS)
    def options(self, **options: Unpack[StartOptions]) -> AsyncStarter:
        """How the next run is started; see `App.options`.

        run = await app.options(id="order-42").start(fulfil, 42)
        """
        return AsyncStarter(self, checked_options(options))

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
    def queues(self) -> AsyncQueues:
        """The queues: `await app.queues["mail"].pause("reason")`; see `App.queues`."""
        return AsyncQueues(self._sync.queues)

    @property
    def projections(self) -> AsyncProjections:
        """Read models of events; see `App.projections`."""
        return AsyncProjections(self.engine)

    @shows(ScheduleKeywords, defaults=SCHEDULE_DEFAULTS)
    def schedule(self, name: str, definition: Any, **terms: Unpack[ScheduleKeywords]) -> None:
        """Declare a schedule in the code; see `App.schedule`."""
        self._sync.schedule(name, definition, **terms)

    @property
    def schedules(self) -> AsyncSchedules:
        """All schedules: `await app.schedules["poll"].pause()`, `async for schedule in app.schedules`."""
        return AsyncSchedules(self.engine)

    def within(self, connection: Any) -> AsyncWithin:
        """Start runs inside your own transaction: they exist if and only if it commits.

        Takes psycopg's AsyncConnection, connections of asyncpg, aiosqlite and aiomysql,
        SQLAlchemy's AsyncConnection or AsyncSession, the `tx` of a transactional step, and the
        sync connections that `App.within` takes.
        """
        return AsyncWithin(self, connection, Options())

    async def run(self, id: str) -> AsyncRun[Any]:
        """The run of that id."""
        check_stored_id("app.run()", "id", id)
        return AsyncRun(self.engine, await in_thread(lambda: self.engine.row(id)))

    @overload
    async def results(
        self,
        runs: Iterable[AsyncRun[R]],
        *,
        timeout: timedelta | float | None = None,
        return_exceptions: Literal[False] = False,
        wait_paused: bool = False,
    ) -> list[R]: ...
    @overload
    async def results(
        self,
        runs: Iterable[AsyncRun[R]],
        *,
        timeout: timedelta | float | None = None,
        return_exceptions: bool,
        wait_paused: bool = False,
    ) -> list[R | Exception]: ...
    async def results(
        self,
        runs: Iterable[AsyncRun[Any]],
        *,
        timeout: timedelta | float | None = None,
        return_exceptions: bool = False,
        wait_paused: bool = False,
    ) -> list[Any]:
        """Wait for many runs, and return their values in the same order; see `App.results`."""
        return await results_of(
            self.engine, runs, timeout=timeout, return_exceptions=return_exceptions, wait_paused=wait_paused
        )

    @property
    def runs(self) -> AsyncRuns:
        """Finds runs; see `App.runs`: `await app.runs.failed()`, `async for run in app.runs.each()`."""
        return AsyncRuns(self.engine)

    async def executions(
        self,
        *,
        state: str | None = None,
        type: Any = None,
        queue: str | None = None,
        after: datetime | None = None,
        before: datetime | None = None,
        limit: int = 50,
        cursor: Execution | None = None,
    ) -> list[Execution]:
        """Executions of all runs; see `App.executions`."""
        return await in_thread(
            lambda: self._sync.executions(
                state=state,
                type=type,
                queue=queue,
                after=after,
                before=before,
                limit=limit,
                cursor=cursor,
            )
        )

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


class AsyncStarter(AsyncStarts):
    """`app.options(...)`: starts runs with these options.

    run = await app.options(id="order-42", priority=5).start(fulfil, 42)
    """

    def __init__(self, app: AsyncApp, options: Options) -> None:
        self._app = app
        self._options = options

    async def _start_one(
        self, definition: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> AsyncRun[Any]:
        if deciding.starts_instance(self._app.engine, definition):
            return await self._begin(definition, deciding.first_input(definition, args, kwargs))
        if self._options.keyed:
            engine = self._app.engine
            await self._app.ensure_open()
            starting = keyed_starts.prepared(engine, definition, [(args, kwargs)], self._options)
            return AsyncRun(engine, await in_thread(starting))
        return (await self._app._start(await self._prepared(definition, [(args, kwargs)])))[0]

    async def _begin(self, decider: Any, input: Any) -> AsyncRun[Any]:
        """Begin an instance by giving it an input."""
        await self._app.execute(decider, input, input_id=deciding.only_id(self._options))
        return await self._app.run(self._app.engine.registry.decider(decider).address(input))

    async def _start_each(self, definition: Any, calls: Iterable[tuple[Any, ...]]) -> list[AsyncRun[Any]]:
        self._options.refuse_many()
        given = calls_of(calls)
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


class AsyncWithin(AsyncStarts):
    """`app.within(connection)`: writes in your own transaction.

    async with connection.transaction():
        run = await app.within(connection).start(fulfil, 42)
    """

    def __init__(self, app: AsyncApp, connection: Any, options: Options) -> None:
        self._app = app
        self._connection = connection
        self._options = options

    @shows(StartOptions, defaults=START_DEFAULTS)
    def options(self, **options: Unpack[StartOptions]) -> AsyncWithin:
        """The same as `app.options(...).within(connection)`."""
        return AsyncWithin(self._app, self._connection, checked_options({**self._options.given, **options}))

    async def _start_one(
        self, definition: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> AsyncRun[Any]:
        if self._options.keyed:
            engine = self._app.engine
            await self._app.ensure_open()
            verb = keyed_starts.start_within(engine, definition, [(args, kwargs)], self._options)
            return AsyncRun(engine, await self._join(verb))
        return (await self._start(definition, [(args, kwargs)]))[0]

    async def _start_each(self, definition: Any, calls: Iterable[tuple[Any, ...]]) -> list[AsyncRun[Any]]:
        self._options.refuse_many()
        return await self._start(definition, calls_of(calls))

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

    async def send(
        self, run: AsyncRun[Any] | str, name: str, value: Any = None, *, id: str | None = None
    ) -> None:
        """Send a run a message, if and only if your transaction commits; see `AsyncRun.send`."""
        await self._app.ensure_open()
        await self._join(within.sending(self._app.engine, run, name, value, id))

    async def cancel(self, run: AsyncRun[Any] | str, *, reason: str | None = None) -> None:
        """End a run and its children, if and only if your transaction commits; see `AsyncRun.cancel`."""
        await self._app.ensure_open()
        await self._join(within.canceling(self._app.engine, run, reason))

    async def pause(self, run: AsyncRun[Any] | str, *, reason: str | None = None) -> None:
        """Stop new work of a run, if and only if your transaction commits; see `AsyncRun.pause`."""
        await self._app.ensure_open()
        await self._join(within.pausing(self._app.engine, run, reason))

    async def resume(self, run: AsyncRun[Any] | str, *, accept_drift: bool = False) -> None:
        """Continue a paused or failed run, if and only if your transaction commits; see `AsyncRun.resume`."""
        await self._app.ensure_open()
        engine = self._app.engine
        verb = await in_thread(lambda: within.resuming(engine, run, accept_drift))
        await self._join(verb)

    async def set_attributes(
        self, run: AsyncRun[Any] | str, attributes: Mapping[str, str | int | bool | None]
    ) -> None:
        """Set attributes of a run, if and only if your transaction commits; see `AsyncRun.set_attributes`."""
        await self._app.ensure_open()
        await self._join(within.changing_attributes(self._app.engine, run, attributes))

    async def publish(self, run: AsyncRun[Any] | str, name: str, value: Any) -> None:
        """Publish a value of a run, if and only if your transaction commits; see `AsyncRun.publish`."""
        await self._app.ensure_open()
        await self._join(within.publishing(self._app.engine, run, name, value))

    async def append(self, run: AsyncRun[Any] | str, name: str, value: Any) -> None:
        """Append to a stream, if and only if your transaction commits; see `Within.append`."""
        await self._app.ensure_open()
        await self._join(within.appending(self._app.engine, run, name, value))

    async def execute(
        self, decider: type[Decider[Any, In, E, Any]], input: In, *, input_id: str | None = None
    ) -> list[E]:
        """Give an input to its instance, if and only if your transaction commits; see `Within.execute`."""
        await self._app.ensure_open()
        operation = within.deciding_now(self._app.engine, decider, input, input_id)
        return cast(list[E], (await self._join(operation)).events)

    async def _join(self, operation: Operation | within.Verb) -> Any:
        store = self._app.engine.store
        target = await loop_tx(store, self._connection)
        if target is None:  # a sync connection blocks anyway, and may belong to this thread
            return join(store, self._connection, operation)
        return await in_thread(lambda: join(store, target, operation))
