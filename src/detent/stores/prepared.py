"""Our own statements on PostgreSQL, through libpq and without psycopg's cursor.

A cursor takes about 50 microseconds a statement, a quarter of what a small commit takes altogether: for
finding out how to send it, and for waiting in a way that lets Ctrl-C through.  What we send is known, and
only the main thread has a Ctrl-C to hear; the others wait inside of libpq, without Python's lock.

A statement is prepared when it comes for the second time, on each connection for itself.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import psycopg
from psycopg import generators, pq
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.rows import tuple_row

MOST = 300  # statements that a connection keeps; the others are planned each time
_INT8 = 20  # the type of every integer that we send
_DONE = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)


class Session:
    """One connection, and the statements that are prepared on it."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = weakref.proxy(connection)
        self._pgconn: pq.abc.PGconn = connection.pgconn
        self._names: dict[tuple[str, tuple[int, ...]], bytes | None] = {}  # None: came once
        self._prepared = 0
        self._transformer = Transformer(connection)

    def execute(self, statement: str, params: Mapping[str, Any]) -> pq.abc.PGresult:
        text, order = _numbered(statement)
        given = [params[name] for name in order]
        types = tuple([_INT8 if isinstance(value, int) else 0 for value in given])
        values: list[Any] = [None if value is None else _text(value) for value in given]
        name = self._name(statement, text, types)
        if not _in_background():
            if name is None:
                self._pgconn.send_query_params(text, values, types)
            else:
                self._pgconn.send_query_prepared(name, values)
            return self._answer()
        if name is None:
            return self._done(self._pgconn.exec_params(text, values, types))
        return self._done(self._pgconn.exec_prepared(name, values))

    def command(self, text: str) -> str:
        """Run a statement without parameters; return what the server says that it did."""
        if _in_background():
            result = self._done(self._pgconn.exec_(text.encode()))
        else:
            self._pgconn.send_query(text.encode())
            result = self._answer()
        return (result.command_status or b"").decode()

    def _answer(self) -> pq.abc.PGresult:
        """What the server answers; whoever presses Ctrl-C meanwhile is heard."""
        return self._done(self._connection.wait(generators.execute(self._pgconn))[-1])

    def rows(self, result: pq.abc.PGresult) -> list[tuple[Any, ...]]:
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)

    def _name(self, statement: str, text: bytes, types: tuple[int, ...]) -> bytes | None:
        """Under which name it is prepared here, if it is."""
        key = (statement, types)
        known = self._names.get(key, b"")
        if known:
            return known
        if known is not None:  # it comes for the first time
            if len(self._names) < MOST:
                self._names[key] = None
            return None
        self._prepared += 1
        name = f"detent_{self._prepared}".encode()
        self._done(self._pgconn.prepare(name, text, types))
        self._names[key] = name
        return name

    def _done(self, result: pq.abc.PGresult) -> pq.abc.PGresult:
        if result.status in _DONE:
            return result
        error = error_from_result(result)
        if error.sqlstate is None:  # no server said so
            raise psycopg.OperationalError(str(error))
        raise error


class Cursor:
    """As much of a cursor as our own statements need."""

    __slots__ = ("_result", "_session")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._result: Any = None

    def execute(self, statement: str, params: Mapping[str, Any]) -> None:
        self._result = self._session.execute(statement, params)

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._session.rows(self._result)

    @property
    def rowcount(self) -> int:
        changed = self._result.command_tuples
        return -1 if changed is None else int(changed)

    def close(self) -> None:
        self._result = None


class Connection(psycopg.Connection[Any]):
    """A connection of ours; once it has a session, its statements take the short way."""

    session: Session | None = None

    def own_cursor(self) -> Any:
        return self.cursor(row_factory=tuple_row) if self.session is None else Cursor(self.session)

    def command(self, text: str) -> str:
        """Run a statement without parameters; return what the server says that it did."""
        if self.session is None:
            return self.execute(text).statusmessage or ""
        return self.session.command(text)


def _text(value: Any) -> bytes:
    """A parameter as libpq wants it: a text that ends at the first NUL, so there must be none."""
    if isinstance(value, int):
        return b"%d" % value
    if "\x00" in value:
        raise psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
    return str(value).encode()


def _in_background() -> bool:
    return threading.current_thread() is not threading.main_thread()


@lru_cache(maxsize=1024)
def _numbered(statement: str) -> tuple[bytes, tuple[str, ...]]:
    """`%(name)s` as `$1`, and the names in that order."""
    order: list[str] = []

    def place(found: re.Match[str]) -> str:
        if found[0] == "%%":
            return "%"
        if found[1] not in order:
            order.append(found[1])
        return f"${order.index(found[1]) + 1}"

    text = re.sub(r"%%|%\((\w+)\)s", place, statement)
    return text.encode(), tuple(order)
