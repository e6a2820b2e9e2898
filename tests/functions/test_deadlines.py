"""Deadlines: a run that is not done by then fails, wherever it is."""

import asyncio
import contextlib
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import detent
from detent import Retry, step, workflow
from detent.errors import DeadlineExceeded, RunCanceled
from detent.testing import TestingApp
from tests.functions.world import (
    AMPLE,
    Apps,
    Gate,
    crash,
    eventually,
    failure,
    result,
    state,
    wait_parked,
)


def test_a_deadline_fails_a_run_that_sleeps(apps: Apps) -> None:
    @workflow
    def flow() -> None:
        detent.sleep(hours=1)

    run = apps(flow).options(deadline=timedelta(seconds=0.3)).start(flow)
    error = failure(run)
    assert isinstance(error, DeadlineExceeded)
    assert error.run_id == run.id


def test_a_deadline_that_has_passed_lets_no_step_begin(apps: Apps) -> None:
    calls: list[int] = []

    @step
    def work() -> None:
        calls.append(1)

    @workflow
    def flow() -> None:
        work()

    past = datetime(2001, 1, 1, tzinfo=UTC)
    assert isinstance(failure(apps(flow).options(deadline=past).start(flow)), DeadlineExceeded)
    assert calls == []


@pytest.mark.parametrize("what", ["receive", "spawned", "retry"])
def test_a_deadline_holds_for_everything_that_waits(apps: Apps, what: str) -> None:
    release = threading.Event()

    @step(retry=Retry(attempts=2, first=timedelta(hours=1)))
    def flaky() -> None:
        raise ConnectionError

    @step
    def slow() -> None:
        release.wait(20)

    @workflow
    def flow() -> None:
        if what == "receive":
            detent.receive("never")
        elif what == "spawned":
            slow.spawn().result()
        else:
            flaky()

    run = apps(flow).options(deadline=timedelta(seconds=0.3)).start(flow)
    assert isinstance(failure(run), DeadlineExceeded)
    release.set()


def test_a_deadline_survives_a_restart(apps: Apps) -> None:
    @workflow
    def flow() -> None:
        detent.receive("never")

    first = apps(flow)
    run = first.options(deadline=AMPLE).start(flow)
    wait_parked(run)
    second = apps(flow)
    crash(first, reaped_by=second)
    assert isinstance(failure(second.run(run.id)), DeadlineExceeded)


# Before the run begins


def test_a_run_whose_deadline_passes_in_the_queue_fails_without_a_free_slot(apps: Apps) -> None:
    gate, calls = Gate(), []

    @workflow
    def blocking() -> None:
        gate.pass_through()

    @workflow
    def flow() -> None:
        calls.append(1)

    app = apps(blocking, flow, concurrency=1)
    busy = app.start(blocking)
    gate.wait_for_arrival()
    run = app.options(deadline=timedelta(seconds=0.3)).start(flow)
    assert isinstance(failure(run), DeadlineExceeded)
    assert (state(busy), calls) == ("performing", [])
    gate.open()
    result(busy)


def test_a_run_whose_deadline_passes_before_its_delay_fails_at_its_deadline(apps: Apps) -> None:
    calls: list[int] = []

    @workflow
    def flow() -> None:
        calls.append(1)

    run = apps(flow).options(delay=timedelta(hours=1), deadline=timedelta(seconds=0.3)).start(flow)
    assert isinstance(failure(run), DeadlineExceeded)
    assert calls == []


def test_another_process_notices_a_deadline_that_passes_in_the_queue(apps: Apps) -> None:
    @workflow
    def flow() -> None: ...

    run = (
        apps(flow, worker=False)
        .options(delay=timedelta(hours=1), deadline=timedelta(seconds=0.3))
        .start(flow)
    )
    apps(flow)
    assert isinstance(failure(run), DeadlineExceeded)


def test_a_run_without_a_free_slot_undoes_at_its_deadline_what_it_did(apps: Apps) -> None:
    gate, undone = Gate(), []

    @step
    def reserve() -> int:
        return 7

    @step
    def release(*, result: int) -> None:
        undone.append(result)

    reserve.compensate_with(release)

    @workflow
    def flow() -> None:
        reserve()
        detent.receive("never")

    @workflow
    def blocking() -> None:
        gate.pass_through()

    app = apps(blocking, flow, concurrency=1)
    run = app.options(deadline=AMPLE).start(flow)
    wait_parked(run)
    busy = app.start(blocking)
    gate.wait_for_arrival()
    assert isinstance(failure(run), DeadlineExceeded)
    assert undone == [7]
    gate.open()
    result(busy)


def test_a_graph_whose_deadline_passes_in_the_queue_is_canceled_without_a_free_slot(apps: Apps) -> None:
    gate, calls = Gate(), []

    @workflow
    def blocking() -> None:
        gate.pass_through()

    class Flow(detent.Workflow):
        @step
        def node(self) -> None:
            calls.append(1)

    app = apps(blocking, Flow, concurrency=1)
    busy = app.start(blocking)
    gate.wait_for_arrival()
    run = app.options(deadline=timedelta(seconds=0.3)).start(Flow)
    error = failure(run)
    assert isinstance(error, RunCanceled)
    assert isinstance(error.__cause__, DeadlineExceeded)
    assert calls == []
    gate.open()
    result(busy)


def test_a_child_has_the_deadline_of_its_parent(apps: Apps) -> None:
    @workflow
    def child() -> None:
        detent.receive("never")

    @workflow
    def parent() -> None:
        child()

    app = apps(parent, child)
    run = app.options(deadline=AMPLE).start(parent)
    assert isinstance(failure(run), DeadlineExceeded)
    [begun] = app.runs(type=child)
    assert isinstance(failure(begun), DeadlineExceeded)


def test_a_paused_run_does_not_end_at_its_deadline_but_when_it_is_resumed(apps: Apps) -> None:
    @workflow
    def flow() -> None:
        detent.receive("never")

    app = apps(flow)
    run = app.options(deadline=AMPLE).start(flow)
    wait_parked(run)
    run.pause()
    time.sleep((AMPLE + timedelta(seconds=0.3)).total_seconds())
    assert state(run) == "paused"
    run.resume()
    assert isinstance(failure(run), DeadlineExceeded)


def test_a_run_that_is_done_in_time_leaves_nothing_behind(testing: TestingApp) -> None:
    @workflow
    def flow() -> int:
        return 1

    run = testing.options(deadline=timedelta(hours=1)).start(flow)
    assert result(testing.speedrun(run)) == 1
    testing.advance(hours=2)
    assert state(run) == "finished"
    assert testing.engine.store.next_deadline() is None
    reading = testing.engine.store.read_heartbeat(now=testing.clock.now())
    assert reading.next_deadline is None


def test_a_speedrun_stops_the_clock_at_the_deadline(testing: TestingApp) -> None:
    @workflow
    def flow() -> None: ...

    begin = testing.clock()
    run = testing.options(delay=timedelta(days=2), deadline=timedelta(hours=1)).start(flow)
    assert isinstance(failure(testing.speedrun(run)), DeadlineExceeded)
    assert testing.clock() - begin == timedelta(hours=1)


# While it executes


def test_a_function_without_steps_that_returns_too_late_has_failed(apps: Apps) -> None:
    @workflow
    def flow() -> str:
        time.sleep(0.4)
        return "late"

    run = apps(flow).options(deadline=timedelta(seconds=0.2)).start(flow)
    assert isinstance(failure(run), DeadlineExceeded)


def test_an_async_function_is_cancelled_at_its_deadline(apps: Apps) -> None:
    cleaned: list[str] = []

    @workflow
    async def flow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.append("up")

    @workflow
    async def stubborn() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        return "late"

    app = apps(flow, stubborn)
    options = app.options(deadline=AMPLE)
    assert isinstance(failure(options.start(flow)), DeadlineExceeded)
    assert cleaned == ["up"]
    assert isinstance(failure(options.start(stubborn)), DeadlineExceeded)


def test_an_async_step_is_cancelled_at_the_deadline_of_its_run(apps: Apps) -> None:
    cleaned: list[str] = []

    @step
    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.append("up")

    @workflow
    async def flow() -> None:
        await work()

    @workflow
    async def spawning() -> None:
        await work.spawn()

    app = apps(flow, spawning)
    options = app.options(deadline=AMPLE)
    assert isinstance(failure(options.start(flow)), DeadlineExceeded)
    assert isinstance(failure(options.start(spawning)), DeadlineExceeded)
    eventually(lambda: cleaned == ["up", "up"], "both were cancelled")


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_node_that_executes_at_the_deadline_of_its_run_cancels_it(apps: Apps, kind: str) -> None:
    class Flow(detent.Workflow):
        @step
        def node(self) -> str:
            time.sleep(0.5)
            return "late"

    class AsyncFlow(detent.Workflow):
        @step
        async def node(self) -> None:
            await asyncio.sleep(60)

    chosen: Any = Flow if kind == "def" else AsyncFlow
    run = apps(chosen).options(deadline=timedelta(seconds=0.2)).start(chosen)
    error = failure(run)
    assert isinstance(error, RunCanceled)
    assert isinstance(error.__cause__, DeadlineExceeded)
