"""Drifted runs: marked where they stand, found by that mark, and told from all others."""

import asyncio
from typing import Any

import pytest

import detent
from detent import workflow
from detent.errors import InvalidArgument, RunPaused
from detent.kernel.operations import Note
from detent.kernel.rows import DRIFTED
from tests.functions.drifting import achanging, changing, charging, no_numbers, pay, take_payment, work
from tests.functions.world import Apps, events, result, wait_parked

__all__ = ["no_numbers"]  # a fixture


@workflow
def steady() -> int:
    value = work(7)
    detent.receive("go")
    return value


def ids(runs: list[detent.Run[Any]]) -> list[str]:
    return [run.id for run in runs]


def ended(app: detent.App, chosen: Any, **options: Any) -> detent.Run[Any]:
    """A run of it, after one replay: finished, or paused."""
    run = app.options(**options).start(chosen)
    wait_parked(run)
    run.send("go")
    try:
        result(run)
    except RunPaused:
        assert run.refresh().state == "paused"
    return run.refresh()


@pytest.mark.parametrize("chosen", [changing, achanging], ids=["def", "async def"])
@pytest.mark.parametrize("on_drift", ["warn", "pause"])
def test_drifted_runs_are_listed_and_no_others(apps: Apps, chosen: Any, on_drift: Any) -> None:
    app = apps(chosen, steady, work, on_drift=on_drift)
    drifted = ended(app, chosen, id="drifted", attributes={"customer": "acme"})
    same = ended(app, steady, id="same", attributes={"customer": "acme"})
    assert (drifted.drifted, same.drifted) == (True, False)
    assert ids(app.runs.drifted()) == ["drifted"]
    assert ids(app.runs.drifted(type=chosen, attributes={"customer": "acme"})) == ["drifted"]
    assert ids(app.runs.drifted(attributes={"customer": "other"})) == []
    assert ids(app.runs.drifted(state="paused" if on_drift == "pause" else "finished")) == ["drifted"]
    assert ids(app.runs.drifted(state="failed")) == []
    assert ids(list(app.runs.each(drifted=True))) == ["drifted"]
    assert {*ids(app.runs())} == {"drifted", "same"}


def test_a_run_that_drifts_again_is_listed_once_and_stays_listed(apps: Apps) -> None:
    app = apps(changing, work)
    run = ended(app, changing)
    run.resume()
    with pytest.raises(RunPaused):
        result(run)
    run.resume(accept_drift=True)
    assert result(run) == 0
    assert ids(app.runs.drifted()) == [run.id]
    assert ids(app.runs.drifted(state="finished")) == [run.id]


@pytest.mark.parametrize("strict", [False, True], ids=["reported at the end", "paused"])
def test_a_run_whose_recorded_step_is_not_asked_for_is_listed(apps: Apps, strict: bool) -> None:
    yesterday = apps(charging("def", new=False, strict=strict), pay)
    run = yesterday.start(yesterday.engine.registry.workflow("charging"))
    wait_parked(run)
    assert yesterday.runs.drifted() == []
    yesterday.close()
    today = apps(charging("def", new=True, strict=strict), take_payment)
    run = today.run(run.id)
    run.send("deployed")
    if strict:
        with pytest.raises(RunPaused):
            result(run)
    else:
        assert result(run) == "took 5"
    assert ids(today.runs.drifted()) == [run.id]
    assert run.refresh().drifted


def test_the_mark_is_not_among_the_attributes_and_a_fork_does_not_inherit_it(apps: Apps) -> None:
    app = apps(changing, work, on_drift="warn")
    run = ended(app, changing, attributes={"customer": "acme"})
    assert run.attributes == {"customer": "acme"}
    run.set_attributes({"customer": None, "tier": 1})
    assert run.refresh().attributes == {"tier": 1}
    assert run.drifted
    fork = app.fork(run)
    assert fork.refresh().attributes == {"tier": 1}
    assert not fork.drifted
    assert events(run, "drift") != []


def test_names_of_attributes_that_are_reserved_are_refused(apps: Apps) -> None:
    app = apps(steady, work)
    run = app.start(steady)
    for refused in (
        lambda: app.options(attributes={DRIFTED: True}),
        lambda: app.options(attributes={"detent.mine": "x"}),
        lambda: run.set_attributes({DRIFTED: None}),
        lambda: app.runs(attributes={DRIFTED: True}),
    ):
        with pytest.raises(InvalidArgument, match=r"begin with 'detent\.' are reserved"):
            refused()
    app.options(attributes={"detention": 1, "my.detent.fact": 2}).start(steady)


def test_only_drifted_runs_can_be_asked_for(apps: Apps) -> None:
    app = apps(steady, work)
    unfit: list[Any] = [False, "yes", 1]
    for value in unfit:
        with pytest.raises(InvalidArgument, match="drifted=True"):
            app.runs(drifted=value)


def test_a_mark_for_a_run_that_is_gone_writes_nothing(apps: Apps) -> None:
    app = apps(steady, work, worker=False)
    run = app.start(steady)
    app.engine.services.committer.run(Note(drifted=["gone", run.id]))
    app.engine.services.committer.run(Note(drifted=[run.id]))
    with app.engine.store.transaction() as tx:
        assert tx.query("SELECT run_id FROM detent_attributes") == [(run.id,)]
    run.cancel()
    run.delete()
    assert app.runs.drifted() == []
    with app.engine.store.transaction() as tx:
        assert tx.query("SELECT run_id FROM detent_attributes") == []


def test_an_async_app_lists_drifted_runs(database_url: str) -> None:
    async def main() -> None:
        async with detent.AsyncApp(database_url, include=[achanging, work], migrate=True) as app:
            run = await app.start(achanging)
            async with asyncio.timeout(30):
                while "receive/go" not in {item.node for item in await run.executions()}:
                    await asyncio.sleep(0.02)
                while (await run.refresh()).state != "ready":
                    await asyncio.sleep(0.02)
            assert await app.runs.drifted() == []
            await run.send("go")
            with pytest.raises(RunPaused):
                await run.result(timeout=30)
            assert [found.id for found in await app.runs.drifted(type=achanging)] == [run.id]
            assert [found.id async for found in app.runs.each(drifted=True)] == [run.id]
            assert (await run.refresh()).drifted

    asyncio.run(main())
