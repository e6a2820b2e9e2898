"""Starts of the main thread, which an event loop in another thread commits (commit/committer.py)."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from detent.commit import committer as committer_module
from detent.commit import loop_turns
from detent.commit.committer import Committer
from detent.commit.entries import FEW_RUNS
from tests.unit.faulty_committers import PATIENCE, Interrupted, begin, record
from tests.unit.test_loop_turns import Batch, LoopStore, Tracing, used


@contextmanager
def loop_beside() -> Iterator[tuple[Committer, LoopStore, asyncio.AbstractEventLoop]]:
    """A committer for which a loop in another thread leads; the test is the main thread."""
    assert threading.current_thread() is threading.main_thread()
    store = LoopStore()
    committer = Committer(cast(Any, store))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    committer.lead_on(loop)
    asyncio.run_coroutine_threadsafe(used(committer, store), loop).result(PATIENCE)
    try:
        yield committer, store, loop
    finally:
        committer.close()
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE)
        loop.close()
        store.loop_writer.close()


def test_a_loop_commits_a_start_of_the_main_thread() -> None:
    with loop_beside() as (committer, store, _):
        assert committer.run(begin("a")) == "a is done"
        assert [batch.runs for batch in store.loop_writer.sent] == [["a"]]
        assert store.batches == []  # nothing went through the thread


@pytest.mark.parametrize("blocked", ["before it sends", "with the start on its way"])
def test_a_start_of_the_main_thread_does_not_wait_for_a_loop_that_is_blocked(blocked: str) -> None:
    with loop_beside() as (committer, store, loop):
        wire, free = store.loop_writer, threading.Event()
        if blocked == "before it sends":
            loop.call_soon_threadsafe(free.wait, PATIENCE)
        else:
            wire.answers_at_once = False

            def block(batch: Batch) -> None:
                loop.call_soon(free.wait, PATIENCE)
                batch.land()

            wire.then = block
        assert committer.run(begin("a")) == "a is done"  # the thread has taken over: the loop is blocked yet
        assert not free.is_set()
        assert store.committed == ["a"]
        free.set()


def test_a_loop_that_leads_takes_a_start_of_the_main_thread_with_its_next_batch() -> None:
    with loop_beside() as (committer, store, loop):
        wire = store.loop_writer
        wire.answers_at_once = False
        first = asyncio.run_coroutine_threadsafe(committer.arun(record("first")), loop)
        eventually(lambda: len(wire.sent) == 1)

        def land(batch: Batch) -> None:
            wire.sent[0].land()
            batch.land()

        wire.then = land
        assert committer.run(begin("a")) == "a is done"
        assert first.result(PATIENCE) == "first is done"
        assert [batch.runs for batch in wire.sent] == [["first"], ["a"]]


@pytest.mark.parametrize("given", [{"chosen": True}, {"copies": FEW_RUNS}], ids=["chosen id", "many"])
def test_a_start_that_does_not_suit_a_loop_goes_to_the_thread_at_once(given: Any) -> None:
    with loop_beside() as (committer, store, _):
        assert committer.run(begin("a", **given)) == "a is done"
        assert store.batches == [["a"]]
        assert store.loop_writer.sent == []


@pytest.mark.parametrize("by_name", ["run", "_join", "_turns_for", "schedule"])
def test_the_main_thread_may_be_interrupted_in_any_line_of_a_start(
    by_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line after the other, until none is left: the next operations are committed, nothing is twice."""
    monkeypatch.setattr(committer_module, "LOOK", 0.02)
    monkeypatch.setattr(loop_turns, "LOOK", 0.02)
    line = 0
    while _interrupt_start_at(by_name, line):
        line += 1
    assert line > 1


def _interrupt_start_at(function: str, line: int) -> bool:
    tracing = Tracing(function, line)
    with loop_beside() as (committer, store, loop):
        sys.settrace(tracing.trace)
        try:
            assert committer.run(begin("a")) == "a is done"
        except Interrupted:
            assert tracing.hit
        finally:
            sys.settrace(None)
        assert committer.run(begin("b")) == "b is done", f"{function}: line {tracing.hit}"
        there = asyncio.run_coroutine_threadsafe(committer.arun(record("c")), loop)
        assert there.result(PATIENCE) == "c is done", f"{function}: line {tracing.hit}"
        eventually(lambda: committer._leading is None and not committer._queue)
        assert store.committed in (["a", "b", "c"], ["b", "c"])
    return bool(tracing.hit)


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)
