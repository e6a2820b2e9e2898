"""The committer under faults: every caller gets an answer, and what was committed is not committed again."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, cast

import pytest

from detent.commit import batch_attempts
from detent.commit.entries import Entry
from detent.errors import DatabaseUnavailable
from detent.kernel.operations import Operation, Record, Settle, Settled, SettlePlan, Start, Started, Verdict
from detent.kernel.rows import ExecutionKey
from detent.stores.batch.apply import Applied
from detent.stores.batch.graphs import MustGoAlone
from tests.conformance.builders import new_main, new_run
from tests.unit.faulty_committers import (
    PATIENCE,
    Call,
    FakeStore,
    Gone,
    Interrupted,
    Refused,
    busy,
    opened,
    queued,
    record,
)


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
    monkeypatch.setattr(batch_attempts, "FIRST_WAIT", 0.0)
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

    def wait_or_leave(entry: Entry, seconds: float = -1) -> bool:
        if cast(Record, entry.operation).run_id == "leaves":
            assert taken.wait(PATIENCE)
            raise Interrupted
        return wait(entry, seconds)

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
