"""Control from outside: pause, resume, cancel, deadlines, and waiting for results."""

import asyncio
import contextlib
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import detent
from detent import Context, Retry, step, workflow
from detent.errors import DeadlineExceeded, InvalidState, ResultTimeout, RunCanceled, RunPaused
from tests.functions.world import (
    SOON,
    Apps,
    Gate,
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


@workflow
def nothing() -> str:
    return "done"


@workflow
def waits() -> Any:
    return detent.receive("go")


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_a_pause_lets_the_executing_step_end_and_holds_the_next(apps: Apps, is_async: bool) -> None:
    gate, calls = Gate(), []

    @step
    def first() -> None:
        calls.append("first")
        gate.pass_through()

    @step
    def second() -> None:
        calls.append("second")

    @workflow(id="flow")
    def flow() -> str:
        first()
        second()
        return "done"

    @workflow(id="flow")
    async def aflow() -> str:
        await first.aio()
        await second.aio()
        return "done"

    chosen: Any = aflow if is_async else flow
    run = apps(chosen).start(chosen)
    gate.wait_for_arrival()
    run.pause(reason="a look at the books")
    assert state(run) == "paused"
    gate.open()
    eventually(lambda: main(run).state == "scheduled", "it is put down")
    assert recorded(run) == ["first"]
    assert isinstance(failure(run), RunPaused)
    run.resume()
    assert result(run) == "done"
    assert calls == ["first", "second"]
    assert events(run, "paused") == [{"by": "operator", "reason": "a look at the books"}]


def test_a_pause_holds_all_branches_and_frees_the_worker(apps: Apps) -> None:
    gates, calls = [Gate(), Gate()], []

    @step
    def work(number: int) -> int:
        gates[number].pass_through()
        return number

    @step
    def after(number: int) -> int:
        calls.append(number)
        return number

    @workflow
    async def flow() -> list[int]:
        async def branch(number: int) -> int:
            return await after.aio(await work.aio(number))

        return list(await asyncio.gather(branch(0), branch(1)))

    run = apps(flow).start(flow)
    for gate in gates:
        gate.wait_for_arrival()
    run.pause()
    gates[0].open()
    eventually(lambda: len(recorded(run, "step")) == 1, "the first has ended")
    gates[1].open()
    eventually(lambda: main(run).state == "scheduled", "it is put down")
    assert (len(recorded(run, "step")), calls) == (2, [])
    run.resume()
    assert result(run) == [0, 1]


def test_a_paused_run_that_has_not_begun_does_not_begin(apps: Apps) -> None:
    starter = apps(nothing, worker=False)
    run = starter.start(nothing)
    run.pause()
    app = apps(nothing)
    assert result(app.start(nothing)) == "done"
    assert state(run) == "paused"
    run.resume()
    assert result(run) == "done"


def test_a_message_for_a_paused_run_waits_with_it(apps: Apps) -> None:
    run = apps(waits).start(waits)
    wait_parked(run)
    run.pause()
    run.send("go", 5)
    assert state(run) == "paused"
    run.resume()
    assert result(run) == 5


def test_a_sleep_that_is_over_while_the_run_is_paused_does_not_wait_again(apps: Apps) -> None:
    @workflow
    def flow() -> str:
        detent.sleep(SOON)
        return "woke up"

    run = apps(flow).start(flow)
    wait_parked(run)
    run.pause()
    eventually(lambda: main(run).scheduled_for < datetime.now(UTC), "its time has come")
    assert state(run) == "paused"
    run.resume()
    assert result(run) == "woke up"


def test_pausing_from_another_process_reaches_the_run(apps: Apps) -> None:
    @step
    def tick() -> None: ...

    @workflow
    def flow() -> None:
        while True:
            tick()

    run = apps(flow).start(flow)
    eventually(lambda: recorded(run), "it is under way")
    apps(flow, worker=False).run(run.id).pause()
    eventually(lambda: main(run).state == "scheduled", "it is put down")
    run.cancel()
    wait_for(run, "canceled")


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_canceling_ends_a_run_at_its_next_step(apps: Apps, is_async: bool) -> None:
    gate, calls = Gate(), []

    @step
    def first(ctx: Context) -> bool:
        gate.pass_through()
        eventually(lambda: ctx.cancel_requested, "the step is told")
        calls.append("told")
        return True

    @step
    def second() -> None:
        calls.append("second")

    @workflow(id="flow")
    def flow() -> None:
        first()
        second()

    @workflow(id="flow")
    async def aflow() -> None:
        await first.aio()  # type: ignore[call-arg]
        await second.aio()

    chosen: Any = aflow if is_async else flow
    run = apps(chosen).start(chosen)
    gate.wait_for_arrival()
    run.cancel(reason="changed their mind")
    gate.open()
    assert isinstance(failure(run), RunCanceled)
    eventually(lambda: main(run).state == "canceled" and calls, "it has ended")
    assert calls == ["told"]
    assert {"reason": "changed their mind"} in events(run, "canceled")


def test_a_heartbeat_ends_a_step_of_a_canceled_run(apps: Apps) -> None:
    gate, ended = Gate(), threading.Event()

    @step
    def beats(ctx: Context) -> None:
        gate.pass_through()
        try:
            eventually(ctx.heartbeat, "it is canceled")
        finally:
            ended.set()

    @workflow
    def flow() -> None:
        beats()

    run = apps(flow).start(flow)
    gate.wait_for_arrival()
    run.cancel()
    gate.open()
    assert ended.wait(5)
    eventually(lambda: main(run).state == "canceled", "it has ended")


def test_an_async_step_is_cancelled_with_its_run(apps: Apps) -> None:
    begun, cancelled = threading.Event(), []

    @step
    async def hangs(name: str) -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.append(name)
            raise

    @workflow(id="inline")
    async def inline() -> None:
        await asyncio.gather(hangs("inline"))

    @workflow(id="spawned")
    async def spawned() -> None:
        await hangs.spawn("spawned")

    app = apps(inline, spawned)
    for definition in (inline, spawned):
        begun.clear()
        run = app.start(definition)
        assert begun.wait(20)
        run.cancel()
        wait_for(run, "canceled")
    eventually(lambda: cancelled == ["inline", "spawned"], "both are cancelled")


def test_canceling_a_run_that_waits_ends_it_at_once(apps: Apps) -> None:
    run = apps(waits).start(waits)
    wait_parked(run)
    run.cancel()
    assert isinstance(failure(run), RunCanceled)
    assert [(item.state, item.outcome) for item in run.executions() if item.kind == "main"] == [
        ("canceled", "canceled_by_operator")
    ]


def test_a_paused_run_can_be_canceled(apps: Apps) -> None:
    run = apps(waits).start(waits)
    run.pause()
    run.cancel()
    assert state(run) == "canceled"


def test_what_does_not_apply_is_refused_and_says_why(apps: Apps) -> None:
    app = apps(nothing, waits)
    finished = app.start(nothing)
    result(finished)
    for verb in ("pause", "resume", "cancel"):
        with pytest.raises(InvalidState, match=rf"cannot {verb} run {finished.id}: it is finished") as caught:
            getattr(finished, verb)()
        assert (caught.value.verb, caught.value.state) == (verb, "finished")
    waiting = app.start(waits)
    with pytest.raises(InvalidState, match="it goes on by itself"):
        waiting.resume()
    waiting.pause()
    with pytest.raises(InvalidState, match="it is paused"):
        waiting.pause()
    waiting.cancel()
    for verb in ("pause", "resume", "cancel"):
        with pytest.raises(InvalidState, match="it is canceled"):
            getattr(waiting, verb)()


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

    @step(retry=Retry(attempts=2, first=timedelta(seconds=0.3)))
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


def test_waiting_through_a_pause(apps: Apps) -> None:
    app = apps(waits)
    run = app.start(waits)
    run.pause()
    with pytest.raises(RunPaused, match="by an operator"):
        run.result()
    got: list[Any] = []
    waiter = threading.Thread(target=lambda: got.append(run.result(timeout=20, wait_paused=True)))
    waiter.start()
    app.run(run.id).resume()
    app.run(run.id).send("go", "went on")
    waiter.join(20)
    assert got == ["went on"]


def test_a_result_that_does_not_come_in_time(apps: Apps) -> None:
    run = apps(waits).start(waits)
    with pytest.raises(ResultTimeout, match="has no result yet"):
        run.result(timeout=0.05)
    run.send("go", 1)
    assert result(run) == 1


def test_an_async_app_controls_runs_alike(url: str) -> None:
    async def program() -> list[Any]:
        seen: list[Any] = []
        async with detent.AsyncApp(url, include=[waits, nothing]) as app:
            run = await app.start(waits)
            await run.pause()
            seen.append((await run.refresh()).state)
            with pytest.raises(RunPaused):
                await run.result(timeout=20)
            await run.resume()
            with pytest.raises(ResultTimeout):
                await run.result(timeout=0.05)
            await run.send("go", 7)
            seen.append(await run.result(timeout=20))
            seen.append([item.kind for item in await run.executions()])
            seen.append([event.event for event in await run.history()][-1])
            other = await app.start(waits)
            await other.cancel()
            with pytest.raises(RunCanceled):
                await other.result(timeout=20)
            many = await app.start_many(nothing, [(), ()])
            seen.append([await one.result(timeout=20) for one in many])
            seen.append(len(await app.runs()))
        return seen

    assert asyncio.run(program()) == [
        "paused",
        7,
        ["main", "receive"],
        "run finished",
        ["done", "done"],
        4,
    ]


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
    run = first.options(deadline=timedelta(seconds=0.5)).start(flow)
    wait_parked(run)
    second = apps(flow)
    crash(first, buried_by=second)
    assert isinstance(failure(second.run(run.id)), DeadlineExceeded)
