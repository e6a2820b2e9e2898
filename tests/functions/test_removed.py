"""Runs that are removed while somebody waits for them, and reads after a lost connection."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pymysql
import pytest

import detent
from detent import workflow
from detent.aio import AsyncApp
from detent.errors import DatabaseUnavailable, InvalidState, RunNotFound
from detent.kernel.external_changes import Cancel, Delete
from detent.stores.driver import Tx
from tests.functions.test_within import connect, kind_of
from tests.functions.world import PATIENCE, Apps, eventually, result

SERVERS = pytest.mark.parametrize("module_url", ["postgres", "mysql"], indirect=True)
SOON = 20.0  # seconds: less than the patience of an app that has no setting for it


@workflow
def nothing() -> None: ...


@workflow
def wait_for_ever() -> None:
    detent.receive("never")


handles: dict[str, detent.Run[Any]] = {}


@workflow
def outcome(run_id: str) -> str:
    try:
        handles[run_id].result()
    except RunNotFound as error:
        return f"no {error.run_id}"
    return "found"


def remove(app: detent.App, run_id: str) -> None:
    """As retention in another process does it: nobody here is told."""
    app.engine.store.change(Cancel(run_id, reason=None), now=1)

    def deleted() -> bool:
        try:
            app.engine.store.change(Delete(run_id), now=0)
        except InvalidState:  # a worker has just begun it
            return False
        return True

    eventually(deleted)


def crash(app: detent.App, run_id: str) -> None:
    """Remove a run that somebody waits for, in one transaction: its end is not seen."""

    def delete(tx: Tx) -> None:
        for table in ("executions", "history", "runs"):
            column = "id" if table == "runs" else "run_id"
            tx.run(tx.driver.adapt(f"DELETE FROM detent_{table} WHERE {column} = :id"), id=run_id)

    app.engine.store.write(delete)


# Removed runs


def test_who_waits_for_a_run_that_is_removed_gets_an_error(apps: Apps) -> None:
    app = apps(wait_for_ever, worker=False)
    run = app.start(wait_for_ever)
    found: list[BaseException] = []

    def wait() -> None:
        try:
            run.result(timeout=PATIENCE)
        except BaseException as error:
            found.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    eventually(lambda: app.engine.waiters._waiting)
    crash(app, run.id)
    waiting.join(PATIENCE)
    assert isinstance(found[0], RunNotFound)


def test_a_handle_of_a_run_that_is_gone_says_so(apps: Apps) -> None:
    app = apps(wait_for_ever, worker=False)
    run = app.start(wait_for_ever)
    remove(app, run.id)
    begun = time.monotonic()
    with pytest.raises(RunNotFound):
        run.result(timeout=PATIENCE)
    with pytest.raises(RunNotFound):
        run.refresh()
    with pytest.raises(RunNotFound):
        app.run(run.id)
    assert time.monotonic() - begun < PATIENCE / 2


def test_async_callers_get_the_same_error(apps: Apps, url: str) -> None:
    sync = apps(wait_for_ever, worker=False)

    async def program() -> None:
        async with AsyncApp(url, include=[wait_for_ever]) as app:
            run = await app.start(wait_for_ever)
            remove(sync, run.id)
            with pytest.raises(RunNotFound):
                await run.result(timeout=PATIENCE)
            with pytest.raises(RunNotFound):
                await run.refresh()

    asyncio.run(program())


def test_a_run_that_begins_with_a_commit_to_come_is_waited_for(apps: Apps, url: str) -> None:
    app = apps(nothing)
    connection = connect(url)
    run = app.within(connection).start(nothing)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(run.result, timeout=PATIENCE)
        eventually(lambda: app.engine.waiters._waiting)
        time.sleep(2.5)  # it has been looked for more than once
        assert not waiting.done()
        connection.commit()
        assert waiting.result() is None
    connection.close()


def test_a_workflow_that_waits_for_a_removed_run_gets_an_error_and_a_replay_the_same(apps: Apps) -> None:
    app = apps(outcome, wait_for_ever)
    run = app.start(wait_for_ever)
    handles[run.id] = run
    remove(app, run.id)
    waiting = app.start(outcome, run.id)
    assert result(waiting) == f"no {run.id}"
    [entry] = [one for one in app.engine.store.journal([waiting.id])[waiting.id] if one.kind == "result"]
    assert entry.state == "failed"


# Reads after a cut


def cut_all(url: str) -> None:
    """End every session of this app, as a failing server or firewall does."""
    if kind_of(url) == "postgresql":
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        return
    with connect(url) as admin, admin.cursor() as cursor:
        cursor.execute(
            "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
        )
        for (session,) in cursor.fetchall():
            try:
                cursor.execute(f"KILL {session}")
            except pymysql.MySQLError:  # it has just ended
                continue


def reads(app: detent.App, run: Any) -> dict[str, Callable[[], Any]]:
    return {
        "runs": lambda: len(app.runs()),
        "run": lambda: app.run(run.id).id,
        "refresh": lambda: run.refresh().id,
        "history": lambda: len(run.history()),
        "executions": lambda: len(run.executions()),
        "published": lambda: run.published("nothing"),
        "attributes": lambda: len(app.runs(attributes={"a": 1})),
        "workers": lambda: len(app.engine.store.workers()),
    }


@SERVERS
def test_reads_after_a_lost_connection_are_answered(apps: Apps, url: str) -> None:
    app = apps(nothing, worker=False)
    run = app.start(nothing)
    for name, read in reads(app, run).items():
        before = read()
        cut_all(url)
        assert read() == before, name


@SERVERS
def test_async_reads_after_a_lost_connection_are_answered(apps: Apps, url: str) -> None:
    async def program() -> None:
        async with AsyncApp(url, include=[nothing]) as app:
            run = await app.start(nothing)
            await run.result(timeout=PATIENCE)
            for _ in range(3):
                assert len(await app.runs()) == 1
                cut_all(url)
                assert len(await app.runs()) == 1
                cut_all(url)
                assert (await run.refresh()).id == run.id

    apps(nothing, worker=False)
    asyncio.run(program())


@SERVERS
def test_reads_end_with_database_unavailable_at_the_end_of_patience(
    apps: Apps, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = apps(nothing, worker=False, patience=timedelta(seconds=0.5))
    app.start(nothing)

    def refuse() -> Any:
        raise DatabaseUnavailable("it", "away")

    cut_all(url)
    monkeypatch.setattr(app.engine.store.driver, "connect", refuse)
    begun = time.monotonic()
    with pytest.raises(DatabaseUnavailable):
        app.runs()
    assert 0.2 < time.monotonic() - begun < SOON
    monkeypatch.undo()
    assert len(app.runs()) == 1
