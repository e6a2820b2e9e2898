"""Replaying recorded runs against today's code: nothing is executed, and what differs is told."""

from __future__ import annotations

import asyncio
import contextlib
import json
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import detent
from detent import Context, Retry, step, workflow
from detent.execution.registry import Registry
from detent.kernel.drift import End
from detent.replay import replayer
from detent.serialization.codec import Codec
from detent.testing import TestingApp, replay
from tests.kit.recording import Prefixes, broken, calls, child, double, exported, work

# -- Workflows that ask for everything there is -----------------------------------------------------


@step(retry=Retry(attempts=3))
def flaky(ctx: Context) -> int:
    if ctx.attempt < 3:
        raise ConnectionError("again")
    return ctx.attempt


@step
def undo(number: int) -> None: ...


@step
def book(number: int) -> int:
    return number


book.compensate_with(undo)


@step(transactional=True)
def debit(tx: detent.Transaction, amount: int) -> int:
    return amount


@step
def crunch(ctx: Context, numbers: list[int]) -> int:
    return sum(ctx.iterate(numbers))


@step
async def endless() -> None:
    await asyncio.sleep(3600)


@workflow
def everything(ctx: Context, number: int) -> list[Any]:
    values = [detent.now().isoformat(), str(detent.uuid()), detent.random()]
    if detent.patched("more"):
        values.append(work(number))
    with contextlib.suppress(ValueError):
        broken("caught")
    detent.publish("state: half", number)
    detent.append("log: half", number)
    with detent.step_guard("by hand") as guard:
        if guard.pending:
            guard.success({"by": "hand"})
    handle = work.spawn(5)
    values += [debit(7), flaky(), crunch(ctx, [1, 2, 3]), *work.map(range(2)), child(3), handle.result()]
    detent.sleep(days=2)
    detent.sleep(0)
    values += [guard.result, detent.receive("go: now"), detent.receive("never", timeout=5, default="late")]
    detent.send(str(ctx.run.id), "echo", 1)
    return [*values, detent.receive("echo")]


@workflow
async def concurrent(width: int) -> list[Any]:
    async def branch(number: int) -> list[Any]:
        moment = await detent.aio.now()
        first = await double(number)
        await asyncio.sleep(0.001)
        await detent.aio.sleep(minutes=number)
        return [str(moment), first, await work.aio(number), await double.spawn(number)]

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(branch(number)) for number in range(width)]
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(endless(), timeout=0.001)
    waiting = asyncio.create_task(detent.aio.receive("never"))
    values = await asyncio.gather(double(7), child.aio(8), work.aio.map([9, 10]), work.aio(11))
    waiting.cancel()
    return [*(task.result() for task in tasks), *values, await asyncio.to_thread(work, 12)]


@workflow
def fails(number: int) -> None:
    book(number)
    book.spawn(number)
    detent.sleep(hours=1)
    book(number + 1)
    detent.uuid()  # lost with the failure, as the sleep is
    detent.sleep(0)
    raise LookupError(f"nothing for {number} in {object()}")


@workflow
async def afails(number: int) -> None:
    await work.aio(number)
    work.spawn(number)
    await detent.aio.uuid()
    async with asyncio.TaskGroup() as group:
        group.create_task(endless())
        await broken.aio("fatal")


@workflow
async def races(number: int) -> tuple[list[int], int]:
    """What comes first decides: not the order in which it was asked for."""

    async def after(seconds: float, name: int) -> int:
        await asyncio.sleep(seconds)
        return await double(name)

    tasks = [asyncio.create_task(after(0.05, number)), asyncio.create_task(after(0.0, number + 1))]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    first = [task.result() for task in done]
    return first, await double(len(first) and first[0]) + sum(await asyncio.gather(*tasks))


@workflow
def threaded(number: int) -> list[int]:
    with ThreadPoolExecutor(2) as pool:
        contexts = [copy_context() for _ in range(3)]
        return list(pool.map(lambda context: context.run(work, number), contexts))


@workflow
def looped(number: int) -> list[int]:
    async def inside() -> list[int]:
        return list(await asyncio.gather(double(number), double(number)))

    return asyncio.run(inside())


@workflow
def late(number: int) -> str:
    try:
        work(number)
        detent.sleep(days=5)
        work(number)
    except detent.DeadlineExceeded:
        return "late"
    return "in time"


@workflow(on_exception="pause")
def pauses(number: int) -> int:
    broken("for now")
    return number


FLOWS: list[Any] = [everything, concurrent, fails, afails, races, threaded, looped, late, pauses]


# -- Code that has not changed ----------------------------------------------------------------------


@pytest.mark.parametrize("resumed", [False, True], ids=["once", "resumed"])
@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: str(flow.name))
def test_code_that_has_not_changed_follows_every_prefix_of_its_runs(flow: Any, resumed: bool) -> None:
    store = Prefixes()
    with TestingApp(include=[flow], store=store) as app:
        run = app.options(id="run", deadline=timedelta(days=4) if flow is late else None).start(flow, 3)
        if flow is everything:
            run.send("go: now", True)
        app.speedrun(run)
        if resumed:
            with contextlib.suppress(detent.InvalidState):  # it has come to a good end
                run.resume()
            app.speedrun(run)
        recordings = store.recordings(app.clock.now())
    calls.clear()
    assert len(recordings) > 1
    for recording in recordings:
        found = replayer.replay(recording, flow, codec=Codec(), registry=Registry([]))
        assert not found.differences, (recording.row.state, [step.key for step in recording.steps])
    assert calls == []  # no step was executed


def test_a_run_in_flight_is_followed_to_where_it_stands(detent_app: TestingApp) -> None:
    run = detent_app.start(everything, 1)
    detent_app.settle_down()
    found = replay(exported(run), everything)
    assert (found.end, found.edge) == (End.EDGE, ("flaky",))  # to be tried again
    detent_app.speedrun(run)
    found = replay(exported(run), everything)
    assert (found.end, found.edge) == (End.EDGE, ("receive/go: now",))
    run.send("go: now", 1)
    detent_app.speedrun(run)
    assert replay(exported(run), everything).end is End.RETURNED


def test_a_canceled_run_and_a_fork_are_followed(detent_app: TestingApp) -> None:
    run = detent_app.start(everything, 1)
    detent_app.settle_down()
    fork = detent_app.fork(run, from_step="flaky")
    detent_app.settle_down()
    run.cancel()
    for each in (run, fork):
        assert replay(exported(each), everything).differences == ()


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_a_run_that_the_code_starts_is_named_and_not_started(tmp_path: Path, is_async: bool) -> None:
    @workflow(id="starter")
    def starter() -> list[str]:
        work(1)
        runs = [sync_app.options(delay=60).start(child, 2), *sync_app.start_many(child, [(3,), (4,)])]
        return [run.id for run in runs]

    @workflow(id="starter")
    async def astarter() -> list[str]:
        await work.aio(1)
        runs = [await async_app.options(delay=60).start(child, 2), await async_app.start(child, 3)]
        return [run.id for run in runs]

    chosen: Any = astarter if is_async else starter
    sync_app = detent.App(f"sqlite:///{tmp_path / 'there.db'}", include=[chosen, child])
    async_app = detent.AsyncApp(f"sqlite:///{tmp_path / 'there.db'}", include=[chosen, child])
    with sync_app:
        run = sync_app.start(chosen)
        ids = run.result()
        document = exported(run)
    nowhere = f"sqlite:///{tmp_path / 'not' / 'there.db'}"
    sync_app = detent.App(nowhere, include=[child])
    async_app = detent.AsyncApp(nowhere, include=[child])
    assert json.loads(replay(document, chosen).detail) == ids
    assert not (tmp_path / "not").exists()


def test_a_question_to_the_database_ends_the_replay_without_a_verdict(detent_app: TestingApp) -> None:
    @workflow
    def asks() -> int:
        work(1)
        detent_app.runs()
        return work(2)

    run = detent_app.start(asks)
    assert run.result() == 2
    found = replay(exported(run), asks)
    assert (found.end, found.detail, found.differences) == (End.BLIND, "the database", ())
