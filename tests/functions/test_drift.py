"""function_drift: what a run in the database would meet in the code of today."""

import asyncio
from typing import Any

import pytest

import detent
from detent import step, workflow
from detent.app.drift import function_drift
from detent.errors import RunNotFound, UnknownDefinition
from detent.kernel.drift import Kind
from tests.functions.world import Apps, eventually, result, wait_parked

calls: list[str] = []


@step
def work(name: str) -> str:
    calls.append(name)
    return name


@workflow
def child(name: str) -> str:
    return work(name)


@workflow(id="flow")
def flow() -> list[Any]:
    values = [work("a"), child("b"), *work.map(["c", "d"]), str(detent.uuid())]
    return [*values, detent.receive("go")]


@workflow(id="flow")
async def aflow() -> list[Any]:
    values = list(await asyncio.gather(work.aio("a"), child.aio("b"), work.aio.map(["c", "d"])))
    return [*values, str(await detent.aio.uuid()), await detent.aio.receive("go")]


def wait_receiving(run: detent.Run[Any]) -> None:
    """Return when the run has come to its last wait."""
    eventually(lambda: any(item.node == "receive/go" for item in run.executions()), "it receives")
    wait_parked(run)


@pytest.mark.parametrize("chosen", [flow, aflow], ids=["def", "async def"])
def test_a_run_does_not_drift_from_the_code_that_began_it(apps: Apps, chosen: Any) -> None:
    app = apps(chosen, child, work)
    run = app.start(chosen)
    wait_receiving(run)
    calls.clear()
    assert function_drift(app.engine, run.id) == []
    run.send("go", 1)
    result(run)
    assert function_drift(app.engine, run.id) == []
    assert calls == []


def test_new_code_is_told_what_it_does_to_a_run_in_flight(apps: Apps) -> None:
    @workflow(id="flow")
    def new() -> list[str]:
        return [work("A"), child("b"), detent.receive("stop")]

    run = apps(flow, child, work).start(flow)
    wait_receiving(run)
    app = apps(new, child, work, worker=False)
    drift = function_drift(app.engine, run.id)
    assert [(each.kind, each.step) for each in drift] == [
        (Kind.ARGUMENTS, "work"),
        (Kind.ADDED, "receive/stop"),
    ]
    assert run.refresh().state == "ready"


def test_what_the_app_does_not_include_is_told(apps: Apps) -> None:
    run = apps(flow, child, work).start(flow)
    wait_receiving(run)
    app = apps(child, worker=False)
    with pytest.raises(UnknownDefinition):
        function_drift(app.engine, run.id)
    with pytest.raises(RunNotFound):
        function_drift(app.engine, "no such run")
