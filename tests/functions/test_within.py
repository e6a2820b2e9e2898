"""Starting runs inside of one's own transaction: every kind of connection, conflicts, options."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import aiomysql
import aiosqlite
import asyncpg
import django
import psycopg
import psycopg2
import psycopg2.extras
import pymysql
import pytest
from django.conf import settings
from django.db import connections, transaction
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

import detent
from detent import workflow
from detent.app.settings import Options
from detent.app.within import join
from detent.errors import AlreadyRunning, ConfigurationError, RunConflict, UnknownQueue
from tests.functions.world import Apps, result


@workflow
def double(number: int) -> int:
    return number * 2


def kind_of(url: str) -> str:
    return urlsplit(url).scheme


def mysql_options(url: str) -> dict[str, Any]:
    place = urlsplit(url)
    return {
        "host": place.hostname,
        "port": place.port or 3306,
        "user": place.username,
        "password": place.password or "",
    }


def connect(url: str, **options: Any) -> Any:
    if kind_of(url) == "sqlite":
        return sqlite3.connect(urlsplit(url).path[1:], **options)
    if kind_of(url) == "postgresql":
        return psycopg.connect(url, **options)
    return pymysql.connect(database=urlsplit(url).path[1:], **mysql_options(url), **options)


def async_url(url: str, driver: str) -> str:
    """SQLAlchemy's URL of the database, for an async driver."""
    return url.replace(f"{kind_of(url)}://", f"{kind_of(url)}+{driver}://")


ASYNC_DRIVERS = [
    ("sqlite", "aiosqlite"),
    ("postgres", "psycopg"),
    ("postgres", "asyncpg"),
    ("mysql", "aiomysql"),
]


def ids(app: detent.App) -> set[str]:
    return {run.id for run in app.runs()}


# -- an async driver behind a sync face -----------------------------------------------------------


@pytest.mark.parametrize(("module_url", "driver"), ASYNC_DRIVERS, indirect=["module_url"])
def test_a_run_started_in_run_sync_exists_if_and_only_if_the_session_commits(
    apps: Apps, url: str, driver: str
) -> None:
    app = apps(double)

    async def program() -> detent.Run[int]:
        engine = create_async_engine(async_url(url, driver))
        async with AsyncSession(engine) as session:
            await session.run_sync(lambda s: app.options(id="lost").within(s).start(double, 1))
            await session.rollback()
            kept = await session.run_sync(lambda s: app.options(id="kept").within(s).start(double, 2))
            assert ids(app) == set()
            await session.commit()
        async with engine.begin() as connection:
            await connection.run_sync(lambda c: app.options(id="other").within(c).start(double, 3))
        await engine.dispose()
        return kept

    assert result(asyncio.run(program())) == 4
    assert ids(app) == {"kept", "other"}


@pytest.mark.parametrize(("module_url", "driver"), ASYNC_DRIVERS, indirect=["module_url"])
def test_a_conflict_in_run_sync_leaves_the_session_usable(apps: Apps, url: str, driver: str) -> None:
    app = apps(double, worker=False)
    app.options(id="first", hero=("User", 1)).start(double, 1)

    async def program() -> None:
        engine = create_async_engine(async_url(url, driver))
        async with AsyncSession(engine) as session:
            await session.run_sync(lambda s: app.options(id="before").within(s).start(double, 1))
            with pytest.raises(AlreadyRunning):
                await session.run_sync(lambda s: app.options(hero=("User", 1)).within(s).start(double, 2))
            await session.run_sync(lambda s: app.options(id="after").within(s).start(double, 3))
            await session.commit()
        await engine.dispose()

    asyncio.run(program())
    assert ids(app) == {"first", "before", "after"}


@pytest.mark.parametrize("module_url", ["postgres"], indirect=True)
def test_a_sync_app_refuses_connections_that_have_to_be_awaited(apps: Apps, url: str) -> None:
    app = apps(double, worker=False)

    async def program() -> None:
        engine = create_async_engine(async_url(url, "psycopg"))
        plain = await psycopg.AsyncConnection.connect(url)
        fast = await asyncpg.connect(url)
        async with AsyncSession(engine) as session, engine.connect() as connection:
            raw = await connection.get_raw_connection()
            for one in (session, connection, raw, raw.driver_connection, plain, fast):
                with pytest.raises(ConfigurationError, match=r"AsyncApp\.within"):
                    app.within(one).start(double, 1)
        await plain.close()
        await fast.close()
        await engine.dispose()

    asyncio.run(program())
    assert ids(app) == set()


# -- AsyncApp over async connections --------------------------------------------------------------


@asynccontextmanager
async def opened(url: str, kind: str) -> AsyncIterator[tuple[Any, Callable[[], Any], Callable[[], Any]]]:
    """A connection with an open transaction, its commit and its rollback."""
    if kind == "psycopg":
        plain = await psycopg.AsyncConnection.connect(url)
        yield plain, plain.commit, plain.rollback
        await plain.close()
    elif kind == "asyncpg":
        fast = await asyncpg.connect(url)
        begun = fast.transaction()
        await begun.start()
        yield fast, begun.commit, begun.rollback
        await fast.close()
    elif kind == "aiosqlite":
        async with aiosqlite.connect(urlsplit(url).path[1:]) as file:
            file.row_factory = aiosqlite.Row
            yield file, file.commit, file.rollback
    elif kind == "aiomysql":
        mine = await aiomysql.connect(db=urlsplit(url).path[1:], **mysql_options(url))
        yield mine, mine.commit, mine.rollback
        mine.close()
    else:
        engine = create_async_engine(async_url(url, kind.partition(" ")[2]))
        async with AsyncSession(engine) as session:
            yield session, session.commit, session.rollback
        await engine.dispose()


ASYNC_KINDS = [
    ("sqlite", "aiosqlite"),
    ("sqlite", "sqlalchemy aiosqlite"),
    ("postgres", "psycopg"),
    ("postgres", "asyncpg"),
    ("postgres", "sqlalchemy psycopg"),
    ("postgres", "sqlalchemy asyncpg"),
    ("mysql", "aiomysql"),
    ("mysql", "sqlalchemy aiomysql"),
]


@pytest.mark.parametrize(("module_url", "kind"), ASYNC_KINDS, indirect=["module_url"])
def test_an_async_app_starts_runs_with_the_transaction_of_an_async_connection(url: str, kind: str) -> None:
    async def program() -> None:
        async with detent.AsyncApp(url, include=[double]) as app:
            await app.options(id="first", hero=("User", 1), delay=3600).start(double, 1)
            async with opened(url, kind) as (connection, commit, _):
                here = app.within(connection)
                [kept, *_] = await here.start_many(double, [(2,), (3,), (4,)])
                with pytest.raises(AlreadyRunning):
                    await here.options(hero=("User", 1)).start(double, 5)
                with pytest.raises(RunConflict):
                    await here.options(id="first").start(double, 5)
                after = await here.options(id="after").start(double, 6)
                assert len(await app.runs()) == 1
                await commit()
            assert await kept.result(timeout=20) == 4
            assert await after.result(timeout=20) == 12
            assert len(await app.runs()) == 5
            async with opened(url, kind) as (connection, _, rollback):
                await app.within(connection).start(double, 7)
                await rollback()
            assert len(await app.runs()) == 5

    asyncio.run(program())


# -- conflicts --------------------------------------------------------------------------------------


def test_a_conflict_leaves_your_transaction_as_it_was(apps: Apps, url: str) -> None:
    """You can catch it and go on: what was written before stays, nothing of the refused start does."""
    app = apps(double, worker=False)
    app.options(id="first", hero=("User", 1)).start(double, 1)
    connection = connect(url)
    here = app.within(connection)
    here.options(id="before", hero=("User", 2)).start(double, 1)
    with pytest.raises(AlreadyRunning) as caught:
        here.options(id="refused", hero=("User", 1)).start(double, 2)
    assert caught.value.run_id == "first"
    with pytest.raises(AlreadyRunning) as caught:  # by a run of the same transaction
        here.options(id="refused too", hero=("User", 2)).start(double, 2)
    assert caught.value.run_id == "before"
    with pytest.raises(RunConflict):
        here.options(id="first").start(double, 2)
    here.options(id="after").start(double, 3)
    connection.commit()
    connection.close()
    assert ids(app) == {"first", "before", "after"}


def test_a_conflict_of_one_of_many_starts_none_of_them(apps: Apps, url: str) -> None:
    app = apps(double, worker=False)
    connection = connect(url)
    taken = app.within(connection).start(double, 1)
    planned = app.engine.planned(double, [((2,), {}), ((3,), {})], Options())
    planned.runs[1].id = planned.executions[1].run_id = taken.id
    with pytest.raises(Exception, match=r"(?i)unique|duplicate|another"):
        join(app.engine.store, connection, planned)
    connection.commit()
    connection.close()
    assert ids(app) == {taken.id}


def test_a_connection_in_autocommit_mode_is_refused(apps: Apps, url: str) -> None:
    """Each statement would commit by itself, and a crash could leave half a run."""
    app = apps(double, worker=False)
    connection = (
        connect(url, isolation_level=None) if kind_of(url) == "sqlite" else connect(url, autocommit=True)
    )
    with pytest.raises(ConfigurationError, match="autocommit"):
        app.within(connection).start(double, 1)
    assert ids(app) == set()
    connection.cursor().execute("BEGIN")
    app.options(id="kept").within(connection).start(double, 1)
    assert ids(app) == set()
    connection.cursor().execute("COMMIT")
    connection.close()
    assert ids(app) == {"kept"}


def test_a_connection_to_another_kind_of_database_is_refused(
    apps: Apps, url: str, postgres_url: str, sqlite_url: str
) -> None:
    app = apps(double, worker=False)
    other = connect(postgres_url if kind_of(url) == "sqlite" else sqlite_url)
    with pytest.raises(ConfigurationError, match="this app's database is"):
        app.within(other).start(double, 1)
    other.close()


# -- options ----------------------------------------------------------------------------------------


def test_options_may_be_given_before_or_after_the_connection(apps: Apps, url: str) -> None:
    app = apps(double, worker=False, queues=["default", "slow"])
    connection = connect(url)
    app.within(connection).options(id="a", queue="slow", priority=3, hero=("User", 1)).start(double, 1)
    app.options(id="b", queue="slow", priority=3, hero=("User", 2)).within(connection).start(double, 1)
    app.options(id="c", queue="slow").within(connection).options(priority=3).start(double, 1)
    with pytest.raises(UnknownQueue):
        app.within(connection).options(queue="nowhere").start(double, 1)
    with pytest.raises(TypeError, match="colour"):
        app.within(connection).options(colour="red")  # type: ignore[call-arg]
    connection.commit()
    connection.close()
    rows = [app.engine.row(id) for id in ("a", "b", "c")]
    assert {(row.queue, row.priority) for row in rows} == {("slow", 3)}
    assert [row.hero_id for row in rows] == ["1", "2", None]


# -- psycopg2 and Django ----------------------------------------------------------------------------


@pytest.mark.parametrize("module_url", ["postgres"], indirect=True)
@pytest.mark.parametrize("factory", [None, psycopg2.extras.RealDictCursor])
def test_psycopg2_carries_runs(apps: Apps, url: str, factory: Any) -> None:
    app = apps(double)
    app.options(id="first", hero=("User", 1), delay=3600).start(double, 1)
    connection = psycopg2.connect(url, cursor_factory=factory)
    app.within(connection).start(double, 1)
    connection.rollback()
    kept = app.within(connection).start(double, 2)
    with pytest.raises(AlreadyRunning):
        app.within(connection).options(hero=("User", 1)).start(double, 2)
    assert ids(app) == {"first"}
    connection.commit()
    connection.autocommit = True
    with pytest.raises(ConfigurationError, match="autocommit"):
        app.within(connection).start(double, 1)
    connection.close()
    assert result(kept) == 4
    assert ids(app) == {"first", kept.id}


@pytest.fixture
def django_connection(url: str) -> Iterator[Any]:
    """Django's connection to the database, as `django.db.connection` is."""
    place = urlsplit(url)
    if place.scheme == "sqlite":
        described: dict[str, Any] = {"ENGINE": "django.db.backends.sqlite3", "NAME": place.path[1:]}
    else:
        name = "postgresql" if place.scheme == "postgresql" else "mysql"
        described = {
            "ENGINE": f"django.db.backends.{name}",
            "NAME": place.path[1:],
            "USER": place.username,
            "PASSWORD": place.password or "",
            "HOST": place.hostname,
            "PORT": place.port,
        }
    if not settings.configured:
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.dummy"}}, USE_TZ=True)
        django.setup()
    connections.databases["detent"] = connections.configure_settings({"default": {}, "detent": described})[
        "detent"
    ]
    yield connections["detent"]
    connections["detent"].close()
    del connections["detent"]


@pytest.mark.parametrize("module_url", ["sqlite", "postgres"], indirect=True)
def test_django_carries_runs(apps: Apps, django_connection: Any) -> None:
    app = apps(double)
    app.options(id="first", hero=("User", 1), delay=3600).start(double, 1)
    with pytest.raises(ZeroDivisionError), transaction.atomic(using="detent"):
        app.within(django_connection).start(double, 1)
        1 / 0
    with transaction.atomic(using="detent"):
        kept = app.within(django_connection).start(double, 2)
        with pytest.raises(AlreadyRunning):
            app.within(django_connection).options(hero=("User", 1)).start(double, 2)
        with django_connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        assert ids(app) == {"first"}
    assert result(kept) == 4
    assert ids(app) == {"first", kept.id}
    with pytest.raises(ConfigurationError, match="atomic"):
        app.within(django_connection).start(double, 3)
