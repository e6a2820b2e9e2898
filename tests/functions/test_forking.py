"""Forking durable functions: the order of the journal decides, and only what holds is kept."""

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

import detent
from detent import step, workflow
from detent.clock import SystemClock
from detent.errors import InvalidState, RunCanceled
from tests.functions.world import (
    SOON,
    Apps,
    Gate,
    crash,
    eventually,
    failure,
    main,
    recorded,
    result,
    wait_for,
    wait_parked,
)

ran: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


class Late(SystemClock):
    """A clock that is two seconds behind."""

    def now(self) -> int:
        return super().now() - 2_000_000


@step
def work(name: str) -> str:
    ran.append(name)
    return f"{name} {len(ran)}"


@step
def piece(name: str) -> str:
    ran.append(name)
    return f"{name} {len(ran)}"


@workflow
def child(name: str) -> str:
    ran.append(f"child {name}")
    return f"child {name} {len(ran)}"


def over(run: detent.Run[Any]) -> None:
    """Return when nothing of the run is left to be done."""
    eventually(lambda: main(run).state not in ("scheduled", "executing"), f"{run!r} is over")


def test_a_fork_keeps_the_steps_of_a_worker_whose_clock_was_ahead(apps: Apps) -> None:
    gate = Gate()

    @workflow
    def flow() -> list[str]:
        first = work("a")
        if not gate._open.is_set():
            gate.pass_through()
        return [first, work("b"), work("c"), work("d")]

    ahead = apps(flow)
    run = ahead.start(flow)
    gate.wait_for_arrival()
    eventually(lambda: recorded(run) == ["work"], "the first step is recorded")
    behind = apps(flow, clock=Late())
    crash(ahead, reaped_by=behind)
    gate.open()
    original = result(behind.run(run.id))
    ran.clear()
    assert result(behind.fork(run.id, from_step="work#3"))[:2] == original[:2]
    assert ran == ["c", "d"]


def test_a_fork_keeps_children_and_spawned_steps_by_their_place(apps: Apps) -> None:
    @workflow
    def flow() -> list[str]:
        spawned = piece.spawn("early")
        born = child.spawn("early")
        early = [spawned.result(), born.result()]
        between = work("between")
        late = [piece.spawn("late").result(), child.spawn("late").result()]
        return [*early, between, *late, work("end")]

    app = apps(flow, child, clock=Late())
    run = app.start(flow)
    original = result(run)
    # Each entry has a place of its own, whatever the clocks say.
    places = [entry.seq for entry in app.engine.store.journal([run.id])[run.id]]
    assert 0 not in places
    assert len(set(places)) == len(places)
    ran.clear()
    forked = result(app.fork(run, from_step="work"))
    assert forked[:2] == original[:2]
    assert ran == ["between", "late", "child late", "end"]
    ran.clear()
    assert result(app.fork(run, from_step="work#2"))[:5] == original[:5]
    assert ran == ["end"]


def test_a_later_attempt_at_a_spawned_step_has_the_place_of_the_first(apps: Apps) -> None:
    @step(retry=detent.Retry(attempts=2, first=timedelta(milliseconds=10)))
    def flaky() -> str:
        ran.append("flaky")
        if ran.count("flaky") == 1:
            raise ValueError("not yet")
        return "done"

    @workflow
    def flow() -> list[str]:
        handle = flaky.spawn()
        return [work("a"), handle.result(), work("b")]

    app = apps(flow, flaky)
    run = app.start(flow)
    result(run)
    ran.clear()
    assert result(app.fork(run, from_step="work#2"))[1] == "done"
    assert ran == ["b"]


def test_what_was_spawned_before_the_cut_and_has_not_ended_is_spawned_again(apps: Apps) -> None:
    gate = Gate()

    @step
    def slow() -> str:
        ran.append("slow")
        gate.pass_through()
        return "slow"

    @workflow
    def flow() -> list[str]:
        handle = slow.spawn()
        first = work("a")
        return [handle.result(), first, work("b")]

    app = apps(flow, slow)
    run = app.start(flow)
    gate.wait_for_arrival()
    eventually(lambda: "work" in recorded(run), "the step is recorded")
    forked = app.fork(run)
    gate.wait_for_arrival()
    gate.open()
    assert result(forked)[1] == result(run)[1]
    assert sorted(ran) == ["a", "b", "b", "slow", "slow"]


def test_entries_without_a_place_are_placed_by_their_time(apps: Apps) -> None:
    @workflow
    def flow() -> list[str]:
        first = work("a")
        time.sleep(0.02)
        spawned = piece.spawn("s").result()
        born = child.spawn("c").result()
        time.sleep(0.02)
        return [first, spawned, born, work("b")]

    app = apps(flow, child)
    run = app.start(flow)
    original = result(run)
    app.engine.store.write(lambda tx: tx.run("UPDATE detent_executions SET seq = 0"))
    app.engine.store.write(lambda tx: tx.run("UPDATE detent_runs SET parent_seq = 0"))
    ran.clear()
    assert result(app.fork(run, from_step="work#2"))[:3] == original[:3]
    assert ran == ["b"]
    ran.clear()
    result(app.fork(run, from_step="piece"))
    assert ran == ["s", "child c", "b"]


def test_a_fork_keeps_concurrent_steps_in_the_order_of_their_records(apps: Apps) -> None:
    @step
    async def slow() -> str:
        ran.append("slow")
        await asyncio.sleep(0.05)
        return "slow"

    @step
    async def quick() -> str:
        ran.append("quick")
        return "quick"

    @step
    async def last() -> str:
        ran.append("last")
        return "last"

    @workflow
    async def flow() -> list[str]:
        return [*await asyncio.gather(slow(), quick()), await last()]

    app = apps(flow)
    run = app.start(flow)
    result(run)
    ran.clear()
    # Recorded: quick, slow, last.
    assert result(app.fork(run, from_step="slow")) == ["slow", "quick", "last"]
    assert ran == ["slow", "last"]


def test_a_fork_without_a_step_keeps_everything_of_a_finished_run(apps: Apps) -> None:
    @workflow
    def other() -> Any:
        return detent.receive("hello", timeout=5)

    @step(retry=detent.Retry(attempts=2, first=timedelta(milliseconds=10)))
    def flaky() -> str:
        ran.append("flaky")
        if ran.count("flaky") == 1:
            raise ValueError("not yet")
        return "flaky"

    app = apps(worker=False)

    @workflow
    def flow(target: str) -> list[Any]:
        got, late = detent.receive("go"), ""
        try:
            detent.receive("never", timeout=0.01)
        except Exception as error:
            late = type(error).__name__
        new = detent.patched("change")
        value = str(detent.uuid())
        moment = detent.now().isoformat()
        detent.publish("where", "here")
        app.run(target).send("hello", "from me")
        detent.sleep(SOON)
        return [got, late, new, value, moment, flaky(), piece.map(["x", "y"]), child("z")]

    app = apps(flow, other, child, piece)
    target = app.start(other)
    run = app.start(flow, target.id)
    run.send("go", 7)
    original = result(run)
    assert result(target) == "from me"
    ran.clear()
    forked = app.fork(run)
    assert result(forked) == original
    assert ran == []
    assert forked.published("where") == "here"
    # A fork of a fork, too.
    assert result(app.fork(forked)) == original
    assert ran == []
    assert result(app.fork(run, from_step="flaky"))[:5] == original[:5]
    assert sorted(ran) == ["child z", "flaky", "flaky", "x", "y"]


@step
def release(name: str) -> None:
    ran.append(f"release {name}")


@step
def reserve(name: str) -> str:
    ran.append(f"reserve {name}")
    return name


reserve = reserve.compensate_with(release)


broken: list[bool] = []


@step
def ship() -> str:
    ran.append("ship")
    if broken[0]:
        raise ValueError("no truck")
    return "shipped"


@workflow
def order() -> list[str]:
    first = work("label")
    reserved = reserve("book")
    spawned = reserve.spawn("pen").result()
    return [first, reserved, spawned, ship()]


@pytest.mark.parametrize("from_step", [None, "ship"])
def test_a_fork_runs_compensated_steps_again(apps: Apps, from_step: str | None) -> None:
    broken[:] = [True]
    app = apps(order, reserve)
    run = app.start(order)
    assert isinstance(failure(run), ValueError)
    assert ran[-2:] == ["release pen", "release book"]
    broken[:] = [False]
    ran.clear()
    forked = app.fork(run, from_step=from_step)
    assert result(forked) == ["label 1", "book", "pen", "shipped"]
    assert ran == ["reserve book", "reserve pen", "ship"]
    # What runs again can be undone again.
    broken[:] = [True]
    ran.clear()
    assert isinstance(failure(app.fork(forked, from_step="ship")), ValueError)
    assert ran == ["ship", "release pen", "release book"]


def test_a_canceled_run_continues_as_a_fork(apps: Apps) -> None:
    @step
    def hang() -> str:
        ran.append("hang")
        return "hung"

    @workflow
    def sleeper() -> str:
        detent.receive("wake")
        return "awake"

    @workflow
    def flow() -> list[str]:
        first = work("a")
        handle = sleeper.spawn()
        reserved = reserve("book")
        detent.receive("go")
        return [first, reserved, handle.result(), hang()]

    app = apps(flow, sleeper)
    run = app.start(flow)
    wait_parked(run)
    run.cancel(reason="by mistake")
    with pytest.raises(RunCanceled):
        result(run)
    over(run)
    assert ran == ["a", "reserve book", "release book"]
    ran.clear()
    forked = app.fork(run)
    wait_parked(forked)
    assert ran == ["reserve book"]
    forked.send("go")
    [born] = app.runs(parent=forked)
    born.send("wake")
    assert result(forked) == ["a 1", "book", "awake", "hung"]
    assert ran == ["reserve book", "hang"]
    with pytest.raises(InvalidState, match=r"app\.fork\(run\)"):
        run.resume()


def test_a_child_that_was_canceled_alone_stays_canceled_in_the_fork(apps: Apps) -> None:
    @workflow
    def sleeper() -> None:
        detent.receive("wake")

    @workflow
    def flow() -> list[str]:
        try:
            sleeper()
        except RunCanceled:
            work("without")
        detent.receive("go")
        return [work("end")]

    app = apps(flow, sleeper)
    run = app.start(flow)
    wait_parked(run)
    eventually(lambda: app.runs(parent=run), "the child is there")
    app.runs(parent=run)[0].cancel()
    eventually(lambda: "work" in recorded(run), "it goes on")
    wait_parked(run)
    run.cancel()
    wait_for(run, "canceled")
    forked = app.fork(run)
    forked.send("go")
    assert result(forked) == ["end 2"]
    assert ran == ["without", "end"]


def test_a_failed_run_continues_as_a_fork_behind_its_last_success(apps: Apps) -> None:
    broken[:] = [True]

    @workflow
    def flow() -> list[str]:
        caught = ""
        try:
            ship()
        except ValueError:
            caught = work("caught")
        return [caught, ship()]

    app = apps(flow)
    run = app.start(flow)
    assert isinstance(failure(run), ValueError)
    broken[:] = [False]
    ran.clear()
    assert result(app.fork(run)) == ["caught 2", "shipped"]
    assert ran == ["ship"]


def test_a_run_that_a_step_canceled_continues_as_a_fork(apps: Apps) -> None:
    @step(on_exception="cancel")
    def fatal() -> str:
        ran.append("fatal")
        if broken[0]:
            raise ValueError("no")
        return "fine"

    @workflow
    def flow() -> list[str]:
        return [work("a"), fatal()]

    broken[:] = [True]
    app = apps(flow)
    run = app.start(flow)
    wait_for(run, "canceled")
    over(run)
    broken[:] = [False]
    assert result(app.fork(run)) == ["a 1", "fine"]
    assert ran == ["a", "fatal", "fatal"]


def test_a_run_that_is_being_undone_cannot_be_forked(apps: Apps) -> None:
    gate = Gate()

    @step
    def slowly(name: str) -> None:
        gate.pass_through()

    @step
    def take(name: str) -> None: ...

    take = take.compensate_with(slowly)

    @workflow
    def flow() -> None:
        take("it")
        detent.receive("go")

    app = apps(flow)
    run = app.start(flow)
    wait_parked(run)
    run.cancel()
    gate.wait_for_arrival()
    with pytest.raises(InvalidState, match="its compensations are still running"):
        app.fork(run)
    gate.open()
    over(run)
    wait_parked(app.fork(run))


def test_a_fork_without_a_step_from_async_code(url: str) -> None:
    @workflow
    async def flow() -> str:
        return await work.aio("a")

    async def program() -> list[str]:
        async with detent.AsyncApp(url, include=[flow]) as app:
            run = await app.start(flow)
            first = await run.result(timeout=20)
            return [first, await (await app.fork(run)).result(timeout=20)]

    first, again = asyncio.run(program())
    assert first == again
    assert ran == ["a"]
