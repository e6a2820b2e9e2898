"""What operators do with schedules, in sync and async code."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import detent
from detent import workflow
from detent.errors import (
    DefinitionError,
    InvalidArgument,
    InvalidScheduleState,
    ScheduleConflict,
    TooManyFirings,
    UnknownDefinition,
    UnknownQueue,
    UnknownSchedule,
)
from detent.testing import TestingApp

DAY = datetime(2030, 1, 1, tzinfo=UTC)


@dataclass
class Region:
    name: str


@workflow
def report(region: Region) -> str:
    return region.name


def hourly(app: TestingApp, name: str = "hourly", **terms: Any) -> None:
    app.schedule(name, report, **{"args": (Region("eu"),), "cron": "0 * * * *", **terms})


def ids(app: detent.App) -> list[str]:
    return sorted(run.id for run in app.runs())


def test_a_paused_schedule_does_not_fire_and_resuming_does_not_catch_up(testing: TestingApp) -> None:
    hourly(testing)
    testing.advance(minutes=1)
    schedule = testing.schedules["hourly"]
    schedule.pause(reason="the bank is closed")
    testing.advance(hours=3)
    assert ids(testing) == []
    assert (schedule.refresh().state, schedule.reason) == ("paused", "the bank is closed")
    assert schedule.next() == [DAY + timedelta(hours=4)]
    schedule.resume()
    schedule.resume()
    testing.advance(hours=1)
    assert ids(testing) == ["hourly@2030-01-01T04:00:00Z"]
    events = [event.event for event in schedule.history()]
    assert events == ["created", "paused", "resumed"]


def test_a_paused_schedule_stays_paused_through_a_deploy(url: str) -> None:
    with TestingApp(url) as app:
        hourly(app)
        app.settle_down()
        app.schedules["hourly"].pause()
    with TestingApp(url) as app:
        hourly(app, cron="*/5 * * * *")
        app.advance(hours=1)
        schedule = app.schedules["hourly"]
        assert (schedule.state, schedule.cron, ids(app)) == ("paused", "*/5 * * * *", [])


def test_a_trigger_starts_a_run_beside_the_firings(testing: TestingApp) -> None:
    hourly(testing)
    testing.settle_down()
    schedule = testing.schedules["hourly"]
    schedule.pause()
    first, second = schedule.trigger(), schedule.trigger()
    testing.settle_down()
    assert first.id != second.id
    assert [run.result() for run in (first, second)] == ["eu", "eu"]
    assert schedule.refresh().fired == 0


def test_a_backfill_starts_what_is_missing_in_a_time(testing: TestingApp) -> None:
    hourly(testing)
    testing.advance(hours=2)
    schedule = testing.schedules["hourly"]
    made = schedule.backfill(DAY - timedelta(hours=1), DAY + timedelta(hours=2))
    assert [run.id for run in made] == ["hourly@2029-12-31T23:00:00Z", "hourly@2030-01-01T00:00:00Z"]
    assert schedule.backfill(DAY - timedelta(hours=1), DAY + timedelta(hours=2)) == []
    testing.settle_down()
    assert [run.refresh().state for run in made] == ["finished", "finished"]


def test_a_backfill_of_very_many_runs_is_refused(testing: TestingApp) -> None:
    hourly(testing)
    with pytest.raises(TooManyFirings):
        testing.schedules["hourly"].backfill(DAY, DAY + timedelta(days=3650))


def test_schedules_are_listed_together_with_where_they_come_from(testing: TestingApp) -> None:
    hourly(testing, "b")
    testing.include(report)
    testing.schedules.create("a", report, args=(Region("us"),), every=timedelta(hours=2))
    testing.advance(hours=2)
    listed = [(one.name, one.source, one.state, one.type, one.fired) for one in testing.schedules]
    assert listed == [("a", "run time", "active", "report", 1), ("b", "code", "active", "report", 2)]
    run = testing.schedules["a"].last_run
    assert run is not None
    assert (run.state, run.result()) == ("finished", "us")


def test_a_client_lists_what_the_code_declares_before_any_worker_has_started(url: str) -> None:
    app = detent.App(url, include=[report])
    app.schedule("hourly", report, args=(Region("eu"),), cron="0 * * * *", tz="Asia/Kolkata")
    assert [one.name for one in app.schedules] == ["hourly"]
    assert app.schedules["hourly"].next()[0].minute == 30
    app.close()


def test_the_same_schedule_made_twice_is_one(testing: TestingApp) -> None:
    testing.include(report)
    for _ in range(2):
        testing.schedules.create("s", report, args=(Region("eu"),), every=60)
    with pytest.raises(ScheduleConflict):
        testing.schedules.create("s", report, args=(Region("us"),), every=60)
    testing.schedules["s"].delete()
    assert list(testing.schedules) == []
    with pytest.raises(UnknownSchedule, match="there is no schedule 's'"):
        testing.schedules["s"]


def test_what_the_code_declares_is_removed_there(testing: TestingApp) -> None:
    hourly(testing)
    schedule = testing.schedules["hourly"]
    with pytest.raises(InvalidScheduleState, match="declared in the code; remove it there"):
        schedule.delete()
    with pytest.raises(ScheduleConflict, match="declared in the code"):
        testing.schedules.create("hourly", report, args=(Region("eu"),), cron="0 * * * *")


def test_payloads_of_schedules_are_encrypted_like_others(url: str) -> None:
    class Reversed:
        def __init__(self) -> None:
            self.calls = 0

        def encode(self, text: str) -> str:
            self.calls += 1
            return f"{self.calls}:{text[::-1]}"

        def decode(self, text: str) -> str:
            return text.partition(":")[2][::-1]

    for _ in range(2):
        with TestingApp(url, include=[report], transform=Reversed()) as app:
            hourly(app)
            app.advance(hours=1)
            row = app.engine.store.schedule("hourly")
            assert row is not None
            assert "eu" not in row.input
            assert [event.event for event in app.schedules["hourly"].history()] == ["created"]
            assert [run.result() for run in app.runs()] == ["eu"]


GOOD: dict[str, Any] = {"args": (Region("eu"),), "cron": "0 3 * * *"}


@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        ({"cron": None}, "cron"),
        ({"every": 60}, "cron"),
        ({"cron": "every night"}, "cron"),
        ({"cron": 3}, "cron"),
        ({"cron": None, "every": 0}, "every"),
        ({"cron": None, "every": 0.5}, "every"),
        ({"cron": None, "every": "5m"}, "every"),
        ({"cron": None, "every": 60, "tz": "Europe/Paris"}, "tz"),
        ({"tz": "Europe/Pariss"}, "tz"),
        ({"tz": None}, "tz"),
        ({"jitter": -1}, "jitter"),
        ({"jitter": timedelta(days=1)}, "jitter"),
        ({"overlap": "ignore"}, "overlap"),
        ({"catch_up": "some"}, "catch_up"),
        ({"args": "eu"}, "args"),
        ({"kwargs": []}, "kwargs"),
        ({"priority": "high"}, "priority"),
        ({"deadline": 0}, "deadline"),
        ({"attributes": {"a": []}}, "attributes"),
        ({"name": "a@b"}, "name"),
        ({"name": ""}, "name"),
        ({"name": "x" * 171}, "name"),
    ],
)
def test_a_schedule_that_cannot_work_is_refused_when_it_is_declared(
    changes: dict[str, Any], argument: str
) -> None:
    app = detent.App("sqlite:///:memory:", include=[report])
    terms = GOOD | changes
    with pytest.raises(InvalidArgument) as caught:
        app.schedule(terms.pop("name", "s"), report, **terms)
    assert caught.value.argument == argument
    assert app.engine.declarations == {}


def test_what_a_schedule_starts_is_checked_when_it_is_declared() -> None:
    app = detent.App("sqlite:///:memory:", include=[report])

    @workflow
    def other() -> None: ...

    with pytest.raises(UnknownDefinition):
        app.schedule("s", other, every=60)
    with pytest.raises(DefinitionError):
        app.schedule("s", detent.Graph("g"), every=60)
    with pytest.raises(TypeError):
        app.schedule("s", report, every=60)
    with pytest.raises(UnknownQueue):
        app.schedule("s", report, **{**GOOD, "queue": "fast"})


def test_a_change_keeps_what_is_not_given(testing: TestingApp) -> None:
    testing.include(report)
    schedule = testing.schedules.create(
        "poll", report, args=(Region("eu"),), cron="0 3 * * *", tz="Europe/Paris", overlap="skip", priority=5
    )
    testing.advance(days=1)
    schedule.change(cron="30 4 * * *")
    assert (schedule.cron, schedule.tz, schedule.overlap) == ("30 4 * * *", "Europe/Paris", "skip")
    assert schedule.next() == [DAY + timedelta(days=1, hours=3, minutes=30)]
    schedule.change(every=timedelta(hours=2), args=(Region("us"),))
    assert (schedule.cron, schedule.every, schedule.tz) == (None, timedelta(hours=2), "UTC")
    assert schedule.fired == 1
    testing.advance(hours=2)
    assert schedule.last_run is not None
    assert (schedule.last_run.result(), schedule.last_run.row.priority) == ("us", 5)
    assert [event.event for event in schedule.history()] == ["created", "changed", "changed"]


def test_a_change_of_a_paused_schedule_does_not_start_it(testing: TestingApp) -> None:
    testing.include(report)
    schedule = testing.schedules.create("poll", report, args=(Region("eu"),), every=60)
    schedule.pause()
    schedule.change(every=10)
    testing.advance(minutes=1)
    assert (schedule.refresh().state, ids(testing)) == ("paused", [])
    schedule.resume()
    testing.advance(seconds=10)
    assert len(ids(testing)) == 1


def test_only_what_was_made_at_run_time_is_changed(testing: TestingApp) -> None:
    hourly(testing)
    with pytest.raises(InvalidScheduleState, match="change it there"):
        testing.schedules["hourly"].change(every=60)
    testing.include(report)
    schedule = testing.schedules.create("poll", report, args=(Region("eu"),), every=60)
    for wrong in ({}, {"cron": "x"}, {"every": 0.5}, {"evry": 60}, {"cron": None, "every": None}):
        with pytest.raises(InvalidArgument):
            schedule.change(**wrong)
    with pytest.raises(TypeError):
        schedule.change(args=())
    schedule.change(every=60)  # the same again
    assert [event.event for event in schedule.refresh().history()] == ["created"]


def test_schedules_in_async_code(url: str) -> None:
    async def main() -> None:
        async with detent.AsyncApp(url, include=[report]) as app:
            app.schedule("quick", report, args=(Region("eu"),), every=1)
            made = await app.schedules.create("rare", report, args=(Region("us"),), cron="0 0 1 1 *")
            assert [one.name async for one in app.schedules] == ["quick", "rare"]
            assert len(await made.next(3)) == 3
            schedule = await app.schedules.get("quick")
            while not (await schedule.refresh()).fired:
                await asyncio.sleep(0.05)
            await app.schedules["quick"].pause(reason="enough")
            run = await schedule.last_run()
            assert run is not None
            assert await run.result() == "eu"
            triggered = await app.schedules["rare"].trigger()
            assert await triggered.result() == "us"
            [filled] = await made.backfill(datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 1, 2, tzinfo=UTC))
            assert filled.id == "rare@2020-01-01T00:00:00Z"
            await app.schedules["quick"].resume()
            await app.schedules["rare"].change(every=3600)
            assert (await made.refresh()).every == timedelta(hours=1)
            await app.schedules["rare"].delete()
            assert [event.event for event in await schedule.history()] == ["created", "paused", "resumed"]

    asyncio.run(main())
