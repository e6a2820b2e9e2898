"""Start keys: several starts that are one run.

    dedup      the first start in a window of time counts; the others get its run
    debounce   the last start counts; the run begins when no other has come for a while

The store keeps one row per key and locks it during a start, so starts with one key take turns.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from ..arguments import check_positive_duration, check_text, refuse
from ..clock import span_micros
from ..errors import InvalidOption

LONGEST_START_KEY = 200
DEDUP, DEBOUNCE = "dedup", "debounce"


@dataclass(frozen=True, slots=True, init=False)
class Debounce:
    """Starts with one key, of which only the last counts.

        app.options(debounce=Debounce("user-7", wait=5, at_most=60)).start(reindex, user)

    The run begins when there was no other start with that key for `wait`, with the arguments of the
    last one.  `at_most` limits how long starts that keep coming can delay it.
    """

    key: str
    wait: timedelta
    at_most: timedelta | None

    def __init__(self, key: str, wait: timedelta | float, at_most: timedelta | float | None = None) -> None:
        where = "Debounce()"
        check_start_key(where, "key", key)
        pause = check_positive_duration(where, "wait", wait, error=InvalidOption)
        longest = None
        if at_most is not None:
            longest = check_positive_duration(where, "at_most", at_most, error=InvalidOption)
            if longest < pause:
                refuse(where, "at_most", at_most, "it cannot be shorter than wait", InvalidOption)
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "wait", pause)
        object.__setattr__(self, "at_most", longest)


class StartKey(msgspec.Struct, frozen=True, kw_only=True):
    """A start that may belong to a run which another start has begun."""

    mode: str
    type: str  # of the workflow: each has keys of its own
    key: str
    span: int  # microseconds: the window of a dedup, the wait of a debounce
    at_most: int | None = None  # of a debounce

    def until(self, first_at: int, now: int) -> int:
        """When a window ends, or a debounced run begins, after a start at `now`."""
        end = now + self.span
        return end if self.at_most is None else max(now, min(end, first_at + self.at_most))


class Holder(msgspec.Struct, frozen=True):
    """The run that a key belongs to."""

    run_id: str  # empty: none yet
    first_at: int  # the first start
    until: int


def deduplicated(holder: Holder, now: int) -> bool:
    """Whether a start falls into the window of the holder's run."""
    return bool(holder.run_id) and now < holder.until


def check_start_key(where: str, argument: str, value: Any) -> str:
    """The key of a dedup window or of a debounce."""
    return check_text(
        where, argument, value, example="user-7", longest=LONGEST_START_KEY, error=InvalidOption
    )


def debounce_key(type: str, debounce: Debounce) -> StartKey:
    at_most = None if debounce.at_most is None else span_micros(debounce.at_most)
    return StartKey(
        mode=DEBOUNCE, type=type, key=debounce.key, span=span_micros(debounce.wait), at_most=at_most
    )


def dedup_key(type: str, key: str, within: timedelta | float) -> StartKey:
    return StartKey(mode=DEDUP, type=type, key=key, span=span_micros(within))
