"""Opening an app, and waiting for a run that no live worker serves."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import pytest

import detent
from detent import workflow
from detent.errors import ResultTimeout
from tests.functions.world import Apps, result


@workflow
def double(number: int) -> int:
    return 2 * number


@workflow
def elsewhere() -> None:
    pass


def test_a_nested_block_leaves_the_worker_to_the_outer_one(url: str) -> None:
    app = detent.App(url, include=[double])
    with app:
        worker = app.engine.worker
        with app, app:
            assert app.engine.worker is worker
        assert app.engine.worker is worker
        assert result(app.start(double, 2)) == 4
    assert not app.engine.is_open


def test_a_nested_async_block_leaves_the_worker_to_the_outer_one(url: str) -> None:
    async def main() -> None:
        app = detent.AsyncApp(url, include=[double])
        async with app:
            async with app:
                pass
            with app.sync:  # the same engine
                pass
            assert await (await app.start(double, 2)).result(timeout=20) == 4
        assert not app.engine.is_open

    asyncio.run(main())


def test_a_block_inside_of_an_open_without_a_worker_has_none(url: str) -> None:
    app = detent.App(url, include=[double])
    with app.open(worker=False):
        with app:
            assert app.engine.worker is None
        assert app.engine.is_open
    assert not app.engine.is_open


def test_close_closes_at_once_and_the_block_has_nothing_left_to_do(url: str) -> None:
    app = detent.App(url, include=[double])
    with app:
        with app:
            app.close()
            assert not app.engine.is_open
        with app:  # opened anew
            assert result(app.start(double, 2)) == 4
        assert not app.engine.is_open
    with app:
        assert result(app.start(double, 3)) == 6
    assert not app.engine.is_open


def test_a_block_that_could_not_be_entered_is_not_counted(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("late") / "sub"
    app = detent.App(
        f"sqlite:///{folder / 'detent.db'}", include=[double], patience=timedelta(milliseconds=1)
    )
    with pytest.raises(detent.DetentError), app:
        pass
    folder.mkdir()
    with app:
        pass
    assert not app.engine.is_open


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detent.app.waiters.UNSERVED", 0.5)
    monkeypatch.setattr("detent.app.waiters.BRIEFLY", 0.1)


@pytest.mark.usefixtures("soon")
def test_waiting_without_any_worker_says_so(apps: Apps, caplog: pytest.LogCaptureFixture) -> None:
    run = apps(double, worker=False).start(double, 1)
    with pytest.raises(ResultTimeout, match="no worker is alive") as caught:
        run.result(timeout=2)
    assert caught.value.unserved == "no worker is alive"
    warnings = [record for record in caplog.records if vars(record).get("run") == run.id]
    assert [record.levelno for record in warnings] == [logging.WARNING]
    assert "no worker is alive" in warnings[0].getMessage()


@pytest.mark.usefixtures("soon")
def test_awaiting_without_any_worker_says_so(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with await detent.AsyncApp(url, include=[double]).open(worker=False) as app:
            await (await app.start(double, 1)).result(timeout=2)

    with pytest.raises(ResultTimeout, match="no worker is alive"):
        asyncio.run(main())
    assert sum("no worker is alive" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("what", ["definition", "queue"])
def test_waiting_where_live_workers_serve_something_else_says_so(apps: Apps, what: str) -> None:
    queues = ("default", "other")
    starter = apps(double, worker=False, queues=queues)
    if what == "definition":
        apps(elsewhere, queues=queues)
        run, reason = starter.start(double, 1), "no live worker on the queue 'default' includes 'double'"
    else:
        apps(double, queues=("default",))
        run, reason = (
            starter.options(queue="other").start(double, 1),
            "no live worker takes from the queue 'other'",
        )
    with pytest.raises(ResultTimeout) as caught:
        run.result(timeout=0.5)
    assert caught.value.unserved == reason


@pytest.mark.usefixtures("soon")
def test_waiting_for_what_a_live_worker_serves_warns_of_nothing(
    apps: Apps, caplog: pytest.LogCaptureFixture
) -> None:
    @workflow
    def slow() -> None:
        detent.receive("never")

    apps(slow)
    run = apps(slow, worker=False).start(slow)
    with pytest.raises(ResultTimeout, match="ask again later") as caught:
        run.result(timeout=2)
    assert caught.value.unserved == ""
    assert not [record for record in caplog.records if "is waited for" in record.getMessage()]
