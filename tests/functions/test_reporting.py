"""What people learn of a failure: the log, the error hook, and the traceback of the worker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import traceback
from datetime import timedelta
from typing import Any

import pytest

import detent
from detent import Context, Retry, step, workflow
from detent.errors import RunFailed, RunPaused, StepFailed, StepTimeout
from tests.functions.world import Apps, eventually, failure, result, state, wait_for

SHORTLY = timedelta(milliseconds=1)


class Hook:
    """Remembers what `on_error` is called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, int]] = []

    def __call__(self, error: BaseException, context: Context) -> None:
        self.calls.append((type(error).__name__, context.key, context.attempt))


def lines(caplog: pytest.LogCaptureFixture, run: detent.Run[Any]) -> list[tuple[str, str, int]]:
    """Level, step and attempt of what the log says about a run."""
    return [
        (record.levelname, vars(record)["step"], vars(record)["attempt"])
        for record in caplog.records
        if vars(record).get("run") == run.id
    ]


def test_every_failed_attempt_and_the_failed_run_reach_log_and_hook(
    apps: Apps, caplog: pytest.LogCaptureFixture
) -> None:
    hook = Hook()

    @step(retry=Retry(attempts=2, first=SHORTLY))
    def charge() -> None:
        raise ConnectionError("no route")

    @workflow
    def flow() -> None:
        charge()

    with caplog.at_level(logging.DEBUG, logger="detent.worker"):
        run = apps(flow, on_error=hook).start(flow)
        assert isinstance(failure(run), ConnectionError)
        eventually(lambda: len(hook.calls) == 3, "the hook has heard of all")
    assert hook.calls == [
        ("ConnectionError", "charge", 1),
        ("ConnectionError", "charge", 2),
        ("ConnectionError", "main", 1),
    ]
    assert lines(caplog, run) == [("WARNING", "charge", 1), ("WARNING", "charge", 2), ("ERROR", "main", 1)]
    [failed] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert (vars(failed)["type"], failed.exc_info is not None) == ("flow", True)


@pytest.mark.parametrize("on_exception", ["pause", "cancel"])
def test_a_run_that_a_policy_stops_is_reported(apps: Apps, on_exception: Any) -> None:
    hook = Hook()

    @step(on_exception=on_exception)
    def charge() -> None:
        raise ConnectionError("no route")

    @workflow
    def flow() -> None:
        charge()

    run = apps(flow, on_error=hook).start(flow)
    wait_for(run, "paused", "canceled")
    eventually(lambda: len(hook.calls) == 2, "the hook has heard of both")
    assert hook.calls == [("ConnectionError", "charge", 1), ("ConnectionError", "main", 1)]


def test_a_spawned_step_that_fails_is_reported(apps: Apps) -> None:
    hook = Hook()

    @step(retry=Retry(attempts=2, first=SHORTLY))
    def charge() -> None:
        raise ConnectionError("no route")

    @workflow
    def flow() -> None:
        charge.spawn().result()

    run = apps(flow, on_error=hook).start(flow)
    assert isinstance(failure(run), ConnectionError)
    eventually(lambda: len(hook.calls) == 3, "the hook has heard of all")
    assert [key for _, key, _ in hook.calls] == ["charge", "charge", "main"]


@pytest.mark.parametrize("raised", [ValueError, SystemExit])
def test_an_error_in_the_hook_breaks_nothing(
    apps: Apps, caplog: pytest.LogCaptureFixture, raised: type[BaseException]
) -> None:
    def hook(error: BaseException, context: Context) -> None:
        raise raised("in the hook")

    @step(retry=Retry(attempts=2, first=SHORTLY))
    def flaky(ctx: Context) -> int:
        if ctx.attempt == 1:
            raise ConnectionError
        return ctx.attempt

    @workflow
    def flow() -> int:
        return flaky()

    assert result(apps(flow, on_error=hook).start(flow)) == 2
    assert any("the on_error hook failed" in record.message for record in caplog.records)


def text_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def test_a_result_that_raises_shows_the_line_of_user_code(apps: Apps) -> None:
    @step
    def charge() -> None:
        raise ConnectionError("no route")  # the line in question

    @workflow
    def flow() -> None:
        charge()

    app = apps(flow)
    run = app.start(flow)
    assert "# the line in question" in text_of(failure(run))
    assert "# the line in question" in text_of(failure(app.run(run.id)))


def test_a_paused_run_shows_the_line_of_user_code(apps: Apps) -> None:
    @workflow(on_exception="pause")
    def flow() -> None:
        raise ConnectionError("no route")  # the line in question

    error = failure(apps(flow).start(flow))
    assert isinstance(error, RunPaused)
    assert "# the line in question" in text_of(error)


def test_an_awaited_result_shows_the_line_of_user_code(url: str) -> None:
    @step
    async def charge() -> None:
        raise KeyError(1)  # the line in question

    @workflow
    async def flow() -> None:
        await charge()

    async def main() -> BaseException:
        async with detent.AsyncApp(url, include=[flow]) as app:
            with pytest.raises(KeyError) as caught:
                await (await app.start(flow)).result(timeout=20)
            return caught.value

    assert "# the line in question" in text_of(asyncio.run(main()))


def test_a_parent_that_fails_because_of_its_child_shows_the_childs_line(apps: Apps) -> None:
    @workflow
    def child() -> None:
        raise ConnectionError("no route")  # the line in question

    @workflow
    def parent() -> None:
        child()

    assert "# the line in question" in text_of(failure(apps(parent, child).start(parent)))


# Async bodies and their timeouts


def test_a_step_that_swallows_its_cancellation_has_timed_out(apps: Apps) -> None:
    @step(timeout=0.05)
    async def stubborn() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(10)
        return "late"

    @workflow
    async def flow() -> str:
        return await stubborn()

    @workflow
    def sync_flow() -> str:
        return stubborn.sync()

    app = apps(flow, sync_flow)
    assert isinstance(failure(app.start(flow)), StepTimeout)
    assert isinstance(failure(app.start(sync_flow)), StepTimeout)


def test_a_step_that_goes_on_after_its_timeout_is_left_behind(
    apps: Apps, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("detent.execution.bodies.CLEANUP", 0.05)
    release = asyncio.Event()

    @step(timeout=0.05)
    async def endless() -> str:
        while not release.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue
        return "late"

    @workflow
    async def flow() -> str:
        return await endless()

    run = apps(flow).start(flow)
    assert isinstance(failure(run), StepTimeout)
    assert any("ignores the cancellation" in record.message for record in caplog.records)
    release.set()


def test_a_node_that_swallows_its_cancellation_has_timed_out(apps: Apps) -> None:
    class Flow(detent.Workflow):
        @step(timeout=0.05)
        async def stubborn(self) -> str:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(10)
            return "late"

    error = failure(apps(Flow).start(Flow))
    assert isinstance(error, RunPaused)
    assert isinstance(error.__cause__, StepTimeout)


def test_a_cancelled_run_still_cancels_a_step_with_a_timeout(apps: Apps) -> None:
    seen: list[str] = []
    begun: list[int] = []

    @step(timeout=30)
    async def work() -> None:
        begun.append(1)
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    @workflow
    async def flow() -> None:
        await work()

    run = apps(flow).start(flow)
    eventually(lambda: begun, "the step has begun")
    run.cancel()
    eventually(lambda: seen == ["cancelled"], "the step saw the cancellation")


# sys.exit()


@pytest.mark.parametrize("kind", ["sync", "async", "async in sync", "spawned"])
def test_sys_exit_in_a_step_is_a_failure_and_the_worker_goes_on(apps: Apps, kind: str) -> None:
    @step
    def leave() -> None:
        sys.exit(3)

    @step
    async def aleave() -> None:
        sys.exit(3)

    @workflow
    def flow() -> str:
        try:
            if kind == "spawned":
                leave.spawn().result()
            elif kind == "sync":
                leave()
            else:
                aleave.sync()
        except StepFailed as error:
            return error.type
        return "nothing"

    @workflow
    async def aflow() -> str:
        try:
            await aleave()
        except StepFailed as error:
            return error.type
        return "nothing"

    app = apps(flow, aflow)
    chosen: Any = aflow if kind == "async" else flow
    assert result(app.start(chosen)) == "builtins.SystemExit"
    assert result(app.start(chosen)) == "builtins.SystemExit"


@pytest.mark.parametrize("kind", ["sync", "async", "branch"])
def test_sys_exit_in_a_workflow_fails_the_run_and_the_worker_goes_on(apps: Apps, kind: str) -> None:
    @workflow
    def flow() -> None:
        sys.exit(3)

    async def branch() -> None:
        sys.exit(3)

    @workflow
    async def aflow() -> None:
        if kind == "branch":
            await asyncio.gather(branch())
        sys.exit(3)

    @workflow
    async def fine() -> int:
        return 1

    app = apps(flow, aflow, fine)
    chosen: Any = flow if kind == "sync" else aflow
    run = app.start(chosen)
    error = failure(run)
    assert isinstance(error, RunFailed)
    assert error.type == "builtins.SystemExit"
    assert state(run) == "failed"
    assert result(app.start(fine)) == 1
