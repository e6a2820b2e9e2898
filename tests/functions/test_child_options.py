"""Options of children: a chosen id, a deadline, a queue, a priority, attributes."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import detent
import detent.aio
from detent import step, workflow
from detent.errors import DeadlineExceeded, InvalidArgument, NotInRun, RunConflict, UnknownQueue
from tests.functions.world import (
    SOON,
    Apps,
    Gate,
    crash,
    eventually,
    failure,
    result,
    state,
    wait_for,
    wait_parked,
)


@workflow
def child(number: int) -> int:
    return number + 1


@workflow
async def achild(number: int) -> int:
    await asyncio.sleep(0)
    return number + 1


@workflow
def patient() -> None:
    detent.sleep(3600)


def test_a_child_is_started_with_its_options(apps: Apps) -> None:
    deadline = datetime.now(UTC) + timedelta(hours=1)

    @workflow
    def flow() -> list[Any]:
        options = child.options(
            id="child-1",
            deadline=deadline,
            queue="mail",
            priority=7,
            attributes={"customer": "acme", "vip": True},
        )
        handle = options.spawn(1)
        return [handle.run_id, handle.result()]

    app = apps(flow, queues=["default", "mail"])
    run = app.start(flow)
    assert result(run) == ["child-1", 2]
    found = app.run("child-1")
    assert (found.parent, found.queue, found.priority) == (run.id, "mail", 7)
    assert found.attributes == {"customer": "acme", "vip": True}
    assert found.deadline == deadline
    assert [one.id for one in app.runs(attributes={"customer": "acme"})] == ["child-1"]


def test_a_child_without_options_is_started_as_before(apps: Apps) -> None:
    @workflow
    def flow() -> int:
        return child.options()(1)

    app = apps(flow)
    run = app.options(priority=3).start(flow)
    assert result(run) == 2
    found = app.run(f"{run.id}/child")
    assert (found.queue, found.priority, found.deadline, found.attributes) == ("default", 3, None, {})


def test_every_form_of_a_call_takes_options(apps: Apps) -> None:
    @workflow
    def flow() -> list[int]:
        return [
            child.options(id="a")(1),
            child.options(id="b").sync(2),
            achild.options(id="c").sync(3),
            achild.options(id="d").spawn(4).result(),
            *child.options(attributes={"many": True}).sync.map([5, 6]),
        ]

    @workflow
    async def aflow() -> list[int]:
        return [
            await achild.options(id="e")(1),
            await achild.options(id="f").aio(2),
            await child.options(id="g").aio(3),
            await child.options(id="h").spawn(4),
            *await child.options(attributes={"many": True}).aio.map([5, 6]),
        ]

    app = apps(flow, aflow)
    assert result(app.start(flow)) == [2, 3, 4, 5, 6, 7]
    assert result(app.start(aflow)) == [2, 3, 4, 5, 6, 7]
    assert all(app.run(id).state == "finished" for id in "abcdefgh")
    assert len(app.runs(attributes={"many": True})) == 4


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_a_replay_finds_the_child_under_its_chosen_id(apps: Apps, is_async: bool) -> None:
    attempts: list[str] = []

    def chosen() -> str:
        attempts.append("")
        return f"chosen-{len(attempts)}"  # another id in each replay: the recorded one counts

    @workflow(id="flow")
    def flow() -> list[Any]:
        handle = child.options(id=chosen(), attributes={"n": len(attempts)}).spawn(1)
        detent.sleep(SOON)
        return [handle.run_id, handle.result()]

    @workflow(id="flow")
    async def aflow() -> list[Any]:
        handle = child.options(id=chosen(), attributes={"n": len(attempts)}).spawn(1)
        await detent.aio.sleep(SOON)
        return [handle.run_id, await handle]

    definition: Any = aflow if is_async else flow
    app = apps(definition)
    assert result(app.start(definition)) == ["chosen-1", 2]
    assert len(attempts) > 1
    assert len(app.runs(type="child")) == 1


def test_a_replay_after_a_crash_finds_the_same_child(apps: Apps) -> None:
    gate = Gate()
    calls: list[int] = []

    @step
    def hold() -> None:
        calls.append(1)
        if len(calls) == 1:
            gate.pass_through()

    @workflow
    def flow() -> int:
        handle = child.options(id="child-1", deadline=60).spawn(1)
        hold()
        return handle.result()

    first = apps(flow)
    run = first.start(flow)
    gate.wait_for_arrival()
    second = apps(flow)
    crash(first, reaped_by=second)
    assert result(second.run(run.id)) == 2
    gate.open()
    assert [one.id for one in second.runs(type="child")] == ["child-1"]


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
@pytest.mark.parametrize("number", [1, 2], ids=["the same input", "another input"])
def test_an_id_of_another_run_is_refused_alike_in_every_replay(
    apps: Apps, is_async: bool, number: int
) -> None:
    @workflow(id="flow")
    def flow() -> list[Any]:
        try:
            child.options(id="taken").spawn(number).result()
        except RunConflict as error:
            detent.sleep(SOON)
            return [error.run_id, error.parent, child(number)]
        return []

    @workflow(id="flow")
    async def aflow() -> list[Any]:
        handle = child.options(id="taken").spawn(number)
        try:
            await handle
        except RunConflict as error:
            await detent.aio.sleep(SOON)
            return [error.run_id, error.parent, await child.aio(number)]
        return []

    definition: Any = aflow if is_async else flow
    app = apps(definition, child)
    assert result(app.options(id="taken").start(child, 1)) == 2
    run = app.start(definition)
    assert result(run) == ["taken", run.id, number + 1]
    assert app.run("taken").parent is None


def test_an_active_run_with_the_id_is_neither_waited_for_nor_canceled(apps: Apps) -> None:
    @workflow
    def flow() -> None:
        patient.options(id="taken")()

    app = apps(flow)
    other = app.options(id="taken").start(patient)
    error = failure(app.start(flow))
    assert isinstance(error, RunConflict)
    assert "cannot start a child with the id 'taken'" in str(error)
    assert state(other) == "ready"


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_of_two_children_with_one_id_the_first_is_started(apps: Apps, is_async: bool) -> None:
    @workflow(id="flow")
    def flow() -> list[Any]:
        first, second = child.options(id="one").spawn(1), child.options(id="one").spawn(1)
        with pytest.raises(RunConflict):
            second.result()
        return [first.result()]

    @workflow(id="flow")
    async def aflow() -> list[Any]:
        first, second = child.options(id="one").spawn(1), child.options(id="one").spawn(1)
        other = child.options(id="other").spawn(5)
        with pytest.raises(RunConflict):
            await second
        return [await first, await other]

    definition: Any = aflow if is_async else flow
    app = apps(definition)
    assert result(app.start(definition)) == ([2, 6] if is_async else [2])


def test_a_resume_starts_the_child_when_its_id_is_free(apps: Apps) -> None:
    @workflow
    def flow() -> int:
        return child.options(id="taken")(1)

    app = apps(flow)
    other = app.options(id="taken").start(child, 1)
    result(other)
    run = app.start(flow)
    assert isinstance(failure(run), RunConflict)
    other.delete()
    run.resume()
    assert result(run) == 2
    assert app.run("taken").parent == run.id


def test_a_child_fails_at_its_own_deadline(apps: Apps) -> None:
    @workflow
    def flow() -> str:
        try:
            patient.options(id="late", deadline=timedelta(seconds=0.3))()
        except DeadlineExceeded as error:
            return error.run_id
        return ""

    run = apps(flow).start(flow)
    assert result(run) == "late"


def test_the_deadline_of_a_child_is_never_later_than_that_of_its_parent(apps: Apps) -> None:
    @workflow
    def flow() -> None:
        child.options(id="longer", deadline=timedelta(days=2))(1)
        child.options(id="shorter", deadline=timedelta(minutes=1))(1)

    app = apps(flow)
    run = app.options(deadline=timedelta(hours=1)).start(flow)
    result(run)
    assert run.deadline is not None
    assert app.run("longer").deadline == run.deadline
    shorter = app.run("shorter").deadline
    assert shorter is not None
    assert shorter < run.deadline


def test_canceling_a_parent_cancels_a_child_with_a_chosen_id(apps: Apps) -> None:
    @workflow
    def flow() -> None:
        patient.options(id="child-1").spawn().result()

    app = apps(flow)
    run = app.start(flow)
    wait_parked(run)
    run.cancel()
    wait_for(run, "canceled")
    eventually(lambda: app.run("child-1").state == "canceled", "the child is canceled")


def test_a_queue_that_is_not_declared_is_refused(apps: Apps) -> None:
    @workflow
    def flow() -> None:
        with pytest.raises(UnknownQueue):
            child.options(queue="elsewhere").spawn(1)

    app = apps(flow)
    result(app.start(flow))
    assert app.runs(type="child") == []


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ({"id": ""}, "id"),
        ({"id": 7}, "id"),
        ({"id": "x" * 201}, "201 characters"),
        ({"id": "a "}, "space"),
        ({"deadline": "tomorrow"}, "deadline"),
        ({"deadline": -1}, "negative"),
        ({"deadline": True}, "deadline"),
        ({"deadline": datetime(2030, 1, 1)}, "time zone"),
        ({"queue": 7}, "queue"),
        ({"priority": "high"}, "priority"),
        ({"attributes": ["customer"]}, "attributes"),
        ({"attributes": {"": 1}}, "attribute"),
        ({"attributes": {"price": 1.5}}, "whole numbers"),
        ({"timeout": 5}, "deadline="),
        ({"que": "mail"}, "did you mean 'queue'"),
    ],
)
def test_options_that_are_not_accepted_are_refused_at_the_call(given: dict[str, Any], hint: str) -> None:
    with pytest.raises(InvalidArgument, match=r"child\.options\(\)") as caught:
        child.options(**given)
    assert hint in str(caught.value)


def test_what_no_database_can_store_is_refused_at_the_start(apps: Apps) -> None:
    @workflow
    def flow(name: str) -> None:
        child.options(attributes={name: "acme"}).spawn(1)

    @workflow
    def several() -> None:
        child.options(id="one").sync.map([1, 2])

    app = apps(flow, several)
    assert isinstance(failure(app.start(flow, "x" * 101)), InvalidArgument)
    assert isinstance(failure(app.start(several)), InvalidArgument)
    assert app.runs(type="child") == []


def test_outside_of_a_run_there_is_nothing_to_start() -> None:
    with pytest.raises(NotInRun, match="options"):
        child.options(id="child-1").spawn(1)
    assert child.options(id="child-1")(1) == 2
    assert achild.options(id="child-1").sync(1) == 2
    assert asyncio.run(achild.options(id="child-1")(1)) == 2
    assert asyncio.run(child.options(id="child-1").aio(1)) == 2


def test_an_id_that_the_engine_made_and_another_run_has_is_refused_too(apps: Apps) -> None:
    @workflow
    def flow() -> int:
        return child(1)

    app = apps(flow)
    result(app.options(id="order-1/child").start(child, 1))  # found by the unique key, not looked for before
    error = failure(app.options(id="order-1").start(flow))
    assert isinstance(error, RunConflict)
    assert error.parent == "order-1"
