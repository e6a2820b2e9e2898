"""A user's open transaction holds up what it concerns, and nothing else."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest

import detent
from detent import step, workflow
from detent.aio import AsyncApp
from detent.errors import AlreadyRunning, DatabaseUnavailable
from detent.stores.batch.changes import write_changes
from tests.functions.test_within import connect, kind_of
from tests.functions.world import Apps, eventually, result, state

SERVERS = pytest.mark.parametrize("module_url", ["postgres", "mysql"], indirect=True)
OTHERS = 30
SOON = 20.0  # seconds in which the others are through, on a busy machine; less than anyone's patience


@step
def add(number: int) -> int:
    return number + 1


@workflow
def count(number: int) -> int:
    return add(add(number))


@workflow
def listen() -> list[str]:
    heard: list[str] = []
    while len(heard) < 3:
        heard.append(detent.receive("word"))
    return heard


@contextmanager
def open_transaction(url: str) -> Iterator[Any]:
    """A user's transaction; it is rolled back unless the test has ended it."""
    connection = connect(url)
    if kind_of(url) == "mysql":
        connection.begin()
    try:
        yield connection
    finally:
        connection.rollback()
        connection.close()


@contextmanager
def in_background(*calls: Callable[[], Any]) -> Iterator[list[Future[Any]]]:
    with ThreadPoolExecutor(len(calls)) as pool:
        yield [pool.submit(call) for call in calls]


def lock_run(connection: Any, run_id: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT id FROM detent_runs WHERE id = %s FOR UPDATE", (run_id,))
        assert cursor.fetchall()


def others_complete(app: detent.App) -> float:
    """Start many runs from several threads and wait for them; return how long that took."""
    begun = time.monotonic()
    with ThreadPoolExecutor(5) as pool:
        runs = list(pool.map(lambda number: app.start(count, number), range(OTHERS)))
    assert [run.result(timeout=SOON) for run in runs] == [number + 2 for number in range(OTHERS)]
    return time.monotonic() - begun


def is_aside(app: detent.App, many: int = 1) -> Callable[[], bool]:
    return lambda: len(app.engine.services.committer._asides._members) >= many


@SERVERS
def test_a_start_waits_for_the_open_transaction_that_has_its_id_and_others_do_not(
    apps: Apps, url: str
) -> None:
    app = apps(count)
    with open_transaction(url) as mine:
        app.options(id="same").within(mine).start(count, 1)
        with in_background(lambda: app.options(id="same").start(count, 1)) as [blocked]:
            eventually(is_aside(app))
            assert others_complete(app) < SOON
            assert not blocked.done()
            mine.commit()
            assert result(blocked.result()) == 3
    assert len(app.runs(limit=1000)) == OTHERS + 1


@SERVERS
def test_a_start_that_waited_begins_its_run_when_the_transaction_is_rolled_back(apps: Apps, url: str) -> None:
    app = apps(count)
    with open_transaction(url) as mine:
        app.options(id="same").within(mine).start(count, 1)
        with in_background(lambda: app.options(id="same").start(count, 1)) as [blocked]:
            eventually(is_aside(app))
            mine.rollback()
            assert result(blocked.result()) == 3


@SERVERS
def test_a_start_waits_for_the_open_transaction_that_has_its_hero(apps: Apps, url: str) -> None:
    app = apps(count, listen)
    hero = ("User", 7)
    with open_transaction(url) as mine:
        first = app.options(hero=hero).within(mine).start(listen)
        with in_background(*[lambda: app.options(hero=hero).start(listen)] * 3) as blocked:
            eventually(is_aside(app, 3))
            assert others_complete(app) < SOON
            assert not any(one.done() for one in blocked)
            mine.commit()
            for one in blocked:
                with pytest.raises(AlreadyRunning) as refused:
                    one.result()
                assert refused.value.run_id == first.id


@SERVERS
def test_messages_to_a_locked_run_wait_in_their_order(apps: Apps, url: str) -> None:
    app = apps(count, listen)
    run = app.start(listen)
    with open_transaction(url) as mine:
        lock_run(mine, run.id)
        blocked: list[Future[Any]] = []
        with ThreadPoolExecutor(3) as pool:
            for number, word in enumerate(["one", "two", "three"], start=1):
                blocked.append(pool.submit(run.send, "word", word))
                eventually(is_aside(app, number))
            assert others_complete(app) < SOON
            assert not any(one.done() for one in blocked)
            mine.commit()
    assert result(run) == ["one", "two", "three"]


@SERVERS
@pytest.mark.parametrize("verb", ["cancel", "pause"])
def test_control_of_a_locked_run_holds_up_nothing_else(apps: Apps, url: str, verb: str) -> None:
    app = apps(count, listen)
    run = app.start(listen)
    with open_transaction(url) as mine:
        lock_run(mine, run.id)
        with in_background(getattr(run, verb)) as [blocked]:
            assert others_complete(app) < SOON
            assert not blocked.done()
            mine.commit()
            blocked.result()
    eventually(lambda: state(run) == {"cancel": "canceled", "pause": "paused"}[verb])


@SERVERS
def test_a_run_that_is_locked_while_it_ends_is_finished_later_and_others_go_on(apps: Apps, url: str) -> None:
    reached, go = threading.Event(), threading.Event()

    @workflow
    def held() -> str:
        reached.set()
        go.wait(20)
        return "ended"

    app = apps(count, held)
    run = app.start(held)
    assert reached.wait(20)
    with open_transaction(url) as mine:
        lock_run(mine, run.id)
        go.set()
        eventually(is_aside(app))
        assert others_complete(app) < SOON
        assert state(run) == "performing"
        mine.commit()
    assert result(run) == "ended"


@SERVERS
def test_blocked_starts_do_not_keep_the_slots_of_the_worker(apps: Apps, url: str) -> None:
    app = apps(count, concurrency=4)
    with open_transaction(url) as mine:
        for number in range(4):
            app.options(id=f"same-{number}").within(mine).start(count, number)
        starts = [lambda n=n: app.options(id=f"same-{n}").start(count, n) for n in range(4)]
        with in_background(*starts) as blocked:
            eventually(is_aside(app, 4))
            assert others_complete(app) < SOON
            mine.rollback()
            assert [result(one.result()) for one in blocked] == [2, 3, 4, 5]


@SERVERS
def test_a_blocked_start_fails_at_the_end_of_its_patience(apps: Apps, url: str) -> None:
    app = apps(count, patience=timedelta(seconds=1))
    with open_transaction(url) as mine:
        app.options(id="same").within(mine).start(count, 1)
        begun = time.monotonic()
        with pytest.raises(DatabaseUnavailable, match="has not ended"):
            app.options(id="same").start(count, 1)
        assert 0.9 < time.monotonic() - begun < SOON
        assert result(app.start(count, 1)) == 3


@SERVERS
def test_closing_does_not_wait_for_an_open_transaction(apps: Apps, url: str) -> None:
    app = apps(count)
    with open_transaction(url) as mine:
        app.options(id="same").within(mine).start(count, 1)
        with in_background(lambda: app.options(id="same").start(count, 1)) as [blocked]:
            eventually(is_aside(app))
            begun = time.monotonic()
            app.close()
            assert time.monotonic() - begun < SOON
            with pytest.raises(DatabaseUnavailable):
                blocked.result()


@SERVERS
def test_a_deadlock_with_a_transaction_of_the_user_ends_with_both_committed(apps: Apps, url: str) -> None:
    """Our batch holds one run and waits for another; the user has the second and asks for the first."""
    app = apps(listen, worker=False)
    first, second = sorted((app.start(listen), app.start(listen)), key=lambda run: run.id)
    for _ in range(3):
        with open_transaction(url) as mine, ThreadPoolExecutor(8) as pool:
            lock_run(mine, second.id)
            sends = [pool.submit(run.send, "word", "x") for run in (first, second) * 4]
            eventually(is_aside(app))
            lock_run(mine, first.id)  # it waits for a batch of ours at most
            mine.commit()
            for one in sends:
                one.result(timeout=SOON)


@SERVERS
def test_async_callers_wait_aside_too(apps: Apps, url: str) -> None:
    sync = apps(count, worker=False)

    async def program() -> None:
        async with AsyncApp(url, include=[count], grace=timedelta(seconds=1)) as app:
            with open_transaction(url) as mine:
                sync.options(id="same").within(mine).start(count, 1)
                blocked = asyncio.create_task(app.options(id="same").start(count, 1))
                runs = await asyncio.gather(*(app.start(count, number) for number in range(OTHERS)))
                assert [await run.result(timeout=SOON) for run in runs] == [n + 2 for n in range(OTHERS)]
                assert not blocked.done()
                mine.commit()
                assert await (await blocked).result(timeout=SOON) == 3

    asyncio.run(program())


@pytest.mark.parametrize("module_url", ["sqlite"], indirect=True)
def test_an_open_transaction_on_sqlite_blocks_all_writers_until_their_patience_ends(
    apps: Apps, url: str
) -> None:
    app = apps(count, patience=timedelta(seconds=1))
    with open_transaction(url) as mine:
        app.options(id="same").within(mine).start(count, 1)
        begun = time.monotonic()
        with pytest.raises(DatabaseUnavailable):
            app.start(count, 1)
        assert 0.9 < time.monotonic() - begun < SOON
        mine.commit()
    assert result(app.start(count, 1)) == 3
    assert result(app.run("same")) == 3


@pytest.mark.parametrize("module_url", ["sqlite"], indirect=True)
def test_a_start_within_a_transaction_on_sqlite_cannot_lose_its_turn_to_another_writer(
    apps: Apps, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the write lock before it reads; else a commit in between would make it fail at once."""
    app, refused = apps(count, worker=False), list[str]()
    real = write_changes

    def another_writes_first(*args: Any) -> Any:
        with closing(sqlite3.connect(urlsplit(url).path[1:], timeout=0)) as other:
            try:
                other.execute("CREATE TABLE another (id INTEGER)")
                other.commit()
            except sqlite3.OperationalError as error:
                refused.append(str(error))
        return real(*args)

    with open_transaction(url) as mine:
        monkeypatch.setattr("detent.stores.batch.apply.write_changes", another_writes_first)
        run = app.options(id="same").within(mine).start(count, 1)
        mine.commit()
    assert refused == ["database is locked"]
    assert app.run(run.id).state == "ready"
