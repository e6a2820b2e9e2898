"""Journal entries: written once, by a worker alive, with what belongs to them."""

import pytest

from detent.kernel.external_changes import Cancel, Pause
from detent.kernel.operations import Record, Start, Verdict
from detent.kernel.rows import Step, StepState
from detent.kernel.settle import Outcome
from detent.stores.driver import Trouble
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
    held_open,
    is_seen_waiting,
    message,
    new_main,
    new_run,
    new_spawned,
    new_step,
    one,
    recording,
    settling,
    spawning,
    start,
    state_of,
)


def journal(store: Store, run: str = "run") -> dict[str, Step]:
    return {step.key: step for step in store.journal([run])[run]}


def test_a_record_comes_back_as_it_was_written(store: Store) -> None:
    claimed = executing(store)
    step = new_step(
        key="1/charge#2",
        seq=7,
        name="charge",
        attempt=3,
        input='{"args":[1]}',
        result='{"a":"é"}',
        wake_at=NOW,
        undo="refund",
        progress="0.5",
        started_at=NOW,
        finished_at=NOW + SECOND,
    )
    assert one(store, recording(claimed, step)) is Verdict.APPLIED
    assert store.journal(["run"]) == {"run": [step]}


def test_a_record_is_written_once(store: Store) -> None:
    claimed = executing(store)
    one(store, recording(claimed, new_step(result="1")))
    assert one(store, recording(claimed, new_step(result="2"))) is Verdict.APPLIED
    assert journal(store)["charge"].result == "1"


def test_a_record_beside_writes_of_user_code_fails_where_there_is_one(store: Store) -> None:
    """The transaction of a transactional step: it must not commit beside a record that another one made."""
    claimed = executing(store)
    one(store, recording(claimed, new_step(result="1")))
    again = recording(claimed, new_step(result="2"), once=True)
    with pytest.raises(Exception, match=r"(?i)null"), store.transaction("step 'charge'") as tx:
        store.apply_within(tx, again)
    assert journal(store)["charge"].result == "1"


@pytest.mark.parametrize("seen", [StepState.EXECUTING, StepState.RETRYING, StepState.WAITING])
def test_a_record_beside_writes_of_user_code_replaces_what_was_only_seen(
    store: Store, seen: StepState
) -> None:
    claimed = executing(store)
    one(store, recording(claimed, new_step(state=seen, result=None, wake_at=NOW)))
    with store.transaction("step 'charge'") as tx:
        record = recording(claimed, new_step(result="2"), once=True)
        assert store.apply_within(tx, record) is Verdict.APPLIED
    found = journal(store)["charge"]
    assert (found.state, found.result, found.wake_at) == ("completed", "2", None)


def test_a_failure_that_is_tried_again_gives_way_to_the_next_try(store: Store) -> None:
    """A compensation of a canceled run: its failure is final for the workflow, and is tried again."""
    claimed = executing(store)
    one(store, recording(claimed, new_step(state="failed", result=None, error='{"type":"E"}')))
    later = new_step(state="retrying", result=None, wake_at=NOW + SECOND)
    again = Record(worker=claimed.worker, run_id="run", steps=[later], reopen=True)
    assert one(store, again) is Verdict.APPLIED
    assert (journal(store)["charge"].state, journal(store)["charge"].wake_at) == ("retrying", NOW + SECOND)


@pytest.mark.parametrize("seen", [StepState.EXECUTING, StepState.RETRYING, StepState.WAITING])
def test_what_was_only_seen_gives_way_to_the_record(store: Store, seen: StepState) -> None:
    claimed = executing(store)
    one(store, recording(claimed, new_step(state=seen, result=None, wake_at=NOW)))
    one(store, recording(claimed, new_step(state="failed", result=None, error='{"type":"E"}')))
    assert (journal(store)["charge"].state, journal(store)["charge"].wake_at) == ("failed", None)


@pytest.mark.parametrize("quick", [True, False], ids=["quick", "with other operations"])
@pytest.mark.parametrize("seen", [StepState.EXECUTING, StepState.RETRYING, StepState.WAITING])
def test_an_entry_has_the_place_of_its_final_record(store: Store, seen: StepState, quick: bool) -> None:
    claimed = executing(store)
    beside = [] if quick else [start("other"), start("another")]
    one(store, recording(claimed, new_step(seq=1, state=seen, result=None, wake_at=NOW)))
    one(store, recording(claimed, new_step(key="beside", seq=2)))
    store.apply([recording(claimed, new_step(seq=3)), *beside])
    one(store, recording(claimed, new_step(seq=4)))  # it is written once
    assert {key: step.seq for key, step in journal(store).items()} == {"beside": 2, "charge": 3}


def test_spawned_steps_and_children_have_a_place_in_the_journal(store: Store) -> None:
    claimed = executing(store)
    spawned = new_spawned("run", "piece", "pieces", seq=7)
    child = new_run("child", parent="run", parent_key="flow", parent_seq=8)
    children = Start(runs=[child], executions=[new_main("child")])
    one(store, recording(claimed, executions=[spawned], children=children))
    assert {key: step.seq for key, step in journal(store).items()} == {"piece": 7, "flow": 8}
    [piece] = claim(store, jobs=["piece"])
    one(store, settling(piece, Outcome.REATTEMPTED_BY_EXCEPTION, error='{"type":"E"}'))
    assert (journal(store)["piece"].attempt, journal(store)["piece"].seq) == (2, 7)


@pytest.mark.parametrize("apart", [True, False], ids=["in two batches", "in one batch"])
def test_a_late_sighting_does_not_overwrite_the_record(store: Store, apart: bool) -> None:
    """A step is written as executing without waiting for it, and may be overtaken by its end."""
    claimed = executing(store)
    operations = [
        recording(claimed, new_step(result="1")),
        recording(claimed, new_step(state=StepState.EXECUTING, result=None)),
    ]
    for batch in [[operation] for operation in operations] if apart else [operations]:
        store.apply(batch)
    assert (journal(store)["charge"].state, journal(store)["charge"].result) == ("completed", "1")


def test_the_records_of_many_runs_share_a_commit(store: Store) -> None:
    enlist(store, "w1", "w2")
    one(store, start("a", "b", "c"))
    ours = claim(store, "w1", limit=2)
    theirs = claim(store, "w2")
    records = [recording(claimed, new_step(claimed.run_id)) for claimed in [*ours, *theirs]]
    assert store.apply(records).answers == [Verdict.APPLIED] * 3
    assert all(len(steps) == 1 for steps in store.journal(["a", "b", "c"]).values())


def test_a_record_of_a_worker_that_was_reaped_is_stale_and_changes_nothing(store: Store) -> None:
    claimed = executing(store)
    store.reap("w1", max_recoveries=5, now=NOW)
    before = everything(store)
    assert one(store, recording(claimed, new_step())) is Verdict.STALE
    assert one(store, spawning(claimed, "piece")) is Verdict.STALE
    assert everything(store) == before


def test_a_stale_record_does_not_keep_its_neighbours_from_theirs(store: Store) -> None:
    enlist(store, "w1", "w2")
    one(store, start("a", "b"))
    [ours], [theirs] = claim(store, "w1"), claim(store, "w2")
    store.reap("w1", max_recoveries=5, now=NOW)
    answers = store.apply(
        [recording(ours, new_step(ours.run_id)), recording(theirs, new_step(theirs.run_id))]
    )
    assert answers.answers == [Verdict.STALE, Verdict.APPLIED]


def test_a_burial_waits_for_a_record_that_is_under_way(store: Store, rival: Store) -> None:
    claimed = executing(store)
    with held_open(store, recording(claimed, new_step())):
        attempt = Attempt(lambda: rival.reap("w1", max_recoveries=5, now=NOW))
        is_seen_waiting(attempt, store)
    [again] = attempt.result() or []
    assert again.attempt == 2
    assert journal(store)["charge"].result == "1"


def test_a_record_beside_a_burial_that_is_under_way_is_stale(store: Store, rival: Store) -> None:
    claimed = executing(store)
    with store._beats.transaction() as tx:
        tx.query(tx.sql.lock_worker, id="w1")
        tx.run(tx.sql.delete_worker, id="w1")
        attempt = Attempt(lambda: one(rival, recording(claimed, new_step())))
        is_seen_waiting(attempt, store)
    assert attempt.result() is Verdict.STALE
    assert journal(store) == {}


@pytest.mark.parametrize("module_url", ["postgres"], indirect=True)
def test_a_heartbeat_does_not_wait_for_a_record(store: Store, rival: Store) -> None:
    """Elsewhere it waits for the commit, which is short."""
    claimed = executing(store)
    with held_open(store, recording(claimed, new_step())):
        assert rival.renew("w1", lease=SECOND, now=NOW)


def test_spawned_steps_become_ready_with_their_record(store: Store) -> None:
    claimed = executing(store)
    one(store, spawning(claimed, "piece", "piece#2"))
    found = journal(store)
    assert {key: (step.kind, step.state) for key, step in found.items()} == {
        "piece": ("spawn", "waiting"),
        "piece#2": ("spawn", "waiting"),
    }
    assert {row.node for row in claim(store, limit=5)} == {"piece", "piece#2"}


def test_the_journal_shows_the_latest_attempt_of_a_spawned_step(store: Store) -> None:
    main = executing(store)
    one(store, spawning(main, "piece"))
    [piece] = claim(store)
    one(store, settling(piece, Outcome.REATTEMPTED_BY_EXCEPTION, error='{"type":"E"}'))
    assert (journal(store)["piece"].state, journal(store)["piece"].attempt) == ("waiting", 2)
    [again] = claim(store, now=NOW + SECOND)
    one(store, settling(again, result='"done"'))
    assert (journal(store)["piece"].state, journal(store)["piece"].result) == ("completed", '"done"')


def test_spawning_in_a_paused_run_is_held(store: Store) -> None:
    claimed = executing(store)
    store.change(Pause("run", reason=None), now=NOW)
    one(store, spawning(claimed, "piece"))
    assert state_of(store, node="piece") == "held"
    assert claim(store) == []


def test_nothing_new_begins_in_a_canceled_run(store: Store) -> None:
    claimed = executing(store)
    store.change(Cancel("run", reason=None), now=NOW)
    before = everything(store)
    assert one(store, spawning(claimed, "piece")) is Verdict.CANCELED
    assert one(store, begetting(claimed, "child")) is Verdict.CANCELED
    assert everything(store) == before


def test_what_is_spawned_beside_a_cancel_is_canceled_or_refused(store: Store, rival: Store) -> None:
    claimed = executing(store)
    with held_open(store, spawning(claimed, "piece")):
        attempt = Attempt(lambda: rival.change(Cancel("run", reason=None), now=NOW))
        is_seen_waiting(attempt, store)
    attempt.result()
    assert state_of(store, node="piece") == "canceled"


def test_a_child_starts_with_its_parents_record(store: Store) -> None:
    claimed = executing(store)
    one(store, begetting(claimed, "child"))
    assert (store.run("child").parent, store.run("child").parent_key) == ("run", "flow/child")
    child = journal(store)["flow/child"]
    assert (child.kind, child.name, child.state) == ("child", "child", "waiting")


def test_a_child_that_cannot_start_leaves_nothing_of_its_parents_record(store: Store) -> None:
    claimed = executing(store)
    one(store, start("child"))
    before = everything(store)
    record = begetting(claimed, "child")
    record.steps = [new_step()]
    with pytest.raises(Exception) as caught:
        one(store, record)
    assert store.driver.trouble(caught.value) is Trouble.UNIQUE
    assert everything(store) == before


def test_a_record_that_went_through_unseen_is_found(store: Store) -> None:
    claimed = executing(store)
    spawned, child = spawning(claimed, "piece"), begetting(claimed, "child")
    assert store.already_applied(spawned) is None
    assert store.already_applied(child) is None
    store.apply([spawned, child])
    assert store.already_applied(spawned) is Verdict.APPLIED
    assert store.already_applied(child) is Verdict.APPLIED
    assert store.explain_conflict(child) is Verdict.APPLIED


def test_receiving_consumes_the_message_with_the_record(store: Store) -> None:
    claimed = executing(store)
    one(store, message())
    [unread] = store.unread("run", "paid", limit=1)
    record = recording(claimed, new_step(key="receive/paid", kind="receive"), consume=[unread.seq])
    assert [one(store, record), one(store, record)] == [Verdict.APPLIED] * 2
    assert store.unread("run", "paid", limit=1) == []


def test_two_workers_that_record_crosswise_do_not_deadlock(store: Store, rival: Store) -> None:
    """Each batch names the runs in another order; the store locks them in one."""
    enlist(store, "w1", "w2")
    runs = [f"r{number}" for number in range(10)]
    one(store, start(*runs))

    def record_all(through: Store, worker: str, order: int) -> set[Verdict]:
        answers: set[Verdict] = set()
        for number in range(15):
            rows = [new_spawned(run, f"{worker}-{number}", "t") for run in runs[::order]]
            batch = [Record(worker=worker, run_id=row.run_id, executions=[row]) for row in rows]
            answers |= set(through.apply(batch).answers)
        return answers

    first = Attempt(lambda: record_all(store, "w1", 1))
    second = Attempt(lambda: record_all(rival, "w2", -1))
    assert first.result() | second.result() == {Verdict.APPLIED}
    assert sum(len(store.executions(run)) for run in runs) == 10 * (1 + 15 + 15)
