"""Databases for the tests: a fresh one for every test that asks; and apps on them.

    def test_a_promise(database_url: str) -> None: ...     # runs three times: sqlite, postgres, mysql
    def test_another(apps: Apps) -> None: ...              # the same, on a database that serves a module

`make test` starts the servers and names them in the environment (see tools/servers.py).  Without them these
fixtures fail rather than skip: a database that nobody tested must not look like one that passed.
"""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import uuid4

import hypothesis
import psycopg
import pymysql
import pytest
from psycopg import sql
from pymysql.cursors import Cursor

import detent
from detent.stores.driver import Trouble
from detent.stores.open import open_store
from detent.stores.store import Store
from detent.testing import TestingApp
from tests.conformance.builders import empty
from tests.functions.world import Apps

if TYPE_CHECKING:
    from tests.distribution import Distribution

# No promise is about the time that an example takes: the machine may be busy with something else.
# A failure tells how to repeat it, also where hypothesis keeps no database.
hypothesis.settings.register_profile("detent", deadline=None, print_blob=True)
hypothesis.settings.load_profile("detent")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> "Distribution | None":
    """With `--dist loadfile`, spread the tests in our own way."""
    from tests.distribution import Distribution

    return Distribution(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(params=["sqlite", "postgres", "mysql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """An empty database of each kind."""
    url = request.getfixturevalue(f"{request.param}_database")
    assert isinstance(url, str)
    return url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'detent.db'}"


@pytest.fixture
def sqlite_database(sqlite_url: str) -> str:
    return sqlite_url


@pytest.fixture
def postgres_database(postgres_url: str, _postgres: "PostgresAdmin") -> Iterator[str]:
    name = _fresh_name()
    _postgres.create(name)
    yield _with_database(postgres_url, name)
    _postgres.drop(name)


@pytest.fixture
def mysql_database(mysql_url: str, _mysql: "MySQLAdmin") -> Iterator[str]:
    name = _fresh_name()
    _mysql.create(name)
    yield _with_database(mysql_url, name)
    _mysql.drop(name)


@pytest.fixture(scope="module", params=["sqlite", "postgres", "mysql"])
def module_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A database with Detent's schema.

    Making one takes longer than most tests: one serves a module, and is emptied in between.
    """
    if request.param == "sqlite":
        url = f"sqlite:///{request.getfixturevalue('tmp_path_factory').mktemp('module') / 'detent.db'}"
        _migrate(url)
        yield url
        return
    name = f"detent_{uuid4().hex[:12]}"
    server: str = request.getfixturevalue(f"{request.param}_url")
    admin = request.getfixturevalue(f"_{request.param}")
    admin.create(name)
    url = urlsplit(server)._replace(path=f"/{name}").geturl()
    _migrate(url)
    yield url
    admin.drop(name)


def _migrate(url: str) -> None:
    store = open_store(url)
    store.migrate(now=1)
    store.close()


@pytest.fixture(scope="module")
def _module_store(module_url: str) -> Iterator[Store]:
    """To connect takes longer than to empty a database: one serves a module, too."""
    store = open_store(module_url)
    yield store
    store.close()


@pytest.fixture
def url(module_url: str, _module_store: Store) -> str:
    """A database that is empty apart from Detent's tables."""
    try:
        _module_store.write(empty)
    except Exception as error:
        if _module_store.driver.trouble(error) is not Trouble.GONE:
            raise
        _module_store.write(empty)  # a test has cut all connections
    return module_url


@pytest.fixture
def apps(url: str) -> Iterator[Apps]:
    """Makes apps that work in the background, and closes them when the test is over."""
    opened: list[detent.App] = []

    def make(*include: Any, worker: bool = True, **settings: Any) -> detent.App:
        settings.setdefault("grace", timedelta(seconds=1))
        app = detent.App(url, include=include, **settings)
        opened.append(app)
        return app.open(worker=worker)

    yield make
    for app in opened:
        app.close()


@pytest.fixture
def testing(url: str) -> Iterator[TestingApp]:
    """An app with a worker, whose time passes only when the test says so."""
    with TestingApp(url) as app:
        yield app


@pytest.fixture
def pgbouncer_url(_postgres: "PostgresAdmin") -> Iterator[str]:
    """An empty PostgreSQL database, through a PgBouncer that pools transactions."""
    bouncer = _from_environment("DETENT_TEST_PGBOUNCER_URL")
    name = _fresh_name()
    _postgres.create(name)
    yield f"{_with_database(bouncer, name)}?pgbouncer=true"
    _postgres.drop(name)


@pytest.fixture(scope="session")
def postgres_url() -> str:
    """The server; `postgres_database` is a database of one's own on it."""
    return _from_environment("DETENT_TEST_POSTGRES_URL")


@pytest.fixture(scope="session")
def mysql_url() -> str:
    """The server; `mysql_database` is a database of one's own on it."""
    return _from_environment("DETENT_TEST_MYSQL_URL")


@pytest.fixture(scope="session")
def _postgres(postgres_url: str) -> Iterator["PostgresAdmin"]:
    admin = PostgresAdmin(postgres_url)
    yield admin
    admin.close()


@pytest.fixture(scope="session")
def _mysql(mysql_url: str) -> Iterator["MySQLAdmin"]:
    admin = MySQLAdmin(mysql_url)
    yield admin
    admin.close()


class PostgresAdmin:
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

    def close(self) -> None:
        self._connection.close()

    def _execute(self, statement: sql.Composed) -> None:
        try:
            self._connection.execute("SELECT 1")
        except psycopg.OperationalError:
            self._connection.close()
            self._connection = self._connect()
        self._connection.execute(statement)

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(self._url, autocommit=True)


class MySQLAdmin:
    """The same for MySQL and MariaDB."""

    def __init__(self, url: str) -> None:
        self._place = urlsplit(url)
        self._connection = self._connect()

    def create(self, name: str) -> None:
        self._execute(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4")

    def drop(self, name: str) -> None:
        # There is no WITH (FORCE): a transaction that a test left open would hold the drop up for a day.
        for (left_open,) in self._execute(
            f"SELECT id FROM information_schema.processlist WHERE db = '{name}'"
        ):
            with suppress(pymysql.err.OperationalError):  # closed by itself meanwhile
                self._execute(f"KILL {left_open}")
        self._execute(f"DROP DATABASE IF EXISTS `{name}`")

    def close(self) -> None:
        self._connection.close()

    def _execute(self, statement: str) -> list[tuple[object, ...]]:
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


def _from_environment(variable: str) -> str:
    value = os.environ.get(variable)
    if not value:
        pytest.fail(f"{variable} is not set: run `make test`, which starts the databases", pytrace=False)
    return value


def _fresh_name() -> str:
    return f"detent_{uuid4().hex[:12]}"


def _with_database(url: str, name: str) -> str:
    return urlsplit(url)._replace(path=f"/{name}").geturl()
