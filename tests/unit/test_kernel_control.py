"""Control from outside: which verb applies when, and what a resume forgets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.errors import InvalidState
from detent.kernel.control import check, set_aside, taken_up, undone
from detent.kernel.rows import ExecutionState, RunState, Step, StepState

STORED = [state for state in RunState if state is not RunState.PERFORMING]
ALLOWED = {
    "pause": {RunState.READY},
    "resume": {RunState.PAUSED, RunState.FAILED},
    "cancel": {RunState.READY, RunState.PAUSED},
}


def step(key: str, seq: int, state: str, kind: str = "step") -> Step:
    return Step(run_id="run", key=key, seq=seq, kind=kind, name=key, state=state, written_by=1)


@pytest.mark.parametrize("state", STORED)
@pytest.mark.parametrize("verb", ALLOWED)
def test_a_verb_applies_where_it_makes_sense_and_nowhere_else(verb: str, state: RunState) -> None:
    if state in ALLOWED[verb]:
        check(verb, "run", state)
        return
    with pytest.raises(InvalidState) as caught:
        check(verb, "run", state)
    assert (caught.value.verb, caught.value.run_id, caught.value.state) == (verb, "run", state)
    assert f"cannot {verb} run run: it is {state}" in str(caught.value)


def test_a_refusal_says_what_to_do_instead() -> None:
    with pytest.raises(InvalidState, match="fork"):
        check("resume", "run", RunState.CANCELED)
    with pytest.raises(InvalidState, match="continues by itself"):
        check("resume", "run", "ready")


def test_final_states_are_final() -> None:
    assert {state for state in RunState if state.final} == {
        RunState.FINISHED,
        RunState.FAILED,
        RunState.CANCELED,
    }


def test_people_see_one_kind_of_waiting() -> None:
    seen = {state: state.public for state in ExecutionState}
    waiting = [state for state, public in seen.items() if public == "scheduled"]
    assert sorted(waiting) == ["held", "parked", "ready", "timer"]
    assert seen[ExecutionState.EXECUTING] == "executing"


def test_a_resume_forgets_the_failure_that_the_run_ended_with() -> None:
    steps = [step("a", 1, "completed"), step("b", 2, "failed")]
    assert [entry.key for entry in set_aside(steps)] == ["b"]


def test_a_failure_that_the_workflow_went_on_from_stays() -> None:
    steps = [
        step("a", 1, "failed"),
        step("b", 2, "completed"),
        step("c", 3, "failed"),
        step("d", 4, "retrying"),
    ]
    assert [entry.key for entry in set_aside(steps)] == ["c", "d"]


def test_a_caught_failure_with_the_text_of_the_last_one_stays() -> None:
    error = '{"type": "ValueError", "message": "no"}'
    caught, done, last = step("a", 1, "failed"), step("b", 2, "completed"), step("a#2", 3, "failed")
    caught.error = last.error = error
    assert [entry.key for entry in set_aside([caught, done, last], error)] == ["a#2"]
    # Of steps that ran at the same time, one may have ended after the failure.
    assert [entry.key for entry in set_aside([caught, done], error)] == ["a"]


@given(
    st.lists(st.sampled_from(list(StepState)), max_size=12).map(
        lambda states: [step(f"s{seq}", seq, state) for seq, state in enumerate(states, start=1)]
    )
)
def test_a_resume_never_forgets_a_success_nor_anything_before_one(steps: list[Step]) -> None:
    last = max((entry.seq for entry in steps if entry.state == "completed"), default=0)
    forgotten = set_aside(steps)
    assert all(entry.state in ("failed", "retrying") and entry.seq > last for entry in forgotten)


@pytest.mark.parametrize(
    ("state", "outcome", "again"),
    [
        (RunState.FAILED, "failed", True),
        (RunState.FAILED, "recovered", True),
        (RunState.PAUSED, "paused_by_exception", True),
        (RunState.PAUSED, "recovered", True),
        (RunState.PAUSED, "failed", False),
        (RunState.PAUSED, "reattempted_by_exception", False),
    ],
)
def test_a_resume_tries_again_what_stopped_the_run(state: RunState, outcome: str, again: bool) -> None:
    assert taken_up(state, outcome) is again


def test_a_run_that_was_undone_is_known_by_its_journal() -> None:
    assert undone([step("a", 1, "completed"), step("undo", 2, "waiting", kind="undo")])
    assert not undone([step("a", 1, "completed")])
