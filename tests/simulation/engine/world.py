"""A simulated world: processes with a worker each, clients, faults; and what must hold.

`simulate(seed)` plays one seed.  Faults happen during the first seconds.  Then they stop, every process
that is gone comes back, and everything that was started has to end within a bounded virtual time.
"""

from __future__ import annotations

import logging
import random
import sqlite3
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from detent import App
from detent.app.engine import Engine
from detent.app.includes import collect
from detent.app.settings import checked_settings
from detent.definitions.context import watch_threads
from detent.errors import DatabaseUnavailable, DetentError, InvalidState, ResultTimeout
from detent.execution.registry import Registry, Served
from detent.kernel.operations import Settle, Settled, Verdict
from detent.stores.batch.apply import Applied
from detent.stores.store import Store

from .database import Files, SimDriver, SimListener
from .faults import Faults, drawn
from .loop import SimLoop, forget
from .patching import patched
from .primitives import Lock, Primitives
from .scheduler import SECOND, Killed, Process, Scheduler, Stalled, Thread
from .workloads import INCLUDED, MAKERS, Account, Job, Put, here

FAULTY = 12 * SECOND  # how long faults happen
LEASE = 6.0  # seconds
BOUND = 120 * SECOND  # within this time after the last fault, everything has ended
UNKNOWN_FOR = 30 * SECOND  # how long a live worker may hold what it does not run
HEALTHY_FOR = 5 * SECOND  # a worker that ran so long without a fault of its own must not be rescued
STEPS = 400_000
LOGS = [logging.getLogger("detent"), logging.getLogger("asyncio")]


class Violation(AssertionError):
    """Something that must hold did not; the trace tells how it came to that."""


class Interrupted(BaseException):
    """What a signal handler, or a soft time limit, raises in a waiting thread."""


class Instance:
    """One life of a process: from its start until it is killed or closed."""

    def __init__(self, name: str, process: Process, app: App, driver: SimDriver) -> None:
        self.name = name
        self.process = process
        self.app = app
        self.driver = driver
        self.closing = False
        self.troubled_at = -HEALTHY_FOR  # when a fault last kept it from showing that it lives
        self.away_until = 0  # the database cannot be reached


class World:
    def __init__(self, seed: int, path: Path, faults: Faults | None = None) -> None:
        source = random.Random(f"world-{seed}")
        self.seed = seed
        self.source = source
        self.faults = drawn(source) if faults is None else faults
        self.path = path
        self.scheduler = Scheduler(seed, preempt=self.faults.preempt)
        self.primitives = Primitives(self.scheduler)
        self.file_lock = Lock(self.scheduler)
        self.writer: Any = None
        self.locks: dict[str, Process] = {}
        self.listeners: dict[str, SimListener] = {}
        self.instances: dict[str, Instance] = {}
        self.loops: list[SimLoop] = []
        self.drivers: list[SimDriver] = []
        self.trace: list[str] = []
        self.quiet = False  # no more faults
        self.settled: dict[tuple[str, str, int], str] = {}
        self.unknown: dict[str, int] = {}  # token: since when its worker does not know of it
        self.violation: Violation | None = None
        self.nature = self.scheduler.process("world")
        self.looker = Files.looker
        self.jobs = [
            source.choice(MAKERS)(f"run-{n}", source.randint(1, 50)) for n in range(source.randint(1, 3))
        ]
        self.puts = [source.randint(1, 9) for _ in range(source.choice([0, 0, 2, 4]))]
        self.confirmed: set[str] = set()
        names = ["p1", "p2", "p3"][: source.choice([1, 2, 2, 2, 3])]
        self.names = names
        skew = round(self.faults.skew * SECOND)
        self.skews = {name: source.randint(-skew, skew) for name in names}
        self.clients: dict[str, str] = {}  # which process starts what
        for job in self.jobs:
            self.clients[job.id] = source.choice(names)
        self.clients["account"] = source.choice(names)

    # -- The trace ---------------------------------------------------------------------------------

    def tell_trace(self, who: str, what: str) -> None:
        self.trace.append(f"{self.scheduler.now / SECOND:11.6f}  {who:<24} {what}")

    def note(self, what: str) -> None:
        current = self.scheduler.current
        who = "-" if current is None else f"{current.process.name}/{current.name.removeprefix('detent-')}"
        self.tell_trace(who, what)

    def violate(self, what: str) -> None:
        self.note(f"VIOLATION: {what}")
        if self.violation is None:
            self.violation = Violation(what)

    # -- The database, as processes see it ---------------------------------------------------------

    def call(self, process: Process, what: str) -> None:
        """A process calls the database: that takes time, and may go wrong before anything is done."""
        self._alive(process)
        faults, chance = self.faults, self.scheduler.random
        instance = self.instances.get(process.name.partition(".")[0])
        span = chance.randint(50, 900)
        if not self.quiet:
            if faults.slow and chance.random() < faults.slow:
                span = chance.randint(1, 2000) * 1000
                if instance is not None:
                    instance.troubled_at = max(instance.troubled_at, self.scheduler.now + span)
            if faults.crash and chance.random() < faults.crash:
                self.kill(process, f"at {what}")
            if faults.stop and chance.random() < faults.stop:
                self.stop(process, chance.choice([1, 3, 10]) * SECOND, f"at {what}")
        self.scheduler.sleep(span)
        self._alive(process)
        if self.quiet:
            return
        away = instance is not None and instance.away_until > self.scheduler.now
        if away or (faults.error and chance.random() < faults.error):
            self._trouble(process, f"error at {what}")
            raise _gone(f"simulated: no answer to {what}")

    def called(self, process: Process, what: str) -> None:
        """The database has committed: now the answer may be lost."""
        faults, chance = self.faults, self.scheduler.random
        if self.quiet:
            return
        if faults.crash and chance.random() < faults.crash:
            self.kill(process, f"after {what}")
        if faults.lost and chance.random() < faults.lost:
            self._trouble(process, f"answer lost after {what}")
            raise _gone(f"simulated: the answer to {what} was lost")

    def _alive(self, process: Process) -> None:
        if self.scheduler.over:
            raise Killed
        if process.dead:
            self.scheduler.block()

    def _trouble(self, process: Process, what: str) -> None:
        self.note(f"FAULT {what}")
        instance = self.instances.get(process.name.partition(".")[0])
        if instance is not None:
            instance.troubled_at = max(instance.troubled_at, self.scheduler.now)

    def tell(self, process: Process, payloads: Sequence[str]) -> None:
        """News for the other processes; some come late."""
        for name in sorted(self.listeners):
            if name != process.name:
                delay = self.scheduler.random.choice([200, 5_000, 50_000, 1_500_000])
                self._later(delay, lambda name=name: self._hear(name, payloads))  # type: ignore[misc]

    def _hear(self, name: str, payloads: Sequence[str]) -> None:
        listener = self.listeners.get(name)
        if listener is not None:
            listener.hear(payloads)

    def _later(self, delay: int, action: Callable[[], None]) -> None:
        def act() -> None:
            self.scheduler.sleep(delay)
            action()

        self.nature.spawn("later", act)

    # -- Processes ---------------------------------------------------------------------------------

    def open(self, name: str, life: int = 1) -> None:
        process = self.scheduler.process(f"{name}.{life}", skew=self.skews[name])
        process.thread_fault = lambda thread: self._thread_fault(process, thread)
        self.tell_trace(process.name, "STARTS")
        process.spawn("main", lambda: self._main(name, life, process))

    def _main(self, name: str, life: int, process: Process) -> None:
        driver = SimDriver(self, process, self.faults)
        self.drivers.append(driver)
        store = self._watched(Store(driver, dialect="sqlite"))
        app = App.__new__(App)
        settings = checked_settings(
            {"migrate": False, "lease": LEASE, "patience": 5.0, "max_recoveries": 1000, "concurrency": 4}
        )
        app.engine = Engine(f"sqlite:///{self.path}", Registry(_collected()), settings, store)
        instance = self.instances[name] = Instance(name, process, app, driver)
        while True:
            try:
                app.open(worker=True)
                break
            except (DatabaseUnavailable, RuntimeError, sqlite3.Error) as error:
                self.note(f"could not open: {error}")
                try:
                    app.close()
                except (DetentError, RuntimeError, sqlite3.Error, AssertionError) as broken:
                    self.note(f"could not close: {broken}")
                self.scheduler.sleep(SECOND // 2)
        self.note("open")
        for job in self.jobs:
            if self.clients[job.id] == name and job.id not in self.confirmed:
                self._client(instance, job.id, lambda job=job: self._run(app, job))  # type: ignore[misc]
        if self.clients["account"] == name and self.puts and "account" not in self.confirmed:
            self._client(instance, "account", lambda: self._put(app))

    def _client(self, instance: Instance, name: str, action: Callable[[], None]) -> None:
        def persist() -> None:
            while not instance.closing:
                try:
                    action()
                    self.confirmed.add(name)
                    return
                except (Interrupted, DatabaseUnavailable, RuntimeError, sqlite3.Error) as error:
                    self.note(f"client of {name}: {type(error).__name__}: {error}; tries again")
                with suppress(Interrupted):
                    self.scheduler.sleep(SECOND // 5)

        instance.process.spawn(f"client-{name}", persist).interruptible = True

    def _run(self, app: App, job: Job) -> None:
        run = app.options(id=job.id).start(job.definition, *job.args, **(job.kwargs or {}))
        self.note(f"started {job.id}")
        for number, value in enumerate(job.messages):
            with suppress(InvalidState):  # sent before, and the run has finished by that
                run.send("go", value, id=f"{job.id}-{number}")
        while True:
            try:
                found = run.result(timeout=10.0)
                break
            except ResultTimeout:
                continue
        if job.kwargs is None and found != job.result:
            self.violate(f"the result of {job.id} is {found!r}, not {job.result!r}")
        self.note(f"result of {job.id}: {found!r}")

    def _put(self, app: App) -> None:
        for number, amount in enumerate(self.puts):
            app.execute(Account, Put("account", amount), input_id=f"put-{number}")
            self.note(f"put {amount}")

    def kill(self, process: Process, why: str) -> None:
        """As kill -9 does it.  Does not return in a thread of that process."""
        name, _, life = process.name.partition(".")
        self.note(f"FAULT {process.name} is killed {why}")
        process.kill()
        instance = self.instances.get(name)
        if instance is not None and instance.process is process:
            instance.driver.crash()
            instance.closing = True
        for worker in [worker for worker, holder in self.locks.items() if holder is process]:
            del self.locks[worker]
        self.listeners.pop(process.name, None)
        delay = self.scheduler.random.choice([0.1, 1.0, 5.0, 20.0])
        self._later(round(delay * SECOND), lambda: self.open(name, int(life) + 1))
        current = self.scheduler.current
        if current is not None and current.process is process:
            self.scheduler.block()

    def stop(self, process: Process, span: int, why: str) -> None:
        self.note(f"FAULT {process.name} is stopped for {span / SECOND:g} s {why}")
        process.stop(span)
        # One that is stopped in the middle of a transaction keeps all others from writing.
        writes = self.writer is not None and self.writer.driver.process is process
        for instance in self.instances.values():
            if writes or instance.process is process:
                instance.troubled_at = max(instance.troubled_at, self.scheduler.now + span)

    def _thread_fault(self, process: Process, thread: str) -> bool:
        chance = self.faults.no_thread
        if self.quiet or not chance or self.scheduler.random.random() >= chance:
            return False
        self._trouble(process, f"thread {thread} cannot be started")
        return True

    # -- What happens by itself --------------------------------------------------------------------

    def befall(self) -> None:
        """In a thread of its own: faults that come with time."""
        faults, chance = self.faults, self.scheduler.random
        while self.scheduler.now < FAULTY and not self._all_confirmed():
            self.scheduler.sleep(SECOND // 4)
            per = [
                (faults.lost_lock, self._lose_lock),
                (faults.interrupt, self._interrupt),
                (faults.restart, self._restart),
                (faults.outage, self._outage),
            ]
            for rate, fault in per:
                if rate and chance.random() < rate / 4:
                    fault()
        self.quiet = True
        self.note("no more faults")
        for process in self.scheduler.processes:
            process.stopped_until = min(process.stopped_until, self.scheduler.now)
            self.scheduler.at(self.scheduler.now, process)

    def _living(self) -> list[Instance]:
        return [self.instances[n] for n in sorted(self.instances) if not self.instances[n].process.dead]

    def _lose_lock(self) -> None:
        if self.locks:
            worker = self.scheduler.random.choice(sorted(self.locks))
            self.note(f"FAULT {self.locks.pop(worker).name} loses the session that holds its lock")

    def _interrupt(self) -> None:
        waiting: list[Thread] = [
            thread
            for instance in self._living()
            for thread in instance.process.threads
            if thread.interruptible and thread.waits and not thread.over
        ]
        if waiting:
            thread = self.scheduler.random.choice(waiting)
            self.note(f"FAULT an exception is raised in {thread.process.name}/{thread.name}")
            self.scheduler.interrupt(thread, Interrupted("simulated"))

    def _outage(self) -> None:
        living = self._living()
        if living:
            instance = self.scheduler.random.choice(living)
            span = self.scheduler.random.choice([0.3, 2.0, 8.0])
            self.note(f"FAULT the database is away for {instance.process.name}, {span:g} s")
            instance.away_until = self.scheduler.now + round(span * SECOND)

    def _restart(self) -> None:
        """A process is closed in good order; a new one takes its place."""
        living = [
            instance for instance in self._living() if instance.app.engine.worker and not instance.closing
        ]
        if not living:
            return
        instance = self.scheduler.random.choice(living)
        instance.closing = True
        self.note(f"FAULT {instance.process.name} is closed")

        def close() -> None:
            try:
                instance.app.close()
            except (DetentError, RuntimeError, sqlite3.Error) as error:
                self.note(f"closing raised {type(error).__name__}: {error}")
            self.note("closed")
            self.kill(instance.process, "behind its close")

        instance.process.spawn("closer", close)

    # -- What user code tells ----------------------------------------------------------------------

    def body(self, run: str, key: str) -> float:
        """A body begins: what is recorded must not run again."""
        rows = self.looker.execute(
            "SELECT state FROM detent_steps WHERE run_id = ? AND step_key = ?", (run, key)
        ).fetchall()
        rows += self.looker.execute(
            "SELECT state FROM detent_executions WHERE run_id = ? AND node = ? AND state = 'completed'"
            " AND outcome = 'success'",
            (run, key),
        ).fetchall()
        if any(state in ("completed", "failed") for (state,) in rows) and self._holds(run):
            self.violate(f"the body of {key} of {run} runs again, though it is recorded")
        self.note(f"body of {run}:{key}")
        return self.scheduler.random.choice([0.0, 0.001, 0.05, 0.4])

    def _holds(self, run: str) -> bool:
        """Whether the worker of this process has a lease of that run.

        One that was stopped for long does not know yet that it has lost its leases.
        """
        current = self.scheduler.current
        assert current is not None
        worker = self.instances[current.process.name.partition(".")[0]].app.engine.worker
        rows = self.looker.execute(
            "SELECT worker FROM detent_executions WHERE run_id = ? AND state = 'executing'", (run,)
        ).fetchall()
        return worker is not None and (worker.id,) in rows

    def work(self, seconds: float) -> None:
        if seconds:
            self.scheduler.sleep(round(seconds * SECOND))

    # -- What must hold, at every commit -----------------------------------------------------------

    def _watched(self, store: Store) -> Store:
        """The store, with a look at what is committed through it."""
        apply, reap, claim = store.apply, store.reap, store.claim
        watched: Any = store

        def watched_apply(operations: Sequence[Any], **options: Any) -> Applied:
            names = " ".join(_shown(operation) for operation in operations)
            try:
                applied = apply(operations, **options)
            except BaseException as error:
                self.note(f"apply {names} -> {type(error).__name__}")
                raise
            self.note(f"apply {names} -> {' '.join(_answer(one) for one in applied.answers)}")
            self._check_settles(operations, applied.answers)
            repeated = 0.0 if self.quiet else self.faults.repeated
            if repeated and self.scheduler.random.random() < repeated:
                self.note("FAULT the batch arrives twice")
                with suppress(sqlite3.Error, DetentError):  # the second answer is not needed
                    self._check_settles(operations, apply(operations).answers)
            return applied

        def watched_reap(worker: str, **options: Any) -> Any:
            again = reap(worker, **options)
            self.note(f"reap {worker[-6:]} -> {None if again is None else len(again)}")
            if again is not None:
                self._check_rescue(worker)
            return again

        def watched_claim(worker: str, **options: Any) -> Any:
            claimed = claim(worker, **options)
            if claimed:
                self.note(f"claim -> {' '.join(f'{one.run_id}:{one.node}' for one in claimed)}")
            return claimed

        watched.apply, watched.reap, watched.claim = watched_apply, watched_reap, watched_claim
        return store

    def _check_settles(self, operations: Sequence[Any], answers: Sequence[Any]) -> None:
        for operation, answer in zip(operations, answers, strict=True):
            if isinstance(operation, Settle) and isinstance(answer, Settled):
                key = (operation.key.run_id, operation.key.node, operation.key.attempt)
                if answer.verdict is Verdict.APPLIED:
                    if key in self.settled:
                        self.violate(f"{key} settled twice: by {self.settled[key]} and {operation.token}")
                    self.settled[key] = operation.token

    def _check_rescue(self, worker: str) -> None:
        """No live worker is rescued: neither killed, nor stopped, nor cut off from the database lately."""
        current = self.scheduler.current
        for instance in self._living():
            mine = instance.app.engine.worker
            itself = current is not None and current.process is instance.process
            if mine is None or mine.id != worker or instance.closing or itself:
                continue
            now = self.scheduler.now
            if now - instance.troubled_at > HEALTHY_FOR:
                self.violate(f"{instance.process.name} lives, and its work was given to others")

    # -- What must hold, now and then --------------------------------------------------------------

    def look(self) -> None:
        """In a thread of its own: what a live worker holds, it runs."""
        while True:
            self.scheduler.sleep(5 * SECOND)
            known: dict[str, set[str]] = {}
            for instance in self._living():
                worker = instance.app.engine.worker
                if worker is not None and instance.process.stopped_until <= self.scheduler.now:
                    known[worker.id] = worker._known()
            rows = self.looker.execute(
                "SELECT worker, token, run_id, node FROM detent_executions WHERE state = 'executing'"
            ).fetchall()
            since = self.unknown
            self.unknown = {}
            for worker_id, token, run, node in rows:
                if token in known.get(worker_id, ()):
                    continue
                self.unknown[token] = since.get(token, self.scheduler.now)
                if self.scheduler.now - self.unknown[token] > UNKNOWN_FOR and self.quiet:
                    self.violate(f"{run}:{node} is held with token {token}, and nobody runs it")

    # -- The end -----------------------------------------------------------------------------------

    def done(self) -> bool:
        for thread in self.scheduler.failed:
            shown = "".join(traceback.format_exception(thread.error)).strip()
            self.violate(f"{thread.process.name}/{thread.name} ended with {shown}")
        if self.violation is not None:
            return True
        if not self.quiet or self.scheduler.steps % 64:
            return False
        return self._all_confirmed() and self._settled_down()

    def _all_confirmed(self) -> bool:
        wanted = {job.id for job in self.jobs} | ({"account"} if self.puts else set())
        return wanted <= self.confirmed

    def _settled_down(self) -> bool:
        [(active,)] = self.looker.execute(
            "SELECT count(*) FROM detent_executions"
            " WHERE state IN ('ready', 'timer', 'parked', 'held', 'executing')"
        ).fetchall()
        if active:
            return False
        if not self.puts:
            return True
        [(head,)] = self.looker.execute("SELECT coalesce(max(position), 0) FROM detent_events").fetchall()
        seen = self.looker.execute("SELECT position FROM detent_projections").fetchall()
        return bool(seen) and all(position == head for (position,) in seen)

    def check_end(self) -> None:
        """Everything that was started has ended, with the right result, and its effects are there once."""
        for job in self.jobs:
            row = self.looker.execute(
                "SELECT state, result, error FROM detent_runs WHERE id = ?", (job.id,)
            ).fetchone()
            if row is None or row[0] != "finished":
                self.violate(f"{job.id} did not finish: {row}")
                continue
            if job.kwargs is None and msgspec.json.decode(row[1]) != job.result:
                self.violate(f"the result of {job.id} is {row[1]}, not {job.result!r}")
            entries = self.looker.execute(
                "SELECT entry FROM sim_ledger WHERE run = ? ORDER BY entry", (job.id,)
            ).fetchall()
            if tuple(entry for (entry,) in entries) != tuple(sorted(job.ledger)):
                self.violate(f"the ledger of {job.id} has {entries}, not {job.ledger}")
        self._check_events()
        if self.violation is not None:
            for row in self.looker.execute(
                "SELECT run_id, node, attempt, state, worker, token, scheduled_for FROM detent_executions"
                " WHERE state IN ('ready', 'timer', 'parked', 'held', 'executing')"
            ).fetchall():
                self.note(f"left: {row}")

    def _check_events(self) -> None:
        rows = self.looker.execute(
            "SELECT sequence, type FROM detent_events WHERE run_id = 'account:account' ORDER BY sequence"
        ).fetchall()
        if [sequence for sequence, _ in rows] != list(range(1, len(rows) + 1)):
            self.violate(f"the events have a gap: {rows}")
        found = [type for _, type in rows]
        if self.puts and (
            found.count("Added") != len(self.puts)
            or found.count("Receipted") != len(self.puts)
            or not 1 <= found.count("Rung") <= len(self.puts)
        ):
            self.violate(f"{len(self.puts)} inputs caused {found}")
        broken = self.looker.execute(
            "SELECT name, failures FROM detent_projections WHERE failures > 0"
        ).fetchall()
        if broken:
            self.violate(f"a projection is blocked: {broken}")

    def play(self) -> None:
        self.tell_trace("-", f"seed {self.seed}; faults: {self.faults}")
        shown = [f"{job.id}={getattr(job.definition, '__name__', '')}" for job in self.jobs]
        self.tell_trace("-", f"{' '.join(self.names)}; {' '.join(shown)}; {len(self.puts)} inputs")
        self.nature.spawn("faults", self.befall)
        self.nature.spawn("look", self.look)
        for name in self.names:
            self.open(name)
        self.scheduler.run(self.done, until=FAULTY + BOUND, steps=STEPS)
        if self.violation is None:
            self.check_end()

    def close(self) -> None:
        self.scheduler.close()
        for loop in self.loops:
            forget(loop)
        for driver in self.drivers:
            driver.crash()


@cache
def _collected() -> list[Served]:
    """What an app includes: the same in all processes.  It took a tenth of the time of a simulation."""
    return collect(INCLUDED)


class _Tracing(logging.Handler):
    def __init__(self, world: World) -> None:
        super().__init__(logging.WARNING)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage().splitlines()[0]
        if record.exc_info and record.exc_info[1] is not None:
            text += f" [{type(record.exc_info[1]).__name__}: {record.exc_info[1]}]".replace("\n", " ")
        self._world.note(f"log: {text}")


def _gone(text: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR
    error.sqlite_errorname = "SQLITE_IOERR"
    return error


def _shown(operation: Any) -> str:
    name = type(operation).__name__
    key = getattr(operation, "key", None)
    if key is not None and hasattr(key, "run_id"):
        return f"{name}({key.run_id}:{key.node}/{key.attempt})"
    if name == "Record":
        return f"Record({','.join(f'{one.run_id}:{one.key}' for one in operation.steps)})"
    if name == "Start":
        return f"Start({','.join(run.id for run in operation.runs)})"
    return name


def _answer(answer: Any) -> str:
    verdict = getattr(answer, "verdict", None)
    if verdict is not None:
        return str(verdict)
    if isinstance(answer, list):
        return ",".join("created" if getattr(one, "created", False) else "existed" for one in answer)
    return type(answer).__name__


def simulate(seed: int, *, faults: Faults | None = None) -> World:
    """Play one seed; the world that comes back tells what happened."""
    watch_threads()
    world = World(seed, Files.path(), faults)
    here.world = world
    Files.now = staticmethod(lambda: world.scheduler.now)
    handler = _Tracing(world)
    propagated = [log.propagate for log in LOGS]
    for log in LOGS:
        log.addHandler(handler)
        log.propagate = False
    try:
        with patched(world.scheduler, world.primitives, world.loops, seed):
            try:
                world.play()
            except Stalled as error:
                world.violate(str(error))
            finally:
                world.close()
    finally:
        for log, propagate in zip(LOGS, propagated, strict=True):
            log.removeHandler(handler)
            log.propagate = propagate
    return world
