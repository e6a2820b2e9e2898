"""The trail of a worker's claims: when it looks over everything, and where it goes on otherwise."""

import pytest

from detent.stores.claim_cursor import DEAR, EVERY, MARGIN, MOST, SHARE, Trail


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def trail(clock: Clock) -> Trail:
    return Trail(clock)


def claimed(trail: Trail, *steps: tuple[str, int, int]) -> None:
    trail.begin()
    for step in steps:
        trail.claimed(*step)
    trail.committed()


def test_where_a_look_over_everything_is_cheap_every_claim_is_one(trail: Trail) -> None:
    for _ in range(1000):
        assert trail.wanted()
        trail.looked(DEAR)


def test_after_a_dear_look_the_next_claims_go_on_from_the_last_places(trail: Trail) -> None:
    claimed(trail, ("default", 0, 5 * MARGIN), ("default", -9, 7 * MARGIN), ("other", 0, 9 * MARGIN))
    trail.looked(2 * DEAR)
    assert not trail.wanted()
    assert trail.places("default") == [(-9, 6 * MARGIN), (0, 4 * MARGIN)]
    assert trail.places("other") == [(0, 8 * MARGIN)]
    assert trail.places("unknown") == []


def test_a_place_never_goes_back(trail: Trail) -> None:
    claimed(trail, ("default", 0, 5 * MARGIN))
    claimed(trail, ("default", 0, 2 * MARGIN))
    assert trail.places("default") == [(0, 4 * MARGIN)]


def test_a_claim_that_was_rolled_back_leaves_no_place(trail: Trail) -> None:
    trail.begin()
    trail.claimed("default", 0, 5 * MARGIN)
    trail.promoted(5 * MARGIN)
    trail.begin()
    trail.committed()
    trail.looked(2 * DEAR)
    assert trail.places("default") == []
    assert trail.timers < 0


def test_a_dear_look_comes_back_after_a_while(trail: Trail, clock: Clock) -> None:
    trail.looked(2 * DEAR)
    clock.now += EVERY
    assert trail.wanted()


def test_one_that_became_cheap_again_is_made_every_time(trail: Trail) -> None:
    trail.looked(2 * DEAR)
    trail.looked(DEAR / 2)
    assert trail.wanted()


def test_dear_looks_take_no_more_than_their_share_of_the_time(trail: Trail, clock: Clock) -> None:
    begun, spent = clock.now, 0.0
    while clock.now < begun + 1000:
        clock.now += 0.01
        if trail.affordable():
            clock.now += 0.3
            trail.looked(0.3)
            spent += 0.3
    assert spent <= MOST + 0.3 + SHARE * (clock.now - begun)
    assert spent > SHARE * 900  # and they do come


def test_timers_are_looked_for_from_the_beginning_unless_that_is_dear(trail: Trail) -> None:
    trail.begin()
    trail.promoted(5 * MARGIN)
    trail.committed()
    assert trail.timers == 0
    trail.looked(2 * DEAR)
    assert trail.timers == 4 * MARGIN
