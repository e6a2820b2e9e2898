"""When the machinery fails: dead workers, lost leases, drains, and cancelled callers."""

import asyncio
import contextlib
import logging
import threading
from datetime import timedelta
from typing import Any

import pytest

import detent
from detent import Context, step, workflow
from detent.errors import RunPaused, TooManyRecoveries
from tests.functions.world import (
    PATIENCE,
    SOON,
    Apps,
    Gate,
    crash,
    eventually,
    failure,
    main,
    reap,
    recorded,
    result,
    state,
    wait_draining,
    wait_parked,
)


@workflow
def double(number: int) -> int:
    return number * 2


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_a_step_that_executed_when_its_worker_died_runs_again(apps: Apps, is_async: bool) -> None:
    gate, calls = Gate(), []

    @step
    def before() -> str:
        calls.append("before")
        return "before"

    @step
    def slow() -> str:
        calls.append("slow")
        number = calls.count("slow")
        if number == 1:
            gate.pass_through()
        return f"slow {number}"

    @workflow(id="flow")
    def flow() -> list[str]:
        return [before(), slow()]

    @workflow(id="flow")
    async def aflow() -> list[str]:
        return [await before.aio(), await slow.aio()]

    chosen: Any = aflow if is_async else flow
    first = apps(chosen)
    run = first.start(chosen)
    gate.wait_for_arrival()
    second = apps(chosen)
    crash(first, reaped_by=second)
    assert result(second.run(run.id)) == ["before", "slow 2"]
    gate.open()
    assert calls == ["before", "slow", "slow"]
    mains = [(item.state, item.outcome) for item in run.executions() if item.kind == "main"]
    assert mains == [("failed", "recovered"), ("completed", "success")]


@pytest.mark.parametrize("kind", ["def", "async def", "spawned"])
def test_a_worker_thought_dead_cannot_record_what_comes_late(apps: Apps, kind: str) -> None:
    """Its lease was given away: what it still does is discarded, and there is exactly one result."""
    gate, calls, ended = Gate(), [], []

    @step
    def slow() -> str:
        calls.append(1)
        number = len(calls)
        if number == 1:
            gate.pass_through()
        return f"delivery {number}"

    @step
    def after() -> None:
        ended.append(1)

    @workflow(id="flow")
    def flow() -> Any:
        value = slow.spawn().result() if kind == "spawned" else slow()
        after()
        return value

    @workflow(id="flow")
    async def aflow() -> str:
        value = await slow.aio()
        await after.aio()
        return value

    chosen: Any = aflow if kind == "async def" else flow
    first = apps(chosen)
    run = first.start(chosen)
    gate.wait_for_arrival()
    second = apps(chosen)
    reap(first, reaped_by=second)
    again = second.run(run.id)
    assert result(again) == "delivery 2"
    gate.open()
    worker = first.engine.worker
    assert worker is not None
    eventually(lambda: run.id not in worker.held_runs(), "the first one has let go")
    assert result(again) == "delivery 2"
    assert ended == [1]
    results = [item.result for item in again.executions() if item.node == "slow"]
    assert [value for value in results if value is not None] == ["delivery 2"]


def test_a_worker_that_was_reaped_begins_anew(apps: Apps) -> None:
    first = apps(double)
    second = apps(double, worker=False)
    before = first.engine.worker.id  # type: ignore[union-attr]
    reap(first, reaped_by=second)
    run = second.start(double, 4)
    assert result(run) == 8
    assert first.engine.worker.id != before  # type: ignore[union-attr]


def test_what_kills_its_worker_again_and_again_pauses_its_run(apps: Apps) -> None:
    gate = Gate()
    deaths: list[int] = []

    @step
    def poison() -> str:
        if len(deaths) < 3:
            gate.pass_through()
        return "survived"

    @workflow
    def flow() -> str:
        return poison()

    keeper = apps(flow, worker=False)
    run = keeper.start(flow)
    for _ in range(3):
        app = apps(flow, max_recoveries=2)
        gate.wait_for_arrival()
        crash(app, reaped_by=keeper, max_recoveries=2)
        deaths.append(1)
    error = failure(run)
    assert isinstance(error, RunPaused)
    assert isinstance(error.__cause__, TooManyRecoveries)
    assert error.__cause__.recoveries == 2
    gate.open()
    apps(flow)
    run.resume()
    assert result(run) == "survived"


def test_a_run_that_gets_on_between_crashes_is_not_stopped(apps: Apps) -> None:
    gates = [Gate() for _ in range(4)]

    seen: list[int] = []

    @step
    def stumble(number: int) -> int:
        seen.append(number)
        if seen.count(number) == 1:
            gates[number].pass_through()
        return number

    @workflow
    def flow() -> list[int]:
        return [stumble(number) for number in range(4)]

    keeper = apps(flow, worker=False)
    run = keeper.start(flow)
    for gate in gates:
        app = apps(flow, max_recoveries=1)
        gate.wait_for_arrival()
        crash(app, reaped_by=keeper, max_recoveries=1)
    apps(flow)
    assert result(run) == [0, 1, 2, 3]
    for gate in gates:
        gate.open()


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_closing_lets_the_executing_step_end_and_hands_the_rest_back_uncounted(
    apps: Apps, is_async: bool
) -> None:
    gate, calls = Gate(), []

    @step
    def first() -> str:
        calls.append("first")
        gate.pass_through()
        return "first"

    @step
    def second() -> str:
        calls.append("second")
        return "second"

    @workflow(id="flow")
    def flow() -> list[str]:
        return [first(), second()]

    @workflow(id="flow")
    async def aflow() -> list[str]:
        return [await first.aio(), await second.aio()]

    chosen: Any = aflow if is_async else flow
    app = apps(chosen, grace=timedelta(seconds=PATIENCE))
    run = app.start(chosen)
    gate.wait_for_arrival()
    closing = threading.Thread(target=app.close)
    closing.start()
    wait_draining(app)
    gate.open()
    closing.join(PATIENCE)
    assert calls == ["first"]
    run = apps(chosen).run(run.id)
    assert result(run) == ["first", "second"]
    assert calls == ["first", "second"]
    assert [item.outcome for item in run.executions() if item.kind == "main"] == ["success"]


def test_a_step_that_does_not_end_in_time_is_handed_back_uncounted(apps: Apps) -> None:
    gate, calls = Gate(), []

    @step
    def slow() -> int:
        calls.append(1)
        number = len(calls)
        if number == 1:
            gate.pass_through()
        return number

    @workflow
    def flow() -> int:
        return slow()

    app = apps(flow, grace=timedelta(0))
    run = app.start(flow)
    gate.wait_for_arrival()
    app.close()
    second = apps(flow, max_recoveries=0)
    run = second.run(run.id)
    assert result(run) == 2
    gate.open()
    rows = second.engine.store.executions(run.id)
    assert [row.recoveries for row in rows if row.kind == "main"] == [0, 0]


def test_runs_that_wait_for_a_slot_are_left_to_others_when_a_worker_closes(apps: Apps) -> None:
    app = apps(double, concurrency=1)
    runs = app.start_many(double, [(number,) for number in range(50)])
    app.close()
    other = apps(double)
    assert [result(other.run(run.id)) for run in runs] == [number * 2 for number in range(50)]


def test_a_start_that_is_cancelled_while_it_commits_leaves_no_run_hanging(url: str) -> None:
    async def program() -> list[Any]:
        async with detent.AsyncApp(url, include=[double]) as app:
            for number in range(20):
                starting = asyncio.create_task(app.start(double, number))
                await asyncio.sleep(0)
                starting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await starting
                    await asyncio.sleep(0)
            return [await run.result(timeout=PATIENCE) for run in await app.runs()]

    assert set(asyncio.run(program())) <= {number * 2 for number in range(20)}


def test_a_child_whose_call_is_cancelled_does_not_hang(apps: Apps) -> None:
    @workflow
    async def flow() -> str:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(double.aio(1), timeout=0.0001)
        return "on"

    app = apps(flow)
    assert result(app.start(flow)) == "on"
    for child in app.runs(type="double"):
        assert result(child) == 2


def test_an_error_in_user_code_never_kills_the_worker(apps: Apps, caplog: pytest.LogCaptureFixture) -> None:
    class Strange(BaseException):
        """Neither an Exception nor one of ours."""

    @workflow
    def strange() -> None:
        raise Strange("surprise")

    @step
    def leaves() -> None:
        raise Strange("surprise")

    @workflow
    def spawns() -> None:
        leaves.spawn().result()

    caplog.set_level(logging.CRITICAL, "detent")
    app = apps(strange, spawns, double, concurrency=1)
    for definition in (strange, spawns):
        run = app.start(definition)
        assert "surprise" in str(failure(run))
    assert result(app.start(double, 2)) == 4


def test_a_run_of_another_deploy_is_left_to_its_own_worker(apps: Apps) -> None:
    @workflow
    def newer() -> str:
        return "new code"

    old = apps(double)
    starter = apps(newer, worker=False)
    run = starter.start(newer)
    assert result(old.start(double, 1)) == 2
    assert state(run) == "ready"
    apps(newer)
    assert result(run) == "new code"


def test_two_workers_share_runs_and_none_is_run_twice(apps: Apps) -> None:
    calls: list[int] = []

    @step
    def work(number: int) -> int:
        calls.append(number)
        return number

    @workflow
    def flow(number: int) -> int:
        value = work(number)
        detent.sleep(SOON)
        return value + work(number + 1000)

    one, other = apps(flow, concurrency=5), apps(flow, concurrency=5)
    runs = one.start_many(flow, [(number,) for number in range(20)])
    runs += other.start_many(flow, [(number,) for number in range(20, 40)])
    assert [result(run) for run in runs] == [2 * number + 1000 for number in range(40)]
    assert sorted(calls) == sorted([*range(40), *range(1000, 1040)])


def test_a_run_that_waits_costs_no_thread(apps: Apps) -> None:
    @workflow
    def waits(number: int) -> int:
        return int(detent.receive("go")) + number

    app = apps(waits, concurrency=4)
    runs = app.start_many(waits, [(number,) for number in range(30)])
    for run in runs:
        wait_parked(run)
    worker = app.engine.worker
    assert worker is not None
    eventually(lambda: not worker.saturated(), "all slots are free")
    for run in runs:
        run.send("go", 100)
    assert [result(run) for run in runs] == [100 + number for number in range(30)]


def test_steps_that_take_long_are_shown_as_executing(apps: Apps) -> None:
    gate = Gate()

    @step
    def long(ctx: Context) -> str:
        gate.pass_through()
        return "done"

    @workflow
    def flow() -> str:
        return long()

    run = apps(flow).start(flow)
    gate.wait_for_arrival()
    assert state(run) == "performing"
    eventually(lambda: ("long", "executing") in [(s.node, s.state) for s in run.executions()])
    gate.open()
    assert result(run) == "done"
    assert recorded(run) == ["long"]
    assert main(run).state == "completed"
