"""The committer: many small writes, one transaction.

Every write of the process comes here as an operation.  Whatever has gathered
while the previous commit was under way goes into the next one; there is no timer,
so alone an operation is committed at once, and under load batches grow by
themselves.  An operation is answered only after its commit.

A sync caller that finds nobody committing commits by itself and takes along what
others have queued: a hop to another thread would cost as much as the commit.  When
it is done it hands on to the next sync caller that waits, or to the committer's
thread, which serves asyncio callers, because a loop must not block.

One bad operation does not fail its neighbours: its batch is replayed one by one.
A database that is gone is waited for; what was cut off in the middle of a commit
is looked up before it is tried again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from .errors import DatabaseUnavailable, InvalidDecision
from .kernel.decide import Decide, Decided, Enqueue
from .kernel.model import Operation, Record, Settle, Start
from .stores.base import Lessor, Trouble
from .stores.batch import Applied
from .stores.sql import SqlStore

log = logging.getLogger("detent")
LARGEST_BATCH = 1000
LARGEST_BYTES = 4 * 1024 * 1024
FIRST_WAIT, LONGEST_WAIT = 0.05, 2.0


class Entry:
    """An operation on its way, and who waits for it."""

    __slots__ = (
        "_signal",
        "answer",
        "cancelled",
        "deadline",
        "done",
        "error",
        "future",
        "leads",
        "loop",
        "operation",
        "postponed",
        "tried",
    )

    def __init__(self, operation: Operation, patience: float | None) -> None:
        self.operation = operation
        self.deadline = None if patience is None else time.monotonic() + patience
        self.answer: Any = None
        self.error: BaseException | None = None
        self.done = False
        self.cancelled = False  # the asyncio caller, while this was on its way
        self.leads = False
        self.tried = False  # its commit may have gone through, unseen
        self.postponed = False  # it goes into the next batch once more
        self.future: asyncio.Future[Any] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self._signal: threading.Lock | None = None

    def prepare_to_wait(self) -> None:
        self._signal = threading.Lock()
        self._signal.acquire()

    def wait(self) -> None:
        assert self._signal is not None
        self._signal.acquire()

    def wake(self) -> None:
        if self._signal is not None:
            self._signal.release()

    @property
    def waits(self) -> bool:
        return self._signal is not None

    def outcome(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.answer


class Committer:
    """Shares commits among all writers of a process."""

    def __init__(
        self,
        store: SqlStore,
        *,
        patience: float = 30.0,
        helpers_wanted: Callable[[], bool] = lambda: True,
        lessor: Callable[[], Lessor | None] = lambda: None,
        on_commit: Callable[[Sequence[Operation], Applied], None] = lambda operations, applied: None,
    ) -> None:
        self._store = store
        self.patience = patience
        self.helpers_wanted = helpers_wanted
        self.lessor = lessor
        self.on_commit = on_commit
        self._mutex = threading.Lock()
        self._queue: deque[Entry] = deque()
        self._busy = False
        self._leader: int | None = None  # the thread that commits: deciders run in it
        self._handed_over = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    def run(self, operation: Operation, *, forever: bool = False) -> Any:
        """Commit, and return the answer or raise.  `forever`: wait for a lost database."""
        if self._leader == threading.get_ident():
            raise InvalidDecision("?", "decide and evolve write nothing by themselves; return an effect")
        entry = Entry(operation, None if forever else self.patience)
        with self._mutex:
            self._queue.append(entry)
            leads, self._busy = not self._busy, True
            if not leads:
                entry.prepare_to_wait()
        if leads:
            self._lead()
        while not entry.done:
            entry.wait()
            if entry.leads:  # perhaps for others first: our own turn may come in a later batch
                entry.leads = False
                self._lead()
        return entry.outcome()

    async def arun(self, operation: Operation, *, forever: bool = False) -> Any:
        """The same from asyncio.

        It cannot be called back once it is on its way, and its answer must not be lost: a
        cancellation waits for it, and comes to the caller at its next await.
        """
        entry = await self.acommit(operation, forever=forever)
        if entry.cancelled and (task := asyncio.current_task()) is not None:
            task.uncancel()
            task.cancel()
        return entry.outcome()

    async def acommit(self, operation: Operation, *, forever: bool = False) -> Entry:
        """Commit, and return the entry: its outcome, and whether the caller was cancelled meanwhile."""
        entry = Entry(operation, None if forever else self.patience)
        entry.loop = asyncio.get_running_loop()
        entry.future = entry.loop.create_future()
        self._post(entry)
        while True:
            try:
                if not entry.done:  # or its answer has found the cancelled future, and will not come again
                    await entry.future
                return entry
            except asyncio.CancelledError:
                entry.cancelled = True
                if entry.future.cancelled():
                    entry.future = entry.loop.create_future()

    def post(self, operation: Operation, *, forever: bool = False) -> None:
        """Commit soon, without a caller that waits.  `forever`: also when the database is lost meanwhile."""
        self._post(Entry(operation, None if forever else 0.0))

    def close(self) -> None:
        """Commit what is queued, then stop the thread."""
        self._closing.set()
        self._handed_over.release()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        while self._left_over():
            self._lead()

    def _left_over(self) -> bool:
        """Whether something is queued that nobody leads; if so, we do."""
        with self._mutex:
            leads = bool(self._queue) and not self._busy
            self._busy = self._busy or leads
            return leads

    def _post(self, entry: Entry) -> None:
        with self._mutex:
            self._queue.append(entry)
            leads, self._busy = not self._busy, True
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(target=self._serve, name="detent-committer", daemon=True)
                self._thread.start()
        if leads:
            self._handed_over.release()

    def _serve(self) -> None:
        while True:
            self._handed_over.acquire()
            if self._closing.is_set() and not self._busy:
                return
            self._lead()
            if self._closing.is_set():
                return

    def _lead(self) -> None:
        """Commit one batch, answer it, and hand on."""
        entries = self._take()
        self._leader = threading.get_ident()
        try:
            self._commit(entries)
        except Exception as error:  # a bug; but who waits must hear of it, and the next batch go on
            log.exception("committing %d operations failed", len(entries))
            for entry in entries:
                if entry.answer is None:
                    entry.error = entry.error or error
        finally:
            self._leader = None
            self._answer([entry for entry in entries if not entry.postponed])
            self._put_back([entry for entry in entries if entry.postponed])
            self._hand_on()

    def _take(self) -> list[Entry]:
        taken: list[Entry] = []
        size = 0
        with self._mutex:
            while self._queue and len(taken) < LARGEST_BATCH:
                size += _size(self._queue[0].operation)
                if taken and size > LARGEST_BYTES:
                    break
                taken.append(self._queue.popleft())
        return taken

    def _put_back(self, entries: list[Entry]) -> None:
        """Queue postponed operations before all others, in their order."""
        for entry in entries:
            entry.postponed = False
            if entry.loop is None and not entry.waits:
                entry.prepare_to_wait()  # its caller led this batch
        with self._mutex:
            self._queue.extendleft(reversed(entries))

    def _hand_on(self) -> None:
        with self._mutex:
            if not self._queue:
                self._busy = False
                return
            heir = next((entry for entry in self._queue if entry.waits), None)
            if heir is not None:
                heir.leads = True
            elif self._closing.is_set():  # the thread is leaving: close() commits the rest
                self._busy = False
                return
        if heir is not None:
            heir.wake()
        else:
            self._handed_over.release()

    def _answer(self, entries: Sequence[Entry]) -> None:
        loops: dict[asyncio.AbstractEventLoop, list[Entry]] = {}
        for entry in entries:
            entry.done = True
            if entry.loop is not None:
                loops.setdefault(entry.loop, []).append(entry)
            else:
                entry.wake()
        for loop, group in loops.items():
            try:
                loop.call_soon_threadsafe(_resolve, group)
            except RuntimeError:  # that loop is over, nobody waits there any more
                continue

    def _commit(self, entries: list[Entry]) -> None:
        try:
            applied = self._store.apply(
                [entry.operation for entry in entries],
                helpers_wanted=self.helpers_wanted(),
                lessor=self.lessor(),
            )
        except Exception as error:
            self._recover(entries, error)
        except BaseException as error:  # each caller raises it for itself
            for entry in entries:
                entry.error = error
        else:
            self._applied(entries, applied)

    def _applied(self, entries: list[Entry], applied: Applied) -> None:
        for entry, answer in zip(entries, applied.answers, strict=True):
            if isinstance(answer, Exception):
                entry.error = answer
            elif isinstance(answer, Decided) and answer.postponed is not None:
                entry.postponed = True
                entry.operation = replace(entry.operation, upto=answer.postponed)
            else:
                entry.answer = answer
        self.on_commit([entry.operation for entry in entries], applied)

    def _recover(self, entries: list[Entry], error: Exception) -> None:
        trouble = self._store.driver.trouble(error)
        if trouble is Trouble.GONE:
            self._wait_for_database(entries, error)
        elif len(entries) > 1:
            for entry in entries:
                self._commit([entry])
        elif trouble is Trouble.UNIQUE:
            self._explain(entries[0], error)
        else:
            entries[0].error = error

    def _explain(self, entry: Entry, error: Exception) -> None:
        """Something with that key exists: say what, or find that it is ours."""
        try:
            found = self._store.explain_conflict(entry.operation)
        except Exception as broken:
            found = broken
        if isinstance(found, Exception):
            entry.error = found
        elif found is not None:
            entry.answer = found
        else:
            entry.error = error

    def _wait_for_database(self, entries: list[Entry], error: Exception) -> None:
        """Try again until it is back; who is out of patience is told."""
        wait = FIRST_WAIT
        waiting = entries
        for entry in waiting:
            entry.tried = True
        while waiting:
            now = time.monotonic()
            for entry in waiting:
                if (entry.deadline is not None and now >= entry.deadline) or self._closing.is_set():
                    entry.error = _unavailable(self._store, error)
            waiting = [entry for entry in waiting if entry.error is None]
            if not waiting:
                return
            self._closing.wait(wait)
            wait = min(wait * 2, LONGEST_WAIT)
            try:
                waiting = [entry for entry in waiting if not self._went_through(entry)]
            except Exception as again:
                if self._store.driver.trouble(again) not in (Trouble.GONE, Trouble.RETRY):
                    raise
                error = again
                continue
            for entry in waiting:
                entry.tried = False
            if waiting:
                self._commit(waiting)
            return

    def _went_through(self, entry: Entry) -> bool:
        answer = self._store.already_applied(entry.operation) if entry.tried else None
        if answer is None:
            return False
        entry.answer = answer
        self.on_commit([entry.operation], Applied([answer], made_ready=True))
        return True


def _resolve(entries: Sequence[Entry]) -> None:
    for entry in entries:
        if entry.future is not None and not entry.future.done():
            if entry.error is not None:
                entry.future.set_exception(entry.error)
            else:
                entry.future.set_result(entry.answer)


def _unavailable(store: SqlStore, error: Exception) -> Exception:
    if isinstance(error, DatabaseUnavailable):
        return error
    return DatabaseUnavailable(store.driver.name, str(error).strip())


def _size(operation: Operation) -> int:
    """About how many bytes an operation puts into the batch."""
    if isinstance(operation, Record):
        steps = operation.steps
        size = sum(
            len(step.result or "") + len(step.input or "") + len(step.progress or "") for step in steps
        )
        size += sum(len(row.input or "") for row in operation.executions)
        return size + (_size(operation.children) if operation.children is not None else 0)
    if isinstance(operation, Start):
        return sum(len(run.input) for run in operation.runs)
    if isinstance(operation, Settle):
        return len(operation.plan.result or "")
    if isinstance(operation, Decide):
        return sum(len(given.text or "") for given in operation.inputs)
    if isinstance(operation, Enqueue):
        return len(operation.input.data or "")
    return 0
