"""Giving work away: spawned steps, children, and runs that are started from inside."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

import detent
from detent import Context, Retry, step, workflow
from detent.errors import DeadlineExceeded, RunCanceled, UnknownDefinition
from tests.functions.world import (
    AMPLE,
    SOON,
    Apps,
    CardDeclined,
    Gate,
    crash,
    eventually,
    failure,
    main,
    recorded,
    result,
    state,
    wait_for,
    wait_parked,
)


@step
def double(number: int) -> int:
    return number * 2


@step
async def adouble(number: int) -> int:
    return number * 2


@workflow
def child(number: int) -> int:
    return double(number) + 1


@workflow
async def achild(number: int) -> int:
    return await adouble(number) + 1


@pytest.mark.parametrize("concurrency", [1, 10])
def test_a_fan_out_of_200_returns_its_results_in_order(apps: Apps, concurrency: int) -> None:
    @workflow
    def flow() -> list[int]:
        return list(double.map(range(200)))

    run = apps(flow, concurrency=concurrency).start(flow)
    assert result(run) == [number * 2 for number in range(200)]
    assert len([item for item in run.executions() if item.kind == "step"]) == 200


@pytest.mark.parametrize("concurrency", [1, 10])
def test_a_fan_out_from_async_code_returns_its_results_in_order(apps: Apps, concurrency: int) -> None:
    @workflow
    async def flow() -> list[int]:
        handles = [double.spawn(number) for number in range(5)]
        mapped = await adouble.map(range(50))
        return [*(await asyncio.gather(*handles)), *mapped]

    expected = [number * 2 for number in range(5)] + [number * 2 for number in range(50)]
    assert result(apps(flow, concurrency=concurrency).start(flow)) == expected


def test_an_empty_map_is_an_empty_list(apps: Apps) -> None:
    @workflow
    def flow() -> list[int]:
        return list(double.map([]))

    assert result(apps(flow).start(flow)) == []


def test_spawned_work_is_shared_by_the_workers_of_a_database(apps: Apps) -> None:
    both = threading.Barrier(2, timeout=20)

    @step
    def meet(number: int) -> int:
        both.wait()  # only two workers with one slot each can be here at the same time
        return number

    @workflow
    def flow() -> list[int]:
        return list(meet.map([1, 2]))

    first = apps(flow, concurrency=1)
    apps(flow, concurrency=1)
    run = first.start(flow)
    assert result(run) == [1, 2]
    assert len({item.worker for item in run.executions() if item.kind == "step"}) == 2


def test_a_handle_can_be_asked_later_and_in_any_order(apps: Apps) -> None:
    @workflow
    def flow() -> list[int]:
        handles = [double.spawn(number) for number in (1, 2, 3)]
        detent.sleep(SOON)
        return [handle.result() for handle in reversed(handles)]

    run = apps(flow, concurrency=2).start(flow)
    assert result(run) == [6, 4, 2]
    assert sorted(item.node for item in run.executions() if item.kind == "step") == [
        "double",
        "double#2",
        "double#3",
    ]


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_a_failure_among_many_is_raised_when_all_are_done(apps: Apps, is_async: bool) -> None:
    done: list[int] = []

    @step
    def some(number: int) -> int:
        if number == 1:
            raise CardDeclined(51, card="4111")
        done.append(number)
        return number

    @workflow(id="flow")
    def flow() -> None:
        some.map(range(4))

    @workflow(id="flow")
    async def aflow() -> None:
        await some.aio.map(range(4))

    chosen: Any = aflow if is_async else flow
    error = failure(apps(chosen).start(chosen))
    assert isinstance(error, CardDeclined)
    assert sorted(done) == [0, 2, 3]


def test_a_replayed_spawn_spawns_nothing_new(apps: Apps) -> None:
    calls: list[int] = []
    gate = Gate()

    @step
    def work(number: int) -> int:
        calls.append(number)
        return number

    @step
    def pause_here() -> None:
        if len(calls) == 2:
            gate.pass_through()

    @workflow
    def flow() -> list[int]:
        values = list(work.map([1, 2]))
        pause_here()
        return values

    first = apps(flow)
    run = first.start(flow)
    gate.wait_for_arrival()
    second = apps(flow)
    crash(first, reaped_by=second)
    gate.open()
    assert result(second.run(run.id)) == [1, 2]
    assert sorted(calls) == [1, 2]


def test_a_spawned_step_whose_worker_dies_runs_again_elsewhere(apps: Apps) -> None:
    gate = Gate()
    attempts: list[int] = []

    @step
    def work(ctx: Context) -> int:
        attempts.append(ctx.attempt)
        if len(attempts) == 1:
            gate.pass_through()
        return ctx.attempt

    @workflow
    def flow() -> int:
        return int(work.spawn().result())

    first = apps(flow)
    run = first.start(flow)
    gate.wait_for_arrival()
    second = apps(flow)
    crash(first, reaped_by=second)
    assert result(second.run(run.id)) == 2
    gate.open()
    assert attempts == [1, 2]


def test_spawning_on_a_queue_that_is_not_declared_is_refused(apps: Apps) -> None:
    @step(queue="elsewhere")
    def work() -> None: ...

    @workflow
    def flow() -> None:
        work.spawn()

    assert "queue 'elsewhere' is not declared by this app" in str(failure(apps(flow).start(flow)))


def test_a_spawned_step_goes_to_its_own_queue(apps: Apps) -> None:
    @step(queue="heavy")
    def work() -> int:
        return 1

    @workflow
    def flow() -> int:
        return int(work.spawn().result())

    run = apps(flow, queues=["default", "heavy"]).start(flow)
    assert result(run) == 1


def test_spawning_what_the_app_does_not_include_is_refused(apps: Apps) -> None:
    hidden = {"work": double}  # nothing in the workflow's code names it

    @workflow
    def flow() -> None:
        hidden["work"].spawn(1)

    assert isinstance(failure(apps(flow).start(flow)), UnknownDefinition)


@pytest.mark.parametrize("concurrency", [1, 10])
@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_a_workflow_called_from_a_workflow_is_a_child_run(
    apps: Apps, is_async: bool, concurrency: int
) -> None:
    @workflow(id="parent")
    def parent() -> list[int]:
        handle = child.spawn(10)
        return [child(1), achild.sync(2), handle.result()]

    @workflow(id="parent")
    async def aparent() -> list[int]:
        handle = child.spawn(10)
        return [*(await asyncio.gather(child.aio(1), achild(2))), await handle]

    chosen: Any = aparent if is_async else parent
    app = apps(chosen, concurrency=concurrency)
    run = app.start(chosen)
    assert result(run) == [3, 5, 21]
    children = [other for other in app.runs() if other.row.parent == run.id]
    assert sorted(other.type for other in children) == ["achild", "child", "child"]
    assert {state(other) for other in children} == {"finished"}


def test_a_replay_starts_no_second_child(apps: Apps) -> None:
    @workflow
    def parent() -> int:
        value = child(1)
        detent.sleep(SOON)
        return value + child(2)

    app = apps(parent)
    run = app.start(parent)
    assert result(run) == 8
    assert sorted(other.id for other in app.runs(type="child")) == [
        f"{run.id}/child",
        f"{run.id}/child#2",
    ]


def test_a_childs_failure_is_raised_in_its_parent(apps: Apps) -> None:
    @workflow
    def fails() -> None:
        raise CardDeclined(5, card="x")

    @workflow
    def parent() -> str:
        try:
            fails()
        except CardDeclined as error:
            return f"caught {error.code}"
        return "not raised"

    assert result(apps(parent).start(parent)) == "caught 5"


def test_a_canceled_child_raises_run_canceled_in_its_parent(apps: Apps) -> None:
    @workflow
    def waits() -> None:
        detent.receive("never")

    @workflow
    def parent() -> str:
        try:
            waits()
        except RunCanceled as error:
            return error.run_id
        return "not raised"

    app = apps(parent)
    run = app.start(parent)
    wait_parked(run)
    [its_child] = app.runs(type="waits")
    its_child.cancel()
    assert result(run) == its_child.id


def test_canceling_a_parent_cancels_its_children_and_theirs(apps: Apps) -> None:
    @workflow
    def grandchild() -> None:
        detent.receive("never")

    @workflow
    def middle() -> None:
        grandchild()

    @workflow
    def parent() -> None:
        middle()

    app = apps(parent)
    run = app.start(parent)
    wait_parked(run)
    wait_for_type(app, "grandchild")
    run.cancel()
    for other in app.runs():
        wait_for(other, "canceled")


def wait_for_type(app: detent.App, type: str) -> None:
    eventually(
        lambda: [run for run in app.runs(type=type) if main(run).state == "scheduled"], f"a {type} waits"
    )


def test_a_deadline_holds_for_children(apps: Apps) -> None:
    @workflow
    def waits() -> None:
        detent.receive("never")

    @workflow
    def parent() -> None:
        waits()

    app = apps(parent)
    run = app.options(deadline=AMPLE).start(parent)
    assert isinstance(failure(run), DeadlineExceeded)
    [its_child] = app.runs(type="waits")
    assert isinstance(failure(its_child), DeadlineExceeded)


def test_a_parent_that_fails_leaves_a_child_it_does_not_wait_for_alone(apps: Apps) -> None:
    @workflow
    def parent() -> None:
        child.spawn(1)
        raise ValueError("stop")

    app = apps(parent)
    run = app.start(parent)
    assert isinstance(failure(run), ValueError)


def test_starting_a_run_inside_of_a_step_is_idempotent_over_its_attempts(apps: Apps) -> None:
    @step(retry=Retry(attempts=3, first=timedelta(0)))
    def begin(ctx: Context) -> list[str]:
        ids = [app.start(child, 1).id, app.start(child, 2).id]
        ids += [run.id for run in app.start_many(child, [(3,), (4,)])]
        if ctx.attempt < 3:
            raise ConnectionError
        return ids

    @workflow
    def flow() -> list[str]:
        return begin()

    app = apps(flow, child)
    ids = result(app.start(flow))
    assert len(set(ids)) == 4
    assert {run.id for run in app.runs(type="child")} == set(ids)


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_starting_a_run_inside_of_a_workflow_is_idempotent_on_replay(apps: Apps, is_async: bool) -> None:
    async_app: detent.AsyncApp

    @workflow(id="flow")
    def flow() -> list[str]:
        ids = [app.start(child, 1).id, app.start(child, 2).id]
        ids += [run.id for run in app.start_many(child, [(3,), (4,)])]
        detent.sleep(SOON)
        return ids

    @workflow(id="flow")
    async def aflow() -> list[str]:
        ids = [(await async_app.start(child, 1)).id, (await async_app.start(child, 2)).id]
        ids += [run.id for run in await async_app.start_many(child, [(3,), (4,)])]
        await detent.aio.sleep(SOON)
        return ids

    chosen: Any = aflow if is_async else flow
    app = apps(chosen, child)
    async_app = detent.AsyncApp(app.engine.url, include=[child])
    ids = result(app.start(chosen))
    assert len(set(ids)) == 4
    assert {run.id for run in app.runs(type="child")} == set(ids)
    async_app.engine.close()


def test_what_a_started_run_is_given_is_durable_before_it_starts(apps: Apps) -> None:
    gate = Gate()

    @workflow
    def other(id: str) -> str:
        return id

    @workflow
    def flow() -> str:
        given = str(detent.uuid())
        run = app.start(other, given)  # were the uuid not recorded, a replay would give another one
        gate.pass_through()
        return f"{run.type} {given}"

    app = first = apps(flow, other)
    run = first.start(flow)
    gate.wait_for_arrival()
    second = apps(flow, other)
    crash(first, reaped_by=second)
    gate.open()
    app = second
    given = result(second.run(run.id))
    [started] = second.runs(type="other")
    assert f"other {result(started)}" == given


def test_a_parent_lets_go_of_its_worker_while_it_waits(apps: Apps) -> None:
    gate = Gate()

    @step
    def slow() -> int:
        gate.pass_through()
        return 1

    @workflow
    def flow() -> int:
        return int(slow.spawn().result())

    run = apps(flow).start(flow)
    gate.wait_for_arrival()
    eventually(lambda: main(run).state == "scheduled", "the parent is put down")
    gate.open()
    assert result(run) == 1
    assert recorded(run) == ["slow"]
