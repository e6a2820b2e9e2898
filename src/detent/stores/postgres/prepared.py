"""Our own statements on PostgreSQL, through libpq and without psycopg's cursor.

A cursor takes about 50 microseconds a statement, a quarter of what a small commit takes altogether: for
finding out how to send it, and for waiting in a way that lets Ctrl-C through.  What we send is known, and
only the main thread has a Ctrl-C to hear; the others wait inside of libpq, without Python's lock.

Statements whose answer is not wanted yet travel with the next one (`defer`, `ask`): a transaction of ten
statements is two or three round trips, and asks as often for Python's lock, which a busy loop is slow to
hand over.

A statement is prepared when it comes for the second time, on each connection for itself.
"""

from __future__ import annotations

import re
import select
import threading
import weakref
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import psycopg
from psycopg import generators, pq
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.rows import tuple_row

from ...errors import TransactionEnded
from ...process_forks import Lineage

MOST = 300  # statements that a connection keeps; the others are planned each time
_INT8 = 20  # the type of every integer that we send
_DONE = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)
CAN_PIPELINE = hasattr(select, "poll")


class Call:
    """A statement on its way, and its answer."""

    __slots__ = ("name", "prepares", "result", "rows", "statement", "text", "types", "values", "wanted")

    def __init__(self, statement: str, params: Mapping[str, Any], *, wanted: bool = False) -> None:
        self.statement = statement
        self.text, order = _numbered(statement)
        given = [params[name] for name in order]
        self.types = tuple([_INT8 if isinstance(value, int) else 0 for value in given])
        self.values: list[Any] = [None if value is None else _text(value) for value in given]
        self.name: bytes | None = None  # under which it is prepared, or to be
        self.prepares = False
        self.result: Any = None
        self.wanted = wanted  # its rows are, and are read as soon as they are there:
        self.rows: list[tuple[Any, ...]] = []  # who asked may look when the connection is another's again


class Session:
    """One connection, and the statements that are prepared on it."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = weakref.proxy(connection)
        self.pgconn: pq.abc.PGconn = connection.pgconn
        self._names: dict[tuple[str, tuple[int, ...]], bytes | None] = {}  # None: came once
        self._prepared = 0
        self._queue: list[Call] = []
        self._begun = False
        self.asked = 0  # how often something was sent
        self.flights = 0  # what was sent and has not been answered
        self._transformer = Transformer()  # (with the connection it would be a cycle)

    def begin(self, command: str) -> None:
        """Begin a transaction, with the first statement in it."""
        self.forget()
        self._begun = True
        self.defer(command, {})

    def together(self) -> None:
        """Send what is asked from here on at once, when its first answer is wanted, as one transaction.

        The server commits it at the end of the pipeline: that needs no second round trip.
        """
        self.forget()
        self._begun = True

    @property
    def keeps(self) -> bool:
        """Whether statements are kept until an answer is wanted."""
        return self._begun and CAN_PIPELINE

    def commit(self) -> str:
        """Commit, with all that waits to be sent; return what the server says that it did."""
        result = self.execute("COMMIT", {})
        self.forget()
        return (result.command_status or b"").decode()

    def forget(self) -> None:
        """What was not sent yet belongs to a transaction that is over."""
        self._queue.clear()
        self._begun = False

    def defer(self, statement: str, params: Mapping[str, Any]) -> None:
        """Run a statement whose result is not read: with the next one, or with the commit."""
        self._later(Call(statement, params))

    def ask(self, statement: str, params: Mapping[str, Any]) -> Call:
        """Run a statement whose rows are wanted later."""
        return self._later(Call(statement, params, wanted=True))

    def _later(self, call: Call) -> Call:
        if self.keeps:
            self._queue.append(call)
        else:
            self._run(call)
        return call

    def answer(self, asked: Call) -> list[tuple[Any, ...]]:
        """The rows that were asked for."""
        if asked.result is None:
            self._run_all()
        return asked.rows

    def execute(self, statement: str, params: Mapping[str, Any]) -> pq.abc.PGresult:
        call = Call(statement, params)
        if self._queue:
            self._queue.append(call)
            self._run_all()
        else:
            self._run(call)
        result: pq.abc.PGresult = call.result
        return result

    def rows(self, result: pq.abc.PGresult) -> list[tuple[Any, ...]]:
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)

    def _prepare(self, call: Call) -> None:
        """Find under which name it is prepared here, if it is or should be."""
        key = (call.statement, call.types)
        known = self._names.get(key, b"")
        if known is None:
            self._prepared += 1
            call.name, call.prepares = f"detent_{self._prepared}".encode(), True
        elif known:
            call.name = known
        elif len(self._names) < MOST:  # it comes for the first time
            self._names[key] = None

    def _ready(self, call: Call, result: pq.abc.PGresult) -> None:
        """It is prepared."""
        done(result)
        self._names[call.statement, call.types] = call.name

    def _answered(self, call: Call, result: pq.abc.PGresult) -> None:
        call.result = done(result)
        if call.wanted:
            call.rows = self.rows(result)

    # One alone

    def _run(self, call: Call) -> None:
        self.asked += 1
        self._prepare(call)
        background = threading.current_thread() is not threading.main_thread()
        pgconn = self.pgconn
        if call.prepares and call.name is not None:
            self._ready(call, pgconn.prepare(call.name, call.text, call.types))
        if background:
            if call.name is None:
                result = pgconn.exec_params(call.text, call.values, call.types)
            else:
                result = pgconn.exec_prepared(call.name, call.values)
        else:
            self._send(call)
            results = self._connection.wait(generators.execute(pgconn))
            if not results:
                raise self.lost()
            result = results[-1]
        self._answered(call, result)

    def _send(self, call: Call) -> None:
        if call.name is None:
            self.pgconn.send_query_params(call.text, call.values, call.types)
        else:
            self.pgconn.send_query_prepared(call.name, call.values)

    # Several at once

    def _run_all(self) -> None:
        """Send all that waits, then take the answers; the first that is an error is raised."""
        flight = self.launch()
        flight.wait()
        flight.end()

    def launch(self) -> Flight:
        """Send all that waits, as far as the network takes it at once."""
        calls, self._queue = self._queue, []
        self.asked += 1
        pgconn = self.pgconn
        try:
            pgconn.enter_pipeline_mode()
            preparing: set[tuple[str, tuple[int, ...]]] = set()
            for call in calls:
                self._prepare(call)
                if call.prepares and (call.statement, call.types) in preparing:
                    call.name, call.prepares = None, False  # another one of these does it
                if call.prepares and call.name is not None:
                    preparing.add((call.statement, call.types))
                    pgconn.send_prepare(call.name, call.text, call.types)
                self._send(call)
            pgconn.pipeline_sync()
            self.flights += 1
            return Flight(self, calls, flushed=not pgconn.flush())
        except BaseException:
            self.give_up()
            raise

    def give_up(self) -> None:
        """Close the connection: its state is unknown."""
        self._connection.close()

    def landed(self, calls: Sequence[Call], results: Sequence[pq.abc.PGresult]) -> None:
        """Hand the answers to their statements; the first that is an error is raised."""
        left = iter(results)
        for call in calls:
            if call.prepares:
                self._ready(call, next(left))
            self._answered(call, next(left))
        for refused in left:  # it could not commit
            done(refused)

    def lost(self) -> psycopg.OperationalError:
        """There are fewer answers than statements."""
        said = self.pgconn.get_error_message().strip()
        return psycopg.OperationalError(said or "the connection was lost before the answer came")


class Flight:
    """Statements that were sent together, and their answers, which come one after the other.

    `arrived` and `wait` take them, from any thread, one at a time.  An exception that interrupts them
    closes the connection.
    """

    def __init__(self, session: Session, calls: Sequence[Call], *, flushed: bool) -> None:
        self._session = session
        self._pgconn = session.pgconn
        self._calls = calls
        self._results: list[pq.abc.PGresult] = []
        self._between = True  # the answers of one statement have ended, and those of the next not begun
        self._over = False
        self.flushed = flushed  # all of it is on its way

    def arrived(self) -> bool:
        """Take what has come, without waiting; whether that was all."""
        try:
            self._pgconn.consume_input()
            return self._take()
        except BaseException:
            self._session.give_up()
            raise

    def wait(self) -> None:
        """Take all answers.

        What comes while we still send is taken too, or the server would stop reading.
        """
        try:
            while not self.flushed:
                if self._ready_for(select.POLLIN | select.POLLOUT) & ~select.POLLOUT:
                    self._pgconn.consume_input()
                self.flushed = not self._pgconn.flush()
            while not self._take():
                self._ready_for(select.POLLIN)
                self._pgconn.consume_input()
        except BaseException:
            self._session.give_up()
            raise

    def end(self) -> None:
        """Hand the answers out, once all are there; the first that is an error is raised."""
        self._session.landed(self._calls, self._results)

    def _take(self) -> bool:
        pgconn = self._pgconn
        while not self._over:
            if pgconn.is_busy():
                return False
            result = pgconn.get_result()
            if result is None:
                if self._between:  # the server has ended the session, and said why in the answer before
                    raise self._session.lost()
                self._between = True
            elif result.status == pq.ExecStatus.PIPELINE_SYNC:
                self._over = True
                self._session.flights -= 1
                if not self._session.flights:
                    pgconn.exit_pipeline_mode()
            else:
                self._results.append(result)
                self._between = False
        return True

    def _ready_for(self, events: int) -> int:
        poll = select.poll()
        poll.register(self._pgconn.socket, events)
        return poll.poll()[0][1]


def done(result: pq.abc.PGresult) -> pq.abc.PGresult:
    """The result, if it is not an error."""
    if result.status in _DONE:
        return result
    error = error_from_result(result)
    if error.sqlstate is None:  # no server said so
        raise psycopg.OperationalError(str(error))
    raise error


def run_script(connection: PgConnection, script: str) -> list[pq.abc.PGresult]:
    """Run statements in one round trip, without psycopg's own BEGIN; return the results up to an error."""
    connection.pgconn.send_query(script.encode())
    results: list[pq.abc.PGresult] = connection.wait(generators.execute(connection.pgconn))
    if not results:
        said = connection.pgconn.get_error_message().strip()
        raise psycopg.OperationalError(said or "the connection was lost before the answer came")
    return results


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


class PgConnection(psycopg.Connection[Any]):
    """A connection of Detent; once it has a session, its statements go through libpq."""

    session: Session | None = None
    settings = ""  # statements that set what holds in one transaction
    owner: str | None = None  # whose transaction was begun here, if it is that of a user's code

    _lineage = -1  # the process that it was opened in

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lineage = Lineage.count

    def _get_tx_start_command(self) -> bytes:
        """psycopg begins a transaction: the one of the user's code is not open any more."""
        if self.owner is not None:
            raise TransactionEnded(self.owner)
        return super()._get_tx_start_command()

    waits = 0  # how often psycopg has waited for the server
    unanswered = False  # it was given up while it waited for an answer

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        self.waits += 1
        return super().wait(*args, **kwargs)

    @property
    def waiting(self) -> int | None:
        """The number of the statement that waits for its answer; None when none does."""
        if self.closed or self.pgconn.transaction_status != pq.TransactionStatus.ACTIVE:
            return None
        return self.waits + (self.session.asked if self.session is not None else 0)

    def __del__(self) -> None:  # type: ignore[override]  # psycopg passes the warning as an argument
        # A late thread may have opened it after its store was closed: then only that thread can close it.
        # In a forked child it is the parent's.
        if hasattr(self, "pgconn") and not self.closed and self._lineage == Lineage.count:
            self.close()

    def own_cursor(self) -> Any:
        return self.cursor(row_factory=tuple_row) if self.session is None else Cursor(self.session)


def _text(value: Any) -> bytes:
    """A parameter as libpq wants it: a text that ends at the first NUL, so there must be none."""
    if isinstance(value, int):
        return b"%d" % value
    if "\x00" in value:
        raise psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
    return str(value).encode()


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
