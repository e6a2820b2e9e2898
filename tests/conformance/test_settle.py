"""Settling: an execution ends once, with all that follows, and never after its lease was lost."""

from functools import partial
from typing import Any

import pytest

from detent.errors import InvalidState
from detent.kernel.external_changes import Cancel, Pause, Resume
from detent.kernel.operations import Settled, Verdict
from detent.kernel.rows import RunState
from detent.kernel.settle import Outcome
from detent.stores.store import Store
from detent.stores.verbs import claims
from tests.conformance.builders import (
    NOW,
    SECOND,
    Attempt,
    begetting,
    claim,
    enlist,
    events,
    everything,
    executing,
    execution,
    for_child,
    held_open,
    is_seen_waiting,
    message,
    new_step,
    one,
    parking,
    recording,
    spawning,
    start,
    state_of,
)
from tests.conformance.builders import settling as builders_settling

settling: Any = builders_settling


@pytest.fixture(autouse=True, params=[True, False], ids=["waited", "straight"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that never waited may end by a quicker way, to the same end."""
    monkeypatch.setitem(globals(), "settling", partial(builders_settling, waited=request.param))


def verdicts(answers: list[Any]) -> list[Verdict]:
    return [answer.verdict for answer in answers]


def test_a_success_finishes_the_run_with_its_result(store: Store) -> None:
    answer: Settled = one(store, settling(executing(store), result='"ok"'))
    run, main = store.run("run"), execution(store)
    assert (answer.verdict, answer.ended and answer.ended.state) == (Verdict.APPLIED, RunState.FINISHED)
    assert (run.state, run.result, run.finished_at) == ("finished", '"ok"', NOW + SECOND)
    assert (main.state, main.outcome, main.result, main.finished_at) == (
        "completed",
        "success",
        '"ok"',
        NOW + SECOND,
    )


def test_a_failure_fails_the_run_with_its_error(store: Store) -> None:
    one(store, settling(executing(store), Outcome.FAILED, error='{"type":"E","message":"m"}'))
    assert (store.run("run").state, store.run("run").error) == ("failed", '{"type":"E","message":"m"}')
    assert (state_of(store), execution(store).error) == ("failed", '{"type":"E","message":"m"}')


def test_a_reattempt_is_a_new_execution_after_its_wait(store: Store) -> None:
    claimed = executing(store)
    one(store, settling(claimed, Outcome.REATTEMPTED_BY_EXCEPTION, error='{"type":"E"}', wait=5 * SECOND))
    first, second = store.executions("run")
    assert (first.state, first.outcome) == ("failed", "reattempted_by_exception")
    assert (second.attempt, second.state, second.scheduled_for, second.failures) == (
        2,
        "timer",
        NOW + 6 * SECOND,
        1,
    )
    assert store.run("run").state == "ready"
    assert events(store) == ["reattempted_by_exception"]


def test_a_failure_that_pauses_holds_what_is_scheduled(store: Store) -> None:
    main = executing(store)
    one(store, spawning(main, "a", "b"))
    [piece] = claim(store)
    one(store, settling(piece, Outcome.PAUSED_BY_EXCEPTION, error='{"type":"E"}'))
    assert (store.run("run").state, store.run("run").finished_at) == ("paused", None)
    assert {state_of(store, node="a"), state_of(store, node="b")} == {"failed", "held"}
    assert "paused" in events(store)


def test_of_two_settles_of_one_execution_one_is_stale(store: Store) -> None:
    claimed = executing(store)
    assert one(store, settling(claimed, result="1")).verdict is Verdict.APPLIED
    before = everything(store)
    assert one(store, settling(claimed, Outcome.FAILED, error="{}")).verdict is Verdict.STALE
    assert everything(store) == before


def test_of_two_settles_in_one_batch_one_is_stale(store: Store) -> None:
    claimed = executing(store)
    answers = store.apply([settling(claimed, result="1"), settling(claimed, result="2")]).answers
    assert verdicts(answers) == [Verdict.APPLIED, Verdict.STALE]
    assert store.run("run").result == "1"


def test_of_two_settles_at_once_one_is_stale(store: Store, rival: Store) -> None:
    claimed = executing(store)
    with held_open(store, settling(claimed, result="1")):
        attempt = Attempt(lambda: one(rival, settling(claimed, result="2")))
        is_seen_waiting(attempt, store)
    assert attempt.result().verdict is Verdict.STALE
    assert store.run("run").result == "1"


def test_a_stale_token_cannot_ride_along_with_the_valid_one(store: Store) -> None:
    claimed = executing(store)
    forged = settling(claimed, result='"forged"')
    forged.token = "another"
    answers = store.apply([forged, settling(claimed, result='"ours"')]).answers
    assert verdicts(answers) == [Verdict.STALE, Verdict.APPLIED]
    assert store.run("run").result == '"ours"'


def test_a_settle_after_burial_is_stale_and_changes_nothing(store: Store) -> None:
    claimed = executing(store)
    store.reap("w1", max_recoveries=5, now=NOW)
    before = everything(store)
    assert one(store, settling(claimed)).verdict is Verdict.STALE
    assert everything(store) == before


def test_a_settle_after_the_work_was_given_away_is_stale(store: Store) -> None:
    late = executing(store)
    store.reap("w1", max_recoveries=5, now=NOW)
    enlist(store, "w1", "w2")  # the same name again does not help
    [ours] = claim(store, "w2")
    assert one(store, settling(late, result='"late"')).verdict is Verdict.STALE
    assert one(store, settling(ours, result='"ours"')).verdict is Verdict.APPLIED
    assert store.run("run").result == '"ours"'


def test_a_burial_waits_for_a_settle_that_is_under_way(store: Store, rival: Store) -> None:
    claimed = executing(store)
    with held_open(store, settling(claimed)):
        attempt = Attempt(lambda: rival.reap("w1", max_recoveries=5, now=NOW))
        is_seen_waiting(attempt, store)
    assert attempt.result() == []
    assert store.run("run").state == "finished"


def test_a_settle_beside_a_burial_that_is_under_way_is_stale(store: Store, rival: Store) -> None:
    claimed = executing(store)
    with store._beats.transaction() as tx:
        claims.reap(tx, "w1", counted=True, max_recoveries=5, now=NOW)
        attempt = Attempt(lambda: one(rival, settling(claimed)))
        is_seen_waiting(attempt, store)
    assert attempt.result().verdict is Verdict.STALE
    assert [row.state for row in store.executions("run")] == ["failed", "ready"]


def test_a_stale_settle_does_not_keep_its_neighbours_from_theirs(store: Store) -> None:
    enlist(store, "w1", "w2")
    one(store, start("a", "b"))
    [ours], [theirs] = claim(store, "w1"), claim(store, "w2")
    store.reap("w1", max_recoveries=5, now=NOW)
    answers = store.apply([settling(ours), settling(theirs)]).answers
    assert verdicts(answers) == [Verdict.STALE, Verdict.APPLIED]
    assert store.run(theirs.run_id).state == "finished"


def test_a_broken_neighbour_fails_the_batch_and_the_replay_answers_each(store: Store) -> None:
    claimed = executing(store)
    one(store, start("taken"))
    batch = [settling(claimed), start("taken")]
    before = everything(store)
    with pytest.raises(Exception, match=r"(?i)unique|duplicate"):
        store.apply(batch)
    assert everything(store) == before
    assert one(store, batch[0]).verdict is Verdict.APPLIED


def test_a_settle_carries_its_last_records(store: Store) -> None:
    operation = settling(executing(store))
    operation.steps = [new_step(result="5")]
    one(store, operation)
    assert [step.result for step in store.journal(["run"])["run"]] == ["5"]


def test_what_executes_when_its_run_is_canceled_ends_as_canceled(store: Store) -> None:
    claimed = executing(store)
    store.change(Cancel("run", reason=None), now=NOW)
    answer = one(store, settling(claimed, result='"too late"'))
    assert (answer.verdict, answer.run_state) == (Verdict.APPLIED, RunState.CANCELED)
    assert (state_of(store), execution(store).outcome) == ("canceled", "canceled_by_operator")
    assert (store.run("run").state, store.run("run").result) == ("canceled", None)


def test_a_failing_attempt_of_a_canceled_run_is_not_tried_again(store: Store) -> None:
    claimed = executing(store)
    store.change(Cancel("run", reason=None), now=NOW)
    one(store, settling(claimed, Outcome.REATTEMPTED_BY_EXCEPTION, error="{}"))
    assert [row.state for row in store.executions("run")] == ["canceled"]


@pytest.mark.parametrize("cancel_first", [True, False])
def test_a_settle_beside_a_cancel_falls_on_one_side_of_it(
    store: Store, rival: Store, cancel_first: bool
) -> None:
    claimed = executing(store)
    if cancel_first:
        with store._writer.transaction() as tx:
            tx.query(tx.sql.lock_run, id="run")
            tx.run(tx.sql.cancel_run, id="run", now=NOW)
            attempt = Attempt(lambda: one(rival, settling(claimed)))
            is_seen_waiting(attempt, store)
        assert attempt.result().run_state == RunState.CANCELED
        assert (store.run("run").state, state_of(store)) == ("canceled", "canceled")
    else:
        with held_open(store, settling(claimed)):
            refused = Attempt(lambda: rival.change(Cancel("run", reason=None), now=NOW))
            is_seen_waiting(refused, store)
        with pytest.raises(InvalidState):
            refused.result()
        assert (store.run("run").state, state_of(store)) == ("finished", "completed")


def test_a_reattempt_in_a_paused_run_is_held(store: Store) -> None:
    claimed = executing(store)
    store.change(Pause("run", reason=None), now=NOW)
    one(store, settling(claimed, Outcome.REATTEMPTED_BY_EXCEPTION, error="{}"))
    assert state_of(store) == "held"
    store.change(Resume("run"), now=NOW + 2 * SECOND)
    assert (state_of(store), execution(store).attempt) == ("ready", 2)


def test_a_plan_is_not_spoilt_by_a_transaction_that_had_to_be_repeated(store: Store) -> None:
    """The first try saw a paused run, and rolled back; the second sees that it was resumed."""
    claimed = executing(store)
    operation = settling(claimed, Outcome.REATTEMPTED_BY_EXCEPTION, error="{}")
    store.change(Pause("run", reason=None), now=NOW)
    with pytest.raises(ZeroDivisionError), held_open(store, operation):
        raise ZeroDivisionError
    store.change(Resume("run"), now=NOW)
    one(store, operation)
    assert state_of(store) == "ready"


def test_a_finished_child_is_in_its_parents_journal(store: Store) -> None:
    main = executing(store)
    one(store, begetting(main, "child"))
    [child] = claim(store)
    one(store, parking(main, for_child("child")))
    one(store, settling(child, result='"from the child"'))
    [entry] = store.journal(["run"])["run"]
    assert (entry.state, entry.result) == ("completed", '"from the child"')
    assert state_of(store) == "ready"


def test_a_step_that_cancels_its_run_cancels_the_rest_of_it(store: Store) -> None:
    main = executing(store)
    one(store, spawning(main, "a", "b"))
    one(store, begetting(main, "child"))
    [piece] = claim(store, jobs=["piece"])
    one(store, parking(main, for_child("child")))
    canceled = store.apply([settling(piece, Outcome.CANCELED_BY_EXCEPTION, error='{"type":"E"}')])
    assert set(canceled.ended) == {"run", "child"}
    assert (store.run("run").state, store.run("child").state) == ("canceled", "canceled")
    active = [row for run in ("run", "child") for row in store.executions(run) if row.finished_at is None]
    assert active == []


def test_a_canceled_run_with_something_to_undo_is_woken_for_it(store: Store) -> None:
    main = executing(store)
    one(store, recording(main, new_step(undo="refund")))
    one(store, spawning(main, "a"))
    [piece] = claim(store)
    one(store, parking(main, for_child("elsewhere"), wake_at=NOW + 60 * SECOND))
    one(store, settling(piece, Outcome.CANCELED_BY_EXCEPTION, error="{}"))
    assert (store.run("run").state, state_of(store)) == ("canceled", "ready")


def test_a_settle_that_went_through_unseen_is_found(store: Store) -> None:
    operation = settling(executing(store), result="1")
    assert store.already_applied(operation) is None
    one(store, operation)
    found = store.already_applied(operation)
    assert (found.verdict, found.ended.state) == (Verdict.APPLIED, RunState.FINISHED)


def test_a_settle_of_a_worker_that_was_reaped_did_not_go_through(store: Store) -> None:
    operation = settling(executing(store), result="1")
    store.reap("w1", max_recoveries=5, now=NOW)
    assert store.already_applied(operation) is None
    assert one(store, operation).verdict is Verdict.STALE


def test_a_run_that_ends_takes_no_more_messages(store: Store) -> None:
    claimed = executing(store)
    settled, sent = store.apply([settling(claimed), message()]).answers
    assert settled.verdict is Verdict.APPLIED
    assert isinstance(sent, InvalidState)


def test_settles_of_many_runs_share_a_commit(store: Store) -> None:
    enlist(store, "w1")
    one(store, start(*[f"r{number}" for number in range(300)]))
    claimed = claim(store, limit=300)
    answers = store.apply([settling(row, result=f'"{row.run_id}"') for row in claimed]).answers
    assert set(verdicts(answers)) == {Verdict.APPLIED}
    assert all(run.result == f'"{run.id}"' for run in store.runs(limit=300))


def test_records_and_ends_of_many_runs_share_a_commit(store: Store) -> None:
    enlist(store, "w1")
    one(store, start("r1", "r2", "r3"))
    first, second, third = claim(store, limit=3)
    ends = [settling(first, result="1"), settling(second, result="2")]
    store.apply([recording(third, new_step(third.run_id, "a")), *ends])
    assert [store.run(row.run_id).state for row in (first, second, third)] == [
        "finished",
        "finished",
        "ready",
    ]
    assert [step.key for step in store.journal([third.run_id])[third.run_id]] == ["a"]


def test_one_lost_lease_among_many_ends_is_answered_as_stale(store: Store) -> None:
    enlist(store, "w1")
    one(store, start("r1", "r2", "r3"))
    rows = claim(store, limit=3)
    ends = [settling(row, result="1") for row in rows]
    ends[1].token = "another"
    answers = store.apply(ends).answers
    assert verdicts(answers) == [Verdict.APPLIED, Verdict.STALE, Verdict.APPLIED]
    assert store.run(rows[1].run_id).state == "ready"
