"""Deadlines: a run that is not done by then fails, wherever it is."""

import threading
from datetime import UTC, datetime, timedelta

import pytest

import detent
from detent import Retry, step, workflow
from detent.errors import DeadlineExceeded
from tests.functions.world import (
    Apps,
    crash,
    failure,
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
    run = first.options(deadline=timedelta(seconds=3)).start(flow)
    wait_parked(run)
    second = apps(flow)
    crash(first, buried_by=second)
    assert isinstance(failure(second.run(run.id)), DeadlineExceeded)
