"""Crashes at every durable point: whatever a workflow is made of, it comes out the same."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

import detent
from detent import Context, Retry, step, workflow
from detent.errors import RunPaused
from detent.testing import crash_everywhere
from tests.functions.world import Apps, crash, failure, result


@step
def work(number: int) -> int:
    return number * 2


@step
async def awork(number: int) -> int:
    return number * 2


@step(retry=Retry(attempts=2, first=timedelta(seconds=5)))
def flaky(ctx: Context) -> int:
    if ctx.attempt == 1:
        raise ConnectionError
    return 2


@step
def fails() -> None:
    raise ValueError("no use")


@step
def undo(number: int, result: int) -> None: ...


@step
def book(number: int) -> int:
    return number


book.compensate_with(undo)


@workflow
def child(number: int) -> int:
    value = work(number)
    detent.sleep(hours=1)
    return value


@workflow
def everything() -> list[Any]:
    values: list[Any] = [work(1), flaky()]
    detent.publish("progress", 0.5)
    detent.sleep(days=2)
    values += work.map([2, 3])
    values += [child(4), detent.now().year, detent.receive("missing", timeout=60, default="none")]
    handle = child.spawn(5)
    try:
        fails()
    except ValueError as error:
        values.append(str(error))
    return [*values, handle.result()]


@workflow
async def branches() -> list[Any]:
    async def branch(number: int) -> int:
        first = await awork(number)
        await detent.aio.sleep(hours=number)
        return first + await work.aio(first)

    values = await asyncio.gather(branch(1), branch(2), detent.aio.sleep(minutes=1))
    return [*values, await child.aio(3), await awork.map([4, 5])]


@workflow
def undone() -> None:
    book(1)
    book.spawn(2).result()
    detent.sleep(hours=1)
    book(3)
    raise ValueError("stop")


@workflow
def caught() -> int:
    try:
        fails.spawn().result()
    except ValueError:
        return work(1)
    return 0


@pytest.mark.parametrize("definition", [everything, branches, undone, caught], ids=lambda it: it.name)
def test_a_crash_at_any_point_changes_nothing(definition: Any) -> None:
    assert crash_everywhere(definition) > 4


def test_a_crash_around_a_message_changes_nothing() -> None:
    @workflow
    def receiver() -> list[Any]:
        return [detent.receive("a"), work(1), detent.receive("b", timeout=60, default="none")]

    assert crash_everywhere(receiver, with_=lambda run: run.send("a", 1)) > 4


# Attempts that died with their worker


def test_a_step_that_died_with_its_worker_has_used_up_an_attempt(apps: Apps) -> None:
    attempts: list[int] = []
    begun, release = threading.Semaphore(0), threading.Event()

    @step
    def before() -> None: ...

    @step
    def deadly(ctx: Context) -> int:
        attempts.append(ctx.attempt)
        begun.release()
        if ctx.attempt < 3:
            release.wait(20)
        return ctx.attempt

    @step
    def after(ctx: Context) -> int:
        return ctx.attempt

    @workflow
    def flow() -> list[int]:
        before()
        first = deadly()
        detent.sleep(0.06)  # long enough for another delivery
        return [first, after()]

    app = apps(flow)
    run = app.start(flow)
    for _ in range(2):
        assert begun.acquire(timeout=20)
        other = apps(flow)
        crash(app, reaped_by=other)
        app = other
    assert result(app.run(run.id)) == [3, 1]
    assert attempts == [1, 2, 3]
    tries = {item.node: item.attempt for item in app.run(run.id).executions() if item.kind == "step"}
    assert tries == {"before": 1, "deadly": 3, "after": 1}
    release.set()


def test_concurrent_steps_that_died_with_their_worker_have_used_up_an_attempt(apps: Apps) -> None:
    begun, release = threading.Semaphore(0), threading.Event()

    @step
    def deadly(ctx: Context, name: str) -> tuple[str, int]:
        begun.release()
        if ctx.attempt < 2:
            release.wait(20)
        return name, ctx.attempt

    aio: Any = deadly.aio

    @workflow
    async def flow() -> list[tuple[str, int]]:
        return list(await asyncio.gather(aio("a"), aio("b")))

    app = apps(flow)
    run = app.start(flow)
    assert begun.acquire(timeout=20)
    assert begun.acquire(timeout=20)
    other = apps(flow)
    crash(app, reaped_by=other)
    assert result(other.run(run.id)) == [("a", 2), ("b", 2)]
    release.set()


def test_five_recoveries_are_five_and_the_sixth_crash_pauses(apps: Apps) -> None:
    attempts: list[int] = []
    begun, release = threading.Semaphore(0), threading.Event()

    @step
    def deadly(ctx: Context) -> None:
        attempts.append(ctx.attempt)
        begun.release()
        release.wait(60)

    @workflow
    def flow() -> None:
        deadly()

    app = apps(flow)
    run = app.start(flow)
    for _ in range(6):
        assert begun.acquire(timeout=60)
        other = apps(flow)
        crash(app, reaped_by=other, max_recoveries=5)
        app = other
    error = failure(app.run(run.id))
    assert isinstance(error, RunPaused)
    assert "6 times" in str(error)
    assert attempts == [1, 2, 3, 4, 5, 6]
    release.set()
