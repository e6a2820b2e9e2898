"""Claims that leave timers alone keep what claims promise.  PostgreSQL makes them in one statement.

SQLite makes them in two: one that finds everything, and one that leases it.
"""

import inspect
import json
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from detent.kernel.operations import Start
from detent.kernel.rows import Claimed
from detent.stores.claim_cursor import MOST, SLOW, ClaimCursor
from detent.stores.driver import rows_to
from detent.stores.sqlite import quick_claims
from detent.stores.sqlite.driver import SqliteDriver
from detent.stores.store import Store
from tests.conformance import test_claims
from tests.conformance.builders import NOW, SECOND, claim, enlist, new_main, new_run, one, start
from tests.conformance.test_claims import ids, schedule

pytestmark = [
    pytest.mark.parametrize("module_url", ["sqlite", "postgres"], indirect=True),
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
OF_ROW_LOCKS = {test_claims.test_what_a_claim_skipped_is_told_from_an_empty_queue}  # SQLite has none


@pytest.fixture
def asked(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All claims leave timers alone; these are the queues that were asked so."""
    enlist(store, "w1", "w2")
    asked: list[str] = []
    claim, claim_at_once, quick_claim = Store.claim, Store._claim_at_once, quick_claims.claim

    def counted(self: Store, queues: Any, *args: Any, **given: Any) -> Any:
        asked.extend(queues)
        return claim_at_once(self, queues, *args, **given)

    def counted_on_sqlite(*args: Any, queues: Any, **given: Any) -> Any:
        asked.extend(queues)
        return quick_claim(*args, queues=queues, **given)

    monkeypatch.setattr(Store, "_claim_at_once", counted)
    monkeypatch.setattr(SqliteDriver, "quick_claim", staticmethod(counted_on_sqlite))
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
    assert asked or (store.dialect == "sqlite" and promise in OF_ROW_LOCKS)


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
    slow_down(store, monkeypatch)
    looked: list[float] = []
    cursor = ClaimCursor()
    monkeypatch.setattr(cursor, "looked", looked.append)
    store.claim("w1", queues=["one", "two"], jobs=["flow"], tokens=["t", "u"], now=NOW, claim_cursor=cursor)
    assert [seconds >= 0.06 for seconds in looked] == [True]


def slow_down(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each search takes 30 ms longer."""
    if store.dialect == "sqlite":
        with store._writer.transaction() as tx:
            tx.connection.create_function("pause", 0, lambda: time.sleep(0.03))
        slow = quick_claims.SEARCH.replace("AND EXISTS (", "AND (SELECT pause()) IS NULL AND EXISTS (")
        monkeypatch.setattr(quick_claims, "SEARCH", slow)
        return
    statements = store.driver.statements
    slow = statements.claim_at_once.replace("FROM found),", "FROM found WHERE pg_sleep(0.03) IS NOT NULL),")
    monkeypatch.setattr(store.driver, "statements", msgspec.structs.replace(statements, claim_at_once=slow))


def test_a_worker_whose_search_is_slow_continues_from_its_places(store: Store, asked: list[str]) -> None:
    cursor = ClaimCursor()
    for _ in range(2):
        cursor.looked(MOST + SLOW)
    one(store, start("a"))
    store.claim("w1", queues=["default"], jobs=["flow"], tokens=["t"], now=NOW, claim_cursor=cursor)
    assert asked == []


@pytest.mark.parametrize("long", ["run", "execution"])
def test_a_long_input_is_claimed_with_the_others(store: Store, long: str) -> None:
    text = json.dumps("ü" * (quick_claims.LARGEST_INPUT + 1), ensure_ascii=False)
    runs = [new_run("a"), new_run("b", input=text if long == "run" else "1"), new_run("c")]
    mains = [new_main("a"), new_main("b", input=text if long == "execution" else None), new_main("c")]
    one(store, Start(runs=runs, executions=mains))
    claimed = claim(store, limit=5)
    assert ids(claimed) == ["a", "b", "c"]
    assert [row.run_input for row in claimed] == [run.input for run in runs]
    assert [row.input for row in claimed] == [main.input for main in mains]


def test_texts_come_back_as_they_were_written(store: Store) -> None:
    text = json.dumps('ü \u2028 " \\ \U0001f600 \n', ensure_ascii=False)
    one(store, Start(runs=[new_run(input=text)], executions=[new_main(input=text)]))
    [claimed] = claim(store)
    assert (claimed.run_input, claimed.input) == (text, text)


def test_a_claim_at_once_takes_what_is_pinned_to_its_version(store: Store) -> None:
    schedule(store, new_main("a", pin="v1"), new_main("b", pin="v2"), new_main("c"))
    found = store.claim("w1", queues=["default"], jobs=["flow"], tokens=["t", "u"], now=NOW, version="v2")
    assert ids(found) == ["b", "c"]


def test_what_was_leased_is_what_was_told(store: Store) -> None:
    mains = [new_main(name, precedence=place, input="1") for place, name in enumerate("abc")]
    schedule(store, *mains, new_main("d", precedence=3, started_at=NOW - 5, deliveries=2))
    told = claim(store, limit=4, now=NOW + 7)
    with store._reading() as tx:
        held = rows_to(Claimed, tx.query(tx.sql.held_by, worker="w1"))
    assert sorted(held, key=lambda row: row.run_id) == told
    assert len(told) == 4
