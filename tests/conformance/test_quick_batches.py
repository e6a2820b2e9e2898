"""The commonest batches: starts, records and ends of functions, however they are sent."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from detent.kernel.external_changes import Pause
from detent.kernel.operations import Operation, Verdict
from detent.kernel.queues import KEYLESS
from detent.kernel.rows import Lease
from detent.stores.batch.apply import take_lease
from detent.stores.store import Store
from tests.conformance.builders import (
    NOW,
    claim,
    enlist,
    everything,
    executing,
    execution,
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


def test_more_runs_than_one_statement_takes_start_record_and_end_together(store: Store) -> None:
    enlist(store, "w1")
    runs = [f"run{number:03}" for number in range(300)]
    one(store, start(*runs))
    held = claim(store, "w1", limit=300)
    later = start(*(f"later{number:03}" for number in range(300)))
    batch: list[Operation] = [later]
    batch += [recording(row, new_step(row.run_id, result="1")) for row in held]
    batch += [settling(row, waited=False, result=f'"{row.run_id}"') for row in held]
    answers = store.apply(batch).answers
    assert [started.created for started in answers[0]] == [True] * 300
    assert answers[1:301] == [Verdict.APPLIED] * 300
    assert {settled.verdict for settled in answers[301:]} == {Verdict.APPLIED}
    assert [store.run(run).result for run in ("run000", "run299")] == ['"run000"', '"run299"']
    assert sum(len(steps) for steps in store.journal(runs).values()) == 300


def test_a_start_of_which_the_worker_has_room_for_a_part_is_a_quick_batch(store: Store) -> None:
    enlist(store, "w1")
    both = start("ours", "another's")
    take_lease(both.executions[0], Lease(worker="w1", token="t"))
    assert (store.driver.quick([both], helpers_wanted=False) is None) is (store.dialect == "mysql")
    assert store.apply([both]).made_ready
    assert [execution(store, run).worker for run in ("ours", "another's")] == ["w1", None]
    assert [state_of(store, run) for run in ("ours", "another's")] == ["executing", "ready"]


def test_a_start_on_a_queue_with_keys_takes_turns_with_the_keys(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.driver, "keyed", frozenset({"default"}))
    one(store, start("run"))
    with store._reading() as tx:
        assert tx.query("SELECT queue_key FROM detent_executions") == [(KEYLESS,)]


def test_a_run_that_was_paused_does_not_keep_others_of_its_batch_from_their_ends(store: Store) -> None:
    enlist(store, "w1")
    one(store, start("one", "two"))
    first, second = claim(store, "w1", limit=2)
    store.change(Pause(first.run_id), now=NOW)
    settled = store.apply([settling(first, waited=False), settling(second, waited=False)]).answers
    assert [answer.verdict for answer in settled] == [Verdict.APPLIED, Verdict.APPLIED]
    assert store.run(second.run_id).state == "finished"


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
