"""The next moment at which a worker has something to do.

Commits of this process report moments at once.  A look into the database replaces what is known.  A
commit can happen while a look is under way and be missing from its answer, so a moment that was reported
since the look began is kept.
"""

from __future__ import annotations

import threading


class NextMoment:
    """The earliest known moment, in microseconds, or None; for any thread."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._reported = 0  # how many moments were reported
        self.at: int | None = None

    def report(self, moment: int) -> bool:
        """Something is due then; say whether that is earlier than what was known."""
        with self._guard:
            self._reported += 1
            if self.at is not None and self.at <= moment:
                return False
            self.at = moment
            return True

    def look(self) -> int:
        """A look into the database begins; `found` takes the mark that this returns."""
        return self._reported

    def found(self, mark: int, moment: int | None) -> None:
        """The look found this moment."""
        with self._guard:
            if mark != self._reported and self.at is not None:
                moment = self.at if moment is None else min(moment, self.at)
            self.at = moment
