"""Databases for the tests: a fresh one for every test that asks; and apps on them.

    def test_a_promise(database_url: str) -> None: ...     # runs three times: sqlite, postgres, mysql
    def test_another(apps: Apps) -> None: ...              # the same, on a database that serves a module

`make test` starts the servers and names them in the environment (see tools/servers.py).  Without them these
fixtures fail rather than skip: a database that nobody tested must not look like one that passed.
"""

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

import detent
from detent.stores.driver import Trouble
from detent.stores.open import open_store
from detent.stores.store import Store
from detent.testing import TestingApp
from tests.conformance.builders import empty
from tests.databases import Databases, MySQLAdmin, PostgresAdmin, fresh_name, migrate, with_database
from tests.functions.world import Apps
from tests.variants import OnDatabase, left_to_the_soak

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


@pytest.hookimpl(tryfirst=True)  # before tests are left out by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave some variants of a test to `make soak` (see variants.py), unless a variant is named in full."""
    if any("[" in argument for argument in config.args):
        return
    left = left_to_the_soak(test for item in items if (test := _on_database(item)))
    for item in items:
        if item.nodeid in left:
            item.add_marker("soak")


def _on_database(item: pytest.Item) -> OnDatabase | None:
    call = getattr(item, "callspec", None)
    parameters = {} if call is None else call.params
    database = parameters.get("module_url") or parameters.get("database_url")
    return OnDatabase(item.nodeid, database) if database else None


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
def postgres_database(postgres_url: str, _postgres: PostgresAdmin) -> Iterator[str]:
    name = fresh_name()
    _postgres.create(name)
    yield with_database(postgres_url, name)
    _postgres.drop(name)


@pytest.fixture
def mysql_database(mysql_url: str, _mysql: MySQLAdmin) -> Iterator[str]:
    name = fresh_name()
    _mysql.create(name)
    yield with_database(mysql_url, name)
    _mysql.drop(name)


@pytest.fixture(scope="module", params=["sqlite", "postgres", "mysql"])
def module_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A database with Detent's schema.

    Making one takes longer than most tests.  One file of SQLite serves a module, one database of a server
    serves all modules of this process; both are emptied in between.  A module with `OWN_DATABASE = True` has
    a database that no other module has used.
    """
    if request.param == "sqlite":
        url = f"sqlite:///{request.getfixturevalue('tmp_path_factory').mktemp('module') / 'detent.db'}"
        migrate(url)
        yield url
        return
    databases = request.getfixturevalue(f"_{request.param}_databases")
    with databases.for_module(alone=getattr(request.module, "OWN_DATABASE", False)) as url:
        yield url


@pytest.fixture(scope="session")
def _postgres_databases(postgres_url: str, _postgres: PostgresAdmin) -> Iterator[Databases]:
    with Databases(postgres_url, _postgres).kept() as databases:
        yield databases


@pytest.fixture(scope="session")
def _mysql_databases(mysql_url: str, _mysql: MySQLAdmin) -> Iterator[Databases]:
    with Databases(mysql_url, _mysql).kept() as databases:
        yield databases


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
def pgbouncer_url(_postgres: PostgresAdmin) -> Iterator[str]:
    """An empty PostgreSQL database, through a PgBouncer that pools transactions."""
    bouncer = _from_environment("DETENT_TEST_PGBOUNCER_URL")
    name = fresh_name()
    _postgres.create(name)
    yield f"{with_database(bouncer, name)}?pgbouncer=true"
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
def _postgres(postgres_url: str) -> Iterator[PostgresAdmin]:
    admin = PostgresAdmin(postgres_url)
    yield admin
    admin.close()


@pytest.fixture(scope="session")
def _mysql(mysql_url: str) -> Iterator[MySQLAdmin]:
    admin = MySQLAdmin(mysql_url)
    yield admin
    admin.close()


def _from_environment(variable: str) -> str:
    value = os.environ.get(variable)
    if not value:
        pytest.fail(f"{variable} is not set: run `make test`, which starts the databases", pytrace=False)
    return value
