"""Connections that are cut, and files that cannot be written, while work is under way."""

import resource
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pymysql
import pytest

from detent import App
from detent.errors import InvalidArgument
from tests.acceptance.programs import chains
from tests.acceptance.support import (
    Process,
    World,
    alive,
    all_finish,
    eventually,
    journals_agree,
    recorded_bodies_stay,
    settled_once,
    start_chains,
    written_once,
)

pytestmark = pytest.mark.acceptance

RUNS = 300
PAUSE = 0.5  # seconds that a step takes at most
AWAY = 4.0  # seconds
CUTS = 12
BETWEEN_CUTS = 0.4  # seconds


def cut_postgres(url: str) -> None:
    with psycopg.connect(url, autocommit=True, application_name="cutter") as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'detent' AND datname = current_database()"
        )


def cut_mysql(url: str) -> None:
    place = urlsplit(url)
    connection = pymysql.connect(
        host=place.hostname,
        port=place.port or 3306,
        user=place.username,
        password=place.password or "",
        database=place.path.lstrip("/"),
        autocommit=True,
    )
    with connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
        )
        for (id,) in cursor.fetchall():
            try:
                cursor.execute(f"KILL {id}")
            except pymysql.err.OperationalError:  # gone by itself
                continue


@pytest.mark.parametrize(
    ("database", "cut"), [("postgres", cut_postgres), ("mysql", cut_mysql)], ids=["postgres", "mysql"]
)
def test_connections_may_be_cut_again_and_again(
    database: str, cut: Callable[[str], None], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    world = World(request.getfixturevalue(f"{database}_database"), tmp_path)
    with closing(world):
        app = world.chains()
        workers = [world.worker(pause=PAUSE), world.worker(pause=PAUSE)]
        eventually(lambda: alive(app, *workers), "both workers have begun")
        runs = start_chains(app, RUNS)
        for _ in range(CUTS):
            cut(world.url)
            time.sleep(BETWEEN_CUTS)
        all_finish(world, app, RUNS)
        assert all(worker.alive for worker in workers)
        settled_once(app, RUNS)
        written_once(app, RUNS)
        journals_agree(world, app, runs)


@pytest.fixture
def at_work(sqlite_url: str, tmp_path: Path) -> Iterator[tuple[World, App, Process]]:
    """A worker in the middle of work on a SQLite file, in a folder of its own."""
    folder = tmp_path / "data"
    folder.mkdir()
    world = World(f"sqlite:///{folder / 'detent.db'}", tmp_path)
    app = world.chains()
    worker = world.worker(pause=PAUSE)
    eventually(lambda: alive(app, worker), "the worker has begun")
    yield world, app, worker
    world.close()


def test_a_file_that_somebody_else_locks_is_waited_for(at_work: tuple[World, App, Process]) -> None:
    world, app, worker = at_work
    start_chains(app, RUNS)
    with closing(sqlite3.connect(world.folder / "data" / "detent.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        starting = threading.Thread(target=app.start, args=[chains.chain])
        starting.start()
        time.sleep(AWAY)
        other.execute("COMMIT")
    starting.join()
    all_finish(world, app, RUNS + 1)
    assert worker.alive
    settled_once(app, RUNS + 1)
    written_once(app, RUNS + 1)
    recorded_bodies_stay(world)
    assert "locked" not in world.logs()


def test_a_disk_that_is_full_is_waited_for(at_work: tuple[World, App, Process]) -> None:
    world, app, worker = at_work
    runs = start_chains(app, RUNS)
    # For this process every write fails, as on a full disk.
    before = resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    time.sleep(AWAY)
    resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, before)
    all_finish(world, app, RUNS)
    assert worker.alive
    settled_once(app, RUNS)
    written_once(app, RUNS)
    journals_agree(world, app, runs)
    recorded_bodies_stay(world)


def test_a_folder_that_goes_away_is_waited_for(at_work: tuple[World, App, Process]) -> None:
    world, app, worker = at_work
    runs = start_chains(app, RUNS)
    folder = world.folder / "data"
    folder.rename(world.folder / "elsewhere")
    # A new app says at once that there is no folder; those that are open wait for it.
    with pytest.raises(InvalidArgument, match="does not exist"):
        App(world.url, patience=timedelta(seconds=0.5)).open()
    time.sleep(AWAY)
    (world.folder / "elsewhere").rename(folder)
    all_finish(world, app, RUNS)
    assert worker.alive
    settled_once(app, RUNS)
    written_once(app, RUNS)
    journals_agree(world, app, runs)
