"""Users' connections: which library they belong to, and how to execute on them.

`within()` takes the connections that people already have.  Each kind becomes a `Tx`:

    what                                                  how its statements run
    sqlite3, psycopg, PyMySQL, psycopg2, MySQLdb          on a cursor of the connection
    Django's `connection`                                 on the driver's connection inside it
    SQLAlchemy Connection, Session                        on the driver's connection inside it
    the same over an async driver (in `run_sync`)         through SQLAlchemy, which switches to the loop
    psycopg's AsyncConnection, asyncpg, aiosqlite,
    aiomysql, SQLAlchemy's AsyncConnection, AsyncSession  on their event loop, from a thread (`LoopTx`)

Anything else is refused before a statement runs.  No library is imported for this:
a connection is known by the module of its class.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any

from ..errors import ConfigurationError
from ..execution.transactions import AsyncTransaction, Transaction
from ..stores.driver import Driver, Tx
from ..stores.store import Store

Answer = tuple[list[Any], int]
Execute = Callable[[str, dict[str, Any]], Awaitable[Answer]]

_DIALECTS = {  # the database of each driver, by the first part of its module's name
    "sqlite3": "sqlite",
    "aiosqlite": "sqlite",
    "psycopg": "postgres",
    "psycopg2": "postgres",
    "asyncpg": "postgres",
    "pymysql": "mysql",
    "MySQLdb": "mysql",
    "aiomysql": "mysql",
}
_ASYNC = ("aiosqlite", "asyncpg", "aiomysql")
_ACCEPTED = (
    "within() takes a connection of sqlite3, psycopg, psycopg2, PyMySQL or MySQLdb, Django's connection, "
    "an SQLAlchemy Connection or Session, or a step's tx"
)
_ACCEPTED_ASYNC = (
    "AsyncApp.within() also takes psycopg's AsyncConnection, asyncpg, aiosqlite and aiomysql connections, "
    "and SQLAlchemy's AsyncConnection and AsyncSession"
)


def sync_tx(store: Store, connection: Any) -> Tx:
    """The transaction of a sync connection; raises ConfigurationError if it cannot be used."""
    own = _own(store, connection)
    if own is not None:
        return own
    given = connection
    if isinstance(connection, Transaction | AsyncTransaction):
        connection = connection.connection
    elif _is_django(connection):
        connection = _inside_django(connection)
    elif _is_async(connection):
        raise _async_connection(connection)
    elif hasattr(connection, "get_bind") and callable(getattr(connection, "connection", None)):
        connection = connection.connection()  # an SQLAlchemy Session: its Connection
    if hasattr(connection, "engine") and hasattr(connection, "exec_driver_sql"):  # an SQLAlchemy Connection
        if connection.dialect.is_async:
            return FacadeTx(store, connection)
        connection = connection.connection  # the pool's proxy
    connection = getattr(connection, "driver_connection", connection)
    if _is_async(connection):
        raise _async_connection(given)
    if not hasattr(connection, "cursor"):
        raise ConfigurationError(f"{_ACCEPTED}, not {type(given).__name__}")
    return _DRIVERS.get(_library(store, connection), Tx)(store.driver, connection)


def _own(store: Store, connection: Any) -> Tx | None:
    """The Tx itself, where there is one: it tells other processes of the work in it when it commits."""
    if isinstance(connection, Transaction | AsyncTransaction) and connection._tx.driver is store.driver:
        return connection._tx
    return connection if isinstance(connection, Tx) else None


def _is_django(connection: Any) -> bool:
    return hasattr(connection, "ensure_connection") and hasattr(connection, "in_atomic_block")


def _inside_django(connection: Any) -> Any:
    """The driver's connection inside Django's, connected, in a transaction that can still commit."""
    connection.validate_thread_sharing()
    connection.ensure_connection()
    connection.validate_no_broken_transaction()
    return connection.connection


def _is_async(connection: Any) -> bool:
    if hasattr(connection, "sync_session") or hasattr(connection, "sync_connection"):
        return True
    return _module(connection) in _ASYNC or asyncio.iscoroutinefunction(getattr(connection, "commit", None))


def _async_connection(connection: Any) -> ConfigurationError:
    name = type(connection).__name__
    return ConfigurationError(
        f"App.within() cannot use {name}: its statements have to be awaited. Use AsyncApp.within({name}), "
        f"or call App.within(session) inside `await async_session.run_sync(...)`"
    )


def _module(connection: Any) -> str:
    """The library that a connection belongs to; users' subclasses count as their base."""
    for cls in type(connection).__mro__:
        name = cls.__module__.partition(".")[0]
        if name in _DIALECTS:
            return name
    return ""


def _library(store: Store, connection: Any) -> str:
    """The library of a connection, if it speaks to the kind of database that the app uses."""
    name = _module(connection)
    if name and _DIALECTS[name] != store.dialect:
        raise ConfigurationError(
            f"within() got a connection of {name}, and this app's database is {store.driver.name}; "
            f"give it a connection to the app's own database"
        )
    return name


class _Psycopg2Tx(Tx):
    """psycopg2: named parameters as we write them; cursors may be of any class, ours is the plain one."""

    __slots__ = ()

    def cursor(self) -> Any:
        return self.connection.cursor(cursor_factory=sys.modules["psycopg2.extensions"].cursor)


class _MySQLdbTx(Tx):
    """mysqlclient, which Django uses."""

    __slots__ = ()

    def cursor(self) -> Any:
        return self.connection.cursor(sys.modules["MySQLdb.cursors"].Cursor)


_DRIVERS: dict[str, type[Tx]] = {"psycopg2": _Psycopg2Tx, "MySQLdb": _MySQLdbTx}


class FacadeTx(Tx):
    """A sync SQLAlchemy Connection over an async driver, as `run_sync` passes it.

    The driver's connection inside is async: statements go through SQLAlchemy.
    """

    __slots__ = ("_adapted", "_facade")

    def __init__(self, store: Store, facade: Any) -> None:
        super().__init__(store.driver, facade.connection.driver_connection)
        _library(store, self.connection)
        self._facade = facade
        self._adapted = _paramstyle(facade)

    def query(self, statement: str, **params: Any) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._execute(statement, params).fetchall()]

    def run(self, statement: str, **params: Any) -> int:
        return int(self._execute(statement, params).rowcount)

    def _execute(self, statement: str, params: dict[str, Any]) -> Any:
        return self._facade.exec_driver_sql(*self._adapted(statement, params))


class LoopTx(Tx):
    """The transaction of an async connection: we are in a thread, its statements run on its loop."""

    __slots__ = ("_execute", "_loop")

    def __init__(self, driver: Driver, raw: Any, execute: Execute) -> None:
        super().__init__(driver, raw)
        self._loop = asyncio.get_running_loop()
        self._execute = execute

    def query(self, statement: str, **params: Any) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._on_loop(statement, params)[0]]

    def run(self, statement: str, **params: Any) -> int:
        return self._on_loop(statement, params)[1]

    def _on_loop(self, statement: str, params: dict[str, Any]) -> Answer:
        async def call() -> Answer:
            return await self._execute(statement, params)

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()


async def loop_tx(store: Store, connection: Any) -> LoopTx | None:
    """The transaction of an async connection; None if it is a sync one."""
    if isinstance(connection, Transaction | AsyncTransaction | Tx):
        return None
    if hasattr(connection, "sync_session"):  # SQLAlchemy's AsyncSession, async_scoped_session
        connection = await connection.connection()
    if hasattr(connection, "sync_connection"):  # its AsyncConnection
        raw = (await connection.get_raw_connection()).driver_connection
        adapted = _paramstyle(connection)

        async def through_sqlalchemy(statement: str, params: dict[str, Any]) -> Answer:
            result = await connection.exec_driver_sql(*adapted(statement, params))
            return (list(result.fetchall()) if result.returns_rows else []), result.rowcount

        _library(store, raw)
        return LoopTx(store.driver, raw, through_sqlalchemy)
    if not _is_async(connection):
        return None
    execute = _EXECUTORS.get(_library(store, connection))
    if execute is None:
        raise ConfigurationError(f"{_ACCEPTED}; {_ACCEPTED_ASYNC}; not {type(connection).__name__}")
    return LoopTx(store.driver, connection, execute(connection))


def _on_psycopg(connection: Any) -> Execute:
    async def execute(statement: str, params: dict[str, Any]) -> Answer:
        async with connection.cursor() as cursor:
            cursor.row_factory = _rows_as_tuples
            await cursor.execute(statement, params)
            rows = await cursor.fetchall() if cursor.description else []
            return rows, cursor.rowcount

    return execute


def _on_asyncpg(connection: Any) -> Execute:
    async def execute(statement: str, params: dict[str, Any]) -> Answer:
        prepared = await connection.prepare(_dollars(statement)[0])
        rows = await prepared.fetch(*_in_order(statement, params))
        return rows, _count_of(prepared.get_statusmsg())

    return execute


def _on_aiosqlite(connection: Any) -> Execute:
    async def execute(statement: str, params: dict[str, Any]) -> Answer:
        async with connection.execute(statement, params) as cursor:
            return list(await cursor.fetchall()), cursor.rowcount

    return execute


def _on_aiomysql(connection: Any) -> Execute:
    async def execute(statement: str, params: dict[str, Any]) -> Answer:
        async with connection.cursor(sys.modules["aiomysql"].Cursor) as cursor:
            await cursor.execute(statement, params)
            return list(await cursor.fetchall()) if cursor.description else [], cursor.rowcount

    return execute


_EXECUTORS: dict[str, Callable[[Any], Execute]] = {
    "psycopg": _on_psycopg,
    "asyncpg": _on_asyncpg,
    "aiosqlite": _on_aiosqlite,
    "aiomysql": _on_aiomysql,
}


def _rows_as_tuples(cursor: Any) -> Callable[[Any], tuple[Any, ...]]:
    """A psycopg row factory: we read tuples, also where the connection's own factory makes something else."""
    return tuple


def _paramstyle(connection: Any) -> Callable[[str, dict[str, Any]], tuple[str, Any]]:
    """How SQLAlchemy's driver wants parameters: asyncpg by number, all others as we write them."""
    if connection.dialect.driver == "asyncpg":
        return lambda statement, params: (_dollars(statement)[0], _in_order(statement, params))
    return lambda statement, params: (statement, params)


_PLACEHOLDER = re.compile(r"%\((\w+)\)s|%%")


@lru_cache(maxsize=256)
def _dollars(statement: str) -> tuple[str, tuple[str, ...]]:
    """`%(name)s` as `$1`, `$2`, and the names in that order.

    Each place has a number of its own: the server infers the type of each place from its context.
    """
    names: list[str] = []

    def numbered(found: re.Match[str]) -> str:
        if found[1] is None:
            return "%"
        names.append(found[1])
        return f"${len(names)}"

    return _PLACEHOLDER.sub(numbered, statement), tuple(names)


def _in_order(statement: str, params: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(params[name] for name in _dollars(statement)[1])


def _count_of(status: str) -> int:
    """The number of rows in a command's status: `INSERT 0 3`, `UPDATE 1`."""
    last = status.rpartition(" ")[2]
    return int(last) if last.isdigit() else -1
