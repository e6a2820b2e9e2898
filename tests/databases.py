"""Databases on the servers: made for one test, or kept for all modules that a process tests.

Making a database and its tables takes half a second of a server's time, more than most tests.  So `Databases`
keeps one, and the fixtures empty it before each test.  A module must leave it as the migrations made it,
apart from rows.  One that a module leaves otherwise is dropped: the next module gets a new one.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pymysql
import pytest
from psycopg import sql
from pymysql.cursors import Cursor

from detent.stores.open import open_store

LARGE = 24 * 1024 * 1024  # bytes: rows that are deleted leave gaps, through which every scan has to go
CLOSING = 2.0  # seconds that a session may take to end


def fresh_name() -> str:
    return f"detent_{uuid4().hex[:12]}"


def with_database(url: str, name: str) -> str:
    return urlsplit(url)._replace(path=f"/{name}").geturl()


def migrate(url: str) -> None:
    store = open_store(url)
    store.migrate(now=1)
    store.close()


class Admin(ABC):
    """Creates, drops and looks at the databases of a server."""

    @abstractmethod
    def create(self, name: str) -> None: ...

    @abstractmethod
    def drop(self, name: str) -> None: ...

    @abstractmethod
    def sessions(self, name: str) -> int:
        """How many sessions use this database."""

    @abstractmethod
    def size(self, name: str) -> int:
        """Bytes, about."""

    @abstractmethod
    def schema(self, name: str) -> list[tuple[Any, ...]]:
        """Its tables, and whatever else a test may create or alter; equal if nothing was."""

    @abstractmethod
    def drop_tables(self, name: str) -> None:
        """Drop the tables that are not Detent's."""


class Databases:
    """A database with Detent's tables, for one module after the other."""

    def __init__(self, server: str, admin: Admin) -> None:
        self._server, self._admin = server, admin
        self._name: str | None = None
        self._migrated: list[tuple[Any, ...]] = []

    @contextmanager
    def kept(self) -> Iterator["Databases"]:
        yield self
        if self._name is not None:
            self._admin.drop(self._name)

    @contextmanager
    def for_module(self, *, alone: bool) -> Iterator[str]:
        """The address of a database; `alone`: of one that no other module uses."""
        if alone:
            name = self._made()
            yield with_database(self._server, name)
            self._admin.drop(name)
            return
        if self._name is None:
            self._name = self._made()
            self._migrated = self._admin.schema(self._name)
        yield with_database(self._server, self._name)
        if not self._as_migrated(self._name):
            self._admin.drop(self._name)
            self._name = None

    def _made(self) -> str:
        name = fresh_name()
        self._admin.create(name)
        migrate(with_database(self._server, name))
        return name

    def _as_migrated(self, name: str) -> bool:
        """Is nothing left but rows?"""
        until = time.monotonic() + CLOSING
        while self._admin.sessions(name):
            if time.monotonic() > until:  # an app that was not closed, and may go on working
                return False
            time.sleep(0.01)
        self._admin.drop_tables(name)
        return self._admin.size(name) < LARGE and self._admin.schema(name) == self._migrated


class PostgresAdmin(Admin):
    """Creates and drops databases over one connection, renewed when a test has restarted the server."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection = self._connect()

    def create(self, name: str) -> None:
        self._execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))

    def drop(self, name: str) -> None:
        if self._connection.info.server_version >= 130000:
            self._execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
            return
        # Without FORCE: refuse new connections, and end those that exist.
        for _ in range(100):
            self._execute(
                sql.SQL(
                    "UPDATE pg_database SET datallowconn = false WHERE datname = {name};"
                    " SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = {name}"
                ).format(name=sql.Literal(name))
            )
            try:
                self._execute(sql.SQL("DROP DATABASE IF EXISTS {}").format(sql.Identifier(name)))
                return
            except psycopg.errors.ObjectInUse:  # a session takes a moment to end
                time.sleep(0.1)
        pytest.fail(f"the database {name} could not be dropped", pytrace=False)

    def sessions(self, name: str) -> int:
        [(count,)] = self._execute(
            sql.SQL(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = {} AND backend_type = 'client backend'"
            ).format(sql.Literal(name))
        )
        return int(count)

    def size(self, name: str) -> int:
        [(size,)] = self._execute(sql.SQL("SELECT pg_database_size({})").format(sql.Literal(name)))
        return int(size)

    def schema(self, name: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(with_database(self._url, name)) as connection:
            return connection.execute(
                "SELECT 'relation', relname::text, relkind::text, relnatts::int, relhastriggers::text"
                " FROM pg_class WHERE relnamespace = 'public'::regnamespace"
                " UNION ALL SELECT 'function', proname::text, '', 0, '' FROM pg_proc"
                " WHERE pronamespace = 'public'::regnamespace"
                " UNION ALL SELECT 'schema', nspname::text, '', 0, '' FROM pg_namespace"
                " WHERE nspname !~ '^pg_'"
                " UNION ALL SELECT 'setting', setconfig::text, '', 0, '' FROM pg_db_role_setting"
                " WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())"
                " ORDER BY 1, 2"
            ).fetchall()

    def drop_tables(self, name: str) -> None:
        with psycopg.connect(with_database(self._url, name)) as connection:
            for (table,) in connection.execute(
                "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename !~ '^detent_'"
            ).fetchall():
                connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(table)))

    def close(self) -> None:
        self._connection.close()

    def _execute(self, statement: sql.Composed) -> list[tuple[Any, ...]]:
        try:
            self._connection.execute("SELECT 1")
        except psycopg.OperationalError:
            self._connection.close()
            self._connection = self._connect()
        cursor = self._connection.execute(statement)
        return cursor.fetchall() if cursor.description else []

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(self._url, autocommit=True)


class MySQLAdmin(Admin):
    """The same for MySQL and MariaDB."""

    def __init__(self, url: str) -> None:
        self._place = urlsplit(url)
        self._connection = self._connect()

    def create(self, name: str) -> None:
        self._execute(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4")

    def drop(self, name: str) -> None:
        # There is no WITH (FORCE): a transaction that a test left open would hold the drop up for a day.
        for (left_open,) in self._sessions(name):
            with suppress(pymysql.err.OperationalError):  # closed by itself meanwhile
                self._execute(f"KILL {left_open}")
        self._execute(f"DROP DATABASE IF EXISTS `{name}`")

    def sessions(self, name: str) -> int:
        return len(self._sessions(name))

    def _sessions(self, name: str) -> list[tuple[Any, ...]]:
        return self._execute(f"SELECT id FROM information_schema.processlist WHERE db = '{name}'")

    def size(self, name: str) -> int:
        [(size,)] = self._execute(
            "SELECT sum(data_length + index_length) FROM information_schema.tables"
            f" WHERE table_schema = '{name}'"
        )
        return int(size)

    def schema(self, name: str) -> list[tuple[Any, ...]]:
        return self._execute(
            f"SELECT table_name, column_name, column_type FROM information_schema.columns"
            f" WHERE table_schema = '{name}'"
            f" UNION ALL SELECT event_object_table, trigger_name, '' FROM information_schema.triggers"
            f" WHERE trigger_schema = '{name}' ORDER BY 1, 2"
        )

    def drop_tables(self, name: str) -> None:
        for (table,) in self._execute(
            f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{name}'"
            " AND table_name NOT LIKE 'detent\\_%'"
        ):
            self._execute(f"DROP TABLE `{name}`.`{table}`")

    def close(self) -> None:
        self._connection.close()

    def _execute(self, statement: str) -> list[tuple[Any, ...]]:
        try:
            self._connection.ping()
        except pymysql.err.Error:
            self._connection = self._connect()
        with self._connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def _connect(self) -> "pymysql.Connection[Cursor]":
        return pymysql.connect(
            host=self._place.hostname,
            port=self._place.port or 3306,
            user=self._place.username,
            password=self._place.password or "",
            autocommit=True,
        )
