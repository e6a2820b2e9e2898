"""SQLite: a file, WAL, full durability, many processes.

Writers take turns.  Inside a process they queue on a Python lock; between
processes on SQLite's own, where `BEGIN IMMEDIATE` takes the lock before the
first read, so that no transaction ever finds out in its middle that it must
fail ("database is locked").
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import WeakSet

from ...errors import DatabaseUnavailable, ForkedProcess
from ...kernel.operations import Operation
from ...kernel.rows import Step
from ...process_forks import watch_forks
from ..batch.fast_paths import Unexpected, quick_batch
from ..driver import LOCK_WAIT, Line, Listener, Liveness, NodeSettler, QuickClaim, Trouble, Tx, Way
from ..process_forks import INHERITED
from ..session_locks import NoLock
from ..sql.dialect import OnConflict, first_by_key
from ..sql.queries import build_queries
from ..sql.statements import ACTIVE_HERO, build
from . import next_nodes, quick_batches, quick_claims
from .file import DatabaseFile, FileConnection
from .siblings import Ear, LockFiles, Neighbours, Silence

_MARK = "detent_step"  # the savepoint that marks the transaction of a user's code
IN_MEMORY = "a SQLite database in memory exists only in the process that opened it; use a file"
LONGEST_WAIT = 300.0  # seconds that a transactional step waits for writers: others of its kind may take long


class SqliteDialect(OnConflict):
    server_now = ":now"
    skip_locked = ""
    bytewise = ""  # unless told otherwise, SQLite compares so
    fence = ""
    hurry = ""
    dead = ""
    died = "e.finished_at"
    update_returns_joined = False
    hero = ACTIVE_HERO

    def first_of_each(self, columns: str, rows: str, found: str) -> str:
        return first_by_key(columns, rows, found, self.join("detent_executions", "e"))

    def held(self, lock_no: str) -> str:
        return "0"  # files are locked, which SQL cannot see

    def lock(self, alias: str) -> str:
        return ""  # the transaction is the lock

    def rows(self, *columns: str, batch: str = "rows") -> str:
        fields = ", ".join(f"json_extract(value, '$.{c}') AS {c}" for c in columns)
        return f"(SELECT {fields} FROM json_each(:{batch})) AS x"

    def join(self, table: str, alias: str, index: str = "PRIMARY") -> str:
        return f"CROSS JOIN {table} AS {alias}"  # CROSS: SQLite keeps the order of the tables

    def one_of(self, column: str, field: str, *, batch: str = "rows") -> str:
        return f"{column} IN (SELECT x.{field} FROM {self.rows(field, batch=batch)})"

    def delete(self, table: str, columns: tuple[str, ...], index: str = "PRIMARY") -> str:
        names, fields = ", ".join(columns), ", ".join(f"x.{c}" for c in columns)
        return f"DELETE FROM {table} WHERE ({names}) IN (SELECT {fields} FROM {self.rows(*columns)})"

    def gathered(self, name: str, *values: str) -> str:
        return f"json_group_object({name}, json_array({', '.join(values)}))"


class SqliteDriver:
    """`sqlite:///relative.db`, `sqlite:////absolute.db`, `sqlite:///:memory:`."""

    name = "SQLite"
    lock_waits: Mapping[Line, float] = dict.fromkeys(Line, LOCK_WAIT)  # SQLite has no row locks
    ddl_commits = False
    keyed: frozenset[str] = frozenset()
    settle_nodes: NodeSettler | None = staticmethod(next_nodes.settle_nodes)
    single = True
    quick_claim: QuickClaim | None = staticmethod(quick_claims.claim)
    launches = False
    patience = 0.0  # there is no server
    largest = 1 << 29  # a value has at most 1,000,000,000 bytes
    statements = build(SqliteDialect())
    queries = build_queries(SqliteDialect())

    def __init__(self, path: str) -> None:
        self.memory = path in ("", ":memory:")
        self.path = path if self.memory else os.path.abspath(path)
        self.writing = threading.RLock()
        self.reading = self.writing if self.memory else None
        self._memory: _Kept | None = None
        self.closed_at_fork = not self.memory
        self.inherited = IN_MEMORY if self.memory else INHERITED
        self._is_inherited = False
        self.file = DatabaseFile(self.path)
        self._ears: WeakSet[Ear] = WeakSet()
        self._ears_guard = threading.RLock()
        self.writes = 0
        self.neighbours = Neighbours(f"{self.path}-detent")
        watch_forks(self)

    @property
    def heritable(self) -> bool:
        return self._memory is None

    def connect(self) -> sqlite3.Connection:
        if self._is_inherited:
            raise ForkedProcess(self.inherited)
        if self.memory:
            # One connection is the database: every connection shares it, one at a time.
            if self._memory is None:
                self._memory = _Kept(":memory:", isolation_level=None, check_same_thread=False)
            return self._memory
        return self.file.connect(self._prepare)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        _patiently(connection, "PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA cache_size = -16000")
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()  # opens the WAL

    def verify(self, connection: Any) -> None:
        if not self.memory:
            self.file.verify(connection)

    def forked(self) -> None:
        """In the child: nothing that the parent opened may be used or closed."""
        self._is_inherited = True
        if self._memory is not None:
            self._memory.forsake()
        self.file.forked()

    def suspend(self, deadline: float) -> None:
        for ear in self._all_ears():
            ear.suspend(deadline)
        self.file.suspend(deadline)

    def resume(self) -> None:
        self.file.resume()
        for ear in self._all_ears():
            ear.resume()

    def forsake(self, connection: Any) -> None:
        if connection.in_transaction:
            connection.set_authorizer(lambda *asked: sqlite3.SQLITE_DENY)

    def shares(self, other: Any) -> bool:
        if other is self:
            return True
        return isinstance(other, SqliteDriver) and not self.memory and other.path == self.path

    def tune(self, connection: sqlite3.Connection, lock_wait: float = LOCK_WAIT) -> None:
        """All connections are alike."""

    def tune_for_users(self, connection: sqlite3.Connection) -> None:
        """All connections are alike."""

    def begin(self, connection: sqlite3.Connection, *, patient: bool = True) -> None:
        self.writes += 1
        if patient:
            _patiently(connection, "BEGIN IMMEDIATE")
        else:  # the caller decides whether to wait for longer
            connection.execute("BEGIN IMMEDIATE")

    def begin_for_user(self, connection: sqlite3.Connection, owner: str, isolation: str | None) -> None:
        """Any isolation: there is one writer, so its transactions are serializable."""
        self.begin(connection)
        connection.execute(f"SAVEPOINT {_MARK}")  # a COMMIT or ROLLBACK removes it
        connection.isolation_level = "IMMEDIATE"  # sqlite3 begins another transaction before later writes

    def is_open(self, connection: sqlite3.Connection, *, surely: bool) -> bool:
        if not connection.in_transaction:
            return False
        try:
            connection.execute(f"RELEASE {_MARK}")
        except sqlite3.OperationalError as error:
            if "no such savepoint" not in str(error):
                raise
            return False
        return True

    def commit(self, connection: sqlite3.Connection) -> None:
        connection.commit()
        self.verify(connection)

    def commit_for_user(self, connection: sqlite3.Connection) -> bool:
        connection.commit()
        connection.isolation_level = None
        return True

    def rollback(self, connection: sqlite3.Connection) -> None:
        connection.rollback()
        if connection.isolation_level is not None:
            connection.isolation_level = None

    def deferring(self, connection: sqlite3.Connection) -> None:
        """Each statement for itself."""

    def in_transaction(self, connection: sqlite3.Connection) -> bool:
        return connection.in_transaction

    def cursor(self, connection: sqlite3.Connection) -> sqlite3.Cursor:
        cursor = connection.cursor()
        cursor.row_factory = None
        return cursor

    def trouble(self, error: BaseException) -> Trouble:
        if isinstance(error, Unexpected):
            return Trouble.RETRY
        if isinstance(error, sqlite3.IntegrityError):
            unique = error.sqlite_errorcode in (
                sqlite3.SQLITE_CONSTRAINT_UNIQUE,
                sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY,
            )
            return Trouble.UNIQUE if unique else Trouble.OTHER
        if isinstance(error, DatabaseUnavailable):
            return Trouble.GONE
        if isinstance(error, sqlite3.OperationalError):
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                return Trouble.RETRY
            # A full disk, a file system that fails, a folder that is away: it may come back.
            if code in (
                sqlite3.SQLITE_FULL,
                sqlite3.SQLITE_IOERR,
                sqlite3.SQLITE_CANTOPEN,
                sqlite3.SQLITE_READONLY,
            ):
                return Trouble.GONE
        return Trouble.OTHER

    def packet_size(self, connection: Any, text: str) -> int:
        return len(text.encode())

    def blocked(self, error: BaseException) -> bool:
        return False  # the database has one writer: all writers wait for the same lock

    def refused(self, error: BaseException) -> bool:
        return isinstance(error, sqlite3.Error) and self.trouble(error) is not Trouble.GONE

    def broke(self, connection: sqlite3.Connection, error: BaseException) -> bool:
        return not connection.in_transaction

    def between_statements(self, connection: sqlite3.Connection) -> bool:
        return True  # a statement is one call

    def adapt(self, fragment: str) -> str:
        return fragment

    def is_missing_table(self, error: BaseException) -> bool:
        return isinstance(error, sqlite3.OperationalError) and "no such table" in str(error)

    def quick(self, operations: Sequence[Operation], *, helpers_wanted: bool) -> Way | None:
        found = quick_batch(operations)
        if found is None or found.begins_on(self.keyed):
            return None
        if not quick_batches.is_one_statement(found):
            return quick_batches.way_of(found, helpers_wanted=helpers_wanted)

        def ask(tx: Tx) -> Callable[[], list[Any]]:
            answers = found.answers(recorded=self._record(tx, found.worker, found.steps))
            return lambda: answers

        return Way(ask)

    def _record(self, tx: Tx, worker: str, steps: list[Step]) -> bool:
        self.writes += 1
        written = quick_batches.record(tx.connection, worker, steps)
        self.verify(tx.connection)
        return written == len(steps)

    def notify(self, tx: Tx, payload: str) -> None:
        tx.news.append(payload)

    def committed(self, tx: Tx) -> None:
        if not self.memory:
            self.neighbours.tell(tx.news)

    def listener(self) -> Listener:
        return Silence() if self.memory else Ear(self)

    def hears(self, ear: Ear) -> None:
        """A listener is about to connect."""
        with self._ears_guard:
            self._ears.add(ear)

    def _all_ears(self) -> list[Ear]:
        with self._ears_guard:
            return list(self._ears)

    def liveness(self) -> Liveness:
        return NoLock() if self.memory else LockFiles(self.neighbours.folder)

    def migration_lock(self, tx: Tx) -> AbstractContextManager[None]:
        return nullcontext()  # the transaction is the lock

    def script(self, connection: sqlite3.Connection, text: str) -> None:
        # Not executescript(): it commits first.
        for statement in text.split(";\n"):
            if statement.strip():
                connection.execute(statement)

    def close(self) -> None:
        self.neighbours.close()
        for ear in self._all_ears():
            ear.disconnect()
        self.file.forget()
        if self._memory is not None:
            self._memory.really_close()
            self._memory = None


class _Kept(FileConnection):
    """A database in memory lives as long as its app, not as long as a connection."""

    def close(self) -> None:
        if self.in_transaction and not self.forsaken:
            self.rollback()
        self.isolation_level = None

    def really_close(self) -> None:
        super().close()


def _patiently(connection: sqlite3.Connection, statement: str) -> None:
    """Execute, waiting as long as it takes for other connections' writes to end."""
    deadline = time.monotonic() + LONGEST_WAIT
    while True:
        try:
            connection.execute(statement)
            return
        except sqlite3.OperationalError as error:
            busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
            if not busy or time.monotonic() > deadline:
                raise
            with contextlib.suppress(InterruptedError):
                time.sleep(0.001)
