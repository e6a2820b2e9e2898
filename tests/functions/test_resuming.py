"""Taking a failed or paused run up again: what is tried once more, and what stays."""

import asyncio
import contextlib
import threading
from datetime import timedelta
from typing import Any

from detent import Context, Retry, step, workflow
from detent.errors import RunPaused
from tests.functions.world import (
    Apps,
    events,
    failure,
    result,
    wait_parked,
)


def test_resuming_a_failed_run_goes_on_from_its_failure_with_a_fresh_budget(apps: Apps) -> None:
    healthy, calls = threading.Event(), []

    @step
    def before() -> str:
        calls.append("before")
        return "before"

    @step(retry=Retry(attempts=2, first=timedelta(0)))
    def fragile(ctx: Context) -> int:
        calls.append(f"fragile {ctx.attempt}")
        if not healthy.is_set() or ctx.attempt < 2:
            raise ConnectionError("down")
        return ctx.attempt

    @workflow
    def flow() -> int:
        before()
        return fragile()

    run = apps(flow).start(flow)
    assert isinstance(failure(run), ConnectionError)
    healthy.set()
    run.resume()
    assert result(run) == 2
    assert calls == ["before", "fragile 1", "fragile 2", "fragile 1", "fragile 2"]
    assert [event["step"] for event in events(run, "set_aside")] == ["fragile"]


def test_a_failure_that_the_workflow_caught_stays_when_it_is_resumed(apps: Apps) -> None:
    healthy, calls = threading.Event(), []

    @step
    def fails(name: str) -> str:
        calls.append(name)
        if not healthy.is_set():
            raise ConnectionError(name)
        return name

    @step
    def fallback() -> str:
        return "fallback"

    @workflow
    def flow() -> list[str]:
        try:
            value = fails("caught")
        except ConnectionError:
            value = fallback()
        return [value, fails("fatal")]

    run = apps(flow).start(flow)
    assert str(failure(run)) == "fatal"
    healthy.set()
    run.resume()
    assert result(run) == ["fallback", "fatal"]
    assert calls == ["caught", "fatal", "fatal"]


def test_resuming_a_failed_run_tries_its_failed_spawned_steps_and_children_again(apps: Apps) -> None:
    healthy = threading.Event()

    @step
    def fragile(number: int) -> int:
        if number == 2 and not healthy.is_set():
            raise ConnectionError("down")
        return number

    @workflow
    def child() -> list[int]:
        return list(fragile.map([1, 2, 3]))

    @workflow
    def flow() -> list[int]:
        return child()

    run = apps(flow).start(flow)
    assert isinstance(failure(run), ConnectionError)
    healthy.set()
    run.resume()
    assert result(run) == [1, 2, 3]


def test_failures_of_spawned_steps_and_children_that_were_caught_stay_when_the_run_is_resumed(
    apps: Apps,
) -> None:
    healthy, calls = threading.Event(), []

    @step
    def fails(name: str) -> str:
        calls.append(name)
        if not healthy.is_set():
            raise ConnectionError(name)
        return name

    @step
    def fallback() -> str:
        return "fallback"

    @workflow
    def child() -> str:
        return fails("child")

    @workflow
    def flow() -> list[str]:
        values: list[str] = []
        for kind in ("spawned", "child"):
            try:
                values.append(fails.spawn("spawned").result() if kind == "spawned" else child())
            except ConnectionError:
                values.append(fallback())
        return [*values, fails("fatal")]

    run = apps(flow).start(flow)
    assert str(failure(run)) == "fatal"
    healthy.set()
    run.resume()
    assert result(run) == ["fallback", "fallback", "fatal"]
    assert calls == ["spawned", "child", "fatal", "fatal"]


def test_pausing_and_resuming_forgets_neither_failures_nor_attempts(apps: Apps) -> None:
    calls: list[str] = []

    @step
    def fails() -> None:
        calls.append("fails")
        raise ConnectionError("caught")

    @step(retry=Retry(attempts=2, first=timedelta(seconds=3)))
    def flaky(ctx: Context) -> int:
        calls.append(f"flaky {ctx.attempt}")
        if ctx.attempt == 1:
            raise ConnectionError("once more")
        return ctx.attempt

    @workflow
    def flow() -> int:
        with contextlib.suppress(ConnectionError):
            fails()
        return flaky()

    run = apps(flow).start(flow)
    wait_parked(run)
    run.pause()
    run.resume()
    assert result(run) == 2
    assert calls == ["fails", "flaky 1", "flaky 2"]


def test_a_failed_branch_is_tried_again_though_another_succeeded_later(apps: Apps) -> None:
    healthy, failed = threading.Event(), threading.Event()

    @step
    async def fragile() -> str:
        if not healthy.is_set():
            failed.set()
            raise ConnectionError("down")
        return "fragile"

    @step
    def steady() -> str:
        assert failed.wait(20)
        return "steady"

    @workflow
    async def flow() -> list[Any]:
        both = await asyncio.gather(fragile(), steady.aio(), return_exceptions=True)
        for value in both:
            if isinstance(value, BaseException):
                raise value
        return list(both)

    run = apps(flow).start(flow)
    assert isinstance(failure(run), ConnectionError)
    healthy.set()
    run.resume()
    assert result(run) == ["fragile", "steady"]


def test_a_workflow_that_pauses_on_exception_can_be_fixed_and_resumed(apps: Apps) -> None:
    healthy = threading.Event()

    @step
    def fragile() -> str:
        if not healthy.is_set():
            raise ConnectionError("down")
        return "done"

    @workflow(on_exception="pause")
    def flow() -> str:
        return fragile()

    run = apps(flow).start(flow)
    error = failure(run)
    assert isinstance(error, RunPaused)
    assert isinstance(error.__cause__, ConnectionError)
    healthy.set()
    run.resume()
    assert result(run) == "done"
