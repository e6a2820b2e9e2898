"""Where a campaign takes place: a fresh database, on a shared server or on a private one."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import psycopg
import pymysql

from tools import servers

DATABASES = ("sqlite", "postgres", "mysql")


@dataclass(frozen=True)
class Place:
    """A database, and the server that it is on."""

    kind: str
    url: str  # for the workers and the client
    admin: "Admin | None" = None  # None: SQLite has no server
    control: str | None = None  # for a server that may be stopped: see tools/servers.py


class Admin:
    """Statements of an operator, outside of the database of the campaign."""

    def __init__(self, server: str, database: str = "") -> None:
        self.server = server
        self.database = database
        self._connection: Any = None

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement; a connection that was lost is replaced once."""
        if self._connection is not None:
            with suppress(psycopg.OperationalError, pymysql.MySQLError):
                return self._ask(statement)
        self._connection = self._connect()
        return self._ask(statement)

    @property
    def is_mysql(self) -> bool:
        return self.server.startswith("mysql")

    def create(self) -> None:
        self.ask(f"CREATE DATABASE {self.database}" + (" CHARACTER SET utf8mb4" if self.is_mysql else ""))

    def drop(self) -> None:
        for session in self.sessions():
            self.end_session(session)
        self.ask(f"DROP DATABASE IF EXISTS {self.database}")

    def sessions(self) -> list[int]:
        """The sessions of the campaign's database."""
        if self.is_mysql:
            found = self.ask(
                f"SELECT id FROM information_schema.processlist WHERE db = '{self.database}' ORDER BY id"
            )
        else:
            found = self.ask(
                f"SELECT pid FROM pg_stat_activity WHERE datname = '{self.database}'"
                " AND backend_type = 'client backend' ORDER BY pid"
            )
        return [int(session) for (session,) in found]

    def end_session(self, session: int) -> bool:
        """End one session; False when it has ended by itself."""
        try:
            if self.is_mysql:
                self.ask(f"KILL {session}")
                return True
            return bool(self.ask(f"SELECT pg_terminate_backend({session})")[0][0])
        except pymysql.err.OperationalError:
            return False

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _connect(self) -> Any:
        if not self.is_mysql:
            return psycopg.connect(self.server, autocommit=True, application_name="chaos")
        place = urlsplit(self.server)
        return pymysql.connect(
            host=place.hostname,
            port=place.port or 3306,
            user=place.username,
            password=unquote(place.password or ""),
            autocommit=True,
        )

    def _ask(self, statement: str) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []


@contextmanager
def place(kind: str, folder: Path, *, private: bool) -> Iterator[Place]:
    """A fresh database.  It goes when all is over; SQLite's file stays with the evidence."""
    if kind == "sqlite":
        yield Place(kind, f"sqlite:///{folder / 'detent.db'}")
        return
    with server(kind, private=private) as variables:
        url = variables[f"DETENT_TEST_{kind.upper()}_URL"]
        admin = Admin(url, f"chaos_{uuid4().hex[:12]}")
        admin.create()
        here = urlsplit(url)._replace(path=f"/{admin.database}").geturl()
        yield Place(kind, here, admin, variables.get(f"DETENT_TEST_{kind.upper()}_CONTROL"))
        if not private:
            _drop(admin)
        admin.close()


@contextmanager
def server(kind: str, *, private: bool) -> Iterator[dict[str, str]]:
    """The server that the environment names; or a new one, which we may stop and kill."""
    if not private and os.environ.get(f"DETENT_TEST_{kind.upper()}_URL"):
        yield dict(os.environ)
        return
    with servers.running({kind}, private=True) as variables:
        yield variables


def _drop(admin: Admin) -> None:
    for _ in range(20):
        try:
            admin.drop()
            return
        except (psycopg.Error, pymysql.MySQLError):  # a process of ours connected again meanwhile
            time.sleep(0.25)
