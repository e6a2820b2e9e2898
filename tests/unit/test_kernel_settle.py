"""Settling: what an outcome means for the execution, for its run, and for who waits."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.kernel.rows import Claimed, ExecutionState, RunState
from detent.kernel.settle import TRANSITIONS, Ending, Outcome, Then, recover, settle, under, waiting_state

NOW = 1_000_000
ERROR = '{"type":"ValueError","message":"no"}'


def claimed(**given: Any) -> Claimed:
    fields: dict[str, Any] = {
        "run_id": "run",
        "node": "main",
        "attempt": 3,
        "kind": "main",
        "job": "flow",
        "queue": "slow",
        "precedence": -2,
        "worker": "w1",
        "token": "t1",
        "deliveries": 1,
        "recoveries": 2,
        "failures": 1,
        "input": None,
        "topic": None,
        "type": "flow",
        "run_input": "{}",
        "run_state": RunState.READY,
        "parent": None,
        "parent_key": None,
        "deadline": None,
        "forked_from": None,
    }
    return Claimed(**(fields | given))


def spawned(**given: Any) -> Claimed:
    return claimed(**({"node": "piece", "kind": "step", "topic": "pieces", "input": "[1]"} | given))


def ending(outcome: Outcome, **given: Any) -> Ending:
    return Ending(outcome=outcome, now=NOW, **given)


# -- Outcomes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "state", "run"),
    [
        (Outcome.SUCCESS, "completed", RunState.FINISHED),
        (Outcome.SKIPPED_BY_EXCEPTION, "skipped", RunState.FINISHED),
        (Outcome.FAILED, "failed", RunState.FAILED),
        (Outcome.PAUSED_BY_EXCEPTION, "failed", RunState.PAUSED),
        (Outcome.CANCELED_BY_EXCEPTION, "failed", RunState.CANCELED),
        (Outcome.CANCELED_BY_OPERATOR, "canceled", RunState.CANCELED),
    ],
)
def test_the_outcome_of_main_is_that_of_the_run(outcome: Outcome, state: str, run: RunState) -> None:
    plan = settle(claimed(), ending(outcome, error=ERROR))
    assert (plan.state, plan.outcome, plan.again) == (state, outcome, None)
    assert plan.run is not None
    assert plan.run.state == run


def test_a_result_is_the_runs_result() -> None:
    plan = settle(claimed(), ending(Outcome.SUCCESS, result='"ok"'))
    assert plan.run is not None
    assert (plan.result, plan.run.result, plan.run.error) == ('"ok"', '"ok"', None)


def test_an_error_is_the_runs_error() -> None:
    plan = settle(claimed(), ending(Outcome.FAILED, error=ERROR))
    assert plan.run is not None
    assert (plan.error, plan.run.error) == (ERROR, ERROR)


def test_every_outcome_says_what_becomes_of_the_run() -> None:
    assert set(TRANSITIONS) == set(Outcome)


@pytest.mark.parametrize("outcome", [Outcome.SUCCESS, Outcome.FAILED, Outcome.SKIPPED_BY_EXCEPTION])
def test_a_spawned_step_that_ends_tells_who_waits_and_leaves_the_run_alone(outcome: Outcome) -> None:
    plan = settle(spawned(), ending(outcome))
    assert (plan.topic, plan.run, plan.again) == ("pieces", None, None)


@pytest.mark.parametrize(
    ("outcome", "run"),
    [(Outcome.PAUSED_BY_EXCEPTION, RunState.PAUSED), (Outcome.CANCELED_BY_EXCEPTION, RunState.CANCELED)],
)
def test_a_spawned_step_that_stops_its_run_wakes_nobody(outcome: Outcome, run: RunState) -> None:
    plan = settle(spawned(), ending(outcome, error=ERROR))
    assert plan.run is not None
    assert (plan.run.state, plan.run.error, plan.topic) == (run, ERROR, None)


def test_a_node_does_not_end_its_run_by_itself() -> None:
    plan = settle(claimed(node="a", kind="node"), ending(Outcome.SUCCESS))
    assert (plan.run, plan.goes_on) == (None, True)


# -- Again -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", [Outcome.REATTEMPTED, Outcome.REATTEMPTED_BY_EXCEPTION])
def test_a_reattempt_is_the_same_execution_one_attempt_later(outcome: Outcome) -> None:
    again = settle(spawned(), ending(outcome, error=ERROR, wait=500)).again
    assert again is not None
    assert (again.run_id, again.node, again.attempt, again.kind, again.job) == (
        "run",
        "piece",
        4,
        "step",
        "flow",
    )
    assert (again.queue, again.precedence, again.topic, again.input) == ("slow", -2, "pieces", "[1]")
    assert (again.state, again.scheduled_for) == (ExecutionState.TIMER, NOW + 500)
    assert (again.worker, again.token) == (None, None)


def test_only_an_exception_uses_up_the_retry_budget() -> None:
    failed = settle(claimed(), ending(Outcome.REATTEMPTED_BY_EXCEPTION)).again
    asked = settle(claimed(), ending(Outcome.REATTEMPTED)).again
    assert failed is not None
    assert asked is not None
    assert (failed.failures, asked.failures) == (2, 1)


def test_an_attempt_that_came_to_an_end_forgets_the_crashes_before_it() -> None:
    again = settle(claimed(recoveries=4), ending(Outcome.REATTEMPTED_BY_EXCEPTION)).again
    assert again is not None
    assert again.recoveries == 0


def test_who_waits_for_a_step_that_is_tried_again_waits_on() -> None:
    assert settle(spawned(), ending(Outcome.REATTEMPTED_BY_EXCEPTION)).topic is None


def test_a_reattempt_is_a_line_of_the_history_that_can_be_read() -> None:
    odd = spawned(node='a "quoted"\n node')
    [line] = settle(odd, ending(Outcome.REATTEMPTED_BY_EXCEPTION, error=ERROR)).history
    assert msgspec.json.decode(line.detail) == {
        "node": 'a "quoted"\n node',
        "attempt": 3,
        "error": {"type": "ValueError", "message": "no"},
    }


@given(due=st.none() | st.integers(-(2**40), 2**40), now=st.integers(0, 2**40))
def test_what_is_not_due_is_never_ready(due: int | None, now: int) -> None:
    state = waiting_state(due, now)
    assert state == (
        ExecutionState.PARKED if due is None else ExecutionState.READY if due <= now else ExecutionState.TIMER
    )


# -- Under what became of the run meanwhile --------------------------------------------------------


@pytest.mark.parametrize("outcome", list(Outcome))
def test_nothing_follows_in_a_canceled_run(outcome: Outcome) -> None:
    plan = under(RunState.CANCELED, settle(claimed(), ending(outcome, result="1", error=ERROR)))
    assert (plan.state, plan.outcome) == ("canceled", Outcome.CANCELED_BY_OPERATOR)
    assert (plan.again, plan.run, plan.topic) == (None, None, None)
    assert (plan.result, plan.error) == ("1", ERROR)


def test_what_follows_in_a_paused_run_is_held() -> None:
    plan = under(RunState.PAUSED, settle(claimed(), ending(Outcome.REATTEMPTED)))
    assert plan.again is not None
    assert plan.again.state == ExecutionState.HELD


@pytest.mark.parametrize("state", [RunState.FINISHED, RunState.FAILED])
def test_a_final_state_stays(state: RunState) -> None:
    """A spawned step may outlive its run."""
    plan = under(state, settle(spawned(), ending(Outcome.PAUSED_BY_EXCEPTION)))
    assert plan.run is None


@pytest.mark.parametrize("state", [RunState.PAUSED, RunState.FINISHED, RunState.CANCELED])
@pytest.mark.parametrize("outcome", list(Outcome))
def test_looking_at_a_plan_under_a_state_leaves_the_plan_as_it_was(outcome: Outcome, state: RunState) -> None:
    plan = settle(spawned(), ending(outcome))
    before = msgspec.json.encode(plan)
    under(state, plan)
    assert msgspec.json.encode(plan) == before


# -- Recovery --------------------------------------------------------------------------------------


def recovered(execution: Claimed, **given: Any) -> Any:
    fields: dict[str, Any] = {
        "progressed": False,
        "counted": True,
        "max_recoveries": 5,
        "error": ERROR,
        "now": NOW,
    }
    return recover(execution, **(fields | given))


def test_an_orphan_runs_again_and_is_counted() -> None:
    plan = recovered(claimed(recoveries=0))
    assert (plan.state, plan.outcome, plan.run) == ("failed", Outcome.RECOVERED, None)
    assert (plan.again.recoveries, plan.again.failures, plan.again.state) == (1, 1, ExecutionState.READY)


def test_an_orphan_is_never_taken_for_fresh() -> None:
    """What continues another attempt has to read the journal."""
    assert recovered(claimed(deliveries=0)).again.deliveries >= 1


def test_what_died_too_often_pauses_its_run_with_the_reason() -> None:
    plan = recovered(claimed(recoveries=5))
    assert plan.again is None
    assert (plan.run.state, plan.run.error) == (RunState.PAUSED, ERROR)


def test_an_attempt_that_got_somewhere_begins_the_count_anew() -> None:
    assert recovered(claimed(recoveries=5), progressed=True).again.recoveries == 1


def test_who_leaves_in_good_order_is_not_counted() -> None:
    assert recovered(claimed(recoveries=2), counted=False).again.recoveries == 2


def test_an_orphan_of_a_paused_run_is_held_however_often_it_died() -> None:
    plan = recovered(claimed(recoveries=9, run_state=RunState.PAUSED))
    assert (plan.again.state, plan.run) == (ExecutionState.HELD, None)


def test_a_canceled_runs_main_goes_on_undoing_and_its_steps_do_not() -> None:
    assert recovered(claimed(recoveries=0, run_state=RunState.CANCELED)).again is not None
    plan = recovered(spawned(recoveries=0, run_state=RunState.CANCELED))
    assert (plan.state, plan.again, plan.run) == ("canceled", None, None)


@pytest.mark.parametrize("state", [RunState.CANCELED, RunState.FINISHED, RunState.FAILED])
def test_recovery_never_touches_a_final_state_and_ends(state: RunState) -> None:
    plan = recovered(claimed(recoveries=5, run_state=state))
    assert (plan.again, plan.run) == (None, None)


@given(limit=st.integers(0, 20))
def test_recovery_ends_after_as_many_deaths_as_are_allowed(limit: int) -> None:
    execution, deaths = claimed(recoveries=0), 0
    while (again := recovered(execution, max_recoveries=limit).again) is not None:
        deaths += 1
        assert deaths <= limit
        execution = claimed(recoveries=again.recoveries, attempt=again.attempt)
    assert deaths == limit


@given(
    outcome=st.sampled_from(list(Outcome)),
    kind=st.sampled_from(["main", "step"]),
    state=st.sampled_from([RunState.READY, RunState.PAUSED, RunState.CANCELED, RunState.FAILED]),
)
def test_an_execution_either_ends_its_run_or_is_tried_again_or_neither(
    outcome: Outcome, kind: str, state: RunState
) -> None:
    execution = spawned() if kind == "step" else claimed()
    plan = under(state, settle(execution, ending(outcome)))
    assert plan.state in ("completed", "failed", "canceled", "skipped")
    assert not (plan.run is not None and plan.again is not None)
    if TRANSITIONS[outcome][1] is Then.AGAIN and state != RunState.CANCELED:
        assert plan.again is not None
