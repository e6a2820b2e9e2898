"""map(concurrency=n): the database lets the next item begin, and the workflow is woken once."""

from __future__ import annotations

from typing import Any

import pytest

from detent import step, workflow
from tests.functions.world import Apps, Gate, crash, eventually, result, wait_for

GATES: dict[str, Gate] = {}


@step
def gated(gate: str) -> str | None:
    GATES[gate].pass_through()
    return gate


@step
def double(number: int) -> int:
    return number * 2


@pytest.fixture
def gates() -> dict[str, Gate]:
    GATES.clear()
    GATES.update({name: Gate() for name in "abcd"})
    return GATES


def begun(run: Any) -> list[str]:
    return [item.node for item in run.executions() if item.kind == "step" and item.started_at is not None]


def test_a_map_with_a_limit_wakes_its_workflow_once(apps: Apps) -> None:
    calls: list[int] = []

    @workflow
    def flow() -> int:
        calls.append(1)
        return sum(double.map(range(40), concurrency=2))

    assert result(apps(flow, double).start(flow)) == sum(range(0, 80, 2))
    assert len(calls) <= 2


def test_items_that_end_while_the_run_is_paused_make_room_when_it_is_resumed(
    apps: Apps, gates: dict[str, Gate]
) -> None:
    @workflow
    def flow() -> list[str | None]:
        return gated.map("abcd", concurrency=2)

    run = apps(flow, gated).start(flow)
    gates["a"].wait_for_arrival()
    gates["b"].wait_for_arrival()
    run.pause()
    for gate in gates.values():
        gate.open()
    wait_for(run, "paused")
    eventually(lambda: len([item for item in run.executions() if item.state == "completed"]) == 2)
    assert len(begun(run)) == 2
    run.resume()
    assert result(run) == ["a", "b", "c", "d"]


def test_a_skipped_item_makes_room_if_it_had_begun(apps: Apps, gates: dict[str, Gate]) -> None:
    @workflow
    def flow() -> list[str | None]:
        return gated.map("abcd", concurrency=1)

    app = apps(flow, gated)
    run = app.start(flow)
    gates["a"].wait_for_arrival()
    run.skip("gated#3")
    assert begun(run) == ["gated"]
    gates["a"].open()
    gates["b"].wait_for_arrival()
    assert len(begun(run)) == 2
    gates["b"].open()
    gates["d"].open()
    assert result(run) == ["a", "b", None, "d"]


@pytest.mark.parametrize(("before", "after"), [(None, 2), (2, None), (2, 3)])
def test_a_deploy_may_change_the_limit_of_a_map_in_flight(
    apps: Apps, gates: dict[str, Gate], before: int | None, after: int | None
) -> None:
    @workflow(id="flow")
    def old() -> list[str | None]:
        return gated.map("abcd", concurrency=before)

    @workflow(id="flow")
    def new() -> list[str | None]:
        return gated.map("abcd", concurrency=after)

    first = apps(old, gated, concurrency=8)
    run = first.start(old)
    gates["a"].wait_for_arrival()
    gates["b"].wait_for_arrival()
    other = apps(new, gated, concurrency=8)
    crash(first, reaped_by=other)
    for gate in gates.values():
        gate.open()
    again = other.run(run.id)
    assert result(again) == ["a", "b", "c", "d"]
    assert len([item for item in again.executions() if item.kind == "main"]) <= 2
