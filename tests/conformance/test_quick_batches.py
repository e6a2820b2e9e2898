"""The commonest batches: starts, records and ends of functions, however they are sent."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from detent.kernel.operations import Operation, Verdict
from detent.kernel.queues import KEYLESS
from detent.stores.store import Store
from tests.conformance.builders import (
    enlist,
    everything,
    executing,
    new_step,
    one,
    recording,
    settling,
    start,
    state_of,
)


@pytest.fixture
def mixed(store: Store) -> list[Operation]:
    """A start, the record of a step, and the end of another run."""
    enlist(store, "w1")
    first, second = executing(store, "one"), executing(store, "two")
    return [start("three"), recording(first, new_step("one")), settling(second, waited=False)]


def test_a_batch_of_all_three_kinds_is_applied(store: Store, mixed: list[Operation]) -> None:
    started, recorded, ended = store.apply(mixed).answers
    assert started[0].created
    assert recorded is Verdict.APPLIED
    assert ended.verdict is Verdict.APPLIED
    assert [step.key for step in store.journal(["one"])["one"]] == ["charge"]
    assert state_of(store, "two") == "completed"
    assert state_of(store, "three") == "ready"


@pytest.mark.parametrize("kinds", ["ends", "all"])
def test_a_quick_batch_is_one_round_trip_on_postgresql(
    store: Store, mixed: list[Operation], kinds: str
) -> None:
    if store.dialect != "postgres":
        return
    session = store._writer._open().session
    before = session.asked
    store.apply(mixed if kinds == "all" else mixed[2:])
    assert session.asked == before + 1


def test_a_batch_that_cannot_be_committed_raises_and_changes_nothing(
    store: Store, mixed: list[Operation]
) -> None:
    if store.dialect != "postgres":  # the others send the commit by itself
        return
    before = everything(store)
    with failing_commits(store), pytest.raises(Exception, match="not today"):
        store.apply(mixed)
    assert everything(store) == before
    assert store.apply(mixed).answers[1] is Verdict.APPLIED


def test_a_start_on_a_queue_with_keys_takes_turns_with_the_keys(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.driver, "keyed", frozenset({"default"}))
    one(store, start("run"))
    with store._reading() as tx:
        assert tx.query("SELECT queue_key FROM detent_executions") == [(KEYLESS,)]


@contextmanager
def failing_commits(store: Store) -> Iterator[None]:
    """A constraint that is checked when a transaction commits, and then fails."""
    with store._user_connections.connection() as connection, connection.autocommit() as tx:
        tx.run(
            "CREATE FUNCTION detent_refuse() RETURNS trigger LANGUAGE plpgsql"
            " AS 'BEGIN RAISE EXCEPTION ''not today''; END'"
        )
        tx.run(
            "CREATE CONSTRAINT TRIGGER detent_refuse AFTER INSERT ON detent_steps"
            " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION detent_refuse()"
        )
        try:
            yield
        finally:
            tx.run("DROP TRIGGER detent_refuse ON detent_steps")
            tx.run("DROP FUNCTION detent_refuse()")
