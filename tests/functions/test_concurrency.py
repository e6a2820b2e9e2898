"""Branches of async workflows, signals that are swallowed, and what people see of a run."""

import asyncio
import contextlib
import itertools
import threading
from typing import Any

import pytest

import detent
from detent import step, workflow
from detent.errors import InvalidState, RunCanceled
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
    wait_parked,
)


def test_branches_replay_alike_in_whatever_order_they_come(apps: Apps) -> None:
    deliveries: list[int] = []
    calls: list[str] = []

    @step
    async def work(name: str) -> str:
        calls.append(name)
        return name.upper()

    async def branch(name: str, turns: int) -> list[str]:
        for _ in range(turns):  # not durable: it decides who comes first
            await asyncio.sleep(0)
        first = await work(f"{name}1")
        for _ in range(turns):
            await asyncio.sleep(0)
        return [first, await work(f"{name}2")]

    @workflow
    async def flow() -> list[list[str]]:
        deliveries.append(1)
        turns = [0, 20] if len(deliveries) == 1 else [20, 0]
        both = await asyncio.gather(branch("a", turns[0]), branch("b", turns[1]))
        await detent.aio.sleep(SOON)
        return list(both)

    run = apps(flow).start(flow)
    assert result(run) == [["A1", "A2"], ["B1", "B2"]]
    assert len(deliveries) == 2
    assert sorted(calls) == ["a1", "a2", "b1", "b2"]
    assert events(run, "drift") == []
    assert sorted(recorded(run, "step")) == [
        "branch#2:work",
        "branch#2:work#2",
        "branch:work",
        "branch:work#2",
    ]


def test_task_groups_and_nested_tasks_replay_alike(apps: Apps) -> None:
    calls: list[int] = []

    @step
    async def work(number: int) -> int:
        calls.append(number)
        return number

    async def inner(number: int) -> int:
        return await work(number)

    async def outer(number: int) -> int:
        one, other = await asyncio.gather(inner(number), inner(number + 1))
        return one + other

    @workflow
    async def flow() -> int:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(outer(number)) for number in (1, 10)]
        await detent.aio.sleep(SOON)
        return sum(task.result() for task in tasks)

    run = apps(flow).start(flow)
    assert result(run) == 3 + 21
    assert sorted(calls) == [1, 2, 10, 11]
    assert events(run, "drift") == []


def test_a_branch_that_waits_does_not_hold_up_the_others(apps: Apps) -> None:
    gate = Gate()

    @step
    def slow() -> str:
        gate.pass_through()
        return "slow"

    @workflow
    async def flow() -> list[Any]:
        return list(await asyncio.gather(slow.aio(), detent.aio.receive("go"), detent.aio.sleep(SOON)))

    run = apps(flow).start(flow)
    gate.wait_for_arrival()
    run.send("go", 1)
    eventually(lambda: "receive/go" in recorded(run), "the message is received while the step runs")
    gate.open()
    assert result(run) == ["slow", 1, None]


def test_branches_that_all_wait_free_the_worker(apps: Apps) -> None:
    @workflow
    async def flow() -> list[Any]:
        return list(await asyncio.gather(*(detent.aio.receive(name) for name in "abc")))

    @workflow
    async def other() -> str:
        return "ran meanwhile"

    app = apps(flow, other, concurrency=1)
    run = app.start(flow)
    assert result(app.start(other)) == "ran meanwhile"
    for name in "cab":
        run.send(name, name)
    assert result(run) == ["a", "b", "c"]


def test_plain_waiting_beside_a_durable_wait_goes_on(apps: Apps) -> None:
    @step
    async def tick(number: int) -> None: ...

    @workflow
    async def flow() -> Any:
        async def ticking() -> None:
            for number in range(5):
                await tick(number)
                await asyncio.sleep(0.01)

        task = asyncio.create_task(ticking())
        value = await detent.aio.receive("go")
        await task
        return value

    run = apps(flow).start(flow)
    eventually(lambda: len(recorded(run, "step")) == 5, "the other branch has come to its end")
    run.send("go", 1)
    assert result(run) == 1


def test_a_branch_that_nobody_awaits_ends_with_its_workflow(apps: Apps) -> None:
    begun, ended = threading.Event(), threading.Event()

    @step
    async def endless() -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    @workflow
    async def flow() -> str:
        task = asyncio.create_task(endless())
        while not begun.is_set():
            await asyncio.sleep(0)
        assert not task.done()
        return "done"

    run = apps(flow).start(flow)
    assert result(run) == "done"
    assert ended.wait(20)
    assert recorded(run, "step") == []


def test_a_step_cancelled_by_its_workflow_is_shown_as_canceled_and_the_run_goes_on(apps: Apps) -> None:
    @step
    async def slow() -> None:
        await asyncio.sleep(3600)

    @step
    async def quick() -> str:
        return "quick"

    @workflow
    async def flow() -> str:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(slow(), timeout=0.01)
        return await quick()

    run = apps(flow).start(flow)
    assert result(run) == "quick"
    assert recorded(run, "step") == ["quick"]
    [canceled] = [item for item in run.executions() if item.state == "canceled"]
    assert (canceled.node, canceled.outcome) == ("slow", "canceled_by_workflow")


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_code_that_swallows_everything_does_not_break_a_wait(apps: Apps, is_async: bool) -> None:
    calls: list[str] = []

    @step
    def after() -> str:
        calls.append("after")
        return "after"

    @workflow(id="flow")
    def flow() -> list[Any]:
        try:
            got = detent.receive("go")
        except:  # noqa: E722
            got = "swallowed"
        try:
            return [got, after(), detent.now().year > 2000]
        except BaseException:
            return ["swallowed again"]

    @workflow(id="flow")
    async def aflow() -> list[Any]:
        try:
            got = await detent.aio.receive("go")
        except:  # noqa: E722
            got = "swallowed"
        try:
            return [got, await after.aio(), (await detent.aio.now()).year > 2000]
        except BaseException:
            return ["swallowed again"]

    chosen: Any = aflow if is_async else flow
    run = apps(chosen).start(chosen)
    wait_parked(run)
    assert calls == []
    assert recorded(run) == []
    run.send("go", 1)
    assert result(run) == [1, "after", True]


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_steps_in_finally_do_nothing_while_the_run_is_put_down(apps: Apps, is_async: bool) -> None:
    calls: list[str] = []
    moments: list[Any] = []

    @step
    def cleanup() -> str:
        calls.append("cleanup")
        return "clean"

    @workflow(id="other")
    def other() -> None: ...

    @workflow(id="flow")
    def flow() -> Any:
        try:
            got = detent.receive("go")
        finally:
            moments.append(detent.now())
            detent.publish("state", "over")
            app.start(other)
            cleanup()
        return got

    @workflow(id="flow")
    async def aflow() -> Any:
        try:
            got = await detent.aio.receive("go")
        finally:
            moments.append(await detent.aio.now())
            await detent.aio.publish("state", "over")
            await cleanup.aio()
        return got

    chosen: Any = aflow if is_async else flow
    app = apps(chosen, other)
    run = app.start(chosen)
    wait_parked(run)
    assert (calls, moments, recorded(run), run.published("state")) == ([], [], [], None)
    assert app.runs(type="other") == []
    run.send("go", 1)
    assert result(run) == 1
    assert calls == ["cleanup"]
    assert moments[0] >= run.created_at


def test_a_swallowed_cancel_ends_the_run_all_the_same(apps: Apps) -> None:
    @workflow
    async def flow() -> str:
        try:
            await detent.aio.receive("never")
        except BaseException:
            return "not me"
        return "done"

    run = apps(flow).start(flow)
    run.cancel()
    assert isinstance(failure(run), RunCanceled)


class Salted:
    """As encryption does, it never writes the same text twice."""

    def __init__(self) -> None:
        self._count = itertools.count()

    def encode(self, text: str) -> str:
        return f"{next(self._count)}|{text}"

    def decode(self, text: str) -> str:
        return text.partition("|")[2]


def test_strict_code_compares_arguments_and_not_how_they_were_written(apps: Apps) -> None:
    deliveries: list[int] = []

    @step
    def work(numbers: set[int]) -> int:
        return sum(numbers)

    @workflow(strict=True)
    def flow() -> int:
        deliveries.append(1)
        numbers = {0, 8} if len(deliveries) == 1 else {8, 0}  # equal, in another order
        value = work(numbers)
        detent.sleep(SOON)
        return value

    run = apps(flow, transform=Salted()).start(flow)
    assert result(run) == 8
    assert len(deliveries) == 2
    assert events(run, "drift") == []


def test_recorded_steps_that_the_code_no_longer_asks_for_are_kept_and_told(apps: Apps) -> None:
    @step
    def gone() -> None: ...

    @step
    def kept() -> str:
        return "kept"

    @workflow(id="flow")
    def old() -> str:
        gone()
        detent.receive("deployed")
        return kept()

    @workflow(id="flow")
    def new() -> str:
        detent.receive("deployed")
        return kept()

    yesterday = apps(old)
    run = yesterday.start(old)
    wait_parked(run)
    yesterday.close()
    today = apps(new)
    run = today.run(run.id)
    run.send("deployed")
    assert result(run) == "kept"
    assert events(run, "unasked") == [{"steps": ["gone"]}]
    assert recorded(run, "step") == ["gone", "kept"]


def test_a_step_added_to_the_code_does_not_disturb_the_runs_in_flight(apps: Apps) -> None:
    calls: list[str] = []

    @step
    def before() -> str:
        calls.append("before")
        return "before"

    @step
    def added() -> str:
        calls.append("added")
        return "added"

    @workflow(id="flow")
    def old() -> list[str]:
        value = before()
        detent.receive("deployed")
        return [value]

    @workflow(id="flow")
    def new() -> list[str]:
        values = [added(), before()]
        detent.receive("deployed")
        return values

    yesterday = apps(old)
    run = yesterday.start(old)
    wait_parked(run)
    yesterday.close()
    run = apps(new).run(run.id)
    run.send("deployed")
    assert result(run) == ["added", "before"]
    assert calls == ["before", "added"]


def test_executions_and_history_tell_the_whole_story(apps: Apps) -> None:
    @step
    def work(number: int) -> int:
        return number

    @workflow
    def child() -> int:
        return work(1)

    @workflow
    def flow() -> int:
        total = work(1) + child() + sum(work.map([2, 3]))
        detent.publish("total", total)
        detent.sleep(SOON)
        return total + int(detent.receive("more"))

    run = apps(flow).start(flow)
    run.send("more", 10)
    assert result(run) == 17
    kinds = {item.node: (item.kind, item.state) for item in run.executions()}
    assert kinds == {
        "main": ("main", "completed"),
        "work": ("step", "completed"),
        "child": ("child", "completed"),
        "work#2": ("step", "completed"),
        "work#3": ("step", "completed"),
        "publish/total": ("publish", "completed"),
        "sleep": ("sleep", "completed"),
        "receive/more": ("receive", "completed"),
    }
    [step_item] = [item for item in run.executions() if item.node == "work"]
    assert (step_item.input, step_item.result, step_item.attempt) == (((1,), {}), 1, 1)
    assert step_item.duration is not None
    history = [event.event for event in run.history()]
    assert history[0] == "started"
    assert history[-1] == "run finished"
    assert run.history() == sorted(run.history(), key=lambda event: event.at)


def test_a_fork_keeps_what_was_before_the_step(apps: Apps) -> None:
    calls: list[str] = []

    @step
    def work(name: str) -> str:
        calls.append(name)
        return f"{name} {len(calls)}"

    @step
    def ship(value: str) -> str:
        calls.append("ship")
        return f"shipped {value} {len(calls)}"

    @workflow
    def flow() -> list[Any]:
        first = work("a")
        spawned = work.map(["b"])
        moment = detent.uuid()
        detent.sleep(SOON)
        return [first, *spawned, str(moment), ship(first)]

    app = apps(flow)
    run = app.start(flow)
    original = result(run)
    again = app.fork(run, from_step="ship")
    forked = result(again)
    assert forked[:3] == original[:3]
    assert forked[3] != original[3]
    assert calls == ["a", "b", "ship", "ship"]
    assert again.row.forked_from == run.id
    assert result(app.fork(run.id, from_step="work")) != original
    with pytest.raises(InvalidState, match="it has: work, "):
        app.fork(run, from_step="nothing like this")


def test_a_crash_in_one_branch_does_not_disturb_what_the_other_recorded(apps: Apps) -> None:
    gate, calls = Gate(), []

    @step
    async def quick() -> str:
        calls.append("quick")
        return "quick"

    @step
    def slow() -> str:
        calls.append("slow")
        if calls.count("slow") == 1:
            gate.pass_through()
        return "slow"

    @workflow
    async def flow() -> list[str]:
        return list(await asyncio.gather(quick(), slow.aio()))

    first = apps(flow)
    run = first.start(flow)
    gate.wait_for_arrival()
    eventually(lambda: recorded(run) == ["quick"], "the quick one is recorded")
    second = apps(flow)
    crash(first, reaped_by=second)
    assert result(second.run(run.id)) == ["quick", "slow"]
    gate.open()
    assert sorted(calls) == ["quick", "slow", "slow"]
    assert main(second.run(run.id)).attempt == 2
