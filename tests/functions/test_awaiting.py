"""A call that is not awaited is an error, and not a step that silently did not run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import detent
from detent import step, workflow
from detent.errors import NotAwaited
from tests.functions.world import SOON, Apps, failure, recorded, result

calls: list[int] = []


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


@step
async def fetch(number: int) -> int:
    calls.append(number)
    return number * 10


@step
def double(number: int) -> int:
    return number * 2


@workflow
async def child(number: int) -> int:
    return await fetch(number)


ASYNC_CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "a step": (lambda: fetch(1), r"fetch is async, .* write fetch\.sync\(\.\.\.\)"),
    "a map": (lambda: fetch.map([1, 2]), r"write fetch\.sync\.map\(\.\.\.\)"),
    "a child": (lambda: child(1), r"write child\.sync\(\.\.\.\)"),
    "aio of a sync step": (lambda: double.aio(1), r"write double\(\.\.\.\)"),
    "aio.map of a sync step": (lambda: double.aio.map([1]), r"write double\.map\(\.\.\.\)"),
    "sleep": (lambda: detent.aio.sleep(1), r"write detent\.sleep\(\.\.\.\)"),
    "receive": (lambda: detent.aio.receive("x"), r"write detent\.receive\(\.\.\.\)"),
    "publish": (lambda: detent.aio.publish("x", 1), r"write detent\.publish\(\.\.\.\)"),
    "now": (detent.aio.now, r"write detent\.now\(\.\.\.\)"),
}


@pytest.mark.parametrize("call", ASYNC_CALLS)
def test_an_async_call_in_a_sync_workflow_says_what_to_write(apps: Apps, call: str) -> None:
    asked, said = ASYNC_CALLS[call]

    @workflow
    def flow() -> None:
        with pytest.raises(NotAwaited, match=said):
            asked()

    run = apps(flow, fetch, child, double).start(flow)
    assert result(run) is None
    assert calls == []
    assert recorded(run) == []


def test_the_forms_that_it_names_work(apps: Apps) -> None:
    @workflow
    def flow() -> list[int]:
        async def inside() -> int:
            return await fetch(4)

        return [fetch.sync(1), *fetch.sync.map([2]), child.sync(3), asyncio.run(inside())]

    assert result(apps(flow).start(flow)) == [10, 20, 30, 40]


FORGOTTEN: dict[str, tuple[Callable[[], Coroutine[Any, Any, Any]], str]] = {
    "a step": (lambda: fetch(1), "fetch is async, and a call was not awaited: write `await fetch"),
    "a map": (lambda: fetch.map([1]), "fetch.map is async"),
    "a child": (lambda: child(1), "child is async"),
    "sleep": (lambda: detent.aio.sleep(1), r"write `await detent\.aio\.sleep"),
    "publish": (lambda: detent.aio.publish("x", 1), r"write `await detent\.aio\.publish"),
}


@pytest.mark.parametrize("call", FORGOTTEN)
def test_a_forgotten_await_fails_the_run_and_names_the_call(apps: Apps, call: str) -> None:
    forget, said = FORGOTTEN[call]

    @workflow
    async def flow() -> str:
        _ = forget()
        await fetch(7)
        return "finished"

    error = failure(apps(flow, child).start(flow))
    assert isinstance(error, NotAwaited)
    with pytest.raises(NotAwaited, match=said):
        raise error
    assert 7 in calls


def test_a_forgotten_await_is_found_behind_many_calls_and_after_a_wait(apps: Apps) -> None:
    @workflow
    async def flow() -> None:
        _ = fetch(0)
        for number in range(1, 40):
            await fetch(number)
        await detent.aio.sleep(SOON)

    assert isinstance(failure(apps(flow).start(flow)), NotAwaited)
    assert calls == list(range(1, 40))


def test_calls_that_are_awaited_later_closed_or_given_to_tasks_are_not_forgotten(apps: Apps) -> None:
    @workflow
    async def flow() -> list[int]:
        later = [fetch(1), fetch(2)]
        await detent.aio.sleep(SOON)  # the run leaves memory with two calls that have not begun
        unwanted = fetch(3)
        unwanted.close()
        task = asyncio.create_task(fetch(4))
        canceled = asyncio.create_task(fetch(5))
        canceled.cancel()
        return [await later[0], await later[1], await task]

    assert result(apps(flow).start(flow)) == [10, 20, 40]
    assert 3 not in calls


def test_an_error_of_the_workflow_is_not_replaced(apps: Apps) -> None:
    @workflow
    async def flow() -> None:
        _ = fetch(1)
        raise KeyError("its own")

    assert isinstance(failure(apps(flow).start(flow)), KeyError)


def test_outside_of_runs_an_async_step_is_an_ordinary_coroutine_function() -> None:
    assert asyncio.run(fetch(1)) == 10
