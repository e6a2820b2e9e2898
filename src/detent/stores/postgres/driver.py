"""PostgreSQL through psycopg 3.

Wake-ups by LISTEN/NOTIFY, signs of life by session-level advisory locks, each on
a connection of its own: nothing on the path of the work needs session state.
Behind PgBouncer in transaction mode (`?pgbouncer=true` in the URL) statements are
not prepared, wake-ups become polling, and a dead worker is noticed when its lease
ends.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import ceil
from typing import TYPE_CHECKING, Any

from ...errors import DatabaseUnavailable, EncodingUnfit, MissingDriver
from ...kernel.operations import Operation
from ...kernel.rows import WorkerRow
from ..addresses import unreadable
from ..batch.fast_paths import quick_batch
from ..driver import (
    LOCK_WAIT,
    SHARED,
    STOPPED_AFTER,
    Line,
    Listener,
    Liveness,
    NodeSettler,
    Trouble,
    Tx,
    Way,
    batch,
    named_to_pyformat,
    news,
    pyformat,
)
from ..server_driver import ServerDriver
from ..session_locks import NoLock, SessionLock
from ..sql.queries import build_queries
from ..sql.statements import Statements, build
from ..watch import LONGEST_TIMEOUT, PATIENCE, SHORTEST_TIMEOUT, Watch
from .dialect import HELD_LOCKS, PostgresDialect, end, record, start
from .next_nodes import next_nodes_statement, settler

if TYPE_CHECKING:
    import psycopg
    import psycopg.conninfo
    from psycopg import errors as pg_errors
    from psycopg.rows import tuple_row

    from .prepared import CAN_PIPELINE, PgConnection, Session, done, run_script
else:
    try:
        import psycopg
        from psycopg import errors as pg_errors
        from psycopg.rows import tuple_row

        from .prepared import CAN_PIPELINE, PgConnection, Session, done, run_script
    except ImportError:  # the driver reports it when this database is opened
        psycopg = None
Asked = Callable[[], list[tuple[Any, ...]]]
_LOST: tuple[type[Exception], ...] = ()  # without an SQLSTATE: no server answered
if psycopg is not None:
    _LOST = (psycopg.OperationalError, psycopg.InterfaceError)

# By SQLSTATE.  Deadlock, serialisation; a lock or a statement that timed out.
_RETRY = ("40", "55P03", "57014")
# Connections, shutdown, a full disk, too many clients, I/O; a server that became a read-only standby.
_GONE = ("08", "57P", "53", "58", "25006", "25P03")
_UNKNOWN = ("40003", "08007")  # the server itself does not know whether it committed
_CHANNEL = "detent"
_ENDED = '{"work":false}'  # the server sends it once, however many of the runs in a batch are waited for
# A setting that lasts as long as its transaction marks that of a user's code.  The division fails where it
# is gone, and with it the COMMIT that is sent in the same packet.
_MARK = "SET LOCAL detent.marked = 'yes'"
_CHECK = "SELECT 1 / CASE WHEN current_setting('detent.marked', true) = 'yes' THEN 1 ELSE 0 END"
_NOT_MARKED = b"22012"  # division by zero
_MIGRATION_LOCK = 0x6465_7465_6E74  # "detent"


def _committed(status: str) -> None:
    """A transaction in which something failed is rolled back by its commit."""
    if status != "COMMIT":
        raise psycopg.InternalError(f"the commit came to {status}")


# For connections whose other end has disappeared: how soon the system notices.  (In seconds, and the last
# one in milliseconds, as libpq wants them.)
_PARAMETERS = {
    "connect_timeout": LONGEST_TIMEOUT,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
    "fallback_application_name": "detent",  # used where neither the address nor the environment has one
}


def _defaults(address: str) -> dict[str, Any]:
    """Our parameters for libpq, apart from those that the user gives."""
    try:
        given = psycopg.conninfo.conninfo_to_dict(address)
    except psycopg.ProgrammingError as error:
        raise unreadable("PostgreSQL", _without_parts(str(error).strip())) from None
    # libpq reads the port when it connects, and repeats it in its error: it may be half of a password.
    if not all(port.strip().isdecimal() or not port for port in str(given.get("port", "")).split(",")):
        raise unreadable("PostgreSQL", "its port is not a number")
    if "PGCONNECT_TIMEOUT" in os.environ:
        given["connect_timeout"] = os.environ["PGCONNECT_TIMEOUT"]
    return {name: value for name, value in _PARAMETERS.items() if name not in given}


def _without_parts(reason: str) -> str:
    """What libpq says about an address, without the parts of it that may belong to a password."""
    if re.match(r"invalid (connection option|URI query parameter)", reason):
        return reason
    return re.sub(r'"[^"]*"', '"…"', reason)


class PostgresDriver(ServerDriver):
    name = "PostgreSQL"
    # Aside less than the second after which the server looks for deadlocks: so we are the ones who try again.
    lock_waits: Mapping[Line, float] = {Line.MAIN: 0.2, Line.SPLIT: 0.02, Line.ASIDE: 0.5}
    ddl_commits = False
    keyed: frozenset[str] = frozenset()
    writing = None
    reading = None
    largest = 1 << 29  # a value has at most 1 GB
    statements: Statements = pyformat(build(PostgresDialect()))
    queries = build_queries(PostgresDialect())
    _quick_record = record(PostgresDialect())
    _quick_end = end(PostgresDialect())
    _quick_start = start(PostgresDialect())
    _settle_nodes = next_nodes_statement(_CHANNEL)
    settle_nodes: NodeSettler | None = staticmethod(settler(_settle_nodes))

    def __init__(self, url: str, *, pgbouncer: bool = False) -> None:
        if psycopg is None:
            raise MissingDriver(self.name, "postgres")
        self._address = url
        self._defaults = _defaults(url)
        self._pgbouncer = pgbouncer
        self.launches = CAN_PIPELINE and not pgbouncer
        self.single = not pgbouncer  # behind it, only a transaction has a limit for waits
        self.patience = PATIENCE
        self.watch = Watch(self)
        self.own: set[int] = set()  # our sessions: their notifications are ignored
        super().__init__()

    def connect(self) -> Any:
        self.check_process()
        connection = PgConnection.connect(
            self._address,
            autocommit=True,
            prepare_threshold=None if self._pgbouncer else 3,
            client_encoding="utf8",
            **self._parameters(),
        )
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            name = connection.info.dbname
            connection.close()
            raise EncodingUnfit(name, encoding or "unknown")
        self.own.add(connection.info.backend_pid)
        self.opened(connection)
        self.watch.add(connection)
        return connection

    def socket_of(self, connection: Any) -> int | None:
        return None if connection.closed else int(connection.fileno())

    def shares(self, other: Any) -> bool:
        return other is self

    def tune_for_users(self, connection: Any) -> None:
        """The settings of the role."""

    def plain(self) -> Any:
        """A connection for a library of the user's, with that library's habits."""
        return psycopg.connect(self._address, **self._parameters())

    def _parameters(self) -> dict[str, Any]:
        parameters = dict(self._defaults)
        if "connect_timeout" in parameters:  # a shorter wait of the caller limits it
            parameters["connect_timeout"] = min(
                max(SHORTEST_TIMEOUT, ceil(self.patience)), parameters["connect_timeout"]
            )
        return parameters

    def waiting(self, connection: PgConnection) -> int | None:
        return connection.waiting

    def descriptor(self, connection: PgConnection) -> int:
        return connection.pgconn.socket

    def place(self, connection: PgConnection) -> tuple[str, str, int]:
        try:
            return connection.info.host, connection.info.hostaddr, connection.info.port
        except psycopg.Error:  # it was closed meanwhile
            return "", "", 0

    def is_silent(self, connection: PgConnection) -> bool:
        host, hostaddr, port = self.place(connection)
        one = {"host": host, "hostaddr": hostaddr or None, "port": port, "target_session_attrs": "any"}
        try:
            psycopg.connect(self._address, **{**self._parameters(), **one}).close()
        except psycopg.errors.ConnectionTimeout:
            return bool(port)
        except psycopg.Error:
            return False
        return False

    def tune(self, connection: Any, lock_wait: float = LOCK_WAIT) -> None:
        # A plan that was made while a table was empty stays in use while it fills.  Ours go from a batch
        # through an index, or along an index in its order: forbid what only looks good on empty tables.
        if not self._pgbouncer:
            connection.execute(
                "SELECT set_config('enable_' || name, 'off', false) FROM (VALUES ('seqscan'), ('bitmapscan'),"
                " ('hashjoin'), ('mergejoin'), ('sort')) AS plans(name)"
            )
            # A process that is stopped in the middle of a transaction does not hold up the others.
            connection.execute(f"SET idle_in_transaction_session_timeout = '{STOPPED_AFTER}s'")
            connection.execute("SET jit = off")  # it would be misled by the costs of what is forbidden
            # What we send without BEGIN has the isolation of our transactions, whatever the role has.
            connection.execute("SET default_transaction_isolation = 'read committed'")
            self.unhurried(connection, lock_wait)
            connection.session = Session(connection)
        else:  # sessions are shared: only a transaction can have settings
            connection.settings = f"; SET LOCAL lock_timeout = '{lock_wait * 1000:.0f}ms'"

    def unhurried(self, connection: Any, lock_wait: float = LOCK_WAIT) -> None:
        """Our own timeouts, whatever the role or the database has for others."""
        limits = [f"SET lock_timeout = '{lock_wait * 1000:.0f}ms'", "SET statement_timeout = 0"]
        if connection.info.server_version >= 140000:
            limits.append("SET idle_session_timeout = 0")
        if connection.info.server_version >= 170000:
            limits.append("SET transaction_timeout = 0")
        connection.execute("; ".join(limits))

    def begin(self, connection: Any, *, patient: bool = True) -> None:
        command = "BEGIN ISOLATION LEVEL READ COMMITTED"
        if connection.session is None:
            connection.execute(command + connection.settings)
        else:
            connection.session.begin(command)

    def begin_for_user(self, connection: Any, owner: str, isolation: str | None) -> None:
        if connection.autocommit:
            connection.autocommit = False
        level = f" ISOLATION LEVEL {isolation}" if isolation is not None else ""
        for result in run_script(connection, f"BEGIN{level}; {_MARK}"):
            done(result)
        connection.owner = owner

    def is_open(self, connection: Any, *, surely: bool) -> bool:
        """Whether any transaction is; which one it is, the commit asks."""
        status = connection.info.transaction_status
        if surely and status == psycopg.pq.TransactionStatus.INTRANS:
            [result] = run_script(connection, _CHECK)
            return bool(result.error_field(psycopg.pq.DiagnosticField.SQLSTATE) != _NOT_MARKED)
        return bool(status != psycopg.pq.TransactionStatus.IDLE)

    def commit(self, connection: Any) -> None:
        if connection.session is None:
            connection.commit()
            return
        _committed(connection.session.commit())

    def commit_for_user(self, connection: Any) -> bool:
        results = run_script(connection, f"{_CHECK}; COMMIT")
        if results[0].error_field(psycopg.pq.DiagnosticField.SQLSTATE) == _NOT_MARKED:
            return False
        for result in results:
            done(result)
        _committed((results[-1].command_status or b"").decode())
        connection.owner = None
        return True

    def rollback(self, connection: Any) -> None:
        connection.owner = None
        if connection.session is not None:
            connection.session.forget()
        connection.rollback()

    def deferring(self, connection: Any) -> Session | None:
        return connection.session if isinstance(connection, PgConnection) else None

    def in_transaction(self, connection: Any) -> bool:
        return bool(connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE)

    def cursor(self, connection: Any) -> Any:
        if isinstance(connection, PgConnection):
            return connection.own_cursor()
        return connection.cursor(row_factory=tuple_row)  # a user's own

    def packet_size(self, connection: Any, text: str) -> int:
        return len(text.encode())

    def adapt(self, fragment: str) -> str:
        return named_to_pyformat(fragment)

    def trouble(self, error: BaseException) -> Trouble:
        if isinstance(error, pg_errors.UniqueViolation):
            return Trouble.UNIQUE
        if isinstance(error, DatabaseUnavailable):
            return Trouble.GONE
        if not isinstance(error, psycopg.Error):
            return Trouble.OTHER
        state = error.sqlstate or ""
        if state.startswith(_RETRY):
            return Trouble.RETRY
        if state.startswith(_GONE) or (not state and isinstance(error, _LOST)):
            return Trouble.GONE
        return Trouble.OTHER

    def blocked(self, error: BaseException) -> bool:
        if not isinstance(error, pg_errors.LockNotAvailable):
            return False
        # The context names the table or the index of the row.  Without one, a whole table is locked.
        where = error.diag.context or ""
        return "detent_" in where and not any(table in where for table in SHARED)

    def refused(self, error: BaseException) -> bool:
        state = getattr(error, "sqlstate", None) if isinstance(error, psycopg.Error) else None
        return state is not None and state not in _UNKNOWN and self.trouble(error) is not Trouble.GONE

    def broke(self, connection: Any, error: BaseException) -> bool:
        # Idle: the user's code has ended it, which is another matter.
        status = connection.info.transaction_status
        return status not in (psycopg.pq.TransactionStatus.INTRANS, psycopg.pq.TransactionStatus.IDLE)

    def between_statements(self, connection: Any) -> bool:
        status = connection.info.transaction_status
        return status not in (psycopg.pq.TransactionStatus.ACTIVE, psycopg.pq.TransactionStatus.UNKNOWN)

    def is_missing_table(self, error: BaseException) -> bool:
        return isinstance(error, pg_errors.UndefinedTable)

    def quick(self, operations: Sequence[Operation], *, helpers_wanted: bool) -> Way | None:
        found = quick_batch(operations)
        if found is None or found.begins_on(self.keyed):
            return None
        notifies = found.wants_help or (found.makes_ready and helpers_wanted)
        payload = news(work=True) if notifies else ""

        def ask(tx: Tx) -> Callable[[], list[Any]]:
            def rows_of(statement: str, rows: Sequence[Any], **facts: str) -> Asked:
                return tx.ask(statement, worker=found.worker, rows=batch(rows), **facts) if rows else list

            session = self.deferring(tx.connection)
            if kinds == 1 and found.steps and not (session is not None and session.keeps):
                written = tx.run(self._quick_record, worker=found.worker, rows=batch(found.steps))
                return lambda: found.answers(recorded=written == len(found.steps))
            if session is not None and alone and kinds > 1:
                session.together()
            begun = rows_of(self._quick_start, found.starts, channel=_CHANNEL, payload=payload)
            recorded = rows_of(f"{self._quick_record} RETURNING 1", found.steps)
            ended = rows_of(self._quick_end, found.ends, channel=_CHANNEL, payload=_ENDED)

            def answers() -> list[Any]:
                found_answers = found.answers(
                    started=[row[0] for row in begun()] == [len(found.starts)],
                    recorded=len(recorded()) == len(found.steps),
                    ended={row[0] for row in ended()},
                )
                if session is not None and alone:
                    session.forget()
                return found_answers

            return answers

        kinds = sum(map(bool, (found.starts, found.steps, found.ends)))
        alone = kinds == 1 or (CAN_PIPELINE and not self._pgbouncer)
        if self._pgbouncer and found.ends:  # they take locks, and only a transaction has our limit for that
            alone = False
        return Way(ask, alone=alone, made_ready=found.makes_ready)

    def notify(self, tx: Tx, payload: str) -> None:
        tx.send("SELECT pg_notify(%(channel)s, %(payload)s)", channel=_CHANNEL, payload=payload)

    def committed(self, tx: Tx) -> None:
        """The commit carried the notification."""

    def listener(self) -> Listener:
        return Pause() if self._pgbouncer else PostgresListener(self)

    def liveness(self) -> Liveness:
        return NoLock() if self._pgbouncer else AdvisoryLocks(self)

    @contextmanager
    def migration_lock(self, tx: Tx) -> Iterator[None]:
        tx.query(
            "SELECT set_config('lock_timeout', '0', true)"
        )  # others may migrate, and users work, for long
        tx.query("SELECT pg_advisory_xact_lock(%(key)s)", key=_MIGRATION_LOCK)
        yield  # the commit releases it

    def script(self, connection: Any, text: str) -> None:
        connection.execute(text)

    def close(self) -> None:
        self.watch.close()


class PostgresListener:
    longest = 1.5

    def __init__(self, driver: PostgresDriver) -> None:
        self._own = driver.own
        self._connection = driver.connect()
        self._connection.execute(f"LISTEN {_CHANNEL}")

    def wait(self, seconds: float) -> list[str]:
        notices = self._connection.notifies(timeout=seconds, stop_after=1)
        return [notice.payload for notice in notices if notice.pid not in self._own]

    def interrupt(self) -> None:
        """It waits for so short a time that it ends by itself."""

    def close(self) -> None:
        self._connection.close()


class AdvisoryLocks(SessionLock):
    """A worker is alive as long as the session that holds its advisory lock."""

    errors = psycopg.Error

    def __init__(self, driver: PostgresDriver) -> None:
        super().__init__()
        self._driver = driver

    def vacant(self, workers: Sequence[WorkerRow]) -> set[str]:
        held = {row[0] for row in self._open().execute(HELD_LOCKS).fetchall()}
        return {worker.id for worker in workers if worker.lock_no not in held}

    def _connect(self) -> Any:
        connection = self._driver.connect()
        self._driver.unhurried(connection)
        return connection

    def _closed(self, connection: Any) -> bool:
        return bool(connection.closed)

    def _socket(self, connection: Any) -> Any:
        return connection

    def _ping(self, connection: Any) -> None:
        connection.execute("SELECT 1")

    def _try_lock(self, connection: Any, lock_no: int) -> bool:
        rows = connection.execute("SELECT pg_try_advisory_lock(%s)", [lock_no]).fetchall()
        return bool(rows[0][0])


class Pause:
    """For servers without notifications: look again after a while."""

    longest = 0.25

    def wait(self, seconds: float) -> list[str]:
        time.sleep(min(seconds, self.longest))
        return [""]

    def interrupt(self) -> None:
        """It waits for so short a time that it ends by itself."""

    def close(self) -> None:
        pass
