"""MySQL and MariaDB through PyMySQL.

SQL is what MySQL 8.0 and MariaDB 10.6+ both understand; the tests run MariaDB.
Neither has partial indexes, UPDATE ... RETURNING or notifications.  A process
that listens sleeps inside the server; one that has news ends those sleeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from ..errors import DatabaseUnavailable, MissingDriver
from ..kernel.model import Operation, WorkerRow
from .base import Listener, Office, Trouble, Tx, named_to_pyformat, pyformat
from .statements import build, kind_of

try:
    import pymysql
except ImportError:  # said when somebody asks for this database
    pymysql = None  # type: ignore[assignment]

_TYPES = {"int": "BIGINT", "long": "LONGTEXT", "text": "VARCHAR(300)"}
_MIGRATION_LOCK = "detent.migrate"
_DEADLOCK, _LOCK_TIMEOUT, _DUPLICATE, _NO_TABLE, _DISK_FULL, _INTERRUPTED = 1213, 1205, 1062, 1146, 1021, 1317
_LISTENING = "detent listens"


class MySqlDialect:
    skip_locked = "SKIP LOCKED"
    fence = "LOCK IN SHARE MODE"  # MariaDB does not know FOR SHARE

    def lock(self, alias: str) -> str:
        return "FOR UPDATE"  # a JSON_TABLE has no rows to lock

    def rows(self, *columns: str) -> str:
        types = ", ".join(f"{c} {_TYPES[kind_of(c)]} PATH '$.{c}'" for c in columns)
        return f"JSON_TABLE(:rows, '$[*]' COLUMNS ({types})) AS x"

    def update(self, table: str, columns: tuple[str, ...], assignments: str, where: str) -> str:
        # Assignments are made from left to right, each seeing those before it.
        changes = ", ".join(f"t.{part.strip()}" for part in _split(assignments))
        return f"UPDATE {table} AS t JOIN {self.rows(*columns)} ON {where} SET {changes}"

    def upsert_unless(
        self, table: str, columns: tuple[str, ...], key: tuple[str, ...], updated: tuple[str, ...], unless: str
    ) -> str:
        names = ", ".join(columns)
        # The condition reads the old row, so the column it asks for is changed last.
        decisive = unless.split()[0]
        ordered = [c for c in updated if c != decisive] + [decisive]
        changes = ", ".join(f"{c} = IF({table}.{unless}, {table}.{c}, VALUES({c}))" for c in ordered)
        return (
            f"INSERT INTO {table} ({names}) SELECT {', '.join('x.' + c for c in columns)} FROM {self.rows(*columns)}"
            f" ON DUPLICATE KEY UPDATE {changes}"
        )

    def insert_new(self, table: str, columns: tuple[str, ...], key: tuple[str, ...]) -> str:
        names = ", ".join(columns)
        return (
            f"INSERT INTO {table} ({names}) SELECT {', '.join('x.' + c for c in columns)} FROM {self.rows(*columns)}"
            f" ON DUPLICATE KEY UPDATE {key[0]} = {table}.{key[0]}"
        )


def _split(assignments: str) -> list[str]:
    """Split at the commas outside of parentheses."""
    parts, depth = [""], 0
    for char in assignments:
        depth += (char == "(") - (char == ")")
        if char == "," and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return parts


class MySqlDriver:
    name = "MySQL"
    writing = None
    reading = None
    statements = pyformat(build(MySqlDialect()))

    def __init__(self, url: str) -> None:
        if pymysql is None:
            raise MissingDriver(self.name, "mysql")
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query))
        self._connect: dict[str, Any] = {
            "host": parts.hostname or "127.0.0.1",
            "port": parts.port or 3306,
            "user": unquote(parts.username or ""),
            "password": unquote(parts.password or ""),
            "database": unquote(parts.path.lstrip("/")),
            "charset": "utf8mb4",
            "connect_timeout": 5,
            "client_flag": 2,  # FOUND_ROWS: an update that changes nothing still found its row
            "init_command": "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        }
        if "unix_socket" in options:
            self._connect["unix_socket"] = options["unix_socket"]

    def connect(self) -> Any:
        return pymysql.connect(autocommit=True, **self._connect)

    def begin(self, connection: Any) -> None:
        connection.begin()

    def cursor(self, connection: Any) -> Any:
        return connection.cursor(pymysql.cursors.Cursor)

    def adapt(self, fragment: str) -> str:
        return named_to_pyformat(fragment)

    def trouble(self, error: BaseException) -> Trouble:
        code = error.args[0] if isinstance(error, pymysql.MySQLError) and error.args else None
        if code == _DUPLICATE:
            return Trouble.UNIQUE
        if code in (_DEADLOCK, _LOCK_TIMEOUT):
            return Trouble.RETRY
        if isinstance(error, DatabaseUnavailable):
            return Trouble.GONE
        if isinstance(error, pymysql.OperationalError | pymysql.InterfaceError) or code == _DISK_FULL:
            return Trouble.GONE
        return Trouble.OTHER

    def is_missing_table(self, error: BaseException) -> bool:
        return isinstance(error, pymysql.ProgrammingError) and error.args[0] == _NO_TABLE

    def quick(self, operations: Sequence[Operation]) -> None:
        """There is no single statement that both checks the lease and writes."""

    def notify(self, tx: Tx, payload: str) -> None:
        tx.news.append(payload)

    def committed(self, tx: Tx) -> None:
        """End the sleeps of those who listen; they look for themselves what is new."""
        listening = tx.query(
            "SELECT id FROM information_schema.processlist"
            " WHERE db = DATABASE() AND id <> CONNECTION_ID() AND info LIKE %(mark)s",
            mark=f"DO SLEEP(%{_LISTENING}%",
        )
        for (connection_id,) in listening:
            try:
                tx.run(f"KILL QUERY {int(connection_id)}")
            except pymysql.MySQLError:  # it woke up by itself
                continue

    def listener(self) -> Listener:
        return MySqlListener(self)

    def office(self) -> Office:
        return NamedLocks(self)

    def migration_lock(self, tx: Tx) -> None:
        # DDL commits, so the lock is the session's; it is released with the connection or by name.
        tx.query("SELECT GET_LOCK(%(name)s, 600)", name=_MIGRATION_LOCK)

    def script(self, connection: Any, text: str) -> None:
        with connection.cursor() as cursor:
            for statement in text.split(";\n"):
                if statement.strip():
                    cursor.execute(statement)

    def close(self) -> None:
        pass


class MySqlListener:
    """Sleeps in the server; whoever has news kills the sleep, not the session."""

    poll = 1.5

    def __init__(self, driver: MySqlDriver) -> None:
        self._connection = driver.connect()

    def wait(self, seconds: float) -> list[str]:
        with self._connection.cursor() as cursor:
            try:
                cursor.execute(f"DO SLEEP({min(seconds, self.poll):.3f}) /* {_LISTENING} */")
            except pymysql.MySQLError as error:
                if not error.args or error.args[0] != _INTERRUPTED:
                    raise
        return [""]

    def close(self) -> None:
        self._connection.close()


class NamedLocks:
    """A worker lives as long as the session that holds its named lock."""

    def __init__(self, driver: MySqlDriver) -> None:
        self._driver = driver
        self._connection: Any = None
        self._mine: str | None = None

    def take(self, worker: WorkerRow) -> None:
        if self._connection is None or not self._connection.open:
            self._connection = self._driver.connect()
            self._mine = None
        if self._mine != worker.id:
            with self._connection.cursor() as cursor:
                if self._mine is not None:
                    cursor.execute("SELECT RELEASE_LOCK(%s)", [_lock_name(self._mine)])
                cursor.execute("SELECT GET_LOCK(%s, 5)", [_lock_name(worker.id)])
            self._mine = worker.id

    def vacant(self, workers: Sequence[WorkerRow]) -> set[str]:
        with self._connection.cursor() as cursor:
            gone = set()
            for worker in workers:
                cursor.execute("SELECT IS_FREE_LOCK(%s)", [_lock_name(worker.id)])
                if cursor.fetchone()[0] == 1:
                    gone.add(worker.id)
            return gone

    def leave(self) -> None:
        if self._connection is not None:
            if self._connection.open:
                self._connection.close()
            self._connection = None
            self._mine = None


def _lock_name(worker: str) -> str:
    return f"detent.{worker}"
