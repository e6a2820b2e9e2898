"""Exceptions that Python treats in a special way: in a node they are errors like any other."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

import detent
from detent import ExceptionPolicy, Workflow, cancel_if, step
from detent.testing import TestingApp
from tests.functions.world import Apps, result, state, wait_for
from tests.graphs.world import assert_error, attempts, both_kinds, one_node

PAUSED = ("paused", [("failed", "paused_by_exception")])


def stopping(*args: Any) -> Any:
    raise StopIteration("at the end")


@pytest.mark.parametrize("error", [StopIteration, SystemExit, KeyboardInterrupt], ids=lambda it: it.__name__)
@pytest.mark.parametrize("transactional", [False, True], ids=["plain", "transactional"])
def test_it_is_recorded_as_the_node_raised_it(
    testing: TestingApp, error: type[BaseException], transactional: bool
) -> None:
    def body(self: Any, *tx: Any) -> None:
        raise error("at the end")

    if transactional:

        class Flow(Workflow, name="flow"):
            @step(transactional=True)
            def work(self, tx: Any) -> None:
                body(self)

        flow: Any = Flow
    else:
        flow = one_node(body)
    run = testing.start(flow)
    testing.speedrun(run)
    assert (state(run), attempts(run)) == PAUSED
    assert_error(run, error, "at the end")


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt], ids=lambda it: it.__name__)
@pytest.mark.parametrize("transactional", [False, True], ids=["plain", "transactional"])
def test_an_async_node_that_exits_does_not_stop_the_loop(
    testing: TestingApp, error: type[BaseException], transactional: bool
) -> None:
    class Flow(Workflow, name="flow"):
        @step(transactional=transactional)
        async def work(self, *tx: Any) -> None:
            raise error("at the end")

    run = testing.start(Flow)
    testing.speedrun(run)
    assert (state(run), attempts(run)) == PAUSED
    assert_error(run, error, "at the end")
    other = testing.start(one_node(lambda self: None, is_async=True))
    testing.speedrun(other)
    assert state(other) == "finished"


@both_kinds
@pytest.mark.parametrize("error", [StopIteration, SystemExit], ids=lambda it: it.__name__)
@pytest.mark.parametrize(
    "place", ["skip_if", "cancel_if", "before_step_starts", "before_step", "around_step", "after_step"]
)
def test_it_is_recorded_as_a_condition_or_hook_raised_it(
    testing: TestingApp, is_async: bool, place: str, error: type[BaseException]
) -> None:
    def broken(self: Any, name: str = "") -> Any:
        raise error("at the end")

    options: Any = {"skip_if": broken} if place == "skip_if" else {}
    parent = one_node(lambda self: None, is_async, **options)

    class Flow(parent, name="flow"):  # type: ignore[misc,call-arg,valid-type]
        if place == "cancel_if":
            cancel_if(broken)
        elif place != "skip_if":
            locals()[place] = broken

    run = testing.start(Flow)
    testing.speedrun(run)
    assert (state(run), attempts(run)) == PAUSED
    assert_error(run, error, "at the end")


@both_kinds
def test_a_body_that_stops_passes_through_around_step(testing: TestingApp, is_async: bool) -> None:
    seen: list[str] = []

    class Around:
        @contextlib.contextmanager
        def around_step(self, name: str) -> Iterator[None]:
            try:
                yield
            finally:
                seen.append(name)

    class Flow(Around, one_node(stopping, is_async), name="flow"):  # type: ignore[misc,call-arg]
        pass

    run = testing.start(Flow)
    testing.speedrun(run)
    assert (state(run), seen) == ("paused", ["work"])
    # (In a coroutine Python itself makes a RuntimeError of it.)
    assert_error(
        run, RuntimeError if is_async else StopIteration, "coroutine raised" if is_async else "at the end"
    )


def test_policies_and_retries_apply_to_it(testing: TestingApp) -> None:
    policy = ExceptionPolicy("reattempt", on=(SystemExit,), max_reattempts=2, then="skip")
    run = testing.start(one_node(lambda self: exit(3), on_exception=policy))  # noqa: PLR1722
    testing.speedrun(run)
    again = ("failed", "reattempted_by_exception")
    assert attempts(run) == [again, again, ("skipped", "skipped_by_exception")]


@step
def leaving() -> None:
    raise SystemExit("at the end")


@step
def ending() -> None:
    raise StopIteration("at the end")


@detent.template
def broken(g: detent.Graph) -> None:
    raise StopIteration("at the end")


@pytest.mark.parametrize("job", [leaving, ending, broken])
def test_a_job_that_raises_it_pauses_its_run_and_the_worker_goes_on(apps: Apps, job: Any) -> None:
    app = apps(leaving, ending, broken)
    g = detent.Graph("jobs")
    g.node("work", job=job)
    run = app.start(g)
    wait_for(run, "paused")
    [node] = run.nodes()
    assert node.error is not None
    assert node.error.message == "at the end"
    flow = one_node(lambda self: None)
    app.engine.registry.add([flow.__blueprint__])
    assert result(app.start(flow)) == "after"
