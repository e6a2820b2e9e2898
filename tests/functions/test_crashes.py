"""Crashes at every durable point: whatever a workflow is made of, it comes out the same."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import detent
from detent import Context, Retry, step, workflow
from detent.testing import crash_everywhere


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
    return ctx.attempt


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
