"""What a run waits for, and finding runs by that."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import detent
from detent import Retry, step, workflow
from detent.errors import InvalidArgument
from tests.functions.world import Apps, Gate, eventually, wait_parked


@workflow
def approve(timeout: float | None = None) -> str:
    try:
        return str(detent.receive("approval", timeout=timeout))
    except detent.errors.ReceiveTimeout:
        detent.sleep(hours=1)
        return "late"


@workflow
def nap() -> None:
    detent.sleep(hours=1)


def kinds(run: detent.Run[Any]) -> list[tuple[str, str | None]]:
    return [(reason.kind, reason.name) for reason in run.waiting_for]


def test_a_run_says_that_it_waits_for_a_message(apps: Apps) -> None:
    app = apps(approve)
    run = app.start(approve)
    wait_parked(run)
    [reason] = run.waiting_for
    assert (reason.kind, reason.name, str(reason)) == ("message", "approval", "the message 'approval'")
    run.send("approval", "yes")
    assert run.result(timeout=20) == "yes"
    assert run.waiting_for == []


def test_a_run_says_until_when_it_sleeps(apps: Apps) -> None:
    run = apps(nap).start(nap)
    wait_parked(run)
    [reason] = run.waiting_for
    assert reason.kind == "timer"
    assert reason.until is not None
    assert reason.until - run.created_at > timedelta(minutes=59)


def test_a_wait_that_has_timed_out_is_not_named(apps: Apps) -> None:
    app = apps(approve)
    run = app.start(approve, 0.1)
    eventually(lambda: kinds(run) == [("timer", None)], "it sleeps")
    assert [found.id for found in app.runs.waiting()] == [run.id]
    assert app.runs.waiting(on="approval") == []


def test_a_run_says_that_it_waits_for_children_and_steps(apps: Apps) -> None:
    gate = Gate()

    @step
    def slow() -> None:
        gate.pass_through()

    @workflow
    def child() -> None:
        detent.receive("go")

    @workflow
    def parent() -> None:
        one, two = slow.spawn(), child.spawn()
        one.result()
        two.result()

    app = apps(parent, child, slow)
    run = app.start(parent)
    gate.wait_for_arrival()
    eventually(lambda: kinds(run) == [("steps", None)], "it waits for the step")
    gate.open()
    [born] = app.runs(parent=run)
    eventually(lambda: kinds(run) == [("child", born.id)], "it waits for the child")
    born.send("go")
    run.result(timeout=20)


def test_a_run_says_for_which_other_run_it_waits(apps: Apps) -> None:
    @workflow
    def follow(other: str) -> None:
        app.run(other).result()

    app = apps(follow, nap)
    other = app.start(nap)
    run = app.start(follow, other.id)
    eventually(lambda: kinds(run) == [("run", other.id)], "it waits for the other run")


def test_a_run_says_when_a_failed_step_is_tried_again(apps: Apps) -> None:
    @step(retry=Retry(attempts=2, first=timedelta(hours=1)))
    def flaky() -> None:
        raise ConnectionError

    @workflow
    def flow() -> None:
        flaky()

    run = apps(flow, flaky).start(flow)
    eventually(lambda: [reason.kind for reason in run.waiting_for] == ["retry"], "it waits for its retry")


def test_a_run_that_nobody_takes_says_why(apps: Apps) -> None:
    client = apps(approve, nap, worker=False, queues=["default", "slow"])
    run = client.start(nap)
    assert kinds(run) == [("worker", None)]
    apps(approve)  # a worker that does not include it
    on_slow = client.options(queue="slow").start(nap)
    eventually(lambda: kinds(run) == [("job", "nap")], "no worker knows it")
    assert kinds(on_slow) == [("queue", "slow")]
    assert str(on_slow.waiting_for[0]) == "no live worker takes from the queue 'slow'"


def test_a_run_in_the_backlog_waits_for_a_worker(apps: Apps) -> None:
    gate = Gate()

    @step
    def slow() -> None:
        gate.pass_through()

    @workflow
    def busy() -> None:
        slow()

    app = apps(busy, slow, concurrency=1)
    first = app.start(busy)
    gate.wait_for_arrival()
    second = app.start(busy)
    assert first.waiting_for == []
    assert kinds(second) == [("slot", "default")]
    gate.open()


def test_a_delayed_and_a_paused_run_say_so(apps: Apps) -> None:
    run = apps(nap).options(delay=timedelta(hours=2)).start(nap)
    [reason] = run.waiting_for
    assert (reason.kind, str(reason).partition(",")[0]) == ("timer", "its time")
    run.pause()
    assert kinds(run) == [("resume", None)]


def test_runs_that_wait_for_a_message_are_found(apps: Apps) -> None:
    app = apps(approve, nap)
    asking, sleeping = app.start(approve), app.start(nap)
    for run in (asking, sleeping):
        wait_parked(run)
    app.options(delay=0.01).start(approve).send("approval", 1)
    eventually(lambda: len(app.runs.finished()) == 1, "one is over")
    assert {run.id for run in app.runs.waiting()} == {asking.id, sleeping.id}
    assert [run.id for run in app.runs.waiting(on="approval")] == [asking.id]
    assert app.runs.waiting(on="approval", type=nap) == []
    assert app.runs.waiting(on="other") == []
    with pytest.raises(InvalidArgument):
        app.runs(waiting=False)


def test_what_an_async_run_waits_for(url: str) -> None:
    @workflow
    async def both() -> None:
        await asyncio.gather(detent.aio.receive("a"), detent.aio.receive("b"))

    async def main() -> None:
        async with detent.AsyncApp(url, include=[both]) as app:
            run = await app.start(both)
            while len(await run.waiting_for()) < 2:
                await asyncio.sleep(0.02)
            assert [reason.name for reason in await run.waiting_for()] == ["a", "b"]
            while not await app.runs.waiting(on="b"):
                await asyncio.sleep(0.02)

    asyncio.run(main())
