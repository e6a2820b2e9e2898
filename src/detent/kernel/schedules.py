"""Schedules: when a schedule fires, and what becomes of each firing.

A schedule has *nominal times*: by a cron expression in a time zone, or every so often since 1970 in
UTC.  A nominal time never depends on when a worker looked, so `every` does not drift, and every worker
computes the same run id, `nightly@2026-03-29T01:00:00Z`.  A firing is *due* at its nominal time plus its
jitter, which is a hash of the schedule's name and the nominal time.

`plan` decides what happens to the firings that are due:

    1. `catch_up` says which of the firings that were missed still happen.
    2. `overlap` says what becomes of a firing while the run of an earlier one is still active.
    3. The next nominal time is the first one that is not due yet.

Daylight saving time follows Debian's cron (by cronsim).  A cron expression with a fixed minute and hour
fires once a day: a time that the clock skips moves to the end of the gap, and of a time that the clock shows
twice only the first counts.  An expression whose minute or hour begins with `*` follows the clock.

Nothing here reads a clock.  Times are microseconds since 1970.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice, pairwise
from typing import TYPE_CHECKING

import msgspec

from ..clock import from_micros, to_micros
from ..digests import sha256
from ..serialization.decoders import decode

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from cronsim import CronSim

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
LATE = MINUTE  # with catch_up="none", a firing that is later than this does not happen
MOST_CAUGHT_UP = 1_000  # firings that catch_up="all" makes up for; older ones do not happen
FIRED_AT_ONCE = 100  # runs that one transaction starts for a schedule
WAITING_LOOK = SECOND  # how often a waiting firing looks whether the run before it has ended
RETRY_AFTER = MINUTE  # when a firing is tried again that could not start its run
LOOKED_AHEAD = 100  # firings that are looked at to find the shortest distance between two of them

OVERLAPS = ("allow", "skip", "queue", "cancel")
CATCH_UPS = ("latest", "all", "none")
ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

# The states of a schedule.
ACTIVE, PAUSED, REMOVED = "active", "paused", "removed"
# Where a schedule comes from.
CODE, RUN_TIME = "code", "run time"


class Timing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a schedule fires, and its policies; either `cron` or `every` is set."""

    cron: str | None = None
    every: int | None = None  # microseconds, whole seconds
    tz: str = "UTC"
    jitter: int = 0  # microseconds
    overlap: str = "allow"
    catch_up: str = "latest"


class ScheduleRow(msgspec.Struct):
    """A schedule as it is stored."""

    name: str
    source: str
    state: str
    job: str  # the name of the definition that it starts
    input: str  # the arguments of the run
    timing: str  # a Timing, as JSON
    terms: str  # queue, priority, deadline and attributes of the run, as JSON
    fingerprint: str  # of all that the declaration says
    former: str  # fingerprints of earlier declarations, as a JSON list
    served_by: str  # which workers fire it, see `served_by`
    next_for: int | None  # the nominal time of the next firing
    due_at: int | None  # when to look at it; None: never
    queued_for: int | None  # the nominal time of a firing that waits for the run before it
    last_for: int | None
    last_run: str | None
    fired: int
    skipped: int
    error: str | None  # why the latest firing could not start its run
    reason: str | None  # why it was paused or removed
    seen_at: int  # when a worker last declared it
    created_at: int
    updated_at: int

    @property
    def when(self) -> Timing:
        return decode(self.timing, Timing)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to the firings of a schedule that are due."""

    start: list[int]  # nominal times, in order: a run begins for each
    cancels: bool = False  # the run of the last firing is canceled first
    skipped: int = 0  # firings that do not happen because of `overlap`
    missed: tuple[int, int] | None = None  # firings between these times do not happen because of `catch_up`
    queued_for: int | None = None
    next_for: int | None = None
    due_at: int | None = None


class BadTiming(ValueError):
    """A cron expression or a time zone that cannot be read.  `argument` says which."""

    def __init__(self, argument: str, message: str) -> None:
        super().__init__(message)
        self.argument = argument


def check_timing(timing: Timing, now: int) -> None:
    """Raise BadTiming unless this fires at some time, and its jitter keeps the firings in order."""
    if next_time(timing, now) is None:
        raise BadTiming("cron", f"{timing.cron!r} never fires; there is no such day")
    if timing.jitter:
        times = list(islice(upcoming(timing, now), LOOKED_AHEAD))
        shortest = min((later - earlier for earlier, later in pairwise(times)), default=None)
        if shortest is not None and timing.jitter >= shortest:
            raise BadTiming(
                "jitter", f"firings can be {shortest // SECOND} s apart; the jitter must be shorter than that"
            )


def upcoming(timing: Timing, after: int) -> Iterator[int]:
    """The nominal times after a moment, in order, without an end (or up to the last there is)."""
    if timing.every is not None:
        first = after // timing.every * timing.every + timing.every
        while True:
            yield first
            first += timing.every
    yield from _cron_times(timing, after)


@lru_cache(maxsize=1024)  # many schedules have the same timing: "every night at three"
def next_time(timing: Timing, after: int) -> int | None:
    """The first nominal time after a moment."""
    return next(upcoming(timing, after), None)


def _cron_times(timing: Timing, after: int) -> Iterator[int]:
    from cronsim import CronSim, CronSimError  # only programs with a cron schedule load it

    assert timing.cron is not None
    expression = ALIASES.get(timing.cron.strip().lower(), timing.cron)
    local = zone(timing.tz)
    try:
        times = CronSim(expression, from_micros(after).astimezone(local))
    except CronSimError as error:
        raise BadTiming("cron", f"{timing.cron!r} is not a cron expression ({error})") from None
    last = after
    while (moment := next(times, None)) is not None:
        found = to_micros(moment)
        if found <= last:  # a search that begins in the second of two equal hours can find the first
            continue
        passed_over = None if times.fixup_tz else _passed_over(times, local, last, found)
        if passed_over is not None:
            found = passed_over
            times = CronSim(expression, from_micros(found).astimezone(local))
        last = found
        yield found


def _passed_over(times: CronSim, local: ZoneInfo, last: int, found: int) -> int | None:
    """A time before `found` at which the clock matches too.

    cronsim moves on by whole hours, and loses its place where a clock changes by half an hour.
    """
    begin = max(last, found - 2 * DAY)
    shift = from_micros(found).astimezone(local).utcoffset(), from_micros(begin).astimezone(local).utcoffset()
    assert shift[0] is not None
    assert shift[1] is not None
    if not (shift[0] - shift[1]) % timedelta(hours=1):
        return None
    for minute in range(begin // MINUTE * MINUTE + MINUTE, found, MINUTE):
        shown = from_micros(minute).astimezone(local)
        if (
            shown.minute in times.minutes
            and shown.hour in times.hours
            and shown.month in times.months
            and times.match_day(shown.date())
        ):
            return minute + min(times.seconds) * SECOND
    return None


def zone(name: str) -> ZoneInfo:
    """The time zone of that name."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise BadTiming(
            "tz",
            f"there is no time zone {name!r}; give a name such as 'Europe/Paris'"
            " (on a system without time zone data: pip install tzdata)",
        ) from None


def due_at(name: str, timing: Timing, nominal: int) -> int:
    """When a firing is due: its nominal time and its jitter, the same on every worker."""
    if not timing.jitter:
        return nominal
    digest = sha256(f"{name}@{nominal}".encode()).digest()
    return nominal + int.from_bytes(digest[:8]) * timing.jitter // 2**64


def run_id(name: str, nominal: int) -> str:
    """The id of the run of a firing: `nightly@2026-03-29T01:00:00Z`."""
    moment = from_micros(nominal).isoformat(timespec="microseconds" if nominal % SECOND else "seconds")
    return f"{name}@{moment.removesuffix('+00:00')}Z"


def scheduled_for(run_id: str) -> datetime | None:
    """The nominal time that the id of a run names; None if it is not the run of a firing.

    A run that continues that of a firing has its id and a number: `report@2026-03-29T01:00:00Z~2`.
    """
    _, at, text = run_id.rpartition("@")
    text = text.partition("~")[0]
    if not at or not text.endswith("Z"):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is UTC or moment.utcoffset() == timedelta(0) else None


def served_by(source: str, name: str, job: str) -> str:
    """Which workers fire a schedule: those that declare it, or those that know its job."""
    return f"name:{name}" if source == CODE else f"job:{job}"


def first_times(name: str, timing: Timing, now: int) -> tuple[int | None, int | None]:
    """The next nominal time after now, and when it is due."""
    nominal = next_time(timing, now)
    return nominal, None if nominal is None else due_at(name, timing, nominal)


def plan(row: ScheduleRow, now: int, *, last_active: bool) -> Plan:
    """What happens now to the firings of an active schedule.

    `last_active`: the run of its last firing is not over.
    """
    timing = row.when
    chosen, missed, next_for = _due_firings(row, timing, now)
    start: list[int] = []
    active, waiting, skipped, cancels = last_active, row.queued_for, 0, False
    if waiting is not None and not active:
        start.append(waiting)
        active, waiting = True, None
    for nominal in chosen:
        if timing.overlap == "allow" or not active:
            start.append(nominal)
            active = timing.overlap != "allow"
        elif timing.overlap == "cancel":
            cancels = cancels or last_active
            skipped += len(start)  # of several firings at once, only the last one is of use
            start = [nominal]
        elif timing.overlap == "queue" and waiting is None:
            waiting = nominal
        else:
            skipped += 1
    due = None if next_for is None else due_at(row.name, timing, next_for)
    if waiting is not None:
        due = min(now + WAITING_LOOK, due) if due is not None else now + WAITING_LOOK
    return Plan(
        start=start,
        cancels=cancels,
        skipped=skipped,
        missed=missed,
        queued_for=waiting,
        next_for=next_for,
        due_at=due,
    )


def _due_firings(
    row: ScheduleRow, timing: Timing, now: int
) -> tuple[list[int], tuple[int, int] | None, int | None]:
    """The firings that happen now, the first and last time between which some do not, the next time."""
    first = row.next_for
    if first is None or due_at(row.name, timing, first) > now:
        return [], None, first
    most = MOST_CAUGHT_UP if timing.catch_up == "all" else 1
    found, next_for = [first], next_time(timing, first)
    if next_for is not None and next_for <= now:
        found, next_for = _newest(timing, first, now, most + 1), next_time(timing, now)
    while due_at(row.name, timing, found[-1]) > now:  # its jitter lies ahead
        next_for = found.pop()
    chosen = found[-most:]
    if timing.catch_up == "none" and now - due_at(row.name, timing, chosen[-1]) > LATE:
        return [], (first, chosen[-1]), next_for
    missed = (first, chosen[0]) if chosen[0] != first else None
    if len(chosen) > FIRED_AT_ONCE:
        next_for = chosen[FIRED_AT_ONCE]
    return chosen[:FIRED_AT_ONCE], missed, next_for


def _newest(timing: Timing, first: int, now: int, count: int) -> list[int]:
    """The newest nominal times from `first` up to now, at most `count`.

    A schedule that was not looked at for a year may have missed half a million: look back in steps.
    """
    if timing.every is not None:
        last = now // timing.every * timing.every
        oldest = max(first, last - (count - 1) * timing.every)
        return list(range(oldest, last + 1, timing.every)) or [first]
    span = HOUR
    while True:
        begin = max(first, now - span)
        found: deque[int] = deque(maxlen=count)
        for nominal in upcoming(timing, begin - 1):
            if nominal > now:
                break
            found.append(nominal)
        if len(found) == count or begin == first:
            return list(found) or [first]
        span *= 24


def times_between(timing: Timing, start: int, end: int) -> Iterator[int]:
    """The nominal times from `start` up to but without `end`."""
    for nominal in upcoming(timing, start - 1):
        if nominal >= end:
            return
        yield nominal
