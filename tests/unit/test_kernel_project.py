"""Generations of projections: which are begun, which take over, and how one is blocked."""

from datetime import timedelta

import pytest

from detent.errors import NotSerializable
from detent.kernel.policies import Retry
from detent.kernel.projections import (
    LINGER,
    LIVE,
    REBUILDING,
    RETIRED,
    ProjectionRow,
    blocked_by,
    first_generation,
    is_outdated,
    may_take_over,
    moved_to,
    next_generation,
    retire,
)

NOW = 1_000_000
RETRY = Retry(attempts=4, first=timedelta(seconds=1), longest=timedelta(seconds=3))


def row(generation: int = 1, state: str = LIVE, **fields: int) -> ProjectionRow:
    return ProjectionRow(
        name="totals",
        generation=generation,
        state=state,
        **{"version": 1, "updated_at": 0, "begun_at": 0, **fields},  # type: ignore[arg-type]
    )


def test_the_first_generation_is_live() -> None:
    first = first_generation("totals", 3, NOW)
    assert (first.generation, first.state, first.version, first.position) == (1, LIVE, 3, 0)


def test_the_next_generation_has_a_number_that_none_of_those_left_has() -> None:
    made = next_generation([row(2), row(3, REBUILDING), row(4, RETIRED)], 2, NOW)
    assert (made.generation, made.state, made.version, made.position) == (5, REBUILDING, 2, 0)


@pytest.mark.parametrize(
    ("versions", "code", "outdated"),
    [
        ([1], 1, False),
        ([1], 2, True),
        ([2], 1, False),
        ([1, 2], 2, False),
        ([2, 1], 2, False),
        ([1, 1], 2, True),
    ],
)
def test_only_a_version_above_all_others_is_a_reason_to_rebuild(
    versions: list[int], code: int, outdated: bool
) -> None:
    rows = [row(n, (LIVE, REBUILDING)[n - 1], version=v) for n, v in enumerate(versions, start=1)]
    assert is_outdated(rows, code) is outdated


def test_what_is_retired_is_no_reason_against_a_rebuild() -> None:
    assert is_outdated([row(1, version=1), row(2, RETIRED, version=2)], 2)


@pytest.mark.parametrize(
    ("fields", "may"),
    [
        ({"position": 5}, True),
        ({"position": 6}, True),
        ({"position": 4}, False),
        ({"position": 6, "failures": 1}, False),
        ({"position": 6, "begun_at": None}, False),
    ],
)
def test_only_what_is_behind_in_nothing_takes_over(fields: dict[str, int], may: bool) -> None:
    assert may_take_over(row(2, REBUILDING, **fields), row(position=5)) is may


def test_a_live_one_that_is_blocked_can_be_replaced() -> None:
    assert may_take_over(row(2, REBUILDING, position=5), row(position=5, failures=3))


def test_a_blocked_generation_stands_before_its_event_and_waits_ever_longer() -> None:
    blocked = row(position=3)
    waits = []
    for _ in range(5):
        blocked_by(blocked, 8, ValueError(), "{}", RETRY, NOW)
        assert (blocked.position, blocked.blocked, blocked.error) == (7, True, "{}")
        assert blocked.retry_at is not None
        waits.append((blocked.retry_at - NOW) // 1_000_000)
    assert waits == [1, 2, 3, 3, 3]  # beyond its attempts too: it is never given up
    assert blocked.failures == 5


def test_failures_are_counted_anew_at_another_event() -> None:
    blocked = row(position=3)
    blocked_by(blocked, 8, ValueError(), "{}", RETRY, NOW)
    blocked_by(blocked, 8, ValueError(), "{}", RETRY, NOW)
    blocked_by(blocked, 9, ValueError(), "{}", RETRY, NOW)
    assert (blocked.position, blocked.failures) == (8, 1)


def test_an_error_that_no_retry_cures_waits_longest() -> None:
    blocked = row()
    blocked_by(blocked, 1, NotSerializable("a value", "object", "no"), "{}", RETRY, NOW)
    assert blocked.retry_at == NOW + 3_000_000


def test_what_moves_on_is_blocked_no_more() -> None:
    blocked = row(position=3)
    blocked_by(blocked, 8, ValueError(), "{}", RETRY, NOW)
    moved_to(blocked, 9, NOW + 1)
    assert (blocked.position, blocked.blocked, blocked.retry_at, blocked.error) == (9, False, None, None)


def test_what_is_retired_waits_for_its_last_readers() -> None:
    old = row(failures=2)
    retire(old, NOW)
    assert (old.state, old.blocked, old.failures) == (RETIRED, False, 0)
    assert old.waits(NOW + LINGER - 1)
    assert not old.waits(NOW + LINGER)
