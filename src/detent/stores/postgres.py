"""PostgreSQL through psycopg 3.

Wake-ups by LISTEN/NOTIFY, signs of life by session-level advisory locks, each on
a connection of its own: nothing on the path of the work needs session state.
Behind PgBouncer in transaction mode (`?pgbouncer=true` in the URL) statements are
not prepared, wake-ups become polling, and a dead worker is noticed when its lease
ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import DatabaseUnavailable, MissingDriver
from ..kernel.model import Operation, Record, Step, Verdict, WorkerRow
from .base import Listener, Office, Trouble, Tx, batch, named_to_pyformat, pyformat
from .statements import FINAL_STEP, build, columns_of, kind_of

try:
    import psycopg
    from psycopg import errors as pg_errors
    from psycopg.rows import tuple_row
except ImportError:  # said when somebody asks for this database
    psycopg = None  # type: ignore[assignment]

_CHANNEL = "detent"
_TYPES = {"int": "bigint", "long": "text", "text": "text"}
_MIGRATION_LOCK = 0x6465_7465_6E74  # "detent"


class PostgresDialect:
    skip_locked = "SKIP LOCKED"
    # Conflicts with deleting the row, not with the heartbeat's update of it.
    fence = "FOR KEY SHARE"

    def lock(self, alias: str) -> str:
        return f"FOR UPDATE OF {alias}"

    def rows(self, *columns: str) -> str:
        types = ", ".join(f"{c} {_TYPES[kind_of(c)]}" for c in columns)
        return f"json_to_recordset(CAST(:rows AS json)) AS x({types})"

    def update(self, table: str, columns: tuple[str, ...], assignments: str, where: str) -> str:
        return f"UPDATE {table} AS t SET {assignments} FROM {self.rows(*columns)} WHERE {where}"

    def upsert_unless(
        self, table: str, columns: tuple[str, ...], key: tuple[str, ...], updated: tuple[str, ...], unless: str
    ) -> str:
        names = ", ".join(columns)
        changes = ", ".join(f"{c} = excluded.{c}" for c in updated)
        return (
            f"INSERT INTO {table} ({names}) SELECT {names} FROM {self.rows(*columns)}"
            f" ON CONFLICT ({', '.join(key)}) DO UPDATE SET {changes} WHERE NOT ({table}.{unless})"
        )

    def insert_new(self, table: str, columns: tuple[str, ...], key: tuple[str, ...]) -> str:
        names = ", ".join(columns)
        return (
            f"INSERT INTO {table} ({names}) SELECT {names} FROM {self.rows(*columns)}"
            f" ON CONFLICT ({', '.join(key)}) DO NOTHING"
        )


def _record(dialect: PostgresDialect) -> str:
    """Journal entries of one worker, fenced, in one statement and so in one round trip."""
    columns = columns_of(Step)
    names = ", ".join(columns)
    changes = ", ".join(f"{c} = excluded.{c}" for c in columns[2:])
    return named_to_pyformat(f"""
WITH office AS (SELECT id FROM detent_workers WHERE id = :worker FOR KEY SHARE)
INSERT INTO detent_steps ({names})
SELECT {names} FROM {dialect.rows(*columns)}
 WHERE EXISTS (SELECT 1 FROM office)
    ON CONFLICT (run_id, step_key) DO UPDATE SET {changes}
 WHERE detent_steps.state NOT IN {FINAL_STEP}""")


class PostgresDriver:
    name = "PostgreSQL"
    writing = None
    reading = None
    statements = pyformat(build(PostgresDialect()))
    _quick = _record(PostgresDialect())

    def __init__(self, url: str, *, pgbouncer: bool = False) -> None:
        if psycopg is None:
            raise MissingDriver(self.name, "postgres")
        self._url = url
        self._pgbouncer = pgbouncer

    def connect(self) -> Any:
        return psycopg.connect(
            self._url,
            autocommit=True,
            prepare_threshold=None if self._pgbouncer else 3,
            connect_timeout=5,
            application_name="detent",
        )

    def begin(self, connection: Any) -> None:
        connection.execute("BEGIN")

    def cursor(self, connection: Any) -> Any:
        return connection.cursor(row_factory=tuple_row)

    def adapt(self, fragment: str) -> str:
        return named_to_pyformat(fragment)

    def trouble(self, error: BaseException) -> Trouble:
        if isinstance(error, pg_errors.UniqueViolation):
            return Trouble.UNIQUE
        if isinstance(error, pg_errors.DeadlockDetected | pg_errors.SerializationFailure):
            return Trouble.RETRY
        if isinstance(error, DatabaseUnavailable):
            return Trouble.GONE
        if isinstance(error, pg_errors.InsufficientResources):  # a full disk, too many connections
            return Trouble.GONE
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            return Trouble.GONE
        return Trouble.OTHER

    def is_missing_table(self, error: BaseException) -> bool:
        return isinstance(error, pg_errors.UndefinedTable)

    def quick(self, operations: Sequence[Operation]) -> Callable[[Tx], list[Any] | None] | None:
        worker = None
        for op in operations:
            if not isinstance(op, Record) or op.executions or op.children or op.consume:
                return None
            if worker is not None and op.worker != worker:
                return None
            worker = op.worker
        latest = {(step.run_id, step.key): step for op in operations for step in op.steps}  # type: ignore[attr-defined]

        def record(tx: Tx) -> list[Any] | None:
            written = tx.run(self._quick, worker=worker, rows=batch(list(latest.values())))
            # None: the lease may be lost, the long way will tell.
            return [Verdict.APPLIED] * len(operations) if written == len(latest) else None

        return record

    def notify(self, tx: Tx, payload: str) -> None:
        tx.query("SELECT pg_notify(%(channel)s, %(payload)s)", channel=_CHANNEL, payload=payload)

    def committed(self, tx: Tx) -> None:
        """The commit carried the notification."""

    def listener(self) -> Listener:
        return Pause() if self._pgbouncer else PostgresListener(self)

    def office(self) -> Office:
        return LeaseOnly() if self._pgbouncer else AdvisoryLocks(self)

    def migration_lock(self, tx: Tx) -> None:
        tx.query("SELECT pg_advisory_xact_lock(%(key)s)", key=_MIGRATION_LOCK)

    def script(self, connection: Any, text: str) -> None:
        connection.execute(text)

    def close(self) -> None:
        pass


class PostgresListener:
    def __init__(self, driver: PostgresDriver) -> None:
        self._connection = driver.connect()
        self._connection.execute(f"LISTEN {_CHANNEL}")

    def wait(self, seconds: float) -> list[str]:
        return [notice.payload for notice in self._connection.notifies(timeout=seconds, stop_after=1)]

    def close(self) -> None:
        self._connection.close()


class AdvisoryLocks:
    """A worker lives as long as the session that holds its advisory lock."""

    def __init__(self, driver: PostgresDriver) -> None:
        self._driver = driver
        self._connection: Any = None
        self._mine: int | None = None

    def take(self, worker: WorkerRow) -> None:
        if self._connection is None or self._connection.closed:
            self._connection = self._driver.connect()
            self._mine = None
        if self._mine != worker.lock_no:
            if self._mine is not None:
                self._connection.execute("SELECT pg_advisory_unlock_all()")
            self._connection.execute("SELECT pg_advisory_lock(%s)", [worker.lock_no])
            self._mine = worker.lock_no

    def vacant(self, workers: Sequence[WorkerRow]) -> set[str]:
        rows = self._connection.execute(
            "SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks"
            " WHERE locktype = 'advisory' AND granted"
            "   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        ).fetchall()
        held = {row[0] for row in rows}
        return {worker.id for worker in workers if worker.lock_no not in held}

    def leave(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self._mine = None


class Pause:
    """Where nobody can call us: look again after a while."""

    poll = 0.25

    def wait(self, seconds: float) -> list[str]:
        time.sleep(min(seconds, self.poll))
        return [""]

    def close(self) -> None:
        pass


class LeaseOnly:
    """Where a session proves nothing: a dead worker is known by its lease."""

    def take(self, worker: WorkerRow) -> None:
        pass

    def vacant(self, workers: Sequence[WorkerRow]) -> set[str]:
        return set()

    def leave(self) -> None:
        pass
