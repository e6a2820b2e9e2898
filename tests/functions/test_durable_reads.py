"""What a workflow asks of other runs, durable timeouts, and steps by hand in async code."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import detent
from detent import step, workflow
from detent.errors import BlockingCall, InvalidState, ResultTimeout, RunCanceled
from tests.functions.world import SOON, Apps, eventually, failure, recorded, result, wait_parked


@step
def add(number: int) -> int:
    return number + 1


@workflow
def target() -> str:
    value: str = detent.receive("go")
    if value == "fail":
        raise ValueError("it failed")
    detent.publish("state", value)
    return value


class World:
    """One flow that asks for another run, written as `def` and as `async def`."""

    def __init__(self, apps: Apps, is_async: bool, **settings: Any) -> None:
        self.seen: list[Any] = []
        self.timeout: float | None = None
        self.app = apps(self.aflow() if is_async else self.flow(), target, **settings)
        self.async_app = detent.AsyncApp(self.app.engine.url, include=[target])
        self.chosen = self.app.engine.registry.workflow("flow")

    def flow(self) -> Any:
        @workflow(id="flow")
        def flow() -> list[Any]:
            try:
                value: Any = self.app.run("target").result(timeout=self.timeout)
            except Exception as error:
                value = type(error).__name__
            self.seen.append(value)
            detent.sleep(SOON)
            return [value, self.app.run("target").published("state", "nothing")]

        return flow

    def aflow(self) -> Any:
        @workflow(id="flow")
        async def flow() -> list[Any]:
            run: Any = await self.async_app.run("target")
            try:
                value: Any = await run.result(timeout=self.timeout)
            except Exception as error:
                value = type(error).__name__
            self.seen.append(value)
            await detent.aio.sleep(SOON)
            return [value, await run.published("state", "nothing")]

        return flow

    def close(self) -> None:
        self.async_app.engine.close()


@pytest.fixture(params=[False, True], ids=["def", "async def"])
def world(apps: Apps, request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(apps, request.param, concurrency=1)
    yield made
    made.close()


def test_a_workflow_waits_for_another_run_without_its_worker(world: World) -> None:
    other = world.app.options(id="target").start(target)
    wait_parked(other)
    run = world.app.start(world.chosen)
    wait_parked(run)
    other.send("go", "gone")
    assert result(run) == ["gone", "gone"]
    assert world.seen == ["gone", "gone"]
    assert recorded(run, "result") == ["result/", "published/"]


@pytest.mark.parametrize("end", ["fail", "cancel"])
def test_how_another_run_ended_is_recorded(world: World, end: str) -> None:
    other = world.app.options(id="target").start(target)
    run = world.app.start(world.chosen)
    wait_parked(run)
    if end == "fail":
        other.send("go", "fail")
    else:
        other.cancel()
    name = ValueError.__name__ if end == "fail" else RunCanceled.__name__
    assert result(run) == [name, "nothing"]
    assert world.seen == [name, name]


def test_a_timed_out_wait_for_another_run_is_recorded(world: World) -> None:
    world.timeout = SOON
    other = world.app.options(id="target").start(target)
    run = world.app.start(world.chosen)
    eventually(lambda: "result/" in recorded(run, "result"), "it has timed out")
    other.send("go", "late")
    result(other)
    assert result(run)[0] == ResultTimeout.__name__
    assert set(world.seen) == {ResultTimeout.__name__}


def test_a_value_that_another_run_published_is_recorded(apps: Apps) -> None:
    """The other run publishes another value later; a replay still sees the first one."""

    @workflow
    def publisher() -> None:
        detent.publish("stage", "first")
        detent.receive("go")
        detent.publish("stage", "second")

    @workflow
    def reader() -> list[str]:
        stage = app.run("publisher").published("stage")
        detent.receive("go")
        return [stage, app.run("publisher").published("stage")]

    app = apps(publisher, reader)
    other = app.options(id="publisher").start(publisher)
    wait_parked(other)
    run = app.start(reader)
    wait_parked(run)
    other.send("go", None)
    result(other)
    run.send("go", None)
    assert result(run) == ["first", "second"]


def test_a_run_cannot_wait_for_itself(apps: Apps) -> None:
    @workflow
    def flow() -> None:
        app.run("me").result()

    app = apps(flow)
    error = failure(app.options(id="me").start(flow))
    assert isinstance(error, InvalidState)
    assert "itself" in str(error)


def test_a_blocking_wait_on_the_loop_is_refused(apps: Apps) -> None:
    @workflow
    async def flow() -> None:
        app.run("target").result()

    app = apps(flow, target)
    app.options(id="target").start(target)
    assert isinstance(failure(app.start(flow)), BlockingCall)


# -- detent.aio.timeout ------------------------------------------------------------------------------


def test_a_durable_timeout_ends_a_wait_and_every_replay_takes_the_same_way(apps: Apps) -> None:
    seen: list[str] = []

    @workflow
    async def flow() -> str:
        limit = detent.aio.timeout(SOON)
        try:
            async with limit:
                value = await detent.aio.receive("go")
        except TimeoutError:
            assert limit.expired()
            value = "late"
        await add.aio(1)
        seen.append(value)
        await detent.aio.sleep(SOON)
        return str(value)

    run = apps(flow, add).start(flow)
    eventually(lambda: "add" in recorded(run, "step"), "the time is over")
    assert result(run) == "late"
    assert set(seen) == {"late"}
    assert len(seen) >= 2


def test_a_block_that_ends_in_time_is_not_disturbed_in_any_replay(apps: Apps) -> None:
    seen: list[int] = []

    @workflow
    async def flow() -> int:
        async with detent.aio.timeout(minutes=5) as limit:
            value = await add.aio(1)
            await detent.aio.sleep(SOON)
        assert not limit.expired()
        value = await add.aio(value)
        seen.append(value)
        await detent.aio.sleep(SOON)
        return value

    assert result(apps(flow, add).start(flow)) == 3
    assert set(seen) == {3}
    assert len(seen) >= 2


def test_a_durable_timeout_cancels_a_step(apps: Apps) -> None:
    calls: list[int] = []

    @step
    async def slow() -> None:
        calls.append(1)
        await asyncio.sleep(3600)

    @workflow
    async def flow() -> str:
        try:
            async with detent.aio.timeout(SOON):
                await slow()
        except TimeoutError:
            await add.aio(1)
            await detent.aio.sleep(SOON)
            return "late"
        return "in time"

    assert result(apps(flow, add).start(flow)) == "late"
    assert calls == [1]


def test_outside_of_a_workflow_it_is_a_plain_timeout() -> None:
    async def late() -> None:
        async with detent.aio.timeout(0.01):
            await asyncio.sleep(3600)

    with pytest.raises(TimeoutError):
        asyncio.run(late())


# -- detent.aio.step_guard -----------------------------------------------------------------------------


def test_a_step_by_hand_in_async_code_is_done_once(apps: Apps) -> None:
    calls: list[int] = []

    async def by_hand(number: int) -> list[int]:
        async with detent.aio.step_guard("fetch", list[int]) as guard:
            if guard.pending:
                calls.append(number)
                await asyncio.sleep(0.01 * number)
                await guard.success([number])
        return guard.result

    @workflow
    async def flow() -> list[list[int]]:
        values = list(await asyncio.gather(by_hand(2), by_hand(1)))
        await detent.aio.sleep(SOON)
        return values

    run = apps(flow).start(flow)
    assert result(run) == [[2], [1]]
    assert sorted(calls) == [1, 2]
    assert sorted(recorded(run, "step")) == ["by_hand#2:fetch", "by_hand:fetch"]


def test_a_step_by_hand_that_raises_is_recorded_as_failed(apps: Apps) -> None:
    calls: list[int] = []

    @workflow
    async def flow() -> str:
        try:
            async with detent.aio.step_guard("fetch") as guard:
                if guard.pending:
                    calls.append(1)
                    raise ValueError("no")
                return str(guard.result)
        except ValueError as error:
            await detent.aio.sleep(SOON)
            return str(error)

    assert result(apps(flow).start(flow)) == "no"
    assert calls == [1]


# -- StopIteration -------------------------------------------------------------------------------------


def test_a_step_may_raise_stop_iteration(apps: Apps) -> None:
    @step
    def stops() -> None:
        raise StopIteration("over")

    @workflow
    def flow() -> list[str]:
        seen = []
        for _ in range(2):
            try:
                stops()
            except StopIteration as error:
                seen.append(str(error))
        detent.sleep(SOON)
        return seen

    assert result(apps(flow, stops).start(flow)) == ["over", "over"]


def test_a_step_that_raises_stop_iteration_does_not_hang_async_code(apps: Apps) -> None:
    @step
    def stops() -> None:
        raise StopIteration("over")

    @workflow
    async def flow() -> str:
        try:
            await stops.aio()
        except RuntimeError as error:
            return str(error)
        return "nothing"

    assert "raised StopIteration" in result(apps(flow, stops).start(flow))
