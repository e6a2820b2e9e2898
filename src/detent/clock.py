"""Time as an argument: a clock tells the time and can wait for it.

The engine reads time only through the app's clock, so a test moves it by hand
(`detent.testing.ManualClock`).  In the database, times are whole microseconds
since 1970 in UTC: one integer means the same on every database.
"""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Clock(Protocol):
    """What the engine asks of a clock."""

    @property
    def virtual(self) -> bool:
        """Whether time passes only when a test says so."""
        ...

    def now(self) -> int:
        """Microseconds since 1970, UTC."""
        ...

    def wait(self, event: threading.Event, until: int | None) -> None:
        """Return when the event is set or the time has come, or earlier."""
        ...


class SystemClock:
    """The machine's clock."""

    virtual = False
    # A long wait is cut in pieces, so that a clock that jumps is noticed.
    longest_wait = 5.0

    def now(self) -> int:
        return time.time_ns() // 1000

    def wait(self, event: threading.Event, until: int | None) -> None:
        seconds = self.longest_wait if until is None else (until - self.now()) / 1e6
        event.wait(max(0.0, min(seconds, self.longest_wait)))


def to_micros(moment: datetime) -> int:
    """Return the database's form of an aware (or local, if naive) datetime."""
    return (moment.astimezone(UTC) - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """Return the aware UTC datetime of the database's form."""
    return _EPOCH + timedelta(microseconds=micros)


def span_micros(span: timedelta | float) -> int:
    """Return a duration, given as timedelta or seconds, in microseconds."""
    return span // _MICROSECOND if isinstance(span, timedelta) else round(span * 1e6)
