"""A worker: claims what is due, executes it, settles it.

    dispatcher thread:  wait for a poke or a timer -> claim as many as fit -> deliver
    delivered:          `async def` on the loop, `def` in threads
    heartbeat:              its own thread (heartbeat.py)

What this process has just enqueued is delivered without a claim, already leased.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
import random
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from ..execution.main import MainFrame
from ..execution.services import Services
from ..execution.work import Work
from ..kernel.rows import Claimed, HeartbeatReading, Lease, NewExecution, Step, WorkerRow
from ..stores.claim_cursor import ClaimCursor
from ..stores.driver import Trouble
from .heartbeat import Heartbeat
from .kinds import break_off, prepare, work_of
from .limits import LimitedQueues
from .next_moment import NextMoment
from .projector import Projector
from .registration import new_row
from .reports import WorkerReports
from .scheduler import Duties, Scheduler
from .slots import WorkerSlots
from .unlimited import UnlimitedQueues
from .upkeep import Upkeep

log = logging.getLogger("detent.worker")
FORGOTTEN_AFTER = 60.0  # seconds: a lease that was not delivered by then will not be
GATHER = 0.002  # seconds to let more slots come free before the next claim, when work is plenty
SHOW_AFTER = 1_000_000  # microseconds: a step that runs longer is written as executing


class Worker:
    """Runs what an app includes, as much at a time as `concurrency`."""

    def __init__(
        self,
        services: Services,
        *,
        queues: Sequence[str],
        concurrency: int,
        lease: int,
        grace: float,
        max_recoveries: int,
        missing_after: int = 60_000_000,
        duties: Duties,
    ) -> None:
        self._services = services
        self._queues = list(queues)
        self._grace = grace
        self._max_recoveries = max_recoveries
        self._reports = WorkerReports(services)
        self._new_row = partial(new_row, services, queues=self._queues, concurrency=concurrency, lease=lease)
        self._row = self._new_row()
        self._tokens = itertools.count(1)
        self._guard = threading.Lock()
        self._running: dict[str, MainFrame | Work] = {}  # by token
        self._tasks: dict[asyncio.Task[None], MainFrame | Work] = {}
        self._poked = threading.Event()
        self._idle = threading.Condition(self._guard)
        self._backlog = True
        self._claiming = False
        self._slots = WorkerSlots(concurrency, overlapping=services.store.driver.writing is None)
        self._frees_slot = self._free_slot  # the same object for all executions
        self._doubt = False  # the database may say that we hold something which does not run here
        self._claim_cursor = ClaimCursor()
        self.limited = LimitedQueues(services, queues)
        self._due = NextMoment()
        self._unlimited = UnlimitedQueues(services, self._due, self._claim_cursor)
        self._deadline = NextMoment()  # when a run that waits may pass its deadline
        self._marks = (0, 0, 0)  # of both and of the limits, when the heartbeat looked last
        self._nothing_ready = False  # when the heartbeat looked last
        self._draining = False
        self._drained = False  # by an operator: it claims nothing, and stays
        self.alone = False  # no other worker was alive when we looked last
        self._dispatcher = threading.Thread(target=self._dispatch, name="detent-dispatcher", daemon=True)
        self.upkeep = Upkeep(
            services,
            missing_after=missing_after,
            poke=self.poke,
            idle=lambda: self._nothing_ready,
            audit=self.audit,
        )
        self.projector = Projector(services)
        self.scheduler = Scheduler(services, duties, self.poke)
        self._heartbeat = Heartbeat(
            services.store,
            services.clock,
            self._row,
            lease=lease,
            max_recoveries=max_recoveries,
            look=self._look,
            on_heartbeat=self._on_heartbeat,
            on_rescue=self._rescued,
            on_lost=self._lost,
            on_begun_anew=self._reports.up,
            on_doubt=self._doubted,
        )

    @property
    def id(self) -> str:
        return self._row.id

    def register(self) -> None:
        """Make the worker known to others.  Can be called again after an error."""
        self._heartbeat.register()

    def start(self) -> None:
        """Begin to work; the worker is registered by then."""
        self._heartbeat.start()
        self._reports.up(self._row)
        self._dispatcher.start()
        self.upkeep.start()
        self.projector.start()
        self.scheduler.start()

    def stop(self) -> None:
        """Drain: claim no more, let what runs come to its next step, hand the rest back."""
        with self._guard:
            self._draining = True  # `_deliver` tells it to what comes from here on
            running = self._works()
        self._poked.set()
        self.upkeep.stop()
        self.scheduler.stop()
        for work in running:
            work.told("draining")
        self.projector.end()
        until = time.monotonic() + self._grace
        if self._dispatcher.is_alive():
            self._dispatcher.join()
        with self._idle:
            self._idle.wait_for(lambda: not self._running, timeout=max(0.0, until - time.monotonic()))
            left = self._works()
        self.projector.join(until - time.monotonic())
        self._heartbeat.stop()
        for frame in left:
            frame.abandon()
        now = self._services.clock.now()
        try:
            again = self._services.store.reap(
                self.id, counted=False, max_recoveries=self._max_recoveries, now=now
            )
            self._reports.down(self.id, "stopped", len(again or ()))
        except Exception as error:
            if self._services.store.driver.trouble(error) is not Trouble.GONE:
                raise
            log.warning("worker %s could not deregister: the database is unavailable", self.id)

    def crash(self) -> None:
        """Stop without a word, as a killed process does."""
        self._draining = True
        self._poked.set()
        self.upkeep.stop()
        self.scheduler.stop()
        self.projector.crash()
        self._heartbeat.stop()

    def poke(self) -> None:
        """There may be work.  Any thread writes True; only a claim writes False, before it looks."""
        self._backlog = True
        self._poked.set()

    def expect(self, due: int) -> None:
        """Something was put down until then."""
        if self._due.report(due):
            self._poked.set()

    def expect_deadline(self, deadline: int) -> None:
        """A run that was started here has this deadline."""
        if self._deadline.report(deadline):
            self._poked.set()

    def saturated(self) -> bool:
        """Whether other processes should take what becomes ready now."""
        return self._slots.free <= 0 or self._draining or self._drained

    @property
    def drained(self) -> bool:
        """Whether an operator has asked it to claim nothing more, and it knows."""
        return self._drained

    def serves(self, job: str, queue: str) -> bool:
        """Whether this worker claims such work."""
        return queue in self._queues and self._services.registry.knows(job)

    def held_runs(self) -> set[str]:
        """The runs of which something executes here."""
        with self._guard:
            return {work.claimed.run_id for work in self._running.values()}

    def _works(self) -> list[MainFrame | Work]:
        return list(self._running.values())

    def settled_down(self) -> bool:
        """Whether nothing runs, and nothing that was due was left behind."""
        if not self.upkeep.begun:  # it may heal a run yet, and tell us
            return False
        if not self.projector.settled_down() or not self.scheduler.settled_down():
            return False
        with self._guard:
            busy = self._running or self._slots.free < self._slots.number or self._claiming
            busy = busy or self._claim_cursor.skipped  # the next heartbeat makes up for it
            return not busy and not self._poked.is_set() and (self._drained or not self._backlog)

    # Local: what was just enqueued here

    def reserve(self, job: str, queue: str, *, handed_on: bool = False) -> Lease | None:
        """A slot, or (`handed_on`) that of an execution which ends in the same commit."""
        with self._guard:
            full = (self._slots.free <= 0 and not handed_on) or self._drained
            if full or self._draining or queue in self.limited.names or not self.serves(job, queue):
                self._backlog = True
                return None
            lease = Lease(worker=self._row.id, token=self._token())
            self._slots.promise(lease.token)
            return lease

    def give_back(self, tokens: Iterable[str]) -> None:
        with self._guard:
            self._slots.take_back(tokens)
            wanted = self._backlog
        if wanted:  # what found no slot meanwhile
            self._poked.set()

    def unconfirmed(self, tokens: Iterable[str]) -> None:
        """Whether these leases came to pass is not known: look for them soon."""
        self.give_back(tokens)
        self._doubted()

    def _doubted(self) -> None:
        self._doubt = True
        self.poke()

    def audit(self) -> int:
        """Hand back what is leased to us in the database and does not run here; say how much that was.

        A lease that is on its way between a commit and its delivery is known by its token.  What is
        known before or after the look is left alone, so a lease that comes or ends meanwhile is, too.
        A caller that was interrupted on that way does not deliver: after a while the lease is forgotten.
        """
        now = time.monotonic()
        with self._guard:
            promised = list(self._slots.promised.items())
        self.give_back([token for token, since in promised if now - since > FORGOTTEN_AFTER])
        worker, known = self.id, self._known()
        held = self._services.store.held_tokens(worker)
        stray = held - known - self._known()
        if not stray or worker != self.id:
            return 0
        released = self._services.store.disclaim(worker, stray)
        if released:
            log.warning("worker %s: returned %d executions that it did not know", worker, released)
            self.poke()
        return released

    def _known(self) -> set[str]:
        with self._guard:
            return self._running.keys() | self._slots.promised.keys()

    def deliver(self, claimed: Sequence[Claimed], journals: dict[str, list[Step]] | None = None) -> None:
        """Begin to execute what is leased to us; each holds a slot already.

        What cannot begin (no more threads, a loop that is closed) is handed back.  The caller may be
        interrupted in any line: what has begun goes on then, and the rest is handed back.
        """
        on_loop: list[MainFrame | Work] = []
        left = {item.token: item for item in claimed}
        try:
            for item in claimed:
                work = self._deliver(item, (journals or {}).get(item.run_id, []))
                if work is not None and work.is_async:
                    on_loop.append(work)
                else:
                    left.pop(item.token)
            if on_loop:
                self._services.loop.call(self._begin, on_loop)
            left.clear()
        except RuntimeError:
            log.exception("worker %s: its event loop accepts no more work", self.id)
        finally:
            for item in left.values():
                self._undelivered(item)

    def _deliver(self, item: Claimed, steps: list[Step]) -> MainFrame | Work | None:
        """Make it known as running, and begin it in a thread if it is sync; None where that failed."""
        try:
            work = work_of(self._services, item, steps)
            with self._guard:
                if item.token not in self._slots.promised:  # forgotten meanwhile, and perhaps handed back
                    self._doubt = True
                    return None
                self._running[item.token] = work
                self._slots.occupy(item.token)
                work.delivery = "delivered"
                if work.is_async:
                    work.free_slot = self._frees_slot
                if self._draining:  # it was being claimed when we were told to stop
                    work.interrupt = "draining"
            if not work.is_async:
                work_alone = partial(contextvars.Context().run, self._run, work)
                self._services.threads.submit(work_alone)  # pyright: ignore[reportArgumentType]
            return work
        except Exception:
            log.exception("run %s: could not start executing %r", item.run_id, item.node)
            self._undelivered(item)
            return None

    def _undelivered(self, item: Claimed) -> None:
        """It does not run here, though it is leased to us: the next audit hands it back."""
        with self._guard:
            work = self._running.get(item.token)
            if work is not None:
                if work.delivery == "begun":  # the delivering thread was interrupted after that
                    return
                del self._running[item.token]
            self._slots.vacate(item.token)
            self._slots.take_back([item.token])
        self._doubt = True

    def _begins(self, work: MainFrame | Work) -> bool:
        """Whether it is to be executed: from here on, nobody takes it back."""
        with self._guard:
            if self._running.get(work.claimed.token) is not work:
                return False
            if not (self.limited.start_by and self.limited.is_late(work.claimed.token)):
                work.delivery = "begun"
                return True
            del self._running[work.claimed.token]
            self._slots.vacate(work.claimed.token)
        self._services.threads.submit(partial(self.limited.hand_back, work.claimed, self.poke))
        return False

    def _begin(self, work: list[MainFrame | Work]) -> None:
        """On the loop."""
        loop, ended, apart = asyncio.get_running_loop(), self._task_ended, contextvars.Context()
        for item in work:
            # Not made by the loop's factory: it is no branch of a workflow.
            task = asyncio.Task(self._arun(item), loop=loop, context=contextvars.Context())
            self._tasks[task] = item
            task.add_done_callback(ended, context=apart)  # the same for all: fewer objects

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """On the loop: other code may have cancelled the task before its first step."""
        work = self._tasks.pop(task)
        if work.delivery == "delivered":
            self._undelivered(work.claimed)
            self.poke()  # the dispatcher hands it back

    def _run(self, work: MainFrame | Work) -> None:
        if not self._begins(work):
            return
        try:
            self._reports.begins(work)
            work.run()
        except BaseException as error:
            self._broken(work, error)
        finally:
            self._done(work)

    async def _arun(self, work: MainFrame | Work) -> None:
        if not self._begins(work):
            return
        try:
            self._reports.begins(work)
            await work.arun()
        except BaseException as error:
            self._broken(work, error)
        finally:
            self._done(work)

    def _broken(self, work: MainFrame | Work, error: BaseException) -> None:
        """An error of ours, or one like SystemExit: the run is paused rather than left hanging."""
        if not self._draining and not isinstance(error, asyncio.CancelledError):
            break_off(self._services, work, error)

    def _free_slot(self, work: MainFrame | Work) -> bool:
        """Its code has ended: another execution may begin while this end is committed (slots.py)."""
        if work.claimed.queue in self.limited.names:  # limits count it until its end is committed
            return False
        with self._guard:
            wanted = self._wants_slot()
            freed = self._slots.end_early(work.claimed.token)
        if freed and wanted:
            self._poked.set()
        return freed

    def _done(self, work: MainFrame | Work) -> None:
        token, wanted = work.claimed.token, False
        with self._guard:
            self._running.pop(token, None)
            if work.claimed.queue in self.limited.names:
                self._backlog = True  # another execution of that queue may begin now
            if self._slots.occupied_by(token):
                wanted = self._wants_slot()
            self._slots.vacate(token)
            if not self._running:
                self._idle.notify_all()
        if wanted:
            self._poked.set()

    def _wants_slot(self) -> bool:
        """Whether the dispatcher has a use for a slot that comes free."""
        # Without a free slot the dispatcher did not wait for timers.
        return self._backlog or (self._slots.free <= 0 and self._due.at is not None)

    # The dispatcher

    def _dispatch(self) -> None:
        while not self._draining:
            self._services.clock.wait(self._poked, self._wake_at())
            if self._draining:
                return
            with self._guard:
                self._poked.clear()
                due = any(moment <= self._services.clock.now() for moment in self._moments())
                wanted = (self._backlog or due) and self._slots.free > 0 and not self._drained
                deadline = None if self._drained else self._deadline.at
                overdue = deadline is not None and deadline <= self._services.clock.now()
                self._claiming = wanted or overdue
            if self._claiming:
                try:
                    if overdue:
                        self._claim_overdue()
                    if wanted:
                        self._claim()
                except Exception as error:
                    if self._services.store.driver.trouble(error) is not Trouble.GONE:
                        log.exception("worker %s: claiming failed", self.id)
                    self._backlog = True
                    time.sleep(0.2 + random.random() * 0.1)
                    self._poked.set()
                finally:
                    self._claiming = False

    def _wake_at(self) -> int | None:
        """The next timer, and the next deadline; without a free slot, a timer cannot begin anyway."""
        if self._drained:
            return None
        due = min(self._moments(), default=None) if self._slots.free > 0 else None
        return min((moment for moment in (due, self._deadline.at) if moment is not None), default=None)

    def _moments(self) -> list[int]:
        """When there is something to claim: the next timer, and the next begin that a rate permits."""
        return [moment for moment in (self._due.at, self.limited.next_moment) if moment is not None]

    def _claim_overdue(self) -> None:
        """Take runs whose deadline has passed while they wait, also without a free slot: they only end."""
        self._deadline.found(self._deadline.look(), None)  # what is reported from here on is kept
        tokens: list[str] = []
        claimed: list[Claimed] = []

        def token() -> str:
            with self._guard:
                tokens.append(self._token())
                self._slots.promise(tokens[-1])
            return tokens[-1]

        now = self._services.clock.now()
        queues, jobs = set(self._queues), set(self._services.registry.names)
        try:
            claimed = self._services.store.claim_overdue(
                self.id, queues=queues, jobs=jobs, token=token, now=now, version=self._services.version
            )
            journals = prepare(self._services, claimed)
        except BaseException:
            claimed = []
            self._doubt = True
            self._deadline.report(now)
            raise
        finally:
            self.give_back(set(tokens) - {item.token for item in claimed})
        self.deliver(claimed, journals)
        if claimed:
            self.expect_deadline(now)  # there may be more

    def _claim(self) -> None:
        """Claim as many as fit, and learn when to look again."""
        if 0 < self._slots.free < self._slots.number // 4:
            time.sleep(GATHER)
        with self._guard:
            room = self._slots.room()
            tokens = [self._token() for _ in range(room)]
            self._slots.promise(*tokens)
            self._backlog = False
        claimed: list[Claimed] = []
        begun = time.perf_counter()
        try:
            self._look_after_doubt()
            random.shuffle(self._queues)  # none of them starves
            claim = partial(self._unlimited.claim, self.id)
            claimed = self.limited.claim(self.id, self._queues, tokens, self._works, claim)
            self._reports.claimed(self.id, len(claimed), time.perf_counter() - begun)
            journals = prepare(self._services, claimed)
        except BaseException:
            claimed = []
            self._doubt = True
            raise
        finally:
            self.give_back(set(tokens) - {item.token for item in claimed})
            self._slots.found(len(claimed))
            if len(claimed) == room:  # as many as asked for: there may be more
                self._backlog = True
        self.deliver(claimed, journals)
        if len(claimed) < room and self._unlimited.look(self._poked, busy=bool(claimed)):
            self._unlimited.wait(self._poked)
            self._backlog = True
        if self._backlog and self._slots.free > 0:
            self._poked.set()

    def _look_after_doubt(self) -> None:
        """Where a lease may be ours without our knowing: somebody must execute it."""
        if self._doubt:
            self._doubt = False
            try:
                self.audit()
            except BaseException:
                self._doubt = True
                raise

    # From the heartbeat

    def _look(self) -> HeartbeatReading:
        running = sorted(self.held_runs())
        self._marks = self._due.look(), self._deadline.look(), self.limited.learned
        return self._services.store.read_heartbeat(
            now=time.time_ns() // 1000, runs=running, claim_cursor=self._claim_cursor
        )

    def _on_heartbeat(self, reading: HeartbeatReading) -> None:
        self.alone = all(worker == self.id for worker, _, _, _ in reading.workers)
        self.limited.learn(reading.limited, since=self._marks[2])
        self._drained, resumed = self.id in reading.drained, self._drained and self.id not in reading.drained
        if resumed:
            self.poke()
        if reading.interrupted:
            self.tell(dict(reading.interrupted))
        with self._guard:
            works = self._works()
        since = self._services.clock.now() - SHOW_AFTER
        for work in works:
            work.show_long_steps(since)
        self.projector.note_head(reading.head)
        self.scheduler.note_due(reading.next_schedule)
        self._due.found(self._marks[0], reading.next_due)
        self._deadline.found(self._marks[1], reading.next_deadline)
        self._nothing_ready = not reading.ready and not self._claim_cursor.slow_scan  # else it did not look
        due = reading.next_due is not None and reading.next_due <= self._services.clock.now()
        if reading.ready or due or (self._claim_cursor.slow_scan and self._claim_cursor.affordable()):
            self.poke()
        elif reading.next_due is not None or reading.next_deadline is not None:
            self._poked.set()  # to wait for the right moment

    def tell(self, states: Mapping[str, str | None]) -> None:
        """Tell what executes of these runs that they were paused or canceled, or (None) to look again."""
        with self._guard:
            told = [work for work in self._works() if work.claimed.run_id in states]
        for work in told:
            state = states[work.claimed.run_id]
            if state is None or work.interrupt != state:
                work.told(state)

    def _rescued(self, worker: str, executions: list[NewExecution]) -> None:
        self._reports.down(worker, "dead", len(executions))
        if executions:
            self.poke()

    def _lost(self) -> WorkerRow:
        """Everything that we held is somebody else's now."""
        with self._guard:
            lost = self._works()
            former, self._row = self.id, self._new_row()
            self._row.drain_at = self._row.started_at if self._drained else None
        for work in lost:
            work.abandon()
        self._reports.down(former, "lost", len(lost))
        self.poke()
        return self._row

    def _token(self) -> str:
        return f"{self._row.id[-12:]}.{next(self._tokens)}"
