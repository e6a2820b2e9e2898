"""Code that has changed: a replay of a recorded run tells where, and what to do."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import detent
from detent import step, workflow
from detent.errors import DefinitionError, ExportUnfit
from detent.kernel.drift import End, Kind
from detent.testing import TestingApp, WorkflowDrifted, replay
from tests.kit.recording import broken, child, double, exported, recorded_by, told, work


def old() -> Any:
    @workflow(id="flow")
    def flow(number: int) -> int:
        total = work(number)
        detent.sleep(hours=1)
        return total + child(number) + sum(work.map([1, 2]))

    return flow


def aold() -> Any:
    @workflow(id="flow")
    async def flow(number: int) -> int:
        total = await work.aio(number)
        await detent.aio.sleep(hours=1)
        more: int = await child.aio(number)
        mapped: list[int] = await work.aio.map([1, 2])
        return total + more + sum(mapped)

    return flow


def test_a_step_with_other_arguments_is_told() -> None:
    @workflow(id="flow")
    def flow(number: int) -> int:
        total = work(number + 1)
        detent.sleep(hours=1)
        return total + child(number) + sum(work.map([1, 3]))

    assert told(old(), flow) == [
        'work: recorded with {"args":[1]}; the code now requests it with {"args":[2]}',
        'work#3: recorded with {"args":[2]}; the code now requests it with {"args":[3]}',
    ]


def test_a_step_that_is_gone_is_told_for_runs_that_end_and_for_runs_in_flight() -> None:
    @workflow(id="flow")
    def flow(number: int) -> int:
        detent.sleep(hours=1)
        return child(number)

    in_flight = told(old(), flow, until="sleep")
    assert in_flight == ["work: recorded (step, completed); the code now continues without it"]
    assert told(old(), flow) == [
        "work: recorded (step, completed); the code now returns 1 without it",
        "work#2: recorded (spawn, completed); the code now returns 1 without it",
        "work#3: recorded (spawn, completed); the code now returns 1 without it",
        "the run: returned 5; the code now returns 1",
    ]


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_a_step_added_before_recorded_ones_is_told(is_async: bool) -> None:
    @workflow(id="flow")
    def flow(number: int) -> int:
        total = work(number) + double.sync(number)
        detent.sleep(hours=1)
        return total + child(number) + sum(work.map([1, 2]))

    @workflow(id="flow")
    async def aflow(number: int) -> int:
        total = await work.aio(number) + await double(number)
        await detent.aio.sleep(hours=1)
        more: int = await child.aio(number)
        mapped: list[int] = await work.aio.map([1, 2])
        return total + more + sum(mapped)

    before, after = (aold(), aflow) if is_async else (old(), flow)
    for until in ("sleep", ""):
        [line] = told(before, after, until=until)
        assert line.startswith("double: not recorded as done, unlike 'sleep'")
    assert told(before, after, until="work") == []  # not there yet: it runs when its turn comes


def test_a_value_added_before_recorded_steps_is_told() -> None:
    @workflow(id="flow")
    def flow(number: int) -> int:
        detent.now()
        total = work(number)
        detent.sleep(hours=1)
        return total + child(number) + sum(work.map([1, 2]))

    [line, *_] = told(old(), flow)
    assert line == "now: not recorded as done, unlike 'work'; the code now requests it first"


def test_a_finished_run_that_asks_for_more_is_told() -> None:
    @workflow(id="flow")
    def flow(number: int) -> int:
        total = old().function(number)
        return int(total) + work(total)

    assert told(old(), flow) == [
        "work#4: not recorded as done, and the run returned 5; the code now requests it"
    ]


def test_a_patch_guards_a_change() -> None:
    @workflow(id="flow")
    def flow(number: int) -> int:
        total = work(number)
        if detent.patched("double"):
            total += double.sync(number)
        detent.sleep(hours=1)
        total += child(number) + sum(work.map([1, 2]))
        return total + (work(7) if detent.patched("another") else 0)

    for until in ("work", "sleep", ""):
        assert told(old(), flow, until=until) == []


def test_another_result_and_another_error_are_told() -> None:
    @workflow(id="flow")
    def other(number: int) -> int:
        return -int(old().function(number))

    @workflow(id="flow")
    def raises(number: int) -> int:
        raise KeyError(old().function(number))

    assert told(old(), other) == ["the run: returned 5; the code now returns -5"]
    assert told(old(), raises) == ["the run: returned 5; the code now raises KeyError: 5"]
    assert told(raises, old()) == ["the run: failed with KeyError: 5; the code now returns 5"]
    assert told(raises, other)[0].endswith("the code now returns -5")


def test_an_error_before_what_was_recorded_is_told_of_a_run_in_flight() -> None:
    @workflow(id="flow")
    def flow(number: int) -> int:
        table: dict[str, int] = {}
        return work(number) + table["missing"]

    assert told(old(), flow, until="sleep") == [
        "sleep: recorded (sleep, waiting); the code now raises KeyError: 'missing' without it"
    ]
    assert told(old(), flow, until="work") == []  # nobody knows whether it did not always fail there


def test_a_result_that_does_not_fit_its_type_any_more_is_told() -> None:
    @step(id="work")
    def work_now(number: int) -> dict[str, int]:
        return {"number": number}

    @workflow(id="flow")
    def flow(number: int) -> int:
        total = work_now(number)["number"]
        detent.sleep(hours=1)
        return total

    [line] = told(old(), flow, include=[work_now])
    assert line.startswith("work: recorded (step, completed); the code now cannot read it: it does not fit")


def test_an_input_that_the_code_does_not_take_any_more_is_told() -> None:
    @workflow(id="flow")
    def flow(number: int, extra: int) -> int:
        return number + extra

    [line] = told(old(), flow)
    assert line.startswith('the run: began with {"args":[1]}; the code now does not take that: flow(): ')


def test_a_branch_that_is_gone_is_told_and_one_that_nobody_awaits_is_not(detent_app: TestingApp) -> None:
    async def beside() -> None:
        await double(1)
        await asyncio.sleep(0)
        await double(2)

    @workflow(id="flow")
    async def both() -> int:
        task = asyncio.create_task(beside())
        value = await work.aio(1)
        await task
        return value

    @workflow(id="flow")
    async def unawaited() -> int:
        task = asyncio.create_task(beside())
        value = await work.aio(1)
        assert task is not None
        return value

    @workflow(id="flow")
    async def alone() -> int:
        return await work.aio(1)

    run = recorded_by(detent_app, both)
    assert replay(run, unawaited).differences == ()
    with pytest.raises(WorkflowDrifted) as drift:
        replay(run, alone)
    assert [(each.kind, each.step) for each in drift.value.differences] == [
        (Kind.UNASKED, "beside:double"),
        (Kind.UNASKED, "beside:double#2"),
    ]


def test_code_that_does_not_come_to_rest_is_told_and_not_waited_for() -> None:
    let_go = threading.Event()

    @workflow(id="flow")
    def blocks(number: int) -> int:
        let_go.wait(20)
        return number

    @workflow(id="flow")
    async def spins(number: int) -> int:
        while not let_go.is_set():
            await asyncio.sleep(0)
        return number

    @workflow(id="flow")
    async def never(number: int) -> int:
        await asyncio.get_running_loop().create_future()
        return number

    stuck = "the run: recorded as finished; the code now does not become idle within 0.05 s"
    assert told(old(), blocks, timeout=0.05)[-1] == stuck
    assert told(old(), spins, timeout=0.05)[-1] == stuck
    assert told(old(), never) == [
        "the run: recorded as finished; the code now waits for something that never happens"
    ]
    let_go.set()


# -- Files ------------------------------------------------------------------------------------------


def test_a_file_of_the_command_line_is_replayed(detent_app: TestingApp, tmp_path: Path) -> None:
    run = detent_app.start(old(), 1)
    detent_app.speedrun(run)
    file = tmp_path / "run.json"
    file.write_text(json.dumps(exported(run)))
    for path in (file, str(file)):
        found = replay(path, old())
        assert (found.run_id, found.workflow, found.end, found.detail) == (run.id, "flow", End.RETURNED, "5")


def test_the_failure_lists_the_differences_and_says_what_to_do(detent_app: TestingApp) -> None:
    run = recorded_by(detent_app, old())

    @workflow(id="flow")
    def flow(number: int) -> int:
        return number

    with pytest.raises(WorkflowDrifted) as drift:
        replay(run, flow)
    lines = str(drift.value).splitlines()
    assert lines[0] == f"flow differs from the recorded run {run['run']['id']}:"
    assert lines[1] == "  work: recorded (step, completed); the code now returns 1 without it"
    assert len(lines) == 2 + len(drift.value.differences)
    assert "detent.patched('...')" in lines[-1]
    assert isinstance(drift.value, AssertionError)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda run: run | {"detent": 99}, "it has the format 99, and this version of Detent reads 1"),
        (lambda run: {"version": 2}, "it is not an exported run"),
        (lambda run: [run], "it is not an exported run"),
        (lambda run: run | {"journal": [{"step_key": 3}]}, "its content was changed or is damaged"),
        (
            lambda run: run | {"run": run["run"] | {"type": "else"}},
            "it is a run of 'else', not of 'f",
        ),
    ],
)
def test_a_file_that_is_not_a_run_of_this_workflow_is_refused(
    detent_app: TestingApp, tmp_path: Path, change: Callable[[Any], Any], reason: str
) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps(change(recorded_by(detent_app, old()))))
    with pytest.raises(ExportUnfit, match=reason) as refused:
        replay(file, old())
    assert str(file) in str(refused.value)


def test_what_is_no_json_or_no_workflow_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text("{")
    with pytest.raises(ExportUnfit, match="it is not JSON"):
        replay(file, old())
    with pytest.raises(DefinitionError, match="takes a workflow"):
        replay(file, work)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        replay(tmp_path / "none.json", old())


class Rot:
    """Payloads that nobody else can read, and never written the same way twice."""

    def __init__(self) -> None:
        self._count = 0

    def encode(self, text: str) -> str:
        self._count += 1
        return f"{self._count}|{text[::-1]}"

    def decode(self, text: str) -> str:
        return text.partition("|")[2][::-1]


def test_transformed_payloads_are_read_with_their_transform() -> None:
    with TestingApp(transform=Rot()) as app:
        run = recorded_by(app, old())
    assert replay(run, old(), transform=Rot()).detail == "5"


def test_errors_of_a_script_are_known_in_its_module(detent_app: TestingApp) -> None:
    @workflow
    def catches() -> str:
        try:
            broken("script")
        except Declined:
            return "declined"
        return "fine"

    run = recorded_by(detent_app, catches)
    [entry] = run["journal"]
    entry["error"] = json.dumps({"type": "__main__.Declined", "message": "no", "rebuildable": True}).replace(
        '": ', '":'
    )
    run["run"] |= {"state": "finished", "error": None, "result": '"declined"'}
    assert replay(run, catches).detail == '"declined"'


class Declined(Exception): ...
