"""Retention: what ended long ago goes, by hand and by itself; the rest stays."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import detent
from detent import step, workflow
from detent.errors import ConfigurationError, RunNotFound
from detent.testing import ManualClock
from tests.functions.world import Apps, eventually, failure, result, wait_for, wait_parked

HOUR = timedelta(hours=1)


@step
def twice(number: int) -> int:
    return 2 * number


@workflow
def double(number: int) -> int:
    if number < 0:
        raise ValueError(number)
    return twice(number)


@workflow
def family(depth: int) -> int:
    return family(depth - 1) if depth else 0


@workflow
def asks() -> Any:
    return detent.receive("answer")


@workflow
def waits_below() -> Any:
    double(1)
    return detent.receive("answer")


def rows(app: detent.App) -> dict[str, int]:
    tables = "runs executions steps messages readiness history attributes".split()
    with app.engine.store._reading() as tx:
        return {table: tx.query(f"SELECT COUNT(*) FROM detent_{table}")[0][0] for table in tables}


def test_what_ended_long_ago_goes_and_the_rest_stays(apps: Apps) -> None:
    clock = ManualClock()
    app = apps(double, asks, clock=clock)
    old = [app.options(attributes={"n": number}).start(double, number) for number in (1, -1)]
    result(old[0])
    failure(old[1])
    canceled, paused, waiting = (app.start(asks) for _ in range(3))
    for run in (canceled, paused, waiting):
        wait_parked(run)
    canceled.cancel()
    paused.pause()
    clock.advance(hours=2)
    new = app.start(double, 2)
    result(new)

    assert app.gc(older_than=HOUR) == 3
    assert {run.id for run in app.runs()} == {new.id, paused.id, waiting.id}
    with pytest.raises(RunNotFound):
        app.run(old[0].id)
    assert old[0].result() == 2  # who has seen it has seen it
    paused.resume()
    for run in (paused, waiting):
        run.send("answer", 1)
        assert result(run) == 1
    clock.advance(hours=2)
    assert app.gc(older_than=HOUR) == 3
    assert rows(app) == dict.fromkeys(rows(app), 0)


def test_a_family_goes_at_once_and_only_together(apps: Apps) -> None:
    clock = ManualClock()
    app = apps(family, waits_below, double, clock=clock)
    run = app.start(family, 3)
    result(run)
    root = app.start(waits_below)
    wait_parked(root)
    eventually(lambda: len(app.runs.finished(parent=root)) == 1)
    clock.advance(hours=2)
    assert app.gc(older_than=HOUR) == 4
    assert {other.type for other in app.runs()} == {"waits_below", "double"}

    root.send("answer", 1)
    assert result(root) == 1
    assert app.gc(older_than=HOUR) == 0  # the child is old enough, its parent is not
    clock.advance(hours=2)
    assert app.gc(older_than=HOUR) == 2
    assert app.runs() == []


def test_at_most_so_many_go(apps: Apps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detent.app.retention.AT_ONCE", 3)
    clock = ManualClock()
    app = apps(double, clock=clock)
    for run in app.start_many(double, [(number,) for number in range(10)]):
        result(run)
    clock.advance(hours=2)
    assert app.gc(older_than=HOUR, limit=4) == 4
    assert app.gc(older_than=HOUR, limit=100) == 6
    assert app.gc(older_than=HOUR) == 0


def test_an_id_is_remembered_as_long_as_its_run(apps: Apps) -> None:
    clock = ManualClock()
    app = apps(double, clock=clock)
    assert result(app.options(id="order-1").start(double, 1)) == 2
    clock.advance(hours=2)
    app.gc(older_than=HOUR)
    assert result(app.options(id="order-1").start(double, 5)) == 10


def test_a_worker_removes_by_itself_what_is_past_its_retention(apps: Apps) -> None:
    clock = ManualClock()
    app = apps(double, asks, clock=clock)
    waiting = app.start(asks)
    wait_parked(waiting)
    for run in app.start_many(double, [(1,), (2,), (3,)]):
        wait_for(run, "finished")
    clock.advance(days=2)
    recent = app.start(double, 4)
    result(recent)

    sweepers = [apps(double, clock=clock, retention=timedelta(days=1)) for _ in range(2)]
    eventually(lambda: len(app.runs()) == 2, "the old runs are gone")
    assert {run.id for run in sweepers[0].runs()} == {waiting.id, recent.id}


def test_without_a_retention_all_of_it_stays(apps: Apps) -> None:
    app = apps(double)
    assert app.engine.settings.retention is None
    assert app.engine._sweeper is None


def test_an_app_with_a_retention_closes_and_opens_again(apps: Apps) -> None:
    app = apps(double, retention=HOUR)
    sweeper = app.engine._sweeper
    app.close()
    assert sweeper is not None
    assert not sweeper._thread.is_alive()
    app.open(worker=True)
    assert result(app.start(double, 1)) == 2


def test_the_same_is_awaited(url: str) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with detent.AsyncApp(url, include=[double], clock=clock) as app:
            await (await app.start(double, 1)).result()
            clock.advance(hours=2)
            assert await app.gc(older_than=HOUR) == 1
            assert await app.runs() == []

    asyncio.run(main())


@pytest.mark.parametrize("age", [None, 30, timedelta(days=-1)])
def test_an_age_that_makes_no_sense_is_refused(url: str, age: Any) -> None:
    app = detent.App(url, include=[double])
    with pytest.raises(ConfigurationError, match="older_than="):
        app.gc(older_than=age)
    if age is not None:
        with pytest.raises(ConfigurationError, match="retention="):
            detent.App(url, retention=age)
    with pytest.raises(ConfigurationError, match="limit=0"):
        app.gc(older_than=HOUR, limit=0)
    app.close()
