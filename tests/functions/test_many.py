"""Deleting a run, changing its attributes, and verbs for many runs at once."""

import asyncio
from typing import Any

import pytest

import detent
from detent import step, workflow
from detent.errors import ConfigurationError, InvalidState, RunNotFound
from tests.conformance.builders import TABLES
from tests.functions.world import Apps, Gate, eventually, failure, main, result, state, wait_for, wait_parked


@step
def work(number: int) -> int:
    return number


@workflow
def inner(number: int) -> int:
    return work(number)


@workflow
def outer(number: int) -> int:
    return inner(number) + work.spawn(number).result()


@workflow
def waits() -> None:
    detent.receive("go")


def rows(app: detent.App) -> dict[str, int]:
    def count(tx: Any) -> dict[str, int]:
        tables = [table for table in TABLES if table != "workers"]
        return {table: tx.query(f"SELECT COUNT(*) FROM detent_{table}")[0][0] for table in tables}

    found: dict[str, int] = app.engine.store.read(count)
    return {table: number for table, number in found.items() if number}


def test_a_run_is_deleted_with_its_children_and_all_rows(apps: Apps) -> None:
    app = apps(outer, inner, work)
    other = app.options(attributes={"a": 1}).start(inner, 1)
    result(other)
    eventually(lambda: main(other).state == "completed", "it is over")
    before = rows(app)
    run = app.options(attributes={"a": 1}).start(outer, 1)
    assert result(run) == 2
    eventually(lambda: main(run).state == "completed", "it is over")
    [child] = app.runs(parent=run)
    with pytest.raises(InvalidState, match=f"a child of run {run.id}"):
        child.delete()
    assert run.delete() == 2
    assert rows(app) == before
    with pytest.raises(RunNotFound):
        run.delete()


def test_only_what_is_over_is_deleted(apps: Apps) -> None:
    app = apps(waits)
    run = app.start(waits)
    wait_parked(run)
    with pytest.raises(InvalidState, match="cancel it first"):
        app.delete(run)
    run.cancel()
    wait_for(run, "canceled")
    assert app.delete(run.id) == 1
    assert app.runs() == []


def test_a_canceled_run_that_is_being_undone_is_not_deleted(apps: Apps) -> None:
    gate = Gate()

    @step
    def take() -> None: ...

    @step
    def give_back() -> None:
        gate.pass_through()

    taken = take.compensate_with(give_back)

    @workflow
    def flow() -> None:
        taken()
        detent.receive("go")

    app = apps(flow)
    run = app.start(flow)
    wait_parked(run)
    run.cancel()
    gate.wait_for_arrival()
    with pytest.raises(InvalidState, match="has not ended"):
        run.delete()
    gate.open()
    eventually(lambda: main(run).state != "executing", "it is undone")
    assert run.delete() == 1


def test_attributes_are_set_merged_and_removed(apps: Apps) -> None:
    app = apps(waits)
    run = app.options(attributes={"customer": "acme", "vip": True}).start(waits)
    run.set_attributes({"vip": None, "total": 12, "customer": "initech"})
    for seen in (run, app.run(run.id), *app.runs(attributes={"total": 12, "customer": "initech"})):
        assert seen.attributes == {"customer": "initech", "total": 12}
    assert app.runs(attributes={"vip": True}) == app.runs(attributes={"customer": "acme"}) == []
    [noted] = [event.detail for event in run.history() if event.event == "attributes"]
    assert noted == {"vip": None, "total": 12, "customer": "initech"}
    run.cancel()
    run.set_attributes({"why": "late"})  # in any state
    assert run.attributes == {"customer": "initech", "total": 12, "why": "late"}
    for wrong in ({}, {"": 1}, {"a": 1.5}, {1: "a"}, "a"):
        with pytest.raises(ConfigurationError):
            run.set_attributes(wrong)  # type: ignore[arg-type]
    with pytest.raises(RunNotFound):
        app.engine.set_attributes("nobody", {"a": 1})


broken = [True]


@workflow
def fragile(number: int) -> int:
    if broken[0]:
        raise ValueError(number)
    return number


@workflow
def sturdy(number: int) -> int:
    return fragile(number)


def test_failed_runs_are_resumed_by_a_filter(apps: Apps) -> None:
    broken[0] = True
    app = apps(fragile, sturdy)
    runs = app.start_many(fragile, [(number,) for number in range(5)])
    other = app.start(sturdy, 9)
    for run in (*runs, other):
        failure(run)
    broken[0] = False
    assert app.runs.resume(state="failed", type=fragile, limit=2).count == 2
    changed = app.runs.resume(state="failed", type=fragile)
    # The rest, and the child of the other run.
    assert (changed.count, changed.refused) == (4, {})
    assert [result(run) for run in runs] == [0, 1, 2, 3, 4]
    assert state(other) == "failed"
    assert app.runs.resume(state="failed", type="nothing").count == 0
    with pytest.raises(ConfigurationError, match="paused"):
        app.runs.resume(state="finished")


def test_active_runs_are_canceled_by_a_filter_across_pages(apps: Apps, monkeypatch: Any) -> None:
    monkeypatch.setattr("detent.app.listing.PAGE", 2)
    app = apps(waits, inner, worker=False)
    doomed = app.options(attributes={"batch": 7}).start_many(waits, [()] * 5)
    spared = app.start(waits)
    with pytest.raises(ConfigurationError, match="select the runs to cancel"):
        app.runs.cancel()
    changed = app.runs.cancel(attributes={"batch": 7}, reason="sold out")
    assert (changed.count, changed.refused) == (5, {})
    assert {state(run) for run in doomed} == {"canceled"}
    assert {"reason": "sold out"} in [event.detail for event in doomed[0].history()]
    assert state(spared) == "ready"
    assert app.runs.cancel(attributes={"batch": 7}).count == 0


def test_one_run_that_refuses_does_not_stop_the_others(apps: Apps, monkeypatch: Any) -> None:
    app = apps(waits, worker=False)
    runs = app.start_many(waits, [()] * 3)
    cancel = app.engine.cancel

    def raced(run_id: str, reason: str | None = None) -> Any:
        if run_id == runs[1].id:
            cancel(run_id)  # somebody was quicker
        return cancel(run_id, reason)

    monkeypatch.setattr(app.engine, "cancel", raced)
    changed = app.runs.cancel(state="active")
    assert changed.count == 2
    assert list(changed.refused) == [runs[1].id]
    assert "canceled" in changed.refused[runs[1].id]


def test_the_same_from_async_code(url: str) -> None:
    async def program() -> None:
        async with detent.AsyncApp(url, include=[waits]) as app:
            first, second = await app.start_many(waits, [(), ()])
            for one in (first, second):  # a run that executes cannot be deleted
                while not (last := (await one.executions())[0]).started_at or last.state != "scheduled":
                    await asyncio.sleep(0.005)
            await first.set_attributes({"a": 1})
            assert (await app.runs.cancel(attributes={"a": 1})).count == 1
            assert (await app.runs.resume(state="paused")).count == 0
            assert (await app.runs.cancel(state="active")).count == 1
            assert await first.delete() + await app.delete(second) == 2

    asyncio.run(program())


def test_what_was_found_is_changed_as_a_whole(apps: Apps) -> None:
    """Also what is not on the page that was read."""
    broken = True

    @workflow
    def flow(number: int) -> int:
        if broken:
            raise ValueError(number)
        return number

    app = apps(flow, waits)
    runs = app.start_many(flow, [(n,) for n in range(5)])
    for run in runs:
        failure(run)
    found = app.runs.failed(type=flow, since=runs[0].created_at)
    assert (len(app.runs.failed(limit=2)), found.total()) == (2, 5)
    assert app.runs.failed(limit=2).total() == 2
    broken = False
    assert found.resume().count == 5
    assert sorted(result(run) for run in runs) == [0, 1, 2, 3, 4]
    assert found.total() == 0
    waiting = [app.start(waits) for _ in range(3)]
    for one in waiting:
        wait_parked(one)
    assert app.runs.waiting(on="go").cancel(reason="enough").count == 3
    assert {state(one) for one in waiting} == {"canceled"}
    with pytest.raises(ConfigurationError):
        app.runs.finished().resume()
    with pytest.raises(ConfigurationError):
        app.runs.failed(since=runs[0].created_at, after=runs[0].created_at)


def test_what_was_found_is_changed_in_async_code(url: str) -> None:
    async def main() -> None:
        async with detent.AsyncApp(url, include=[waits]) as app:
            for _ in range(3):
                await app.start(waits)
            found = app.runs.active(type=waits)
            assert (len(await found), await found.total()) == (3, 3)
            assert (await found.cancel(reason="enough")).count == 3
            with pytest.raises(ConfigurationError):
                await app.runs.canceled().resume()

    asyncio.run(main())
