"""Streams of runs: positions in the order of commits, entries stored once, reads that cost one page."""

import re

import pytest

from detent.errors import NameUnfit, RunNotFound
from detent.kernel.external_changes import Cancel
from detent.kernel.operations import Record, Verdict
from detent.kernel.rows import Claimed, NewEntry
from detent.stores.driver import batch
from detent.stores.store import Store
from tests.conformance.builders import (
    NOW,
    Attempt,
    enlist,
    executing,
    new_step,
    one,
    settling,
    start,
)


def entry(number: int, *, run: str = "run", name: str = "tokens", by: str = "a") -> NewEntry:
    return NewEntry(run, name, f"{by}-{number}", "write", 1, str(number), NOW)


def appending(claimed: Claimed, *entries: NewEntry) -> Record:
    return Record(worker=claimed.worker, run_id=claimed.run_id, appends=list(entries))


def values(store: Store, after: int = 0, limit: int = 100) -> list[tuple[int, str]]:
    return [(row.position, row.value) for row in store.stream("run", "tokens", after=after, limit=limit)]


def test_entries_come_back_in_the_order_of_appending(store: Store) -> None:
    claimed = executing(store)
    assert one(store, appending(claimed, entry(9), entry(3))) is Verdict.APPLIED
    store.apply([appending(claimed, entry(7)), appending(claimed, entry(1), entry(8))])
    assert values(store) == [(1, "9"), (2, "3"), (3, "7"), (4, "1"), (5, "8")]
    assert values(store, after=2, limit=2) == [(3, "7"), (4, "1")]
    assert store.streams("run") == [("tokens", 1, 5)]


def test_an_entry_is_stored_once(store: Store) -> None:
    claimed = executing(store)
    operation = appending(claimed, entry(1), entry(2))
    assert store.already_applied(operation) is None
    one(store, operation)
    assert store.already_applied(operation) is Verdict.APPLIED
    one(store, operation)
    one(store, appending(claimed, entry(3)))
    assert [value for _, value in values(store)] == ["1", "2", "3"]


def test_a_record_of_a_workflow_and_its_entry_are_one_commit(store: Store) -> None:
    claimed = executing(store)
    operation = appending(claimed, entry(1))
    operation.steps = [new_step(key="append/tokens", kind="append", name="tokens")]
    one(store, operation)
    assert [step.key for step in store.journal(["run"])["run"]] == ["append/tokens"]
    assert values(store) == [(1, "1")]


def test_a_dead_worker_appends_nothing(store: Store) -> None:
    claimed = executing(store)
    store.reap(claimed.worker, max_recoveries=5, now=NOW)
    assert one(store, appending(claimed, entry(1))) is Verdict.STALE
    assert values(store) == []


def test_a_step_of_a_canceled_run_may_append_until_it_ends(store: Store) -> None:
    claimed = executing(store)
    store.change(Cancel("run", reason=None), now=NOW)
    assert one(store, appending(claimed, entry(1))) is Verdict.APPLIED
    assert store.streams_may_grow("run")
    one(store, settling(claimed))
    assert not store.streams_may_grow("run")
    assert values(store) == [(1, "1")]


def test_a_workflow_of_a_canceled_run_appends_nothing(store: Store) -> None:
    claimed = executing(store)
    store.change(Cancel("run", reason=None), now=NOW)
    operation = appending(claimed, entry(1))
    operation.steps = [new_step(key="append/tokens", kind="append", name="tokens")]
    assert one(store, operation) is Verdict.CANCELED
    assert values(store) == []


def test_old_entries_go_where_the_latest_are_kept(store: Store) -> None:
    claimed = executing(store)
    for number in range(1, 8):
        kept = entry(number)
        kept.keep = 3
        one(store, appending(claimed, kept, entry(number, name="other", by="b")))
    assert values(store) == [(5, "5"), (6, "6"), (7, "7")]
    assert store.streams("run") == [("other", 1, 7), ("tokens", 5, 7)]


def test_a_name_that_no_database_stores_is_refused(store: Store) -> None:
    claimed = executing(store)
    assert isinstance(one(store, appending(claimed, entry(1, name="a\x00b"))), NameUnfit)


def test_a_run_that_is_gone_has_no_streams(store: Store) -> None:
    with pytest.raises(RunNotFound):
        store.streams_may_grow("gone")


def test_a_reader_beside_two_writers_misses_nothing(store: Store, rival: Store) -> None:
    """Positions are given under the lock of the run: a lower one never becomes visible after a higher one."""
    enlist(store, "w1", "w2")
    one(store, start("run"))

    def write(through: Store, worker: str) -> None:
        for number in range(60):
            through.apply([Record(worker=worker, run_id="run", appends=[entry(number, by=worker)])])

    writers = [Attempt(lambda: write(store, "w1")), Attempt(lambda: write(rival, "w2"))]
    seen: list[int] = []
    while len(seen) < 120:
        seen += [row.position for row in store.stream("run", "tokens", after=max(seen, default=0), limit=7)]
    assert seen == list(range(1, 121))
    for writer in writers:
        writer.result()


@pytest.mark.parametrize("name", ["heads", "page"])
def test_the_end_of_a_long_stream_is_found_by_the_key(store: Store, name: str) -> None:
    claimed = executing(store)
    one(store, appending(claimed, *(entry(number) for number in range(2000))))
    statement: str = getattr(store.driver.statements.run_streams, name)
    verb = {"sqlite": "EXPLAIN QUERY PLAN", "postgres": "EXPLAIN (COSTS OFF)", "mysql": "EXPLAIN"}
    given = {
        "run_id": "run",
        "name": "tokens",
        "after": 1990,
        "limit": 10,
        "rows": batch([{"run_id": "run", "name": "tokens"}]),
    }
    wanted = {key: value for key, value in given.items() if re.search(rf"(:|%\(){key}\b", statement)}
    with store._writer.transaction() as tx:
        plan = str(tx.query(f"{verb[store.dialect]} {statement}", **wanted))
    assert re.search("PRIMARY|detent_streams_pkey|sqlite_autoindex_detent_streams_1|USING PRIMARY KEY", plan)
    assert not re.search("filesort|Sort|TEMP B-TREE|Seq Scan on detent_streams|SCAN s", plan)
