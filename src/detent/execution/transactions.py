"""The transaction of a transactional step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ..errors import TransactionEnded, TransactionMisused
from ..stores.driver import UserTx
from .services import Threads


class Transaction:
    """The `tx` of a transactional step: a connection to Detent's database in the step's transaction.

        @step(transactional=True)
        def debit(tx: detent.Transaction, account: str) -> None:
            tx.execute("UPDATE accounts SET balance = balance - 1 WHERE id = ?", [account])

    `execute` and `cursor` are those of the driver; `connection` is the driver's
    own connection.  Commit and rollback belong to the step: it commits by
    returning, and rolls back by raising.
    """

    def __init__(self, tx: UserTx) -> None:
        self._tx = tx
        self._over = False

    @property
    def connection(self) -> Any:
        """The driver's own connection."""
        self._refuse_if_over()
        return self._tx.connection

    def cursor(self) -> Any:
        """A new cursor of the driver."""
        return self.connection.cursor()

    def execute(self, statement: str, parameters: Any = None) -> Any:
        """Execute a statement, and return its cursor."""
        try:
            cursor = self.cursor()
            was_open = self._is_open()
            if parameters is None:  # not an empty tuple: with it, some drivers look for % in the statement
                cursor.execute(statement)
            else:
                cursor.execute(statement, parameters)
        except Exception as error:
            self._tx.refusal = error
            raise
        if was_open and not self._tx.may_end and not self._is_open():
            self._tx.ended = True
            raise TransactionEnded(self._tx.owner)
        return cursor

    def executemany(self, statement: str, parameters: Any) -> Any:
        """Execute a statement once for each set of parameters, and return its cursor."""
        try:
            cursor = self.cursor()
            cursor.executemany(statement, parameters)
        except Exception as error:
            self._tx.refusal = error
            raise
        return cursor

    def leave(self) -> None:
        """The step has ended: the connection belongs to others."""
        self._over = True

    def _is_open(self) -> bool:
        """Whether a transaction is open, as the driver knows without asking."""
        return self._tx.driver.in_transaction(self._tx.connection)

    def _refuse_if_over(self) -> None:
        if self._over:
            raise TransactionMisused("tx")

    def commit(self) -> None:
        """Raise TransactionMisused: the step commits by returning."""
        raise TransactionMisused("commit")

    def rollback(self) -> None:
        """Raise TransactionMisused: the step rolls back by raising."""
        raise TransactionMisused("rollback")

    def close(self) -> None:
        """Raise TransactionMisused: the connection belongs to Detent."""
        raise TransactionMisused("close")


class AsyncTransaction:
    """The `tx` of an `async def` step: statements run in a thread, one at a time, and are awaited.

    @step(transactional=True)
    async def debit(tx: detent.AsyncTransaction, account: str) -> None:
        await tx.execute("UPDATE accounts SET balance = balance - 1 WHERE id = ?", [account])
    """

    def __init__(self, tx: UserTx, threads: Threads) -> None:
        self._tx = tx
        self._sync = Transaction(tx)
        self._threads = threads
        self._turn = threading.Lock()

    @property
    def connection(self) -> Any:
        """The driver's own connection, which is a sync one."""
        return self._sync.connection

    async def execute(self, statement: str, parameters: Any = None) -> Any:
        """Execute a statement, and return its cursor."""
        return await self.in_turn(lambda: self._sync.execute(statement, parameters))

    async def executemany(self, statement: str, parameters: Any) -> Any:
        """Execute a statement once for each set of parameters, and return its cursor."""
        return await self.in_turn(lambda: self._sync.executemany(statement, parameters))

    async def fetchall(self, statement: str, parameters: Any = None) -> list[Any]:
        """Execute a query, and return all rows."""
        rows: list[Any] = await self.in_turn(
            lambda: list(self._sync.execute(statement, parameters).fetchall())
        )
        return rows

    def commit(self) -> None:
        """Raise TransactionMisused: the step commits by returning."""
        raise TransactionMisused("commit")

    def rollback(self) -> None:
        """Raise TransactionMisused: the step rolls back by raising."""
        raise TransactionMisused("rollback")

    def close(self) -> None:
        """Raise TransactionMisused: the connection belongs to Detent."""
        raise TransactionMisused("close")

    def leave(self) -> None:
        """The step has ended: wait for the statement under way, and refuse later ones."""
        with self._turn:
            self._sync.leave()

    async def in_turn(self, job: Callable[[], Any]) -> Any:
        """Do it in a thread, when no statement is under way."""

        def alone() -> Any:
            with self._turn:
                self._sync._refuse_if_over()
                return job()

        return await self._threads.run(alone)
