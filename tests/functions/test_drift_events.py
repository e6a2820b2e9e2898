"""Drift reaches subscribers: what was not asked for, what was asked for otherwise, what was accepted."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

import detent
from detent import workflow
from detent.errors import RunPaused
from detent.events import Drifted, RunFinished, RunResumed
from detent.events import RunPaused as Paused
from tests.functions.drifting import achanging, changing, charging, no_numbers, pay, take_payment, work
from tests.functions.world import Apps, Seen, result, wait_parked

__all__ = ["no_numbers"]  # a fixture


def deployed(apps: Apps, kind: str, *, strict: bool = False) -> tuple[detent.Run[Any], Seen]:
    """A run whose step was renamed by a deploy, and who subscribes to the app of today."""
    before = charging(kind, new=False, strict=strict)
    yesterday = apps(before, pay)
    run = yesterday.start(before)
    wait_parked(run)
    yesterday.close()
    today = apps(charging(kind, new=True, strict=strict), take_payment, worker=False)
    seen = Seen()
    today.subscribe(seen)
    today.open(worker=True)
    run = today.run(run.id)
    run.send("deployed")
    return run, seen


both = pytest.mark.parametrize("kind", ["def", "async def"])


@both
def test_a_renamed_step_is_reported_with_the_keys_that_nobody_asked_for(apps: Apps, kind: str) -> None:
    run, seen = deployed(apps, kind)
    assert result(run) == "took 5"
    [drift] = seen.wait(1, Drifted)
    assert (drift.kind, drift.steps, drift.paused) == ("unasked", ("pay",), False)
    assert (drift.run_id, drift.type, drift.queue) == (run.id, "charging", "default")
    [end] = seen.wait(1, RunFinished)
    assert seen.events.index(drift) < seen.events.index(end)


@both
def test_a_strict_workflow_that_pauses_is_reported_with_the_keys(apps: Apps, kind: str) -> None:
    run, seen = deployed(apps, kind, strict=True)
    with pytest.raises(RunPaused):
        result(run)
    [drift] = seen.wait(1, Drifted)
    assert (drift.kind, drift.asked, drift.paused) == ("unasked", "take_payment", True)
    assert drift.steps == ("pay", "receive/deployed")
    [paused] = seen.wait(1, Paused)
    assert paused.error.type == "detent.errors.runs.StepsNotAsked"


def mismatched(apps: Apps, kind: str, **settings: Any) -> tuple[detent.Run[Any], Seen]:
    chosen: Any = changing if kind == "def" else achanging
    app = apps(chosen, work, **settings)
    seen = Seen()
    app.subscribe(seen)
    run = app.start(chosen)
    wait_parked(run)
    run.send("go")
    return run, seen


@both
def test_a_step_asked_for_with_other_arguments_is_reported(apps: Apps, kind: str) -> None:
    run, seen = mismatched(apps, kind)
    with pytest.raises(RunPaused):
        result(run)
    [drift] = seen.wait(1, Drifted)
    assert (drift.kind, drift.steps, drift.paused) == ("mismatch", ("work",), True)
    assert (drift.recorded, drift.asked) == ('{"args":[0]}', '{"args":[1]}')
    [paused] = seen.wait(1, Paused)
    assert paused.error.type == "detent.errors.runs.StepMismatch"
    assert paused.run_id == drift.run_id == run.id


@both
def test_accepted_drift_is_reported_and_so_is_what_follows_from_it(apps: Apps, kind: str) -> None:
    run, seen = mismatched(apps, kind)
    with pytest.raises(RunPaused):
        result(run)
    run.resume(accept_drift=True)
    assert result(run) == 0
    seen.wait(1, RunFinished)
    drifts = seen.wait(3, Drifted)
    assert sorted((drift.kind, drift.paused) for drift in drifts) == [
        ("accepted", False),
        ("mismatch", False),
        ("mismatch", True),
    ]
    assert {(drift.run_id, drift.type) for drift in drifts} == {(run.id, "changing")}
    assert len(seen.of(RunResumed)) == 1


@both
def test_a_resume_that_accepts_nothing_reports_no_accepted_drift(apps: Apps, kind: str) -> None:
    run, seen = mismatched(apps, kind)
    with pytest.raises(RunPaused):
        result(run)
    run.resume()
    seen.wait(2, Paused)
    assert {drift.kind for drift in seen.wait(2, Drifted)} == {"mismatch"}


@both
def test_a_lenient_app_reports_each_difference_once_in_events_and_in_the_log(
    apps: Apps, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="detent.worker"):
        run, seen = mismatched(apps, kind, on_drift="warn")
        assert result(run) == 0
    seen.wait(1, RunFinished)
    [drift] = seen.of(Drifted)
    assert (drift.kind, drift.paused) == ("mismatch", False)
    assert len([record for record in caplog.records if "differs from its record" in record.message]) == 1


def test_a_run_that_asks_for_what_it_recorded_is_not_reported(apps: Apps) -> None:
    @workflow
    def steady() -> int:
        value = work(7)
        detent.receive("go")
        return value

    app = apps(steady, work)
    seen = Seen()
    app.subscribe(seen)
    run = app.start(steady)
    wait_parked(run)
    run.send("go")
    assert result(run) == 7
    seen.wait(1, RunFinished)
    assert seen.of(Drifted) == []


def test_a_coroutine_function_of_an_async_app_receives_drift_on_its_loop(database_url: str) -> None:
    async def main() -> None:
        received: asyncio.Queue[Drifted] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        async def on_drift(event: Drifted) -> None:
            assert asyncio.get_running_loop() is loop
            await received.put(event)

        async with detent.AsyncApp(database_url, include=[achanging, work], migrate=True) as app:
            app.subscribe(on_drift, events=(Drifted,))
            run = await app.start(achanging)
            async with asyncio.timeout(30):
                while "receive/go" not in {item.node for item in await run.executions()}:
                    await asyncio.sleep(0.02)
                while (await run.refresh()).state != "ready":
                    await asyncio.sleep(0.02)
                await run.send("go")
                event = await received.get()
        assert (event.kind, event.run_id) == ("mismatch", run.id)

    asyncio.run(main())
