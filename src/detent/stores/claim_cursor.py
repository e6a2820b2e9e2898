"""A cursor for claims: where a worker's claims have got to, so that they need not start at the beginning.

An index entry of a claimed execution disappears only when no transaction can see it any more.  An
idle transaction keeps all of them.  Then a claim that starts at the front of the index steps over every
execution since: after a million executions the claim takes longer than the work.

A worker whose scan of the whole index is slow continues from its last places: for each priority from a
little before the last execution that it claimed.  Executions that appear elsewhere (a new priority, an
old execution that was held or handed back) are found by a scan of the whole index, as often as a small
share of the time allows.  While the scan is quick, which is nearly always, every claim does it.

One scan that took long proves nothing: the process, the network or the server may have paused.  A scan
counts as long as the shorter of the last two.
"""

from __future__ import annotations

import time
from collections.abc import Callable

SLOW = 0.01  # seconds that a scan may take without being counted
EVERY = 1.0  # seconds between two slow scans, also where there is enough to do without
SHARE = 0.03  # of the time may go to slow scans ...
MOST = 1.0  # ... and so many seconds at once, when there were none for long
MARGIN = 1_000_000  # microseconds: a start may be committed after another that was made after it


class ClaimCursor:
    """The last places of one worker; not for two threads at once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._places: dict[str, dict[int, int]] = {}  # by queue and precedence: when it was due
        self._timers = 0
        self._steps: list[tuple[str, int, int]] = []  # of a claim that is not committed
        self._step = 0
        self._measured = 0.0  # how long the last look over everything took
        self._last = 0.0  # the shorter one of the last two
        self.skipped = False  # a claim ended without a look over everything, though it had room for more
        self._looked_at = clock()
        self._credit = MOST  # seconds that slow scans may take, as of `_counted_at`
        self._counted_at = clock()

    @property
    def slow_scan(self) -> bool:
        """Whether looking over everything takes long."""
        return self._last > SLOW

    def wanted(self) -> bool:
        """Whether to look over everything this time."""
        return not self.slow_scan or (self._clock() - self._looked_at >= EVERY and self.affordable())

    def affordable(self) -> bool:
        """Whether there is time for another look over everything."""
        return not self.slow_scan or self._left() > 0

    def looked(self, seconds: float) -> None:
        """It took so long."""
        self._last = min(seconds, self._measured)
        self._measured = seconds
        self._credit = self._left() - (self._last if self.slow_scan else 0.0)
        self._counted_at = self._looked_at = self._clock()
        self.skipped = False

    def _left(self) -> float:
        return min(MOST, self._credit + SHARE * (self._clock() - self._counted_at))

    def begin(self) -> None:
        """A claim begins, perhaps again: its transaction had to be repeated."""
        self._steps, self._step = [], 0

    def claimed(self, queue: str, precedence: int, due: int) -> None:
        """Something is claimed there; what is due before it is claimed too, or is not for us."""
        self._steps.append((queue, precedence, due))

    def promoted(self, due: int) -> None:
        """A timer that was due then becomes ready."""
        self._step = due

    def committed(self) -> None:
        """The claim was committed: the next one continues there."""
        for queue, precedence, due in self._steps:
            places = self._places.setdefault(queue, {})
            places[precedence] = max(places.get(precedence, 0), due)
        self._timers = max(self._timers, self._step)

    def places(self, queue: str) -> list[tuple[int, int]]:
        """Where to continue in a queue: precedences in order, each with a time."""
        return [(rank, due - MARGIN) for rank, due in sorted(self._places.get(queue, {}).items())]

    @property
    def timers(self) -> int:
        """Where to continue among timers, unless it is a look over everything."""
        return self._timers - MARGIN if self.slow_scan else 0
