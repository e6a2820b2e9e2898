"""Control from outside: pause, resume, cancel, and waiting for results."""

import asyncio
import threading
from datetime import UTC, datetime
from typing import Any

import pytest

import detent
from detent import Context, step, workflow
from detent.errors import InvalidState, ResultTimeout, RunCanceled, RunPaused
from tests.functions.world import (
    Apps,
    Gate,
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
        detent.sleep(2)  # long enough to be paused meanwhile, also on a busy machine
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
        await first.aio()
        await second.aio()

    chosen: Any = aflow if is_async else flow
    run = apps(chosen).start(chosen)
    gate.wait_for_arrival()
    run.cancel(reason="changed their bound")
    gate.open()
    assert isinstance(failure(run), RunCanceled)
    eventually(lambda: main(run).state == "canceled" and calls, "it has ended")
    assert calls == ["told"]
    assert {"reason": "changed their bound"} in events(run, "canceled")


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
    with pytest.raises(InvalidState, match="it continues by itself"):
        waiting.resume()
    waiting.pause()
    with pytest.raises(InvalidState, match="it is paused"):
        waiting.pause()
    waiting.cancel()
    for verb in ("pause", "resume", "cancel"):
        with pytest.raises(InvalidState, match="it is canceled"):
            getattr(waiting, verb)()


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
