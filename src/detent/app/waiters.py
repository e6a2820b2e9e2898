"""Waiters: the callers in this process that wait for the ends of runs.

The end of a run in this process is passed on without a query.  For the rest one thread
looks for all waiters at once: when one is new, when another process has news, and
now and then in case a notification was lost.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec.structs import replace

from ..errors import RunNotFound
from ..kernel.rows import RunEnd, RunRow, RunState
from ..stores.driver import Trouble
from ..stores.store import Store
from .liveness import alive, why_unserved

log = logging.getLogger("detent")
SOON = 0.2  # seconds: what our own worker did not end by then may end elsewhere
LOOK_AGAIN = 1.0  # seconds between two looks, should a notification be lost
UNSERVED = 5.0  # seconds of waiting after which we look whether any live worker serves the run ...
UNSERVED_AGAIN = 60.0  # ... and after which we look again, if one did
BRIEFLY = 1.0  # seconds: after a shorter wait, a timeout does not say whether the run is served
KEPT = 10_000  # how many ends are remembered ...
LARGEST_KEPT = 2_000  # ... and how long their results may be
REMOVED = RunEnd(state="removed")  # for callers that wait for a run that was removed


class Waiter:
    """Waits for one run; `wake` is called once, with the waiter and the run's end.

    The waiter is passed so that the waiters of many runs can share one callback.  A closure for each would
    be three more objects for Python's collector of cycles to visit, as long as the run is waited for.
    """

    __slots__ = (
        "begun",
        "check_at",
        "looked",
        "loop",
        "next",
        "ours",
        "row",
        "run_id",
        "wake",
        "wants_pauses",
        "watched",
    )

    def __init__(
        self,
        row: RunRow,
        wake: Callable[[Waiter, RunEnd], None],
        *,
        wants_pauses: bool,
        ours: bool = False,
        fresh: bool = False,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.row = row
        self.run_id = row.id
        self.begun = time.monotonic()
        self.check_at = self.begun + UNSERVED  # when to look whether a live worker serves it
        self.loop = loop  # where `wake` is to be called; None: right away
        self.wake = wake
        self.wants_pauses = wants_pauses
        self.ours = ours  # our own worker may well be the one that ends it
        # How often the database was asked; a run that was just started here is known not to be over.
        self.looked = int(ours and fresh)
        self.watched = False  # other processes notify us of its end
        self.next: Waiter | None = None  # another one for the same run

    def end(self, end: RunEnd) -> RunEnd:
        """The end, with the id of the run that has ended if that is a later one of the chain."""
        return end if self.run_id == self.row.id else replace(end, continued_as=self.run_id)


class Waiters:
    """All that wait in this process, and the thread that looks for them."""

    def __init__(self, store: Store, *, alone: Callable[[], bool]) -> None:
        self._store = store
        self._alone = alone  # whether our worker is the only one
        self._guard = threading.Lock()
        self._waiting: dict[str, Waiter] = {}  # by run, the first of those that wait for it
        self._finished: OrderedDict[str, RunEnd] = OrderedDict()
        self._expected: OrderedDict[str, None] = OrderedDict()  # runs that begin with a user's commit
        self._news = threading.Event()
        self._everybody = False
        self._closed = True
        self._thread: threading.Thread | None = None

    def recent(self, run_id: str) -> RunEnd | None:
        """The end of a run that finished here not long ago; finished is final."""
        return self._finished.get(run_id)

    def begun(self, runs: Iterable[str]) -> None:
        """These runs begin now: an end of that id is the end of another run, which was removed since."""
        for run_id in runs:
            self._finished.pop(run_id, None)

    def expect(self, runs: Iterable[str]) -> None:
        """These runs begin when a transaction of the user commits: until then they are not there."""
        with self._guard:
            for run_id in runs:
                self._expected[run_id] = None
            while len(self._expected) > KEPT:
                self._expected.popitem(last=False)

    def add(self, *waiters: Waiter) -> None:
        """Wait for these runs; a waiter whose run has just finished in this process is called at once."""
        told: list[tuple[Waiter, RunEnd]] = []
        with self._guard:
            if self._thread is None:
                self._closed = False
                thread = threading.Thread(target=self._look_on, name="detent-waiter", daemon=True)
                thread.start()  # may raise: then no thread runs, and the next waiter tries again
                self._thread = thread
            for waiter in waiters:
                end = self._finished.get(waiter.run_id)
                if end is None:
                    self._wait(waiter)
                else:
                    told.append((waiter, end))
        _wake(told)
        if not all(waiter.looked for waiter in waiters):
            self._news.set()

    def why_unserved(self, waiter: Waiter) -> str:
        """Why no live worker executes what is waited for; empty if one may, or after a short wait."""
        if waiter.ours or time.monotonic() - waiter.begun < BRIEFLY:
            return ""
        return why_unserved(waiter.row, alive(self._store))

    def remove(self, *waiters: Waiter) -> None:
        with self._guard:
            for waiter in waiters:
                self._forget(waiter)

    def ended(self, ends: Sequence[tuple[str, RunEnd]]) -> None:
        """Runs ended, or paused, as this process knows first.

        A pause is not final: the run may have been resumed before we hear of it here, and a waiter that
        came after that must not be told.  So its waiters only look.
        """
        told: list[tuple[Waiter, RunEnd]] = []
        with self._guard:
            for run_id, end in ends:
                if end.continued_as is not None:
                    self._follow(run_id, end.continued_as)
                    continue
                if end.state == RunState.PAUSED:
                    self._look_again(run_id)
                    continue
                if end.state == RunState.FINISHED and len(end.result or "") <= LARGEST_KEPT:
                    self._finished[run_id] = end
                    if len(self._finished) > KEPT:
                        self._finished.popitem(last=False)
                if run_id in self._waiting:
                    for waiter in self._told(run_id):
                        told.append((waiter, waiter.end(end)))
        _wake(told)

    def heard(self) -> None:
        """Another process ended something, or may have."""
        if self._waiting:
            self._everybody = True
            self._news.set()

    def close(self) -> None:
        self._closed = True
        self._news.set()
        if self._thread is not None:
            self._thread.join(timeout=5)
            self._thread = None
        self._finished.clear()

    def _wait(self, waiter: Waiter) -> None:
        waiter.next = self._waiting.get(waiter.run_id)
        self._waiting[waiter.run_id] = waiter

    def _told(self, run_id: str) -> list[Waiter]:
        return list(_line(self._waiting.pop(run_id, None)))

    def _look_again(self, run_id: str) -> None:
        for waiter in _line(self._waiting.get(run_id)):
            if waiter.wants_pauses:
                waiter.looked = 0
                self._news.set()

    def _paused(self, ends: Sequence[tuple[str, RunEnd]], asked: Sequence[Waiter]) -> None:
        """Wake those that waited for a pause before these ends were read."""
        paused = {run_id: end for run_id, end in ends if end.state == RunState.PAUSED}
        told: list[tuple[Waiter, RunEnd]] = []
        with self._guard:
            for waiter in asked if paused else ():
                end = paused.get(waiter.run_id)
                if (
                    end is not None
                    and waiter.wants_pauses
                    and waiter in _line(self._waiting.get(waiter.run_id))
                ):
                    self._forget(waiter)
                    told.append((waiter, waiter.end(end)))
        _wake(told)

    def _everyone(self) -> list[Waiter]:
        return [waiter for first in self._waiting.values() for waiter in _line(first)]

    def _follow(self, run_id: str, continued_as: str) -> None:
        """The run was continued: its waiters wait for the run that continues it."""
        for waiter in list(_line(self._waiting.pop(run_id, None))):
            waiter.run_id, waiter.looked, waiter.watched = continued_as, 0, False
            self._wait(waiter)
            self._news.set()

    def _forget(self, waiter: Waiter) -> None:
        others = [other for other in _line(self._waiting.pop(waiter.run_id, None)) if other is not waiter]
        for other in reversed(others):
            self._wait(other)

    def _look_on(self) -> None:
        wait = SOON
        while not self._closed:
            news = self._news.wait(wait)
            self._news.clear()
            try:
                everybody, self._everybody = self._everybody or not news, False
                more = self._look(everybody=everybody)
                wait = SOON if more else LOOK_AGAIN
                self._warn_of_unserved()
            except Exception as error:
                if self._store.driver.trouble(error) is not Trouble.GONE:
                    log.exception("polling for ended runs failed")
                wait = LOOK_AGAIN

    def _look(self, *, everybody: bool) -> bool:
        """Ask for those who were not asked for yet, or for all; True: look again soon."""
        with self._guard:
            asked = [w for w in self._everyone() if everybody or not w.looked]
        if not asked:
            return False
        runs = sorted({waiter.run_id for waiter in asked})
        # To be told by others costs a write, so whatever our own worker may end soon is not watched yet;
        # nor is it as long as there is no other.  (One that has just come is found by looking.)
        alone = self._alone()
        unwatched = [
            waiter
            for waiter in asked
            if not waiter.watched and (not waiter.ours or (waiter.looked > 1 and not alone))
        ]
        for waiter in asked:
            waiter.looked += 1
        ends = self._ends(runs, unwatched)
        self.ended([(run_id, end) for run_id, end in ends if end.state != RunState.PAUSED])
        self._paused(ends, asked)
        if everybody:
            known = {run_id for run_id, _ in ends}
            self._look_for_removed([run_id for run_id in runs if run_id not in known])
        return any(waiter.looked <= 1 for waiter in asked)

    def _ends(self, runs: Sequence[str], unwatched: Sequence[Waiter]) -> list[tuple[str, RunEnd]]:
        """Which of the runs are over or paused; from here on, others notify us of those not watched yet."""
        if unwatched:
            ends = self._store.watch([waiter.run_id for waiter in unwatched], among=runs)
            if ends is not None:
                for waiter in unwatched:
                    waiter.watched = waiter.run_id not in self._expected  # else it may not be there yet
                return ends
        return self._store.ends(runs)

    def _look_for_removed(self, runs: Sequence[str]) -> None:
        """Wake the waiters of a run that retention or `app.delete()` has removed."""
        if not runs:
            return
        existing = self._store.existing(runs)
        with self._guard:
            for run_id in existing:
                self._expected.pop(run_id, None)
            removed = [run for run in runs if run not in existing and run not in self._expected]
            told = [(waiter, REMOVED) for run in removed for waiter in self._told(run)]
        _wake(told)

    def _warn_of_unserved(self) -> None:
        """Log runs that were waited for in vain for a few seconds because no live worker serves them."""
        now = time.monotonic()
        with self._guard:
            waiters = self._everyone()
        checked = [waiter for waiter in waiters if not waiter.ours and waiter.check_at <= now]
        if not checked:
            return
        workers = alive(self._store)
        for waiter in checked:
            why = why_unserved(waiter.row, workers)
            waiter.check_at = float("inf") if why else now + UNSERVED_AGAIN
            if why:
                log.warning(
                    "waiting for run %s of %s, but %s",
                    waiter.run_id,
                    waiter.row.type,
                    why,
                    extra={"run": waiter.run_id, "type": waiter.row.type},
                )


def _line(waiter: Waiter | None) -> Iterator[Waiter]:
    """A waiter, and the others for the same run."""
    while waiter is not None:
        yield waiter
        waiter = waiter.next


def found(run_id: str, end: RunEnd) -> RunEnd:
    """The end that a waiter got; raises RunNotFound if the run was removed."""
    if end is REMOVED:
        raise RunNotFound(run_id)
    return end


def _wake(told: Sequence[tuple[Waiter, RunEnd]]) -> None:
    """Wake all; those on a loop with one call for each loop."""
    loops: dict[asyncio.AbstractEventLoop, list[tuple[Waiter, RunEnd]]] = {}
    for waiter, end in told:
        if waiter.loop is None:
            waiter.wake(waiter, end)
        else:
            loops.setdefault(waiter.loop, []).append((waiter, end))
    for loop, group in loops.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(_wake_here, group)


def _wake_here(told: Sequence[tuple[Waiter, RunEnd]]) -> None:
    for waiter, end in told:
        waiter.wake(waiter, end)
