"""The database of a simulation: a real SQLite file, whose calls take virtual time and may go wrong.

Every simulated process has connections of its own.  Writers of several processes wait for each other on
the scheduler instead of in SQLite, which would block them all.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from detent.kernel.rows import Step, WorkerRow
from detent.stores.driver import LOCK_WAIT, Listener, Liveness, Tx
from detent.stores.sql.queries import build_queries
from detent.stores.sql.statements import build
from detent.stores.sqlite.driver import SqliteDialect, SqliteDriver
from detent.stores.store import Store

from .primitives import BEGINNING
from .scheduler import SECOND, Killed, Process

FOLDER = "/dev/shm" if Path("/dev/shm").is_dir() else None  # in memory, where there is such a folder

if TYPE_CHECKING:
    from .faults import Faults
    from .world import World


class SimDialect(SqliteDialect):
    """SQLite with a server's clock, as PostgreSQL has it: machines whose clocks differ share one."""

    server_now = "sim_now()"


class SimConnection(sqlite3.Connection):
    """Gives up the write lock when it is closed.

    It is kept for the next connect: opening one, and preparing its statements, would take more time
    than all the rest.
    """

    driver: SimDriver | None = None

    def close(self) -> None:
        if self.driver is None:
            return
        if self.in_transaction:
            self.rollback()
        self.isolation_level = None
        self.driver.unlock(self)
        self.driver = None
        Files.idle.append(self)


class Files:
    """The database file that simulations of this process use, one after the other."""

    idle: ClassVar[list[SimConnection]] = []
    folder: ClassVar[tempfile.TemporaryDirectory[str] | None] = None
    looker: ClassVar[sqlite3.Connection]
    now: ClassVar[Callable[[], int]]  # the virtual time of the simulation under way
    _tables: ClassVar[list[str]] = []

    @classmethod
    def path(cls) -> Path:
        """The path of a database that has Detent's tables, and nothing in them."""
        if cls.folder is None:
            cls.folder = tempfile.TemporaryDirectory(prefix="detent-sim-", dir=FOLDER)
            template, path = Path(cls.folder.name) / "template.db", Path(cls.folder.name) / "sim.db"
            make_template(template)
            shutil.copyfile(template, path)
            cls.looker = sqlite3.connect(path, isolation_level=None)
            cls.looker.execute("PRAGMA synchronous = OFF")
            cls.looker.execute("ATTACH ? AS template", (str(template),))
            rows = cls.looker.execute("SELECT name FROM main.sqlite_master WHERE type = 'table'").fetchall()
            cls._tables = sorted(name for (name,) in rows)
        cls._empty()
        return Path(cls.folder.name) / "sim.db"

    @classmethod
    def _empty(cls) -> None:
        cls.looker.execute("BEGIN IMMEDIATE")
        for table in cls._tables:
            cls.looker.execute(f"DELETE FROM main.{table}")
            cls.looker.execute(f"INSERT INTO main.{table} SELECT * FROM template.{table}")
        cls.looker.execute("COMMIT")


class SimDriver(SqliteDriver):
    """SQLite for one simulated process."""

    statements = build(SimDialect())
    queries = build_queries(SimDialect())

    def __init__(self, world: World, process: Process, faults: Faults) -> None:
        super().__init__(str(world.path))
        self._world = world
        self.process = process
        self._faults = faults
        self.connections: list[SimConnection] = []

    def connect(self) -> sqlite3.Connection:
        self._world.call(self.process, "connect")
        connection = Files.idle.pop() if Files.idle else self._connect()
        connection.driver = self
        self.connections.append(connection)
        return connection

    def _connect(self) -> SimConnection:
        connection = sqlite3.connect(
            self.path,
            timeout=0,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=512,
            factory=SimConnection,
        )
        connection.execute("PRAGMA synchronous = OFF")
        # Once: to define it again would make SQLite prepare all statements anew.
        connection.create_function("sim_now", 0, lambda: BEGINNING + Files.now())
        return connection

    def verify(self, connection: Any) -> None:
        """The file stays where it is."""

    def begin(self, connection: sqlite3.Connection, *, patient: bool = True) -> None:
        self._world.call(self.process, "begin")
        self.writes += 1
        self._lock(connection, None if patient else LOCK_WAIT)
        try:
            connection.execute("BEGIN IMMEDIATE")
        except BaseException:
            self.unlock(connection)
            raise

    def commit(self, connection: sqlite3.Connection) -> None:
        self._world.call(self.process, "commit")
        connection.commit()
        self.unlock(connection)
        self._world.called(self.process, "commit")

    def commit_for_user(self, connection: sqlite3.Connection) -> bool:
        self._world.call(self.process, "commit")
        committed = super().commit_for_user(connection)
        self.unlock(connection)
        self._world.called(self.process, "commit")
        return committed

    def rollback(self, connection: sqlite3.Connection) -> None:
        super().rollback(connection)
        self.unlock(connection)

    def _record(self, tx: Tx, worker: str, steps: list[Step]) -> bool:
        self._world.call(self.process, "record")
        self._lock(tx.connection, LOCK_WAIT)
        try:
            written = super()._record(tx, worker, steps)
        finally:
            self.unlock(tx.connection)
        self._world.called(self.process, "record")
        return written

    def _lock(self, connection: Any, timeout: float | None) -> None:
        lock = self._world.file_lock
        if not lock.acquire(timeout=-1 if timeout is None else timeout):
            busy = sqlite3.OperationalError("database is locked")
            busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise busy
        if self.process.dead:  # killed while it waited
            lock.release()
            raise Killed
        self._world.writer = connection

    def unlock(self, connection: Any) -> None:
        if self._world.writer is connection:
            self._world.writer = None
            self._world.file_lock.release()

    def crash(self) -> None:
        """What the operating system does for a process that was killed."""
        for connection in self.connections:
            if connection.driver is self:
                connection.close()

    def committed(self, tx: Tx) -> None:
        self._world.tell(self.process, tx.news)

    def listener(self) -> Listener:
        return SimListener(self._world, self.process)

    def liveness(self) -> Liveness:
        return SimLiveness(self._world, self.process)


class SimListener:
    """Hears of the commits of other processes, a little later."""

    longest = 1.5

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self.process = process
        self._event = world.primitives.threading.Event()
        self._heard: list[str] = []
        world.listeners[process.name] = self

    def hear(self, payloads: Sequence[str]) -> None:
        self._heard += payloads
        self._event.set()

    def wait(self, seconds: float) -> list[str]:
        self._event.wait(seconds)
        self._event.clear()
        heard, self._heard = self._heard, []
        return heard

    def interrupt(self) -> None:
        self._event.set()

    def close(self) -> None:
        if self._world.listeners.get(self.process.name) is self:
            del self._world.listeners[self.process.name]


class SimLiveness:
    """A session lock, as servers have it: it ends with its session, which may be lost."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self.process = process
        self._mine: str | None = None
        self._sure = False

    def take(self, worker: WorkerRow) -> bool:
        locks = self._world.locks
        if self._mine == worker.id and (self._sure or locks.get(worker.id) is self.process):
            return False
        self._world.call(self.process, "lock")
        self.leave()
        locks[worker.id] = self.process
        self._mine = worker.id
        self._sure = False
        return True

    def vacant(self, workers: Sequence[WorkerRow]) -> set[str]:
        self._world.call(self.process, "look at locks")
        return {worker.id for worker in workers if worker.id not in self._world.locks}

    def rest(self, stopping: threading.Event, seconds: float) -> bool:
        return stopping.wait(seconds)

    def seen(self) -> None:
        self._sure = True

    def missed(self) -> None:
        self._sure = False

    def doubt(self) -> None:
        self._sure = False

    def leave(self) -> None:
        if self._mine is not None:
            self._world.locks.pop(self._mine, None)
            self._mine = None


def make_template(path: Path) -> None:
    """A database with Detent's tables, which every simulation begins with."""
    store = Store(SqliteDriver(str(path)), dialect="sqlite")
    store.migrate(now=BEGINNING - SECOND)
    store.close()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE sim_ledger (run TEXT, entry TEXT)")
    connection.commit()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
