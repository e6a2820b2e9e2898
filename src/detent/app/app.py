"""App and Run: the front of the engine, for sync code."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, cast, overload

from ..arguments import check_stored_id
from ..definitions.context import current_frame, replaying
from ..definitions.functions import FunctionWorkflow
from ..execution.registry import Registry
from ..keywords import shows
from ..stores.addresses import check_address
from .includes import collect
from .settings import (
    APP_DEFAULTS,
    NO_OPTIONS,
    SCHEDULE_DEFAULTS,
    START_DEFAULTS,
    AppSettings,
    Options,
    ScheduleKeywords,
    StartOptions,
    checked_options,
    checked_settings,
    checked_url,
)
from .starters import Starts, calls_of

# Loaded where they are used.  Stores, workers and asyncio take two thirds of the time that Detent needs to
# load, and a program that imports a module with an app in it need not use the app.
if TYPE_CHECKING:
    from ..definitions.deciders import Decider
    from ..definitions.decisions import Recorded, TimerCancelled
    from ..events import Event
    from ..kernel.operations import Start
    from .dead_letters import DeadLetters
    from .engine import Engine
    from .machine import Deciders
    from .projections import Projections
    from .queues import Queues
    from .run import Run, Runs
    from .schedules import Schedules
    from .views import Execution
    from .within import Within

R = TypeVar("R")
S = TypeVar("S")
In = TypeVar("In")
E = TypeVar("E")


class App(Starts):
    """Durable workflows on a database.

        app = detent.App("sqlite:///shop.db", include=[fulfil])

        with app:                        # opens the database and works in the background
            run = app.start(fulfil, 42)  # durable when this line returns
            print(run.result())

    Outside of `with`, it opens the database when first used, and leaves the work to
    workers elsewhere (`detent worker shop:app`).  The keywords are those of
    `detent.app.settings.Settings`.
    """

    @shows(AppSettings, defaults=APP_DEFAULTS)
    def __init__(self, url: str, *, include: Any = (), **settings: Unpack[AppSettings]) -> None:
        self._settings = checked_settings(settings)
        self._url = checked_url(url)
        check_address(url)
        self._registry = Registry(collect(include))

    @cached_property
    def engine(self) -> Engine:
        """The engine behind this app, made when it is first used."""
        from .engine import Engine

        # Threads that get here at the same time use the same engine: the first one that was made.
        made = Engine(self._url, self._registry, self._settings)
        return cast(Engine, self.__dict__.setdefault("engine", made))

    @cached_property
    def _as_run(self) -> type[Run[Any]]:
        """`Run`: loaded once, and not by each `start`."""
        from .run import Run

        return Run

    def __enter__(self) -> Self:
        self.engine.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.engine.leave()

    def open(self, *, worker: bool = False) -> Self:
        """Open the database, with or without a worker; `close()` ends it.

        A `with` block closes it too, and does not change the choice: `with app.open(worker=False):`.
        Blocks may be nested; the outermost one closes the app.  `close()` closes it at once.
        """
        self.engine.open(worker=worker)
        return self

    def close(self) -> None:
        """Stop the worker and close the database; see `open()`."""
        self.engine.close()

    def migrate(self) -> list[str]:
        """Bring the database's schema up to date; returns what was applied."""
        return self.engine.migrate()

    def hero(
        self,
        cls: type,
        *,
        key: Callable[[Any], Any],
        load: Callable[[str], Any] | None = None,
        name: str | None = None,
    ) -> None:
        """Register a class of heroes: how its objects are named and loaded."""
        self.engine.heroes.register(cls, key=key, load=load, name=name)

    def subscribe(
        self, function: Callable[[Any], Any], *, events: Collection[type[Event]] | None = None
    ) -> Callable[[], None]:
        """Call a function or a coroutine function with the events of this process.

            unsubscribe = app.subscribe(page_somebody, events=(events.RunFailed, events.Drifted))

        The classes are in `detent.events`; None means all of them.  A function is called in a separate
        thread, a coroutine function on the app's event loop, one event at a time.  Events are not
        stored: each is delivered at most once, and only in the process that caused it.  Call the returned
        function to end the subscription.
        """
        from .reports import subscribe

        return subscribe(self.engine.observer, function, events)

    def _start_one(self, definition: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Run[Any]:
        return self.options()._start_one(definition, args, kwargs)

    def _start_each(self, definition: Any, calls: Iterable[tuple[Any, ...]]) -> list[Run[Any]]:
        return self.options()._start_each(definition, calls)

    @shows(StartOptions, defaults=START_DEFAULTS)
    def options(self, **options: Unpack[StartOptions]) -> Starter:
        """How the next run is started, apart from its own arguments.

            run = app.options(id="order-42", priority=5).start(fulfil, 42)

        The same `id` twice is the same run.  A higher `priority` runs sooner.  At its
        `deadline` a run that is not done fails.  By its `attributes` it can be found.
        `debounce` and `dedup_key` make several starts one run: see docs/queues.md.
        """
        return Starter(self, checked_options(options))

    def execute(
        self,
        decider: type[Decider[Any, In, E, Any]],
        input: In,
        *,
        input_id: str | None = None,
    ) -> list[E]:
        """Give an input to its instance, and return the events that it caused.

        Returns an empty list if the instance has finished, or if an input with that `input_id` was decided
        before.  Inside a workflow or a step, the input is decided once, also in a replay or a retry.
        """
        from . import deciders as deciding

        engine = self.engine
        frame = current_frame("execute")
        if frame is not None:
            routine = deciding.call_in(frame, engine, decider, input, input_id)
            return deciding.events_of(engine, decider, frame.drive(routine))
        operation = deciding.decision_of(engine, decider, input, input_id)
        answer = engine.services.committer.run(operation)
        if deciding.may_be_repeated(answer, input_id):
            return deciding.decided_before(engine, operation)
        return cast(list[E], answer.events)

    def execute_dynamic(
        self, decider: str, payload: Mapping[str, Any], *, input_id: str | None = None
    ) -> list[Any]:
        """`execute` by names: `payload["type"]` names the class of the input; the rest are its fields."""
        from . import deciders as deciding

        input = deciding.dynamic_input(self.engine, decider, payload)
        return self.execute(cast(Any, decider), input, input_id=input_id)

    def enqueue_input(
        self, decider: type[Decider[Any, In, Any, Any]], input: In, *, input_id: str | None = None
    ) -> bool:
        """Put an input into its instance's inbox: it is durable when this returns, and decided later.

        Inputs of one inbox are decided in the order of arrival.  Returns False if an input with that
        `input_id` was there already.
        """
        from . import deciders as deciding

        frame = current_frame("enqueue_input")
        if frame is not None:
            return cast(bool, frame.drive(deciding.enqueue_in(frame, self.engine, decider, input, input_id)))
        operation = deciding.enqueuing_of(self.engine, decider, input, input_id)
        created: bool = self.engine.services.committer.run(operation).created
        return created or input_id is None  # another attempt at a step has put it there

    def state_at(
        self, decider: type[Decider[S, Any, Any, Any]], instance: str, *, sequence: int | None = None
    ) -> S:
        """The state of an instance after its event `sequence`; by default its current state."""
        from . import deciders as deciding

        return cast(S, deciding.state_at(self.engine, decider, instance, sequence))

    def events(
        self,
        decider: type[Decider[Any, Any, E, Any]],
        instance: str,
        *,
        after: int = 0,
        limit: int | None = None,
    ) -> list[Recorded[E | TimerCancelled]]:
        """The events of an instance with a number higher than `after`, in order."""
        from . import deciders as deciding

        return deciding.recorded_events(self.engine, decider, instance, after, limit)

    @property
    def deciders(self) -> Deciders:
        """Inspects deciders: `app.deciders.machine(Order)`, `.instance(Order, "o-1")`, `.inboxes()`."""
        from .machine import Deciders

        return Deciders(self.engine)

    @property
    def dead_letters(self) -> DeadLetters:
        """Effects, timers and inboxes that were given up: `app.dead_letters(Order)`, `.replay(letter)`."""
        from .dead_letters import DeadLetters

        return DeadLetters(self.engine)

    @property
    def queues(self) -> Queues:
        """The queues: `app.queues["mail"].pause("reason")`, `.resume()`, `.set(concurrency=10)`."""
        from .queues import Queues

        return Queues(self.engine)

    @property
    def projections(self) -> Projections:
        """Read models of events: `app.projections.view(Totals)`, `.status()`, `.wait(Totals)`."""
        from .projections import Projections

        return Projections(self.engine)

    @shows(ScheduleKeywords, defaults=SCHEDULE_DEFAULTS)
    def schedule(self, name: str, definition: Any, **terms: Unpack[ScheduleKeywords]) -> None:
        """Declare a schedule in the code: a run starts at each of its times.

            app.schedule("nightly-report", report, args=("eu",), cron="0 3 * * *", tz="Europe/Paris")
            app.schedule("poll", poll, every=timedelta(minutes=5), jitter=30, overlap="skip")

        A worker stores it when it starts; a changed declaration is a deploy, and replaces the old one.
        The run of a firing has the id `nightly-report@2026-03-29T01:00:00Z`, and knows its time as
        `ctx.scheduled_for`.  See docs/schedules.md.
        """
        from . import schedule_control as verbs

        one = verbs.declaration("app.schedule()", self.engine, name, definition, **terms)
        verbs.declare(self.engine, one)

    @property
    def schedules(self) -> Schedules:
        """All schedules: `app.schedules["poll"].pause()`, `for schedule in app.schedules`, `.create(...)`."""
        from .schedules import Schedules

        return Schedules(self.engine)

    def within(self, connection: Any) -> Within:
        """Start runs inside your own transaction: they exist if and only if it commits.

        Takes a connection to the same database of sqlite3, psycopg, psycopg2, PyMySQL or
        MySQLdb, Django's `connection`, an SQLAlchemy Connection or Session, or the `tx` of a
        transactional step.  If the start is refused, your transaction continues without it.
        """
        from .within import Within

        return Within(self.engine, connection, Options())

    def run(self, id: str) -> Run[Any]:
        """The run of that id."""
        return self._as_run(self.engine, self.engine.row(check_stored_id("app.run()", "id", id)))

    @overload
    def results(
        self,
        runs: Iterable[Run[R]],
        *,
        timeout: timedelta | float | None = None,
        return_exceptions: Literal[False] = False,
        wait_paused: bool = False,
    ) -> list[R]: ...
    @overload
    def results(
        self,
        runs: Iterable[Run[R]],
        *,
        timeout: timedelta | float | None = None,
        return_exceptions: bool,
        wait_paused: bool = False,
    ) -> list[R | Exception]: ...
    def results(
        self,
        runs: Iterable[Run[Any]],
        *,
        timeout: timedelta | float | None = None,
        return_exceptions: bool = False,
        wait_paused: bool = False,
    ) -> list[Any]:
        """Wait for many runs, and return their values in the same order.

        As soon as one of the runs has failed, raises the error that its `run.result()` would raise.
        `return_exceptions=True` waits for all of them, and returns errors in place of values.
        `timeout` is for all of them together.
        """
        from .run import results_of

        return results_of(
            self.engine, runs, timeout=timeout, return_exceptions=return_exceptions, wait_paused=wait_paused
        )

    @property
    def runs(self) -> Runs:
        """Finds runs, newest first: `app.runs(type=fulfil)`, `app.runs.failed()`, `app.runs.each()`."""
        from .run import Runs

        return Runs(self.engine)

    def executions(
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
        """Executions of all runs, newest run first: `app.executions(state="failed", type=fulfil)`.

        `type`, `after` and `before` select by the run, as in `app.runs`; `queue` is that of the execution.
        `cursor` is the last execution of the previous page.
        """
        from .executions import find_executions

        return find_executions(
            self.engine,
            state=state,
            type=type,
            queue=queue,
            after=after,
            before=before,
            limit=limit,
            cursor=cursor,
        )

    def gc(self, *, older_than: timedelta, limit: int | None = None) -> int:
        """Remove runs that ended longer ago, with all their data; returns how many.

        A child is removed with its parent, never before it.  Expired input ids of deciders
        (`input_ids_kept`) are removed too.
        """
        return self.engine.remove_old(older_than, limit)

    def delete(self, run: Run[Any] | str) -> int:
        """Remove a run that has ended, with its children and all their data.

        Returns how many runs it removed.  A child is removed with its parent, never alone.
        """
        from .views import id_of

        return self.engine.delete(id_of("app.delete()", "run", run))

    def fork(self, run: Run[R] | str, *, from_step: str | None = None, id: str | None = None) -> Run[R]:
        """Start a new run that keeps everything recorded before `from_step`.

        Without a step it keeps every successful record and continues from there: this is how to continue
        a run that failed or was canceled.  Steps that were compensated run again.
        """
        from .views import id_of

        run_id = id_of("app.fork()", "run", run)
        start = self.engine.fork(run_id, from_step, Options(id=id))
        return self._start(start)[0]

    def _start(self, start: Start) -> list[Run[Any]]:
        if replaying():
            return [self._as_run(self.engine, row) for row in self.engine.fresh(start)]
        try:
            answers = self.engine.services.committer.run(start)
            rows = self.engine.started(start, answers)
        except BaseException:  # also one that a signal raises between the commit and the delivery
            self.engine.started(start, None)
            raise
        created = {answer.id for answer in answers if answer.created}
        return [self._as_run(self.engine, row, fresh=row.id in created) for row in rows]


class Starter(Starts):
    """`app.options(...)`: starts runs with these options.

    run = app.options(id="order-42", priority=5).start(fulfil, 42)
    """

    def __init__(self, app: App, options: Options) -> None:
        self._app = app
        self._options = options

    def _start_one(self, definition: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Run[Any]:
        if not isinstance(definition, FunctionWorkflow):
            from . import deciders as deciding

            if deciding.starts_instance(self._app.engine, definition):
                return self._begin(definition, deciding.first_input(definition, args, kwargs))
        if self._options is not NO_OPTIONS and self._options.keyed:
            return self._start_by_key(definition, args, kwargs)
        return self._app._start(self._app.engine.prepare(definition, [(args, kwargs)], self._options))[0]

    def _start_by_key(self, definition: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Run[Any]:
        """Start a run, or find the one that its `debounce` or `dedup_key` names."""
        from . import keyed_starts

        engine = self._app.engine
        row = keyed_starts.start(engine, definition, [(args, kwargs)], self._options)
        return self._app._as_run(engine, row)

    def _begin(self, decider: Any, input: Any) -> Run[Any]:
        """Begin an instance by giving it an input."""
        from .deciders import only_id

        engine = self._app.engine
        self._app.execute(decider, input, input_id=only_id(self._options))
        return self._app.run(engine.registry.decider(decider).address(input))

    def _start_each(self, definition: Any, calls: Iterable[tuple[Any, ...]]) -> list[Run[Any]]:
        self._options.refuse_many()
        given = calls_of(calls)
        if not given:
            return []
        return self._app._start(self._app.engine.prepare(definition, given, self._options))

    def within(self, connection: Any) -> Within:
        """The same inside of your transaction."""
        from .within import Within

        return Within(self._app.engine, connection, self._options)
