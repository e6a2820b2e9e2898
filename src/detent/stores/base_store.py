"""How a store's verbs are carried out: its connections, its transactions, and tries that are repeated."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ..errors import DatabaseUnavailable, TransactionMisused
from ..kernel.operations import Recovered, RunChange
from ..process_forks import pause_at_forks, watch_forks
from .connection import Connection, Pool
from .driver import RETRIED_FOR, Driver, Line, Trouble, Tx, UserTx, news, user_transaction
from .loop_writer import LoopWriter
from .process_forks import FORK_WAIT

T = TypeVar("T")
MOST_ASIDE = 8  # connections on which blocked operations wait
SORTING = 2  # connections for reads that sort


class BaseStore:
    """The connections of a store, and the ways in which its verbs use them."""

    def __init__(self, driver: Driver, *, dialect: str, pool_size: int = 10) -> None:
        self.driver = driver
        self.dialect = dialect
        self.patience = 0.0  # seconds that reads wait for a database that is away
        waits = driver.lock_waits
        self._writer = Connection(driver, driver.writing, lock_wait=waits[Line.MAIN])
        # Where writers take turns anyway, they share one connection.
        alone = driver.writing is not None
        self._splits = self._writer if alone else Connection(driver, lock_wait=waits[Line.SPLIT])
        self._claims = self._writer if alone else Connection(driver)
        self._beats = self._writer if alone else Connection(driver)
        self.loop_writer = LoopWriter(driver, lock_wait=waits[Line.MAIN]) if driver.launches else None
        self._asides = Pool(driver, MOST_ASIDE, lock_wait=waits[Line.ASIDE])
        self._verbs = Pool(driver, pool_size)  # writes by themselves; they may wait for locks for long
        self._pool = Pool(driver, pool_size, patience=lambda: self.patience)
        self._user_connections = Pool(
            driver, pool_size, user_connections=True, patience=lambda: self.patience
        )
        # Not from the user_connections' pool: bodies of steps, which hold its connections, read too.
        self._sorting = Pool(driver, SORTING, user_connections=True, patience=lambda: self.patience)
        # Called with what a verb has changed, after its commit; must not raise.
        self.on_change: Callable[[list[RunChange | Recovered]], None] = lambda changed: None
        self._is_inherited = False  # this process was forked, and the store is the parent's
        watch_forks(self)
        if driver.closed_at_fork:
            pause_at_forks(self)

    def close(self) -> None:
        """Close all connections; the next verb opens new ones."""
        if self._is_inherited:
            return
        self._close_connections()
        self.driver.close()

    def _close_connections(self) -> None:
        for part in self._parts():
            part.close()

    # Forks

    def before_fork(self) -> None:
        """Close the connections.  Threads that hold a lock of the writers may read: writers come first."""
        deadline = time.monotonic() + FORK_WAIT
        for part in self._parts():
            part.suspend(deadline)
        self.driver.suspend(deadline)

    def after_fork(self) -> None:
        self.driver.resume()
        for part in self._parts():
            part.resume()

    def forked(self) -> None:
        """In the child: refuse to work.  The connections are the parent's, and so are the locks."""
        self._is_inherited = True
        for part in self._parts():
            part.forsake()

    def _parts(self) -> list[Connection | Pool]:
        """All connections, the writers' first."""
        connections = dict.fromkeys((self._writer, self._splits, self._claims, self._beats))
        if self.loop_writer is not None:
            connections[self.loop_writer] = None
        return [*connections, self._asides, self._verbs, self._pool, self._user_connections, self._sorting]

    # Transactions of users

    @contextmanager
    def transaction(
        self, owner: str = "the code of a transaction", *, isolation: str | None = None
    ) -> Iterator[UserTx]:
        """A transaction for a user's code, on a connection of its own.

        `owner` names that code in messages.  `isolation`: "read committed", "repeatable read",
        "serializable"; None is the database's default.  SQLite has one writer: it is always serializable.
        """
        self.refuse_inside("a transaction")
        if self.driver.writing is not None:
            with self._writer.user_transaction(owner) as tx:
                yield tx
        else:
            with (
                self._user_connections.connection() as connection,
                connection.user_transaction(owner, isolation) as tx,
            ):
                yield tx

    @contextmanager
    def defining(self, owner: str) -> Iterator[tuple[Tx, UserTx]]:
        """A transaction that holds locks of Detent, and the one in which a user defines tables.

        They are one, except where defining a table commits: there the locks must outlast that.
        """
        if self.driver.ddl_commits:
            connection = Connection(self.driver)  # not from the pool: what the user's code reads needs that
            try:
                with (
                    connection.transaction() as tx,
                    self.transaction(owner, isolation="read committed") as user_tx,
                ):
                    user_tx.may_end = True
                    yield tx, user_tx
            finally:
                connection.close()
        else:
            with self.transaction(owner, isolation="read committed") as user_tx:
                yield user_tx, user_tx

    def inside(self) -> UserTx | None:
        """The transaction of a user's code on this database that the caller runs in."""
        held = user_transaction.get()
        if held is None or held.over or not self.driver.shares(held.driver):
            return None
        return held

    def refuse_inside(self, verb: str) -> None:
        """Raise TransactionMisused in the body of a transactional step: a write would not be part of it.

        On SQLite, where there is one writer, it would also wait for that step forever.
        """
        if self.inside() is not None:
            raise TransactionMisused(verb)

    def read(self, verb: Callable[[Tx], T]) -> T:
        """Run a verb that only reads."""
        with self._reading() as tx:
            return verb(tx)

    def write(self, verb: Callable[[Tx], T], *, unless_blocked: bool = False) -> T:
        """Run a verb in a transaction of its own; neither the committer nor a heartbeat waits for it."""
        if self.driver.writing is not None:
            return self._again(self._writer, verb)
        with self._verbs.connection() as connection:
            return self._again(connection, verb, unless_blocked=unless_blocked)

    def _write_batch(self, line: Line | None, verb: Callable[[Tx], T]) -> T:
        """Run a verb of the committer; when a lock cannot be had, the committer decides what to do.

        Without a line, the caller is not the committer, and waits.
        """
        if line is None:
            return self._again(self._writer, verb)
        if line is Line.ASIDE and self.driver.writing is None:
            with self._asides.connection() as connection:
                return self._again(connection, verb, unless_blocked=True)
        connection = self._splits if line is Line.SPLIT else self._writer
        return self._again(connection, verb, unless_blocked=True)

    def joined(self, connection: Any) -> Tx:
        """A transaction that belongs to the user: we write into it, and never end it."""
        return Tx(self.driver, connection)

    @contextmanager
    def _reading(self, pool: Pool | None = None) -> Iterator[Tx]:
        held = self.inside() if self.driver.reading is not None else None
        if held is not None:  # in memory there is one connection, and a user's code holds it
            yield held
            return
        with (pool or self._pool).connection() as connection, connection.autocommit() as tx:
            yield tx

    def _told(self, tx: Tx, answer: T) -> T:
        """Others may have work from this: wake them at the commit."""
        self.driver.notify(tx, news(work=True, runs=answer if isinstance(answer, list) else []))
        return answer

    def _changing(self, verb: Callable[[Tx], T], connection: Connection | None = None) -> T:
        """Run a verb that changes the states of runs, and report them when that is durable."""
        changed: list[RunChange | Recovered] = []

        def noting(tx: Tx) -> T:
            answer = verb(tx)
            changed[:] = tx.changed
            return answer

        answer = self.write(noting) if connection is None else self._again(connection, noting)
        if changed:
            self.on_change(changed)
        return answer

    def _again(
        self,
        connection: Connection,
        verb: Callable[[Tx], T],
        *,
        alone: bool = False,
        unless_blocked: bool = False,
    ) -> T:
        """Run a verb in a transaction; it is tried again after a deadlock, or if the database is busy.

        After some seconds the database counts as unavailable.  `unless_blocked`: not for a lock on a run,
        nor where there is one writer at a time.
        """
        self.refuse_inside("a write")
        deadline = time.monotonic() + RETRIED_FOR
        attempt = 0
        while True:
            try:
                return connection.perform(verb, alone=alone)
            except Exception as error:
                if self.driver.trouble(error) is not Trouble.RETRY:
                    raise
                if unless_blocked and (self.driver.blocked(error) or self.driver.writing is not None):
                    raise
                if time.monotonic() > deadline:
                    raise DatabaseUnavailable(self.driver.name, str(error).strip()) from error
            attempt += 1
            if attempt > 3:
                time.sleep(random.random() * 0.05)
