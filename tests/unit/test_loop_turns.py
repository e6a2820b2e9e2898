"""Commits that an event loop sends by itself: in order, answered once, and never stuck with the loop."""

from __future__ import annotations

import asyncio
import linecache
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from types import FrameType
from typing import Any, cast

import pytest

from detent.commit import committer as committer_module
from detent.commit import loop_turns
from detent.commit.committer import Committer
from detent.commit.entries import Entry
from detent.kernel.operations import Operation
from detent.stores.batch.apply import Applied
from tests.unit.faulty_committers import (
    PATIENCE,
    Call,
    FakeStore,
    Gone,
    Interrupted,
    Refused,
    record,
    run_of,
)

TRACED = (committer_module.__file__, loop_turns.__file__)


class Wire:
    """A connection that answers when the test says so, or at once."""

    def __init__(self, store: LoopStore) -> None:
        self.store = store
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.openings = 0
        self.is_open = False
        self.sent: list[Batch] = []
        self.answers_at_once = True
        self.then: Callable[[Batch], None] = lambda batch: None  # called when a batch was sent
        self.refuses: Callable[[list[str]], bool] = lambda runs: False  # such batches cannot be sent

    def open(self) -> None:
        if not self.is_open:
            self.is_open = True
            self.openings += 1

    def socket(self) -> int:
        return self.ours.dup().detach()

    def drop(self) -> None:
        self.is_open = False

    def send(self, operations: Sequence[Operation], **options: object) -> Batch | None:
        runs = [run_of(op) for op in operations]
        if self.refuses(runs):
            return None
        batch = Batch(self, runs)
        self.sent.append(batch)
        if self.answers_at_once:
            batch.land()
        self.then(batch)
        return batch

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


class Batch:
    """What was sent."""

    flushed = True

    def __init__(self, wire: Wire, runs: list[str]) -> None:
        self.wire = wire
        self.runs = runs
        self.begun = time.perf_counter()
        self.landed = threading.Event()
        self.error: Exception | None = None
        self.left: set[str] = set()  # what was not applied
        self.given_up = False

    def land(self, error: Exception | None = None, *, commits: bool = True) -> None:
        """The server has done it, and answers."""
        if commits:
            done = [run for run in self.runs if run not in self.left]
            assert not set(done) & set(self.wire.store.committed), "committed twice"
            self.wire.store.committed += done
        self.error = error
        self.wire.theirs.send(b"!")
        self.landed.set()  # last: from here on, the test may end and close the wire

    def arrived(self) -> bool:
        if not self.landed.is_set():
            return False
        self._take()
        return True

    def applied(self) -> Applied:
        assert self.landed.wait(PATIENCE)
        self._take()
        if self.error is not None:
            raise self.error
        return Applied([None if run in self.left else f"{run} is done" for run in self.runs])

    def _take(self) -> None:
        with suppress(BlockingIOError):
            self.wire.ours.recv(1)

    def give_up(self) -> None:
        self.given_up = True


class LoopStore(FakeStore):
    """A store whose batches can be sent by a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.loop_writer = Wire(self)


async def used(committer: Committer, store: LoopStore) -> None:
    """Commit until the loop leads: its connection is opened when its tasks commit."""
    while not (committer._turns is not None and committer._turns.here()):
        await committer.arun(record("first"))
        store.committed.clear()
        store.batches.clear()
    await until(lambda: committer._leading is None)


@asynccontextmanager
async def leading() -> AsyncIterator[tuple[Committer, LoopStore, Wire]]:
    """A committer for which the running loop leads."""
    store = LoopStore()
    wire = store.loop_writer
    committer = Committer(cast(Any, store))
    committer.lead_on(asyncio.get_running_loop())
    await used(committer, store)
    try:
        yield committer, store, wire
    finally:
        await asyncio.wait_for(asyncio.to_thread(committer.close), PATIENCE)
        await asyncio.sleep(0)
        wire.close()


def commit(committer: Committer, run: str) -> asyncio.Future[Any]:
    return asyncio.ensure_future(committer.arun(record(run), forever=True))


async def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)


async def answered(*futures: asyncio.Future[Any]) -> list[Any]:
    return await asyncio.wait_for(asyncio.gather(*futures), PATIENCE)


def test_what_tasks_commit_at_once_is_one_batch_of_their_loop() -> None:
    async def main() -> None:
        async with leading() as (committer, store, wire):
            assert await answered(*(commit(committer, f"{n}") for n in range(10))) == [
                f"{n} is done" for n in range(10)
            ]
            assert [batch.runs for batch in wire.sent] == [[f"{n}" for n in range(10)]]
            assert store.batches == []  # nothing went through the thread

    asyncio.run(main())


def test_a_loop_sends_the_next_batches_before_the_first_is_answered() -> None:
    async def main() -> None:
        async with leading() as (committer, _, wire):
            wire.answers_at_once = False
            futures = []
            for n in range(loop_turns.MOST_FLYING + 1):
                futures.append(commit(committer, f"{n}"))
                await asyncio.sleep(0.01)
                assert len(wire.sent) == min(n + 1, loop_turns.MOST_FLYING)
            wire.answers_at_once = True
            for batch in list(wire.sent):
                batch.land()
            assert await answered(*futures) == [f"{n} is done" for n in range(len(futures))]

    asyncio.run(main())


def test_operations_of_one_run_are_not_on_their_way_together() -> None:
    """If the first is refused, the second must not have been committed."""

    async def main() -> None:
        async with leading() as (committer, store, wire):
            wire.answers_at_once = False
            first = commit(committer, "a")
            await until(lambda: wire.sent)
            second, other = commit(committer, "a"), commit(committer, "b")
            await until(lambda: len(wire.sent) == 2)
            assert [batch.runs for batch in wire.sent] == [["a"], ["b"]]
            wire.sent[1].land()
            wire.sent[0].land()
            await answered(first, other)
            await until(lambda: len(wire.sent) == 3)
            store.committed.remove("a")
            wire.sent[2].land()
            assert await answered(second) == ["a is done"]

    asyncio.run(main())


def test_another_thread_commits_while_the_loop_is_blocked_with_a_batch_on_its_way() -> None:
    async def main() -> None:
        async with leading() as (committer, store, wire):
            wire.answers_at_once = False
            first = commit(committer, "first")
            await until(lambda: wire.sent)
            other = Call(committer, "other")  # the loop is blocked from here
            time.sleep(0.01)
            wire.sent[0].land()
            assert other.end().answer == "other is done"
            assert store.committed == ["first", "other"]
            assert await answered(first) == ["first is done"]
            wire.answers_at_once = True
            assert await answered(commit(committer, "next")) == ["next is done"]
            assert wire.sent[-1].runs == ["next"]  # the loop leads again

    asyncio.run(main())


def test_another_thread_commits_while_the_loop_is_blocked_before_it_sends() -> None:
    async def main() -> None:
        async with leading() as (committer, _, wire):
            first = commit(committer, "first")
            await asyncio.sleep(0)  # it is queued, and its turn is scheduled
            assert committer.loop_leads()
            assert Call(committer, "other").end().answer == "other is done"
            assert not wire.sent
            assert await answered(first) == ["first is done"]

    asyncio.run(main())


def test_a_caller_that_blocks_the_loop_itself_gets_its_answer() -> None:
    async def main() -> None:
        async with leading() as (committer, _, wire):
            wire.answers_at_once = False
            first = commit(committer, "first")
            await until(lambda: wire.sent)
            threading.Timer(0.01, wire.sent[0].land).start()
            assert committer.run(record("blocking")) == "blocking is done"
            assert await answered(first) == ["first is done"]

    asyncio.run(main())


def test_what_a_blocked_loop_has_sent_is_passed_on_after_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may wait for what it has committed."""
    monkeypatch.setattr(committer_module, "LOOK", 0.02)
    monkeypatch.setattr(loop_turns, "LOOK", 0.02)
    told = threading.Event()

    async def main() -> None:
        async with leading() as (committer, _, wire):
            committer.on_commit = lambda operations, applied: told.set()
            wire.answers_at_once = False
            first = commit(committer, "first")
            await until(lambda: wire.sent)
            wire.sent[0].land()
            assert told.wait(PATIENCE)  # in the thread of the loop, which is blocked by it
            assert await answered(first) == ["first is done"]

    asyncio.run(main())


def test_a_commit_whose_answer_was_lost_is_looked_up_and_not_sent_again() -> None:
    async def main() -> None:
        async with leading() as (committer, store, wire):
            wire.answers_at_once = False
            futures = [commit(committer, "a"), commit(committer, "b")]
            await until(lambda: wire.sent)
            wire.sent[0].land(Gone("the connection was lost"))
            assert await answered(*futures) == ["a is done", "b is done"]
            assert store.committed == ["a", "b"]
            assert store.batches == []

    asyncio.run(main())


def test_a_batch_that_is_refused_is_committed_by_the_thread_in_parts() -> None:
    async def main() -> None:
        async with leading() as (committer, store, wire):
            wire.answers_at_once = False

            def refuse(runs: list[str]) -> None:
                if "bad" in runs:
                    raise Refused

            store.before = refuse
            good, bad = commit(committer, "good"), commit(committer, "bad")
            await until(lambda: wire.sent)
            wire.sent[0].land(Refused("one of them"), commits=False)
            assert await answered(good) == ["good is done"]
            with pytest.raises(Refused):
                await answered(bad)
            assert store.committed == ["good"]

    asyncio.run(main())


def test_what_a_quick_statement_has_left_goes_the_long_way() -> None:
    async def main() -> None:
        async with leading() as (committer, store, wire):
            wire.answers_at_once = False
            quick, long = commit(committer, "quick"), commit(committer, "long")
            await until(lambda: wire.sent)
            wire.sent[0].left = {"long"}
            wire.sent[0].land()
            assert await answered(quick, long) == ["quick is done", "long is done"]
            assert store.batches == [["long"]]

    asyncio.run(main())


def test_what_cannot_be_sent_waits_for_what_is_on_its_way_and_goes_to_the_thread() -> None:
    async def main() -> None:
        async with leading() as (committer, store, wire):
            wire.answers_at_once = False
            wire.refuses = lambda runs: "slow" in runs
            first = commit(committer, "first")
            await until(lambda: wire.sent)
            slow = commit(committer, "slow")
            await asyncio.sleep(0.01)
            assert store.batches == []
            wire.sent[0].land()
            assert await answered(first, slow) == ["first is done", "slow is done"]
            assert store.committed == ["first", "slow"]

    asyncio.run(main())


def test_a_committer_that_closes_waits_for_what_its_loop_has_sent() -> None:
    async def main() -> None:
        async with leading() as (committer, store, wire):
            wire.answers_at_once = False
            futures = [commit(committer, "a")]
            await until(lambda: wire.sent)
            futures += [commit(committer, "b"), commit(committer, "c")]
            closing = asyncio.ensure_future(asyncio.to_thread(committer.close))
            await asyncio.sleep(0.01)
            wire.answers_at_once = True
            for batch in list(wire.sent):
                batch.land()
            await asyncio.wait_for(closing, PATIENCE)
            assert await answered(*futures) == ["a is done", "b is done", "c is done"]
            assert store.committed == ["a", "b", "c"]

    asyncio.run(main())


@pytest.mark.parametrize(
    "by_name",
    ["_lead", "_arrived", "_free", "_listen", "take_beside", "send_on_loop", "answer_sent", "end_turn"],
)
def test_a_loop_may_be_interrupted_in_any_line_of_its_turn(
    by_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line after the other, until none is left: nothing is without an answer, nothing is done twice."""
    monkeypatch.setattr(committer_module, "LOOK", 0.02)
    monkeypatch.setattr(loop_turns, "LOOK", 0.02)
    line = 0
    while _interrupt_at(by_name, line):
        line += 1
    assert line > 1


class Tracing:
    """Raises Interrupted in the nth line of a function."""

    def __init__(self, function: str, line: int) -> None:
        self.hit: list[int] = []
        self._function = function
        self._line = line
        self._lines: list[int] = []
        self._withs: dict[int, set[int]] = {}

    def trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename not in TRACED:
            return None
        if event == "line" and frame.f_code.co_name == self._function and not self.hit:
            text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
            entered = self._withs.setdefault(id(frame), set())
            left = frame.f_lineno in entered  # the interpreter lets nothing come between there
            if text.startswith("with "):
                entered.add(frame.f_lineno)
            if not left:
                self._lines.append(frame.f_lineno)
                if len(self._lines) > self._line:
                    self.hit.append(frame.f_lineno)
                    raise Interrupted
        return self.trace


def _interrupt_at(function: str, line: int) -> bool:
    tracing = Tracing(function, line)
    hit = tracing.hit
    loop = asyncio.new_event_loop()
    store = LoopStore()
    wire = store.loop_writer
    committer = Committer(cast(Any, store))
    committer.lead_on(loop)

    loop.run_until_complete(used(committer, store))
    entries = [committer.send(record(run), loop, forever=True) for run in ("a", "b")]

    async def wait() -> None:
        await until(lambda: all(entry.done for entry in entries))

    while not all(entry.done for entry in entries):
        sys.settrace(tracing.trace)
        try:
            loop.run_until_complete(asyncio.wait_for(wait(), PATIENCE))
        except Interrupted:
            continue
        finally:
            sys.settrace(None)
    assert [entry.answer for entry in entries] == ["a is done", "b is done"], f"{function}: line {hit}"
    assert sorted(store.committed) == ["a", "b"]
    assert Call(committer, "next").end().answer == "next is done", f"{function}: line {hit}"
    closing = threading.Thread(target=committer.close, daemon=True)
    closing.start()
    closing.join(PATIENCE)
    assert not closing.is_alive(), f"{function}: line {hit}"
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    wire.close()
    return bool(hit)


def test_what_a_loop_has_queued_when_it_ends_is_committed_at_the_close() -> None:
    """The loop has ended between the moment when it was to lead and the one when it would have."""
    store = LoopStore()
    committer = Committer(cast(Any, store))
    loop = asyncio.new_event_loop()
    committer.lead_on(loop)
    loop.run_until_complete(used(committer, store))

    async def send() -> list[Entry]:
        return [committer.send(record(run), loop, forever=True) for run in ("a", "b")]

    entries = loop.run_until_complete(send())
    assert committer.loop_leads()
    loop.close()
    closing = threading.Thread(target=committer.close, daemon=True)
    closing.start()
    closing.join(PATIENCE)
    assert not closing.is_alive()
    assert [entry.answer for entry in entries] == ["a is done", "b is done"]
    store.loop_writer.close()


def test_many_operations_are_sent_before_the_other_tasks_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_turns, "CHUNK", 5)

    async def main() -> None:
        async with leading() as (committer, _, wire):
            futures = [commit(committer, f"{n}") for n in range(12)]
            await answered(*futures)
            assert [len(batch.runs) for batch in wire.sent] == [5, 5, 2]

    asyncio.run(main())


def test_a_loop_whose_callback_was_lost_leads_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception of a signal handler can come after the loop has taken a callback, and before it runs."""
    monkeypatch.setattr(committer_module, "LOOK", 0.02)
    monkeypatch.setattr(loop_turns, "LOOK", 0.02)

    async def main() -> None:
        async with leading() as (committer, store, wire):
            assert committer._turns is not None
            with monkeypatch.context() as patch:
                patch.setattr(committer._turns, "_scheduled_lead", lambda: None)
                assert await answered(commit(committer, "lost")) == ["lost is done"]
            assert store.batches == [["lost"]]
            assert await answered(commit(committer, "next")) == ["next is done"]
            assert [batch.runs for batch in wire.sent] == [["next"]]

    asyncio.run(main())


def test_a_thread_whose_loop_is_closed_can_commit() -> None:
    """A loop may be closed without its app, and its thread continue."""
    store = LoopStore()
    committer = Committer(cast(Any, store))
    loop = asyncio.new_event_loop()
    committer.lead_on(loop)
    loop.run_until_complete(used(committer, store))
    loop.close()
    committer.post(record("a"), forever=True)
    deadline = time.monotonic() + PATIENCE
    while store.committed != ["a"]:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    committer.close()
    store.loop_writer.close()
