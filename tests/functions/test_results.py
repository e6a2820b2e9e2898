"""`app.results()`: the results of many runs at once, in sync and in async code."""

import asyncio
from typing import Any

import pytest

import detent
from detent import step, workflow
from detent.errors import (
    InvalidArgument,
    ResultTimeout,
    RunCanceled,
    RunNotFound,
    RunPaused,
    TransactionMisused,
)
from tests.functions.world import PATIENCE, SOON, Apps, eventually, failure, recorded, result, wait_for

SQUARES = [0, 1, 4, 9, 16, 25, 36, 49]


@workflow
def square(number: int) -> int:
    return number * number


@workflow
def fails(number: int) -> int:
    raise ValueError(f"not {number}")


@workflow
def waits(number: int) -> int:
    detent.receive("go")
    return number


@workflow(on_exception="pause")
def pauses(number: int) -> int:
    if detent.receive("go") == "raise":
        raise ValueError("look at this")
    return number


def numbered(count: int) -> list[tuple[Any, ...]]:
    return [(number,) for number in range(count)]


def kinds(values: list[Any]) -> list[Any]:
    return [type(value) if isinstance(value, Exception) else value for value in values]


def test_results_come_in_the_order_of_the_runs(apps: Apps) -> None:
    app = apps(square)
    runs = app.start_many(square, numbered(8))
    assert app.results(runs, timeout=PATIENCE) == SQUARES
    assert {run.state for run in runs} == {"finished"}
    assert app.results(reversed(runs)) == SQUARES[::-1]
    assert app.results([runs[2], runs[3], runs[2]]) == [4, 9, 4]


def test_results_of_async_apps_come_in_the_order_of_the_runs(url: str) -> None:
    async def main() -> None:
        async with detent.AsyncApp(url, include=[square]) as app:
            runs = await app.start_many(square, numbered(8))
            assert await app.results(runs, timeout=PATIENCE) == SQUARES
            assert {run.state for run in runs} == {"finished"}
            assert await app.results([runs[3], runs[1], runs[3]]) == [9, 1, 9]
            assert await app.results([]) == []

    asyncio.run(main())


def test_results_of_no_runs_are_an_empty_list(apps: Apps) -> None:
    assert apps(square).results([]) == []


def test_results_of_runs_that_another_app_executes(apps: Apps) -> None:
    client = apps(square, waits, worker=False)
    runs = [client.start(waits, 1), client.start(square, 2)]
    apps(square, waits)
    runs[0].send("go")
    assert client.results(runs, timeout=PATIENCE) == [1, 4]


def test_the_first_error_is_raised_while_other_runs_go_on(apps: Apps) -> None:
    app = apps(square, fails, waits)
    runs = [app.start(waits, 1), app.start(square, 2), app.start(fails, 3)]
    with pytest.raises(ValueError, match="not 3"):
        app.results(runs, timeout=PATIENCE)
    assert runs[0].refresh().state in ("performing", "ready")  # it may not wait for its message yet
    assert not app.engine.waiters._waiting  # nothing is left behind
    runs[0].send("go")
    assert result(runs[0]) == 1


def test_the_first_error_is_raised_in_async_code_too(url: str) -> None:
    async def main() -> None:
        async with detent.AsyncApp(url, include=[fails, waits]) as app:
            runs = [await app.start(waits, 1), await app.start(fails, 2)]
            with pytest.raises(ValueError, match="not 2"):
                await app.results(runs, timeout=PATIENCE)
            assert not app.engine.waiters._waiting
            assert kinds(await app.results(runs, timeout=SOON, return_exceptions=True)) == [
                ResultTimeout,
                ValueError,
            ]

    asyncio.run(main())


def test_errors_are_returned_in_the_places_of_values(apps: Apps) -> None:
    app = apps(square, fails, waits, pauses)
    canceled, paused = app.start(waits, 1), app.start(pauses, 4)
    canceled.cancel()
    runs = [canceled, app.start(square, 3), paused, app.start(fails, 5)]
    paused.send("go", "raise")
    found = app.results(runs, timeout=PATIENCE, return_exceptions=True)
    assert kinds(found) == [RunCanceled, 9, RunPaused, ValueError]


def test_a_run_that_was_removed_is_not_found(apps: Apps) -> None:
    app = apps(square)
    runs = app.start_many(square, numbered(2))
    app.results(runs, timeout=PATIENCE)
    other = apps(square, worker=False)
    gone, kept = (other.run(run.id) for run in runs)
    wait_for(gone, "finished")
    eventually(lambda: app.executions(state="executing") == [], "nothing of them executes")
    assert gone.delete() == 1
    found = other.results([gone, kept], timeout=PATIENCE, return_exceptions=True)
    assert kinds(found) == [RunNotFound, 1]


def test_a_timeout_counts_for_all_runs_together(apps: Apps) -> None:
    app = apps(square, waits)
    runs = [app.start(square, 1), app.start(waits, 2), app.start(waits, 3)]
    result(runs[0])
    with pytest.raises(ResultTimeout) as caught:
        app.results(runs, timeout=SOON)
    assert caught.value.run_id == runs[1].id
    found = app.results(runs, timeout=SOON, return_exceptions=True)
    assert kinds(found) == [1, ResultTimeout, ResultTimeout]
    assert [error.run_id for error in found[1:] if isinstance(error, ResultTimeout)] == [
        run.id for run in runs[1:]
    ]
    assert not app.engine.waiters._waiting


def test_a_paused_run_is_waited_for_where_that_is_wanted(apps: Apps) -> None:
    app = apps(square, waits)
    run = app.start(waits, 7)
    run.pause()
    with pytest.raises(RunPaused):
        app.results([run], timeout=PATIENCE)
    with pytest.raises(ResultTimeout):
        app.results([run], timeout=SOON, wait_paused=True)
    run.resume()
    run.send("go")
    assert app.results([run], timeout=PATIENCE, wait_paused=True) == [7]


def test_a_workflow_waits_for_many_runs_durably(apps: Apps) -> None:
    @workflow
    def flow() -> list[Any]:
        runs = [app.run("one"), app.run("two")]
        found: list[Any] = kinds(app.results(runs, return_exceptions=True, timeout=PATIENCE))
        detent.sleep(SOON)  # from here on it is replayed
        return [str(item) for item in found]

    app = apps(flow, waits, fails)
    one = app.options(id="one").start(waits, 1)
    app.options(id="two").start(fails, 2)
    run = app.start(flow)
    wait_for(run, "ready")
    one.send("go")
    assert result(run) == ["1", str(ValueError)]
    assert [key for key in recorded(run) if key.startswith("result/")] == ["result/", "result/#2"]


def test_the_timeout_of_a_workflow_counts_from_where_it_was_recorded(apps: Apps) -> None:
    @workflow
    async def flow() -> list[str]:
        runs = [await client.run("one"), await client.run("two")]
        found = await client.results(runs, timeout=SOON, return_exceptions=True)
        await detent.aio.sleep(SOON)
        return [type(item).__name__ for item in found]

    app = apps(flow, waits)
    client = detent.AsyncApp(app.engine.url, include=[waits])
    for name in ("one", "two"):
        app.options(id=name).start(waits, 1)
    try:
        assert result(app.start(flow)) == ["ResultTimeout", "ResultTimeout"]
    finally:
        client.engine.close()


def test_a_transactional_step_gets_results_and_does_not_wait(apps: Apps) -> None:
    @step(transactional=True)
    def look(tx: Any, ids: list[str]) -> list[int]:
        return app.results([app.run(id) for id in ids])

    @workflow
    def flow(ids: list[str]) -> list[int]:
        return look(ids)

    app = apps(flow, look, square, waits)
    over = app.start_many(square, numbered(3))
    app.results(over, timeout=PATIENCE)
    assert result(app.start(flow, [run.id for run in over])) == [0, 1, 4]
    waiting = app.start(waits, 1)
    assert isinstance(failure(app.start(flow, [over[0].id, waiting.id])), TransactionMisused)


def test_what_is_not_a_run_of_the_app_is_refused(apps: Apps) -> None:
    app, other = apps(square), apps(square)
    run = app.start(square, 1)
    for wrong, named in (
        (run, "runs"),
        ("id", "runs"),
        ([run, run.id], r"runs\[1\]"),
        ([other.run(run.id)], r"runs\[0\]"),
        ([detent.aio.AsyncRun(app.engine, run.row)], r"runs\[0\]"),
    ):
        with pytest.raises(InvalidArgument, match=named):
            app.results(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="timeout"):
        app.results([run], timeout="soon")  # type: ignore[call-overload]
    with pytest.raises(InvalidArgument, match="return_exceptions"):
        app.results([run], return_exceptions=1)  # type: ignore[call-overload]
