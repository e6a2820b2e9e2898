"""When and where nodes run: waits, queues, priorities, threads and loops."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

import detent
from detent import Retry, Workflow, step, task
from detent.errors import UnknownQueue
from detent.testing import TestingApp
from tests.functions.world import Apps, failure, result, state
from tests.graphs.bodies import QUEUES, Small, acharge, places
from tests.graphs.world import attempts, last, one_node, states


def test_a_wait_is_from_ready_to_due(testing: TestingApp) -> None:
    seen: list[timedelta] = []
    began = testing.clock()

    class Flow(Workflow):
        @step(wait=timedelta(hours=1))
        def first(self) -> None:
            seen.append(testing.clock() - began)

        @step(wait=90)
        def second(self) -> None:
            seen.append(testing.clock() - began)

    run = testing.start(Flow)
    testing.settle_down()
    assert last(run, "first").scheduled_for == began + timedelta(hours=1)
    testing.speedrun(run)
    assert seen == [timedelta(hours=1), timedelta(hours=1, seconds=90)]


def test_a_delayed_start_and_a_wait_add_up(testing: TestingApp) -> None:
    flow = one_node(lambda self: None, wait=timedelta(hours=1))
    testing.include(flow)
    run = testing.options(delay=timedelta(hours=2)).start(flow)
    assert last(run).scheduled_for == testing.clock() + timedelta(hours=3)


def test_a_reattempt_does_not_wait_the_nodes_wait_again(testing: TestingApp) -> None:
    def body(self: Any) -> None:
        if self.ctx.attempt == 1:
            self.reattempt()

    began = testing.clock()
    run = testing.start(one_node(body, wait=timedelta(days=1)))
    testing.speedrun(run)
    assert testing.clock() == began + timedelta(days=1)


class Queued(Workflow):
    detent.job_options(queue="slow", priority=3)

    @task
    def usual(self) -> None: ...

    @task(queue="fast", priority=0)
    def urgent(self) -> None: ...


def test_a_node_goes_to_its_own_queue_else_to_that_of_its_class(apps: Apps) -> None:
    app = apps(Queued, queues=QUEUES, worker=False)
    assert places(app, app.start(Queued)) == {"usual": ("slow", 3), "urgent": ("fast", 0)}


def test_the_options_of_a_start_come_before_those_of_the_class(apps: Apps) -> None:
    app = apps(Queued, queues=QUEUES, worker=False)
    run = app.options(queue="night", priority=9).start(Queued)
    assert places(app, run) == {"usual": ("night", 9), "urgent": ("fast", 0)}


def test_a_child_goes_to_the_queue_of_its_class(apps: Apps) -> None:
    class Parent(Workflow):
        inner = step(job=Queued)

    app = apps(Parent, queues=QUEUES)
    run = app.start(Parent)
    assert result(run) is None
    [child] = app.runs(type="Queued")
    assert places(app, child) == {"usual": ("slow", 3), "urgent": ("fast", 0)}


def test_a_queue_that_the_app_does_not_declare_is_refused(apps: Apps) -> None:
    class Second(Workflow):
        @step
        def first(self) -> None: ...

        @step(queue="nowhere")
        def second(self) -> None: ...

    with pytest.raises(UnknownQueue, match="nowhere"):
        app = apps(Second)
        app.start(Second)
    with pytest.raises(UnknownQueue, match="slow"):
        app = apps(Queued)
        app.start(Queued)


def test_the_higher_priority_runs_first(apps: Apps) -> None:
    order: list[str] = []

    class Flow(Workflow):
        @task(priority=1)
        def low(self) -> None:
            order.append("low")

        @task(priority=5)
        def high(self) -> None:
            order.append("high")

        @task
        def none(self) -> None:
            order.append("none")

    run = apps(Flow, worker=False).start(Flow)
    worker = apps(Flow, concurrency=1)
    result(worker.run(run.id))
    assert order == ["high", "low", "none"]


def test_independent_nodes_run_at_the_same_time_on_two_workers(apps: Apps) -> None:
    both = threading.Barrier(2, timeout=20)

    class Flow(Workflow):
        @task
        def left(self) -> None:
            both.wait()  # only two workers with one slot each can be here at the same time

        @task
        def right(self) -> None:
            both.wait()

        @task(depends_on=[left, right])
        def join(self) -> str:
            return "joined"

    first = apps(Flow, concurrency=1)
    apps(Flow, concurrency=1)
    run = first.start(Flow)
    assert result(run) == "joined"
    assert last(run, "left").worker != last(run, "right").worker
    assert attempts(run, "join") == [("completed", "success")]


def test_independent_async_nodes_run_at_the_same_time_on_one_loop(apps: Apps) -> None:
    events: dict[str, asyncio.Event] = {}

    async def meet(mine: str, other: str) -> None:
        for name in (mine, other):
            events.setdefault(name, asyncio.Event())
        events[mine].set()
        await asyncio.wait_for(events[other].wait(), 20)

    class Flow(Workflow):
        @task
        async def left(self) -> None:
            await meet("left", "right")

        @task
        async def right(self) -> None:
            await meet("right", "left")

    run = apps(Flow).start(Flow)
    result(run)
    assert states(run) == {"left": "completed", "right": "completed"}


def test_on_an_async_app_async_nodes_run_on_its_loop_and_others_in_threads(url: str) -> None:
    seen: dict[str, Any] = {}

    class Flow(Workflow):
        @step
        async def on_loop(self) -> None:
            seen["on_loop"] = (asyncio.get_running_loop(), threading.get_ident())

        @step
        def in_thread(self) -> str:
            seen["in_thread"] = threading.get_ident()
            return "done"

    async def program() -> Any:
        async with detent.AsyncApp(url, include=[Flow]) as app:
            run = await app.start(Flow)
            value = await run.result(timeout=20)
        return value, asyncio.get_running_loop(), threading.get_ident()

    value, loop, thread = asyncio.run(program())
    assert value == "done"
    assert seen["on_loop"] == (loop, thread)
    assert seen["in_thread"] != thread


def test_on_an_async_app_conditions_and_hooks_may_await(url: str) -> None:
    seen: list[str] = []

    class Flow(Workflow):
        @detent.cancel_if
        async def closed(self) -> bool:
            await asyncio.sleep(0)
            seen.append("asked")
            return False

        async def before_step(self, name: str) -> None:
            await asyncio.sleep(0)
            seen.append(f"before {name}")

        @step
        async def first(self) -> None: ...

        @step
        def second(self) -> str:
            return "done"

    async def program() -> Any:
        async with detent.AsyncApp(url, include=[Flow]) as app:
            return await (await app.start(Flow)).result(timeout=20)

    assert asyncio.run(program()) == "done"
    assert seen == ["asked", "before first", "asked", "before second"]


def test_a_step_called_in_a_node_is_just_a_function(testing: TestingApp) -> None:
    class Flow(Workflow):
        @step
        async def work(self) -> str:
            return await acharge(5)

    run = testing.start(Flow)
    testing.speedrun(run)
    assert result(run) == "async 5"
    assert states(run) == {"work": "completed"}


def test_a_run_that_a_node_starts_is_started_once_over_its_attempts(testing: TestingApp) -> None:
    def body(self: Any) -> None:
        testing.options().start(Small, order_id=1)
        if self.ctx.attempt == 1:
            raise LookupError

    testing.include(Small)
    run = testing.start(one_node(body, retry=Retry(attempts=2)))
    testing.speedrun(run)
    assert (state(run), len(testing.runs(type="Small"))) == ("finished", 1)


def test_the_idempotency_key_of_a_node_is_the_same_for_every_attempt(testing: TestingApp) -> None:
    keys: list[str] = []

    def body(self: Any) -> None:
        keys.append(self.ctx.idempotency_key)
        if self.ctx.attempt == 1:
            self.reattempt()

    run = testing.start(one_node(body))
    testing.speedrun(run)
    assert keys == [f"{run.id}:work"] * 2


def test_a_run_that_no_node_can_fail_has_the_value_of_its_only_end(testing: TestingApp) -> None:
    class Two(Workflow):
        @task
        def left(self) -> int:
            return 1

        @task
        def right(self) -> int:
            return 2

    run = testing.start(Two)
    testing.speedrun(run)
    assert result(run) is None  # two ends: which would it be
    run = testing.start(one_node(lambda self: None))
    testing.speedrun(run)
    assert result(run) == "after"


def test_waiting_for_a_run_that_cancels_itself_ends_the_wait(apps: Apps) -> None:
    flow = one_node(lambda self: self.cancel())
    assert isinstance(failure(apps(flow).start(flow)), detent.RunCanceled)
