"""Sessions that somebody ends in the server, in the middle of a commit or at random."""

import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

import psycopg
import pymysql
import pytest

from detent import App, Run
from detent.stores.driver import Trouble, Tx
from detent.stores.open import open_store
from tests.acceptance.programs import crowd
from tests.acceptance.support import World, all_finish, settled_once

pytestmark = pytest.mark.acceptance

RUNS = 150
BETWEEN = 0.15  # seconds between two sessions that are ended


@pytest.fixture(params=["postgres", "mysql"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    world = World(request.getfixturevalue(f"{request.param}_database"), tmp_path)
    with closing(world):
        yield world


def test_a_session_that_ends_before_its_commit_is_the_database_being_away(world: World) -> None:
    """Whatever the driver makes of it: the start is tried again, begins its run, and says so."""
    with App(world.url, include=[crowd], migrate=True) as app:
        driver = app.engine.store.driver
        real = type(driver).commit
        errors: list[Exception] = []

        def cut_off_once(self: Any, connection: Any) -> None:
            if not errors:
                end_session(world.url, session_of(connection))
                try:
                    real(self, connection)
                except Exception as error:
                    errors.append(error)
                    raise
            real(self, connection)

        with mock.patch.object(type(driver), "commit", cut_off_once):
            # A plain start is one statement on PostgreSQL, and commits by itself.
            run = app.options(attributes={"a": 1}).start(crowd.one_step, 1)
        assert driver.trouble(errors[0]) is Trouble.GONE
        run.result(timeout=30)
        settled_once(app, 1)


def test_a_session_that_ends_between_two_answers_of_a_pipeline_is_lost(postgres_database: str) -> None:
    """Several statements are on their way; the server ends the session in the first."""
    store = open_store(postgres_database)

    def wait_twice(tx: Tx) -> None:
        tx.send("SELECT pg_sleep(30)")
        tx.send("SELECT 1")
        threading.Timer(0.5, end_session, [postgres_database, session_of(tx.connection)]).start()
        tx.query("SELECT 2")

    with closing(store), pytest.raises(psycopg.OperationalError) as lost:
        store.write(wait_twice)
    assert store.driver.trouble(lost.value) is Trouble.GONE


def test_nothing_stays_behind_when_sessions_are_ended_at_random(world: World) -> None:
    """Every session of the app in turn, again and again, while runs are started and executed."""
    app = world.app(crowd)
    over, runs = threading.Event(), []
    with App(world.url, include=[crowd]) as working:

        def cut() -> None:
            while not over.wait(BETWEEN):
                try:
                    end_session(world.url, sessions(world.url)[0])
                except (psycopg.OperationalError, pymysql.MySQLError):
                    continue  # it was our own

        cutting = threading.Thread(target=cut, daemon=True)
        cutting.start()
        for number in range(RUNS):
            runs.append(_start(working, number))
            time.sleep(0.02)
        over.set()
        cutting.join()
        all_finish(world, app, RUNS)
    assert len({run.id for run in runs}) == RUNS
    settled_once(app, RUNS)


def _start(app: App, number: int) -> Run[Any]:
    run: Run[Any] = app.options(id=f"run-{number}").start(crowd.one_step, number)
    return run


def session_of(connection: Any) -> int:
    if isinstance(connection, psycopg.Connection):
        return connection.info.backend_pid
    return int(connection.thread_id())


def sessions(url: str) -> list[int]:
    """The sessions of this database, in an order that changes."""
    if url.startswith("mysql"):
        found = _ask(
            url, "SELECT id FROM information_schema.processlist WHERE db = DATABASE() ORDER BY RAND()"
        )
    else:
        found = _ask(
            url, "SELECT pid FROM pg_stat_activity WHERE datname = current_database() ORDER BY random()"
        )
    return [row[0] for row in found]


def end_session(url: str, session: int) -> None:
    try:
        _ask(url, f"KILL {session}" if url.startswith("mysql") else f"SELECT pg_terminate_backend({session})")
    except (psycopg.OperationalError, pymysql.MySQLError):  # it has ended by itself, or was our own
        return


def _ask(url: str, statement: str) -> list[tuple[Any, ...]]:
    if not url.startswith("mysql"):
        with psycopg.connect(url, autocommit=True) as postgres:
            return postgres.execute(statement.encode()).fetchall()
    place = urlsplit(url)
    mysql = pymysql.connect(
        host=place.hostname,
        port=place.port or 3306,
        user=place.username,
        password=place.password or "",
        database=place.path.lstrip("/"),
        autocommit=True,
    )
    with mysql, mysql.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())
