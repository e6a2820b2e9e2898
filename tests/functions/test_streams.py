"""Streams of a run: ordered values for readers that follow live, join late, or come back."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import detent
import detent.aio
from detent import step, workflow
from detent.errors import BlockingCall, InvalidArgument, InvalidState, NotInRun, NotSerializable, RunNotFound
from detent.execution import run_streams
from tests.functions.crunching import append_elsewhere
from tests.functions.world import Apps, Gate, crash, eventually, failure, result, wait_parked

# What is written


@pytest.mark.parametrize("kind", ["workflow", "inline", "spawned", "node"])
def test_a_reader_gets_every_value_in_order(apps: Apps, kind: str) -> None:
    words = ["to", "be", "or", "not", "to", "be"]

    @step
    def write() -> None:
        for word in words:
            detent.append("words", word)

    @workflow(id="flow")
    def flow() -> None:
        if kind == "spawned":
            write.spawn().result()
        elif kind == "inline":
            write()
        else:
            for word in words:
                detent.append("words", word)

    class Flow(detent.Workflow):
        @step
        def write(self) -> None:
            for word in words:
                detent.append("words", word)

    app = apps(Flow if kind == "node" else flow, write)
    run: Any = app.start(Flow) if kind == "node" else app.start(flow)
    assert list(run.stream("words")) == words
    result(run)
    entries = list(run.stream("words").entries())
    assert [entry.position for entry in entries] == [1, 2, 3, 4, 5, 6]
    assert {entry.step for entry in entries} == {"main" if kind == "workflow" else "write"}
    assert {entry.attempt for entry in entries} == {1}
    assert run.streams() == ["words"]


@pytest.mark.parametrize("kind", ["workflow", "step"])
def test_async_code_appends_and_reads(url: str, kind: str) -> None:
    @step
    async def write() -> None:
        for number in range(5):
            await detent.aio.append("numbers", number)

    @workflow
    async def flow() -> None:
        if kind == "step":
            await write()
        else:
            for number in range(5):
                await detent.aio.append("numbers", number)

    async def main() -> None:
        async with detent.AsyncApp(url, include=[flow, write]) as app:
            run = await app.start(flow)
            assert [value async for value in run.stream("numbers")] == [0, 1, 2, 3, 4]
            positions = [entry.position async for entry in run.stream("numbers", after=3).entries()]
            assert positions == [4, 5]
            assert await run.streams() == ["numbers"]

    asyncio.run(main())


def test_a_value_is_readable_while_its_step_runs_and_by_a_reader_that_joins_late(apps: Apps) -> None:
    gate = Gate()

    @step
    def write() -> None:
        detent.append("tokens", "one")
        detent.append("tokens", "two")
        gate.pass_through()
        detent.append("tokens", "three")

    @workflow
    def flow() -> None:
        write()

    run = apps(flow).start(flow)
    gate.wait_for_arrival()
    late = apps(worker=False).run(run.id).stream("tokens")
    assert [next(late), next(late)] == ["one", "two"]
    gate.open()
    assert list(late) == ["three"]


def test_a_reader_that_comes_back_continues_behind_its_position(apps: Apps) -> None:
    gate = Gate()

    @step
    def write() -> None:
        for number in range(3):
            detent.append("numbers", number)
        gate.pass_through()
        detent.append("numbers", 3)

    @workflow
    def flow() -> None:
        write()

    run = apps(flow).start(flow)
    gate.wait_for_arrival()
    entries = run.stream("numbers").entries()
    next(entries)
    seen = next(entries)
    gate.open()
    assert list(run.stream("numbers", after=seen.position)) == [2, 3]
    assert list(run.stream("numbers", after=4)) == []


def test_a_reader_that_does_not_follow_ends_with_the_latest_entry(apps: Apps) -> None:
    @workflow
    def flow() -> None:
        detent.append("numbers", 1)
        detent.receive("go on")
        detent.append("numbers", 2)

    run = apps(flow).start(flow)
    eventually(lambda: list(run.stream("numbers", follow=False)) == [1], "the first value is there")
    assert list(run.stream("other", follow=False)) == []
    run.send("go on")
    assert list(run.stream("numbers")) == [1, 2]


def test_streams_of_one_run_are_independent(apps: Apps) -> None:
    @workflow
    def flow() -> None:
        for number in range(3):
            detent.append("even" if number % 2 == 0 else "odd", number)

    run = apps(flow).start(flow)
    result(run)
    assert (list(run.stream("even")), list(run.stream("odd"))) == ([0, 2], [1])
    assert run.streams() == ["even", "odd"]
    assert list(run.stream("none")) == []


def test_several_writers_share_one_stream_and_no_reader_misses_an_entry(apps: Apps) -> None:
    @step
    def write(writer: int) -> None:
        for number in range(20):
            detent.append("all", [writer, number])

    @workflow
    def flow() -> None:
        write.map(range(6))

    first, second = apps(flow, write), apps(flow, write)
    run = first.start(flow)
    entries = list(second.run(run.id).stream("all").entries())
    assert [entry.position for entry in entries] == list(range(1, 121))
    for writer in range(6):
        assert [e.value[1] for e in entries if e.value[0] == writer] == list(range(20))


def test_many_readers_get_the_same(apps: Apps) -> None:
    @step
    def write() -> None:
        for number in range(50):
            detent.append("numbers", number)

    @workflow
    def flow() -> None:
        write()

    app = apps(flow)
    run = app.start(flow)
    seen: list[list[int]] = [[] for _ in range(5)]
    threads = [threading.Thread(target=lambda into=into: into.extend(run.stream("numbers"))) for into in seen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert seen == [list(range(50))] * 5


# Crashes, retries, cancels


def test_a_workflow_appends_once_whatever_is_replayed(apps: Apps) -> None:
    @workflow
    def flow() -> None:
        detent.append("stages", "first")
        detent.receive("go on")
        detent.append("stages", "second")

    app = apps(flow)
    run = app.start(flow)
    wait_parked(run)
    other = apps(flow)
    crash(app, reaped_by=other)
    again = other.run(run.id)
    again.send("go on")
    result(again)
    assert list(again.stream("stages")) == ["first", "second"]


def test_a_step_that_is_repeated_appends_again_and_says_so(apps: Apps) -> None:
    attempts: list[int] = []

    @step(retry=detent.Retry(attempts=2, first=0))
    def write() -> None:
        attempts.append(1)
        detent.append("tokens", "half")
        if len(attempts) == 1:
            raise ConnectionError
        detent.append("tokens", "whole")

    @workflow
    def flow() -> None:
        write()

    run = apps(flow).start(flow)
    result(run)
    entries = [(entry.attempt, entry.value) for entry in run.stream("tokens").entries()]
    assert entries == [(1, "half"), (2, "half"), (2, "whole")]


def test_what_a_dead_worker_appended_stays_and_the_next_attempt_is_told_apart(apps: Apps) -> None:
    begun, release = threading.Semaphore(0), threading.Event()

    @step
    def write() -> None:
        detent.append("tokens", "begun")
        begun.release()
        release.wait(20)

    @workflow
    def flow() -> None:
        write()

    app = apps(flow)
    run = app.start(flow)
    assert begun.acquire(timeout=20)
    eventually(lambda: list(run.stream("tokens", follow=False)) == ["begun"], "it is stored")
    other = apps(flow)
    crash(app, reaped_by=other)
    assert begun.acquire(timeout=20)
    release.set()
    again = other.run(run.id)
    result(again)
    assert [entry.attempt for entry in again.stream("tokens").entries()] == [1, 2]


def test_a_worker_thought_dead_cannot_append(apps: Apps) -> None:
    gate = Gate()

    @step
    def write(ctx: detent.Context) -> None:
        if ctx.attempt == 1:
            gate.pass_through()
        detent.append("tokens", ctx.attempt)

    @workflow
    def flow() -> None:
        write()

    app = apps(flow)
    run = app.start(flow)
    gate.wait_for_arrival()
    other = apps(flow)
    other.engine.store.reap(app.engine.worker.id, max_recoveries=5, now=other.engine.clock.now())  # type: ignore[union-attr]
    assert other.engine.worker is not None
    other.engine.worker.poke()
    again = other.run(run.id)
    result(again)
    gate.open()
    assert list(again.stream("tokens")) == [2]


def test_the_entries_of_a_failed_step_stay(apps: Apps) -> None:
    @step
    def write() -> None:
        detent.append("tokens", "half")
        raise ConnectionError

    @workflow
    def flow() -> None:
        write()

    run = apps(flow).start(flow)
    failure(run)
    assert list(run.stream("tokens")) == ["half"]


def test_a_reader_of_a_canceled_run_also_gets_what_its_compensation_appends(apps: Apps) -> None:
    @step
    def give_back() -> None:
        detent.append("log", "given back")

    @step
    def take() -> None:
        detent.append("log", "taken")

    take.compensate_with(give_back)

    @workflow
    def flow() -> None:
        take()
        detent.receive("never")

    run = apps(flow, take, give_back).start(flow)
    wait_parked(run)
    run.cancel()
    assert list(run.stream("log")) == ["taken", "given back"]


def test_a_transactional_step_appends(apps: Apps) -> None:
    @step(transactional=True)
    def write(tx: Any) -> None:
        for number in range(3):
            detent.append("numbers", number)

    @workflow
    def flow() -> None:
        write()

    run = apps(flow).start(flow)
    assert list(run.stream("numbers")) == [0, 1, 2]


# Bounds


def test_a_step_that_is_far_ahead_of_the_database_waits_for_it(
    apps: Apps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_streams, "LARGEST_BACKLOG", 10 * run_streams.OVERHEAD)
    waits: list[Any] = []

    @step
    def write() -> None:
        committer = app.engine.services.committer
        run_now = committer.run

        def counted(operation: Any, **how: Any) -> Any:
            waits.append(operation)
            return run_now(operation, **how)

        monkeypatch.setattr(committer, "run", counted)
        for number in range(100):
            detent.append("numbers", number)
        monkeypatch.undo()

    @workflow
    def flow() -> None:
        write()

    app = apps(flow)
    run = app.start(flow)
    assert list(run.stream("numbers")) == list(range(100))
    assert len(waits) in range(8, 12)


def test_a_stream_keeps_the_latest_entries_if_it_is_told_to(apps: Apps) -> None:
    @step
    def write() -> None:
        for number in range(30):
            detent.append("log", number, keep=5)

    @workflow
    def flow() -> None:
        write()
        detent.append("log", "last", keep=2)

    run = apps(flow).start(flow)
    result(run)
    entries = list(run.stream("log").entries())
    assert [(entry.position, entry.value) for entry in entries] == [(30, 29), (31, "last")]


def test_a_removed_run_leaves_no_entries(apps: Apps) -> None:
    @workflow
    def flow() -> None:
        detent.append("log", 1)

    app = apps(flow)
    run = app.start(flow)
    result(run)
    run.delete()
    assert app.engine.store.stream(run.id, "log", after=0, limit=10) == []
    with pytest.raises(RunNotFound):
        list(run.stream("log"))


# What is refused


@pytest.mark.parametrize("what", ["value", "name", "keep"])
def test_what_cannot_be_appended_is_an_error_of_the_step(apps: Apps, what: str) -> None:
    @step
    def write() -> None:
        if what == "value":
            detent.append("log", object())
        elif what == "name":
            detent.append("x" * 300, 1)
        else:
            detent.append("log", 1, keep=0)

    @workflow
    def flow() -> None:
        write()

    assert isinstance(failure(apps(flow).start(flow)), NotSerializable | InvalidArgument)


def test_a_blocking_append_on_an_event_loop_is_refused(url: str) -> None:
    @step
    async def write() -> None:
        detent.append("log", 1)

    @workflow
    async def flow() -> None:
        await write()

    async def main() -> None:
        async with detent.AsyncApp(url, include=[flow]) as app:
            run = await app.start(flow)
            with pytest.raises(BlockingCall, match=r"detent\.aio\.append"):
                await run.result(timeout=60)

    asyncio.run(main())


def test_appending_in_another_process_is_refused(apps: Apps) -> None:
    @workflow
    def flow() -> None:
        append_elsewhere(1)

    error = failure(apps(flow).start(flow))
    assert isinstance(error, NotInRun)
    assert "executor='process'" in str(error)


def test_a_workflow_cannot_read_a_stream(apps: Apps) -> None:
    @workflow
    def flow(other: str) -> None:
        next(app.run(other).stream("log"))

    app = apps(flow)
    run = app.options(id="reading-itself").start(flow, "reading-itself")
    error = failure(run)
    assert isinstance(error, InvalidState)
    assert "read it in a step" in str(error)


@pytest.mark.parametrize("given", [{"after": -1}, {"after": "x"}, {"follow": 1}])
def test_bad_arguments_of_a_reader_are_refused(apps: Apps, given: dict[str, Any]) -> None:
    @workflow
    def flow() -> None: ...

    run = apps(flow, worker=False).start(flow)
    with pytest.raises(InvalidArgument):
        run.stream("log", **given)


def test_outside_of_runs_nothing_is_appended() -> None:
    detent.append("log", "in a unit test")
    asyncio.run(detent.aio.append("log", "in a unit test"))
