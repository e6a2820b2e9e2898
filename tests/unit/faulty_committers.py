"""Committers with stores that fail, and callers that can be interrupted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from detent.commit.committer import Committer
from detent.errors import DatabaseUnavailable
from detent.kernel.operations import Operation, Record, Start
from detent.kernel.rows import NewRun
from detent.stores.batch.apply import Applied
from detent.stores.driver import Trouble

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
        runs = [run_of(op) for op in operations]
        self.batches.append(runs)
        self.before(runs)
        assert not set(runs) & set(self.committed), "committed twice"
        self.committed += runs
        self.after(runs)
        return Applied([f"{run} is done" for run in runs])

    def already_applied(self, operation: Operation) -> Any:
        run = run_of(operation)
        return f"{run} is done" if run in self.committed else None

    def explain_conflict(self, operation: Operation) -> Any:
        return None


def run_of(operation: Operation) -> str:
    return operation.runs[0].id if isinstance(operation, Start) else cast(Record, operation).run_id


def record(run: str) -> Record:
    return Record(worker="w", run_id=run)


def begin(run: str, *, copies: int = 0, **given: Any) -> Start:
    runs = [NewRun(run, "f", "function", "default", 0, "[]", 1)]
    return Start(runs=runs * (1 + copies), executions=[], **given)


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
