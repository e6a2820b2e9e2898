"""Upkeep: what a worker does now and then beside its work, in a thread of its own.

    when it begins   heals the runs of its classes that were settled under another graph
    every while      hands back what the database says that this worker holds, and does not run here
                     pauses runs that wait for a job which no worker knows
                     removes dedup windows and debounces that are over

Any number of workers may do this at the same time: each step looks again under the run's lock.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable

from ..clock import from_micros
from ..errors import DetentError, MissingJob, StepNotDefined
from ..execution.services import Services
from ..kernel.external_changes import PauseWith, Reconcile
from ..kernel.rows import stored_error
from ..stores.driver import Trouble
from ..stores.verbs.heal import known_jobs

log = logging.getLogger("detent.worker")
EVERY = 15.0  # seconds
AT_ONCE = 100
KEPT = 60_000_000  # microseconds: clocks of several machines differ


class Upkeep:
    """Finds runs that no execution would continue."""

    def __init__(
        self,
        services: Services,
        *,
        missing_after: int,
        poke: Callable[[], None],
        idle: Callable[[], bool],
        audit: Callable[[], int],
    ) -> None:
        self._services = services
        self._missing_after = missing_after
        self._poke = poke
        self._audit = audit
        self._idle = idle  # whether nothing is ready, and so nothing can be ready in vain
        self._stopped = threading.Event()
        self.begun = False  # what comes first is done
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        thread = threading.Thread(target=self._work, name="detent-upkeep", daemon=True)
        contextvars.Context().run(thread.start)
        self._thread = thread

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)

    def _work(self) -> None:
        self._try(self.heal)
        self.begun = True
        while not self._stopped.wait(EVERY):
            self._try(self._audit)
            if not self._idle():
                self._try(self.find_missing)
            self._try(self.forget_start_keys)

    def _try(self, task: Callable[[], object]) -> None:
        try:
            task()
        except Exception as error:
            if self._services.store.driver.trouble(error) is not Trouble.GONE:
                log.exception("upkeep failed")

    def heal(self) -> int:
        """Recount the runs of our classes that another version of the code has settled; say how many."""
        healed = 0
        for plan in self._services.registry.plans:
            behind = ""
            while not plan.abstract and not self._stopped.is_set():
                runs = self._services.store.outdated(
                    plan.name,
                    plan.graph.signature,
                    behind=behind,
                    limit=AT_ONCE,
                    version=self._services.version,
                )
                for run in runs:
                    self._heal(run)
                healed += len(runs)
                if len(runs) < AT_ONCE:
                    break
                behind = runs[-1]
        if healed:
            self._poke()
        return healed

    def _heal(self, run_id: str) -> None:
        services = self._services
        try:
            run_graph = services.run_graphs.of_row(services.store.run(run_id))
            services.store.change(Reconcile(run_id, run_graph), now=services.clock.now())
        except DetentError:
            log.exception("could not heal run %s", run_id)

    def forget_start_keys(self) -> int:
        """Remove dedup windows and debounces that are over; say how many."""
        services = self._services
        return services.store.forget_start_keys(before=services.clock.now() - KEPT)

    def find_missing(self) -> int:
        """Pause runs whose nodes are due for long, while no worker knows their job; say how many."""
        services = self._services
        before = services.clock.now() - self._missing_after
        found = services.store.unknown_jobs(before=before, limit=AT_ONCE)
        if not found:
            return 0
        known = known_jobs(services.store.workers())
        classes = {job.rpartition(".")[0] for job in known}
        paused = 0
        for run_id, node, _, job in found:
            error = self._missing(run_id, node, job, classes)
            if error is not None:
                pause = PauseWith(run_id, stored_error(error))
                paused += services.store.change(pause, now=services.clock.now())
        return paused

    def _missing(self, run_id: str, node: str, job: str, classes: set[str]) -> DetentError | None:
        row = self._services.store.run(run_id)
        if row.kind == "class":
            # If no worker has the class, it is unknown what the class defines.
            return StepNotDefined(run_id, row.type, node) if row.type in classes else None
        try:
            name = self._services.run_graphs.of_row(row).graph.shown(node)
        except DetentError:
            name = node
        moment = from_micros(row.frozen_at or row.created_at).isoformat()
        return MissingJob(run_id, job, f"{name} ({node})", moment)
