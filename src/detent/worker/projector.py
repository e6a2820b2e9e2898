"""The projector of a worker: keeps the app's projections up with the events, in a thread of its own.

    woken   by a commit of this process that brought events, by news from another one,
            by the heartbeat's reading when there are events that we have not seen, by the time to
            try a blocked projection again
    then    one look at the table of generations, and a batch for each that is behind,
            until none is

Whoever knows of events looks after them: where another worker has a projection in hand, we
look again until it has come as far.  An idle projector asks the database nothing.
"""

from __future__ import annotations

import contextvars
import logging
import threading
import time

from ..definitions.context import Abandoned, unrecorded_var
from ..definitions.projections import ProjectionPlan
from ..execution.projection import Progress, Runner
from ..execution.services import Services
from ..kernel.projections import REBUILDING, RETIRED, ProjectionRow
from ..stores.driver import Trouble
from ..stores.verbs import projections as stored

log = logging.getLogger("detent.projections")
GATHER = 0.01  # seconds to let more events come, behind a batch that took all that there were
SHARE = 0.2  # of the time of a batch, that others have to write before the next one
FIRST_WAIT, LONGEST_WAIT = 0.02, 0.25  # seconds between two looks at what another worker has in hand
AWAY = 0.25  # seconds between two tries to reach a lost database
BROKEN = 1.0  # seconds after an error of Detent


class Projector:
    """Runs the projections of an app, as long as there are any."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._store = services.store
        self._runner = Runner(services)
        self._guard = threading.Lock()
        self._poked = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._open = False
        self._wanted = True  # the table of generations is to be looked at
        self._idle = False
        self._head = -1  # the newest event when we last looked
        self._next: int | None = None  # when something is to be tried again

    def start(self) -> None:
        self._open = True
        self.poke()

    def end(self) -> None:
        """Commit what was applied, and end; `join` waits for that."""
        self._runner.ending.set()
        self._end()

    def crash(self) -> None:
        """End without committing anything more, as a killed process does."""
        self._runner.crashed.set()
        self._end()
        self.join(5.0)

    def _end(self) -> None:
        self._open = False
        self._stopped.set()
        self._poked.set()

    def join(self, patience: float) -> None:
        """Wait a while for the end of the batch under way."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=max(0.0, patience))

    def poke(self) -> None:
        """There may be events, or something was changed about projections."""
        if not self._open or not self._services.registry.projections:
            return
        with self._guard:
            self._wanted = True
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="detent-projector", daemon=True)
                contextvars.Context().run(thread.start)  # may raise: the next poke tries again
                self._thread = thread
        self._poked.set()

    def note_head(self, head: int) -> None:
        """How far the events have come."""
        if head > self._head:
            self.poke()

    def settled_down(self) -> bool:
        """Whether nothing is left to do, apart from what waits for its time."""
        with self._guard:
            return self._thread is None or (self._idle and not self._due() and not self._poked.is_set())

    # The thread

    def _work(self) -> None:
        unrecorded_var.set("a projection: write to its view instead")
        wait = FIRST_WAIT
        while not self._stopped.is_set():
            if not self._begin_round():
                self._services.clock.wait(self._poked, self._next)
                continue
            pause = self._try()
            if pause is None:
                wait = FIRST_WAIT
                continue
            with self._guard:
                self._wanted = True
            self._stopped.wait(pause or wait)
            wait = min(wait * 2, LONGEST_WAIT)

    def _begin_round(self) -> bool:
        """Whether there is something to do; if not, we are idle until we are woken."""
        with self._guard:
            self._poked.clear()
            self._idle = not self._due()
            if self._idle:
                return False
            self._wanted = False
            return True

    def _due(self) -> bool:
        return self._wanted or (self._next is not None and self._next <= self._services.clock.now())

    def _try(self) -> float | None:
        """Do all that can be done now; return how long to wait where there is more.

        Nothing in particular (0), where another worker has it in hand.
        """
        try:
            return 0.0 if self._catch_up() else None
        except Abandoned:
            return AWAY
        except Exception as error:
            if self._store.driver.trouble(error) is not Trouble.OTHER:
                return AWAY
            log.exception("running projections failed")
            return BROKEN

    def _catch_up(self) -> bool:
        """Bring all to the newest event; whether another worker has some of them in hand."""
        while not self._stopped.is_set():
            rows, head = self._store.read(stored.generations)
            if self._begin(rows):
                continue
            found = [self._one(plan, row, head) for plan, row in self._ours(rows)]
            if Progress.MORE in found:
                continue
            if Progress.REACHED in found:
                self._gather()
                continue
            # Nothing has changed since this look: it is what we know, until we are woken.
            waiting = [row.retry_at for _, row in self._ours(rows) if row.retry_at is not None]
            self._next, self._head = min(waiting, default=None), head
            self._runner.forget({(row.name, row.generation) for row in rows})
            return Progress.BUSY in found
        return False

    def _begin(self, rows: list[ProjectionRow]) -> bool:
        """Make the generations that our code wants, where they are not there; whether some were missing."""
        newest: dict[str, int] = {}
        for row in rows:
            if row.state != RETIRED:
                newest[row.name] = max(newest.get(row.name, 0), row.version)
        plans = self._services.registry.projections
        wanted = {plan.name: plan.version for plan in plans if newest.get(plan.name, 0) < plan.version}
        if wanted:
            now = self._services.clock.now()
            self._store.write(lambda tx: stored.begin_generations(tx, wanted, now))
        return bool(wanted)

    def _ours(self, rows: list[ProjectionRow]) -> list[tuple[ProjectionPlan, ProjectionRow]]:
        """The generations that our code can run, or remove."""
        plans = {plan.name: plan for plan in self._services.registry.projections}
        return [
            (plans[row.name], row)
            for row in rows
            if row.name in plans and (row.state == RETIRED or row.version == plans[row.name].version)
        ]

    def _one(self, plan: ProjectionPlan, row: ProjectionRow, head: int) -> Progress:
        """The next thing to do for a generation."""
        if row.waits(self._services.clock.now()):
            return Progress.WAITS
        if row.state == RETIRED:
            return self._runner.drop(plan, row.generation)
        if row.begun_at is None:
            return self._runner.set_up(plan, row.generation)
        if row.position >= head and not row.failures and row.state != REBUILDING:
            return Progress.DONE
        began = time.perf_counter()
        progress = self._runner.advance(plan, row.generation, head)
        self._give_way(time.perf_counter() - began)
        return progress

    def _gather(self) -> None:
        """Where events keep coming: some at a time."""
        if not self._services.clock.virtual:
            self._stopped.wait(GATHER)

    def _give_way(self, seconds: float) -> None:
        if self._store.driver.writing is not None:  # there is one writer at a time, without a queue
            self._stopped.wait(seconds * SHARE)
