"""Schedules on each database: every firing is one run, whatever happens."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import detent
from detent import Context, step, workflow
from detent.stores.open import open_store
from detent.stores.verbs import schedules as stored
from detent.testing import ManualClock, TestingApp
from detent.worker.scheduler import Scheduler
from tests.functions.world import Apps, eventually, result

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
Opened = Callable[..., TestingApp]


@workflow
def report(region: str) -> str:
    return region


@workflow
def wait() -> None:
    detent.receive("go")


@pytest.fixture
def opened(url: str) -> Iterator[Opened]:
    """Opens apps on one database, each with a worker and a clock of its own."""
    with ExitStack() as stack:

        def make(*declared: Callable[[TestingApp], None], at: datetime = NOON) -> TestingApp:
            app = TestingApp(url, include=[report, wait], clock=ManualClock(at))
            for declare in declared:
                declare(app)
            return stack.enter_context(app)

        yield make


def ids(app: detent.App, type: Any = None) -> list[str]:
    return sorted(run.id for run in app.runs(type=type))


def hourly(app: TestingApp, **terms: Any) -> None:
    app.schedule("hourly", report, **{"args": ("eu",), "every": timedelta(hours=1), **terms})


# -- A firing is a run -----------------------------------------------------------------------------


def test_a_schedule_starts_a_run_at_each_of_its_times(opened: Opened) -> None:
    app = opened(hourly)
    app.advance(hours=2, minutes=30)
    assert ids(app) == ["hourly@2030-01-01T13:00:00Z", "hourly@2030-01-01T14:00:00Z"]
    assert [run.result() for run in app.runs()] == ["eu", "eu"]
    schedule = app.schedules["hourly"]
    assert (schedule.fired, schedule.last_run_id) == (2, "hourly@2030-01-01T14:00:00Z")
    assert schedule.next(2) == [NOON + timedelta(hours=3), NOON + timedelta(hours=4)]


def test_a_run_knows_for_when_it_was_scheduled(testing: TestingApp) -> None:
    seen: list[datetime | None] = []

    @step
    def note(ctx: Context) -> None:
        seen.append(ctx.scheduled_for)

    @workflow
    def flow(ctx: Context) -> None:
        seen.append(ctx.scheduled_for)
        note()

    testing.include(flow, note)
    testing.schedule("daily", flow, cron="30 2 * * *")
    testing.advance(days=1)
    run = testing.run("daily@2030-01-01T02:30:00Z")
    run.result()
    assert seen == [datetime(2030, 1, 1, 2, 30, tzinfo=UTC)] * 2
    fork = testing.fork(run)
    testing.settle_down()
    fork.result()
    testing.start(flow).result()
    assert seen[2:] == [datetime(2030, 1, 1, 2, 30, tzinfo=UTC), None, None]


def test_a_schedule_works_by_the_clock_of_the_machine(apps: Apps) -> None:
    app = apps(report)
    app.schedule("quick", report, args=("eu",), every=1)
    eventually(lambda: app.schedules["quick"].fired >= 2, "it fires")
    first, second = ids(app)[:2]
    assert datetime.fromisoformat(second[6:]) - datetime.fromisoformat(first[6:]) == timedelta(seconds=1)
    run = app.schedules["quick"].last_run
    assert run is not None
    assert result(run) == "eu"


def test_a_worker_learns_of_a_schedule_that_another_process_has_made(apps: Apps) -> None:
    apps(report)
    client = apps(report, worker=False)
    client.schedules.create("quick", report, args=("eu",), every=1)
    eventually(lambda: client.schedules["quick"].fired, "it fires")


def test_classes_and_templates_can_be_scheduled(testing: TestingApp) -> None:
    seen: list[str] = []

    class Shipping(detent.Workflow):
        order: str

        @step
        def ship(self) -> None:
            seen.append(self.order)

    @step
    def pack(order: str) -> None:
        seen.append(order)

    @detent.template
    def packing(g: detent.Graph, order: str) -> None:
        g.node("pack", job=pack, args={"order": order})

    testing.include(Shipping, packing)
    testing.schedule("ship", Shipping, kwargs={"order": "o-1"}, every=60)
    testing.schedule("pack", packing, args=("o-2",), every=60)
    testing.advance(minutes=1)
    assert sorted(seen) == ["o-1", "o-2"]


def test_queue_priority_deadline_and_attributes_go_to_the_run(url: str) -> None:
    with TestingApp(url, include=[wait], queues=["default", "slow"]) as app:
        app.schedule(
            "s", wait, every=60, queue="slow", priority=3, deadline=timedelta(hours=1), attributes={"a": 1}
        )
        app.advance(minutes=1)
        [run] = app.runs()
        assert (run.queue, run.priority, run.attributes) == ("slow", 3, {"a": 1})
        assert run.row.deadline == run.row.created_at + 3600 * 1_000_000


# -- Exactly once ----------------------------------------------------------------------------------


def test_many_workers_at_the_same_moment_fire_once(opened: Opened, url: str) -> None:
    app = opened()
    for n in range(30):
        app.schedules.create(f"s{n}", report, args=("eu",), every=60)
    app.clock.advance(minutes=1)  # our own worker looks too
    duties = app.engine.worker.scheduler._duties  # type: ignore[union-attr]
    keys = app.engine.worker.scheduler.served()  # type: ignore[union-attr]
    barrier = threading.Barrier(3)
    started: list[str] = []
    errors: list[Exception] = []

    def fire() -> None:
        store = open_store(url)
        try:
            barrier.wait()
            while (done := store.fire_schedules(keys, start=duties.start, now=app.clock.now())).looked_at:
                started.extend(done.started)
        except Exception as error:
            errors.append(error)
        finally:
            store.close()

    threads = [threading.Thread(target=fire) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    app.settle_down()
    eventually(lambda: len(ids(app)) == 30, "all have fired")
    assert len(started) == len(set(started))
    assert all(schedule.fired == 1 for schedule in app.schedules)


def test_clocks_that_differ_fire_once(opened: Opened) -> None:
    """The fast one fires early by its own clock; the slow one finds the schedule moved on."""
    fast, slow = opened(hourly, at=NOON + timedelta(seconds=2)), opened(hourly)
    for _ in range(3):
        fast.advance(minutes=20)
        slow.advance(minutes=20)
    assert ids(fast) == ["hourly@2030-01-01T13:00:00Z"]
    assert fast.schedules["hourly"].fired == 1


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("half", ["_begin", "save"])
def test_a_crash_between_start_and_advance_leaves_neither(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, half: str
) -> None:
    app = opened()
    app.schedules.create("s", report, args=("eu",), every=60)
    app.settle_down()
    scheduler = app.engine.worker.scheduler  # type: ignore[union-attr]
    later = app.clock.now() + 60_000_000

    def fire() -> stored.Fired:
        return app.engine.store.fire_schedules(scheduler.served(), start=scheduler._duties.start, now=later)

    def dies(*args: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(stored, half, dies)
        with pytest.raises(Killed):
            fire()
    assert ids(app) == []
    assert fire().started == ["s@2030-01-01T12:01:00Z"]
    assert fire().started == []


def test_a_run_that_exists_already_counts_as_the_firing(opened: Opened) -> None:
    app = opened(hourly)
    app.options(id="hourly@2030-01-01T13:00:00Z").start(report, "by hand")
    app.advance(hours=1)
    assert [run.result() for run in app.runs()] == ["by hand"]
    assert app.schedules["hourly"].next() == [NOON + timedelta(hours=2)]


def test_after_downtime_the_latest_firing_happens_once(opened: Opened, url: str) -> None:
    opened(hourly).advance(minutes=1)
    with TestingApp(url, include=[report], clock=ManualClock(NOON + timedelta(hours=5, minutes=1))) as later:
        hourly(later)
        later.advance(minutes=1)
        assert ids(later) == ["hourly@2030-01-01T17:00:00Z"]
        assert [event.event for event in later.schedules["hourly"].history()] == ["created", "missed"]


def test_a_firing_that_cannot_start_its_run_is_tried_again(
    testing: TestingApp, caplog: pytest.LogCaptureFixture
) -> None:
    ready = False

    @step
    def work() -> None: ...

    @detent.template
    def flaky(g: detent.Graph) -> None:
        if testing.clock() > NOON and not ready:
            raise ConnectionError("not yet")
        g.node("work", job=work)

    testing.include(flaky, work)
    testing.clock.move_to(NOON)
    testing.schedule("flaky", flaky, every=timedelta(minutes=10))
    testing.schedule("other", report, args=("eu",), every=timedelta(minutes=10))
    testing.advance(minutes=10)
    schedule = testing.schedules["flaky"]
    assert schedule.error == "ConnectionError: not yet"
    assert "could not start its run" in caplog.text
    assert ids(testing) == ["other@2030-01-01T12:10:00Z"]
    ready = True
    testing.advance(minutes=1)
    assert testing.schedules["flaky"].error is None
    assert ids(testing, "flaky") == ["flaky@2030-01-01T12:10:00Z"]


# -- Overlap ---------------------------------------------------------------------------------------


def test_skip_waits_for_the_next_time_while_a_run_is_active(testing: TestingApp) -> None:
    testing.schedule("s", wait, every=60, overlap="skip")
    testing.advance(minutes=3)
    [run] = testing.runs()
    assert testing.schedules["s"].skipped == 2
    run.send("go")
    testing.settle_down()
    testing.advance(minutes=1)
    assert ids(testing) == ["s@2030-01-01T00:01:00Z", "s@2030-01-01T00:04:00Z"]


def test_queue_starts_the_waiting_run_when_the_one_before_ends(testing: TestingApp) -> None:
    testing.schedule("s", wait, every=60, overlap="queue")
    testing.advance(minutes=4)
    [run] = testing.runs()
    schedule = testing.schedules["s"]
    assert schedule.waiting_for == datetime(2030, 1, 1, 0, 2, tzinfo=UTC)
    assert schedule.skipped == 2
    run.send("go")
    testing.settle_down()
    testing.advance(seconds=2)
    assert ids(testing) == ["s@2030-01-01T00:01:00Z", "s@2030-01-01T00:02:00Z"]
    assert testing.schedules["s"].waiting_for is None


def test_cancel_ends_the_run_before(testing: TestingApp) -> None:
    testing.schedule("s", wait, every=60, overlap="cancel")
    testing.advance(minutes=2)
    states = {run.id: run.state for run in testing.runs()}
    assert states == {"s@2030-01-01T00:01:00Z": "canceled", "s@2030-01-01T00:02:00Z": "ready"}


# -- Declared in the code --------------------------------------------------------------------------


def test_the_same_declaration_twice_changes_nothing(opened: Opened) -> None:
    first = opened(hourly)
    first.settle_down()
    second = opened(hourly)
    second.settle_down()
    assert [event.event for event in second.schedules["hourly"].history()] == ["created"]


def test_a_deploy_changes_a_schedule(opened: Opened) -> None:
    old = opened(hourly)
    old.settle_down()
    new = opened(lambda app: hourly(app, every=timedelta(minutes=20)))
    new.settle_down()
    assert new.schedules["hourly"].every == timedelta(minutes=20)
    assert new.schedules["hourly"].next() == [NOON + timedelta(minutes=20)]


def test_older_code_that_starts_beside_newer_does_not_take_a_schedule_back(
    opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    def newer(app: TestingApp) -> None:
        hourly(app, args=("us",))

    for declare in (hourly, newer, hourly):
        opened(declare).settle_down()
    app = opened()
    assert app.schedules["hourly"].args == {"args": ["us"]}
    assert "newer code at work declares something else" in caplog.text


def test_two_versions_side_by_side_fire_once_with_the_newer_arguments(opened: Opened) -> None:
    old = opened(hourly)
    old.settle_down()
    new = opened(lambda app: hourly(app, args=("us",)))
    new.settle_down()
    old.advance(hours=1)
    new.advance(hours=1)
    assert [(run.id, run.result()) for run in old.runs()] == [("hourly@2030-01-01T13:00:00Z", "us")]


def test_a_rollback_takes_effect_when_no_newer_worker_is_left(opened: Opened, url: str) -> None:
    opened(hourly).settle_down()
    with TestingApp(url, include=[report], clock=ManualClock(NOON)) as newer:
        hourly(newer, args=("us",))
        newer.settle_down()
    again = opened(hourly)
    again.advance(minutes=3)
    assert again.schedules["hourly"].args == {"args": ["us"]}
    for _ in range(3):
        again.advance(minutes=1)
    assert again.schedules["hourly"].args == {"args": ["eu"]}


def test_newer_code_that_is_at_work_keeps_its_schedule_whatever_clocks_do(opened: Opened) -> None:
    """Both processes were suspended for hours; the older one wakes first."""
    opened(hourly).settle_down()
    newer = opened(lambda app: hourly(app, args=("us",)))
    newer.settle_down()
    older = opened(hourly)
    for _ in range(6):
        for app in (older, newer):
            app.clock.advance(hours=3)
            app.settle_down()
    assert newer.schedules["hourly"].args == {"args": ["us"]}


def test_a_schedule_that_is_removed_from_the_code_stops_and_says_so(
    opened: Opened, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with TestingApp(url, include=[report], clock=ManualClock(NOON)) as old:
        hourly(old)
        old.advance(hours=1)
    app = opened(at=old.clock())
    app.schedules.create("other", report, args=("eu",), every=60)
    for _ in range(6):
        app.advance(minutes=1)
    schedule = app.schedules["hourly"]
    assert (schedule.state, schedule.reason) == ("removed", "it is no longer declared in the code")
    assert schedule.next() == []
    assert "hourly has stopped" in caplog.text
    app.advance(hours=2)
    assert [run.id for run in app.runs.each() if run.id.startswith("hourly")] == [
        "hourly@2030-01-01T13:00:00Z"
    ]
    schedule.delete()
    assert [schedule.name for schedule in app.schedules] == ["other"]


def test_a_schedule_that_is_declared_again_fires_again(opened: Opened) -> None:
    app = opened(hourly)
    app.settle_down()
    app.engine.store.remove_schedules(["hourly"], now=app.clock.now())
    assert app.schedules["hourly"].state == "removed"
    again = opened(hourly)
    again.advance(hours=1)
    assert ids(again) == ["hourly@2030-01-01T13:00:00Z"]


def test_only_workers_that_declare_a_schedule_fire_it(opened: Opened, url: str) -> None:
    with TestingApp(url, include=[report], clock=ManualClock(NOON)) as old:
        hourly(old)
        old.settle_down()
    other = opened()  # knows the job, and does not declare the schedule
    other.advance(hours=3)
    assert ids(other) == []


def test_a_heartbeat_that_comes_before_the_scheduler_starts_is_not_lost(testing: TestingApp) -> None:
    """The worker's heartbeat begins first: what it has seen then has to be said again."""
    worker = testing.engine.worker
    assert worker is not None
    scheduler = Scheduler(testing.engine.services, worker.scheduler._duties, worker.poke)
    due = testing.clock.now() + 60_000_000
    scheduler.note_due(due)
    scheduler.start()
    assert scheduler._thread is None
    scheduler.note_due(due)
    assert scheduler._thread is not None
    scheduler.stop()


# -- Costs nothing ---------------------------------------------------------------------------------


def test_without_a_schedule_there_is_no_thread_and_no_query(
    testing: TestingApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(stored, "next_due", lambda *args: asked.append("next_due"))
    monkeypatch.setattr(stored, "fire", lambda *args, **kwargs: asked.append("fire"))
    worker = testing.engine.worker
    assert worker is not None
    worker._on_heartbeat(worker._look())
    assert asked == []
    assert worker.scheduler._thread is None
