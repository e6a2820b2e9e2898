"""The rules of schedules: nominal times, daylight saving time, jitter, catching up, overlap."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detent.clock import from_micros, to_micros
from detent.kernel import schedules
from detent.kernel.schedules import BadTiming, ScheduleRow, Timing, plan, run_id, scheduled_for, upcoming

MINUTE = 60_000_000
HOUR = 60 * MINUTE
NOON = to_micros(datetime(2026, 6, 1, 12, tzinfo=UTC))

# The days on which clocks change in 2026, and a zone where they never do.
SWITCHES = [
    ("Europe/Paris", datetime(2026, 3, 29)),  # 02:00 -> 03:00
    ("Europe/Paris", datetime(2026, 10, 25)),  # 03:00 -> 02:00
    ("America/New_York", datetime(2026, 3, 8)),
    ("America/New_York", datetime(2026, 11, 1)),
    ("Australia/Lord_Howe", datetime(2026, 4, 5)),  # by half an hour
    ("Australia/Lord_Howe", datetime(2026, 10, 4)),
    ("Asia/Kolkata", datetime(2026, 3, 29)),
    ("Asia/Kolkata", datetime(2026, 10, 25)),
]


def row(timing: Timing, *, next_for: int, queued_for: int | None = None) -> ScheduleRow:
    return ScheduleRow(
        name="s",
        source=schedules.CODE,
        state=schedules.ACTIVE,
        job="flow",
        input="{}",
        timing=msgspec.json.encode(timing).decode(),
        terms="{}",
        fingerprint="",
        former="[]",
        served_by="name:s",
        next_for=next_for,
        due_at=next_for,
        queued_for=queued_for,
        last_for=None,
        last_run=None,
        fired=0,
        skipped=0,
        error=None,
        reason=None,
        seen_at=0,
        created_at=0,
        updated_at=0,
    )


# -- Daylight saving time --------------------------------------------------------------------------


@cache
def clock(tz: str, day: datetime) -> list[tuple[datetime, datetime, list[datetime]]]:
    """Every minute of a day and the day after: in UTC, as the clock shows it, and what it has skipped."""
    zone = ZoneInfo(tz)
    minute = timedelta(minutes=1)
    begin = day.replace(tzinfo=zone).astimezone(UTC)
    before = (begin - minute).astimezone(zone).replace(tzinfo=None)
    found = []
    for n in range(48 * 60):
        moment = begin + n * minute
        shown = moment.astimezone(zone).replace(tzinfo=None)
        found.append((moment, shown, [before + m * minute for m in range(1, (shown - before) // minute)]))
        before = shown
    return found


def fixed(minute: int, hour: int, tz: str, day: datetime) -> list[datetime]:
    """A job at a fixed time runs when the clock first shows that time, or has just skipped it."""
    done: set[datetime] = set()
    found: list[datetime] = []
    for moment, shown, skipped in clock(tz, day):
        for time in (*skipped, shown):
            if (time.hour, time.minute) == (hour, minute) and time not in done:
                done.add(time)
                found.append(moment)
    return found


def following(minutes: range, hours: range, tz: str, day: datetime) -> list[datetime]:
    """A job whose minute or hour is a `*` runs whenever the clock shows such a time."""
    return [moment for moment, shown, _ in clock(tz, day) if shown.minute in minutes and shown.hour in hours]


def firings(cron: str, tz: str, day: datetime) -> list[datetime]:
    begin = to_micros(day.replace(tzinfo=ZoneInfo(tz)))
    times = upcoming(Timing(cron=cron, tz=tz), begin - 1)
    return [from_micros(time) for time in takewhile(lambda time: time < begin + 48 * HOUR, times)]


@pytest.mark.parametrize(("tz", "day"), SWITCHES, ids=lambda value: str(value)[:19])
def test_every_hour_of_a_switch_day_fires_as_debians_cron_does(tz: str, day: datetime) -> None:
    for minute in (0, 15, 30, 45):
        for hour in range(24):
            cron = f"{minute} {hour} * * *"
            assert firings(cron, tz, day) == fixed(minute, hour, tz, day), cron
        for step in (1, 2, 3, 12):
            hours, cron = range(0, 24, step), f"{minute} */{step} * * *"
            assert firings(cron, tz, day) == following(range(minute, minute + 1), hours, tz, day), cron
    for step in (7, 20, 30):
        minutes, cron = range(0, 60, step), f"*/{step} * * * *"
        assert firings(cron, tz, day) == following(minutes, range(24), tz, day), cron


@pytest.mark.parametrize(("tz", "day"), SWITCHES, ids=lambda value: str(value)[:19])
def test_a_search_from_any_moment_finds_the_same_times(tz: str, day: datetime) -> None:
    """A worker that starts in the middle of a switch computes the firings that others computed before it."""
    begin = to_micros(day.replace(tzinfo=ZoneInfo(tz)))
    for cron in ("30 2 * * *", "0 2 * * *", "*/20 * * * *", "15 1 * * *"):
        timing = Timing(cron=cron, tz=tz)
        known = list(islice(upcoming(timing, begin - 1), 200))
        for after in range(begin, begin + 6 * HOUR, 10 * MINUTE):
            assert next(upcoming(timing, after)) == next(time for time in known if time > after)


def test_a_daily_job_fires_once_on_each_switch_day() -> None:
    assert firings("30 2 * * *", "Europe/Paris", datetime(2026, 3, 29)) == [
        datetime(2026, 3, 29, 1, 0, tzinfo=UTC),  # 02:30 does not exist: 03:00
        datetime(2026, 3, 30, 0, 30, tzinfo=UTC),
    ]
    assert firings("30 2 * * *", "Europe/Paris", datetime(2026, 10, 25))[:1] == [
        datetime(2026, 10, 25, 0, 30, tzinfo=UTC)  # and not again at 01:30 UTC
    ]


def test_downtime_over_a_switch_is_caught_up_with_the_right_times() -> None:
    timing = Timing(cron="30 2 * * *", tz="Europe/Paris", catch_up="all")
    first = to_micros(datetime(2026, 3, 28, 1, 30, tzinfo=UTC))
    now = to_micros(datetime(2026, 3, 30, 12, tzinfo=UTC))
    found = plan(row(timing, next_for=first), now, last_active=False)
    assert [run_id("s", time) for time in found.start] == [
        "s@2026-03-28T01:30:00Z",
        "s@2026-03-29T01:00:00Z",
        "s@2026-03-30T00:30:00Z",
    ]
    assert found.next_for == to_micros(datetime(2026, 3, 31, 0, 30, tzinfo=UTC))


# -- Times -----------------------------------------------------------------------------------------


def test_every_does_not_drift() -> None:
    """Its times are multiples of the interval since 1970, whenever the schedule was made or looked at."""
    timing = Timing(every=5 * MINUTE)
    assert next(upcoming(timing, NOON)) == NOON + 5 * MINUTE
    assert next(upcoming(timing, NOON - 1)) == NOON
    late = plan(row(timing, next_for=NOON), NOON + 17_000_000, last_active=False)
    assert (late.start, late.next_for) == ([NOON], NOON + 5 * MINUTE)


@given(st.integers(1, 10**6), st.integers(0, 2 * 10**15))
@settings(max_examples=100)
def test_every_yields_each_multiple_once(seconds: int, after: int) -> None:
    every = seconds * 1_000_000
    times = list(islice(upcoming(Timing(every=every), after), 3))
    assert times[0] > after >= times[0] - every
    assert all(time % every == 0 for time in times)
    assert times == sorted(set(times))


def test_aliases_are_those_of_cron() -> None:
    for alias, cron in schedules.ALIASES.items():
        assert next(upcoming(Timing(cron=alias), NOON)) == next(upcoming(Timing(cron=cron), NOON))


@pytest.mark.parametrize(
    ("timing", "argument"),
    [
        (Timing(cron="61 * * * *"), "cron"),
        (Timing(cron="soon"), "cron"),
        (Timing(cron="@reboot"), "cron"),
        (Timing(cron="0 0 30 2 *"), "cron"),
        (Timing(cron="0 3 * * *", tz="Mars/Olympus"), "tz"),
        (Timing(cron="0 3 * * *", tz="../etc/passwd"), "tz"),
        (Timing(every=60_000_000, jitter=60_000_000), "jitter"),
        (Timing(cron="*/5 * * * *", jitter=5 * MINUTE), "jitter"),
    ],
)
def test_a_timing_that_cannot_work_is_refused(timing: Timing, argument: str) -> None:
    with pytest.raises(BadTiming) as caught:
        schedules.check_timing(timing, NOON)
    assert caught.value.argument == argument


def test_the_id_of_a_run_names_its_time() -> None:
    time = to_micros(datetime(2026, 3, 29, 1, tzinfo=UTC))
    assert run_id("nightly-report", time) == "nightly-report@2026-03-29T01:00:00Z"
    assert scheduled_for("nightly-report@2026-03-29T01:00:00Z") == datetime(2026, 3, 29, 1, tzinfo=UTC)
    assert scheduled_for(run_id("s", time + 1)) == from_micros(time + 1)
    for other in ("order-42", "a@b", "a@2026Z", "x@2026-03-29T01:00:00+02:00", "2026-03-29T01:00:00Z"):
        assert scheduled_for(other) is None


def test_jitter_is_the_same_on_every_worker_and_spreads() -> None:
    timing = Timing(every=HOUR, jitter=30_000_000)
    dues = [schedules.due_at(f"s{n}", timing, NOON) for n in range(100)]
    assert dues == [schedules.due_at(f"s{n}", timing, NOON) for n in range(100)]
    assert all(NOON <= due < NOON + 30_000_000 for due in dues)
    assert len(set(dues)) == 100


def test_a_firing_whose_jitter_lies_ahead_is_not_missed() -> None:
    timing = Timing(every=HOUR, jitter=30 * MINUTE)
    due = schedules.due_at("s", timing, NOON + HOUR)
    waiting = plan(row(timing, next_for=NOON), due - 1, last_active=False)
    assert (waiting.start, waiting.next_for, waiting.due_at) == ([NOON], NOON + HOUR, due)
    assert plan(row(timing, next_for=NOON + HOUR), due, last_active=False).start == [NOON + HOUR]


# -- Catching up -----------------------------------------------------------------------------------


def missed(catch_up: str, hours: float, *, cron: bool = False) -> schedules.Plan:
    timing = Timing(cron="0 * * * *", catch_up=catch_up) if cron else Timing(every=HOUR, catch_up=catch_up)
    return plan(row(timing, next_for=NOON), NOON + round(hours * HOUR), last_active=False)


@pytest.mark.parametrize("cron", [True, False])
def test_after_downtime_only_the_latest_firing_happens(cron: bool) -> None:
    found = missed("latest", 5.5, cron=cron)
    assert (found.start, found.missed) == ([NOON + 5 * HOUR], (NOON, NOON + 5 * HOUR))
    assert found.next_for == NOON + 6 * HOUR


@pytest.mark.parametrize("cron", [True, False])
def test_all_firings_are_caught_up_in_order(cron: bool) -> None:
    found = missed("all", 5.5, cron=cron)
    assert found.start == [NOON + n * HOUR for n in range(6)]
    assert found.missed is None


@pytest.mark.parametrize("cron", [True, False])
def test_catching_up_is_bounded_and_goes_in_portions(cron: bool) -> None:
    now = NOON + 5000 * HOUR
    started: list[int] = []
    current = row(
        Timing(cron="0 * * * *", catch_up="all") if cron else Timing(every=HOUR, catch_up="all"),
        next_for=NOON,
    )
    while True:
        found = plan(current, now, last_active=False)
        if not found.start:
            break
        assert len(found.start) <= schedules.FIRED_AT_ONCE
        started += found.start
        current.next_for = found.next_for
    assert started == [now - n * HOUR for n in reversed(range(schedules.MOST_CAUGHT_UP))]
    assert found.next_for == now + HOUR


def test_without_catching_up_a_late_firing_does_not_happen() -> None:
    assert missed("none", 5.5).start == []
    assert missed("none", 5.5).missed == (NOON, NOON + 5 * HOUR)
    assert missed("none", 5.5).next_for == NOON + 6 * HOUR
    assert missed("none", 5.001).start == [NOON + 5 * HOUR]  # it is late by less than a minute
    assert missed("none", 0.001).start == [NOON]


def test_a_year_of_missed_minutes_is_found_quickly() -> None:
    timing = Timing(cron="* * * * *", tz="Europe/Paris")
    now = NOON + 365 * 24 * HOUR + 1
    found = plan(row(timing, next_for=NOON), now, last_active=False)
    assert found.start == [now - 1]


def test_a_clock_that_is_behind_fires_nothing() -> None:
    found = plan(row(Timing(every=HOUR), next_for=NOON), NOON - 2_000_000, last_active=False)
    assert (found.start, found.next_for, found.due_at) == ([], NOON, NOON)


# -- Overlap ---------------------------------------------------------------------------------------


def overlapping(overlap: str, *, queued_for: int | None = None, last_active: bool = True) -> schedules.Plan:
    timing = Timing(every=HOUR, overlap=overlap)
    return plan(row(timing, next_for=NOON, queued_for=queued_for), NOON, last_active=last_active)


def test_allow_starts_beside_the_earlier_run() -> None:
    found = overlapping("allow")
    assert (found.start, found.cancels, found.skipped) == ([NOON], False, 0)


def test_skip_leaves_out_a_firing_while_the_earlier_run_is_active() -> None:
    found = overlapping("skip")
    assert (found.start, found.skipped, found.next_for) == ([], 1, NOON + HOUR)
    assert overlapping("skip", last_active=False).start == [NOON]


def test_queue_lets_one_firing_wait_and_skips_the_others() -> None:
    first = overlapping("queue")
    assert (first.start, first.queued_for) == ([], NOON)
    assert first.due_at == NOON + schedules.WAITING_LOOK
    second = overlapping("queue", queued_for=NOON - HOUR)
    assert (second.start, second.queued_for, second.skipped) == ([], NOON - HOUR, 1)


def test_a_waiting_firing_starts_when_the_earlier_run_has_ended() -> None:
    timing = Timing(every=HOUR, overlap="queue")
    found = plan(row(timing, next_for=NOON + HOUR, queued_for=NOON), NOON + 1, last_active=False)
    assert (found.start, found.queued_for, found.due_at) == ([NOON], None, NOON + HOUR)
    both = overlapping("queue", queued_for=NOON - HOUR, last_active=False)
    assert (both.start, both.queued_for) == ([NOON - HOUR], NOON)


def test_cancel_ends_the_earlier_run() -> None:
    found = overlapping("cancel")
    assert (found.start, found.cancels) == ([NOON], True)
    assert not overlapping("cancel", last_active=False).cancels


def test_of_several_firings_at_once_cancel_starts_the_last() -> None:
    timing = Timing(every=HOUR, overlap="cancel", catch_up="all")
    found = plan(row(timing, next_for=NOON), NOON + 2 * HOUR, last_active=True)
    assert (found.start, found.cancels, found.skipped) == ([NOON + 2 * HOUR], True, 2)


# -- Together --------------------------------------------------------------------------------------


def moments(first: int) -> Iterator[int]:
    """Looks at irregular times, some of them late."""
    now = first
    for n in range(60):
        now += (n * 7919 % 97) * MINUTE
        yield now


@pytest.mark.parametrize("overlap", schedules.OVERLAPS)
@pytest.mark.parametrize("catch_up", schedules.CATCH_UPS)
def test_no_time_fires_twice_and_none_fires_early(overlap: str, catch_up: str) -> None:
    timing = Timing(every=20 * MINUTE, overlap=overlap, catch_up=catch_up, jitter=MINUTE)
    current = row(timing, next_for=NOON)
    started: list[int] = []
    for n, now in enumerate(moments(NOON)):
        found = plan(current, now, last_active=n % 3 == 0)
        assert all(schedules.due_at("s", timing, time) <= now for time in found.start)
        started += found.start
        current.next_for, current.queued_for = found.next_for, found.queued_for
    assert started == sorted(set(started))


def test_ten_thousand_schedules_are_planned_in_seconds() -> None:
    timing = Timing(cron="0 3 * * *", tz="Europe/Paris")
    first = next(upcoming(timing, NOON))
    rows = [row(timing, next_for=first) for _ in range(10_000)]
    plans = [plan(one, first, last_active=False) for one in rows]
    assert all(found.start == [first] for found in plans)
