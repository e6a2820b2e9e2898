"""How a store's verbs are carried out: its connections, its transactions, and tries that are repeated."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ..errors import DatabaseUnavailable
from .base import RETRIED_FOR, Driver, Lane, Pool, Trouble, Tx, news

T = TypeVar("T")
RETRIES = 20


class StoreCore:
    """The connections of a store, and the ways in which its verbs use them."""

    def __init__(self, driver: Driver, *, dialect: str, pool_size: int = 10) -> None:
        self.driver = driver
        self.dialect = dialect
        self._writer = Lane(driver, driver.writing)
        # Where writers take turns anyway, they share one connection.
        alone = driver.writing is not None
        self._claims = self._writer if alone else Lane(driver)
        self._beats = self._writer if alone else Lane(driver)
        self._pool = Pool(driver, pool_size)
        self._guests = Pool(driver, pool_size, guests=True)

    def close(self) -> None:
        """Close all connections; the next verb opens new ones."""
        for lane in {self._writer, self._claims, self._beats}:
            lane.close()
        self._pool.close()
        self._guests.close()
        self.driver.close()

    # Transactions of users

    @contextmanager
    def transaction(self) -> Iterator[Tx]:
        """A transaction for a transactional step, on a connection of its own."""
        if self.driver.writing is not None:
            with self._writer.transaction() as tx:
                yield tx
        else:
            with self._guests.lane() as lane, lane.transaction() as tx:
                yield tx

    @contextmanager
    def defining(self) -> Iterator[tuple[Tx, Tx]]:
        """A transaction of ours that holds locks, and the one in which a user defines tables.

        They are one, except where defining a table commits: there the locks must outlast that.
        """
        if self.driver.ddl_commits:
            with self._pool.lane() as lane, lane.transaction() as tx, self.transaction() as guest:
                yield tx, guest
        else:
            with self.transaction() as tx:
                yield tx, tx

    def read(self, verb: Callable[[Tx], T]) -> T:
        """Run a verb that only reads."""
        with self._reading() as tx:
            return verb(tx)

    def write(self, verb: Callable[[Tx], T]) -> T:
        """Run a verb in a transaction of its own; neither the committer nor a heartbeat waits for it."""
        if self.driver.writing is not None:
            return self._again(self._writer, verb)
        with self._pool.lane() as lane:
            return self._again(lane, verb)

    def joined(self, connection: Any) -> Tx:
        """A transaction that belongs to the user: we write into it, and never end it."""
        return Tx(self.driver, connection)

    @contextmanager
    def _reading(self) -> Iterator[Tx]:
        with self._pool.lane() as lane, lane.autocommit() as tx:
            yield tx

    def _told(self, tx: Tx, answer: T) -> T:
        """Others may have work from this: wake them at the commit."""
        self.driver.notify(tx, news(work=True, runs=answer if isinstance(answer, list) else []))
        return answer

    def _again(self, lane: Lane, verb: Callable[[Tx], T], *, alone: bool = False) -> T:
        """Run a verb in a transaction; a deadlock or a busy database means: once more.

        Where that never ends, the database is as good as away.
        """
        deadline = time.monotonic() + RETRIED_FOR
        for attempt in range(RETRIES):
            try:
                return lane.perform(verb, alone=alone)
            except Exception as error:
                if self.driver.trouble(error) is not Trouble.RETRY:
                    raise
                if attempt == RETRIES - 1 or time.monotonic() > deadline:
                    raise DatabaseUnavailable(self.driver.name, str(error).strip()) from error
            if attempt > 2:
                time.sleep(random.random() * 0.05)
        raise AssertionError("unreachable")
