"""AsyncApp: the front of the engine, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, cast, overload

from ..app.app import App
from ..app.settings import (
    APP_DEFAULTS,
    NO_OPTIONS,
    SCHEDULE_DEFAULTS,
    START_DEFAULTS,
    AppSettings,
    Options,
    ScheduleKeywords,
    StartOptions,
    checked_options,
)
from ..app.starters import calls_of
from ..arguments import check_stored_id
from ..definitions.context import current_frame, replaying
from ..definitions.functions import FunctionWorkflow
from ..keywords import shows
from .starters import AsyncStarts
from .threads import in_thread, opened

if TYPE_CHECKING:  # loaded where they are used, as in `App`
    from ..app.engine import Engine
    from ..app.projections import AsyncProjections
    from ..app.views import Execution
    from ..definitions.deciders import Decider
    from ..definitions.decisions import Recorded, TimerCancelled
    from ..events import Event
    from ..kernel.operations import Start
    from .deciders import AsyncDeadLetters, AsyncDeciders
    from .queues import AsyncQueues
    from .run import AsyncRun, AsyncRuns
    from .schedules import AsyncSchedules
    from .within import AsyncWithin

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

    @cached_property
    def _as_run(self) -> type[AsyncRun[Any]]:
        """`AsyncRun`: loaded once, and not by each `start`."""
        from .run import AsyncRun

        return AsyncRun

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
        """Open the database without blocking the loop, if it is not open."""
        await opened(self.engine)

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
        from ..app import deciders as deciding

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
        from ..app import deciders as deciding

        await self.ensure_open()
        input = deciding.dynamic_input(self.engine, decider, payload)
        return await self.execute(cast(Any, decider), input, input_id=input_id)

    async def enqueue_input(
        self, decider: type[Decider[Any, In, Any, Any]], input: In, *, input_id: str | None = None
    ) -> bool:
        """Put an input into its instance's inbox; see `App.enqueue_input`."""
        from ..app import deciders as deciding

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
        from .deciders import AsyncDeciders

        return AsyncDeciders(self._sync.deciders)

    @property
    def dead_letters(self) -> AsyncDeadLetters:
        """What deciders have given up; see `App.dead_letters`."""
        from .deciders import AsyncDeadLetters

        return AsyncDeadLetters(self._sync.dead_letters)

    @property
    def queues(self) -> AsyncQueues:
        """The queues: `await app.queues["mail"].pause("reason")`; see `App.queues`."""
        from .queues import AsyncQueues

        return AsyncQueues(self._sync.queues)

    @property
    def projections(self) -> AsyncProjections:
        """Read models of events; see `App.projections`."""
        from ..app.projections import AsyncProjections

        return AsyncProjections(self.engine)

    @shows(ScheduleKeywords, defaults=SCHEDULE_DEFAULTS)
    def schedule(self, name: str, definition: Any, **terms: Unpack[ScheduleKeywords]) -> None:
        """Declare a schedule in the code; see `App.schedule`."""
        self._sync.schedule(name, definition, **terms)

    @property
    def schedules(self) -> AsyncSchedules:
        """All schedules: `await app.schedules["poll"].pause()`, `async for schedule in app.schedules`."""
        from .schedules import AsyncSchedules

        return AsyncSchedules(self.engine)

    def within(self, connection: Any) -> AsyncWithin:
        """Start runs inside your own transaction: they exist if and only if it commits.

        Takes psycopg's AsyncConnection, connections of asyncpg, aiosqlite and aiomysql,
        SQLAlchemy's AsyncConnection or AsyncSession, the `tx` of a transactional step, and the
        sync connections that `App.within` takes.
        """
        from .within import AsyncWithin

        return AsyncWithin(self.engine, connection, Options())

    async def run(self, id: str) -> AsyncRun[Any]:
        """The run of that id."""
        check_stored_id("app.run()", "id", id)
        return self._as_run(self.engine, await in_thread(lambda: self.engine.row(id)))

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
        from .run import results_of

        return await results_of(
            self.engine, runs, timeout=timeout, return_exceptions=return_exceptions, wait_paused=wait_paused
        )

    @property
    def runs(self) -> AsyncRuns:
        """Finds runs; see `App.runs`: `await app.runs.failed()`, `async for run in app.runs.each()`."""
        from .run import AsyncRuns

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
        from ..app.views import id_of

        run_id = id_of("app.delete()", "run", run)
        return await in_thread(lambda: self.engine.delete(run_id))

    async def fork(
        self, run: AsyncRun[R] | str, *, from_step: str | None = None, id: str | None = None
    ) -> AsyncRun[R]:
        """Begin a new run that keeps what another has done; see `App.fork`."""
        from ..app.views import id_of

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
            return [self._as_run(self.engine, row) for row in self.engine.fresh(start)]
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
        return [self._as_run(self.engine, row, fresh=row.id in created) for row in rows]


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
        if not isinstance(definition, FunctionWorkflow):
            from ..app import deciders as deciding

            if deciding.starts_instance(self._app.engine, definition):
                return await self._begin(definition, deciding.first_input(definition, args, kwargs))
        if self._options is not NO_OPTIONS and self._options.keyed:
            return await self._start_by_key(definition, args, kwargs)
        return (await self._app._start(await self._prepared(definition, [(args, kwargs)])))[0]

    async def _start_by_key(
        self, definition: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> AsyncRun[Any]:
        """Start a run, or find the one that its `debounce` or `dedup_key` names."""
        from ..app import keyed_starts

        engine = self._app.engine
        await self._app.ensure_open()
        starting = keyed_starts.prepared(engine, definition, [(args, kwargs)], self._options)
        return self._app._as_run(engine, await in_thread(starting))

    async def _begin(self, decider: Any, input: Any) -> AsyncRun[Any]:
        """Begin an instance by giving it an input."""
        from ..app.deciders import only_id

        await self._app.execute(decider, input, input_id=only_id(self._options))
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
        from .within import AsyncWithin

        return AsyncWithin(self._app.engine, connection, self._options)
