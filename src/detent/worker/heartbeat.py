"""The heartbeat of a worker: shows that it is alive, and finds dead workers.

A thread of its own, independent of the loop and of user code.  It renews the
lease, looks for workers that are gone and gives their work back, tells running
workflows that they were paused or canceled, and wakes the worker for timers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ..clock import Clock
from ..kernel.rows import HeartbeatReading, NewExecution, WorkerRow
from ..stores.driver import Trouble
from ..stores.store import Store

log = logging.getLogger("detent.worker")
BEAT = 1.4  # seconds
# A worker that lost only its lock session takes a new one by its next beat, and renews its lease.  So one
# is dead when its lock is free, or its lease has expired, at every look during this time, and the lease was
# not renewed meanwhile.
SUSPECTED = 1.5 * BEAT
# After a restart of the database every worker has to connect again, and a busy machine is slow at that.  All
# leases may have expired meanwhile.  So we wait longer after we lost the database ourselves.
STEADY = 10.0
RETRY = 0.25  # seconds between two tries to reach a lost database


class Heartbeat:
    """Beats for one worker until it is stopped."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        worker: WorkerRow,
        *,
        lease: int,
        max_recoveries: int,
        look: Callable[[], HeartbeatReading],
        on_heartbeat: Callable[[HeartbeatReading], None],
        on_rescue: Callable[[str, list[NewExecution]], None],
        on_lost: Callable[[], WorkerRow],
        on_doubt: Callable[[], None],
        on_begun_anew: Callable[[WorkerRow], None] = lambda worker: None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._worker = worker
        self._lease = lease
        self._max_recoveries = max_recoveries
        self._look = look
        self._on_heartbeat = on_heartbeat
        self._on_rescue = on_rescue
        self._on_lost = on_lost
        self._on_begun_anew = on_begun_anew
        self._on_doubt = on_doubt
        self._liveness = store.driver.liveness()
        self._suspects: dict[str, tuple[float, int]] = {}  # since when, and until when its lease ran then
        self._renewed = 0.0
        self._lost_at = float("-inf")  # when we last lost the database
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._live, name="detent-heartbeat", daemon=True)

    def register(self) -> None:
        """Show that the worker lives.  Can be called again after an error."""
        self._liveness.take(self._worker)
        self._store.register(self._worker)
        began = time.monotonic()
        self._store.renew(self._worker.id, lease=self._lease, now=_wall())
        self._renewed = began

    def start(self) -> None:
        """Beat in the background."""
        self._thread.start()

    def stop(self) -> None:
        """Stop beating, and release the lock."""
        self._stopping.set()
        if self._thread.is_alive():  # or it could not be started
            self._thread.join()
        self._liveness.leave()

    def _live(self) -> None:
        wait = 0.0  # the first look at once: who died before we came is found one look earlier
        while not self._liveness.rest(self._stopping, wait):
            try:
                self.beat()
                wait = BEAT / 2 if self._suspects else BEAT
            except Exception as error:
                if self._store.driver.trouble(error) is not Trouble.GONE:
                    log.exception("worker %s: a heartbeat failed", self._worker.id)
                elif wait != RETRY:
                    log.warning("worker %s: the database is unavailable (%s)", self._worker.id, error)
                # Workers that lost the database at the same time need a moment to connect again.
                self._suspects.clear()
                self._lost_at = time.monotonic()
                self._liveness.doubt()
                self._on_doubt()
                wait = RETRY

    def beat(self) -> None:
        """One look at the world."""
        if self._liveness.take(self._worker) and not self._renew():
            return
        reading = self._look()
        mine = [held for id, _, _, held in reading.workers if id == self._worker.id]
        if not mine:
            self._lost()
            return
        if mine[0]:
            self._liveness.seen()
        else:
            self._liveness.missed()
            if self._liveness.take(self._worker) and not self._renew():
                return
        if time.monotonic() - self._renewed > self._lease / 4e6 and not self._renew():
            return
        self._rescue(reading)
        self._on_heartbeat(reading)

    def _renew(self) -> bool:
        """Renew the lease, which also tells workers that missed our lock that we are alive."""
        began = time.monotonic()
        alive = self._store.renew(self._worker.id, lease=self._lease, now=_wall())
        self._renewed = began  # only now: a renewal that failed is due again with the next beat
        if not alive:
            self._lost()
        return alive

    def _lost(self) -> None:
        """We were thought dead: what we held belongs to others now.  Begin anew under another name."""
        log.warning("worker %s lost its registration; registering again", self._worker.id)
        self._worker = self._on_lost()
        self.register()
        self._on_begun_anew(self._worker)

    def _rescue(self, reading: HeartbeatReading) -> None:
        others = [
            WorkerRow(
                id=id,
                name="",
                pid=0,
                queues="",
                concurrency=0,
                lock_no=lock,
                started_at=0,
                beat_at=0,
                lease_until=until,
            )
            for id, lock, until, _ in reading.workers
            if id != self._worker.id
        ]
        if not others:
            return
        living = {id for id, _, _, held in reading.workers if held}
        unseen = [other for other in others if other.id not in living]
        silent = self._liveness.vacant(unseen) if unseen else set()
        expired = {other.id for other in others if other.lease_until < reading.now}
        now, leases = time.monotonic(), {other.id: other.lease_until for other in others}
        since = max(now, self._lost_at + STEADY - SUSPECTED)
        self._suspects = {
            id: self._suspects[id]
            if self._suspects.get(id, (0.0, 0))[1] == leases[id]
            else (since, leases[id])
            for id in silent | expired
        }
        dead = {id for id, (since, _) in self._suspects.items() if now - since >= SUSPECTED}
        for worker in sorted(dead):
            self._suspects.pop(worker, None)
            again = self._store.reap(
                worker,
                max_recoveries=self._max_recoveries,
                now=self._clock.now(),
                unless_renewed=leases[worker],
            )
            if again is not None:
                log.warning("worker %s is dead; %d executions go back to the queue", worker, len(again))
                self._on_rescue(worker, again)


def _wall() -> int:
    return time.time_ns() // 1000
