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

from .proxy import Proxy

DATABASES = ("sqlite", "postgres", "mysql")


@dataclass(frozen=True)
class Place:
    """A database, and the server that it is on."""

    kind: str
    url: str  # for the workers and the client
    folder: Path


@dataclass(frozen=True)
class ServerPlace(Place):
    """One on a server."""

    admin: "Admin"
    control: str  # names the file by which a private server is stopped: see tools/servers.py

    @property
    def pid(self) -> int:
        """The server's main process."""
        return int(Path(servers.Control.read(self.control).pid_file).read_text())


@dataclass(frozen=True)
class ProxiedPlace(ServerPlace):
    """One that the workers reach through a proxy of ours."""

    proxy: Proxy


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
            # Also where a fault has made the server read-only.
            return psycopg.connect(
                self.server,
                autocommit=True,
                application_name="chaos",
                options="-c default_transaction_read_only=off",
            )
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
def sqlite(folder: Path) -> Iterator[Place]:
    """A file, which stays with the evidence."""
    yield Place("sqlite", f"sqlite:///{folder / 'detent.db'}", folder)


@contextmanager
def shared(kind: str, folder: Path) -> Iterator[ServerPlace]:
    """A fresh database on the server that the environment names; without one, on a private server."""
    url = os.environ.get(variable(kind, "URL"))
    if not url:
        with private(kind, folder) as here:
            yield here
        return
    admin = Admin(url, fresh_name())
    admin.create()
    try:
        yield ServerPlace(kind, with_database(url, admin.database), folder, admin, "")
    finally:
        _drop(admin)
        admin.close()


@contextmanager
def private(kind: str, folder: Path) -> Iterator[ServerPlace]:
    """A fresh database on a server of its own, which may be stopped and killed."""
    with servers.running({kind}, private=True) as variables:
        admin = Admin(variables[variable(kind, "URL")], fresh_name())
        admin.create()
        url = with_database(admin.server, admin.database)
        yield ServerPlace(kind, url, folder, admin, variables[variable(kind, "CONTROL")])
        admin.close()


@contextmanager
def bounced(folder: Path) -> Iterator[ServerPlace]:
    """PostgreSQL behind a PgBouncer; `control` is PgBouncer's."""
    with servers.running({"postgres", "pgbouncer"}, private=True) as variables:
        admin = Admin(variables[variable("postgres", "URL")], fresh_name())
        admin.create()
        url = with_database(variables[variable("pgbouncer", "URL")], admin.database)
        control = variables[variable("pgbouncer", "CONTROL")]
        yield ServerPlace("postgres", f"{url}?pgbouncer=true", folder, admin, control)
        admin.close()


@contextmanager
def proxied(kind: str, folder: Path) -> Iterator[ProxiedPlace]:
    """A private server that the workers reach through a proxy."""
    with private(kind, folder) as behind:
        port = urlsplit(behind.url).port
        assert port is not None
        with Proxy(port) as proxy:
            url = behind.url.replace(f":{port}/", f":{proxy.port}/")
            yield ProxiedPlace(kind, url, folder, behind.admin, behind.control, proxy)


def variable(kind: str, what: str) -> str:
    return f"DETENT_TEST_{kind.upper()}_{what}"


def fresh_name() -> str:
    return f"chaos_{uuid4().hex[:12]}"


def with_database(url: str, name: str) -> str:
    return urlsplit(url)._replace(path=f"/{name}").geturl()


def _drop(admin: Admin) -> None:
    for _ in range(20):
        try:
            admin.drop()
            return
        except (psycopg.Error, pymysql.MySQLError):  # a process of ours connected again meanwhile
            time.sleep(0.25)
