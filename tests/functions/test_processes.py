"""Steps in other processes: `@step(executor="process")`."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import detent
from detent import Context, step, workflow
from detent.errors import DefinitionError, NotPicklable, StepCrashed, StepFailed, StepTimeout
from tests.functions import crunching
from tests.functions.crunching import begun, lives
from tests.functions.world import PATIENCE, Apps, CardDeclined, crash, eventually, failure, recorded, result

ROOT = Path(__file__).resolve().parents[2]


@workflow
def called(name: str, *args: Any) -> Any:
    return getattr(crunching, name)(*args)


@workflow
async def acalled(name: str, *args: Any) -> Any:
    return await getattr(crunching, name).aio(*args)


@workflow
def spawned(name: str, *args: Any) -> Any:
    return getattr(crunching, name).spawn(*args).result()


@workflow
async def aspawned(name: str, *args: Any) -> Any:
    return await getattr(crunching, name).spawn(*args)


WAYS = [called, acalled, spawned, aspawned]


@pytest.fixture(autouse=True)
def _several_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine has: some of these steps run side by side."""
    monkeypatch.setattr(os, "cpu_count", lambda: 4)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """One for each of two steps."""
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    return tmp_path / "one", tmp_path / "other"


@pytest.mark.parametrize("flow", WAYS, ids=lambda flow: flow.name)
def test_the_body_runs_in_another_process_and_its_result_is_recorded(apps: Apps, flow: Any) -> None:
    run = apps(flow, crunching).start(flow, "square", 7)
    value, pid = result(run)
    assert value == 49
    assert pid != os.getpid()
    assert recorded(run) == ["square"]


def test_a_recorded_result_comes_from_the_journal(apps: Apps) -> None:
    seen: list[Any] = []

    @workflow
    def flow() -> None:
        seen.append(crunching.square(7))
        detent.receive("go")

    first, second = apps(flow, crunching), apps(flow, crunching, worker=False)
    run = first.start(flow)
    eventually(lambda: seen, "the step is done")
    crash(first, reaped_by=second)
    second.run(run.id).send("go")  # before anybody works: so it is replayed once
    second.open(worker=True)
    result(second.run(run.id))
    assert len(seen) == 2
    assert tuple(seen[0]) == tuple(seen[1])  # the process, too


def test_a_process_serves_one_step_after_the_other(apps: Apps) -> None:
    @workflow
    def flow() -> list[int]:
        return [crunching.square(number)[1] for number in range(5)]

    assert len(set(result(apps(flow).start(flow)))) == 1


@pytest.mark.parametrize("flow", WAYS, ids=lambda flow: flow.name)
def test_an_exception_comes_back(apps: Apps, flow: Any) -> None:
    app = apps(flow, crunching)
    error = failure(app.start(flow, "divide", 1, 0))
    assert type(error) is ZeroDivisionError
    assert str(error) == "division by zero"


def test_exceptions_that_a_pickle_does_not_give_back_come_back_too(apps: Apps) -> None:
    app = apps(called, crunching)
    error = failure(app.start(called, "decline"))
    assert isinstance(error, CardDeclined)
    assert (error.code, error.card) == (51, "4711")

    other = failure(app.start(called, "break_a_lock"))
    assert isinstance(other, StepFailed)
    assert "holds a lock" in str(other)


def test_the_record_shows_where_in_the_other_process_it_failed(apps: Apps) -> None:
    run = apps(called, crunching).start(called, "divide", 1, 0)
    failure(run)
    [stored] = [item.error for item in run.executions() if item.kind == "step"]
    assert stored is not None
    assert "return number / by" in stored.traceback


@pytest.mark.parametrize("flow", WAYS, ids=lambda flow: flow.name)
def test_a_step_that_ends_its_process_has_crashed(apps: Apps, flow: Any) -> None:
    error = failure(apps(flow, crunching).start(flow, "die"))
    assert isinstance(error, StepCrashed)
    assert "'die'" in str(error)


@pytest.mark.parametrize("flow", WAYS, ids=lambda flow: flow.name)
def test_a_crash_is_retried_like_any_error(apps: Apps, tmp_path: Path, flow: Any) -> None:
    assert result(apps(flow, crunching).start(flow, "die_once", str(tmp_path))) == "survived"
    assert len(begun(tmp_path)) == 2


@pytest.mark.parametrize("flow", WAYS, ids=lambda flow: flow.name)
def test_a_timeout_ends_the_process(apps: Apps, tmp_path: Path, flow: Any) -> None:
    app = apps(flow, crunching)
    error = failure(app.start(flow, "take_too_long", str(tmp_path)))
    assert isinstance(error, StepTimeout)
    assert (error.step, error.seconds) == ("take_too_long", 0.5)
    [life] = begun(tmp_path)
    assert not lives(life)
    assert result(app.start(flow, "square", 3))[0] == 9


def test_a_timeout_is_retried_like_any_error(apps: Apps, tmp_path: Path) -> None:
    assert result(apps(called).start(called, "take_too_long_once", str(tmp_path))) == "in time"
    assert len(begun(tmp_path)) == 2


@pytest.mark.parametrize("accident", ["die", "take_too_long"])
def test_what_ends_one_process_ends_no_other(apps: Apps, folders: tuple[Path, Path], accident: str) -> None:
    mine, others = folders
    app = apps(called)
    innocent = app.start(called, "wait_for_release", str(mine))
    eventually(lambda: begun(mine), "the innocent step has begun")
    failure(app.start(called, accident, *([str(others)] if accident == "take_too_long" else [])))
    (mine / "release").touch()
    assert result(innocent) == 1


def test_what_cannot_be_pickled_is_told_with_the_name_of_the_step(apps: Apps) -> None:
    @workflow
    def flow() -> None:
        with pytest.raises(
            NotPicklable, match="the arguments of step 'apply' cannot be passed between processes"
        ):
            crunching.apply(lambda: 1)
        with pytest.raises(
            NotPicklable, match="the result of step 'make_a_lock' cannot be passed between processes"
        ):
            crunching.make_a_lock()

    result(apps(flow).start(flow))


async def asynchronous() -> None: ...


def wanting_ctx(ctx: Context) -> None: ...


def wanting_context(context: Context) -> None: ...


def writing(tx: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "options"),
    [(asynchronous, {}), (wanting_ctx, {}), (wanting_context, {}), (writing, {"transactional": True})],
    ids=["async", "ctx", "annotated", "transactional"],
)
def test_what_needs_this_process_is_refused(function: Callable[..., Any], options: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match="cannot be async or transactional, or take a ctx") as caught:
        step(executor="process", **options)(function)
    assert function.__name__ in str(caught.value)
    assert Path(__file__).name in str(caught.value)


def test_what_another_process_could_not_find_is_refused() -> None:
    def local() -> None: ...

    with pytest.raises(DefinitionError, match=r"step 'local' .* define it at the top level of a module"):
        step(executor="process")(local)


def test_an_unknown_executor_is_refused() -> None:
    with pytest.raises(DefinitionError, match="it is 'thread' or 'process'"):
        step(executor="fibre")(writing)  # type: ignore[call-overload]


def test_closing_the_app_leaves_no_process(apps: Apps, folders: tuple[Path, Path]) -> None:
    waiting, idle = folders
    app = apps(called, grace=timedelta(0))
    app.start(called, "wait_for_release", str(waiting))
    eventually(lambda: begun(waiting), "the step that waits has begun")
    result(app.start(called, "die_once", str(idle)))
    assert [lives(life) for life in (*begun(waiting), *begun(idle))] == [True, False, True]
    app.close()
    assert not any(lives(life) for life in (*begun(waiting), *begun(idle)))


class TestAProgram:
    """A program of its own, with steps of `__main__`."""

    @pytest.fixture
    def program(self, sqlite_url: str, tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
        argv = [sys.executable, "-m", "tests.functions.crunching_program", sqlite_url, str(tmp_path)]
        program = subprocess.Popen(
            argv,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        with program:
            yield program
            program.kill()

    def test_ctrl_c_leaves_the_step_alone(self, program: "subprocess.Popen[str]", tmp_path: Path) -> None:
        """It goes to all processes at the terminal; the worker alone decides."""
        eventually(lambda: begun(tmp_path), "the step has begun")
        os.killpg(program.pid, signal.SIGINT)
        (tmp_path / "release").touch()
        output, errors = program.communicate(timeout=PATIENCE)
        assert (program.returncode, errors) == (0, "")
        assert output == "42\n"
        assert not lives(begun(tmp_path)[0])

    def test_a_killed_worker_takes_its_processes_along(
        self, program: "subprocess.Popen[str]", tmp_path: Path
    ) -> None:
        eventually(lambda: begun(tmp_path), "the step has begun")
        [life] = begun(tmp_path)
        assert lives(life)
        program.kill()
        eventually(lambda: not lives(life), "its process is gone")
