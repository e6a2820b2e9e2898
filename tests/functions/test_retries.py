"""When steps fail: retries, policies, timeouts, and the errors that workflows see."""

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import detent
from detent import Context, Retry, step, workflow
from detent.errors import RunFailed, RunPaused, StepFailed, StepTimeout
from detent.testing import TestingApp
from tests.functions.world import (
    SOON,
    Apps,
    CardDeclined,
    Gate,
    Unrebuildable,
    crash,
    events,
    eventually,
    failure,
    main,
    recorded,
    result,
    state,
    wait_for,
    wait_parked,
)

AT_ONCE = timedelta(0)


def quickly(attempts: int, **options: Any) -> Retry:
    return Retry(attempts=attempts, first=AT_ONCE, **options)


@pytest.mark.parametrize("spawned", [False, True], ids=["called", "spawned"])
def test_a_failing_step_is_tried_again(apps: Apps, spawned: bool) -> None:
    attempts: list[tuple[int, str]] = []

    @step(retry=quickly(3))
    def flaky(ctx: Context) -> str:
        attempts.append((ctx.attempt, ctx.idempotency_key))
        if ctx.attempt < 3:
            raise ConnectionError("not yet")
        return "done"

    @workflow
    def flow() -> str:
        if spawned:
            return str(flaky.spawn().result())
        return flaky()

    run = apps(flow).start(flow)
    assert result(run) == "done"
    key = f"{run.id}:flaky"  # the same for all attempts
    assert attempts == [(1, key), (2, key), (3, key)]


class Busy(Exception):
    """A service that says when to come back."""

    retry_after = 7200


@pytest.mark.parametrize("spawned", [False, True], ids=["called", "spawned"])
def test_a_step_waits_as_long_as_its_error_says(testing: TestingApp, spawned: bool) -> None:
    attempts: list[int] = []

    @step(retry=Retry(wait_from=lambda error: getattr(error, "retry_after", None)))
    def busy() -> str:
        attempts.append(len(attempts) + 1)
        if len(attempts) == 1:
            raise Busy("429")
        return "done"

    @workflow
    def flow() -> str:
        return busy.spawn().result() if spawned else busy()

    run = testing.start(flow)
    testing.advance(hours=1, minutes=59)
    assert attempts == [1]
    testing.advance(minutes=2)
    assert attempts == [1, 2]
    assert result(run) == "done"


def test_a_function_decides_what_is_retried(apps: Apps) -> None:
    attempts: list[int] = []

    @step(retry=quickly(3, on=lambda error: "again" in str(error)))
    def flaky() -> None:
        attempts.append(1)
        raise ConnectionError("try again" if len(attempts) == 1 else "gone")

    @workflow
    def flow() -> None:
        flaky()

    assert str(failure(apps(flow).start(flow))) == "gone"
    assert len(attempts) == 2


def test_an_async_step_is_tried_again(apps: Apps) -> None:
    attempts: list[int] = []

    @step(retry=quickly(3))
    async def flaky(ctx: Context) -> str:
        attempts.append(ctx.attempt)
        if ctx.attempt < 3:
            raise ConnectionError("not yet")
        return "done"

    @workflow
    async def flow() -> str:
        return await flaky()

    assert result(apps(flow).start(flow)) == "done"
    assert attempts == [1, 2, 3]


def test_retries_go_on_after_a_crash_where_they_were(apps: Apps) -> None:
    attempts: list[int] = []
    gate = Gate()

    @step(retry=quickly(3))
    def flaky(ctx: Context) -> None:
        attempts.append(ctx.attempt)
        if ctx.attempt == 2 and len(attempts) == 2:
            gate.pass_through()
        raise ConnectionError(f"attempt {ctx.attempt}")

    @workflow
    def flow() -> None:
        flaky()

    first = apps(flow)
    run = first.start(flow)
    gate.wait_for_arrival()
    second = apps(flow)
    crash(first, reaped_by=second)
    error = failure(second.run(run.id))
    gate.open()
    assert str(error) == "attempt 4"  # three of them failed, one died with its worker
    assert attempts == [1, 2, 3, 4]


def test_an_attempt_that_people_saw_running_is_counted_but_uses_up_no_retry(apps: Apps) -> None:
    attempts: list[int] = []
    gate = Gate()

    @step(retry=quickly(2))
    def flaky(ctx: Context) -> None:
        attempts.append(ctx.attempt)
        ctx.heartbeat()  # writes it into the journal as executing
        if len(attempts) == 2:
            gate.pass_through()
        raise ConnectionError(f"attempt {ctx.attempt}")

    @workflow
    def flow() -> None:
        flaky()

    first = apps(flow)
    run = first.start(flow)
    gate.wait_for_arrival()
    eventually(
        lambda: [s for s in run.executions() if (s.node, s.state, s.attempt) == ("flaky", "executing", 2)]
    )
    second = apps(flow)
    crash(first, reaped_by=second)
    assert str(failure(second.run(run.id))) == "attempt 3"
    gate.open()
    assert attempts == [1, 2, 3]


def test_a_long_wait_before_a_retry_frees_the_worker(apps: Apps) -> None:
    @step(retry=Retry(attempts=2, first=timedelta(hours=1)))
    def flaky() -> None:
        raise ConnectionError("later")

    @workflow
    def flow() -> None:
        flaky()

    @workflow
    def other() -> str:
        return "ran meanwhile"

    app = apps(flow, other, concurrency=1)
    run = app.start(flow)
    assert result(app.start(other)) == "ran meanwhile"
    wait_parked(run)
    assert [item.state for item in run.executions() if item.node == "flaky"] == ["retrying"]


def test_retry_only_on_and_never_on(apps: Apps) -> None:
    calls: list[str] = []

    @step(retry=quickly(3, on=(OSError,), never_on=(FileNotFoundError,)))
    def fails(kind: str) -> None:
        calls.append(kind)
        raise {"file": FileNotFoundError, "os": ConnectionError, "value": ValueError}[kind](kind)

    @workflow
    def flow(kind: str) -> None:
        fails(kind)

    app = apps(flow)
    assert isinstance(failure(app.start(flow, "file")), FileNotFoundError)
    assert isinstance(failure(app.start(flow, "value")), ValueError)
    assert isinstance(failure(app.start(flow, "os")), ConnectionError)
    assert calls == ["file", "value", "os", "os", "os"]


@pytest.mark.parametrize("spawned", [False, True], ids=["called", "spawned"])
def test_a_workflow_sees_the_same_error_on_the_first_run_and_on_replay(apps: Apps, spawned: bool) -> None:
    seen: list[tuple[str, BaseException]] = []

    @step
    def declined() -> None:
        raise CardDeclined(51, card="4111")

    @step
    def odd() -> None:
        raise Unrebuildable

    @step
    def local() -> None:
        class Local(Exception): ...

        raise Local("defined in a function")

    @workflow
    def flow() -> None:
        for fails in (declined, odd, local):
            try:
                fails.spawn().result() if spawned else fails()
            except Exception as error:
                seen.append((fails.name, error))
        detent.sleep(SOON)

    result(apps(flow).start(flow))
    assert len(seen) >= 6  # each was seen twice
    assert {(name, type(error)) for name, error in seen} == {
        ("declined", CardDeclined),
        ("odd", StepFailed),
        ("local", StepFailed),
    }
    assert len({(name, str(error)) for name, error in seen}) == 3
    for _, error in seen:
        if isinstance(error, CardDeclined):
            assert (error.code, error.card) == (51, "4111")


def test_a_run_whose_error_cannot_be_rebuilt_raises_run_failed(apps: Apps) -> None:
    @workflow
    def flow() -> None:
        raise Unrebuildable

    run = apps(flow).start(flow)
    error = failure(run)
    assert isinstance(error, RunFailed)
    assert error.run_id == run.id
    assert "holds a lock" in str(error)


def test_a_run_raises_its_own_error(apps: Apps) -> None:
    @workflow
    def flow() -> None:
        raise CardDeclined(5, card="x")

    error = failure(apps(flow).start(flow))
    assert isinstance(error, CardDeclined)
    assert error.code == 5


def test_an_error_whose_str_fails_is_recorded_all_the_same(apps: Apps) -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    @workflow
    def flow() -> None:
        raise Broken

    assert isinstance(failure(apps(flow).start(flow)), RunFailed)


@pytest.mark.parametrize("spawned", [False, True], ids=["called", "spawned"])
def test_on_exception_skip_goes_on_without_a_result(apps: Apps, spawned: bool) -> None:
    seen: list[Any] = []

    @step(on_exception="skip")
    def optional() -> int:
        raise ValueError("no matter")

    @workflow
    def flow() -> None:
        seen.append(optional.spawn().result() if spawned else optional())
        detent.sleep(SOON)

    run = apps(flow).start(flow)
    result(run)
    assert set(seen) == {None}
    assert "no matter" in str([item.error for item in run.executions()])


@pytest.mark.parametrize("spawned", [False, True], ids=["called", "spawned"])
def test_on_exception_pause_pauses_the_run_until_it_is_resumed(apps: Apps, spawned: bool) -> None:
    healthy = threading.Event()

    @step(on_exception="pause")
    def fragile() -> str:
        if not healthy.is_set():
            raise ConnectionError("the service is down")
        return "done"

    @workflow
    def flow() -> str:
        try:
            return str(fragile.spawn().result()) if spawned else fragile()
        except Exception:
            return "the workflow's except must not see it"

    run = apps(flow).start(flow)
    error = failure(run)
    assert isinstance(error, RunPaused)
    assert isinstance(error.__cause__, ConnectionError)
    assert "the service is down" in str(error)
    healthy.set()
    run.resume()
    assert result(run) == "done"


def _pauses_meanwhile(healthy: threading.Event, gate: Gate, go_on: Callable[[Any], str]) -> Any:
    """A workflow that is executing still, at the gate, when the step that it spawned pauses the run."""

    @step(on_exception="pause")
    def fragile() -> str:
        if not healthy.is_set():
            raise ConnectionError("the service is down")
        return "done"

    @step
    def other() -> None:
        """Makes durable what was spawned before it."""

    @workflow
    def flow() -> str:
        handle = fragile.spawn()
        other()
        gate.pass_through()
        return go_on(handle)

    return flow


def test_a_workflow_that_executes_meanwhile_does_not_see_the_failure_that_paused_its_run(apps: Apps) -> None:
    healthy, gate = threading.Event(), Gate()

    def go_on(handle: Any) -> str:
        try:
            return str(handle.result())
        except Exception:
            return "the workflow's except must not see it"

    flow = _pauses_meanwhile(healthy, gate, go_on)
    app = apps(flow)
    run = app.start(flow)
    gate.wait_for_arrival()
    wait_for(run, "paused")
    # What a replay would be told, also one that has not heard of the pause yet.
    journal = app.engine.store.journal([run.id])[run.id]
    assert [step.state for step in journal if step.kind == "spawn"] == ["waiting"]
    gate.open()
    eventually(lambda: main(run).state == "scheduled", "the workflow was put down")
    healthy.set()
    run.resume()
    assert result(run) == "done"


def test_a_run_that_failed_while_it_was_paused_takes_up_both_again(apps: Apps) -> None:
    healthy, gate = threading.Event(), Gate()

    def go_on(handle: Any) -> str:
        if not healthy.is_set():
            raise ValueError("and now this")
        return str(handle.result())

    flow = _pauses_meanwhile(healthy, gate, go_on)
    run = apps(flow).start(flow)
    gate.wait_for_arrival()
    wait_for(run, "paused")
    gate.open()
    wait_for(run, "failed")
    healthy.set()
    run.resume()
    assert result(run) == "done"


@pytest.mark.parametrize("action", ["pause", "cancel"])
def test_a_crash_between_a_failure_and_its_policy_does_not_change_the_policy(apps: Apps, action: Any) -> None:
    gate = Gate()

    @step(on_exception=action)
    def fragile() -> None:
        raise ConnectionError("down")

    @workflow
    def flow() -> None:
        try:
            fragile()
        finally:
            gate.pass_through()

    first = apps(flow)
    run = first.start(flow)
    gate.wait_for_arrival()
    second = apps(flow)
    crash(first, reaped_by=second)
    gate.open()
    wait_for(second.run(run.id), {"pause": "paused", "cancel": "canceled"}[action])


@pytest.mark.parametrize("spawned", [False, True], ids=["called", "spawned"])
def test_on_exception_cancel_cancels_the_run(apps: Apps, spawned: bool) -> None:
    @step(on_exception="cancel")
    def fatal() -> None:
        raise ValueError("no use")

    @workflow
    def flow() -> None:
        fatal.spawn().result() if spawned else fatal()

    run = apps(flow).start(flow)
    assert isinstance(failure(run), detent.RunCanceled)
    assert "no use" in str([item.error for item in run.executions()])


def test_on_exception_reattempt_tries_again(apps: Apps) -> None:
    calls: list[int] = []

    @step(on_exception="reattempt", retry=quickly(5))
    def flaky() -> int:
        calls.append(1)
        if len(calls) < 4:
            raise ValueError
        return len(calls)

    @workflow
    def flow() -> int:
        return flaky()

    assert result(apps(flow).start(flow)) == 4


@pytest.mark.parametrize("kind", ["def", "async def", "spawned def", "spawned async def"])
def test_a_step_that_takes_too_long_is_a_step_timeout(apps: Apps, kind: str) -> None:
    release = threading.Event()

    @step(timeout=0.05, id="slow")
    def slow() -> None:
        release.wait(20)

    @step(timeout=0.05, id="slow")
    async def aslow() -> None:
        await asyncio.sleep(20)

    chosen: Any = aslow if "async" in kind else slow

    @workflow
    def flow() -> None:
        chosen.spawn().result() if "spawned" in kind else chosen.sync()

    error = failure(apps(flow).start(flow))
    release.set()
    assert isinstance(error, StepTimeout)
    assert "'slow' took longer than its timeout of 0.05 s" in str(error)


def test_a_timeout_is_retried_by_the_steps_policy(apps: Apps) -> None:
    @step(timeout=0.05, retry=quickly(2, on=(StepTimeout,)))
    async def slow(ctx: Context) -> int:
        if ctx.attempt == 1:
            await asyncio.sleep(20)
        return ctx.attempt

    @workflow
    async def flow() -> int:
        return await slow()

    assert result(apps(flow).start(flow)) == 2


def test_a_steps_own_timeout_error_is_its_own(apps: Apps) -> None:
    @step(timeout=20)
    def fails() -> None:
        raise TimeoutError("of a socket")

    @workflow
    def flow() -> None:
        fails()

    error = failure(apps(flow).start(flow))
    assert type(error) is TimeoutError
    assert str(error) == "of a socket"


def test_awaiting_something_that_was_cancelled_is_an_error_of_the_workflow(apps: Apps) -> None:
    @step
    async def own() -> None:
        raise asyncio.CancelledError

    @workflow
    async def in_step() -> None:
        await own()

    @workflow
    async def in_flow() -> None:
        task = asyncio.create_task(asyncio.sleep(20))
        task.cancel()
        await task

    app = apps(in_step, in_flow)
    for definition in (in_step, in_flow):
        error = failure(app.start(definition))
        assert isinstance(error, RuntimeError)
        assert "cancelled" in str(error)


def test_retries_are_told_in_the_history(apps: Apps) -> None:
    @step(retry=quickly(3))
    def flaky(ctx: Context) -> None:
        if ctx.attempt < 3:
            raise ValueError("not yet")

    @workflow
    def flow() -> None:
        flaky()
        detent.sleep(SOON)

    run = apps(flow).start(flow)
    result(run)
    assert [event["attempt"] for event in events(run, "retrying")] == [1, 2]
    assert recorded(run, "step") == ["flaky"]
    assert state(run) == "finished"
