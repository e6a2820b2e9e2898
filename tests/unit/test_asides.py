"""Operations that another transaction blocks: they wait aside, in order, and get an answer."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from detent.errors import DatabaseUnavailable
from detent.kernel.operations import Operation, Record
from detent.stores.batch.apply import Applied
from detent.stores.driver import Line, Trouble
from detent.stores.store import PartlyApplied
from tests.unit.faulty_committers import PATIENCE, Call, FakeDriver, FakeStore, busy, opened, queued


class Blocked(Exception):
    """Another transaction has locked the run."""


class BlockingDriver(FakeDriver):
    def trouble(self, error: BaseException) -> Trouble:
        return Trouble.RETRY if isinstance(error, Blocked) else super().trouble(error)

    def blocked(self, error: BaseException) -> bool:
        return isinstance(error, Blocked)

    def refused(self, error: BaseException) -> bool:
        return isinstance(error, Blocked) or super().refused(error)


class BlockingStore(FakeStore):
    """Some runs are locked by somebody else.  A run may be recorded more than once."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = BlockingDriver()
        self.locked: set[str] = set()
        self.lines: list[tuple[Line, list[str]]] = []

    def apply(self, operations: Sequence[Operation], **options: object) -> Applied:
        runs = [cast(Record, op).run_id for op in operations]
        workers = [cast(Record, op).worker for op in operations]
        self.before(runs)
        self.lines.append((cast(Line, options["line"]), runs))
        if self.locked & set(runs):
            raise Blocked
        self.committed += workers
        return Applied([f"{worker} is done" for worker in workers])

    def already_applied(self, operation: Operation) -> Any:
        return None


def eventually(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class Recording(Call):
    """Records under a name of its own, so that the order of commits is seen."""

    def __init__(self, committer: Any, run: str, name: str) -> None:
        self.record_name = name
        super().__init__(committer, run)

    def run(self) -> None:
        try:
            self.answer = self._committer.run(Record(worker=self.record_name, run_id=self.run_id))
        except BaseException as error:
            self.error = error


def test_the_operation_that_is_blocked_waits_and_its_neighbours_are_committed() -> None:
    store = BlockingStore()
    store.locked = {"run 3"}
    with opened(store, patience=PATIENCE) as committer:
        with busy(committer, store):
            calls = []
            for number in range(8):
                calls.append(Recording(committer, f"run {number}", f"record {number}"))
                queued(committer, number + 1)
        others = [call for call in calls if call.run_id != "run 3"]
        assert all(call.end().answer == f"{call.record_name} is done" for call in others)
        assert calls[3].is_alive()
        store.locked = set()
        assert calls[3].end().answer == "record 3 is done"
    assert {line for line, runs in store.lines if runs == ["run 3"]} == {Line.SPLIT, Line.ASIDE}


def test_later_operations_of_a_blocked_run_keep_their_order() -> None:
    store = BlockingStore()
    store.locked = {"held"}
    with opened(store, patience=PATIENCE) as committer:
        calls = []
        for number in range(5):
            calls.append(Recording(committer, "held", f"record {number}"))
            eventually(lambda: len(committer._asides._members) == len(calls))
        tries = sum(line is not Line.ASIDE for line, _ in store.lines)
        assert tries == 1, "who comes later does not have to find out"
        assert Recording(committer, "other", "other").end().answer == "other is done"
        store.locked = set()
        assert [call.end().answer for call in calls] == [f"record {n} is done" for n in range(5)]
    assert store.committed == ["other", *(f"record {number}" for number in range(5))]


def test_many_blocked_operations_do_not_keep_a_free_one_from_its_turn() -> None:
    """There are fewer threads than blocked operations: they take turns."""
    store = BlockingStore()
    store.locked = {f"held {number}" for number in range(20)}
    with opened(store, patience=PATIENCE) as committer:
        calls = [Recording(committer, run, run) for run in sorted(store.locked)]
        eventually(lambda: len(committer._asides._members) == 20)
        store.locked.remove("held 7")
        store.locked.remove("held 19")
        for call in calls:
            if call.run_id in ("held 7", "held 19"):
                assert call.end().answer == f"{call.run_id} is done"
        assert all(call.is_alive() for call in calls if call.run_id in store.locked)
        store.locked = set()
        assert all(call.end().answer for call in calls)


def test_patience_ends_also_for_what_waits_behind() -> None:
    store = BlockingStore()
    store.locked = {"held"}
    with opened(store, patience=0.3) as committer:
        calls = [Recording(committer, "held", f"record {number}") for number in range(3)]
        assert all(isinstance(call.end().error, DatabaseUnavailable) for call in calls)
        assert not committer._asides
        store.locked = set()
        assert Recording(committer, "held", "next").end().answer == "next is done"


def test_what_was_committed_beside_a_blocked_operation_is_answered_and_not_tried_again() -> None:
    """A store may commit some operations of a batch by a statement of their own."""
    store = BlockingStore()
    store.locked = {"held"}

    def apply(operations: Sequence[Operation], **options: object) -> Applied:
        free = [op for op in operations if cast(Record, op).run_id not in store.locked]
        answers = [None if op not in free else f"{cast(Record, op).worker} is done" for op in operations]
        store.before([cast(Record, op).run_id for op in operations])
        store.committed += [cast(Record, op).worker for op in free]
        if len(free) < len(operations):
            raise PartlyApplied(answers, Blocked()) if free else Blocked
        return Applied(answers)

    store.apply = apply  # type: ignore[method-assign]
    with opened(store, patience=PATIENCE) as committer:
        with busy(committer, store):
            calls = []
            for number, run in enumerate(["a", "held", "b"]):
                calls.append(Recording(committer, run, run))
                queued(committer, number + 1)
        assert [calls[0].end().answer, calls[2].end().answer] == ["a is done", "b is done"]
        store.locked = set()
        assert calls[1].end().answer == "held is done"
    assert sorted(store.committed) == ["a", "b", "held", "w"]


def test_without_a_thread_the_operation_stays_where_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = BlockingStore()
    store.locked = {"held"}
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "detent-aside":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with opened(store, patience=PATIENCE) as committer:
        call = Recording(committer, "held", "record")
        eventually(lambda: len(store.lines) > 2)
        assert call.is_alive()
        store.locked = set()
        assert call.end().answer == "record is done"
