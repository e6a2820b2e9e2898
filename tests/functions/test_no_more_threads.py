"""A process that cannot start another thread: what was asked for waits, or can be asked for again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest

import detent
from detent import App, step, workflow
from detent.errors import DatabaseUnavailable
from detent.stores.store import Store
from detent.worker import upkeep
from tests.functions.world import Apps

PATIENCE = 30.0


@step
def one(number: int) -> int:
    return number + 1


@workflow
def counts(number: int) -> int:
    return one(number)


@workflow
async def acounts(number: int) -> int:
    return await one.aio(number)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "EVERY", 0.2)


@contextmanager
def refused_once(name: str) -> Iterator[list[str]]:
    """The next thread of that name cannot be started."""
    start, refused = threading.Thread.start, list[str]()

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith(name) and not refused:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    with mock.patch.object(threading.Thread, "start", refuse):
        yield refused


@pytest.fixture
def app(url: str) -> Iterator[App]:
    app = App(url, include=[counts, acounts], grace=timedelta(seconds=1))
    yield app
    app.close()


@pytest.mark.parametrize("thread", ["heartbeat", "dispatcher", "upkeep", "listener"])
def test_an_app_that_could_not_open_can_be_opened_again(app: App, thread: str) -> None:
    with refused_once(f"detent-{thread}") as refused, pytest.raises(RuntimeError, match="new thread"):
        app.open(worker=True)
    assert refused
    app.open(worker=True)
    assert app.start(counts, 1).result(timeout=PATIENCE) == 2
    assert len(app.engine.store.workers()) == 1


def test_an_app_that_could_not_open_can_be_closed(app: App) -> None:
    with refused_once("detent-heartbeat"), pytest.raises(RuntimeError, match="new thread"):
        app.open(worker=True)
    app.close()
    assert not app.engine.is_open


def test_a_worker_waits_for_a_database_that_is_away_when_it_registers(app: App) -> None:
    real, failed = Store.register, list[int]()

    def away(self: Store, worker: Any) -> None:
        if not failed:
            failed.append(1)
            raise DatabaseUnavailable(self.driver.name, "restarting")
        real(self, worker)

    with mock.patch.object(Store, "register", away):
        app.open(worker=True)
    assert failed
    assert app.start(counts, 1).result(timeout=PATIENCE) == 2


def test_a_workflow_whose_loop_has_no_thread_yet_runs_later(apps: Apps) -> None:
    app = apps(acounts)
    with refused_once("detent-loop") as refused:
        assert app.start(acounts, 1).result(timeout=PATIENCE) == 2
    assert refused


def test_a_sync_step_of_an_async_workflow_waits_for_a_thread(apps: Apps) -> None:
    """It is not a failure of the step: nothing is recorded, and the workflow sees nothing of it."""
    app = apps(acounts)
    with refused_once("detent-step") as refused:
        run = app.start(acounts, 1)
        assert run.result(timeout=PATIENCE) == 2
    assert refused
    assert [item.outcome for item in run.executions()] == ["success", "success"]


def test_who_could_not_wait_for_a_result_can_ask_again(apps: Apps) -> None:
    app = apps(counts, worker=False)
    run = app.start(counts, 1)
    with refused_once("detent-waiter") as refused, pytest.raises(RuntimeError, match="new thread"):
        run.result(timeout=PATIENCE)
    assert refused
    apps(counts)
    assert run.result(timeout=PATIENCE) == 2


def test_an_async_caller_commits_by_itself_where_the_committer_has_no_thread(url: str) -> None:
    async def start() -> int:
        async with detent.AsyncApp(url, include=[acounts], migrate=True) as app:
            with refused_once("detent-committer") as refused:
                run = await app.start(acounts, 1)
            assert refused
            return await run.result(timeout=PATIENCE)

    assert asyncio.run(start()) == 2
