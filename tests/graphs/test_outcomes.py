"""What can happen to a node: one test for each row of the table of outcomes."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

import detent
from detent import (
    ExceptionPolicy,
    Retry,
    RunCanceled,
    RunPaused,
    StepTimeout,
    Workflow,
    step,
    task,
)
from detent.testing import TestingApp
from tests.functions.world import (
    Apps,
    CardDeclined,
    Gate,
    crash,
    failure,
    result,
    state,
    wait_for,
)
from tests.graphs.outcomes import decline
from tests.graphs.world import assert_error, attempts, both_kinds, last, one_node, states

DECLINED = "card 4111 declined with 51"


@both_kinds
def test_body_returned(testing: TestingApp, is_async: bool) -> None:
    run = testing.start(one_node(lambda self: {"receipt": 7}, is_async))
    testing.speedrun(run)
    assert (state(run), attempts(run)) == ("finished", [("completed", "success")])
    assert (last(run).result, last(run).error) == ({"receipt": 7}, None)
    assert result(run) == "after"


@both_kinds
def test_reattempt_in_the_body(testing: TestingApp, is_async: bool) -> None:
    seen: list[Any] = []

    def body(self: Any) -> None:
        seen.append((self.ctx.attempt, testing.clock()))
        if self.ctx.attempt == 1:
            self.reattempt(wait=timedelta(hours=3))

    began = testing.clock()
    run = testing.start(one_node(body, is_async))
    testing.speedrun(run)
    assert (state(run), attempts(run)) == (
        "finished",
        [("completed", "reattempted"), ("completed", "success")],
    )
    assert seen == [(1, began), (2, began + timedelta(hours=3))]
    assert last(run).error is None


@both_kinds
def test_reattempt_in_the_body_without_a_wait(testing: TestingApp, is_async: bool) -> None:
    def body(self: Any) -> None:
        if self.ctx.attempt < 150:  # there is no limit to what a node asks for itself
            self.reattempt()

    run = testing.start(one_node(body, is_async))
    testing.speedrun(run)
    assert state(run) == "finished"
    assert attempts(run) == [*[("completed", "reattempted")] * 149, ("completed", "success")]


@both_kinds
def test_skip_in_the_body(testing: TestingApp, is_async: bool) -> None:
    run = testing.start(one_node(lambda self: self.skip(), is_async))
    testing.speedrun(run)
    assert (state(run), attempts(run)) == ("finished", [("skipped", "skipped_by_flow_control")])
    assert attempts(run, "after") == [("completed", "success")]
    assert last(run).error is None


@both_kinds
@pytest.mark.parametrize("option", ["skip_if", "only_if"])
def test_skip_if_true_only_if_false(testing: TestingApp, is_async: bool, option: str) -> None:
    calls: list[str] = []
    flow = one_node(lambda self: calls.append("work"), is_async, **{option: option == "skip_if"})
    run = testing.start(flow)
    testing.speedrun(run)
    assert (state(run), attempts(run)) == ("finished", [("skipped", "skipped_by_condition")])
    assert attempts(run, "after") == [("completed", "success")]
    assert calls == []


@both_kinds
def test_run_skip(testing: TestingApp, is_async: bool) -> None:
    calls: list[str] = []
    run = testing.start(one_node(lambda self: calls.append("work"), is_async, wait=timedelta(days=1)))
    testing.settle_down()
    run.skip("work")
    testing.settle_down()
    assert (state(run), attempts(run)) == ("finished", [("skipped", "skipped_by_operator")])
    assert attempts(run, "after") == [("completed", "success")]
    assert calls == []


@both_kinds
def test_cancel_in_the_body(testing: TestingApp, is_async: bool) -> None:
    run = testing.start(one_node(lambda self: self.cancel(), is_async))
    testing.speedrun(run)
    assert (state(run), attempts(run)) == ("canceled", [("canceled", "canceled_by_flow_control")])
    assert attempts(run, "after") == []
    assert last(run).error is None
    assert isinstance(failure(run), RunCanceled)


@both_kinds
def test_cancel_if_true(testing: TestingApp, is_async: bool) -> None:
    calls: list[str] = []

    class Flow(one_node(lambda self: calls.append("work"), is_async), name="guarded"):  # type: ignore[misc,call-arg]
        @detent.cancel_if
        def closed(self) -> bool:
            return True

    run = testing.start(Flow)
    testing.speedrun(run)
    assert (state(run), attempts(run)) == ("canceled", [("canceled", "canceled_by_condition")])
    assert (calls, attempts(run, "after")) == ([], [])


@both_kinds
def test_hero_gone(testing: TestingApp, is_async: bool) -> None:
    calls: list[str] = []
    flow = one_node(lambda self: calls.append("work"), is_async)
    testing.include(flow)
    testing.hero(Customer, key=lambda hero: hero.id, load=lambda id: None)
    run = testing.options(hero=Customer(5)).start(flow)
    testing.speedrun(run)
    assert (state(run), attempts(run)) == ("canceled", [("canceled", "canceled_by_missing_hero")])
    assert calls == []


@both_kinds
def test_hero_gone_and_may_proceed_without(testing: TestingApp, is_async: bool) -> None:
    seen: list[Any] = []

    class Flow(one_node(lambda self: seen.append(self.hero), is_async), name="brave"):  # type: ignore[misc,call-arg]
        may_proceed_without_hero = True

    testing.include(Flow)
    testing.hero(Customer, key=lambda hero: hero.id, load=lambda id: None)
    run = testing.options(hero=Customer(5)).start(Flow)
    testing.speedrun(run)
    assert (state(run), attempts(run)) == ("finished", [("completed", "success")])
    assert seen == [None]


class Customer:
    def __init__(self, id: int) -> None:
        self.id = id


@both_kinds
def test_run_cancel(testing: TestingApp, is_async: bool) -> None:
    class Flow(one_node(lambda self: None, is_async, wait=timedelta(days=1)), name="two"):  # type: ignore[misc,call-arg]
        @task(wait=timedelta(days=2))
        def aside(self) -> None: ...

    run = testing.start(Flow)
    testing.settle_down()
    run.cancel()
    assert (state(run), states(run)) == ("canceled", {"work": "canceled", "aside": "canceled"})
    for node in ("work", "aside"):
        assert attempts(run, node) == [("canceled", "canceled_by_operator")]


@both_kinds
def test_pause_in_the_body(testing: TestingApp, is_async: bool) -> None:
    calls: list[int] = []

    def body(self: Any) -> None:
        calls.append(self.ctx.attempt)
        if self.ctx.attempt == 1:
            self.pause()

    run = testing.start(one_node(body, is_async))
    testing.speedrun(run)
    assert (state(run), attempts(run)) == ("paused", [("canceled", "paused_by_flow_control")])
    assert attempts(run, "after") == []
    assert isinstance(failure(run), RunPaused)
    run.resume()
    testing.speedrun(run)
    assert state(run) == "finished"
    assert attempts(run) == [("canceled", "paused_by_flow_control"), ("completed", "success")]
    assert calls == [1, 2]


@both_kinds
def test_pause_after_the_body(testing: TestingApp, is_async: bool) -> None:
    calls: list[int] = []

    def body(self: Any) -> None:
        calls.append(self.ctx.attempt)
        self.pause(after=True)

    run = testing.start(one_node(body, is_async))
    testing.speedrun(run)
    assert (state(run), attempts(run)) == ("paused", [("completed", "success")])
    assert "after" not in states(run) or states(run)["after"] == "scheduled"
    run.resume()
    testing.speedrun(run)
    assert (state(run), calls) == ("finished", [1])
    assert attempts(run, "after") == [("completed", "success")]


def test_pause_after_the_last_body_finishes_on_resume(testing: TestingApp) -> None:
    class Flow(Workflow):
        @step
        def only(self) -> None:
            self.pause(after=True)

    run = testing.start(Flow)
    testing.speedrun(run)
    assert (state(run), attempts(run, "only")) == ("paused", [("completed", "success")])
    run.resume()
    testing.speedrun(run)
    assert (state(run), attempts(run, "only")) == ("finished", [("completed", "success")])


@both_kinds
def test_finished_in_the_body(testing: TestingApp, is_async: bool) -> None:
    class Flow(one_node(lambda self: self.finished("early"), is_async), name="done"):  # type: ignore[misc,call-arg]
        @task(wait=timedelta(days=2))
        def aside(self) -> None: ...

    run = testing.start(Flow)
    testing.speedrun(run)
    assert (state(run), attempts(run)) == ("finished", [("completed", "success")])
    assert attempts(run, "aside") == [("canceled", "canceled_by_finish")]
    assert attempts(run, "after") == []
    assert result(run) == "early"


@both_kinds
def test_exception_pause_which_is_the_default(testing: TestingApp, is_async: bool) -> None:
    run = testing.start(one_node(decline, is_async))
    testing.speedrun(run)
    assert (state(run), attempts(run)) == ("paused", [("failed", "paused_by_exception")])
    assert_error(run, CardDeclined, DECLINED)
    assert attempts(run, "after") == []
    paused = failure(run)
    assert isinstance(paused, RunPaused)
    assert DECLINED in str(paused)
    assert isinstance(paused.__cause__, CardDeclined)


@both_kinds
def test_exception_pause_as_it_is_written(testing: TestingApp, is_async: bool) -> None:
    run = testing.start(one_node(decline, is_async, on_exception="pause"))
    testing.speedrun(run)
    assert (state(run), attempts(run)) == ("paused", [("failed", "paused_by_exception")])


@both_kinds
def test_exception_cancel(testing: TestingApp, is_async: bool) -> None:
    run = testing.start(one_node(decline, is_async, on_exception="cancel"))
    testing.speedrun(run)
    assert (state(run), attempts(run)) == ("canceled", [("failed", "canceled_by_exception")])
    assert_error(run, CardDeclined, DECLINED)
    assert attempts(run, "after") == []


@both_kinds
def test_exception_skip(testing: TestingApp, is_async: bool) -> None:
    run = testing.start(one_node(decline, is_async, on_exception="skip"))
    testing.speedrun(run)
    assert (state(run), attempts(run)) == ("finished", [("skipped", "skipped_by_exception")])
    assert_error(run, CardDeclined, DECLINED)
    assert attempts(run, "after") == [("completed", "success")]


@both_kinds
@pytest.mark.parametrize(
    "option",
    [
        {"on_exception": "reattempt"},
        {"on_exception": ExceptionPolicy("reattempt", wait=timedelta(hours=1))},
        {"retry": Retry(attempts=2)},
    ],
    ids=["reattempt", "policy", "retry"],
)
def test_exception_reattempt_or_a_retry_left(
    testing: TestingApp, is_async: bool, option: dict[str, Any]
) -> None:
    seen: list[Any] = []

    def body(self: Any) -> None:
        seen.append(testing.clock())
        if self.ctx.attempt == 1:
            decline(self)

    run = testing.start(one_node(body, is_async, **option))
    testing.settle_down()
    assert attempts(run)[0] == ("failed", "reattempted_by_exception")
    testing.speedrun(run)
    assert state(run) == "finished"
    assert attempts(run) == [("failed", "reattempted_by_exception"), ("completed", "success")]
    first = min((item for item in run.executions() if item.node == "work"), key=lambda item: item.attempt)
    assert first.error is not None
    assert (first.error.message, "Traceback" in first.error.traceback) == (DECLINED, True)
    wait = (
        timedelta(hours=1)
        if isinstance(option.get("on_exception"), ExceptionPolicy)
        else timedelta(seconds=1)
    )
    assert seen[1] - seen[0] == wait


@both_kinds
@pytest.mark.parametrize(
    ("policy", "expected", "run_state"),
    [
        (None, ("failed", "paused_by_exception"), "paused"),
        ("cancel", ("failed", "canceled_by_exception"), "canceled"),
        ("skip", ("skipped", "skipped_by_exception"), "finished"),
    ],
)
def test_timeout(
    apps: Apps, is_async: bool, policy: str | None, expected: tuple[str, str], run_state: str
) -> None:
    released = threading.Event()

    class Flow(Workflow):
        @step(timeout=0.05, on_exception=policy)  # type: ignore[arg-type]
        def slow(self) -> None:
            released.wait(20)

    class AsyncFlow(Workflow):
        @step(timeout=0.05, on_exception=policy)  # type: ignore[arg-type]
        async def slow(self) -> None:
            await asyncio.sleep(20)

    chosen: Any = AsyncFlow if is_async else Flow
    run = apps(chosen).start(chosen)
    wait_for(run, run_state)
    released.set()
    assert attempts(run, "slow") == [expected]
    assert_error(run, StepTimeout, "'slow' took longer than its timeout of 0.05 s", "slow")


@both_kinds
def test_timeout_with_a_retry_left(apps: Apps, is_async: bool) -> None:
    released = threading.Event()

    def body(self: Any) -> None:
        if self.ctx.attempt == 1:
            released.wait(20)

    class Flow(Workflow):
        @step(timeout=0.05, retry=Retry(attempts=2, first=timedelta(0)))
        def slow(self) -> None:
            if self.ctx.attempt == 1:
                released.wait(20)

    class AsyncFlow(Workflow):
        @step(timeout=0.05, retry=Retry(attempts=2, first=timedelta(0)))
        async def slow(self) -> None:
            if self.ctx.attempt == 1:
                await asyncio.sleep(20)

    chosen: Any = AsyncFlow if is_async else Flow
    run = apps(chosen).start(chosen)
    wait_for(run, "finished")
    released.set()
    assert attempts(run, "slow") == [("failed", "reattempted_by_exception"), ("completed", "success")]


@both_kinds
def test_a_timeout_error_of_the_bodys_own_is_an_error_like_others(
    testing: TestingApp, is_async: bool
) -> None:
    def body(self: Any) -> None:
        raise TimeoutError("the bank does not answer")

    run = testing.start(one_node(body, is_async, timeout=60))
    testing.speedrun(run)
    assert_error(run, TimeoutError, "the bank does not answer")


@both_kinds
def test_lease_ran_out_worker_dead(apps: Apps, is_async: bool) -> None:
    gate, calls = Gate(), []

    def body(self: Any) -> None:
        calls.append(self.ctx.attempt)
        if self.ctx.attempt == 1:
            gate.pass_through()

    flow = one_node(body, False)

    class AsyncFlow(Workflow, name="flow"):
        @step
        async def work(self) -> None:
            calls.append(self.ctx.attempt)
            if self.ctx.attempt == 1:
                await asyncio.to_thread(gate.pass_through)

        @step
        def after(self) -> str:
            return "after"

    chosen: Any = AsyncFlow if is_async else flow
    first = apps(chosen)
    run = first.start(chosen)
    gate.wait_for_arrival()
    second = apps(chosen)
    crash(first, reaped_by=second)
    run = second.run(run.id)
    assert result(run) == "after"
    gate.open()
    assert attempts(run) == [("failed", "recovered"), ("completed", "success")]
    assert calls == [1, 2]


def test_the_graph_was_changed_under_it(testing: TestingApp) -> None:
    class Before(Workflow, name="changing"):
        @step
        def a(self) -> None: ...

        @step(wait=timedelta(days=1))
        def b(self) -> None: ...

    calls: list[str] = []

    class After(Workflow, name="changing"):
        @step
        def added(self) -> None:
            calls.append("added")

        @step
        def a(self) -> None: ...

        @step(wait=timedelta(days=1))
        def b(self) -> None: ...

    run = testing.start(Before)
    testing.settle_down()
    testing.include(After)
    testing.speedrun(run)
    assert state(run) == "finished"
    assert attempts(run, "added") == [("canceled", "bypassed_by_deploy")]
    assert calls == []
