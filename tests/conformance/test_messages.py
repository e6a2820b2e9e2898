"""Messages: before, while or after the receiver waits, each arrives once and in order."""

from contextlib import suppress

import psycopg
import pymysql
import pytest

from detent.errors import InvalidState, RunNotFound
from detent.kernel.external_changes import Pause
from detent.kernel.operations import Note, Verdict
from detent.kernel.rows import HistoryRow
from detent.stores.store import Store
from tests.conformance.builders import (
    NOW,
    SECOND,
    Attempt,
    claim,
    enlist,
    events,
    executing,
    for_message,
    held_open,
    is_seen_waiting,
    message,
    new_step,
    one,
    parking,
    recording,
    settling,
    start,
    state_of,
)


def unread(store: Store, name: str = "paid", run: str = "run") -> list[str]:
    return [row.value for row in store.unread(run, name, limit=100)]


def test_a_message_waits_for_its_receiver(store: Store) -> None:
    one(store, start())
    assert one(store, message(value='{"sum":5}')) is Verdict.APPLIED
    [row] = store.unread("run", "paid", limit=1)
    assert (row.name, row.value) == ("paid", '{"sum":5}')


def test_messages_arrive_in_the_order_of_sending(store: Store) -> None:
    one(store, start())
    one(store, message(message_id="b", value="1"))
    store.apply([message(message_id="c", value="2"), message(message_id="a", value="3")])
    assert unread(store) == ["1", "2", "3"]
    assert [row.value for row in store.unread("run", "paid", limit=2)] == ["1", "2"]


def test_the_same_message_again_changes_nothing(store: Store) -> None:
    one(store, start())
    answers = [one(store, message(value="1")), one(store, message(value="2"))]
    assert (answers, unread(store)) == ([Verdict.APPLIED] * 2, ["1"])


def test_the_same_message_twice_in_one_batch_is_one(store: Store) -> None:
    one(store, start())
    store.apply([message(value="1"), message(value="1")])
    assert unread(store) == ["1"]


def test_the_same_message_after_it_was_received_is_not_received_again(store: Store) -> None:
    main = executing(store)
    one(store, message())
    [row] = store.unread("run", "paid", limit=1)
    one(store, recording(main, new_step(key="receive/paid"), consume=[row.seq]))
    one(store, message())
    assert unread(store) == []


def test_two_processes_that_send_the_same_message_send_one(store: Store, rival: Store) -> None:
    one(store, start())
    with held_open(store, message(value="1")):
        attempt = Attempt(lambda: one(rival, message(value="1")))
        is_seen_waiting(attempt, store)
    assert attempt.result() is Verdict.APPLIED
    assert unread(store) == ["1"]


@pytest.mark.parametrize("module_url", ["postgres", "mysql"], indirect=True)
def test_a_deadlock_with_a_stranger_is_tried_again(store: Store, rival: Store) -> None:
    """We lock in one order; a user's own transaction may have locked in another."""
    one(store, start("a", "b"))
    with suppress(psycopg.errors.DeadlockDetected, pymysql.err.OperationalError), store.transaction() as tx:
        tx.query(tx.sql.lock_run, id="b")
        attempt = Attempt(lambda: rival.apply([message("a"), message("b")]).answers)
        is_seen_waiting(attempt, store)
        tx.query(tx.sql.lock_run, id="a")  # one of the two is now told to give way
    assert attempt.result() == [Verdict.APPLIED] * 2
    assert (unread(store, run="a"), unread(store, run="b")) == (["1"], ["1"])


def test_messages_of_other_names_and_runs_stay_apart(store: Store) -> None:
    one(store, start("run", "other"))
    store.apply(
        [message(name="paid"), message("other", name="paid", value="2"), message(message_id="x", name="no")]
    )
    assert (unread(store), unread(store, "no"), unread(store, run="other")) == (["1"], ["1"], ["2"])


def test_a_message_to_nobody_is_refused_and_its_neighbours_arrive(store: Store) -> None:
    one(store, start())
    lost, found = store.apply([message("nowhere"), message()]).answers
    assert isinstance(lost, RunNotFound)
    assert (found, unread(store)) == (Verdict.APPLIED, ["1"])


def test_a_message_to_a_finished_run_is_refused(store: Store) -> None:
    one(store, settling(executing(store)))
    answer = one(store, message())
    assert isinstance(answer, InvalidState)
    assert (answer.run_id, answer.state) == ("run", "finished")


def test_a_message_to_a_paused_run_waits_there(store: Store) -> None:
    one(store, start())
    store.change(Pause("run", reason=None), now=NOW)
    assert one(store, message()) is Verdict.APPLIED
    assert unread(store) == ["1"]


def test_a_message_wakes_who_awaits_it_and_nobody_else(store: Store) -> None:
    enlist(store, "w1")
    one(store, start("a", "b"))
    for row in claim(store, limit=2):
        one(store, parking(row, for_message("paid", row.run_id)))
    one(store, message("b"))
    assert (state_of(store, "a"), state_of(store, "b")) == ("parked", "ready")


def test_a_message_of_another_name_wakes_nobody(store: Store) -> None:
    one(store, parking(executing(store), for_message("paid")))
    one(store, message(name="refunded"))
    assert state_of(store) == "parked"


@pytest.mark.parametrize("number", [1, 2, 3])
def test_many_messages_wake_their_receiver_once(store: Store, number: int) -> None:
    one(store, parking(executing(store), for_message()))
    store.apply([message(message_id=f"m{i}") for i in range(number)])
    assert len(claim(store, limit=5, now=NOW + SECOND)) == 1


def test_notes_are_lines_of_the_history(store: Store) -> None:
    one(store, start())
    lines = [HistoryRow(run_id="run", happened_at=NOW, event=event) for event in ("seen", "done")]
    assert one(store, Note(events=lines)) is Verdict.APPLIED
    assert events(store) == ["seen", "done"]
