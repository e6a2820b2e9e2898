"""Drift: a replay whose code asks for something else than what its run recorded."""

import asyncio
import logging
from typing import Any

import pytest

import detent
from detent import step, workflow
from detent.errors import ConfigurationError, RunPaused, StepMismatch, StepsNotAsked
from tests.functions.world import (
    SOON,
    Apps,
    events,
    eventually,
    recorded,
    result,
    state,
    wait_for,
    wait_parked,
)

calls: list[Any] = []


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


@step
def work(number: int) -> int:
    calls.append(number)
    return number


@step
def pay(amount: int) -> str:
    calls.append("pay")
    return f"paid {amount}"


@step
def take_payment(amount: int) -> str:
    calls.append("take_payment")
    return f"took {amount}"


@workflow
def other(number: int) -> int:
    return number


class Deliveries:
    """How often the workflow was delivered to a worker."""

    def __init__(self) -> None:
        self.count = 0

    def next(self) -> int:
        self.count += 1
        return self.count


def paused_with(run: detent.Run[Any]) -> BaseException | None:
    """The error that paused the run."""
    with pytest.raises(RunPaused) as paused:
        result(run)
    return paused.value.__cause__


@pytest.mark.parametrize("kind", ["step", "spawn", "map", "child", "child handle", "send"])
@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_a_recorded_call_answers_only_the_same_arguments(apps: Apps, kind: str, is_async: bool) -> None:
    deliveries = Deliveries()

    def sync_call(number: int) -> Any:
        match kind:
            case "step":
                return work(number)
            case "spawn":
                return work.spawn(number).result()
            case "map":
                return work.map([number])
            case "child":
                return other(number)
            case "child handle":
                return other.spawn(number).result()
            case _:
                return detent.send("somebody", "hello", number)

    async def async_call(number: int) -> Any:
        match kind:
            case "step":
                return await work.aio(number)
            case "spawn":
                return await work.spawn(number)
            case "map":
                return await work.aio.map([number])
            case "child":
                return await other.aio(number)
            case "child handle":
                return await other.spawn(number)
            case _:
                return await detent.aio.send("somebody", "hello", number)

    @workflow(id="flow")
    def flow() -> None:
        sync_call(deliveries.next() * 100)
        detent.receive("go")

    @workflow(id="flow")
    async def aflow() -> None:
        await async_call(deliveries.next() * 100)
        await detent.aio.receive("go")

    @workflow
    def somebody() -> None:
        detent.receive("never")

    chosen: Any = aflow if is_async else flow
    app = apps(chosen, work, other, somebody)
    app.options(id="somebody").start(somebody)
    run = app.start(chosen)
    # What was spawned may have ended before the workflow waits for it.
    eventually(
        lambda: state(run) == "paused" or any(item.node == "receive/go" for item in run.executions()),
        "it waits, or has met the difference",
    )
    if state(run) != "paused":
        run.send("go")
    error = paused_with(run)
    assert isinstance(error, StepMismatch)
    assert "100" in error.recorded
    assert "200" in error.asked
    assert "accept_drift" in str(error)


def test_a_task_that_meets_other_arguments_pauses_the_run_though_nobody_awaits_it(apps: Apps) -> None:
    deliveries = Deliveries()

    @workflow
    async def flow() -> str:
        number = deliveries.next()
        task = asyncio.create_task(work.aio(number))
        await detent.aio.receive("go")
        await asyncio.sleep(0)
        return f"finished without {task}"

    run = apps(flow, work).start(flow)
    eventually(lambda: "receive/go" in [item.node for item in run.executions()], "it waits")
    wait_parked(run)
    run.send("go")
    assert isinstance(paused_with(run), StepMismatch)


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_an_operator_may_accept_the_drift_of_what_was_recorded(apps: Apps, is_async: bool) -> None:
    deliveries = Deliveries()

    @workflow(id="flow")
    def flow() -> list[int]:
        number = deliveries.next()
        values = [work(number), work(number)]
        detent.receive("go")
        return values

    @workflow(id="flow")
    async def aflow() -> list[int]:
        number = deliveries.next()
        values = [await work.aio(number), await work.aio(number)]
        await detent.aio.receive("go")
        return values

    chosen: Any = aflow if is_async else flow
    run = apps(chosen, work).start(chosen)
    wait_parked(run)
    run.send("go")
    paused_with(run)
    run.resume()
    paused_with(run)
    run.resume(accept_drift=True)
    assert result(run) == [1, 1]
    assert [event["step"] for event in events(run, "drift")] == ["work", "work#2"]
    assert events(run, "drift_accepted") == [{"by": "operator"}]


def test_what_is_recorded_after_an_accepted_drift_is_compared_again(apps: Apps) -> None:
    deliveries = Deliveries()

    @workflow
    def flow() -> None:
        number = deliveries.next()
        work(number)
        detent.receive("one")
        work(number)
        detent.receive("two")

    run = apps(flow, work).start(flow)
    wait_parked(run)
    run.send("one")
    paused_with(run)
    run.resume(accept_drift=True)
    eventually(lambda: "receive/two" in [item.node for item in run.executions()], "it waits again")
    wait_parked(run)
    run.send("two")
    error = paused_with(run)
    assert isinstance(error, StepMismatch)
    assert error.step == "work#2"


def test_an_app_may_take_drift_with_a_warning(apps: Apps, caplog: Any) -> None:
    deliveries = Deliveries()

    @workflow
    def flow() -> list[int]:
        number = deliveries.next()
        values = [work(number), *work.map([number])]
        detent.sleep(SOON)
        return values

    with caplog.at_level(logging.WARNING, logger="detent"):
        run = apps(flow, work, on_drift="warn").start(flow)
        values = result(run)
    assert values[0] == 1
    drift = events(run, "drift")
    assert {"step": "work", "recorded": '{"args":[1]}', "asked": f'{{"args":[{deliveries.count}]}}'} in drift
    assert "work#2" in {event["step"] for event in drift}
    warned = [line for line in caplog.records if line.levelno == logging.WARNING and "drift" in line.message]
    assert {line.run for line in warned} == {run.id}


@pytest.mark.parametrize("what", ["step", "workflow"])
def test_strict_code_pauses_on_other_arguments_though_the_app_only_warns(apps: Apps, what: str) -> None:
    deliveries = Deliveries()

    @step(strict=what == "step", id="work")
    def strictly(number: int) -> int:
        return number

    @workflow(strict=what == "workflow")
    def flow() -> int:
        value = strictly(deliveries.next())
        detent.sleep(SOON)
        return value

    error = paused_with(apps(flow, strictly, on_drift="warn").start(flow))
    assert isinstance(error, StepMismatch)
    assert "'work' was recorded with" in str(error)


def test_an_unknown_way_to_take_drift_is_refused(apps: Apps) -> None:
    with pytest.raises(ConfigurationError, match="'pause', 'warn'"):
        apps(on_drift="ignore")


def renamed(*, strict: bool, is_async: bool, new: bool) -> Any:
    charge = take_payment if new else pay

    @workflow(id="flow", strict=strict)
    def flow() -> str:
        value = charge(5)
        detent.receive("deployed")
        return value

    @workflow(id="flow", strict=strict)
    async def aflow() -> str:
        value = await charge.aio(5)
        await detent.aio.receive("deployed")
        return value

    return aflow if is_async else flow


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_a_renamed_step_is_noticed_by_strict_code_before_it_runs_twice(apps: Apps, is_async: bool) -> None:
    yesterday = apps(renamed(strict=True, is_async=is_async, new=False), pay)
    run = yesterday.start(yesterday.engine.registry.workflow("flow"))
    wait_parked(run)
    yesterday.close()
    today = apps(renamed(strict=True, is_async=is_async, new=True), take_payment)
    run = today.run(run.id)
    run.send("deployed")
    error = paused_with(run)
    assert isinstance(error, StepsNotAsked)
    assert (error.step, error.recorded) == ("take_payment", ["pay", "receive/deployed"])
    assert calls == ["pay"]
    run.resume(accept_drift=True)
    assert result(run) == "took 5"


def test_a_renamed_step_is_reported_when_the_run_ends(apps: Apps, caplog: Any) -> None:
    yesterday = apps(renamed(strict=False, is_async=False, new=False), pay)
    run = yesterday.start(yesterday.engine.registry.workflow("flow"))
    wait_parked(run)
    yesterday.close()
    today = apps(renamed(strict=False, is_async=False, new=True), take_payment)
    run = today.run(run.id)
    with caplog.at_level(logging.WARNING, logger="detent"):
        run.send("deployed")
        assert result(run) == "took 5"
    assert events(run, "unasked") == [{"steps": ["pay"]}]
    assert [line.run for line in caplog.records if "recorded, but not requested: pay" in line.message] == [
        run.id
    ]


def test_a_failed_step_is_set_aside_by_a_resume_in_concurrent_code_too(apps: Apps) -> None:
    broken = [True]

    @step
    async def fragile() -> str:
        if broken[0]:
            raise ValueError("broken")
        return "mended"

    @workflow
    async def flow() -> str:
        async def slowly() -> None:
            await detent.aio.sleep(SOON)

        task = asyncio.create_task(slowly())
        try:
            return await fragile()
        finally:
            await task

    run = apps(flow, fragile).start(flow)
    wait_for(run, "failed")
    broken[0] = False
    run.resume()
    assert result(run) == "mended"
    assert state(run) == "finished"
    assert "fragile" in recorded(run, "step")
