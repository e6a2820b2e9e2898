"""Our sessions have our own timeouts, whatever the database has for others; and text is UTF-8."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pymysql
import pytest

from detent import App, step, workflow
from detent.errors import DatabaseUnavailable, EncodingUnfit
from detent.stores import base_store
from detent.stores.driver import LOCK_WAIT
from detent.stores.mysql import driver as mysql


@step
def one() -> int:
    return 1


@workflow
def counts() -> int:
    return one()


@pytest.fixture
def hasty_postgres(postgres_database: str) -> str:
    """A database that cancels whatever waits or takes long."""
    name = urlsplit(postgres_database).path.lstrip("/")
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{name}" SET lock_timeout = 10'.encode())
    return postgres_database


@pytest.fixture(params=["postgres", "mysql"])
def locked(request: pytest.FixtureRequest) -> Iterator[tuple[str, threading.Event]]:
    """A database in which somebody locks the runs until the event is set."""
    fixture = "hasty_postgres" if request.param == "postgres" else "mysql_database"
    url: str = request.getfixturevalue(fixture)
    App(url, migrate=True).open(worker=False).close()
    release, begun = threading.Event(), threading.Event()

    def hold() -> None:
        with closing(_connect(url)) as connection, connection.cursor() as cursor:
            if url.startswith("mysql"):
                cursor.execute("LOCK TABLES detent_runs READ")
            else:
                cursor.execute("BEGIN")
                cursor.execute("LOCK TABLE detent_runs IN EXCLUSIVE MODE")
            begun.set()
            assert release.wait(60)

    holding = threading.Thread(target=hold, daemon=True)
    holding.start()
    assert begun.wait(30)
    yield url, release
    release.set()
    holding.join()


def _connect(url: str) -> Any:
    if not url.startswith("mysql"):
        return psycopg.connect(url, autocommit=True)
    place = urlsplit(url)
    return pymysql.connect(
        host=place.hostname,
        port=place.port or 3306,
        user=place.username,
        password=place.password or "",
        database=place.path.lstrip("/"),
        autocommit=True,
    )


def test_a_lock_is_waited_for_longer_than_the_database_lets_others_wait(
    locked: tuple[str, threading.Event],
) -> None:
    url, release = locked
    with closing(App(url, include=[counts]).open(worker=False)) as app:
        threading.Timer(1.5, release.set).start()
        begun = time.monotonic()
        app.start(counts)
        assert time.monotonic() - begun > 1.0


def test_a_lock_that_is_never_released_is_a_database_that_is_away(
    hasty_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the raw error, nor a failed run: the caller's patience ends."""
    monkeypatch.setattr(base_store, "RETRIED_FOR", 0.3)
    App(hasty_postgres, migrate=True).open(worker=False).close()
    patience = timedelta(seconds=1)
    with (
        closing(_connect(hasty_postgres)) as other,
        closing(App(hasty_postgres, include=[counts], patience=patience).open(worker=False)) as app,
    ):
        other.execute("BEGIN")
        other.execute("LOCK TABLE detent_runs IN EXCLUSIVE MODE")
        with pytest.raises(DatabaseUnavailable):
            app.start(counts)
        other.execute("ROLLBACK")
        app.start(counts)


def test_our_sessions_may_be_idle_and_take_their_time(mysql_database: str) -> None:
    driver = mysql.MySqlDriver(mysql_database)
    with closing(driver.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION wait_timeout = 7, innodb_lock_wait_timeout = 1")
        driver.tune(connection)
        cursor.execute("SELECT @@wait_timeout, @@innodb_lock_wait_timeout")
        assert cursor.fetchone() == (mysql.IDLE_FOR, LOCK_WAIT)


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_that_cannot_store_all_text_is_refused(encoding: str, postgres_url: str) -> None:
    name = f"detent_{uuid4().hex[:12]}"
    create = f"CREATE DATABASE {name} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(create.encode())
        try:
            with pytest.raises(EncodingUnfit, match=encoding):
                App(urlsplit(postgres_url)._replace(path=f"/{name}").geturl(), migrate=True).open()
        finally:
            admin.execute(f"DROP DATABASE {name}".encode())


def test_the_encoding_of_the_client_does_not_matter(
    postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")

    @workflow
    def echoes(text: str) -> str:
        return text

    with App(postgres_database, include=[echoes], migrate=True) as app:
        assert app.start(echoes, "žluťoučký 漢 🐎").result(timeout=30) == "žluťoučký 漢 🐎"
