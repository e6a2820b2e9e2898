"""The committer: many small writes, one transaction.

Every write of the process comes here as an operation.  Operations that arrive while a
commit is under way go into the next one; there is no timer, so alone an operation is
committed at once, and under load batches grow by themselves.  An operation is answered
only after its commit.

One thread at a time leads: it takes what is queued, commits it, answers it and hands on.
A sync caller leads by itself if no other does: a hop to another thread would cost as
much as the commit.  The main thread never leads, because a signal handler may raise in any
line of it; the committer's own thread leads for it, or an event loop.  Any other leader that is
interrupted by an exception hands on, and its batch is looked up first.

For asyncio callers their event loop leads, where the database can take a batch without making the
loop wait (loop_turns.py); else the committer's thread.  How a batch is committed: batch_attempts.py.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

from ..errors import InvalidDecision
from ..kernel.operations import Operation
from ..process_forks import Refusal
from ..stores.driver import user_transaction
from ..stores.loop_writer import LoopWriter
from ..stores.store import Store
from .batch_attempts import BatchAttempts
from .entries import Entry, outlast_and_cancel, resolve
from .loop_turns import LOOK, Flying, LoopTurns

log = logging.getLogger("detent")
LARGEST_BATCH = 1000
LARGEST_BYTES = 4 * 1024 * 1024
LOOP_WAIT = 0.005  # seconds after which a caller in the main thread does not wait for the loop alone
MOST_INTERRUPTIONS = 3  # of leaders, before an operation fails; the committer's thread is not interrupted
_SERVER = Entry(Operation(), None)  # stands for the committer's thread until that has taken over
_LOOP = Entry(Operation(), None)  # stands for an event loop that leads (loop_turns.py)


class Committer(BatchAttempts):
    """Shares commits among all writers of a process."""

    def __init__(self, store: Store, **settings: Any) -> None:
        super().__init__(store, **settings)
        self._mutex: Any = threading.Lock()
        self._queue: deque[Entry] = deque()
        self._leading: Entry | None = None  # the entry whose caller leads, or is to lead
        self._batch: list[Entry] = []  # what the leader has taken from the queue
        self._leader: int | None = None  # the thread that commits: deciders run in it
        self._handed_over = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._turns: LoopTurns | None = None

    def run(self, operation: Operation, *, forever: bool = False) -> Any:
        """Commit, and return the answer or raise.  `forever`: wait for a lost database."""
        if self._leader == threading.get_ident() or threading.get_ident() in self._asides.idents:
            raise InvalidDecision("?", "decide and evolve must not write; return an effect")
        entry = Entry(operation, None if forever else time.monotonic() + self.patience)
        entry.may_lead = threading.current_thread() is not threading.main_thread()
        try:
            wait = self._join(entry)
            while not entry.done:
                if self._leading is entry:
                    self._lead(entry)  # perhaps for others: our own turn may come in a later batch
                elif not entry.wait(wait):
                    wait = -1
                    self._handed_over.release()  # the loop that leads is busy: the thread takes over
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
            return await outlast_and_cancel(entry)

    def send(self, operation: Operation, loop: asyncio.AbstractEventLoop, *, forever: bool = False) -> Entry:
        """Put it on its way, for a caller on this loop who awaits its future; `outlast`, once cancelled.

        Not a coroutine: there are so many commits that one around each of them counts.
        """
        deadline = None if forever else time.monotonic() + self.patience
        entry = Entry(operation, deadline, future=loop.create_future(), loop=loop)
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
        while self._leading is _LOOP:
            if self._take_over(leader):
                self._lead(leader)
            else:
                time.sleep(0.001)  # the loop is just sending a batch, or taking its answer
        while self._take_lead(leader, instead_of=None, if_queued=True):
            self._lead(leader)
        self._asides.close()
        if self._turns is not None:
            self._turns.close()

    def lead_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let this loop commit what its tasks write, where the database can send without waiting."""
        writer = self._store.loop_writer
        if writer is not None and self._turns is None:
            self._turns = LoopTurns(self, writer, loop)
            loop.call_soon_threadsafe(self._turns.begin)

    def forked(self) -> None:
        """In a forked child: refuse every operation.  The leader and the thread are the parent's."""
        self._mutex = Refusal("the workflow is executed by the parent of this forked process")

    @property
    def closing(self) -> bool:
        return self._closing.is_set()

    # Who leads

    def _join(self, entry: Entry) -> float:
        """Queue it; if there is no leader, its caller leads, an event loop, or the committer's thread.

        Returns for how many seconds the caller waits before it calls the thread to take over from the
        loop; -1: it does not call.
        """
        with self._mutex:
            entry.prepare_to_wait()
            self._queue.append(entry)
            turns = self._turns_for(entry)
            if self._leading is not None:
                if self._leading is not _LOOP:
                    return -1
            elif entry.may_lead or self._closing.is_set() or not self._start_thread():
                self._leading = entry
                return -1
            else:
                self._leading = _SERVER if turns is None else _LOOP
        if turns is not None:
            turns.schedule()
            return LOOP_WAIT
        self._handed_over.release()  # a loop that leads may be blocked, perhaps by this very caller
        return -1

    def _turns_for(self, entry: Entry) -> LoopTurns | None:
        """The loop that commits it for a caller in the main thread.

        What a worker executes begins on the loop.  So a start needs one switch of threads less than if the
        committer's thread commits it.
        """
        turns = self._turns
        if turns is None or entry.may_lead or not turns.usable or turns.here() or not entry.fits_a_turn:
            return None
        return turns

    def _post(self, entry: Entry) -> None:
        leads, turns = None, self._turns
        here = turns is not None and turns.here()
        try:
            with self._mutex:
                more = here and self._leading is _LOOP
                if more:  # nearly always: there is nothing to decide, and the thread has been started
                    self._queue.append(entry)
                else:
                    # While closing the thread is leaving, and there may be none.  Then the caller leads: that
                    # holds up its loop for a commit, where an error would fail what it carries out.
                    alone = self._closing.is_set() or not self._start_thread()
                    self._queue.append(entry)
                    # Not the body of a transactional step, which must not write beside its transaction:
                    # the next caller, or close(), commits what it has queued.
                    if self._leading is None and (not alone or user_transaction.get() is None):
                        leads = self._leading = entry if alone else _LOOP if here else _SERVER
                    elif self._leading is _LOOP:
                        leads = _SERVER  # it takes over from the loop, which may be blocked
        finally:
            if leads is _SERVER:  # also by a caller that is interrupted here
                self._handed_over.release()
            elif leads is _LOOP and turns is not None:
                turns.schedule()
        if more and turns is not None:
            turns.more(self._queue)
        if leads is entry:
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
            called = self._handed_over.acquire(timeout=LOOK if self._turns is not None else None)
            try:
                if self._take_over(leader, late=not called) or self._take_lead(leader, instead_of=_SERVER):
                    self._lead(leader)
            except BaseException as error:  # from the operations: this thread is not interrupted
                for entry in self._batch:
                    if not entry.answered and entry not in self._asides:
                        entry.fail(error)
                self._leave_surely(leader, error)
            if self._closing.is_set() and self._leading is not _SERVER:
                return
            if self._turns is not None and called:
                self._turns.open()

    def _take_over(self, leader: Entry, *, late: bool = False) -> bool:
        """Continue for the loop that leads: wait for the answer to what it has sent."""

        def lead() -> None:
            self._leading = leader

        sent = self._turns.take_over(lead, late=late) if self._turns is not None else None
        if sent is None:
            return False
        for flying in sent:
            self.answer_sent(flying)
        self._put_back(without=None)
        return True

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
                size += entry.size
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
            if without is None and not [entry for entry in self._batch if not entry.answered]:
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
                heir = leader if closing or not self._start_thread() else self._next_server(to_thread)
            self._leading = None if heir is _LOOP and closing else heir  # close() commits the rest
        self._wake_leader()

    def _next_server(self, to_thread: bool) -> Entry:
        """Who leads where no caller can: the loop if all in the queue is from its tasks, else the thread."""
        turns = self._turns
        if turns is None or to_thread or not turns.usable:
            return _SERVER
        return _LOOP if all(entry.loop is turns.loop for entry in self._queue) else _SERVER

    def _wake_leader(self) -> None:
        leading = self._leading
        if leading is _SERVER:
            self._handed_over.release()
        elif leading is _LOOP and self._turns is not None:
            self._turns.schedule()
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
        turns = self._turns
        loops: dict[asyncio.AbstractEventLoop, list[Entry]] = {}
        for entry in entries:
            entry.done = True
            if entry.loop is None:
                entry.wake()
            elif turns is None or entry.loop is not turns.loop:
                loops.setdefault(entry.loop, []).append(entry)
        if turns is not None and (group := [entry for entry in entries if entry.loop is turns.loop]):
            if turns.here():
                resolve(group)
            else:
                loops[turns.loop] = group
        for loop, group in loops.items():
            try:
                loop.call_soon_threadsafe(resolve, group)
            except RuntimeError:  # that loop is closed, nothing waits there any more
                continue

    # Turns of a loop, for loop_turns.py

    def loop_leads(self) -> bool:
        return self._leading is _LOOP

    def wake_thread(self) -> None:
        self._handed_over.release()

    def take_beside(self, busy: Collection[str]) -> list[Entry]:
        """Take a batch from the queue, without the runs of which something is on its way."""
        taken: list[Entry] = []
        rest: deque[Entry] = deque()
        size, full = 0, False
        with self._mutex:
            for entry in self._queue:
                if not full:
                    size += entry.size
                    full = len(taken) == LARGEST_BATCH or bool(taken and size > LARGEST_BYTES)
                (rest if full or entry.run in busy else taken).append(entry)
            self._batch = self._batch + taken
            self._queue = rest
        return taken

    def send_on_loop(self, writer: LoopWriter, batch: list[Entry]) -> Flying | None:
        """Send a batch; None if it cannot be sent without waiting."""
        # (A list, here and in `_put_back`: any() would resume a generator for each operation.)
        if self._asides or [entry for entry in batch if entry.doubted or entry.retried]:
            return None
        operations = [entry.operation for entry in batch]
        try:
            sent = writer.send(operations, helpers_wanted=self.helpers_wanted(), slots=self.slots())
        except Exception as error:
            self._doubt(batch, error)
            return None
        return None if sent is None else Flying(sent, batch)

    def answer_sent(self, flying: Flying) -> bool:
        """Answer a batch from what was sent; whether all of it has an answer now."""
        sent, batch = flying
        try:
            applied = sent.applied()
        except Exception as error:
            self._doubt(batch, error)
            return False
        if self._observer.active:
            self._report(len(batch), time.perf_counter() - sent.begun)
        pairs = zip(batch, applied.answers, strict=True)
        done = [(entry, answer) for entry, answer in pairs if answer is not None]
        applied.answers = [answer for _, answer in done]
        self._applied([entry for entry, _ in done], applied)
        self._answer([entry for entry in batch if entry.answered])
        return len(done) == len(batch)

    def end_turn(self, *, to_thread: bool) -> None:
        """`to_thread`: the loop cannot commit what is left."""
        self._put_back(without=None)
        self._hand_on(_LOOP, to_thread=to_thread)

    def break_turn(self, error: BaseException) -> None:
        self._leave_surely(_LOOP, error)

    def _impatient(self, now: float) -> list[Entry]:
        """Take from the queue those who cannot wait until it is their turn."""
        with self._mutex:
            found = [e for e in self._queue if e.deadline is not None and now >= e.deadline]
            if found:
                self._batch += found
                self._queue = deque(entry for entry in self._queue if entry not in found)
        return found
