"""The engine behind an app: opens, starts, waits, controls.

`App` and `AsyncApp` are thin faces over it: what blocks here, the one calls and the
other awaits.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from datetime import timedelta
from functools import cached_property
from typing import Any

import msgspec

from ..arguments import check_age, check_count, check_node
from ..clock import span_micros
from ..commit.committer import Committer
from ..definitions.context import ask_database, replaying, watch_threads
from ..definitions.functions import FunctionWorkflow
from ..errors import ConfigurationError, DatabaseUnavailable, InvalidState
from ..execution.registry import Registry
from ..execution.rows import claimed_of, tokens_of
from ..execution.services import Loop, Services
from ..kernel.decide import DECIDER, Decide, Decided
from ..kernel.graph import structure_text
from ..kernel.operations import (
    Operation,
    Record,
    Send,
    Settle,
    Settled,
    Start,
    Started,
    due_of,
    first_deadline,
)
from ..kernel.rows import ExecutionState, RunEnd, RunRow, RunState
from ..observe import Observer
from ..process_forks import watch_forks
from ..serialization.codec import Codec
from ..stores.batch.apply import Applied
from ..stores.driver import Trouble
from ..stores.open import open_store, refuse_missing_folder
from ..stores.store import Store
from ..worker.worker import Worker
from .attributes import with_attributes
from .code_version import code_version
from .control import Control
from .firing import Declaration, Firing
from .fork import kept_of, plan_graph_fork
from .heroes import Heroes
from .input_ids import InputIds
from .listener import Listening
from .outcomes import outcome_of
from .reports import Reporter
from .retention import Sweeper, remove_expired
from .settings import Options, Settings
from .starting import declared_queue, fresh_row, plan_fork, plan_runs
from .waiters import Waiter, Waiters

log = logging.getLogger("detent")


class Engine(Control):
    """One app's machinery.  Opens when it is first needed, with a worker when asked."""

    def __init__(self, url: str, registry: Registry, settings: Settings, store: Store | None = None) -> None:
        self.url = url
        self.settings = settings
        self.heroes = Heroes(url)
        self.registry = registry
        self._lent = store is not None
        self.store = store if store is not None else open_store(url, pool_size=settings.pool_size)
        self.clock = settings.clock
        self.observer = Observer(lambda: self._services.loop.get() if self._services is not None else None)
        self.declarations: dict[str, Declaration] = {}  # the schedules of the code, by name
        self.served: tuple[str, ...] = settings.queue_names  # what our worker takes from
        self._begin()
        watch_forks(self)

    def _begin(self) -> None:
        """As it is before it is opened."""
        self._reporter = Reporter(self.observer, self.store, self.clock)
        self.store.on_change = self._reporter.changed
        self.worker: Worker | None = None
        self._services: Services | None = None
        self._guard = threading.RLock()
        self._asked = False  # open() was called: it decides whether there is a worker
        self._entered = 0  # how many `with` blocks are open: the outermost one closes
        self.waiters = Waiters(self.store, alone=self._alone)
        self._sweeper: Sweeper | None = None  # removes what is past its retention
        self._followers: list[Callable[[], None]] = []  # called after commits, of this process and of others
        self._listening = Listening(self.store, self._heard)

    def forked(self) -> None:
        """In a forked child: begin anew, as a client.  What was opened before belongs to the parent."""
        if self._services is not None:
            self._services.forked()
        if not self._lent and self.store.driver.heritable:
            self.store = open_store(self.url, pool_size=self.settings.pool_size)
        self.observer.forked()
        self._begin()

    # Opening and closing

    @property
    def services(self) -> Services:
        ask_database("the database")
        self.ensure_open()
        assert self._services is not None
        return self._services

    @property
    def codec(self) -> Codec:
        """How this app writes and reads payloads; needs no database."""
        if self._services is not None:
            return self._services.codec
        return Codec(max_payload=self.settings.max_payload, transform=self.settings.transform)

    @cached_property
    def version(self) -> str:
        """The version of the code of this app."""
        return self.settings.version or code_version(self.registry.all)

    @property
    def is_open(self) -> bool:
        return self._services is not None

    def open(self, *, worker: bool, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Open the database; with a worker, begin to work."""
        with self._guard:
            self._open(worker=worker, loop=loop)
            self._asked = True

    def enter(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Open it for a `with` block: with a worker, unless open() has said already what is wanted."""
        with self._guard:
            if not self._asked:
                self._open(worker=True, loop=loop)
            self._entered += 1

    def leave(self) -> None:
        """Leave a `with` block; the outermost one closes the app.

        A block that was closed inside, by `close()`, has nothing left to do.
        """
        with self._guard:
            if self._entered > 0:
                self._entered -= 1
                if self._entered == 0:
                    self.close()

    def ensure_open(self) -> None:
        """Open the database if it is not open; a `with` block that is entered later still starts a worker."""
        if self._services is None:
            self._open(worker=False)

    def _open(self, *, worker: bool, loop: asyncio.AbstractEventLoop | None = None) -> None:
        with self._guard:
            self.store.patience = self.settings.patience.total_seconds()
            if self._services is None:
                self.store.driver.patience = self.settings.patience.total_seconds()
                self._prepare_database()
                limits = self.settings.limits
                self.store.driver.keyed |= {name for name, given in limits.items() if given.keyed}
                self._services = self._make_services(loop)
                self.save_graphs()
            if worker:
                if self.worker is None:
                    watch_threads()
                    self._start_worker(self._services)
                self._listening.start()
                ids = self._input_ids()
                if self._sweeper is None and (self.settings.retention is not None or ids.wanted):
                    self._sweeper = Sweeper(self.store, self.clock, self.settings.retention, ids)

    def _start_worker(self, services: Services) -> None:
        """Start a worker.  If that fails there is none, and the next `open` tries again."""
        worker = self._make_worker(services)
        try:
            self._patiently(lambda: self._declare_queues(worker))
            self._patiently(worker.register)
            self.worker = services.local = worker
            worker.start()
        except BaseException:
            self.worker = services.local = None
            worker.stop()
            raise

    def queues_changed(self) -> None:
        """Limits were changed here: our worker looks at once, others with their next heartbeat."""
        worker = self.worker
        if worker is not None:
            found = self.store.queues()
            worker.limited.learn({queue.name: queue.limits.keyed for queue in found if queue.limited})
            worker.poke()

    def _declare_queues(self, worker: Worker) -> None:
        """Store the limits of our queues, and tell the worker which queues have limits."""
        found = self.store.declare_queues(self.settings.limits, now=self.clock.now())
        worker.limited.learn({queue.name: queue.limits.keyed for queue in found if queue.limited})

    def close(self) -> None:
        """Drain the worker and close the database; the engine can be opened again."""
        with self._guard:
            services, worker = self._services, self.worker
            self.store.patience = 0.0  # nothing that reads keeps us from closing
            with ExitStack() as parts:  # in the reverse order; all of them, whatever one of them raises
                parts.callback(self._closed)
                parts.callback(self.store.close)
                if services is not None:
                    parts.callback(services.close)
                parts.callback(self.observer.rest)
                parts.callback(self.waiters.close)
                if services is not None:
                    parts.callback(services.committer.close)
                    parts.callback(setattr, services, "local", None)
                if worker is not None:
                    parts.callback(worker.stop)
                if self._sweeper is not None:
                    parts.callback(self._sweeper.stop)
                parts.callback(self._listening.stop)

    def _closed(self) -> None:
        self._services = self.worker = self._sweeper = None
        self._asked = False
        self._entered = 0

    def adjust(self, *, serve: Sequence[str] = (), **changes: Any) -> None:
        """Change settings before the engine opens; its worker takes only from the queues in `serve`."""
        if self.is_open:
            raise ConfigurationError("the app is already open; change its settings before it is opened")
        self.settings = msgspec.structs.replace(self.settings, **changes)
        declared = self.settings.queue_names
        self.served = tuple(declared_queue(name, declared) for name in serve) or declared

    def migrate(self) -> list[str]:
        refuse_missing_folder(self.url)
        done: list[str] = self._patiently(lambda: self.store.migrate(now=self.clock.now()))
        return done

    def _prepare_database(self) -> None:
        refuse_missing_folder(self.url)
        migrate = self.settings.migrate
        if migrate or (migrate is None and self.store.dialect == "sqlite"):
            self.migrate()
        else:
            self._patiently(self.store.check_schema)

    def save_graphs(self) -> None:
        """Store the graphs of our classes, so that every process can draw and verify their runs."""
        plans = [plan for plan in self.registry.plans if not plan.abstract]
        if plans:
            texts = {plan.graph.signature: structure_text(plan.graph.document) for plan in plans}
            self._patiently(lambda: self.store.save_graphs(texts))

    def _patiently(self, action: Callable[[], Any]) -> Any:
        """Do it, waiting a while for a database that is not up yet."""
        deadline = time.monotonic() + self.settings.patience.total_seconds()
        wait = 0.1
        while True:
            try:
                return action()
            except Exception as error:
                if self.store.driver.trouble(error) is not Trouble.GONE:
                    raise
                if time.monotonic() + wait > deadline:
                    if isinstance(error, DatabaseUnavailable):
                        raise
                    raise DatabaseUnavailable(self.store.driver.name, str(error).strip()) from error
            time.sleep(wait)
            wait = min(wait * 2, 2.0)

    def _make_services(self, loop: asyncio.AbstractEventLoop | None) -> Services:
        committer = Committer(
            self.store,
            patience=self.settings.patience.total_seconds(),
            helpers_wanted=lambda: self.worker is None or self.worker.saturated(),
            slots=lambda: self.worker,
            on_commit=self._committed,
            observer=self.observer,
        )
        if loop is not None:
            committer.lead_on(loop)
        return Services(
            store=self.store,
            committer=committer,
            clock=self.clock,
            codec=self.codec,
            registry=self.registry,
            queues=self.settings.queue_names,
            heroes=self.heroes,
            version=self.version,
            on_error=self.settings.on_error,
            lenient=self.settings.on_drift == "warn",
            observer=self.observer,
            loop=Loop(loop, committer.lead_on),
        )

    def _make_worker(self, services: Services) -> Worker:
        return Worker(
            services,
            queues=self.served,
            concurrency=self.settings.concurrency,
            lease=span_micros(self.settings.lease),
            grace=self.settings.grace.total_seconds(),
            max_recoveries=self.settings.max_recoveries,
            missing_after=span_micros(self.settings.missing_after),
            duties=Firing(services, self.declarations, self._canceled),
        )

    def _canceled(self, runs: Sequence[str]) -> None:
        """A later firing of their schedule has replaced these runs."""
        for run in runs:
            self._tell(run, "canceled")
        self.waiters.ended([(run, RunEnd(state=RunState.CANCELED)) for run in runs])

    # News, from this process and from others

    def follow(self, told: Callable[[], None]) -> Callable[[], None]:
        """Call `told` after each commit of this process and each notification of another; opens the app.

        It is called often, in any thread, and must return at once.  Call what this returns to end it.
        """
        _ = self.services
        followers = self._followers
        followers.append(told)
        self._listening.start()
        return lambda: followers.remove(told) if told in followers else None

    def _tell_followers(self) -> None:
        for told in self._followers:
            told()

    def _committed(self, operations: Sequence[Operation], applied: Applied) -> None:
        self._tell_followers()
        if self.observer.active and self._services is not None:
            self._reporter.committed(operations, applied, self._services.threads.submit)
        ends, starts, others = _consequences(operations, applied.answers)
        ends += applied.decided.ends.items()
        if ends:
            self.waiters.ended(ends)
        for bound, run_id, sequence, state in applied.decided.states:
            bound.remember(run_id, sequence, state)
        for start, answer in starts:
            self._begin_started(start, answer)
        if self.worker is not None:
            self._tell_worker(self.worker, others, applied)

    def _tell_worker(self, worker: Worker, operations: Sequence[Operation], applied: Applied) -> None:
        """What a commit means for our worker: what it begins, looks for, and waits for."""
        if applied.leased:
            worker.deliver([claimed_of(row, run) for row, run in applied.leased])
        if applied.made_ready:
            worker.poke()
        if applied.decided.events:
            worker.projector.poke()
        if applied.decided.due is not None:
            worker.expect(applied.decided.due)
        sent_to = {operation.run_id for operation in operations if isinstance(operation, Send)}
        if sent_to:
            worker.tell(dict.fromkeys(sent_to))
        for operation in operations:
            if isinstance(operation, Start) and (deadline := first_deadline(operation)) is not None:
                worker.expect_deadline(deadline)
            if (due := due_of(operation)) is not None:
                worker.expect(due)

    def _heard(self, payload: str) -> None:
        """Something happened elsewhere.  An empty payload does not say what."""
        try:
            news: dict[str, Any] = msgspec.json.decode(payload) if payload else {"work": True}
        except msgspec.DecodeError:  # cut off on its way
            news = {"work": True}
        runs: list[str] | None = news.get("runs")
        self._tell_followers()
        if runs is None or runs:
            self.waiters.heard()
        if self.worker is not None:
            if news.get("work"):
                self.worker.poke()
                self.worker.projector.poke()
            if runs:
                held = self.worker.held_runs().intersection(runs)
                self.worker.tell({run: self._interrupt(run) for run in held})

    def _interrupt(self, run_id: str) -> str | None:
        state = self.store.run(run_id).state
        return state if state in (RunState.PAUSED, RunState.CANCELED) else None

    # Starting

    def prepare(
        self, definition: Any, calls: Sequence[tuple[tuple[Any, ...], dict[str, Any]]], options: Options
    ) -> Start:
        """The operation that starts these runs; what fits is leased to our worker."""
        self.store.refuse_inside("start")
        start = self.planned(definition, calls, options)
        if replaying():
            return start
        self.services.lease(start.executions)
        # Notify other workers when this one has no free slot.
        start.remote = any(row.state == ExecutionState.READY for row in start.executions)
        return start

    def planned(
        self, definition: Any, calls: Sequence[tuple[tuple[Any, ...], dict[str, Any]]], options: Options
    ) -> Start:
        """The rows of these runs, not leased."""
        hero = None if options.hero is None else self.heroes.name(options.hero)
        # A replay only asks which runs there would be: that needs no database.
        services = self._make_services(None) if replaying() else self.services
        start = plan_runs(services, definition, calls, options, hero)
        return with_attributes(start, options.attributes) if options.attributes else start

    def started(self, start: Start, answers: list[Started] | None) -> list[RunRow]:
        """The runs, after the commit; without answers, it is unknown whether they were committed."""
        leased = [row for row in start.executions if row.state == ExecutionState.EXECUTING]
        if answers is None:
            local = self.services.local
            if local is not None:
                local.unconfirmed(tokens_of(leased))
            return []
        created = {answer.id for answer in answers if answer.created}
        performing = {row.run_id for row in leased}
        return [
            fresh_row(run, run.id in performing, start.ends.get(run.id))
            if run.id in created
            else self.store.run(run.id)
            for run in start.runs
        ]

    def _begin_started(self, start: Start, answers: list[Started]) -> None:
        """Begin what is leased to us of runs that were just committed.

        In the thread that has committed them: for a caller in another thread, that saves a switch of
        threads before the code begins, and it begins also if the caller is interrupted.
        """
        created = {answer.id for answer in answers if answer.created}
        if start.chosen:
            self.waiters.begun(created)
        local = self._services.local if self._services is not None else None
        if local is None:
            return
        for run_id in created & start.compiled.keys():
            self.services.run_graphs.keep(run_id, start.compiled[run_id])
        leased = [row for row in start.executions if row.state == ExecutionState.EXECUTING]
        mine = [row for row in leased if row.run_id in created]
        if len(mine) < len(leased):
            local.give_back(tokens_of(leased) - tokens_of(mine))
        if mine:
            runs = {run.id: run for run in start.runs}
            local.deliver([claimed_of(row, runs[row.run_id]) for row in mine])

    def begun(self, start: Start, *, new: bool) -> None:
        """Runs were written by a verb of their own: report new ones, and expect what is due later."""
        if new:
            self.waiters.begun(run.id for run in start.runs)
            if self.observer.active:
                self._reporter.started(start.runs)
        if self.worker is not None:
            if (deadline := first_deadline(start)) is not None:
                self.worker.expect_deadline(deadline)
            if (due := due_of(start)) is not None:
                self.worker.expect(due)

    def fresh(self, start: Start) -> list[RunRow]:
        """Runs that were just planned, as they will be."""
        self.waiters.begun(run.id for run in start.runs)
        self.waiters.expect(run.id for run in start.runs)
        return [fresh_row(run, False) for run in start.runs]

    # Retention

    def remove_old(self, age: timedelta, limit: int | None = None) -> int:
        """Remove what ended longer ago, at most `limit`, and forget input ids; return how many runs went."""
        self.store.refuse_inside("app.gc()")
        before = self.clock.now() - span_micros(check_age("app.gc()", "older_than", age))
        if limit is not None:
            check_count("app.gc()", "limit", limit)
        _ = self.services
        self._input_ids().forget()
        return remove_expired(self.store, before, limit=limit)

    def sweep(self) -> None:
        """Remove what is past its retention, where there is one; a worker does so by itself."""
        if self._sweeper is not None:
            self._sweeper.sweep()

    def _input_ids(self) -> InputIds:
        return InputIds(self.store, self.clock, lambda: self.registry.deciders)

    # Waiting for results

    def row(self, run_id: str) -> RunRow:
        _ = self.services
        return self._patiently(lambda: self.store.run(run_id))  # type: ignore[no-any-return]

    def outcome(self, row: RunRow, end: RunEnd) -> Any:
        """The value of a run that ended like this; raises how it failed."""
        return outcome_of(self.services.codec, self.returns(row.type), row, end)

    def wait_for(
        self,
        row: RunRow,
        wake: Callable[[Waiter, RunEnd], None],
        *,
        wants_pauses: bool,
        fresh: bool,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> Waiter:
        """Call `wake` with the run's end, once; `waiters.remove` stops that."""
        [waiter] = self.wait_for_all([(row, fresh)], wake, wants_pauses=wants_pauses, loop=loop)
        return waiter

    def wait_for_all(
        self,
        runs: Iterable[tuple[RunRow, bool]],
        wake: Callable[[Waiter, RunEnd], None],
        *,
        wants_pauses: bool,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> list[Waiter]:
        """The same for many runs, each with whether it was just started here and not asked for since."""
        ask_database("the result of a run")
        worker = self.worker
        if worker is None:
            self._listening.start()
        alone = worker is not None and worker.alone
        held = worker.held_runs() if worker is not None and not alone else ()
        served: dict[tuple[str, str, str | None], bool] = {}
        waiters: list[Waiter] = []
        for row, fresh in runs:
            kind = row.type, row.queue, row.pin
            ours = served.get(kind)
            if ours is None:
                serves = worker is not None and worker.serves(row.type, row.queue)
                ours = served[kind] = serves and row.pin in (None, self.version)
            # One that our worker does not hold may be over already: another was quicker.
            known = fresh and (alone or row.id in held)
            waiters.append(Waiter(row, wake, wants_pauses=wants_pauses, ours=ours, fresh=known, loop=loop))
        self.waiters.add(*waiters)
        return waiters

    def _alone(self) -> bool:
        return self.worker is not None and self.worker.alone

    def returns(self, type: str) -> Any:
        """The type that a run's result is decoded to."""
        found = self.registry.find(type)
        return found.returns if isinstance(found, FunctionWorkflow) else Any

    # Fork

    def fork(self, run_id: str, from_step: str | None, options: Options) -> Start:
        """A new run that keeps everything before that step; without one, everything that holds."""
        self.store.refuse_inside("app.fork()")
        if from_step is not None:
            check_node("app.fork()", "from_step", from_step)
        row = self.row(run_id)
        if row.kind == DECIDER:
            raise InvalidState(
                "fork", run_id, "an instance of a decider", "its state at any event: app.state_at"
            )
        if row.kind == "function":
            start = plan_fork(self.services, row, kept_of(self.store, row, from_step), options)
        else:
            start = plan_graph_fork(self.services, row, from_step, options)
        return with_attributes(start, row.attributes)


def _consequences(
    operations: Sequence[Operation], answers: Sequence[Any]
) -> tuple[list[tuple[str, RunEnd]], list[tuple[Start, list[Started]]], list[Operation]]:
    """The runs that ended with a commit, the starts, and the operations that concern a worker."""
    ends: list[tuple[str, RunEnd]] = []
    starts: list[tuple[Start, list[Started]]] = []
    others: list[Operation] = []
    for operation, answer in zip(operations, answers, strict=True):
        if type(operation) is Record:  # most of a batch, and nothing follows from it
            continue
        if type(operation) is Settle:
            if type(answer) is Settled and answer.ended is not None:
                ends.append((operation.key.run_id, answer.ended))
            if operation.plan.again is None:
                continue
        elif type(operation) is Decide:
            if type(answer) is Decided and answer.ended is not None:
                ends.append((operation.run_id, answer.ended))
            continue
        elif type(operation) is Start and isinstance(answer, list):
            starts.append((operation, answer))
        others.append(operation)
    return ends, starts, others
