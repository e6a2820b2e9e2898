"""The claim_cursor of a worker's claims: when it looks over everything, and where it goes on otherwise."""

import pytest

from detent.stores.claim_cursor import EVERY, MARGIN, MOST, SHARE, SLOW, ClaimCursor


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def claim_cursor(clock: Clock) -> ClaimCursor:
    return ClaimCursor(clock)


def claimed(claim_cursor: ClaimCursor, *steps: tuple[str, int, int]) -> None:
    claim_cursor.begin()
    for step in steps:
        claim_cursor.claimed(*step)
    claim_cursor.committed()


def look_slowly(claim_cursor: ClaimCursor) -> None:
    for _ in range(2):
        claim_cursor.looked(2 * SLOW)


def test_where_a_look_over_everything_is_cheap_every_claim_is_one(claim_cursor: ClaimCursor) -> None:
    for _ in range(1000):
        assert claim_cursor.wanted()
        claim_cursor.looked(SLOW)


def test_after_a_slow_scan_look_the_next_claims_go_on_from_the_last_places(claim_cursor: ClaimCursor) -> None:
    claimed(claim_cursor, ("default", 0, 5 * MARGIN), ("default", -9, 7 * MARGIN), ("other", 0, 9 * MARGIN))
    look_slowly(claim_cursor)
    assert not claim_cursor.wanted()
    assert claim_cursor.places("default") == [(-9, 6 * MARGIN), (0, 4 * MARGIN)]
    assert claim_cursor.places("other") == [(0, 8 * MARGIN)]
    assert claim_cursor.places("unknown") == []


def test_a_place_never_goes_back(claim_cursor: ClaimCursor) -> None:
    claimed(claim_cursor, ("default", 0, 5 * MARGIN))
    claimed(claim_cursor, ("default", 0, 2 * MARGIN))
    assert claim_cursor.places("default") == [(0, 4 * MARGIN)]


def test_a_claim_that_was_rolled_back_leaves_no_place(claim_cursor: ClaimCursor) -> None:
    claim_cursor.begin()
    claim_cursor.claimed("default", 0, 5 * MARGIN)
    claim_cursor.promoted(5 * MARGIN)
    claim_cursor.begin()
    claim_cursor.committed()
    look_slowly(claim_cursor)
    assert claim_cursor.places("default") == []
    assert claim_cursor.timers < 0


def test_a_slow_scan_look_comes_back_after_a_while(claim_cursor: ClaimCursor, clock: Clock) -> None:
    look_slowly(claim_cursor)
    clock.now += EVERY
    assert claim_cursor.wanted()


def test_one_that_became_cheap_again_is_made_every_time(claim_cursor: ClaimCursor) -> None:
    look_slowly(claim_cursor)
    claim_cursor.looked(SLOW / 2)
    assert claim_cursor.wanted()


def test_slow_scan_looks_take_no_more_than_their_share_of_the_time(
    claim_cursor: ClaimCursor, clock: Clock
) -> None:
    begun, spent = clock.now, 0.0
    while clock.now < begun + 1000:
        clock.now += 0.01
        if claim_cursor.affordable():
            clock.now += 0.3
            claim_cursor.looked(0.3)
            spent += 0.3
    assert spent <= MOST + 2 * 0.3 + SHARE * (clock.now - begun)
    assert spent > SHARE * 900  # and they do come


def test_one_long_look_is_a_pause_and_changes_nothing(claim_cursor: ClaimCursor) -> None:
    claim_cursor.looked(30.0)
    assert claim_cursor.wanted()
    claim_cursor.looked(SLOW / 2)
    claim_cursor.looked(30.0)
    assert claim_cursor.wanted()
    assert claim_cursor.timers == 0


def test_of_two_long_looks_the_shorter_one_counts(claim_cursor: ClaimCursor) -> None:
    claim_cursor.looked(30.0)
    claim_cursor.looked(2 * SLOW)
    assert claim_cursor.slow_scan
    assert claim_cursor.affordable()


def test_timers_are_looked_for_from_the_beginning_unless_that_is_slow_scan(claim_cursor: ClaimCursor) -> None:
    claim_cursor.begin()
    claim_cursor.promoted(5 * MARGIN)
    claim_cursor.committed()
    assert claim_cursor.timers == 0
    look_slowly(claim_cursor)
    assert claim_cursor.timers == 4 * MARGIN
