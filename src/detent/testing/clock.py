"""A clock that a test moves by hand."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

from ..arguments import check_duration, check_moment, check_parts
from ..clock import from_micros, span_micros, to_micros


class ManualClock:
    """A clock that moves only when the test moves it.

    clock = ManualClock()
    clock.advance(days=2)
    """

    virtual = True

    def __init__(self, start: datetime = datetime(2030, 1, 1, tzinfo=UTC)) -> None:
        self._now = to_micros(check_moment("ManualClock()", "start", start))
        self._guard = threading.Lock()
        self._waiting: set[threading.Event] = set()

    def __call__(self) -> datetime:
        """The time as a datetime."""
        return from_micros(self._now)

    def now(self) -> int:
        """The time, in microseconds since 1970."""
        return self._now

    def wait(self, event: threading.Event, until: int | None) -> None:
        """Wait until the event is set, or the clock has been moved to `until`."""
        with self._guard:
            if until is not None and until <= self._now:
                return
            self._waiting.add(event)
        event.wait(1.0)
        with self._guard:
            self._waiting.discard(event)

    def advance(self, span: timedelta | float = 0, **parts: float) -> None:
        """Move forward by a duration: `advance(timedelta(hours=2))` or `advance(hours=2)`."""
        self.move_to(self._now + span_of_parts("clock.advance()", span, parts))

    def move_to(self, moment: int | datetime) -> None:
        """Move to a moment; never backwards."""
        with self._guard:
            if not isinstance(moment, int):
                moment = to_micros(check_moment("clock.move_to()", "moment", moment))
            self._now = max(self._now, moment)
            for event in self._waiting:
                event.set()


def span_of_parts(where: str, span: timedelta | float, parts: dict[str, float]) -> int:
    """A duration, given as a whole or in parts, in microseconds; time does not go backwards."""
    return span_micros(check_duration(where, "span", span) + check_parts(where, parts))
