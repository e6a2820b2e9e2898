"""The committer under faults: every caller gets an answer, and what was committed is not committed again."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import linecache
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, cast

import pytest

from detent.commit import committer as commit
from detent.commit.committer import Committer
from detent.commit.entries import Entry
from detent.errors import DatabaseUnavailable
from detent.kernel.operations import Operation, Record, Settle, Settled, SettlePlan, Start, Started, Verdict
from detent.kernel.rows import ExecutionKey
from detent.stores.batch.apply import Applied
from detent.stores.batch.graphs import MustGoAlone
from detent.stores.driver import Trouble
from tests.conformance.builders import new_main, new_run

PATIENCE = 20.0


class Gone(Exception):
    """The database is away."""


class Refused(Exception):
    """The database has said no."""


class Interrupted(BaseException):
    """Like KeyboardInterrupt: it may come in any line."""


class FakeDriver:
    name = "a fake"

    def trouble(self, error: BaseException) -> Trouble:
        return Trouble.GONE if isinstance(error, Gone | DatabaseUnavailable) else Trouble.OTHER

    def refused(self, error: BaseException) -> bool:
        return isinstance(error, Refused)

    def blocked(self, error: BaseException) -> bool:
        return False


class FakeStore:
    """Commits records by their run's id, and counts."""

    def __init__(self) -> None:
        self.driver = FakeDriver()
        self.committed: list[str] = []
        self.batches: list[list[str]] = []
        self.before: Callable[[list[str]], None] = lambda runs: None
        self.after: Callable[[list[str]], None] = lambda runs: None

    def apply(self, operations: Sequence[Operation], **options: object) -> Applied:
        runs = [cast(Record, op).run_id for op in operations]
        self.batches.append(runs)
        self.before(runs)
        assert not set(runs) & set(self.committed), "committed twice"
        self.committed += runs
        self.after(runs)
        return Applied([f"{run} is done" for run in runs])

    def already_applied(self, operation: Operation) -> Any:
        run = cast(Record, operation).run_id
        return f"{run} is done" if run in self.committed else None

    def explain_conflict(self, operation: Operation) -> Any:
        return None


def record(run: str) -> Record:
    return Record(worker="w", run_id=run)


@contextmanager
def opened(store: Any, **settings: Any) -> Iterator[Committer]:
    committer = Committer(store, **settings)
    try:
        yield committer
    finally:
        closing = threading.Thread(target=committer.close, daemon=True)
        closing.start()
        closing.join(PATIENCE)
        assert not closing.is_alive(), "the committer does not close"


class Call(threading.Thread):
    """A thread that commits one operation, and keeps what came of it."""

    def __init__(self, committer: Committer, run: str, *, forever: bool = False) -> None:
        super().__init__(daemon=True)
        self._committer = committer
        self.run_id = run
        self._forever = forever
        self.answer: Any = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.answer = self._committer.run(record(self.run_id), forever=self._forever)
        except BaseException as error:
            self.error = error

    def end(self) -> Call:
        self.join(PATIENCE)
        assert not self.is_alive(), f"{self.run_id} has no answer"
        return self


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


def queued(committer: Committer, count: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while len(committer._queue) < count:
        assert time.monotonic() < deadline
        time.sleep(0.001)


@contextmanager
def busy(committer: Committer, store: FakeStore) -> Iterator[None]:
    """Another thread commits until the block ends; what comes meanwhile is queued."""
    begun, gate = threading.Event(), threading.Event()

    def hold(runs: list[str]) -> None:
        if runs == ["first"]:
            begun.set()
            assert gate.wait(PATIENCE)

    store.before = hold
    first = Call(committer, "first")
    assert begun.wait(PATIENCE)
    try:
        yield
    finally:
        gate.set()
        first.end()


def test_an_operation_is_answered_only_after_its_commit() -> None:
    store, begun, gate = FakeStore(), threading.Event(), threading.Event()

    def hold(runs: list[str]) -> None:
        begun.set()
        assert gate.wait(PATIENCE)

    with opened(store) as committer:
        with busy(committer, store):
            leads = Call(committer, "leads")
            queued(committer, 1)
            other = Call(committer, "other")
            queued(committer, 2)
            store.before = hold
        assert begun.wait(PATIENCE)
        other.join(0.1)
        answered = not other.is_alive()
        gate.set()
        assert (answered, leads.end().answer, other.end().answer) == (False, "leads is done", "other is done")


# Interrupted callers


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
        if frame.f_code.co_filename != commit.__file__:
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
        text = linecache.getline(commit.__file__, frame.f_lineno).strip()
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


# The database is away


def test_patience_ends_where_reads_work_and_commits_do_not() -> None:
    """A full disk, a read-only server: the look-up answers, the commit fails.  The waits keep growing."""
    store, tries = FakeStore(), []

    def refuse(runs: list[str]) -> None:
        tries.append(time.monotonic())
        raise Gone("the disk is full")

    store.before = refuse
    with opened(store, patience=2.0) as committer:
        begun = time.monotonic()
        with pytest.raises(DatabaseUnavailable):
            committer.run(record("one"))
        assert 1.5 < time.monotonic() - begun < PATIENCE
    assert 3 <= len(tries) <= 8  # after 0.05, 0.1, 0.2, 0.4, 0.8 ... seconds


def test_a_long_absence_does_not_end_in_a_recursion_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "FIRST_WAIT", 0.0)
    store, tries = FakeStore(), []

    def refuse(runs: list[str]) -> None:
        tries.append(runs)
        if len(tries) < 3 * sys.getrecursionlimit():
            raise Gone("read-only")

    store.before = refuse
    with opened(store) as committer:
        assert Call(committer, "one", forever=True).end().answer == "one is done"


def test_the_patience_of_one_does_not_depend_on_that_of_its_neighbours() -> None:
    """One waits for the database for ever; another shares its batch, a third comes later."""
    store, away = FakeStore(), threading.Event()
    away.set()

    def refuse(runs: list[str]) -> None:
        if away.is_set() and "first" not in runs:
            raise Gone("away")

    with opened(store, patience=0.5) as committer:
        with busy(committer, store):
            calls = [Call(committer, "impatient"), Call(committer, "patient", forever=True)]
            queued(committer, 2)
            gate = store.before

            def both(runs: list[str]) -> None:
                gate(runs)
                refuse(runs)

            store.before = both
        calls.append(Call(committer, "late"))
        assert isinstance(calls[0].end().error, DatabaseUnavailable)
        assert isinstance(calls[2].end().error, DatabaseUnavailable)
        assert calls[1].is_alive()
        away.clear()
        assert calls[1].end().answer == "patient is done"


# The error is no answer


def test_a_leader_that_gave_up_while_closing_commits_what_is_queued() -> None:
    """There is nobody else left who could."""
    store = FakeStore()
    begun, gate = threading.Event(), threading.Event()

    def first_fails(runs: list[str]) -> None:
        store.before = lambda runs: None
        begun.set()
        assert gate.wait(PATIENCE)
        raise Gone

    store.before = first_fails
    with opened(store) as committer:
        leader = Call(committer, "a")
        assert begun.wait(PATIENCE)
        committer.post(record("b"), forever=True)
        closing = threading.Thread(target=committer.close, daemon=True)
        closing.start()
        assert committer._closing.wait(PATIENCE)
        gate.set()
        assert isinstance(leader.end().error, DatabaseUnavailable)
        closing.join(PATIENCE)
    assert store.committed == ["b"]


def test_a_commit_that_ended_in_a_strange_error_is_looked_up() -> None:
    """Whatever the driver raises instead of an answer: what was committed is answered as committed."""
    store = FakeStore()

    def break_once(runs: list[str]) -> None:
        store.after = lambda runs: None
        raise AssertionError("the driver is confused")

    with opened(store) as committer:
        with busy(committer, store):
            calls = [Call(committer, f"{number}") for number in range(5)]
            queued(committer, 5)
            store.after = lambda runs: None if runs == ["first"] else break_once(runs)
        assert [call.end().answer for call in calls] == [f"{number} is done" for number in range(5)]


def test_a_start_that_is_still_being_committed_when_it_is_looked_up_is_ours() -> None:
    """The look-up comes too early; the second try finds the run, and must not take it for another's."""
    start = Start(runs=[], executions=[])

    class Late(FakeStore):
        looks = tries = 0

        def apply(self, operations: Sequence[Operation], **options: object) -> Applied:
            self.tries += 1
            if self.tries == 1:
                raise Gone("cut off")
            return Applied([[Started(id="r", created=False)]])

        def already_applied(self, operation: Operation) -> Any:
            self.looks += 1
            return [Started(id="r", created=True)] if self.looks > 1 else None

    with opened(Late()) as committer:
        [answer] = committer.run(start)
    assert answer.created


def test_what_follows_a_commit_cannot_undo_it() -> None:
    """The hook fails: the callers still get their answers, and the leases are looked for."""
    store = FakeStore()

    def fail(operations: Sequence[Operation], applied: Applied) -> None:
        raise RuntimeError("no more threads")

    with opened(store, on_commit=fail) as committer:
        assert committer.run(record("one")) == "one is done"
        assert committer.run(record("two")) == "two is done"


def test_leases_whose_delivery_failed_are_reported_to_the_worker() -> None:
    """They are committed, so the database holds them for this worker: it has to look for them."""
    lost: list[str] = []

    class Leasing(FakeStore):
        def apply(self, operations: Sequence[Operation], **options: object) -> Applied:
            applied = super().apply(operations, **options)
            applied.leased = [(new_main(worker="w", token="t7"), new_run())]
            return applied

    class Worker:
        id = "w"

        def unconfirmed(self, tokens: Iterable[str]) -> None:
            lost.extend(tokens)

    def fail(operations: Sequence[Operation], applied: Applied) -> None:
        raise RuntimeError("no more threads")

    with opened(Leasing(), on_commit=fail, slots=Worker) as committer:
        assert committer.run(record("one")) == "one is done"
    assert lost == ["t7"]


# Batches that fail


def test_one_bad_operation_among_a_thousand_costs_a_few_commits() -> None:
    store = FakeStore()

    def refuse(runs: list[str]) -> None:
        if "612" in runs:
            raise Refused("that one")

    store.before = refuse
    with opened(store) as committer:
        entries = [Entry(record(str(number)), None) for number in range(1000)]
        committer._commit(entries)
    assert [entry.operation.run_id for entry in entries if entry.error] == ["612"]  # type: ignore[attr-defined]
    assert store.committed == [str(number) for number in range(1000) if number != 612]  # in their order
    assert len(store.batches) <= 25


def test_runs_that_are_recounted_share_their_commits() -> None:
    """Each of 100 runs settles ten nodes, and takes one at a time until it was recounted."""

    class Recounting(FakeStore):
        recounted: set[str]

        def apply(self, operations: Sequence[Operation], **options: object) -> Applied:
            runs = [cast(Settle, op).key.run_id for op in operations]
            self.batches.append(runs)
            repeated = {run for run in runs if runs.count(run) > 1} - self.recounted
            if repeated:
                raise MustGoAlone(repeated)
            self.recounted |= set(runs)
            self.committed += [f"{op.key.run_id}.{op.key.node}" for op in cast(Sequence[Settle], operations)]
            return Applied([Settled(verdict=Verdict.APPLIED)] * len(runs))

    store = Recounting()
    store.recounted = set()
    plan = SettlePlan(state="completed", outcome="success")
    entries = [
        Entry(
            Settle(
                worker="w",
                key=ExecutionKey(run_id=f"{run}", node=f"{node}", attempt=1),
                token="",
                now=0,
                plan=plan,
            ),
            None,
        )
        for node in range(10)
        for run in range(100)
    ]
    with opened(store) as committer:
        committer._commit(entries)
    assert len(store.batches) <= 3
    assert store.committed == [f"{run}.{node}" for node in range(10) for run in range(100)]


def test_a_caller_that_has_left_is_not_made_the_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """It left while its operation was in a batch, whose leader was then interrupted, too."""
    store = FakeStore()
    wait, taken, left = Entry.wait, threading.Event(), threading.Event()

    def wait_or_leave(entry: Entry) -> None:
        if cast(Record, entry.operation).run_id == "leaves":
            assert taken.wait(PATIENCE)
            raise Interrupted
        wait(entry)

    def interrupt(runs: list[str]) -> None:
        if "leads" in runs:
            taken.set()
            assert left.wait(PATIENCE)
            raise Interrupted

    monkeypatch.setattr(Entry, "wait", wait_or_leave)
    with opened(store) as committer:
        with busy(committer, store):
            calls = []
            for number, run in enumerate(["leads", "leaves", "stays"], start=1):
                calls.append(Call(committer, run))
                queued(committer, number)
            store.before = interrupt
        calls[1].end()
        left.set()
        assert isinstance(calls[0].end().error, Interrupted)
        assert isinstance(calls[1].error, Interrupted)
        assert calls[2].end().answer == "stays is done"


def test_without_a_thread_for_the_committer_the_caller_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    store = FakeStore()
    with opened(store) as committer:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fail)
            assert committer.run(record("one")) == "one is done"
            committer.post(record("two"))
            assert asyncio.run(committer.arun(record("three"))) == "three is done"
        assert committer.run(record("four")) == "four is done"
    assert store.committed == ["one", "two", "three", "four"]


def test_the_main_thread_is_served_when_it_comes_while_another_thread_commits() -> None:
    """The main thread does not lead, and the committer's own thread does not exist yet."""
    store = FakeStore()
    entered, go_on = threading.Event(), threading.Event()

    def hold(runs: list[str]) -> None:
        if runs == ["first"]:
            entered.set()
            assert go_on.wait(PATIENCE)

    store.before = hold
    with opened(store) as committer:
        first = Call(committer, "first")
        assert entered.wait(PATIENCE)

        def let_go() -> None:
            while not committer._queue:
                time.sleep(0.001)
            go_on.set()

        threading.Thread(target=let_go, daemon=True).start()
        assert committer.run(record("main")) == "main is done"
        assert first.end().answer == "first is done"
