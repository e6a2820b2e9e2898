"""Several statements of Detent in one packet, on MariaDB.

Each statement by itself is a round trip, and acquires the GIL again, which a busy loop releases only every
few milliseconds.  A statement whose answer is not needed yet is kept, and sent with the next one whose answer
is; START TRANSACTION goes with the first statement, and COMMIT with the last ones.

The server executes the statements of a packet one after the other, and stops at the first error.  It does not
execute the statements after it, so the COMMIT is not executed.  The transaction is then rolled back, as after
any other error.

Only connections that execute nothing but Detent's own statements have a session.  On all others the server
refuses a second statement.  On MySQL no connection has one: a KILL QUERY that arrives between two statements
of a packet ends it without an answer.  MariaDB then ends the idle transaction, and with it the connection,
after STOPPED_AFTER seconds.  MySQL has no such limit, and the client would wait forever.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, Protocol

from .literals import write

MOST_TEXT = 1 << 20  # characters of several statements in one packet
BEGIN, COMMIT = "START TRANSACTION", "COMMIT"


class Wire(Protocol):
    """A connection that sends several statements at once."""

    largest: int | None  # bytes in one packet

    def execute_all(self, statements: list[str]) -> list[Any]:
        """Execute them in order, up to the first error, which is raised; return their results."""
        ...


class Call:
    """A statement on its way, and its answer."""

    __slots__ = ("changed", "rows", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.rows: list[tuple[Any, ...]] | None = None  # None: not answered yet
        self.changed = 0


class Session:
    """One connection, and the statements that wait to be sent on it."""

    def __init__(self, connection: Wire) -> None:
        self._connection: Wire = weakref.proxy(connection)
        self._most = min(MOST_TEXT, (connection.largest or MOST_TEXT) // 4)  # four bytes a character
        self._queue: list[Call] = []
        self._length = 0  # characters in it
        self._begun = False
        self._sent = False  # since the transaction was begun
        self.asked = 0  # how often something was sent

    def begin(self) -> None:
        """Begin a transaction, with the first statement in it."""
        self.forget()
        self._begun = True
        self._append(Call(BEGIN))

    def commit(self) -> None:
        """Commit, with all that waits to be sent."""
        if self._sent or len(self._queue) > 1:  # else the server does not know of it
            self._append(Call(COMMIT))
            self.flush()
        self.forget()

    def forget(self) -> None:
        """Drop what was not sent: the transaction that it belongs to is over."""
        self._queue, self._length = [], 0
        self._begun = self._sent = False

    def defer(self, statement: str, params: Mapping[str, Any]) -> None:
        """Execute a statement whose result is not read: with the next one, or with the commit."""
        self.later(write(statement, params))

    def ask(self, statement: str, params: Mapping[str, Any]) -> Call:
        """Execute a statement whose rows are wanted later."""
        return self.later(write(statement, params))

    def answer(self, asked: Call) -> list[tuple[Any, ...]]:
        """The rows that were asked for."""
        if asked.rows is None:
            self.flush()
        assert asked.rows is not None
        return asked.rows

    def later(self, text: str) -> Call:
        """Execute a statement that has its values in it, with the next one or with the commit."""
        call = Call(text)
        self._append(call)
        if not self._begun:
            self.flush()
        return call

    def execute(self, statement: str, params: Mapping[str, Any]) -> Call:
        return self.execute_text(write(statement, params))

    def execute_text(self, text: str) -> Call:
        """Execute a statement that has its values in it, after all that waits."""
        call = Call(text)
        self._append(call)
        self.flush()
        return call

    def flush(self) -> None:
        """Send all that waits, and take the answers."""
        calls, self._queue, self._length = self._queue, [], 0
        if not calls:
            return
        self._sent = True
        self.asked += 1
        results = self._connection.execute_all([call.text for call in calls])
        for call, result in zip(calls, results, strict=True):
            call.rows = list(result.rows or ())
            call.changed = result.affected_rows

    def _append(self, call: Call) -> None:
        if self._queue and self._length + len(call.text) > self._most:
            self.flush()
        self._queue.append(call)
        self._length += len(call.text)


class Cursor:
    """As much of a cursor as our own statements need."""

    __slots__ = ("_call", "_session")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._call: Call | None = None

    def execute(self, statement: str, params: Mapping[str, Any]) -> None:
        self._call = self._session.execute(statement, params)

    def fetchall(self) -> list[tuple[Any, ...]]:
        assert self._call is not None
        return self._session.answer(self._call)

    @property
    def rowcount(self) -> int:
        assert self._call is not None
        return self._call.changed

    def close(self) -> None:
        self._call = None
