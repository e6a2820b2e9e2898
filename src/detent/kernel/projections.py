"""Projections: which generations there are, and what becomes of them.

A projection's read model is built in generations.  One is live; beside it another may be
rebuilt from the first event on, which takes its place when it has come as far.

    1. A projection without a generation begins its first one, live.
    2. Code of a higher version than any generation begins another beside the live one.
       Code of a lower version begins none: in a deploy, old and new workers run for a while
       side by side, and must not rebuild in turns.
    3. A worker runs the generations of its own version only.
    4. What is rebuilt becomes live when it is behind the live one in nothing.
    5. An event that cannot be applied blocks its generation: nothing behind it is applied before it.

Nothing here reads a clock, opens a connection, or calls user code.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import msgspec

from .policies import Retry

LIVE, REBUILDING, RETIRED = "live", "rebuilding", "retired"
LINGER = 30_000_000  # microseconds that a retired generation stays, for readers that still use it
_MICROSECOND = timedelta(microseconds=1)


class ProjectionRow(msgspec.Struct, kw_only=True):
    """A generation of a projection, as it travels to and from the database."""

    name: str
    generation: int
    version: int  # of the code that builds it
    state: str
    position: int = 0  # the last event that it has seen
    begun_at: int | None = None  # its setup is done
    failures: int = 0  # at the event behind `position`, or at what comes before the first one
    retry_at: int | None = None
    error: str | None = None
    updated_at: int

    @property
    def blocked(self) -> bool:
        return self.failures > 0 and self.state != RETIRED

    def waits(self, now: int) -> bool:
        """Whether it is not to be tried yet."""
        return self.retry_at is not None and self.retry_at > now


def first_generation(name: str, version: int, now: int) -> ProjectionRow:
    return ProjectionRow(name=name, generation=1, version=version, state=LIVE, updated_at=now)


def next_generation(rows: Sequence[ProjectionRow], version: int, now: int) -> ProjectionRow:
    """The generation that is rebuilt beside those that there are."""
    number = max(row.generation for row in rows) + 1
    return ProjectionRow(
        name=rows[0].name, generation=number, version=version, state=REBUILDING, updated_at=now
    )


def is_outdated(rows: Sequence[ProjectionRow], version: int) -> bool:
    """Whether code of that version is newer than all that was built so far."""
    return all(row.version < version for row in rows if row.state != RETIRED)


def in_state(rows: Sequence[ProjectionRow], state: str) -> ProjectionRow | None:
    return next((row for row in rows if row.state == state), None)


def may_take_over(rebuilt: ProjectionRow, live: ProjectionRow) -> bool:
    """Whether nothing that readers have seen would be missing from it."""
    return rebuilt.position >= live.position and not rebuilt.failures and rebuilt.begun_at is not None


def retire(row: ProjectionRow, now: int) -> None:
    """Retire a generation; it is dropped when no reader can be using it any more."""
    row.state, row.failures, row.error = RETIRED, 0, None
    row.retry_at, row.updated_at = now + LINGER, now


def blocked_by(
    row: ProjectionRow, position: int, error: BaseException, text: str, retry: Retry, now: int
) -> None:
    """The event at `position` could not be applied: all before it is done, and it is tried again later."""
    again = row.failures > 0 and row.position == position - 1
    row.failures = row.failures + 1 if again else 1
    row.position = position - 1
    wait = retry.wait_after(row.failures, error)
    row.retry_at = now + (retry.longest if wait is None else wait) // _MICROSECOND
    row.error, row.updated_at = text, now


def moved_to(row: ProjectionRow, position: int, now: int) -> None:
    """Everything up to `position` is applied."""
    row.position = position
    row.failures, row.retry_at, row.error, row.updated_at = 0, None, None, now
