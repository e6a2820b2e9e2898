"""Claims that go on from their last places, where a look over everything would be slow_scan."""

from typing import Any

import pytest

from detent.kernel.operations import Start
from detent.stores.claim_cursor import MOST, SLOW, ClaimCursor
from detent.stores.driver import Tx
from detent.stores.store import Store
from tests.conformance.builders import NOW, SECOND, enlist, new_main, new_run, one

pytestmark = pytest.mark.usefixtures("_workers")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def _workers(store: Store) -> None:
    enlist(store, "w1")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def claim_cursor(clock: Clock) -> ClaimCursor:
    return ClaimCursor(clock)


def schedule(store: Store, name: str, due: int, precedence: int = 0, state: str = "ready") -> None:
    main = new_main(name, scheduled_for=due, precedence=precedence, state=state)
    one(store, Start(runs=[new_run(name)], executions=[main]))


def claim(store: Store, claim_cursor: ClaimCursor, limit: int = 10) -> list[str]:
    tokens = [f"t{number}" for number in range(limit)]
    found = store.claim(
        "w1",
        queues=["default"],
        jobs=["flow"],
        tokens=tokens,
        now=NOW + 90 * SECOND,
        claim_cursor=claim_cursor,
    )
    return [row.run_id for row in found]


def exhaust(claim_cursor: ClaimCursor) -> None:
    """Looking over everything took so long that there is no time for another."""
    for _ in range(2):
        claim_cursor.looked(MOST + SLOW)


def test_a_claim_goes_on_behind_what_was_claimed_last(store: Store, claim_cursor: ClaimCursor) -> None:
    schedule(store, "a", NOW)
    assert claim(store, claim_cursor) == ["a"]
    exhaust(claim_cursor)
    for number, name in enumerate(("b", "c", "d")):
        schedule(store, name, NOW + number * SECOND)
    assert claim(store, claim_cursor, limit=2) == ["b", "c"]
    assert claim(store, claim_cursor) == ["d"]


def test_each_priority_that_was_seen_has_its_place_and_the_higher_one_comes_first(
    store: Store, claim_cursor: ClaimCursor
) -> None:
    schedule(store, "a", NOW, precedence=0)
    schedule(store, "b", NOW, precedence=-5)
    assert claim(store, claim_cursor) == ["b", "a"]
    exhaust(claim_cursor)
    schedule(store, "c", NOW + 1, precedence=0)
    schedule(store, "d", NOW + 9, precedence=-5)
    assert claim(store, claim_cursor) == ["d", "c"]


@pytest.mark.parametrize(
    ("due", "precedence"), [(NOW - 60 * SECOND, 0), (NOW, -5)], ids=["older", "new priority"]
)
def test_what_lies_elsewhere_is_found_as_soon_as_there_is_time_to_look_over_everything(
    store: Store, claim_cursor: ClaimCursor, clock: Clock, due: int, precedence: int
) -> None:
    schedule(store, "a", NOW)
    assert claim(store, claim_cursor) == ["a"]
    exhaust(claim_cursor)
    schedule(store, "b", due, precedence=precedence)
    assert claim(store, claim_cursor) == []
    clock.now += 60
    assert claim(store, claim_cursor) == ["b"]


def test_a_timer_from_a_machine_whose_clock_is_behind_is_found_by_looking_over_everything(
    store: Store, claim_cursor: ClaimCursor, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is due long before the last timer that became ready, and every look stays slow_scan."""
    monkeypatch.setattr(claim_cursor, "looked", lambda seconds: ClaimCursor.looked(claim_cursor, 2 * SLOW))
    claim_cursor.looked(2 * SLOW)
    schedule(store, "a", NOW + 60 * SECOND, state="timer")
    assert claim(store, claim_cursor) == ["a"]
    schedule(store, "b", NOW + 54 * SECOND, state="timer")
    assert claim(store, claim_cursor) == []
    clock.now += 1
    assert claim(store, claim_cursor) == ["b"]


def test_what_lies_elsewhere_is_found_though_there_is_enough_to_do_without_it(
    store: Store, claim_cursor: ClaimCursor, clock: Clock
) -> None:
    schedule(store, "a", NOW)
    assert claim(store, claim_cursor) == ["a"]
    for _ in range(2):
        claim_cursor.looked(2 * SLOW)
    schedule(store, "b", NOW, precedence=-5)
    for number in range(5):
        schedule(store, f"c{number}", NOW + number)
    assert claim(store, claim_cursor, limit=1) == ["c0"]
    clock.now += 1
    assert claim(store, claim_cursor, limit=1) == ["b"]


def test_what_a_claim_finds_at_its_places_and_by_looking_over_everything_is_claimed_once(
    store: Store, claim_cursor: ClaimCursor
) -> None:
    schedule(store, "a", NOW)
    assert claim(store, claim_cursor) == ["a"]
    for _ in range(2):
        claim_cursor.looked(2 * SLOW)
    schedule(store, "b", NOW + 1)
    schedule(store, "c", NOW, precedence=-5)
    assert sorted(claim(store, claim_cursor)) == ["b", "c"]


def test_timers_that_come_due_later_are_claimed_from_where_the_last_were(
    store: Store, claim_cursor: ClaimCursor
) -> None:
    schedule(store, "a", NOW, state="timer")
    assert claim(store, claim_cursor) == ["a"]
    exhaust(claim_cursor)
    schedule(store, "b", NOW + 5 * SECOND, state="timer")
    assert store.next_due(claim_cursor) == NOW + 5 * SECOND
    assert store.read_heartbeat(now=NOW, claim_cursor=claim_cursor).next_due == NOW + 5 * SECOND
    assert claim(store, claim_cursor) == ["b"]


def test_a_database_that_is_far_away_does_not_make_a_look_slow_scan(
    store: Store, claim_cursor: ClaimCursor, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Tx.query

    def slowly(tx: Tx, statement: str, **params: Any) -> Any:
        clock.now += 1
        return query(tx, statement, **params)

    monkeypatch.setattr(Tx, "query", slowly)
    monkeypatch.setattr("time.perf_counter", clock)
    assert claim(store, claim_cursor) == []
    assert not claim_cursor.slow_scan


def test_a_reading_does_not_look_for_ready_work_where_that_is_slow_scan(
    store: Store, claim_cursor: ClaimCursor
) -> None:
    schedule(store, "a", NOW)
    assert store.read_heartbeat(now=NOW, claim_cursor=claim_cursor).ready
    exhaust(claim_cursor)
    assert not store.read_heartbeat(now=NOW, claim_cursor=claim_cursor).ready
