"""first, as_completed, and maps with options: the same answers in every replay."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import detent
import detent.aio
from detent import step, workflow
from detent.errors import BlockingCall, InvalidArgument, NotInRun, RunPaused
from detent.execution.registry import Registry
from detent.replay import replayer
from detent.serialization.codec import Codec
from detent.testing import TestingApp
from tests.functions.world import Apps, Gate, crash, eventually, failure, result, wait_parked
from tests.kit.recording import Prefixes


@step
def wait_for(gate: str) -> str:
    GATES[gate].pass_through()
    return gate


@step
def double(number: int) -> int:
    return number * 2


@step
def scale(number: int, *, by: int, plus: int = 0) -> int:
    return number * by + plus


@step
def even(number: int) -> int:
    if number % 2:
        raise ValueError(f"{number} is odd")
    return number


@step
async def aeven(number: int) -> int:
    if number % 2:
        raise ValueError(f"{number} is odd")
    return number


@workflow
def waiting_child(gate: str) -> str:
    return wait_for(gate)


GATES: dict[str, Gate] = {}


@pytest.fixture
def gates() -> dict[str, Gate]:
    GATES.clear()
    GATES.update({name: Gate() for name in "abc"})
    return GATES


# first


@pytest.mark.parametrize("kind", ["step", "child"])
def test_the_first_that_is_done_wins(apps: Apps, gates: dict[str, Gate], kind: str) -> None:
    job: Any = wait_for if kind == "step" else waiting_child

    @workflow
    def flow() -> list[str]:
        handles = [job.spawn(name) for name in "abc"]
        winner = detent.first(handles)
        return [winner.result(), *(handle.result() for handle in handles)]

    run = apps(flow, job, wait_for).start(flow)
    for gate in gates.values():
        gate.wait_for_arrival()
    gates["b"].open()
    eventually_recorded(run)
    gates["a"].open()
    gates["c"].open()
    assert result(run) == ["b", "a", "b", "c"]


def eventually_recorded(run: detent.Run[Any]) -> None:
    """The winner is known when the run waits for the others."""
    eventually(lambda: any(item.kind == "first" for item in run.executions()), "the winner is recorded")


def test_a_replay_after_a_crash_has_the_same_winner(apps: Apps, gates: dict[str, Gate]) -> None:
    @workflow
    def flow() -> str:
        handles = [wait_for.spawn(name) for name in "abc"]
        winner = detent.first(handles).result()
        detent.receive("go on")
        for handle in handles:
            handle.result()
        return winner

    app = apps(flow, wait_for)
    run = app.start(flow)
    for gate in gates.values():
        gate.wait_for_arrival()
    gates["c"].open()
    eventually_recorded(run)
    for gate in gates.values():
        gate.open()
    wait_parked(run)
    other = apps(flow, wait_for)
    crash(app, reaped_by=other)
    again = other.run(run.id)
    again.send("go on")
    assert result(again) == "c"


def test_a_failed_step_can_be_first_and_its_handle_raises(apps: Apps) -> None:
    @workflow
    def flow() -> str:
        try:
            detent.first([even.spawn(1)]).result()
        except ValueError as error:
            return str(error)
        return "nothing"

    assert result(apps(flow, even).start(flow)) == "1 is odd"


def test_a_winner_that_the_code_no_longer_asks_for_pauses_the_run(apps: Apps) -> None:
    other_way = threading.Event()

    @workflow
    def flow() -> int:
        first, second = double.spawn(1), double.spawn(2)
        first.result()
        second.result()
        detent.first([second] if other_way.is_set() else [first])
        detent.receive("go on")
        return 0

    app = apps(flow, double)
    run = app.start(flow)
    eventually(lambda: [one.name for one in run.waiting_for] == ["go on"], "it waits for the message")
    other_way.set()
    run.send("go on")
    error = failure(run)
    assert isinstance(error, RunPaused)
    assert "double" in str(error)


# as_completed


def test_handles_come_in_the_order_in_which_they_are_done(apps: Apps, gates: dict[str, Gate]) -> None:
    @workflow
    def flow() -> list[str]:
        seen = []
        for handle in detent.as_completed([wait_for.spawn(name) for name in "abc"]):
            seen.append(handle.result())
            detent.publish("seen", list(seen))
        return seen

    run = apps(flow, wait_for).start(flow)
    for gate in gates.values():
        gate.wait_for_arrival()
    seen: list[str] = []
    for name in "cab":
        gates[name].open()
        seen.append(name)
        next(value for value in run.watch("seen") if value == seen)
    assert result(run) == ["c", "a", "b"]


def test_async_code_gets_the_same_order_in_every_replay(url: str, gates: dict[str, Gate]) -> None:
    @workflow
    async def flow() -> list[str]:
        seen = []
        async for handle in detent.aio.as_completed([wait_for.spawn(name) for name in "abc"]):
            seen.append(await handle)
            await detent.aio.sleep(0.1)  # the worker is free, and the run is replayed
        return seen

    async def main() -> list[str]:
        async with detent.AsyncApp(url, include=[flow, wait_for]) as app:
            run = await app.start(flow)
            for name in "bca":
                await asyncio.to_thread(gates[name].wait_for_arrival)
                gates[name].open()
                while not any(
                    item.node.startswith("wait_for")
                    and item.state == "completed"
                    and item.stored_result == f'"{name}"'
                    for item in await run.executions()
                ):
                    await asyncio.sleep(0.01)
            return await run.result(timeout=60)

    assert asyncio.run(main()) == ["b", "c", "a"]


@workflow
async def racing() -> list[Any]:
    async def race(start: int) -> list[int]:
        seen = []
        async for handle in detent.aio.as_completed([double.spawn(start + n) for n in range(3)]):
            seen.append(await handle)
            await detent.aio.sleep(minutes=1)
        return seen

    winner = await detent.aio.first([double.spawn(100), double.spawn(200)])
    mapped = double.aio.map(range(4), concurrency=2)
    return [await winner, *await asyncio.gather(race(0), race(10), mapped)]


@workflow
def plainly_racing() -> list[int]:
    seen = double.map(range(5), concurrency=2)
    for handle in detent.as_completed([double.spawn(n) for n in range(3)]):
        seen.append(handle.result())
        detent.sleep(minutes=1)
    return seen


@workflow
def failing_race() -> None:
    detent.first([double.spawn(1), double.spawn(2)])
    raise ValueError("after the race")


@pytest.mark.parametrize("flow", [racing, plainly_racing, failing_race])
def test_unchanged_code_follows_every_prefix_of_a_race(flow: Any) -> None:
    store = Prefixes()
    with TestingApp(include=[flow, double], store=store) as app:
        run = app.options(id="run").start(flow)
        app.speedrun(run)
        assert run.state == ("failed" if flow is failing_race else "finished")
        recordings = store.recordings(app.clock.now())
    assert len(recordings) > 3
    for recording in recordings:
        found = replayer.replay(recording, flow, codec=Codec(), registry=Registry([flow, double]))
        assert not found.differences, [step.key for step in recording.steps]


def test_nothing_is_completed_of_nothing(apps: Apps) -> None:
    @workflow
    def flow() -> list[Any]:
        return list(detent.as_completed([]))

    assert result(apps(flow).start(flow)) == []


@pytest.mark.parametrize("handles", [[], [1], None, "text"])
def test_what_is_no_handle_is_refused(apps: Apps, handles: Any) -> None:
    @workflow
    def flow() -> None:
        detent.first(handles)

    assert isinstance(failure(apps(flow).start(flow)), InvalidArgument)


def test_outside_of_a_workflow_there_is_nothing_to_race() -> None:
    with pytest.raises(NotInRun):
        detent.first([])
    with pytest.raises(NotInRun):
        detent.as_completed([])


def test_the_blocking_form_is_refused_on_an_event_loop(apps: Apps) -> None:
    @workflow
    async def flow() -> None:
        detent.first([double.spawn(1)])

    assert isinstance(failure(apps(flow, double).start(flow)), BlockingCall)


# map


def test_map_passes_extra_arguments_to_every_call(apps: Apps) -> None:
    @workflow
    def flow() -> list[int]:
        return scale.map([1, 2], extra={"by": 10, "plus": 1})

    assert result(apps(flow, scale).start(flow)) == [11, 21]


@pytest.mark.parametrize("concurrency", [None, 2])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_map_returns_errors_in_their_places(apps: Apps, kind: str, concurrency: int | None) -> None:
    @workflow(id="flow")
    def flow() -> list[str]:
        found = even.map(range(4), return_exceptions=True, concurrency=concurrency)
        return [f"{type(one).__name__} {one}" for one in found]

    @workflow(id="flow")
    async def aflow() -> list[str]:
        found = await aeven.map(range(4), return_exceptions=True, concurrency=concurrency)
        return [f"{type(one).__name__} {one}" for one in found]

    chosen: Any = flow if kind == "sync" else aflow
    run = apps(chosen, even, aeven).start(chosen)
    assert result(run) == ["int 0", "ValueError 1 is odd", "int 2", "ValueError 3 is odd"]


@pytest.mark.parametrize("concurrency", [None, 2])
def test_map_raises_the_first_error_when_all_are_done(apps: Apps, concurrency: int | None) -> None:
    @workflow
    def flow() -> list[int]:
        return even.map(range(4), concurrency=concurrency)

    run = apps(flow, even).start(flow)
    assert str(failure(run)) == "1 is odd"
    assert len([item for item in run.executions() if item.kind == "step"]) == 4


@pytest.mark.parametrize("kind", ["sync", "async", "child"])
def test_map_has_at_most_so_many_under_way(apps: Apps, kind: str) -> None:
    lock = threading.Lock()
    now: list[int] = [0, 0]

    def busy(number: int) -> int:
        with lock:
            now[0] += 1
            now[1] = max(now)
        threading.Event().wait(0.005)
        with lock:
            now[0] -= 1
        return number * 2

    counted = step(id="counted")(busy)

    @workflow
    def one(number: int) -> int:
        return counted(number)

    @workflow(id="flow")
    def flow() -> list[int]:
        return (one.sync if kind == "child" else counted).map(range(12), concurrency=3)

    @workflow(id="flow")
    async def aflow() -> list[int]:
        return await counted.aio.map(range(12), concurrency=3)

    chosen: Any = aflow if kind == "async" else flow
    run = apps(chosen, counted, one, concurrency=10).start(chosen)
    assert result(run) == [number * 2 for number in range(12)]
    assert now[1] <= 3


def test_a_map_with_a_limit_continues_after_a_crash(apps: Apps, gates: dict[str, Gate]) -> None:
    @workflow
    def flow() -> list[str]:
        return wait_for.map("abc", concurrency=2)

    app = apps(flow, wait_for)
    run = app.start(flow)
    gates["a"].wait_for_arrival()
    gates["b"].wait_for_arrival()
    other = apps(flow, wait_for)
    crash(app, reaped_by=other)
    for gate in gates.values():
        gate.open()
    again = other.run(run.id)
    assert result(again) == ["a", "b", "c"]


@pytest.mark.parametrize("given", [{"concurrency": 0}, {"extra": [1]}, {"return_exceptions": 1}])
def test_bad_options_of_map_are_refused(apps: Apps, given: dict[str, Any]) -> None:
    @workflow
    def flow() -> None:
        double.map([1], **given)

    assert isinstance(failure(apps(flow, double).start(flow)), InvalidArgument)


def test_outside_of_runs_map_is_a_plain_loop() -> None:
    assert scale.map([1, 2], extra={"by": 3}, concurrency=5) == [3, 6]
    found = even.map([0, 1], return_exceptions=True)
    assert (found[0], str(found[1])) == (0, "1 is odd")
    afound = asyncio.run(aeven.map([0, 1], return_exceptions=True))
    assert (afound[0], str(afound[1])) == (0, "1 is odd")
    with pytest.raises(ValueError, match="odd"):
        even.map([1])
