"""Retention: what ended long ago is removed, a few hundred runs at a time, beside the work.

A pass walks over what has expired, longest ago first, and removes what may go.  It
repeats as long as children are left whose parents have just gone: they go one
generation behind.  Two that sweep at once share the work, or find nothing to do.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

from ..clock import Clock, span_micros
from ..stores.driver import Trouble
from ..stores.store import Store
from ..stores.verbs.retention import BEGINNING, Expired
from .input_ids import InputIds

log = logging.getLogger("detent")
AT_ONCE = 100  # runs in one transaction
EVERY = 300.0  # seconds between two sweeps of a worker


def remove_expired(
    store: Store, before: int, *, limit: int | None = None, stop: threading.Event | None = None
) -> int:
    """Remove what ended before then, at most `limit`; return how many."""
    stop = stop if stop is not None else threading.Event()
    removed = 0
    while True:
        gone, waiting = 0, False
        for window in _windows(store, before):
            room = AT_ONCE if limit is None else limit - removed - gone
            began = time.monotonic()
            gone += store.remove([run.id for run in window if run.may_go][:room], before=before)
            waiting = waiting or any(run.idle and not run.parentless for run in window)
            if gone + removed == limit:
                return removed + gone
            # Half of the time at most: where writers take turns, it is others' turn now.
            if stop.wait(time.monotonic() - began):
                return removed + gone
        removed += gone
        if not gone or not waiting:
            return removed


def count_expired(store: Store, before: int) -> int:
    """How many would go; changes nothing."""
    number = 0
    for window in _windows(store, before):
        parents = {run.parent for run in window if run.parent is not None and not run.parentless}
        going = store.going_with(parents, before=before)
        number += sum(bool(run.idle and (run.parentless or run.parent in going)) for run in window)
    return number


def _windows(store: Store, before: int) -> Iterator[list[Expired]]:
    """All that has expired, in pieces; those that may not go yet do not make a piece larger."""
    place = BEGINNING
    while window := store.expired(before=before, beyond=place, limit=AT_ONCE):
        place = window[-1].place
        yield window


class Sweeper:
    """Sweeps now and then, in a thread of its own, until it is stopped.

    A test kit whose clock is moved by hand calls `sweep` itself, when time has passed.
    """

    def __init__(self, store: Store, clock: Clock, retention: timedelta | None, ids: InputIds) -> None:
        self._store = store
        self._clock = clock
        self._retention = None if retention is None else span_micros(retention)
        self._ids = ids
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._live, name="detent-sweeper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End after the removal that is under way."""
        self._stopping.set()
        self._thread.join()

    def sweep(self) -> None:
        """Remove what has expired by now."""
        self._remove_runs()
        self._forget_ids()

    def _live(self) -> None:
        wait = 0.0
        while not self._stopping.wait(wait):
            self._try(self._remove_runs, "removing old runs")
            self._try(self._forget_ids, "forgetting input ids")
            wait = EVERY * (0.75 + random.random() / 2)  # workers that began together spread out

    def _try(self, task: Callable[[], None], what: str) -> None:
        try:
            task()
        except Exception as error:
            if self._store.driver.trouble(error) is not Trouble.GONE:
                log.exception("%s failed", what)

    def _remove_runs(self) -> None:
        if self._retention is None:
            return
        before = self._clock.now() - self._retention
        removed = remove_expired(self._store, before, stop=self._stopping)
        self._store.forget_received(before=before)
        if removed:
            log.info("removed %d runs that ended before the retention time", removed)

    def _forget_ids(self) -> None:
        forgotten = self._ids.forget(stop=self._stopping)
        if forgotten:
            log.info("removed %d input ids that have expired", forgotten)
