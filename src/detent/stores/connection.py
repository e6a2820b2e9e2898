"""Connections for one purpose each, and pools of them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakSet

from ..errors import DatabaseUnavailable, TransactionEnded
from .driver import LOCK_WAIT, Driver, Trouble, Tx, UserTx
from .process_forks import SuspendedConnection, SuspendedPool

T = TypeVar("T")
log = logging.getLogger("detent")


class Reading(Tx):
    """Queries outside of a transaction."""

    __slots__ = ("_connection",)

    def __init__(self, driver: Driver, connection: Connection) -> None:
        self._connection = connection
        super().__init__(driver, connection.ask_again(lambda connection: connection))

    def query(self, statement: str, **params: Any) -> list[tuple[Any, ...]]:
        return self._connection.ask_again(
            lambda connection: Tx(self.driver, connection).query(statement, **params)
        )

    def ask(self, statement: str, **params: Any) -> Callable[[], list[tuple[Any, ...]]]:
        rows = self.query(statement, **params)
        return lambda: rows


class Connection(SuspendedConnection):
    """A connection of its own for one purpose, opened when first needed, replaced when it breaks.

    A connection for user_connections runs users' statements too, and has the server's own settings.
    """

    def __init__(
        self,
        driver: Driver,
        lock: Any | None = None,
        *,
        user_connections: bool = False,
        lock_wait: float = LOCK_WAIT,
        patience: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._driver = driver
        self._lock: Any = lock if lock is not None else threading.RLock()
        self._lock_wait = lock_wait
        self._patience = patience  # seconds for which queries wait for a database that is away
        self._user_connections = user_connections
        self._connection: Any = None

    @contextmanager
    def transaction(self) -> Iterator[Tx]:
        """Begin; commit at the end; roll back on an error."""
        with self._lock:
            connection = self._open()
            try:
                self._driver.begin(connection)
                tx = Tx(self._driver, connection)
                yield tx
                self._driver.commit(connection)
            except BaseException as error:
                self._undo(connection, error)
                self._explain(connection, error)
                raise
            if tx.news:
                self._tell(tx)

    @contextmanager
    def user_transaction(self, owner: str, isolation: str | None = None) -> Iterator[UserTx]:
        """The same for a user's code, which must not end it."""
        with self._lock:
            connection = self._open()
            tx = UserTx(self._driver, connection, owner)
            try:
                self._driver.begin_for_user(connection, owner, isolation)
                yield tx
                if not self._driver.commit_for_user(connection):
                    raise TransactionEnded(owner)
            except BaseException as error:
                self._undo(connection, error)
                if isinstance(error, TransactionEnded):
                    self.drop()  # its session may have kept more, such as LOCK TABLES
                raise
            finally:
                tx.over = True
            if tx.news:
                self._tell(tx)

    @contextmanager
    def autocommit(self) -> Iterator[Tx]:
        """Queries, each for itself: one that loses the connection is asked again on another."""
        with self._lock:
            try:
                yield Reading(self._driver, self)
            except BaseException as error:
                connection = self._connection
                if connection is not None:
                    self._undo(connection, error)
                    self._explain(connection, error)
                raise

    def ask_again(self, query: Callable[[Any], T]) -> T:
        """Query on our connection; if it is lost, on new ones, until the patience for reads ends."""
        deadline = time.monotonic() + self._patience()
        wait = 0.0
        while True:
            try:
                return query(self._open())
            except Exception as error:
                trouble = self._driver.trouble(error)
                if trouble not in (Trouble.GONE, Trouble.RETRY):
                    raise
                if trouble is Trouble.GONE:
                    self.drop()
                if wait and (time.monotonic() + wait > deadline or not self._patience()):
                    if isinstance(error, DatabaseUnavailable):
                        raise
                    raise DatabaseUnavailable(self._driver.name, str(error).strip()) from error
            time.sleep(wait)
            wait = min(max(0.05, wait * 2), 2.0)

    def perform(self, verb: Callable[[Tx], T], *, alone: bool = False) -> T:
        """Run a verb in a transaction; `alone`: it needs none around it.

        One frame holds the lock from its beginning to its end: an exception that is set in this
        thread cannot come between, as it could in a generator that is suspended.
        """
        with self._lock:
            connection = self._open()
            tx = Tx(self._driver, connection)
            try:
                if alone:
                    return verb(tx)
                self._driver.begin(connection, patient=False)
                answer = verb(tx)
                self._driver.commit(connection)
            except BaseException as error:
                self._undo(connection, error)
                self._explain(connection, error)
                raise
            if tx.news:
                self._tell(tx)
            return answer

    def _tell(self, tx: Tx) -> None:
        """Wake others.  It is committed: whatever goes wrong now must not look as if it were not."""
        try:
            self._driver.committed(tx)
        except Exception as error:
            if self._driver.trouble(error) is Trouble.OTHER:
                raise
            self.drop()

    def _open(self) -> Any:
        self._driver.verify(self._connection)
        if self._connection is None:
            try:
                connection = self._driver.connect()
                if self._user_connections:
                    self._driver.tune_for_users(connection)
                else:
                    self._driver.tune(connection, self._lock_wait)
                self._connection = connection
            except Exception as error:
                gone = self._driver.trouble(error) is Trouble.GONE
                if gone and not isinstance(error, DatabaseUnavailable):
                    raise DatabaseUnavailable(self._driver.name, str(error).strip()) from error
                raise
        return self._connection

    def _undo(self, connection: Any, error: BaseException) -> None:
        """Roll back; a connection on which that fails, or a statement was cut off, is given up."""
        driver = self._driver
        if driver.trouble(error) is Trouble.GONE or not driver.between_statements(connection):
            self.drop()
            return
        try:
            driver.rollback(connection)
        except BaseException as broken:
            self.drop()
            if not isinstance(broken, Exception):
                raise

    def _explain(self, connection: Any, error: BaseException) -> None:
        """Raise what a lost connection does not say: that there was no answer."""
        if getattr(connection, "unanswered", False) and not self._user_connections:
            raise DatabaseUnavailable(self._driver.name, "the server does not answer") from error

    def drop(self) -> None:
        """Close the connection; the next use opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except Exception as error:  # the connection is unusable, whatever the error
                log.debug("closing a connection failed: %s", error)

    def close(self) -> None:
        with self._lock:
            self.drop()


class Pool(SuspendedPool):
    """A few connections to share: for reads, or for users' transactions."""

    def __init__(
        self,
        driver: Driver,
        size: int,
        *,
        user_connections: bool = False,
        lock_wait: float = LOCK_WAIT,
        patience: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._driver = driver
        self._settings: dict[str, Any] = {
            "user_connections": user_connections,
            "lock_wait": lock_wait,
            "patience": patience,
        }
        self._free: list[Connection] = []
        self._connections: WeakSet[SuspendedConnection] = WeakSet()
        self._closed = 0  # how often: a connection in use at that moment is closed when it comes back
        self._slots: Any = threading.BoundedSemaphore(size)
        self._guard: Any = threading.Lock()

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        with self._slots:
            with self._guard:
                closed = self._closed
                connection = self._free.pop() if self._free else self._new()
            try:
                yield connection
            finally:
                with self._guard:
                    if closed == self._closed:
                        self._free.append(connection)
                    else:
                        connection.close()

    def _new(self) -> Connection:
        connection = Connection(self._driver, self._driver.reading, **self._settings)
        self._connections.add(connection)
        return connection

    def close(self) -> None:
        with self._guard:
            self._closed += 1
            for connection in self._free:
                connection.close()
            self._free.clear()
