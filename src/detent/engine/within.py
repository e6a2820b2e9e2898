"""Writing into somebody else's transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ..errors import ConfigurationError
from ..kernel.model import Operation
from ..runtime.transactions import AsyncTransaction, Transaction
from ..stores.base import Driver, Trouble, Tx
from ..stores.sql import SqlStore

Execute = Callable[[str, dict[str, Any]], Awaitable[tuple[list[Any], int]]]


def join(store: SqlStore, connection: Any, operation: Operation) -> Any:
    """Apply an operation in the transaction of `connection`, which we never end."""
    tx = _own(store, connection) or store.joined(raw_connection(connection))
    try:
        return store.apply_within(tx, operation)
    except Exception as error:
        if store.driver.trouble(error) is not Trouble.UNIQUE:
            raise
        # The user's transaction may be broken by now; our own connection tells what is in the way.
        found = store.explain_conflict(operation)
        if isinstance(found, Exception):
            raise found from error
        raise


def _own(store: SqlStore, connection: Any) -> Tx | None:
    """A transaction of this store tells of the work in it when it commits."""
    if isinstance(connection, Transaction | AsyncTransaction) and connection._tx.driver is store.driver:
        return connection._tx
    return connection if isinstance(connection, Tx) else None


def raw_connection(connection: Any) -> Any:
    """The driver's connection inside of what people pass around."""
    if isinstance(connection, Transaction | AsyncTransaction):
        return connection.connection
    if (
        hasattr(connection, "get_bind")
        and hasattr(connection, "connection")
        and callable(connection.connection)
    ):
        connection = connection.connection()  # an SQLAlchemy Session: its Connection
    if hasattr(connection, "engine") and hasattr(connection, "connection"):
        connection = connection.connection  # an SQLAlchemy Connection: the pool's proxy
    if hasattr(connection, "driver_connection"):
        connection = connection.driver_connection
    if not hasattr(connection, "cursor"):
        raise ConfigurationError(
            f"within() takes a DB-API connection, an SQLAlchemy Connection or Session, or a step's tx, "
            f"not {type(connection).__name__}"
        )
    return connection


class LoopTx(Tx):
    """The transaction of an async connection: we are in a thread, its statements run on its loop."""

    __slots__ = ("_execute", "_loop")

    def __init__(self, driver: Driver, loop: asyncio.AbstractEventLoop, execute: Execute) -> None:
        super().__init__(driver, None)
        self._loop = loop
        self._execute = execute

    def query(self, statement: str, **params: Any) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._on_loop(statement, params)[0]]

    def run(self, statement: str, **params: Any) -> int:
        return self._on_loop(statement, params)[1]

    def _on_loop(self, statement: str, params: dict[str, Any]) -> tuple[list[Any], int]:
        async def call() -> tuple[list[Any], int]:
            return await self._execute(statement, params)

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()


def async_execute(connection: Any) -> Execute | None:
    """How to execute on an async connection; None where it is a sync one."""
    if hasattr(connection, "sync_session"):  # SQLAlchemy's AsyncSession

        async def in_session(statement: str, params: dict[str, Any]) -> tuple[list[Any], int]:
            return await _exec_driver_sql(await connection.connection(), statement, params)

        return in_session
    if hasattr(connection, "sync_connection"):  # its AsyncConnection
        return lambda statement, params: _exec_driver_sql(connection, statement, params)
    if asyncio.iscoroutinefunction(getattr(connection, "execute", None)):  # psycopg's AsyncConnection

        async def on_cursor(statement: str, params: dict[str, Any]) -> tuple[list[Any], int]:
            async with connection.cursor() as cursor:
                cursor.row_factory = _rows_as_tuples
                await cursor.execute(statement, params)
                rows = await cursor.fetchall() if cursor.description else []
                return rows, cursor.rowcount

        return None if isinstance(connection, AsyncTransaction) else on_cursor
    return None


async def _exec_driver_sql(connection: Any, statement: str, params: dict[str, Any]) -> tuple[list[Any], int]:
    result = await connection.exec_driver_sql(statement, params)
    return (list(result.fetchall()) if result.returns_rows else []), result.rowcount


def _rows_as_tuples(cursor: Any) -> Callable[[Any], tuple[Any, ...]]:
    """A psycopg row factory: whatever the connection's own is, we read tuples."""
    return tuple
