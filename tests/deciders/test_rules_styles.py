"""Deciders, durable functions and graphs call each other: once, over crashes, replays and attempts."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import detent
from detent import AsyncApp, Retry, Workflow, aio, step, workflow
from detent.definitions.context import frame_var, step_var
from detent.testing import TestingApp, crash_everywhere, crashes
from tests.deciders.orders import AT_ONCE, Fail, Log, Mail, Say, Undecidable, letters, log, sql, texts
from tests.functions.world import Apps, Gate, crash, eventually, result

TWICE = Retry(attempts=2, first=timedelta(0), jitter=0)


@workflow
def double(number: int) -> int:
    return 2 * number


class Pair(Workflow, name="pair"):
    @step
    def first(self) -> str:
        return "one"

    @step
    def second(self) -> str:
        return "two"


# -- From an effect ------------------------------------------------------------------------------------


def test_an_effect_starts_runs_once_over_its_attempts(apps: Apps) -> None:
    runs: list[list[str]] = []

    def on_mail(effect: Mail, ctx: Any) -> Any:
        started = [app.start(double, 3), app.start(Pair), app.start(double, 4)]
        runs.append([run.id for run in started])
        if ctx.attempt < 3:
            raise ConnectionError("after the deed")
        return Say("l", str(result(started[0]) + result(started[2])))

    app = apps(decider := log(on_mail, retry=AT_ONCE), double, Pair)
    app.execute(decider, Say("l", "a", mails=["one"]))
    eventually(lambda: texts(app, decider) == ["a", "14"], "it has answered")
    assert len(runs) == 3
    assert runs[0] == runs[1] == runs[2]
    assert sql(app, "SELECT COUNT(*) FROM detent_runs WHERE kind <> 'decider'") == [(3,)]


def test_an_effect_that_dies_behind_its_start_starts_nothing_twice(apps: Apps) -> None:
    gate = Gate()
    runs: list[str] = []

    def on_mail(effect: Mail, ctx: Any) -> Any:
        serving = first if not runs else second
        runs.append(serving.start(double, 3).id)
        if len(runs) == 1:
            gate.pass_through()
        return Say("l", "sent")

    decider = log(on_mail)
    first = apps(decider, double)
    first.execute(decider, Say("l", "a", mails=["one"]))
    gate.wait_for_arrival()
    second = apps(decider, double)
    crash(first, reaped_by=second)
    eventually(lambda: texts(second, decider) == ["a", "sent"], "it was sent")
    gate.open()
    assert len(set(runs)) == 1


def test_an_async_effect_starts_runs_and_executes_inputs(apps: Apps, url: str) -> None:
    class Starting(Log):
        type = "log"
        retry = AT_ONCE

        async def handle(self, effect: Mail, ctx: Any) -> Any:
            run = await app.start(double, 3)
            await app.execute(Starting, Say("m", "from an effect"))
            if ctx.attempt == 1:
                raise ConnectionError("after the deed")
            return Say("l", str(await run.result(timeout=20)))

    app = AsyncApp(url, include=[Starting, double])

    async def main() -> None:
        async with app:
            await app.execute(Starting, Say("l", "a", mails=["one"]))
            while len(await app.events(Starting, "l")) < 2:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), 20))
    other = apps(Starting, worker=False)
    assert texts(other, Starting) == ["a", "6"]
    assert texts(other, Starting, "m") == ["from an effect"]


def test_an_effect_executes_inputs_once_over_its_attempts_and_sees_the_same_events(apps: Apps) -> None:
    seen: list[list[Any]] = []

    def on_mail(effect: Mail, ctx: Any) -> Any:
        seen.append([app.execute(decider, Say("m", text)) for text in "xy"])
        if ctx.attempt < 3:
            raise ConnectionError("after the deed")

    app = apps(decider := log(on_mail, retry=AT_ONCE))
    app.execute(decider, Say("l", "a", mails=["one"]))
    eventually(lambda: letters(app, "log:l", "effect")[-1] == ("completed", "success"), "it is done")
    assert texts(app, decider, "m") == ["x", "y"]
    assert len(seen) == 3
    assert seen[0] == seen[1] == seen[2]
    assert [events[0].text for events in seen[0]] == ["x", "y"]


# -- From workflows, on every database -----------------------------------------------------------------


def test_a_workflow_executes_inputs_once_over_a_crash(apps: Apps) -> None:
    gate = Gate()
    serving: list[detent.App] = []

    @step
    def wait() -> None:
        if len(serving) == 1:
            gate.pass_through()

    @workflow
    def flow() -> list[str]:
        told = serving[-1].execute(Log, Say("l", "a"))
        wait()
        told += serving[-1].execute(Log, Say("l", "b"))
        return [event.text for event in told]  # type: ignore[union-attr]

    first = apps(Log, flow)
    serving.append(first)
    run = first.start(flow)
    gate.wait_for_arrival()
    second = apps(Log, flow)
    serving.append(second)
    crash(first, reaped_by=second)
    assert result(second.run(run.id)) == ["a", "b"]
    gate.open()
    assert texts(second, Log) == ["a", "b"]


def test_an_async_workflow_executes_inputs_once_over_a_replay(apps: Apps, url: str) -> None:
    @workflow
    async def flow() -> list[str]:
        told = await app.execute(Log, Say("l", "a"))
        await aio.sleep(0.05)
        told += await app.execute(Log, Say("l", "b"))
        return [event.text for event in told]  # type: ignore[union-attr]

    app = AsyncApp(url, include=[Log, flow])

    async def main() -> Any:
        async with app:
            return await (await app.start(flow)).result(timeout=20)

    assert asyncio.run(main()) == ["a", "b"]
    assert texts(apps(Log, worker=False), Log) == ["a", "b"]


def test_a_step_that_is_tried_again_executes_its_inputs_once(apps: Apps) -> None:
    seen: list[Any] = []

    @step(retry=TWICE)
    def work() -> None:
        seen.append(app.execute(Log, Say("l", "a")))
        if len(seen) == 1:
            raise ConnectionError("after the deed")

    @workflow
    def flow() -> None:
        work()
        work()

    app = apps(Log, flow)
    result(app.start(flow))
    assert texts(app, Log) == ["a", "a"], "each of the two steps once"
    assert seen[0] == seen[1], "another attempt sees what the first has seen"
    assert all(len(events) == 1 for events in seen)


def test_a_node_that_is_tried_again_executes_its_inputs_once(apps: Apps) -> None:
    seen: list[Any] = []

    class Flow(Workflow, name="flow"):
        @step(retry=TWICE)
        def work(self) -> None:
            seen.append(app.execute(Log, Say("l", "a")))
            if len(seen) == 1:
                raise ConnectionError("after the deed")

    app = apps(Log, Flow)
    result(app.start(Flow))
    assert texts(app, Log) == ["a"]
    assert seen[0] == seen[1]
    assert len(seen[0]) == 1


def test_an_input_that_a_workflow_executes_is_a_step_of_it(apps: Apps) -> None:
    @workflow
    def flow() -> None:
        app.execute(Log, Say("l", "a"))

    app = apps(Log, flow)
    run = app.start(flow)
    result(run)
    [recorded] = [one for one in run.executions() if one.kind == "step"]
    assert "log" in recorded.node


def test_an_input_that_cannot_be_decided_fails_the_workflow_that_executes_it(apps: Apps) -> None:
    @workflow
    def flow() -> str:
        try:
            app.execute(Log, Fail("l"))
        except Undecidable as error:
            return str(error)
        return "?"

    app = apps(Log, flow)
    assert result(app.start(flow)) == "in l"


# -- Crashing at every point ---------------------------------------------------------------------------


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Callable[[], TestingApp]:
    """Gives the app that runs the code which asks: a trial of crashes has several."""
    made: list[TestingApp] = []

    class Noted(TestingApp):
        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **settings)
            made.append(self)

    monkeypatch.setattr(crashes, "TestingApp", Noted)

    def find() -> TestingApp:
        inside: Any = step_var.get()
        services = inside._backend.services if inside is not None else frame_var.get().services  # type: ignore[union-attr]
        return next(app for app in made if app.engine.services is services)

    return find


Here = Callable[[], TestingApp]


def test_a_function_that_executes_inputs_is_crash_safe(here: Here) -> None:
    @step
    def all_texts() -> list[str]:
        return texts(here(), Log)

    @workflow
    def flow() -> list[str]:
        first = here().execute(Log, Say("l", "a"))
        second = here().execute(Log, Say("l", "b", mails=["m"]), input_id="mine")
        return [first[0].text, second[0].text, *all_texts()[:2]]  # type: ignore[union-attr]

    assert crash_everywhere(flow, include=[Log]) > 6


def test_an_async_function_that_executes_inputs_is_crash_safe(here: Here) -> None:
    @step
    def all_texts() -> list[str]:
        return texts(here(), Log)

    @workflow
    async def flow() -> list[str]:
        app = AsyncApp.__new__(AsyncApp)
        app._sync = here()
        told = [await app.execute(Log, Say("l", text)) for text in "ab"]
        return [*(events[0].text for events in told), *all_texts()]  # type: ignore[union-attr]

    assert crash_everywhere(flow, include=[Log]) > 6


def test_a_step_that_executes_inputs_is_crash_safe(here: Here) -> None:
    @step
    def work() -> list[str]:
        told = [here().execute(Log, Say("l", text)) for text in "ab"]
        return [*(events[0].text for events in told), *texts(here(), Log)]  # type: ignore[union-attr]

    @workflow
    def flow() -> list[str]:
        return work()

    assert crash_everywhere(flow, include=[Log]) > 4


def test_a_graph_whose_nodes_execute_inputs_is_crash_safe(here: Here) -> None:
    class Flow(Workflow, name="flow"):
        @step
        def first(self) -> None:
            here().execute(Log, Say("l", "a"))

        @step
        def second(self) -> list[str]:
            here().execute(Log, Say("l", "b"))
            return texts(here(), Log)

    assert crash_everywhere(Flow, include=[Log]) > 4


def test_a_function_that_enqueues_inputs_is_crash_safe(here: Here) -> None:
    @step
    def queued() -> list[str]:
        eventually(lambda: sql(here(), "SELECT COUNT(*) FROM detent_events")[0][0] >= 2, "both are decided")
        return texts(here(), Log)

    @workflow
    def flow() -> list[str]:
        for text in "ab":
            here().enqueue_input(Log, Say("l", text))
        return queued()

    assert crash_everywhere(flow, include=[Log]) > 4


def test_crashes_of_the_kit_count_the_commits_of_decisions(here: Here) -> None:
    """Without them the tests above would prove less than they say."""

    @workflow
    def flow() -> None:
        return None

    @workflow
    def executing() -> None:
        here().execute(Log, Say("l", "a"))

    assert crash_everywhere(executing, include=[Log]) >= crash_everywhere(flow, include=[Log]) + 4
