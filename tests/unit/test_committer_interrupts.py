"""Callers that are interrupted while the committer works: the others get their answers."""

from __future__ import annotations

import ctypes
import gc
import linecache
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from detent.commit import batch_attempts, committer
from tests.unit.faulty_committers import (
    PATIENCE,
    Call,
    FakeStore,
    Interrupted,
    busy,
    opened,
    queued,
    record,
)

FILES = (batch_attempts.__file__, committer.__file__)


class Interruptible(Call):
    """A call that may be interrupted once, from when it has begun until it is released.

    An exception that arrived before or after that would be raised in the code of `threading`, which reports
    it as unraisable, and may leave a lock of its own locked.
    """

    begun = False
    released = False

    def run(self) -> None:
        try:
            self.begun = True
            self.answer = self._committer.run(record(self.run_id))
            while not self.released:
                time.sleep(0.001)
            time.sleep(0)  # here at the latest, an exception that is pending is raised
        except BaseException as error:
            self.error = error

    def interrupt(self) -> None:
        while not self.begun:
            time.sleep(0.001)
        assert self.ident is not None
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident), ctypes.py_object(Interrupted))


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """A finalizer that the collector calls would swallow an exception that arrives in it."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_a_signal_in_a_waiting_main_thread_does_not_stop_the_commits_of_others() -> None:
    """The main thread waits for its turn; Ctrl-C takes it away.  It must not be asked to lead after that."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted

    store, before = FakeStore(), signal.signal(signal.SIGUSR1, interrupt)
    main = threading.main_thread().ident
    assert main is not None
    try:
        with opened(store) as committer:

            def disturb() -> None:
                queued(committer, 1)
                time.sleep(0.05)
                signal.pthread_kill(main, signal.SIGUSR1)

            with busy(committer, store):
                threading.Thread(target=disturb, daemon=True).start()
                with pytest.raises(Interrupted):
                    committer.run(record("main"))
            assert Call(committer, "next").end().answer == "next is done"
            assert committer.run(record("main again")) == "main again is done"
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_the_main_thread_does_not_commit_by_itself() -> None:
    """A signal handler may raise in any line of it; its commit must not be cut in the middle."""
    store, threads = FakeStore(), []
    store.before = lambda runs: threads.append(threading.current_thread())
    with opened(store) as committer:
        committer.run(record("one"))
    assert threads[0] is not threading.main_thread()


def test_a_leader_interrupted_in_its_commit_leaves_the_others_their_answers() -> None:
    store = FakeStore()
    with opened(store) as committer:
        with busy(committer, store):
            leads = Call(committer, "leads")
            queued(committer, 1)
            others = [Call(committer, f"other {number}") for number in range(3)]
            queued(committer, 4)

            def interrupt(runs: list[str]) -> None:
                if threading.current_thread() is leads:
                    raise Interrupted

            store.after = interrupt
        assert isinstance(leads.end().error, Interrupted)
        assert [call.end().answer for call in others] == [f"{call.run_id} is done" for call in others]
        assert Call(committer, "next").end().answer == "next is done"


def test_what_an_interrupted_leader_has_committed_is_looked_up_and_not_sent_again() -> None:
    store = FakeStore()
    with opened(store) as committer:
        with busy(committer, store):
            leads = Call(committer, "leads")
            queued(committer, 1)
            other = Call(committer, "other")
            queued(committer, 2)

            def interrupt(runs: list[str]) -> None:
                if threading.current_thread() is leads:
                    raise Interrupted

            store.after = interrupt
        assert isinstance(leads.end().error, Interrupted)
        assert other.end().answer == "other is done"
    assert store.batches == [["first"], ["leads", "other"]]


@pytest.mark.parametrize("by_name", ["run", "_lead", "_take", "_commit", "_try", "_answer", "_hand_on"])
def test_a_leader_may_be_interrupted_in_any_line(by_name: str) -> None:
    """One line after the other, until none is left: nobody stays without an answer."""
    line = 0
    while _interrupt_at(by_name, line):
        line += 1
    assert line > 1


def _interrupt_at(function: str, line: int) -> bool:
    """Interrupt the leader in the nth line of a function; False where there is no such line."""
    store = FakeStore()
    hit: list[int] = []

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename not in FILES:
            return None
        if event == "line" and frame.f_code.co_name == function and not hit:
            if leaves_a_with(frame):  # the interpreter lets nothing come between there
                return trace
            lines.append(frame.f_lineno)
            if len(lines) > line:
                hit.append(frame.f_lineno)
                raise Interrupted
        return trace

    def leaves_a_with(frame: FrameType) -> bool:
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        entered = withs.setdefault(id(frame), set())
        before = frame.f_lineno in entered
        if text.startswith("with "):
            entered.add(frame.f_lineno)
        return before

    class Leader(Call):
        def run(self) -> None:
            sys.settrace(trace)
            super().run()
            sys.settrace(None)

    lines: list[int] = []
    withs: dict[int, set[int]] = {}
    with opened(store) as committer:
        with busy(committer, store):
            leads = Leader(committer, "leads")
            while leads.is_alive() and not committer._queue:
                time.sleep(0.001)
            other = Call(committer, "other")
            queued(committer, 1 + leads.is_alive())
        assert other.end().answer == "other is done", f"{function}: line {hit}"
        assert Call(committer, "next").end().answer == "next is done", f"{function}: line {hit}"
        leads.end()
        assert leads.answer == "leads is done" or isinstance(leads.error, Interrupted) == bool(hit)
    return bool(hit)


def test_an_operation_does_not_fail_because_its_leaders_are_interrupted_one_after_the_other() -> None:
    """Every caller that commits in its own thread is interrupted while it does."""
    store = FakeStore()
    own_thread: list[str] = []

    def interrupt(runs: list[str]) -> None:
        if threading.current_thread().name != "detent-committer":
            own_thread.append(threading.current_thread().name)
            raise Interrupted

    with opened(store) as committer:
        with busy(committer, store):
            calls = [Call(committer, f"leader {number}") for number in range(6)]
            queued(committer, len(calls))
            store.before = interrupt
        answers = [call.end().answer for call in calls]
    assert own_thread
    assert answers.count(None) == len(own_thread) == 1


def test_a_storm_of_interruptions_leaves_nothing_stuck() -> None:
    """Exceptions set in any thread at any moment; each caller ends, and the next commit goes through."""
    store, seed = FakeStore(), random.Random(11)
    with no_garbage_collection(), opened(store) as committer:
        for round in range(40):
            calls = [Interruptible(committer, f"{round}.{number}") for number in range(8)]
            for call in seed.sample(calls, 3):
                call.interrupt()
            calm = Call(committer, f"{round} calm")
            for call in calls:
                call.released = True
            for thread in [*calls, calm]:
                thread.join(PATIENCE)
                assert not thread.is_alive(), f"{thread.run_id} is stuck"
            assert calm.answer == f"{round} calm is done"
            for call in calls:
                assert call.answer == f"{call.run_id} is done" or isinstance(call.error, Interrupted)
