"""Resumable steps: `ctx.iterate` goes on behind the last item that was done."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

import detent
from detent import Context, step, workflow
from detent.errors import InvalidState, RunPaused
from tests.functions.world import Apps, Gate, crash, eventually, failure, main, result, wait_draining


class Items:
    """Steps over ten items that stop at the fifth for as long as the test wants."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.seen: list[int] = []

    def visit(self, number: int) -> None:
        self.seen.append(number)
        if number == 4 and self.seen.count(4) == 1:
            self.gate.pass_through()

    def flow(self, kind: str) -> Any:
        @step(id="work")
        def work(ctx: Context) -> str:
            for number in ctx.iterate(range(10), key=lambda number: f"item {number}"):
                self.visit(number)
            return "all"

        @step(id="work")
        async def awork(ctx: Context) -> str:
            async for number in ctx.iterate(range(10)):
                await asyncio.to_thread(self.visit, number)
            return "all"

        @workflow(id="flow")
        def flow() -> Any:
            return work.spawn().result() if "spawned" in kind else work()

        @workflow(id="flow")
        async def aflow() -> Any:
            spawned: Any = awork.spawn
            return await (spawned() if "spawned" in kind else awork())

        return aflow if "async" in kind else flow


KINDS = pytest.mark.parametrize("kind", ["def", "async def", "spawned def", "spawned async def"])


@KINDS
def test_after_a_crash_it_continues_at_the_item_that_was_not_done(apps: Apps, kind: str) -> None:
    items = Items()
    flow = items.flow(kind)
    first = apps(flow)
    run = first.start(flow)
    items.gate.wait_for_arrival()
    second = apps(flow)
    crash(first, reaped_by=second)
    assert result(second.run(run.id)) == "all"
    items.gate.open()
    assert items.seen == [0, 1, 2, 3, 4, 4, 5, 6, 7, 8, 9]


@KINDS
def test_a_pause_stops_it_between_two_items_and_resuming_goes_on(apps: Apps, kind: str) -> None:
    items = Items()
    flow = items.flow(kind)
    app = apps(flow)
    run = app.start(flow)
    items.gate.wait_for_arrival()
    run.pause()
    items.gate.open()
    node = "work" if "spawned" in kind else "main"
    eventually(
        lambda: [item for item in run.executions() if (item.node, item.state) == (node, "scheduled")],
        "it is put down",
    )
    assert isinstance(failure(run), RunPaused)
    assert items.seen == [0, 1, 2, 3, 4]
    run.resume()
    assert result(run) == "all"
    assert items.seen == list(range(10))


@KINDS
def test_a_worker_that_closes_hands_it_on_between_two_items(apps: Apps, kind: str) -> None:
    items = Items()
    flow = items.flow(kind)
    first = apps(flow)
    run = first.start(flow)
    items.gate.wait_for_arrival()
    closing = threading.Thread(target=first.close)
    closing.start()
    wait_draining(first)
    items.gate.open()
    closing.join(20)
    second = apps(flow)
    assert result(second.run(run.id)) == "all"
    assert items.seen == list(range(10))


@KINDS
def test_canceling_ends_it_between_two_items(apps: Apps, kind: str) -> None:
    items = Items()
    flow = items.flow(kind)
    run = apps(flow).start(flow)
    items.gate.wait_for_arrival()
    run.cancel()
    items.gate.open()
    eventually(lambda: main(run).state == "canceled", "it has ended")
    eventually(lambda: "executing" not in [item.state for item in run.executions()], "all of it has ended")
    assert items.seen == [0, 1, 2, 3, 4]


def test_items_that_no_longer_hold_the_last_one_are_an_error(apps: Apps) -> None:
    items: list[list[str]] = [["a", "b", "c"], ["x", "y"]]
    attempts: list[int] = []

    @step(retry=detent.Retry(attempts=2, first=timedelta(0)))
    def work(ctx: Context) -> None:
        for item in ctx.iterate(items[ctx.attempt - 1], key=str):
            attempts.append(ctx.attempt)
            if item == "b":
                raise ConnectionError

    @workflow
    def flow() -> None:
        work()

    error = failure(apps(flow).start(flow))
    assert isinstance(error, InvalidState)
    assert "no longer contain the last completed one (a)" in str(error)
    assert attempts == [1, 1]


def test_a_retry_continues_too(apps: Apps) -> None:
    seen: list[int] = []

    @step(retry=detent.Retry(attempts=2, first=timedelta(0)))
    def work(ctx: Context) -> None:
        for number in ctx.iterate(range(4)):
            seen.append(number)
            if number == 2 and ctx.attempt == 1:
                raise ConnectionError

    @workflow
    def flow() -> None:
        work()

    result(apps(flow).start(flow))
    assert seen == [0, 1, 2, 2, 3]


def test_iterating_in_the_workflow_itself_says_what_to_do(apps: Apps) -> None:
    @workflow
    def flow(ctx: Context) -> None:
        for _ in ctx.iterate(range(3)):
            pass

    error = failure(apps(flow).start(flow))
    assert isinstance(error, InvalidState)
    assert "use a plain loop" in str(error)


def test_several_loops_in_one_step_each_have_their_own_place(apps: Apps) -> None:
    seen: list[str] = []

    @step(retry=detent.Retry(attempts=2, first=timedelta(0)))
    def work(ctx: Context) -> None:
        for number in ctx.iterate(range(2)):
            seen.append(f"a{number}")
        for number in ctx.iterate(range(3)):
            seen.append(f"b{number}")
            if number == 1 and ctx.attempt == 1:
                raise ConnectionError

    @workflow
    def flow(spawned: bool) -> None:
        work.spawn().result() if spawned else work()

    app = apps(flow)
    for spawned in (False, True):
        seen.clear()
        result(app.start(flow, spawned))
        assert seen == ["a0", "a1", "b0", "b1", "b1", "b2"]


def test_a_loop_inside_of_a_loop_is_refused(apps: Apps) -> None:
    @step
    def work(ctx: Context) -> None:
        for _ in ctx.iterate(range(2)):
            for _ in ctx.iterate(range(2)):
                pass

    @workflow
    def flow() -> None:
        work()

    error = failure(apps(flow).start(flow))
    assert isinstance(error, InvalidState)
    assert "make the inner loop a plain loop" in str(error)
