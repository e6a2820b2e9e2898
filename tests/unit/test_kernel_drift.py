"""Drift: what of all that a replay has seen is a difference."""

from __future__ import annotations

from typing import Any

import pytest

from detent.kernel.drift import Difference, End, Kind, Recording, Seen, judge
from detent.kernel.journal import line_of
from detent.kernel.rows import RunRow, Step

NOW = 1_000


def entry(key: str, seq: int, kind: str = "step", name: str = "work", state: str = "completed") -> Step:
    return Step(run_id="r", key=key, seq=seq, kind=kind, name=name, state=state, written_by=1, started_at=seq)


def recording(*steps: Step, state: str = "ready", history: Any = (), **facts: Any) -> Recording:
    fields: dict[str, Any] = dict.fromkeys(RunRow.__struct_fields__)
    row = RunRow(**(fields | {"id": "r", "state": state, "created_at": 0} | facts))
    return Recording.of(row, steps, history, NOW)


def kinds(found: tuple[Difference, ...]) -> list[tuple[Kind, str | None]]:
    return [(each.kind, each.step) for each in found]


A, B, C = entry("a", 1), entry("b", 2), entry("c", 3)


def test_a_run_in_flight_may_stop_at_an_edge_when_all_was_asked_for() -> None:
    assert judge(recording(A, B), Seen(end=End.EDGE, edge=["c"], asked={"a", "b", "c"})) == ()


def test_what_comes_before_something_recorded_was_added_and_what_was_passed_is_gone() -> None:
    seen = Seen(end=End.EDGE, edge=["new"], asked={"b", "new"})
    assert kinds(judge(recording(A, B, C), seen)) == [(Kind.UNASKED, "a"), (Kind.ADDED, "new")]


@pytest.mark.parametrize("end", [End.RETURNED, End.RAISED])
def test_a_function_that_comes_out_must_have_asked_for_everything(end: End) -> None:
    assert kinds(judge(recording(A, B), Seen(end=end, asked={"a"}))) == [(Kind.UNASKED, "b")]


def test_values_marks_and_places_need_not_be_asked_for() -> None:
    steps = [entry(kind, 1, kind=kind) for kind in ("value", "patched", "spawned", "progress", "undo")]
    assert judge(recording(*steps), Seen(end=End.RETURNED)) == ()


def test_a_branch_that_may_have_got_further_is_excused_with_all_its_branches() -> None:
    steps = [entry("one:a", 1), entry("one:two#2:b", 2), entry("one#2:c", 3)]
    seen = Seen(end=End.RETURNED, excused={"one:"})
    assert kinds(judge(recording(*steps), seen)) == [(Kind.UNASKED, "one#2:c")]


def test_what_a_resume_has_set_aside_says_nothing_about_what_follows() -> None:
    history = [(1, "set_aside", '{"step":"b","error":null}'), (2, "resumed", '{"from":"failed"}')]
    assert judge(recording(A, C, history=history), Seen(end=End.EDGE, edge=["b"], asked={"a", "b"})) == ()


def test_the_end_of_a_run_that_outlived_its_deadline_is_not_compared() -> None:
    over = recording(A, state="finished", finished_at=10, deadline=9)
    assert judge(over, Seen(end=End.RETURNED, asked={"a"})) == ()
    in_time = recording(A, state="finished", finished_at=10, deadline=11)
    assert kinds(judge(in_time, Seen(end=End.RETURNED, asked={"a"}))) == [(Kind.OUTCOME, None)]


def test_a_message_may_have_a_colon_in_its_name() -> None:
    assert line_of(entry("branch:receive/order:paid#2", 1, kind="receive", name="order:paid")) == "branch:"
    assert line_of(entry("receive/order:paid", 1, kind="receive", name="order:paid")) == ""
    assert line_of(entry("branch#2:work#3", 1)) == "branch#2:"
