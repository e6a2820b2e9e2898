"""Publishing from everywhere, and durable calls where nothing can record them."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest

import detent
import detent.aio
from detent import Decider, Decision, EffectContext, Projection, Recorded, View, step, workflow
from detent.errors import InvalidArgument, NotInRun, NotSerializable
from tests.functions.crunching import publish_elsewhere
from tests.functions.world import Apps, Gate, crash, eventually, failure, result

# Steps


@pytest.mark.parametrize("kind", ["inline", "spawned", "async", "async, awaited", "async in sync"])
def test_a_step_publishes_while_it_runs(apps: Apps, kind: str) -> None:
    gate = Gate()

    @step
    def load() -> None:
        detent.publish("progress", 1)
        detent.publish("progress", {"rows": 2})
        gate.pass_through()

    @step
    async def aload() -> None:
        if kind == "async, awaited":
            await detent.aio.publish("progress", {"rows": 2})
        else:
            detent.publish("progress", {"rows": 2})
        await asyncio.get_running_loop().run_in_executor(None, gate.pass_through)

    @workflow(id="flow")
    def flow() -> None:
        if kind == "spawned":
            load.spawn().result()
        elif kind == "inline":
            load()
        else:
            aload.sync()

    @workflow(id="flow")
    async def aflow() -> None:
        await aload()

    chosen: Any = aflow if kind in ("async", "async, awaited") else flow
    run = apps(chosen).start(chosen)
    gate.wait_for_arrival()
    eventually(lambda: run.published("progress") == {"rows": 2}, "the value is published")
    gate.open()
    result(run)
    assert run.published("progress") == {"rows": 2}
    assert "published/progress" not in [item.node for item in run.executions()]


def test_what_was_published_last_counts_wherever_that_was(apps: Apps) -> None:
    @step
    def load(stage: str) -> None:
        detent.publish("stage", stage)

    @workflow
    def flow() -> list[str]:
        load("first")
        detent.publish("stage", "second")
        detent.receive("go on")
        load("third")
        detent.receive("go on")
        detent.publish("stage", "fourth")
        return ["done"]

    run = apps(flow).start(flow)
    for stage in ("second", "third"):
        eventually(lambda stage=stage: run.published("stage") == stage, stage)  # type: ignore[misc]
        run.send("go on")
    result(run)
    assert run.published("stage") == "fourth"


def test_a_value_is_durable_when_the_step_is(apps: Apps) -> None:
    @step
    def load(number: int) -> None:
        detent.publish("number", number)

    @workflow
    def flow() -> None:
        for number in range(20):
            load(number)

    run = apps(flow).start(flow)
    result(run)
    assert run.published("number") == 19


def test_a_failed_step_has_published_what_it_published(apps: Apps) -> None:
    @step
    def load() -> None:
        detent.publish("stage", "half")
        raise ConnectionError

    @workflow
    def flow() -> None:
        load()

    run = apps(flow).start(flow)
    failure(run)
    assert run.published("stage") == "half"


def test_publishing_in_a_transactional_step_does_not_hold_it_up(apps: Apps) -> None:
    @step(transactional=True)
    def load(tx: Any) -> int:
        tx.execute("SELECT 1")
        detent.publish("stage", "inside")
        return 1

    @workflow
    def flow() -> int:
        return load()

    run = apps(flow).start(flow)
    assert result(run) == 1
    eventually(lambda: run.published("stage") == "inside", "it is published")


def test_publishing_is_no_progress_of_a_step_that_kills_its_worker(apps: Apps) -> None:
    begun = threading.Semaphore(0)
    release = threading.Event()

    @step
    def deadly() -> None:
        detent.publish("stage", "begun")
        begun.release()
        release.wait(20)

    @workflow
    def flow() -> None:
        deadly()

    app = apps(flow)
    run = app.start(flow)
    for _ in range(2):
        assert begun.acquire(timeout=20)
        eventually(lambda: run.published("stage") == "begun", "it is published")
        other = apps(flow)
        crash(app, reaped_by=other, max_recoveries=1)
        app = other
    eventually(lambda: run.refresh().state == "paused", "it is paused")
    release.set()


@pytest.mark.parametrize("what", ["value", "name"])
def test_what_cannot_be_published_is_an_error_of_the_step(apps: Apps, what: str) -> None:
    @step
    def load() -> None:
        if what == "value":
            detent.publish("stage", object())
        else:
            detent.publish("x" * 300, 1)

    @workflow
    def flow() -> None:
        load()

    assert isinstance(failure(apps(flow).start(flow)), NotSerializable | InvalidArgument)


# Nodes and effects


def test_a_node_publishes_while_it_runs(apps: Apps) -> None:
    gate = Gate()

    class Flow(detent.Workflow):
        @step
        def load(self) -> None:
            detent.publish("progress", 50)
            gate.pass_through()

        @step
        async def aload(self) -> None:
            await detent.aio.publish("progress", 100)

    run = apps(Flow).start(Flow)
    gate.wait_for_arrival()
    eventually(lambda: run.published("progress") == 50, "the value is published")
    gate.open()
    result(run)
    assert run.published("progress") == 100


@dataclass(frozen=True)
class Ship:
    id: str


@dataclass(frozen=True)
class Shipped:
    id: str


@dataclass(frozen=True)
class Label:
    id: str


class Parcel(Decider[int, Ship, Shipped, Label]):
    type = "publishing-parcel"

    def initial(self) -> int:
        return 0

    def instance_id(self, input: Ship) -> str:
        return input.id

    def decide(self, state: int, input: Ship, now: datetime) -> Decision:
        return Decision.event(Shipped(input.id)).with_effect(Label(input.id))

    def evolve(self, state: int, event: Shipped) -> int:
        return state + 1

    def handle(self, effect: Label, ctx: EffectContext) -> None:
        detent.publish("label", "printed")


def test_an_effect_publishes_for_its_instance(apps: Apps) -> None:
    app = apps(Parcel)
    app.execute(Parcel, Ship("p-1"))
    run = app.run("publishing-parcel:p-1")
    eventually(lambda: run.published("label") == "printed", "the value is published")


# Where nothing can be recorded


def test_publishing_in_another_process_is_refused(apps: Apps) -> None:
    @workflow
    def flow() -> None:
        publish_elsewhere(1)

    error = failure(apps(flow).start(flow))
    assert isinstance(error, NotInRun)
    assert "executor='process'" in str(error)


class Telling(Projection):
    name = "telling"
    deciders = (Parcel,)

    def apply(self, event: Recorded[Any], view: View) -> None:
        detent.publish("stage", "in a projection")


def test_publishing_in_a_projection_is_refused(apps: Apps) -> None:
    app = apps(Parcel, Telling)
    app.execute(Parcel, Ship("p-1"))
    eventually(lambda: app.projections.status()[0].blocked, "the projection is blocked")
    error = app.projections.status()[0].error
    assert error is not None
    assert "NotInRun" in str(error)


def test_publishing_in_a_thread_of_a_step_is_refused_unless_it_carries_the_context(apps: Apps) -> None:
    errors: list[BaseException] = []

    def publish() -> None:
        try:
            detent.publish("stage", "in a thread")
        except BaseException as error:
            errors.append(error)

    @step
    def load(carry: bool) -> None:
        run_in_context = contextvars.copy_context().run
        thread = threading.Thread(target=(lambda: run_in_context(publish)) if carry else publish)
        thread.start()
        thread.join()

    @workflow
    def flow(carry: bool) -> None:
        load(carry)

    app = apps(flow)
    run = app.start(flow, True)
    result(run)
    assert (errors, run.published("stage")) == ([], "in a thread")
    result(app.start(flow, False))
    assert [type(error) for error in errors] == [NotInRun]
    assert "copy_context" in str(errors[0])


@pytest.mark.parametrize("what", ["receive", "send", "spawn", "step_guard"])
@pytest.mark.parametrize("where", ["step", "spawned", "node"])
def test_a_durable_call_that_cannot_be_recorded_is_refused(apps: Apps, what: str, where: str) -> None:
    def ask() -> None:
        if what == "receive":
            detent.receive("x", timeout=timedelta(seconds=1))
        elif what == "send":
            detent.send("r-1", "x")
        elif what == "spawn":
            other.spawn()
        else:
            with detent.step_guard("x"):
                pass

    @step
    def other() -> None: ...

    @step
    def load() -> str:
        try:
            ask()
        except NotInRun as error:
            return str(error)
        return "nothing"

    @workflow
    def flow() -> str:
        return load.spawn().result() if where == "spawned" else load()

    class Flow(detent.Workflow):
        @step
        def node(self) -> str:
            ask()
            return "nothing"

    if where != "node":
        assert "works only in a running workflow" in result(apps(flow, other).start(flow))
    else:
        error = failure(apps(Flow, other).start(Flow))
        assert isinstance(error.__cause__, NotInRun)


def test_outside_of_runs_a_published_value_has_no_reader() -> None:
    detent.publish("stage", "in a unit test")
    asyncio.run(detent.aio.publish("stage", "in a unit test"))


def test_a_watcher_sees_values_live_and_the_last_one(apps: Apps) -> None:
    gate = Gate()

    @step
    def work() -> None:
        detent.publish("progress", 1)
        gate.pass_through()
        detent.publish("progress", 2)

    @workflow
    def flow() -> None:
        detent.publish("progress", 0)
        work()
        detent.publish("progress", "done")

    app = apps(flow, work)
    run = app.start(flow)
    gate.wait_for_arrival()
    reader = apps(worker=False).run(run.id)
    watched = reader.watch("progress")
    eventually(lambda: run.published("progress") == 1, "the step has published")
    assert next(watched) == 1
    gate.open()
    assert list(watched)[-1] == "done"
    assert list(reader.watch("progress")) == ["done"]
    assert list(reader.watch("other")) == []


def test_a_watcher_in_async_code(url: str) -> None:
    @workflow
    async def flow() -> None:
        for number in range(3):
            await detent.aio.publish("progress", number)

    async def main() -> None:
        async with detent.AsyncApp(url, include=[flow]) as app:
            run = await app.start(flow)
            seen = [value async for value in run.watch("progress")]
            assert seen[-1] == 2
            assert seen == sorted(seen)

    asyncio.run(main())


def test_a_workflow_cannot_watch(apps: Apps) -> None:
    @workflow
    def flow(other: str) -> None:
        next(app.run(other).watch("progress"))

    app = apps(flow)
    run = app.options(id="watching-itself").start(flow, "watching-itself")
    assert "watch in a step of it" in str(failure(run))
