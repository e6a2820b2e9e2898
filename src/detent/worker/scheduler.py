"""The scheduler of a worker: fires schedules when they are due, in a thread of its own.

    woken   by the next due time that it knows, by the worker's heartbeat when another schedule is
            due first, by a change that was made in this process
    then    declares the schedules of the code, now and then, and fires what is due

Without a schedule there is no thread and no query: the heartbeat's statement says when one appears.
Any number of workers may do this at the same time: a firing happens under the lock of its schedule.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from ..execution.services import Services
from ..kernel.operations import Start
from ..kernel.schedules import CODE, RUN_TIME, ScheduleRow, served_by
from ..stores.driver import Trouble
from ..stores.verbs.schedules import SCHEDULES_AT_ONCE, Declared

log = logging.getLogger("detent.schedules")
SEEN_EVERY = 60_000_000  # microseconds between two notes that our declarations are in use
UNSEEN_LOOKS = 3  # a declaration that was not noted between so many looks is in use nowhere
BUSY = 100_000  # microseconds until we look again at what another worker has in hand
AWAY = 0.25  # seconds between two tries to reach a lost database
BROKEN = 1.0  # seconds after an unexpected error


class Duties(Protocol):
    """What a scheduler needs from its app."""

    def declared(self) -> dict[str, str]:
        """The schedules that the code declares: their fingerprints by name."""
        ...

    def rows(self, names: Collection[str], now: int) -> Sequence[ScheduleRow]:
        """Some of them, as they would be stored now."""
        ...

    def jobs(self) -> Collection[str]:
        """The names of the definitions that can be started here."""
        ...

    def start(self, row: ScheduleRow, nominal: int) -> Start:
        """The start of the run of one firing."""
        ...

    def canceled(self, runs: Sequence[str], /) -> None:
        """These runs were canceled because a later firing replaces them."""
        ...


class Scheduler:
    """Fires the schedules that this worker serves, as long as there are any."""

    def __init__(self, services: Services, duties: Duties, poke: Callable[[], None]) -> None:
        self._store = services.store
        self._clock = services.clock
        self._duties = duties
        self._poke_worker = poke
        self._guard = threading.Lock()
        self._poked = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._open = False
        self._wanted = False
        self._idle = True
        self._next: int | None = None  # when the next schedule is due that we serve
        self._heard: int | None = None  # what the heartbeat said last
        self._declared: dict[str, str] = {}  # what we have declared: fingerprints by name
        self._looked_at: int | None = None  # when we last noted that they are in use
        # Declared by others, or not any more: when that was last seen, and at how many looks it was the same.
        self._unseen: dict[str, tuple[int, int]] = {}

    def start(self) -> None:
        self._open = True
        if self._duties.declared():
            self.poke()

    def stop(self) -> None:
        self._open = False
        self._stopped.set()
        self._poked.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5)

    def poke(self) -> None:
        """A schedule was made or changed here."""
        if not self._open:
            return
        with self._guard:
            self._wanted = True
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="detent-scheduler", daemon=True)
                contextvars.Context().run(thread.start)  # may raise: the next poke tries again
                self._thread = thread
        self._poked.set()

    def note_due(self, due: int | None) -> None:
        """When the first of all schedules is due, as the heartbeat has seen it."""
        if self._open and due != self._heard:  # the first heartbeat may come before start()
            self.poke()  # may raise: then the next heartbeat tries again
            self._heard = due

    def settled_down(self) -> bool:
        """Whether nothing is left to do, apart from what waits for its time."""
        with self._guard:
            return self._thread is None or (self._idle and not self._due() and not self._poked.is_set())

    def served(self) -> set[str]:
        """The keys of the schedules that this worker fires."""
        jobs = {served_by(RUN_TIME, "", job) for job in self._duties.jobs()}
        return jobs | {served_by(CODE, name, "") for name in self._duties.declared()}

    # The thread

    def _work(self) -> None:
        while not self._stopped.is_set():
            if self._begin_round():
                pause = self._try()
                if pause:
                    with self._guard:
                        self._wanted = True
                    self._stopped.wait(pause)
            else:
                self._clock.wait(self._poked, self._wake_at())

    def _begin_round(self) -> bool:
        """Whether there is something to do; if not, we are idle until we are woken."""
        with self._guard:
            self._poked.clear()
            self._idle = not self._due()
            if not self._idle:
                self._wanted = False
            return not self._idle

    def _due(self) -> bool:
        moment = self._wake_at()
        return self._wanted or (moment is not None and moment <= self._clock.now())

    def _wake_at(self) -> int | None:
        """When a schedule is due; and as long as there are any, when to look after the declarations."""
        looked_at = self._looked_at if self._declared or self._heard is not None else None
        moments = (self._next, None if looked_at is None else looked_at + SEEN_EVERY)
        return min((moment for moment in moments if moment is not None), default=None)

    def _try(self) -> float:
        """Do all that can be done now; returns how long to wait before the next try, 0 if it went well."""
        try:
            self._declare()
            self._fire()
        except Exception as error:
            if self._store.driver.trouble(error) is not Trouble.OTHER:
                return AWAY
            log.exception("firing schedules failed")
            return BROKEN
        return 0.0

    def _declare(self) -> None:
        """Store what the code declares, and from time to time note that it is in use.

        A schedule stays as newer code has declared it as long as that is noted; when it no longer is, ours
        counts.  Both are looked for by counting looks: a clock that jumps proves nothing.
        """
        now = self._clock.now()
        current = self._duties.declared()
        if current == self._declared and self._looked_at is not None and now < self._looked_at + SEEN_EVERY:
            return
        unseen = {name for name, (_, looks) in self._unseen.items() if looks >= UNSEEN_LOOKS}
        stored = self._store.code_schedules(self._duties.jobs())
        differing = {name for name, text in current.items() if name not in stored or stored[name][0] != text}
        rows = self._duties.rows(differing, now)
        done = self._store.declare_schedules(rows, now=now, rolled_back=unseen) if rows else Declared()
        for name in done.created + done.changed + done.returned:
            log.info("schedule %s: declared by the code", name)
        self._store.see_schedules(current.items(), now=now)
        for name in done.outdated.keys() - self._unseen.keys():
            log.warning("schedule %s: newer code at work declares something else, which stays", name)
        gone = (unseen & stored.keys()) - current.keys()
        if gone:
            self._store.remove_schedules(gone, now=now)
        for name in sorted(gone):
            log.warning("schedule %s has stopped: it is no longer declared in the code", name)
        undeclared = {name: seen for name, (_, seen) in stored.items() if name not in current.keys() | gone}
        self._count_looks(done.outdated | undeclared)
        self._declared, self._looked_at = current, now

    def _count_looks(self, seen: dict[str, int]) -> None:
        before = self._unseen
        self._unseen = {
            name: (at, before[name][1] + 1 if name in before and before[name][0] == at else 0)
            for name, at in seen.items()
        }

    def _fire(self) -> None:
        served = self.served()
        more = True
        while more and not self._stopped.is_set():
            now = self._clock.now()
            fired = self._store.fire_schedules(served, start=self._duties.start, now=now)
            for name, error in fired.failed:
                log.error("schedule %s could not start its run, and tries again in a minute: %s", name, error)
            if fired.canceled:
                self._duties.canceled(fired.canceled)
            if fired.started:
                self._poke_worker()
            more = fired.looked_at == SCHEDULES_AT_ONCE
            if not more:
                self._next = self._store.next_schedule(served)
                behind = self._next is not None and self._next <= now
                more = behind and fired.looked_at > 0  # it catches up, in portions
                if behind and not more:  # another worker has it in hand
                    self._next = now + BUSY
