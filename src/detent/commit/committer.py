"""The committer: many small writes, one transaction.

Every write of the process comes here as an operation.  Operations that arrive while a
commit is under way go into the next one; there is no timer, so alone an operation is
committed at once, and under load batches grow by themselves.  An operation is answered
only after its commit.

One thread at a time leads: it takes what is queued, commits it, answers it and hands on.
A sync caller leads by itself if no other does: a hop to another thread would cost as
much as the commit.  The main thread never leads, because a signal handler may raise in any
line of it; the committer's own thread leads for it, and for asyncio callers.  Any other
leader that is interrupted by an exception hands on, and its batch is looked up first.

    the database refuses a batch     it is split in halves, until the bad operation is alone
    the database is away             wait and try again, until the caller's patience ends
    the error is no clear answer     look up whether the commit went through, then as above
    another transaction blocks it    it is split too; the operation that is blocked waits aside (asides.py)
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec.structs import replace

from ..errors import DatabaseUnavailable, DetentError, InvalidDecision
from ..events import Committed
from ..kernel.decide import Decided
from ..kernel.operations import Operation
from ..observe import Observer
from ..process_forks import Refusal
from ..stores.batch.apply import Applied, drop_lease
from ..stores.batch.graphs import MustGoAlone
from ..stores.driver import Line, Slots, Trouble, user_transaction
from ..stores.store import PartlyApplied, Store
from .blocked import Asides
from .entries import Entry, came_second, new_executions, outlast, parts, resolve, size_of

log = logging.getLogger("detent")
LARGEST_BATCH = 1000
LARGEST_BYTES = 4 * 1024 * 1024
FIRST_WAIT, LONGEST_WAIT = 0.05, 2.0  # seconds between two tries while the database is away
LONGEST_ASIDE = 0.5  # seconds between two tries aside, where the database does not wait for locks
MOST_INTERRUPTIONS = 3  # of leaders, before an operation fails; the committer's thread is not interrupted
AWAY = (Trouble.GONE, Trouble.RETRY)  # RETRY comes here when the store has given up trying
_SERVER = Entry(Operation(), None)  # stands for the committer's thread until that has taken over


class Committer:
    """Shares commits among all writers of a process."""

    def __init__(
        self,
        store: Store,
        *,
        patience: float = 30.0,
        helpers_wanted: Callable[[], bool] = lambda: True,
        slots: Callable[[], Slots | None] = lambda: None,
        on_commit: Callable[[Sequence[Operation], Applied], None] = lambda operations, applied: None,
        observer: Observer | None = None,
    ) -> None:
        self._store = store
        self.patience = patience
        self.helpers_wanted = helpers_wanted
        self.slots = slots
        self.on_commit = on_commit
        self._observer = observer if observer is not None else Observer()
        self._mutex: Any = threading.Lock()
        self._queue: deque[Entry] = deque()
        self._leading: Entry | None = None  # the entry whose caller leads, or is to lead
        self._batch: list[Entry] = []  # what the leader has taken from the queue
        self._leader: int | None = None  # the thread that commits: deciders run in it
        self._handed_over = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._asides = Asides(self._commit_aside, self._give_up_aside, self._answer)

    def run(self, operation: Operation, *, forever: bool = False) -> Any:
        """Commit, and return the answer or raise.  `forever`: wait for a lost database."""
        if self._leader == threading.get_ident() or threading.get_ident() in self._asides.idents:
            raise InvalidDecision("?", "decide and evolve must not write; return an effect")
        entry = Entry(operation, None if forever else time.monotonic() + self.patience)
        entry.may_lead = threading.current_thread() is not threading.main_thread()
        try:
            self._join(entry)
            while not entry.done:
                if self._leading is entry:
                    self._lead(entry)  # perhaps for others: our own turn may come in a later batch
                else:
                    entry.wait()
        except BaseException as error:
            self._leave_surely(entry, error)
            raise
        return entry.outcome()

    async def arun(self, operation: Operation, *, forever: bool = False) -> Any:
        """The same from asyncio.

        It cannot be called back once it is on its way, and its answer must not be lost: a
        cancellation waits for it, and comes to the caller at its next await.
        """
        entry = self.send(operation, asyncio.get_running_loop(), forever=forever)
        assert entry.future is not None
        try:
            return await entry.future
        except asyncio.CancelledError:
            answer = await outlast(entry)
        if (task := asyncio.current_task()) is not None:
            task.uncancel()
            task.cancel()
        return answer

    def send(self, operation: Operation, loop: asyncio.AbstractEventLoop, *, forever: bool = False) -> Entry:
        """Put it on its way, for a caller on this loop who awaits its future; `outlast`, once cancelled.

        Not a coroutine: there are so many commits that one around each of them counts.
        """
        entry = Entry(operation, None if forever else time.monotonic() + self.patience)
        entry.loop = loop
        entry.future = loop.create_future()
        self._post(entry)
        return entry

    def post(self, operation: Operation, *, forever: bool = False) -> None:
        """Commit soon, without a waiting caller.  `forever`: keep it while the database is away."""
        self._post(Entry(operation, None if forever else time.monotonic()))

    def close(self) -> None:
        """Commit what is queued, then stop the thread."""
        self._closing.set()
        self._handed_over.release()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        leader = Entry(Operation(), None)
        while self._take_lead(leader, instead_of=None, if_queued=True):
            self._lead(leader)
        self._asides.close()

    def forked(self) -> None:
        """In a forked child: refuse every operation.  The leader and the thread are the parent's."""
        self._mutex = Refusal("the workflow is executed by the parent of this forked process")

    @property
    def closing(self) -> bool:
        return self._closing.is_set()

    # Who leads

    def _join(self, entry: Entry) -> None:
        """Queue it; if there is no leader, its caller leads, or the committer's thread."""
        with self._mutex:
            entry.prepare_to_wait()
            self._queue.append(entry)
            if self._leading is not None:
                return
            if entry.may_lead or self._closing.is_set() or not self._start_thread():
                self._leading = entry
                return
            self._leading = _SERVER
        self._handed_over.release()

    def _post(self, entry: Entry) -> None:
        handed_over = False
        try:
            with self._mutex:
                # While closing the thread is leaving, and there may be none.  Then the caller leads: that
                # holds up its loop for a commit, where an error would fail what it carries out.
                alone = self._closing.is_set() or not self._start_thread()
                self._queue.append(entry)
                # Not the body of a transactional step, which must not write beside its transaction:
                # the next caller, or close(), commits what it has queued.
                if self._leading is None and (not alone or user_transaction.get() is None):
                    handed_over = not alone
                    self._leading = entry if alone else _SERVER
        finally:
            if handed_over:  # also by a caller that is interrupted here
                self._handed_over.release()
        if self._leading is entry:
            self._lead(entry)

    def _start_thread(self) -> bool:
        """Whether the committer has a thread, now."""
        if self._thread is None:
            thread = threading.Thread(target=self._serve, name="detent-committer", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the process has as many threads as it may have
                log.exception("could not start the thread that commits")
                return False
            self._thread = thread
        return True

    def _serve(self) -> None:
        leader = Entry(Operation(), None)
        while True:
            self._handed_over.acquire()
            if self._take_lead(leader, instead_of=_SERVER):
                try:
                    self._lead(leader)
                except BaseException as error:  # from the operations: this thread is not interrupted
                    for entry in self._batch:
                        if not entry.answered and entry not in self._asides:
                            entry.fail(error)
                    self._leave_surely(leader, error)
            if self._closing.is_set() and self._leading is not _SERVER:
                return

    def _take_lead(self, leader: Entry, *, instead_of: Entry | None, if_queued: bool = False) -> bool:
        with self._mutex:
            if self._leading is not instead_of or (if_queued and not self._queue):
                return False
            self._leading = leader
            return True

    def _lead(self, leader: Entry) -> None:
        """Commit one batch, answer it, and hand on.

        A BaseException that is not an Exception interrupts the leader: `_leave` does the rest.
        """
        while self._leading is leader:
            batch = self._take()
            self._leader = threading.get_ident()
            try:
                # A leader with an answer continues only if no other caller can lead. It then commits all.
                self._commit(batch, None if leader.done else leader)
            except Exception as error:  # a bug; every caller gets an answer, and the next batch is committed
                log.exception("committing %d operations failed", len(batch))
                for entry in batch:
                    if not entry.answered and entry not in self._asides:
                        entry.fail(error)
            self._leader = None
            self._answer([entry for entry in batch if entry.answered and entry not in self._asides])
            self._put_back(without=None)
            self._hand_on(leader)

    def _take(self) -> list[Entry]:
        """Take a batch from the queue.  The entries are in `_batch` before they leave the queue."""
        taken: list[Entry] = []
        size = 0
        with self._mutex:
            for entry in self._queue:
                size += size_of(entry.operation)
                if len(taken) == LARGEST_BATCH or (taken and size > LARGEST_BYTES):
                    break
                taken.append(entry)
            self._batch = taken
            for _ in taken:
                self._queue.popleft()
        return taken

    def _put_back(self, *, without: Entry | None) -> None:
        """Queue again what is in the batch and has no answer, before what came later."""
        with self._mutex:
            if without is None and all(entry.answered for entry in self._batch):
                self._batch = []
                return
            taken = set(self._batch)
            again = [e for e in self._batch if not e.answered and e is not without and e not in self._asides]
            rest = [entry for entry in self._queue if entry not in taken and entry is not without]
            self._queue = deque(again + rest)
            self._batch = []

    def _hand_on(self, leader: Entry, *, to_thread: bool = False) -> None:
        with self._mutex:
            if self._leading is not leader:
                return
            closing = self._closing.is_set()
            heirs = (entry for entry in self._queue if entry.waits and (entry.may_lead or closing))
            heir = None if to_thread and not closing else next(heirs, None)
            if heir is None and self._queue:
                # While closing, the thread is leaving; and there may be none yet.
                heir = leader if closing or not self._start_thread() else _SERVER
            self._leading = heir
        self._wake_leader()

    def _wake_leader(self) -> None:
        leading = self._leading
        if leading is _SERVER:
            self._handed_over.release()
        elif leading is not None:
            leading.wake()

    def _leave_surely(self, entry: Entry, error: BaseException) -> None:
        """Leave, also where a further exception interrupts that."""
        for _ in range(100):
            try:
                self._leave(entry, error)
                return
            except BaseException as again:
                error = again

    def _leave(self, entry: Entry, error: BaseException) -> None:
        """The caller leaves without its answer; if it was the leader, others continue with the batch.

        Every line may be interrupted, and then all of it is done once more.
        """
        with self._mutex:
            entry.gone = True  # it may come back into the queue with a batch, but must not lead there
            leads = self._leading is entry
            if not leads and entry in self._queue:
                self._queue.remove(entry)
        if leads:
            self._leader = None
            for other in self._batch:
                if not other.answered and other is not entry and other not in self._asides:
                    other.doubted = other.retried = True
                    other.interruptions += 1
                    if other.interruptions > MOST_INTERRUPTIONS:
                        other.fail(error)
            self._answer([other for other in self._batch if other.answered])
            self._put_back(without=entry)
            # An interruption that comes again and again must not fail the others in the batch.
            self._hand_on(entry, to_thread=True)
            if self._leading is entry:  # while closing, and with callers on a loop only
                self._lead(entry)
        self._asides.forget(entry)
        self._asides.wake()
        self._wake_leader()  # the next leader may not have been woken yet

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
                loop.call_soon_threadsafe(resolve, group)
            except RuntimeError:  # that loop is closed, nothing waits there any more
                continue

    # One batch

    def _commit(self, entries: list[Entry], leader: Entry | None = None) -> None:
        """Answer every entry: commit them together if possible, else in parts, in their order.

        A leader whose own patience has ended leaves the rest to the next one.
        """
        groups = [entries]  # the next one last
        line, wait = Line.MAIN, FIRST_WAIT
        while groups and not (leader is not None and leader.done):
            group = [entry for entry in groups.pop() if not entry.answered]
            if self._asides:
                group = self._asides.sift(group)
            if not group:
                continue
            error = self._advance(groups, group, line)
            if error is None:
                wait = FIRST_WAIT
            elif self._store.driver.blocked(error) and self._step_aside(groups):
                line = Line.SPLIT
            else:
                self._pause(groups[-1], error, wait)
                gone = self._store.driver.trouble(error) is Trouble.GONE
                wait = min(wait * 2, LONGEST_WAIT) if gone else FIRST_WAIT  # else it has waited already

    def _advance(self, groups: list[list[Entry]], group: list[Entry], line: Line) -> Exception | None:
        """Try to commit a group.  What is left of it goes back to `groups`; return why it has to wait."""
        error = self._try(group, line)
        if error is None:
            groups.append(self._to_look_up(group))
            return None
        group = [entry for entry in group if not entry.answered]
        if self._is_away(error):
            groups.append(group)
            return error
        if len(group) > 1:
            groups += reversed(parts(group, error))
        elif group:
            again = self._refuse(group[0], error)
            if again is not None:
                groups.append(group)
                return again
        return None

    def _step_aside(self, groups: list[list[Entry]]) -> bool:
        """Split the group that is blocked; an operation that is blocked alone waits aside."""
        group = groups[-1]
        if len(group) > 1:
            half = len(group) // 2
            groups[-1:] = [group[half:], group[:half]]
            return True
        for entry in group:
            self._drop_leases(entry)
            if not self._asides.take(entry):
                return False
        groups.pop()
        return True

    def _drop_leases(self, entry: Entry) -> None:
        """Leases that go into its commit hold slots of our worker: others need these meanwhile."""
        slots = self.slots()
        leased = [row for row in new_executions(entry.operation) if row.token is not None]
        if slots is None or not leased:
            return
        tokens = [row.token for row in leased if row.token is not None]
        for row in leased:
            drop_lease(row)
        if entry.retried:  # an earlier try may have been committed
            slots.unconfirmed(tokens)
        else:
            slots.give_back(tokens)

    def _commit_aside(self, entries: list[Entry]) -> None:
        """Try to commit operations that wait aside; those that have to wait for longer get no answer."""
        begun = time.monotonic()
        groups = [entries]
        while groups:
            group = [entry for entry in groups.pop() if not entry.answered]
            error = self._advance(groups, group, Line.ASIDE) if group else None
            if error is not None:
                for entry in entries:
                    entry.reason = error
                    entry.tries += 1
                wait = min(FIRST_WAIT * 2 ** min(entries[0].tries, 8), LONGEST_ASIDE)
                self._closing.wait(max(0.0, begun + wait - time.monotonic()))  # the database may have waited
                return

    def _give_up_aside(self, entries: Sequence[Entry]) -> None:
        now = time.monotonic()
        for entry in entries:
            ended = self._closing.is_set() or (entry.deadline is not None and now >= entry.deadline)
            if ended and not entry.answered:
                entry.fail(_blocked(self._store, entry))

    def _try(self, group: list[Entry], line: Line) -> Exception | None:
        """Commit what has not been committed; return why that failed."""
        try:
            for entry in group:
                self._look_up(entry)
        except Exception as error:
            return error
        group = [entry for entry in group if not entry.answered]
        if not group:
            return None
        begun = time.perf_counter() if self._observer.active else 0.0
        try:
            applied = self._store.apply(
                [entry.operation for entry in group],
                helpers_wanted=self.helpers_wanted(),
                slots=self.slots() if line is not Line.ASIDE else None,  # it would hold slots while it waits
                line=line,
            )
        except Exception as error:
            if isinstance(error, PartlyApplied):
                group, error = self._partly_applied(group, error), error.error
            if not self._is_clear(error):
                for entry in group:
                    entry.doubted = entry.retried = True
            return error
        if begun:
            self._report(len(group), time.perf_counter() - begun)
        self._applied(group, applied)
        return None

    def _report(self, operations: int, seconds: float) -> None:
        event = Committed(time=datetime.now(UTC), operations=operations, duration=timedelta(seconds=seconds))
        self._observer.emit(event)

    def _partly_applied(self, group: list[Entry], partly: PartlyApplied) -> list[Entry]:
        """Answer those that were committed; return the others."""
        answers = zip(group, partly.answers, strict=True)
        done = [(entry, answer) for entry, answer in answers if answer is not None]
        self._applied([entry for entry, _ in done], Applied([answer for _, answer in done]))
        return [entry for entry in group if not entry.answered]

    def _applied(self, entries: list[Entry], applied: Applied) -> None:
        for entry, answer in zip(entries, applied.answers, strict=True):
            if isinstance(answer, Exception):
                entry.fail(answer)
            elif isinstance(answer, Decided) and answer.postponed is not None:
                # It stays without an answer, and goes into the next batch.
                entry.operation = replace(entry.operation, upto=answer.postponed)
            else:
                entry.succeed(answer)
        self._tell([entry.operation for entry in entries], applied)

    def _tell(self, operations: Sequence[Operation], applied: Applied) -> None:
        """Pass on what was committed.  Nothing that goes wrong there makes it uncommitted."""
        told = False
        try:
            self.on_commit(operations, applied)
            told = True
        except Exception:
            log.exception("callbacks after %d committed operations failed", len(operations))
        finally:
            slots = self.slots() if applied.leased and not told else None
            if slots is not None:
                slots.unconfirmed([row.token for row, _ in applied.leased if row.token is not None])

    def _is_away(self, error: Exception) -> bool:
        return self._store.driver.trouble(error) in AWAY

    def _is_clear(self, error: Exception) -> bool:
        """Whether it is certain that nothing was committed."""
        return isinstance(error, MustGoAlone) or (
            not isinstance(error, DatabaseUnavailable)
            and (isinstance(error, DetentError) or self._store.driver.refused(error))
        )

    def _look_up(self, entry: Entry) -> None:
        """Find out whether an operation in doubt was committed, and answer it if so."""
        if not entry.doubted or entry.answered:
            return
        answer = self._store.already_applied(entry.operation)
        entry.doubted = False
        if answer is not None:
            entry.succeed(answer)
            self._tell([entry.operation], Applied([answer], made_ready=True))

    def _to_look_up(self, group: list[Entry]) -> list[Entry]:
        """Those who were told that another came first, and may have been that other themselves.

        A commit in doubt may still be under way in the server when it is looked up.
        """
        found = [entry for entry in group if entry.retried and came_second(entry.answer)]
        for entry in found:
            entry.answered, entry.retried, entry.doubted = False, False, True
        return found

    def _refuse(self, entry: Entry, error: Exception) -> Exception | None:
        """Answer an operation that failed alone; return why it cannot be answered yet."""
        try:
            entry.doubted = entry.doubted or entry.retried
            self._look_up(entry)
            if entry.answered:
                return None
            found: Any = None
            if self._store.driver.trouble(error) is Trouble.UNIQUE:
                # Something with that key exists: say what, or find that it is ours.
                found = self._store.explain_conflict(entry.operation)
        except Exception as broken:
            if self._is_away(broken):
                return broken
            found = broken
        if found is None:
            entry.fail(error)
        elif isinstance(found, Exception):
            entry.fail(found)
        else:
            entry.succeed(found)
        return None

    def _pause(self, entries: Sequence[Entry], error: Exception, wait: float) -> None:
        """Wait before the next try; callers whose patience has ended get an error."""
        now = time.monotonic()
        deadlines = [entry.deadline for entry in entries if entry.deadline is not None]
        self._answer(self._give_up([*entries, *self._impatient(now)], now, error))
        if any(not entry.answered for entry in entries):
            left = [deadline - now for deadline in deadlines if deadline > now]
            self._closing.wait(min([wait, *left]))

    def _give_up(self, entries: Sequence[Entry], now: float, error: Exception) -> list[Entry]:
        """Fail those whose patience has ended, and return them."""
        given_up: list[Entry] = []
        for entry in entries:
            ended = (entry.deadline is not None and now >= entry.deadline) or self._closing.is_set()
            if ended and not entry.answered:
                entry.fail(_unavailable(self._store, error))
                given_up.append(entry)
        return given_up

    def _impatient(self, now: float) -> list[Entry]:
        """Take from the queue those who cannot wait until it is their turn."""
        with self._mutex:
            found = [e for e in self._queue if e.deadline is not None and now >= e.deadline]
            if found:
                self._batch += found
                self._queue = deque(entry for entry in self._queue if entry not in found)
        return found


def _blocked(store: Store, entry: Entry) -> Exception:
    """Why an operation that waited aside was given up."""
    if entry.reason is not None and not store.driver.blocked(entry.reason):
        return _unavailable(store, entry.reason)
    reason = "a transaction that has not ended yet has locked this run, or has taken its id or its hero"
    return DatabaseUnavailable(store.driver.name, reason)


def _unavailable(store: Store, error: Exception) -> Exception:
    if isinstance(error, DatabaseUnavailable):
        return error
    return DatabaseUnavailable(store.driver.name, str(error).strip())
