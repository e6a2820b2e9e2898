"""MySQL and MariaDB through PyMySQL.

SQL is what MySQL 8.0 and MariaDB 10.6+ both understand; the tests run MariaDB.
Neither has partial indexes, UPDATE ... RETURNING or notifications.  A process
that listens sleeps inside the server; one that has news ends those sleeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from ...errors import DatabaseUnavailable, MissingDriver
from ...kernel.operations import Operation
from ...kernel.rows import Step, WorkerRow
from ..addresses import mysql_address
from ..batch.fast_paths import Unexpected, quick_batch
from ..driver import (
    LOCK_WAIT,
    SHARED,
    STOPPED_AFTER,
    Line,
    Listener,
    Liveness,
    Trouble,
    Tx,
    Way,
    batch,
    largest_batch,
    named_to_pyformat,
    pyformat,
)
from ..server_driver import ServerDriver
from ..session_locks import SessionLock
from ..sql.dialect import columns_of
from ..sql.queries import build_queries
from ..sql.statements import Statements, build
from ..watch import LONGEST_TIMEOUT, PATIENCE, SHORTEST_TIMEOUT, Watch
from . import quick_batches
from .connection import DUPLICATE, INTERRUPTED, LOCK_TIMEOUT, MySqlConnection
from .dialect import MySqlDialect, record, record_again
from .literals import fenced_insert
from .session import Cursor, Session

if TYPE_CHECKING:
    import pymysql
    from pymysql.constants import SERVER_STATUS
else:
    try:
        import pymysql
        from pymysql.constants import SERVER_STATUS
    except ImportError:  # the driver reports it when this database is opened
        pymysql = None

_NO_TABLE = 1146
_NULL = 1048  # in a column that must have a value
# Deadlock, lock wait, a statement that was killed, one that took too long (MariaDB, MySQL).
# A row that changed since a snapshot was taken (MariaDB).
_RETRY = frozenset({1213, LOCK_TIMEOUT, INTERRUPTED, 1969, 3024, 1020})
# Too many clients, shutdown, a full disk, the network, a killed connection, a server that became read-only;
# and what only a connect can meet: no access, no such database.  From 2000 on, the client lost the server.
_GONE = frozenset({1040, 1203, 1053, 1077, 1079, 1080, 1021, 1026, 1114, 1152, 1158, 1159, 1160, 1161, 1927})
_GONE |= {1290, 1792, 1836, 1044, 1045, 1049, 1698}
_NO_SAVEPOINT = 1305
_MARK = "detent_step"  # the savepoint that marks the transaction of a user's code

# Values of sql_mode in which our own statements, which share a transaction with users', mean something else.
_MISLEADING = frozenset({"ORACLE", "SIMULTANEOUS_ASSIGNMENT", "EMPTY_STRING_IS_NULL", "HIGH_NOT_PRECEDENCE"})
_LISTENING = "detent listens"
IDLE_FOR = 7 * 24 * 3600  # seconds that a session of Detent may be idle

_STEP = columns_of(Step)

# A column or an index that a migration which was cut short has added already.
_ALREADY_THERE = (1060, 1061)


class MySqlDriver(ServerDriver):
    name = "MySQL"
    # In whole seconds.  Aside without waiting: a transaction that waits to insert a row keeps others from
    # inserting beside it.
    lock_waits: Mapping[Line, float] = {Line.MAIN: 1, Line.SPLIT: 0, Line.ASIDE: 0}
    ddl_commits = True
    keyed: frozenset[str] = frozenset()
    writing = None
    reading = None
    largest = 16 * 1024 * 1024  # until the server has told
    sends_several = False  # whether a connection has a session: known as soon as there is one
    statements: Statements = pyformat(build(MySqlDialect()))
    queries = build_queries(MySqlDialect())
    _quick = record(MySqlDialect())
    _again = record_again(MySqlDialect())

    def __init__(self, url: str) -> None:
        self.own: set[int] = set()  # our listeners: we do not call ourselves
        super().__init__()
        if pymysql is None:
            raise MissingDriver(self.name, "mysql")
        self.patience = PATIENCE
        self.watch = Watch(self)
        self._connect: dict[str, Any] = {
            "client_flag": 2,  # FOUND_ROWS: an update that changes nothing still found its row
            "init_command": "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
            **mysql_address(url),
        }

    def connect(self) -> Any:
        self.check_process()
        connection = self._open(autocommit=True)
        self.watch.add(connection)
        with connection.cursor() as cursor:
            cursor.execute("SELECT @@sql_mode")
            modes = [mode for mode in cursor.fetchone()[0].split(",") if mode and mode not in _MISLEADING]
            # What does not fit is an error, and is not cut off.
            cursor.execute("SET SESSION sql_mode = %s", [",".join([*modes, "STRICT_TRANS_TABLES"])])
        self.opened(connection)
        return connection

    def socket_of(self, connection: Any) -> int | None:
        return int(connection._sock.fileno()) if connection.open else None

    def shares(self, other: Any) -> bool:
        return other is self

    def tune_for_users(self, connection: Any) -> None:
        """The server's own isolation; ours is for Detent's statements."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SHOW GLOBAL VARIABLES WHERE variable_name IN ('tx_isolation',"
                " 'transaction_isolation', 'innodb_snapshot_isolation')"
            )
            settings = {name.lower(): value for name, value in cursor.fetchall()}
            isolation = settings.get("transaction_isolation") or settings["tx_isolation"]
            cursor.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {isolation.replace('-', ' ')}")
        connection.strict_snapshots = settings.get("innodb_snapshot_isolation") == "ON"

    def plain(self) -> Any:
        """A connection for a library of the user's, with that library's habits."""
        return self._open(init_command=None)

    def _open(self, **parameters: Any) -> MySqlConnection:
        limit = min(max(SHORTEST_TIMEOUT, self.patience), LONGEST_TIMEOUT)
        return MySqlConnection(**{"connect_timeout": limit, **self._connect, **parameters})

    def waiting(self, connection: MySqlConnection) -> int | None:
        return connection.asked if connection.asking and connection.open and not connection.patient else None

    def descriptor(self, connection: MySqlConnection) -> int:
        descriptor: int = connection._sock.fileno()
        return descriptor

    def place(self, connection: MySqlConnection) -> Any:
        try:
            return connection._sock.getpeername()
        except (AttributeError, OSError):  # it was closed meanwhile
            return None

    def is_silent(self, connection: MySqlConnection) -> bool:
        place = self.place(connection)
        one = {"host": place[0], "port": place[1]} if isinstance(place, tuple) else {}
        try:
            self._open(**one).close()
        except (pymysql.MySQLError, OSError) as error:
            return place is not None and "timed out" in str(error)
        return False

    def tune(self, connection: Any, lock_wait: float = LOCK_WAIT) -> None:
        with connection.cursor() as cursor:
            # A batch is full of quotes and backslashes: sent as they are, it is half as long.
            cursor.execute("SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_BACKSLASH_ESCAPES'")
            cursor.execute("SELECT @@max_allowed_packet, @@version")
            largest, version = cursor.fetchone()
            self.largest = int(largest) - min(65_536, int(largest) // 4)
            connection.largest = self.largest
            mariadb = "mariadb" in version.lower()
            if mariadb:  # a process that is stopped inside a transaction blocks no other
                cursor.execute(f"SET SESSION idle_transaction_timeout = {STOPPED_AFTER}")
        self.unhurried(connection, lock_wait)
        # That timeout also ends a session whose packet the server has left in the middle, see session.py.
        if mariadb and connection.is_literal() and connection.allow_several():
            connection.session = Session(connection)
            self.sends_several = True

    def unhurried(self, connection: Any, lock_wait: float = LOCK_WAIT) -> None:
        """Our own timeouts, whatever the server has for others."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT @@version")
            mariadb = "mariadb" in cursor.fetchone()[0].lower()
            seconds = max(int(lock_wait), 0 if mariadb else 1)  # MySQL has no zero
            cursor.execute(f"SET SESSION wait_timeout = {IDLE_FOR}, innodb_lock_wait_timeout = {seconds}")
            cursor.execute(f"SET SESSION {'max_statement_time' if mariadb else 'max_execution_time'} = 0")

    def begin(self, connection: Any, *, patient: bool = True) -> None:
        if connection.session is None:
            connection.begin()
        else:
            connection.session.begin()

    def begin_for_user(self, connection: Any, owner: str, isolation: str | None) -> None:
        if connection.get_autocommit():
            connection.autocommit(False)
        if self.in_transaction(connection):
            connection.rollback()  # what a query after the last commit has begun
        if connection.strict_snapshots:
            connection.query("SET SESSION innodb_snapshot_isolation = ON")
        if isolation is not None:
            connection.query(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
        connection.query(f"SAVEPOINT {_MARK}")  # it begins the transaction; whatever ends that removes it

    def is_open(self, connection: Any, *, surely: bool) -> bool:
        try:
            connection.query(f"RELEASE SAVEPOINT {_MARK}")
        except pymysql.MySQLError as error:
            if error.args[0] != _NO_SAVEPOINT:
                raise
            return False
        if connection.strict_snapshots:
            # The record locks our worker's row, which each heartbeat changes.
            connection.query("SET SESSION innodb_snapshot_isolation = OFF")
        return True

    def commit(self, connection: Any) -> None:
        if connection.session is None:
            connection.commit()
        else:
            connection.session.commit()

    def commit_for_user(self, connection: Any) -> bool:
        connection.commit()
        return True

    def rollback(self, connection: Any) -> None:
        if connection.session is not None:
            connection.session.forget()
        connection.rollback()

    def deferring(self, connection: Any) -> Session | None:
        return connection.session if isinstance(connection, MySqlConnection) else None

    def in_transaction(self, connection: Any) -> bool:
        return bool(connection.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS)

    def cursor(self, connection: Any) -> Any:
        session = self.deferring(connection)
        return connection.cursor(pymysql.cursors.Cursor) if session is None else Cursor(session)

    def packet_size(self, connection: Any, text: str) -> int:
        """Parameters are part of the statement's text, and escaped; in users' sessions with backslashes."""
        size = len(text.encode()) + text.count("'")
        status = getattr(connection, "server_status", 0) or 0
        if not status & SERVER_STATUS.SERVER_STATUS_NO_BACKSLASH_ESCAPES:
            size += text.count('"') + text.count("\\")
        return size

    def adapt(self, fragment: str) -> str:
        return named_to_pyformat(fragment)

    def trouble(self, error: BaseException) -> Trouble:
        code = error.args[0] if isinstance(error, pymysql.MySQLError) and error.args else None
        if code == DUPLICATE:
            return Trouble.UNIQUE
        if code in _RETRY or isinstance(error, Unexpected):
            return Trouble.RETRY
        if isinstance(error, DatabaseUnavailable | pymysql.InterfaceError) or code in _GONE:
            return Trouble.GONE
        if isinstance(code, int) and 2000 <= code < 3000:
            return Trouble.GONE
        return Trouble.OTHER

    def blocked(self, error: BaseException) -> bool:
        # The message does not name the row: the beginning of the statement names its table.
        statement = getattr(error, "statement", None)
        return statement is not None and not any(table in statement for table in SHARED)

    def refused(self, error: BaseException) -> bool:
        said = isinstance(error, pymysql.MySQLError) and bool(error.args) and isinstance(error.args[0], int)
        return said and error.args[0] > 0 and self.trouble(error) is not Trouble.GONE

    def broke(self, connection: Any, error: BaseException) -> bool:
        # (An error does not say whether the transaction is still open; a deadlock has ended it.)
        return not connection.open or self.trouble(error) is Trouble.RETRY

    def between_statements(self, connection: Any) -> bool:
        return not connection.asking

    def is_missing_table(self, error: BaseException) -> bool:
        return isinstance(error, pymysql.ProgrammingError) and error.args[0] == _NO_TABLE

    def quick(self, operations: Sequence[Operation], *, helpers_wanted: bool) -> Way | None:
        found = quick_batch(operations)
        if found is None or found.begins_on(self.keyed):
            return None
        if found.starts or found.ends:
            if not self.sends_several:
                return None
            return quick_batches.way_of(found, self._again, helpers_wanted=helpers_wanted)

        def ask(tx: Tx) -> Callable[[], list[Any]]:
            answers = found.answers(recorded=self._record(tx, found.worker, found.steps))
            return lambda: answers

        return Way(ask)

    def _record(self, tx: Tx, worker: str, steps: list[Step]) -> bool:
        session = self.deferring(tx.connection)
        if session is None:
            rows = batch(steps)
            # A worker that is declared dead has no row to join, and then nothing is counted at all.
            return len(rows) <= largest_batch(self) and tx.run(self._quick, worker=worker, rows=rows) > 0
        values = [msgspec.structs.astuple(step) for step in steps]
        insert = fenced_insert("detent_steps", _STEP, worker, values)
        if len(insert) > largest_batch(self):
            return False
        try:
            return self._record_values(session, steps, insert)
        except pymysql.MySQLError as error:
            if error.args[0] != _NULL:
                raise
            return False  # the worker is declared dead

    def _record_values(self, session: Session, steps: list[Step], insert: str) -> bool:
        """Insert entries; where one may be there already, an upsert decides.

        The upsert names each column once more, which takes the server a fifth longer.
        """
        if all(step.attempt == 1 and step.progress is None for step in steps):
            try:
                return session.execute_text(insert).changed > 0
            except pymysql.MySQLError as error:
                if error.args[0] != DUPLICATE:
                    raise
        return session.execute_text(insert + self._again).changed > 0

    def notify(self, tx: Tx, payload: str) -> None:
        tx.news.append(payload)

    def committed(self, tx: Tx) -> None:
        """End the sleeps of those who listen; they look for themselves what is new."""
        listening = tx.query(
            "SELECT id FROM information_schema.processlist"
            " WHERE db = DATABASE() AND id <> CONNECTION_ID() AND info LIKE %(mark)s",
            mark=f"SELECT SLEEP(%{_LISTENING}%",
        )
        for (connection_id,) in listening:
            if connection_id in self.own:
                continue
            try:
                tx.run(f"KILL QUERY {int(connection_id)}")
            except pymysql.MySQLError:  # it woke up by itself
                continue

    def listener(self) -> Listener:
        return MySqlListener(self)

    def liveness(self) -> Liveness:
        return NamedLocks(self)

    @contextmanager
    def migration_lock(self, tx: Tx) -> Iterator[None]:
        # DDL commits, so the lock is the session's.  Names are the whole server's, and short.
        name = f"detent.migrate.{sha256(self._connect['database'].encode()).hexdigest()[:32]}"
        if tx.query("SELECT GET_LOCK(%(name)s, 600)", name=name)[0][0] != 1:
            raise DatabaseUnavailable(self.name, "another migration has been running for ten minutes")
        try:
            yield
        finally:
            tx.query("SELECT RELEASE_LOCK(%(name)s)", name=name)

    def script(self, connection: Any, text: str) -> None:
        if connection.session is not None:
            connection.session.flush()
        with connection.cursor() as cursor:
            for statement in text.split(";\n"):
                if statement.strip():
                    try:
                        cursor.execute(statement)
                    except pymysql.err.OperationalError as error:
                        if error.args[0] not in _ALREADY_THERE:
                            raise

    def close(self) -> None:
        self.watch.close()


class MySqlListener:
    """Sleeps in the server; a process with news kills the sleep, not the session."""

    longest = 20.0
    # News between two sleeps found no sleep to kill, and often more news follows the first:
    # after a call the next sleeps are short.
    polls_after_news = (0.02, 0.1, 0.5)

    def __init__(self, driver: MySqlDriver) -> None:
        self._driver = driver
        self._own = driver.own
        self._connection = driver.connect()
        # It waits for long, and has a limit instead: a server that has disappeared does not end the sleep.
        self._connection.patient = True
        limit = self._connection._read_timeout
        if limit is None:
            self._connection._read_timeout = 2 * self.longest
        else:
            self.longest = min(self.longest, limit / 2)
        self._own.add(self._connection.thread_id())
        self._polls = list(self.polls_after_news)

    def wait(self, seconds: float) -> list[str]:
        after_news = bool(self._polls)
        called = self._sleep(min(seconds, self._polls.pop(0) if after_news else self.longest))
        if called:
            self._polls = list(self.polls_after_news)
        return [""] if called or after_news else []

    def _sleep(self, seconds: float) -> bool:
        """Sleep; True when it was cut short."""
        with self._connection.cursor() as cursor:
            try:
                cursor.execute(f"SELECT SLEEP({seconds:.3f}) /* {_LISTENING} */")
                return bool(cursor.fetchone()[0])  # MySQL
            except pymysql.MySQLError as error:  # MariaDB
                if not error.args or error.args[0] != INTERRUPTED:
                    raise
                return True

    def interrupt(self) -> None:
        """A session that sleeps would stay in the server until it wakes, though its process were gone."""
        with suppress(pymysql.MySQLError, DatabaseUnavailable):
            connection = self._driver.connect()
            with connection.cursor() as cursor:
                cursor.execute(f"KILL QUERY {int(self._connection.thread_id())}")
            connection.close()

    def close(self) -> None:
        self._own.discard(self._connection.thread_id())
        self._connection.close()


class NamedLocks(SessionLock):
    """A worker is alive as long as the session that holds its named lock."""

    errors = pymysql.MySQLError

    def __init__(self, driver: MySqlDriver) -> None:
        super().__init__()
        self._driver = driver

    def vacant(self, workers: Sequence[WorkerRow]) -> set[str]:
        connection = self._open()
        return {worker.id for worker in workers if _ask_lock(connection, "IS_FREE_LOCK(%s)", worker.lock_no)}

    def _connect(self) -> Any:
        connection = self._driver.connect()
        self._driver.unhurried(connection)
        return connection

    def _closed(self, connection: Any) -> bool:
        return not connection.open

    def _socket(self, connection: Any) -> Any:
        return connection._sock

    def _ping(self, connection: Any) -> None:
        connection.ping(reconnect=False)

    def _try_lock(self, connection: Any, lock_no: int) -> bool:
        return _ask_lock(connection, "GET_LOCK(%s, 0)", lock_no)


def _ask_lock(connection: Any, call: str, lock_no: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {call}", [f"detent.{lock_no}"])
        return bool(cursor.fetchone()[0])
