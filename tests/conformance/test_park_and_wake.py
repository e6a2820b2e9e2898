"""Waiting: a run that is put down wakes when what it awaits has happened, once, and never before."""

import pytest

from detent.errors import InvalidState
from detent.kernel.external_changes import Cancel, Pause, Resume
from detent.kernel.operations import Verdict
from detent.kernel.rows import RunState
from detent.kernel.settle import Outcome
from detent.stores.store import Store
from tests.conformance.builders import (
    NOW,
    SECOND,
    Attempt,
    begetting,
    claim,
    enlist,
    everything,
    executing,
    execution,
    for_child,
    for_message,
    for_steps,
    held_open,
    is_seen_waiting,
    message,
    new_step,
    one,
    parking,
    settling,
    spawning,
    state_of,
)

LATER = NOW + 60 * SECOND


def readiness(store: Store) -> list[tuple[object, ...]]:
    with store._reading() as tx:
        return tx.query("SELECT node, required, settled FROM detent_readiness ORDER BY node")


def test_a_sleeping_run_is_a_timer_and_its_worker_is_free(store: Store) -> None:
    main = executing(store)
    assert one(store, parking(main, wake_at=LATER)).verdict is Verdict.APPLIED
    assert (state_of(store), execution(store).scheduled_for) == ("timer", LATER)
    assert store.run("run").performing == 0
    assert claim(store, now=LATER - 1) == []
    [woken] = claim(store, now=LATER)
    assert (woken.attempt, woken.deliveries) == (1, 2)


def test_a_sleep_that_is_over_already_is_ready(store: Store) -> None:
    one(store, parking(executing(store), wake_at=NOW))
    assert state_of(store) == "ready"


def test_a_park_carries_its_records(store: Store) -> None:
    one(store, parking(executing(store), wake_at=LATER, steps=[new_step(state="waiting", wake_at=LATER)]))
    assert [step.state for step in store.journal(["run"])["run"]] == ["waiting"]


def test_a_second_park_is_stale_and_changes_nothing(store: Store) -> None:
    operation = parking(executing(store), wake_at=LATER)
    one(store, operation)
    before = everything(store)
    assert one(store, operation).verdict is Verdict.STALE
    assert everything(store) == before


def test_a_park_after_burial_is_stale(store: Store) -> None:
    main = executing(store)
    store.reap("w1", max_recoveries=5, now=NOW)
    assert one(store, parking(main, wake_at=LATER)).verdict is Verdict.STALE
    assert [row.state for row in store.executions("run")] == ["failed", "ready"]


def test_a_park_that_went_through_unseen_is_found(store: Store) -> None:
    operation = parking(executing(store), wake_at=LATER)
    assert store.already_applied(operation) is None
    one(store, operation)
    assert store.already_applied(operation).verdict is Verdict.APPLIED


def test_a_run_that_awaits_steps_wakes_with_the_last_of_them(store: Store) -> None:
    main = executing(store)
    one(store, spawning(main, "a", "b"))
    first, second = claim(store, limit=2)
    one(store, parking(main, for_steps()))
    assert readiness(store) == [("steps:pieces", 2, 0)]
    one(store, settling(first))
    assert state_of(store) == "parked"
    one(store, settling(second))
    assert (state_of(store), readiness(store)) == ("ready", [])


def test_a_failed_step_counts_as_one_that_has_happened(store: Store) -> None:
    main = executing(store)
    one(store, spawning(main, "a"))
    [piece] = claim(store)
    one(store, parking(main, for_steps()))
    one(store, settling(piece, Outcome.FAILED, error="{}"))
    assert (state_of(store), store.run("run").state) == ("ready", "ready")


def test_a_step_that_is_tried_again_does_not_count_yet(store: Store) -> None:
    main = executing(store)
    one(store, spawning(main, "a"))
    [piece] = claim(store)
    one(store, parking(main, for_steps()))
    one(store, settling(piece, Outcome.REATTEMPTED_BY_EXCEPTION, error="{}"))
    assert state_of(store) == "parked"
    [again] = claim(store, now=NOW + SECOND)
    one(store, settling(again))
    assert state_of(store) == "ready"


def test_a_run_that_awaits_what_has_happened_is_ready_at_once(store: Store) -> None:
    main = executing(store)
    one(store, spawning(main, "a"))
    [piece] = claim(store)
    one(store, settling(piece))
    one(store, parking(main, for_steps(), wake_at=LATER))
    assert (state_of(store), readiness(store)) == ("ready", [])


def test_a_step_that_ends_in_the_batch_that_parks_its_run_is_counted_once(store: Store) -> None:
    main = executing(store)
    one(store, spawning(main, "a", "b"))
    first, second = claim(store, limit=2)
    store.apply([settling(first), parking(main, for_steps())])
    assert (state_of(store), readiness(store)) == ("parked", [("steps:pieces", 1, 0)])
    one(store, settling(second))
    assert state_of(store) == "ready"


def test_of_many_things_awaited_the_first_wakes(store: Store) -> None:
    main = executing(store)
    one(store, begetting(main, "child"))
    one(store, parking(main, for_child("child"), for_message("paid"), wake_at=LATER))
    assert len(readiness(store)) == 2
    one(store, message())
    assert (state_of(store), readiness(store)) == ("ready", [])


def test_what_happens_after_the_waking_wakes_nobody_again(store: Store) -> None:
    main = executing(store)
    one(store, begetting(main, "child"))
    [child] = claim(store)
    one(store, parking(main, for_child("child"), for_message("paid")))
    one(store, message())
    [woken] = claim(store, now=NOW + SECOND)
    one(store, settling(child))
    assert state_of(store) == "executing"
    assert one(store, settling(woken)).verdict is Verdict.APPLIED


@pytest.mark.parametrize("outcome", [Outcome.SUCCESS, Outcome.FAILED])
def test_a_run_that_awaits_its_child_wakes_when_that_ends(store: Store, outcome: Outcome) -> None:
    main = executing(store)
    one(store, begetting(main, "child"))
    [child] = claim(store)
    one(store, parking(main, for_child("child")))
    one(store, settling(child, outcome))
    assert state_of(store) == "ready"


def test_a_child_that_pauses_does_not_wake_its_parent(store: Store) -> None:
    main = executing(store)
    one(store, begetting(main, "child"))
    [child] = claim(store)
    one(store, parking(main, for_child("child")))
    one(store, settling(child, Outcome.PAUSED_BY_EXCEPTION, error="{}"))
    assert state_of(store) == "parked"


def test_a_canceled_child_wakes_its_parent(store: Store) -> None:
    main = executing(store)
    one(store, begetting(main, "child"))
    one(store, parking(main, for_child("child")))
    store.change(Cancel("child", reason=None), now=NOW)
    assert state_of(store) == "ready"


# -- Held open on purpose --------------------------------------------------------------------------


def test_a_message_sent_while_its_receiver_parks_is_not_lost(store: Store, rival: Store) -> None:
    main = executing(store)
    with held_open(store, parking(main, for_message())):
        attempt = Attempt(lambda: one(rival, message()))
        is_seen_waiting(attempt, store)
    attempt.result()
    assert state_of(store) == "ready"


def test_a_park_beside_a_message_that_is_being_sent_does_not_sleep_through_it(
    store: Store, rival: Store
) -> None:
    main = executing(store)
    with held_open(store, message()):
        attempt = Attempt(lambda: one(rival, parking(main, for_message())))
        is_seen_waiting(attempt, store)
    attempt.result()
    assert (state_of(store), readiness(store)) == ("ready", [])


@pytest.mark.parametrize("park_first", [True, False])
def test_a_park_beside_the_last_steps_settle_is_not_lost(
    store: Store, rival: Store, park_first: bool
) -> None:
    main = executing(store)
    one(store, spawning(main, "a"))
    [piece] = claim(store)
    operations = [parking(main, for_steps()), settling(piece)]
    first, second = operations if park_first else reversed(operations)
    with held_open(store, first):
        attempt = Attempt(lambda: one(rival, second))
        is_seen_waiting(attempt, store)
    assert attempt.result().verdict is Verdict.APPLIED
    assert (state_of(store), readiness(store)) == ("ready", [])


@pytest.mark.parametrize("park_first", [True, False])
def test_a_park_beside_its_childs_end_is_not_lost(store: Store, rival: Store, park_first: bool) -> None:
    main = executing(store)
    one(store, begetting(main, "child"))
    [child] = claim(store)
    operations = [parking(main, for_child("child")), settling(child)]
    first, second = operations if park_first else reversed(operations)
    with held_open(store, first):
        attempt = Attempt(lambda: one(rival, second))
        is_seen_waiting(attempt, store)
    attempt.result()
    assert state_of(store) == "ready"


def test_a_child_canceled_while_its_parent_parks_is_not_lost(store: Store, rival: Store) -> None:
    main = executing(store)
    one(store, begetting(main, "child"))
    with held_open(store, parking(main, for_child("child"))):
        attempt = Attempt(lambda: rival.change(Cancel("child", reason=None), now=NOW))
        is_seen_waiting(attempt, store)
    attempt.result()
    assert state_of(store) == "ready"


def test_a_run_that_parks_beside_its_cancel_is_canceled(store: Store, rival: Store) -> None:
    main = executing(store)
    with held_open(store, parking(main, wake_at=LATER)):
        attempt = Attempt(lambda: rival.change(Cancel("run", reason=None), now=NOW))
        is_seen_waiting(attempt, store)
    attempt.result()
    assert (store.run("run").state, state_of(store)) == ("canceled", "canceled")


def test_a_run_that_parks_after_its_cancel_comes_back_at_once_to_see_it(store: Store) -> None:
    main = executing(store)
    store.change(Cancel("run", reason=None), now=NOW)
    answer = one(store, parking(main, for_message(), wake_at=LATER))
    assert (answer.run_state, state_of(store)) == (RunState.CANCELED, "ready")


def test_undoing_a_canceled_run_may_wait(store: Store) -> None:
    main = executing(store)
    store.change(Cancel("run", reason=None), now=NOW)
    one(store, parking(main, wake_at=LATER, undoing=True))
    assert (state_of(store), execution(store).scheduled_for) == ("timer", LATER)


def test_a_park_in_a_paused_run_is_held_and_keeps_its_time(store: Store) -> None:
    main = executing(store)
    store.change(Pause("run", reason=None), now=NOW)
    one(store, parking(main, wake_at=LATER))
    assert (state_of(store), execution(store).scheduled_for) == ("held", LATER)
    store.change(Resume("run"), now=NOW)
    assert (state_of(store), execution(store).scheduled_for) == ("timer", LATER)


def test_what_a_paused_run_awaits_may_happen_meanwhile(store: Store) -> None:
    one(store, parking(executing(store), for_message()))
    store.change(Pause("run", reason=None), now=NOW)
    one(store, message())
    assert state_of(store) == "held"
    store.change(Resume("run"), now=NOW + SECOND)
    assert state_of(store) == "ready"


def test_a_finished_run_leaves_no_readiness_behind(store: Store) -> None:
    main = executing(store)
    one(store, parking(main, for_message(), wake_at=LATER))
    store.change(Cancel("run", reason=None), now=NOW)
    assert readiness(store) == []
    assert isinstance(one(store, message()), InvalidState)


def test_a_thousand_settles_from_two_stores_wake_the_parent_exactly_once(store: Store, rival: Store) -> None:
    enlist(store, "w1", "w2")
    main = executing(store)
    one(store, spawning(main, *[f"piece#{number}" for number in range(1000)]))
    pieces = claim(store, "w1", limit=500), claim(rival, "w2", limit=500)
    one(store, parking(main, for_steps()))
    assert readiness(store) == [("steps:pieces", 1000, 0)]

    def settle_all(through: Store, mine: int) -> int:
        rows = pieces[mine]
        batches = [rows[begin : begin + 25] for begin in range(0, len(rows), 25)]
        return sum(through.apply([settling(row) for row in batch]).made_ready for batch in batches)

    attempts = [Attempt(lambda: settle_all(store, 0)), Attempt(lambda: settle_all(rival, 1))]
    assert sum(attempt.result() for attempt in attempts) == 1
    assert (state_of(store), readiness(store)) == ("ready", [])
    [woken] = claim(store, limit=10, now=NOW + SECOND)
    assert (woken.node, woken.attempt) == ("main", 1)
