"""Starting runs: once per id, once per hero, whole or not at all."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from detent.errors import AlreadyRunning, RunConflict
from detent.kernel.external_changes import Pause
from detent.kernel.operations import Start, Started
from detent.kernel.rows import Lease, NewExecution
from detent.stores.batch.apply import take_lease
from detent.stores.batch.fast_paths import quick_batch
from detent.stores.driver import Line, Trouble
from detent.stores.store import Store
from tests.conformance.builders import (
    NOW,
    SECOND,
    Attempt,
    claim,
    enlist,
    everything,
    execution,
    held_open,
    is_seen_waiting,
    new_main,
    new_run,
    new_step,
    one,
    recording,
    settling,
    start,
    state_of,
)


def hero(run: str, hero_id: str = "7", *, exclusive: int = 1, hero_type: str = "Order") -> Start:
    return start(run, hero_type=hero_type, hero_id=hero_id, exclusive=exclusive)


def test_a_started_run_is_ready_with_its_first_execution(store: Store) -> None:
    assert one(store, start("run", input='{"args":[1]}', priority=3)) == [Started(id="run", created=True)]
    run = store.run("run")
    assert (run.state, run.input, run.priority, run.performing) == ("ready", '{"args":[1]}', 3, 0)
    assert [(row.node, row.attempt, row.state) for row in store.executions("run")] == [("main", 1, "ready")]


def test_many_runs_start_in_one_operation(store: Store) -> None:
    ids = [f"run-{number}" for number in range(500)]
    answers = one(store, start(*ids))
    assert answers == [Started(id=run, created=True) for run in ids]
    assert len(store.runs(limit=1000)) == 500


def test_a_run_may_begin_with_a_journal(store: Store) -> None:
    """A fork begins with what the other run has recorded."""
    fork = Start(
        runs=[new_run("fork", forked_from="run")],
        executions=[new_main("fork")],
        steps=[new_step("fork", "charge", result="42")],
    )
    one(store, fork)
    assert [step.result for step in store.journal(["fork"])["fork"]] == ["42"]
    assert store.run("fork").forked_from == "run"


def test_a_chosen_id_twice_with_the_same_input_is_the_same_run(store: Store) -> None:
    one(store, start("order-1", chosen=True))
    before = everything(store)
    assert one(store, start("order-1", chosen=True)) == [Started(id="order-1", created=False)]
    assert everything(store) == before


def test_a_chosen_id_with_another_input_is_a_conflict(store: Store) -> None:
    one(store, start("order-1", chosen=True))
    answer = one(store, start("order-1", chosen=True, input='{"args":[2]}'))
    assert isinstance(answer, RunConflict)
    assert (answer.run_id, answer.type) == ("order-1", "flow")


def test_a_chosen_id_twice_in_one_batch_is_one_run(store: Store) -> None:
    first, second, other = store.apply(
        [start("a", chosen=True), start("a", chosen=True), start("a", chosen=True, input="9")]
    ).answers
    assert (first[0].created, second[0].created) == (True, False)
    assert isinstance(other, RunConflict)
    assert len(store.executions("a")) == 1


def test_of_two_starts_with_one_id_at_once_one_creates_the_run(store: Store, rival: Store) -> None:
    with held_open(store, start("a", chosen=True)):
        attempt = Attempt(lambda: _start_as_the_committer_does(rival, start("a", chosen=True)))
        is_seen_waiting(attempt, store)
    assert attempt.result() == [Started(id="a", created=False)]
    assert len(store.executions("a")) == 1


def test_of_two_starts_with_one_id_and_different_input_one_is_a_conflict(store: Store, rival: Store) -> None:
    with held_open(store, start("a", chosen=True)):
        attempt = Attempt(lambda: _start_as_the_committer_does(rival, start("a", chosen=True, input="2")))
        is_seen_waiting(attempt, store)
    assert isinstance(attempt.result(), RunConflict)
    assert store.run("a").input == "{}"


def test_the_start_of_a_rolled_back_transaction_does_not_count(store: Store, rival: Store) -> None:
    with pytest.raises(ZeroDivisionError), held_open(store, start("a", chosen=True)):
        attempt = Attempt(lambda: one(rival, start("a", chosen=True, input="2")))
        is_seen_waiting(attempt, store)
        raise ZeroDivisionError
    assert attempt.result() == [Started(id="a", created=True)]
    assert store.run("a").input == "2"


def test_a_hero_has_one_active_run_of_a_type(store: Store) -> None:
    one(store, hero("first"))
    with pytest.raises(Exception) as caught:
        store.apply([hero("second")])
    assert store.driver.trouble(caught.value) is Trouble.UNIQUE
    found = store.explain_conflict(hero("second"))
    assert isinstance(found, AlreadyRunning)
    assert (found.run_id, found.hero) == ("first", "Order 7")


def test_of_two_starts_for_one_hero_at_once_the_loser_is_told_the_winner(store: Store, rival: Store) -> None:
    with held_open(store, hero("first")):
        attempt = Attempt(lambda: _start_as_the_committer_does(rival, hero("second")))
        is_seen_waiting(attempt, store)
    found = attempt.result()
    assert isinstance(found, AlreadyRunning)
    assert found.run_id == "first"


@pytest.mark.parametrize(
    "other",
    [
        hero("second", "8"),
        hero("second", exclusive=0),
        hero("second", hero_type="Invoice"),
        start("second", type="other", hero_type="Order", hero_id="7", exclusive=1),
    ],
    ids=["another hero", "allow_multiple", "another type of hero", "another workflow"],
)
def test_other_runs_do_not_take_a_heros_slot(store: Store, other: Start) -> None:
    one(store, hero("first"))
    assert one(store, other)[0].created


def test_a_heros_slot_does_not_confuse_where_one_name_ends_and_the_next_begins(store: Store) -> None:
    one(store, hero("first", "c", hero_type="a\nb"))
    assert one(store, hero("second", "b\nc", hero_type="a"))[0].created


def test_a_heros_id_may_end_with_a_space(store: Store) -> None:
    one(store, hero("first", "7"))
    assert one(store, hero("second", "7 "))[0].created
    found = store.explain_conflict(hero("third", "7 "))
    assert isinstance(found, AlreadyRunning)
    assert found.run_id == "second"


def test_a_finished_run_frees_its_heros_slot(store: Store) -> None:
    enlist(store, "w1")
    one(store, hero("first"))
    [claimed] = claim(store)
    one(store, settling(claimed))
    assert one(store, hero("second"))[0].created


def test_a_paused_run_keeps_its_heros_slot(store: Store) -> None:
    one(store, hero("first"))
    store.change(Pause("first", reason=None), now=NOW)
    with pytest.raises(Exception) as caught:
        store.apply([hero("second")])
    assert store.driver.trouble(caught.value) is Trouble.UNIQUE


def test_one_broken_start_fails_its_batch_and_leaves_nothing_of_it(store: Store) -> None:
    """The committer then replays it one by one, and each gets its own answer."""
    one(store, hero("first"))
    before = everything(store)
    operations = [start("fine"), hero("second"), start("first", chosen=True, input="2")]
    with pytest.raises(Exception) as caught:
        store.apply(operations)
    assert store.driver.trouble(caught.value) is Trouble.UNIQUE
    assert everything(store) == before

    fine, broken, conflict = (_start_as_the_committer_does(store, operation) for operation in operations)
    assert fine == [Started(id="fine", created=True)]
    assert isinstance(broken, AlreadyRunning)
    assert isinstance(conflict, RunConflict)


def test_a_run_may_start_leased_to_the_worker_that_starts_it(store: Store) -> None:
    enlist(store, "w1")
    leased = new_main(state="executing", worker="w1", token="t1", deliveries=1, started_at=NOW)
    one(store, Start(runs=[new_run()], executions=[leased]))
    row = execution(store)
    assert (row.state, row.worker) == ("executing", "w1")
    assert store.run("run").performing == 1


def test_a_lease_of_a_worker_that_was_reaped_meanwhile_is_void(store: Store) -> None:
    """Nobody would ever give its executions back."""
    leased = new_main(state="executing", worker="w1", token="t1", deliveries=1, started_at=NOW)
    one(store, Start(runs=[new_run()], executions=[leased]))
    assert state_of(store) == "ready"
    enlist(store, "w2")
    assert [row.run_id for row in claim(store, "w2")] == ["run"]


def test_a_start_whose_commit_was_cut_off_is_found_by_its_ids(store: Store) -> None:
    assert store.already_applied(start("a")) is None
    one(store, start("a"))
    assert store.already_applied(start("a")) == [Started(id="a", created=True)]


def test_a_run_that_another_start_began_meanwhile_is_not_ours(store: Store) -> None:
    """The commit of a start was cut off, and its chosen id exists: with another moment of creation."""
    one(store, start("a", chosen=True))
    late = start("a", chosen=True, created_at=NOW + 1)
    assert store.already_applied(late) is None

    one(store, start("b", chosen=True, created_at=NOW + 1))
    both = start("a", "b", chosen=True, created_at=NOW + 1)
    assert store.already_applied(both) == [Started(id="a", created=False), Started(id="b", created=True)]


def test_a_start_for_later_waits_as_a_timer(store: Store) -> None:
    later = new_main(state="timer", scheduled_for=NOW + 60 * SECOND)
    one(store, Start(runs=[new_run()], executions=[later]))
    assert store.next_due() == NOW + 60 * SECOND


def _start_as_the_committer_does(store: Store, operation: Start) -> object:
    try:
        return one(store, operation)
    except Exception as error:
        if store.driver.trouble(error) is not Trouble.UNIQUE:
            raise
        return store.explain_conflict(operation)


# Starts in one statement (quick.py)


def lease(row: NewExecution, worker: str) -> NewExecution:
    take_lease(row, Lease(worker=worker, token=f"token of {row.run_id}"))
    return row


def begins(run: str, worker: str | None = None, **given: Any) -> Start:
    main = new_main(run, precedence=-given.get("priority", 0))
    return Start(runs=[new_run(run, **given)], executions=[main if worker is None else lease(main, worker)])


def rows_of(store: Store, run: str) -> list[str]:
    """The rows of a run, without its id."""
    with store._reading() as tx:
        found = [
            *tx.query(f"SELECT * FROM detent_runs WHERE id = '{run}'"),
            *tx.query(f"SELECT * FROM detent_executions WHERE run_id = '{run}'"),
        ]
    return [repr(row).replace(run, "?") for row in found]


@pytest.mark.parametrize("worker", [None, "w1"], ids=["ready", "leased"])
def test_both_ways_of_starting_write_the_same_rows(store: Store, worker: str | None) -> None:
    enlist(store, "w1")
    one(store, begins("quick", worker, priority=3, input='{"args":[1]}'))
    store.apply([begins("slow!", worker, priority=3, input='{"args":[1]}')], line=Line.SPLIT)
    assert rows_of(store, "quick") == rows_of(store, "slow!")
    assert len(rows_of(store, "quick")) == 2


def test_a_start_that_waits_for_a_worker_says_so(store: Store) -> None:
    enlist(store, "w1")
    assert store.apply([begins("ready")]).made_ready
    assert not store.apply([begins("leased", "w1")]).made_ready
    assert store.apply([begins("one", "w1"), begins("two")]).made_ready


def test_a_start_goes_with_records_and_ends_in_one_batch(store: Store) -> None:
    enlist(store, "w1")
    one(store, start("run"))
    [claimed] = claim(store, "w1")
    applied = store.apply(
        [
            begins("next", "w1"),
            recording(claimed, new_step("run", "charge", result="1")),
            settling(claimed, result="2"),
            begins("after"),
        ]
    )
    assert applied.answers[0] == [Started(id="next", created=True)]
    assert [step.result for step in store.journal(["run"])["run"]] == ["1"]
    assert [state_of(store, run) for run in ("run", "next", "after")] == ["completed", "executing", "ready"]
    assert execution(store, "next").worker == "w1"


def test_a_leased_start_of_a_dead_worker_is_ready_for_others(store: Store) -> None:
    enlist(store, "w2")
    applied = store.apply([begins("run", "w1"), begins("other")])
    assert [answer[0].created for answer in applied.answers] == [True, True]
    assert applied.made_ready
    row = execution(store, "run")
    assert (row.state, row.worker, row.started_at) == ("ready", None, None)


NOT_PLAIN: dict[str, Callable[[], Start]] = {
    "a chosen id": lambda: replace(begins("run"), chosen=True),
    "a deadline": lambda: begins("run", deadline=NOW + SECOND),
    "attributes": lambda: begins("run", attributes={"customer": "acme"}),
    "a hero": lambda: begins("run", hero_type="Order", hero_id="7", exclusive=1),
    "a parent": lambda: begins("run", parent="other", parent_key="child"),
    "a graph": lambda: begins("run", kind="class"),
    "a delay": lambda: Start(
        runs=[new_run("run")],
        executions=[new_main("run", state="timer", scheduled_for=NOW + SECOND)],
    ),
    "a journal": lambda: replace(begins("run"), steps=[new_step("run")]),
    "a bad name": lambda: begins("run", type="ends with a space "),
    "several workers": lambda: Start(
        runs=[new_run("a"), new_run("b")],
        executions=[lease(new_main("a"), "w1"), lease(new_main("b"), "w2")],
    ),
}


@pytest.mark.parametrize("what", NOT_PLAIN)
def test_a_start_with_more_to_write_goes_the_long_way(what: str) -> None:
    assert quick_batch([begins("run")]) is not None
    assert quick_batch([NOT_PLAIN[what]()]) is None
