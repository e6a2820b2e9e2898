"""Listings: newest first, page by page, by everything that is known of a run."""

from collections.abc import Iterator
from typing import Any

import pytest

from detent.errors import NameUnfit
from detent.kernel.external_changes import Cancel, Pause
from detent.kernel.operations import Start
from detent.kernel.rows import Claimed, RunRow
from detent.kernel.settle import Outcome
from detent.stores.driver import batch, rows_to
from detent.stores.store import Store
from tests.conformance.builders import (
    NOW,
    SECOND,
    claim,
    enlist,
    everything,
    new_main,
    new_run,
    new_spawned,
    one,
    recording,
    settling,
)


def begin(store: Store, run: str, *, due: int = NOW, state: str = "ready", **given: Any) -> None:
    main = new_main(run, scheduled_for=due, state=state)
    one(store, Start(runs=[new_run(run, **given)], executions=[main]))


def ids(store: Store, limit: int = 100, **filters: Any) -> list[str]:
    return [run.id for run in store.runs(limit=limit, **filters)]


def pages(store: Store, size: int, **filters: Any) -> Iterator[list[RunRow]]:
    place = None
    while page := store.runs(limit=size, beyond=place, **filters):
        yield page
        place = (page[-1].created_at, page[-1].id)


def walked(store: Store, size: int, **filters: Any) -> list[str]:
    return [run.id for page in pages(store, size, **filters) for run in page]


# -- Pages -------------------------------------------------------------------------------------------

BY = [
    {},
    {"type": "flow"},
    {"state": "ready"},
    {"state": "active"},
    {"queue": "default"},
    {"parent": "p"},
    {"hero_type": "Order", "hero_id": "7"},
    {"attributes": {"customer": "acme"}},
    {"attributes": {"customer": "acme", "paid": True}},
    {"overdue": NOW},
    {"after": NOW - 20, "before": NOW + 20},
]


@pytest.mark.parametrize("filters", BY, ids=lambda filters: " ".join(filters) or "all")
def test_pages_leave_nothing_out_and_show_nothing_twice(store: Store, filters: dict[str, Any]) -> None:
    """Many begin in the same microsecond; then their ids decide."""
    facts: dict[str, Any] = {"parent": "p", "hero_type": "Order", "hero_id": "7"}
    for number in range(23):
        attributes = {"customer": "acme", "paid": True, "number": number}
        begin(store, f"run-{number:02}", created_at=NOW + number // 5, attributes=attributes, **facts)
    newest_first = [f"run-{number:02}" for number in reversed(range(23))]
    for size in (1, 4, 5, 23, 50):
        assert walked(store, size, **filters) == newest_first


def test_what_begins_meanwhile_disturbs_no_page(store: Store) -> None:
    for number in range(6):
        begin(store, f"run-{number}", created_at=NOW + number)
    seen = []
    for turn, page in enumerate(pages(store, 2)):
        seen += [run.id for run in page]
        begin(store, f"new-{turn}", created_at=NOW + 100 + turn)
    assert seen == [f"run-{number}" for number in reversed(range(6))]


def test_a_page_may_begin_behind_a_run_that_is_gone(store: Store) -> None:
    for number in range(3):
        begin(store, f"run-{number}", created_at=NOW + number)
    assert ids(store, beyond=(NOW + 1, "run-1")) == ["run-0"]
    assert ids(store, beyond=(NOW + 2, "a run that was removed")) == ["run-1", "run-0"]


# -- States ------------------------------------------------------------------------------------------


@pytest.fixture
def mixed(store: Store) -> Store:
    """One run in each state, called like it."""
    enlist(store, "w1")
    for age, state in enumerate(["finished", "failed", "performing", "paused", "canceled", "ready"]):
        begin(store, state, created_at=NOW + age, attributes={"customer": "acme"}, parent="p")
        if state in ("finished", "failed", "performing"):
            [claimed] = claim(store)
            if state != "performing":
                outcome = Outcome.SUCCESS if state == "finished" else Outcome.FAILED
                one(store, settling(claimed, outcome))
    store.change(Pause("paused", reason=None), now=NOW)
    store.change(Cancel("canceled", reason=None), now=NOW)
    return store


@pytest.mark.parametrize(
    "lead", [{}, {"type": "flow"}, {"parent": "p"}, {"attributes": {"customer": "acme"}}]
)
def test_runs_are_found_by_their_state(mixed: Store, lead: dict[str, Any]) -> None:
    for state in ("finished", "failed", "performing", "paused", "canceled", "ready"):
        assert ids(mixed, state=state, **lead) == [state]
    assert ids(mixed, state="active", **lead) == ["ready", "paused", "performing"]
    assert ids(mixed, state="active", limit=2, **lead) == ["ready", "paused"]


def test_a_run_that_executes_twice_is_listed_once(mixed: Store) -> None:
    spawned = [
        new_spawned("performing", f"piece-{n}", "pieces", state="executing", worker="w1", token=f"t{n}")
        for n in range(3)
    ]
    [main] = held(mixed)
    one(mixed, recording(main, executions=spawned))
    assert ids(mixed, state="performing") == ["performing"]
    assert mixed.executing() == {"w1": 4}


def held(store: Store) -> list[Claimed]:
    with store._reading() as tx:
        return rows_to(Claimed, tx.query(tx.sql.held_by, worker="w1"))


# -- Attributes --------------------------------------------------------------------------------------


def test_attributes_are_read_back_as_they_were_given(store: Store) -> None:
    given = {"customer": "Æsop & Söhne \"quoted\" \\ '7' %s :x", "amount": -12, "paid": True, "late": False}
    begin(store, "run", attributes=given | {"empty": "", "emoji": "🪙"})
    begin(store, "bare")
    expected = given | {"empty": "", "emoji": "🪙"}
    assert store.run("run").attributes == expected
    assert {type(value) for value in store.run("run").attributes.values()} == {str, int, bool}
    assert {run.id: run.attributes for run in store.runs(limit=5)} == {"run": expected, "bare": {}}


def test_runs_are_found_by_all_their_attributes_together(store: Store) -> None:
    begin(store, "a", created_at=NOW, attributes={"customer": "acme", "amount": 12})
    begin(store, "b", created_at=NOW + 1, attributes={"customer": "acme", "amount": 13})
    begin(store, "c", created_at=NOW + 2, attributes={"customer": "Acme", "amount": 12}, type="other")
    begin(store, "d", created_at=NOW + 3)
    assert ids(store, attributes={"customer": "acme"}) == ["b", "a"]
    assert ids(store, attributes={"amount": 12}) == ["c", "a"]
    assert ids(store, attributes={"amount": 12}, type="other") == ["c"]
    assert ids(store, attributes={"amount": 12, "customer": "acme"}) == ["a"]
    assert ids(store, attributes={"amount": 12, "nothing": "like it"}) == []


def test_attributes_are_compared_as_text(store: Store) -> None:
    begin(store, "number", created_at=NOW, attributes={"code": 12, "flag": True})
    begin(store, "text", created_at=NOW + 1, attributes={"code": "12", "flag": "true"})
    for code, flag in ((12, True), ("12", "true")):
        assert ids(store, attributes={"code": code}) == ["text", "number"]
        assert ids(store, attributes={"flag": flag}) == ["text", "number"]


def test_a_start_that_finds_its_run_leaves_its_attributes_alone(store: Store) -> None:
    first = Start(runs=[new_run(attributes={"a": 1})], executions=[new_main()], chosen=True)
    again = Start(runs=[new_run(attributes={"a": 2, "b": 3})], executions=[new_main()], chosen=True)
    assert one(store, first)[0].created
    assert not one(store, again)[0].created
    assert store.run("run").attributes == {"a": 1}


def test_many_runs_and_their_attributes_are_one_batch(store: Store) -> None:
    runs = [new_run(f"run-{n}", attributes={"n": n, "batch": "b"}) for n in range(300)]
    one(store, Start(runs=runs, executions=[new_main(run.id) for run in runs]))
    assert len(ids(store, limit=1000, attributes={"batch": "b"})) == 300
    assert ids(store, attributes={"n": 250, "batch": "b"}) == ["run-250"]


@pytest.mark.parametrize(
    "attributes",
    [
        {"n" * 101: "x"},
        {"name": "v" * 256},
        {"name": "with\x00nul"},
        {"na\x00me": "x"},
        {"name": "half \ud800"},
        {"name": "a space "},
        {"name ": "x"},
    ],
    ids=["long name", "long value", "nul", "nul in name", "surrogate", "space", "space in name"],
)
def test_attributes_that_a_database_cannot_store_are_refused_alike(
    store: Store, attributes: dict[str, Any]
) -> None:
    before = everything(store)
    start = Start(runs=[new_run(attributes=attributes)], executions=[new_main()])
    assert isinstance(one(store, start), NameUnfit)
    assert everything(store) == before


def test_the_longest_attributes_fit(store: Store) -> None:
    attributes = {"ñ" * 100: "€" * 255}
    begin(store, "ü" * 200, attributes=attributes)
    assert ids(store, attributes=attributes) == ["ü" * 200]


# -- Overdue -----------------------------------------------------------------------------------------


def test_what_has_been_due_for_long_is_overdue(store: Store) -> None:
    begin(store, "late", due=NOW - 60 * SECOND)
    begin(store, "fresh", due=NOW - SECOND, created_at=NOW + 1)
    begin(store, "slept-in", due=NOW - 90 * SECOND, state="timer", created_at=NOW + 2)
    begin(store, "asleep", due=NOW + SECOND, state="timer", created_at=NOW + 3)
    begin(store, "parked", state="parked", created_at=NOW + 4)
    minute_ago = NOW - 60 * SECOND
    assert ids(store, overdue=minute_ago) == ["slept-in", "late"]
    assert ids(store, overdue=minute_ago, limit=1) == ["slept-in"]
    assert ids(store, overdue=NOW) == ["slept-in", "fresh", "late"]
    assert ids(store, overdue=minute_ago, type="flow", state="ready") == ["slept-in", "late"]
    assert ids(store, overdue=minute_ago, type="other") == []


def test_what_is_taken_paused_or_over_is_not_overdue(store: Store) -> None:
    enlist(store, "w1")
    begin(store, "taken")
    [_] = claim(store)
    begin(store, "paused", created_at=NOW + 1)
    store.change(Pause("paused", reason=None), now=NOW)
    begin(store, "canceled", created_at=NOW + 2)
    store.change(Cancel("canceled", reason=None), now=NOW)
    assert ids(store, overdue=NOW + SECOND) == []


def test_it_is_told_what_is_overdue_and_since_when(store: Store) -> None:
    begin(store, "a", due=NOW - 5, attributes={"x": 1}, parent="p", hero_type="T", hero_id="1")
    piece = new_spawned("a", "piece", "pieces", scheduled_for=NOW - 9, queue="slow")
    later = new_spawned("a", "later", "pieces", scheduled_for=NOW + 9, state="timer")
    begin(store, "b", due=NOW - 1)
    with store._writer.transaction() as tx:
        tx.run(tx.sql.insert_executions, rows=batch([piece, later]))
    found = store.overdue(["a", "nowhere"], due=NOW)
    assert [(item.run_id, item.node, item.job, item.queue, item.since) for item in found] == [
        ("a", "piece", "piece", "slow", NOW - 9),
        ("a", "main", "flow", "default", NOW - 5),
    ]
    for lead in ({"attributes": {"x": 1}}, {"parent": "p"}, {"hero_type": "T", "hero_id": "1"}):
        assert ids(store, overdue=NOW - 9, **lead) == ["a"]
        assert ids(store, overdue=NOW - 10, **lead) == []
