"""Claims that leave timers alone, which PostgreSQL makes in one statement: they keep what claims promise."""

import inspect
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from detent.stores.claim_cursor import MOST, SLOW, ClaimCursor
from detent.stores.store import Store
from tests.conformance import test_claims
from tests.conformance.builders import NOW, SECOND, claim, enlist, new_main, one, start
from tests.conformance.test_claims import ids, schedule

pytestmark = [
    pytest.mark.parametrize("module_url", ["postgres"], indirect=True),
    pytest.mark.usefixtures("asked"),
]
PROMISES = [
    test_claims.test_a_claim_tells_all_that_the_worker_needs,
    test_claims.test_an_execution_never_begins_before_it_was_made,
    test_claims.test_what_is_claimed_is_claimed_once,
    test_claims.test_a_claim_twice_takes_the_next_ones,
    test_claims.test_the_order_is_priority_then_time_then_id,
    test_claims.test_queues_are_taken_in_the_order_asked_for,
    test_claims.test_what_a_worker_does_not_know_stays_for_others,
    test_claims.test_a_worker_that_knows_nothing_gets_nothing,
    test_claims.test_a_worker_that_is_not_alive_gets_nothing,
    test_claims.test_two_claims_at_once_take_different_rows,
    test_claims.test_many_claims_from_two_processes_take_each_row_once,
    test_claims.test_a_claim_passes_by_what_a_cancel_has_in_hand,
    test_claims.test_what_a_claim_skipped_is_told_from_an_empty_queue,
]


@pytest.fixture
def asked(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All claims leave timers alone; these are the queues that were asked in one statement."""
    enlist(store, "w1", "w2")
    asked: list[str] = []
    claim, claim_at_once = Store.claim, Store._claim_at_once

    def counted(self: Store, queues: Any, *args: Any, **given: Any) -> Any:
        asked.extend(queues)
        return claim_at_once(self, queues, *args, **given)

    monkeypatch.setattr(Store, "_claim_at_once", counted)
    monkeypatch.setattr(
        Store, "claim", lambda self, *args, **given: claim(self, *args, timers=False, **given)
    )
    return asked


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__.removeprefix("test_"))
def test_a_claim_at_once_keeps_what_claims_promise(
    promise: Callable[..., None], store: Store, rival: Store, asked: list[str]
) -> None:
    given = {"store": store, "rival": rival}
    promise(**{name: given[name] for name in inspect.signature(promise).parameters})
    assert asked


def test_what_one_claim_takes_comes_in_its_order(store: Store) -> None:
    names = [f"r{number}" for number in range(30)]
    schedule(
        store, *[new_main(name, scheduled_for=NOW - n % 7, precedence=n % 3) for n, name in enumerate(names)]
    )
    order = sorted(range(30), key=lambda n: (n % 3, -(n % 7), names[n]))
    claimed = claim(store, limit=30)
    assert ids(claimed) == [names[n] for n in order]
    assert len({item.token for item in claimed}) == 30


def test_the_cursor_learns_the_places(store: Store) -> None:
    cursor = ClaimCursor()
    schedule(store, new_main("a", scheduled_for=NOW), new_main("b", scheduled_for=NOW + SECOND, precedence=4))
    store.claim("w1", queues=["default"], jobs=["flow"], tokens=["t1", "t2"], now=NOW, claim_cursor=cursor)
    assert cursor.places("default") == [(0, NOW - SECOND), (4, NOW)]
    assert not cursor.slow_scan


def test_the_searches_in_all_queues_are_measured_together(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule(store, new_main("a", queue="one"), new_main("b", queue="two"))
    statements = store.driver.statements
    slow = statements.claim_at_once.replace("FROM found),", "FROM found WHERE pg_sleep(0.03) IS NOT NULL),")
    monkeypatch.setattr(store.driver, "statements", msgspec.structs.replace(statements, claim_at_once=slow))
    looked: list[float] = []
    cursor = ClaimCursor()
    monkeypatch.setattr(cursor, "looked", looked.append)
    store.claim("w1", queues=["one", "two"], jobs=["flow"], tokens=["t", "u"], now=NOW, claim_cursor=cursor)
    assert [seconds >= 0.06 for seconds in looked] == [True]


def test_a_worker_whose_search_is_slow_continues_from_its_places(store: Store, asked: list[str]) -> None:
    cursor = ClaimCursor()
    for _ in range(2):
        cursor.looked(MOST + SLOW)
    one(store, start("a"))
    store.claim("w1", queues=["default"], jobs=["flow"], tokens=["t"], now=NOW, claim_cursor=cursor)
    assert asked == []
