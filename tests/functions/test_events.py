"""Subscribers receive what happens to runs, executions and workers, after it is durable."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

import detent
from detent import Retry, Transaction, events, step, workflow
from detent.events import (
    Claimed,
    Committed,
    ExecutionBegan,
    ExecutionEnded,
    ExecutionEvent,
    ExecutionParked,
    ExecutionRetried,
    RunCanceled,
    RunEvent,
    RunFailed,
    RunFinished,
    RunPaused,
    RunResumed,
    RunStarted,
    WorkerDown,
    WorkerEvent,
    WorkerUp,
)
from tests.functions.world import (
    Apps,
    Gate,
    Seen,
    crash,
    failure,
    reap,
    received,
    result,
    wait_for,
    wait_parked,
)

SHORTLY = timedelta(milliseconds=1)


def names(found: list[Any]) -> list[str]:
    return [type(event).__name__ for event in found]


def subscribed(app: detent.App, *kinds: type[events.Event]) -> Seen:
    seen = Seen()
    app.subscribe(seen, events=kinds or None)
    return seen


@step
def charge(amount: int) -> int:
    return amount


@step(retry=Retry(attempts=2, first=SHORTLY))
def flaky(ctx: detent.Context) -> int:
    if ctx.attempt == 1:
        raise ConnectionError("no route")
    return ctx.attempt


@step
async def acharge(amount: int) -> int:
    return amount


@workflow
def flow() -> int:
    return charge(1) + flaky()


@workflow
async def aflow() -> int:
    return await acharge(1) + await flaky.aio()


@workflow
def failing() -> None:
    raise ValueError("over the limit")


@workflow
def waiting() -> str:
    return str(detent.receive("go"))


@workflow
def parent() -> str:
    return waiting()


@pytest.mark.parametrize("chosen", [flow, aflow], ids=["def", "async def"])
def test_a_run_its_executions_and_its_steps_are_reported_in_order(apps: Apps, chosen: Any) -> None:
    app = apps(chosen, charge, acharge, flaky)
    seen = subscribed(app, RunEvent)
    run = app.start(chosen)
    assert result(run) == 3
    seen.wait(1, RunFinished)
    first = "charge" if chosen is flow else "acharge"
    told = [(type(event).__name__, getattr(event, "node", None)) for event in seen.events]
    assert told == [
        ("RunStarted", None),
        ("ExecutionBegan", "main"),
        ("ExecutionBegan", first),
        ("ExecutionEnded", first),
        ("ExecutionBegan", "flaky"),
        ("ExecutionRetried", "flaky"),
        ("ExecutionBegan", "flaky"),
        ("ExecutionEnded", "flaky"),
        ("ExecutionEnded", "main"),
        ("RunFinished", None),
    ]
    assert {event.run_id for event in seen.events} == {run.id}
    assert {(event.type, event.queue) for event in seen.events} == {(chosen.name, "default")}
    assert app.engine.worker is not None
    assert {event.worker for event in seen.of(ExecutionEvent)} == {app.engine.worker.id}
    [retried] = seen.of(ExecutionRetried)
    assert (retried.attempt, retried.kind, retried.outcome) == (1, "step", "reattempted_by_exception")
    assert retried.error.type == "builtins.ConnectionError"
    assert "no route" in retried.error.traceback
    assert retried.wait <= timedelta(seconds=1)
    last = seen.of(ExecutionEnded)[1]
    assert (last.attempt, last.outcome, last.error) == (2, "success", None)
    assert last.duration is not None


def test_what_an_event_reports_is_durable_when_it_is_received(apps: Apps) -> None:
    app = apps(flow, failing, waiting, charge, flaky)
    states: dict[str, list[str]] = {}

    def look(event: RunEvent) -> None:
        states.setdefault(event.run_id, []).append(app.run(event.run_id).state)

    app.subscribe(look, events=(RunFinished, RunFailed, RunPaused))
    runs: list[detent.Run[Any]] = [app.start(flow), app.start(failing), app.start(waiting)]
    runs[2].pause()
    result(runs[0])
    failure(runs[1])
    received(app)
    assert [states[run.id] for run in runs] == [["finished"], ["failed"], ["paused"]]


def test_a_run_that_fails_is_reported_with_its_error(apps: Apps) -> None:
    app = apps(failing)
    seen = subscribed(app, RunFailed)
    run = app.start(failing)
    failure(run)
    [failed] = seen.wait(1, RunFailed)
    assert (failed.run_id, failed.error.type) == (run.id, "builtins.ValueError")
    assert failed.error.message == "over the limit"
    assert 'raise ValueError("over the limit")' in failed.error.traceback


def test_a_run_that_waits_reports_that_it_freed_its_worker(apps: Apps) -> None:
    app = apps(waiting)
    seen = subscribed(app, ExecutionEvent)
    run = app.start(waiting)
    wait_parked(run)
    run.send("go", "on")
    assert result(run) == "on"
    seen.wait(1, ExecutionEnded)
    assert names(seen.events) == ["ExecutionBegan", "ExecutionParked", "ExecutionBegan", "ExecutionEnded"]
    assert seen.of(ExecutionParked)[0].until is None


def test_control_of_a_run_is_reported_with_its_reason(apps: Apps) -> None:
    app = apps(waiting, worker=False)
    seen = subscribed(app, RunEvent)
    run = app.start(waiting)
    run.pause(reason="a look first")
    run.resume()
    run.cancel(reason="not wanted")
    seen.wait(1, RunCanceled)
    assert names(seen.events) == ["RunStarted", "RunPaused", "RunResumed", "RunCanceled"]
    assert (seen.of(RunPaused)[0].reason, seen.of(RunPaused)[0].error) == ("a look first", None)
    assert (seen.of(RunCanceled)[0].reason, seen.of(RunCanceled)[0].type) == ("not wanted", "waiting")


def test_children_are_reported_with_their_parent_and_canceled_with_it(apps: Apps) -> None:
    app = apps(parent, waiting)
    seen = subscribed(app, RunStarted, RunCanceled)
    run = app.start(parent)
    started = seen.wait(2, RunStarted)
    assert [(event.type, event.parent) for event in started] == [("parent", None), ("waiting", run.id)]
    run.cancel(reason="not wanted")
    canceled = seen.wait(2, RunCanceled)
    assert {(event.run_id, event.type) for event in canceled} == {
        (event.run_id, event.type) for event in started
    }


@pytest.mark.parametrize("policy", ["pause", "cancel"])
def test_a_run_that_a_step_stops_is_reported_with_the_error(apps: Apps, policy: Any) -> None:
    @step(on_exception=policy)
    def stop() -> None:
        raise ConnectionError("no route")

    @workflow
    def stopping() -> None:
        waiting.spawn()
        stop()

    app = apps(stopping, waiting)
    seen = subscribed(app, RunEvent)
    run = app.start(stopping)
    wait_for(run, "paused", "canceled")
    kind = RunPaused if policy == "pause" else RunCanceled
    found = seen.wait(1 if policy == "pause" else 2, kind)
    [own] = [event for event in found if event.run_id == run.id]
    assert own.error.type == "builtins.ConnectionError"
    if policy == "cancel":  # its child with it
        [child] = [event for event in found if event.run_id != run.id]
        assert (child.type, child.reason) == ("waiting", "its parent was canceled")


def test_spawned_steps_and_transactional_steps_are_reported(apps: Apps) -> None:
    @step(transactional=True)
    def debit(tx: Transaction, amount: int) -> int:
        return amount

    @workflow
    def spawning() -> int:
        return flaky.spawn().result() + debit(5) + debit.spawn(6).result()

    app = apps(spawning, flaky, debit)
    seen = subscribed(app, ExecutionEvent)
    assert result(app.start(spawning)) == 13
    received(app)
    told = [(event.node, event.kind, event.attempt, event.outcome) for event in seen.of(ExecutionEnded)]
    assert told[:2] == [("flaky", "step", 2, "success"), ("debit", "step", 1, "success")]
    assert [(node, outcome) for node, _, _, outcome in told[2:]] == [
        ("debit#2", "success"),
        ("main", "success"),
    ]
    assert [event.node for event in seen.of(ExecutionRetried)] == ["flaky"]


def test_nodes_of_a_graph_are_reported_by_the_names_that_people_know(apps: Apps) -> None:
    class Order(detent.Workflow):
        @step
        def pay(self) -> int:
            return 1

        @step(on_exception=detent.ExceptionPolicy("pause"))
        def ship(self) -> None:
            raise ConnectionError("no truck")

    app = apps(Order)
    seen = subscribed(app, RunEvent)
    run = app.start(Order)
    wait_for(run, "paused")
    [paused] = seen.wait(1, RunPaused)
    assert (paused.type, paused.error.message) == (run.type, "no truck")
    assert [(event.node, event.outcome) for event in seen.of(ExecutionEnded)] == [
        ("pay", "success"),
        ("ship", "paused_by_exception"),
    ]
    assert [event.node for event in seen.of(ExecutionBegan)] == ["pay", "ship"]
    run.skip("ship")
    seen.wait(1, RunFinished)
    assert names(seen.of(RunResumed, RunFinished)) == ["RunResumed", "RunFinished"]


def test_a_worker_reports_that_it_is_up_what_it_claims_and_that_it_is_down(apps: Apps) -> None:
    app = apps(flow, charge, flaky, worker=False)
    run = app.start(flow)
    seen = subscribed(app, WorkerEvent, Committed)
    app.open(worker=True)
    result(run)
    app.close()
    [up] = seen.of(WorkerUp)
    [down] = seen.of(WorkerDown)
    assert (up.worker, up.queues, up.concurrency) == (down.worker, ("default",), 100)
    assert (down.reason, down.executions) == ("stopped", 0)
    assert sum(event.count for event in seen.of(Claimed)) == 1
    assert all(event.operations >= 1 and event.duration > timedelta(0) for event in seen.of(Committed))
    assert seen.of(Committed) != []


def test_what_a_dead_worker_left_is_reported_by_the_worker_that_finds_it_dead(
    apps: Apps, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()

    @step
    def hang() -> None:
        gate.pass_through()

    @workflow
    def hanging() -> None:
        hang()

    first = apps(hanging, hang)
    run = first.start(hanging)
    gate.wait_for_arrival()
    second = apps(hanging, hang, worker=False)
    seen = subscribed(second, RunEvent)
    crash(first, reaped_by=second, max_recoveries=5)
    [retried] = seen.wait(1, ExecutionRetried)
    assert (retried.run_id, retried.node, retried.outcome) == (run.id, "main", "recovered")
    third = apps(hanging, hang)
    gate.wait_for_arrival()
    with caplog.at_level(logging.ERROR, logger="detent.worker"):
        crash(third, reaped_by=second, max_recoveries=1)
    [paused] = seen.wait(1, RunPaused)
    assert (paused.run_id, paused.type) == (run.id, "hanging")
    assert paused.error.type.endswith("TooManyRecoveries")
    assert any(vars(record).get("run") == run.id for record in caplog.records)
    gate.open()


def test_a_settle_that_lost_its_lease_is_not_reported(apps: Apps) -> None:
    gate = Gate()

    @step
    def hang() -> None:
        gate.pass_through()

    @workflow
    def hanging() -> None:
        hang()

    first = apps(hanging, hang)
    seen = subscribed(first, ExecutionEnded, RunFinished)
    first.start(hanging)
    gate.wait_for_arrival()
    second = apps(hanging, hang)
    others = subscribed(second, RunFinished)
    reap(first, reaped_by=second)
    gate.open()
    others.wait(1, RunFinished)
    first.close()
    assert seen.events == []


def test_a_subscriber_that_raises_disturbs_no_run(apps: Apps, caplog: pytest.LogCaptureFixture) -> None:
    app = apps(flow, charge, flaky)

    def broken(event: events.Event) -> None:
        raise RuntimeError("in the subscriber")

    app.subscribe(broken)
    seen = subscribed(app, RunFinished)
    assert result(app.start(flow)) == 3
    seen.wait(1, RunFinished)
    received(app)
    told = [record for record in caplog.records if "broken" in record.message]
    assert len(told) == 1


def test_a_subscriber_may_use_the_app(apps: Apps) -> None:
    app = apps(failing, flow, charge, flaky)
    started: list[detent.Run[Any]] = []
    app.subscribe(lambda event: started.append(app.start(flow)), events=(RunFailed,))
    failure(app.start(failing))
    received(app)
    assert [result(run) for run in started] == [3]


def test_who_has_unsubscribed_receives_nothing(apps: Apps) -> None:
    app = apps(flow, charge, flaky)
    seen = Seen()
    unsubscribe = app.subscribe(seen)
    unsubscribe()
    result(app.start(flow))
    assert (seen.events, app.engine.observer.active) == ([], False)


def test_runs_that_exist_already_are_not_reported_as_started(apps: Apps) -> None:
    app = apps(waiting, worker=False)
    seen = subscribed(app, RunStarted)
    app.options(id="one").start(waiting)
    app.options(id="one").start(waiting)
    app.start_many(waiting, [(), ()])
    received(app)
    assert len(seen.events) == 3


def test_an_async_app_has_sync_and_async_subscribers(url: str) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        received: list[RunEvent] = []
        seen = Seen()

        async def on_loop(event: RunEvent) -> None:
            assert asyncio.get_running_loop() is loop
            await asyncio.sleep(0)
            received.append(event)

        app = detent.AsyncApp(url, include=[aflow, failing, acharge, flaky])
        app.subscribe(on_loop, events=(RunFinished, RunFailed))
        unsubscribe = app.subscribe(seen, events=(RunFinished, RunFailed))
        async with app:
            assert await (await app.start(aflow)).result(timeout=20) == 3
            with pytest.raises(ValueError, match="over the limit"):
                await (await app.start(failing)).result(timeout=20)
        assert names(received) == ["RunFinished", "RunFailed"]
        assert seen.events == received
        unsubscribe()

    asyncio.run(main())
