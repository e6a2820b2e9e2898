"""Signals of a node, and what happens beside the end of a node."""

import asyncio
import logging
import threading
from datetime import timedelta
from typing import Any

import pytest

import detent
from detent import (
    InvalidState,
    Retry,
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
    eventually,
    result,
    state,
    wait_for,
)
from tests.graphs.outcomes import decline
from tests.graphs.world import assert_error, attempts, both_kinds, last, one_node

# -- Signals -------------------------------------------------------------------------------------------

VERBS = {
    "cancel": ("canceled", ("canceled", "canceled_by_flow_control")),
    "pause": ("paused", ("canceled", "paused_by_flow_control")),
    "skip": ("finished", ("skipped", "skipped_by_flow_control")),
    "finished": ("finished", ("completed", "success")),
}


@both_kinds
@pytest.mark.parametrize("verb", VERBS)
def test_except_exception_cannot_swallow_a_signal_and_finally_runs(
    testing: TestingApp, is_async: bool, verb: str
) -> None:
    went: list[str] = []

    def body(self: Any) -> str:
        try:
            getattr(self, verb)()
        except Exception:
            went.append("swallowed")
        finally:
            went.append("finally")
        went.append("behind")
        return "behind"

    run = testing.start(one_node(body, is_async))
    testing.speedrun(run)
    assert went == ["finally"]
    assert (state(run), attempts(run)) == (VERBS[verb][0], [VERBS[verb][1]])


@pytest.mark.parametrize("verb", ["cancel", "pause", "skip", "reattempt", "finished"])
def test_a_signal_outside_of_a_node_is_an_invalid_state(verb: str) -> None:
    flow = one_node(lambda self: None)
    said = verb.removesuffix("ed")
    with pytest.raises(InvalidState, match=f"cannot {said} run Flow: it is not executing a node here"):
        getattr(flow(), verb)()
    with pytest.raises(InvalidState, match="call it in a node's body"):
        flow().ctx


@both_kinds
@pytest.mark.parametrize("verb", ["cancel", "pause", "skip", "reattempt", "finished"])
def test_a_signal_after_the_node_has_ended_is_an_invalid_state(
    testing: TestingApp, is_async: bool, verb: str
) -> None:
    kept: list[Any] = []
    run = testing.start(one_node(kept.append, is_async))
    testing.speedrun(run)
    said = verb.removesuffix("ed")
    with pytest.raises(InvalidState, match=f"cannot {said} run {run.id}: it is not executing a node here"):
        getattr(kept[0], verb)()


def test_a_signal_in_a_thread_of_the_nodes_own_is_an_invalid_state(testing: TestingApp) -> None:
    """There it would end that thread, and nothing else."""
    raised: list[BaseException] = []

    def elsewhere(self: Any) -> None:
        try:
            self.skip()
        except BaseException as error:
            raised.append(error)

    def body(self: Any) -> None:
        thread = threading.Thread(target=elsewhere, args=(self,))
        thread.start()
        thread.join()

    run = testing.start(one_node(body))
    testing.speedrun(run)
    assert isinstance(raised[0], InvalidState)
    assert attempts(run) == [("completed", "success")]


@both_kinds
def test_a_signal_in_a_method_that_a_node_calls_ends_the_node(testing: TestingApp, is_async: bool) -> None:
    class Flow(one_node(lambda self: self.helper(), is_async), name="helped"):  # type: ignore[misc,call-arg]
        def helper(self) -> None:
            self.skip()

    run = testing.start(Flow)
    testing.speedrun(run)
    assert attempts(run) == [("skipped", "skipped_by_flow_control")]


def test_finished_with_what_cannot_be_stored_is_the_nodes_error(testing: TestingApp) -> None:
    run = testing.start(one_node(lambda self: self.finished(threading.Lock()), on_exception="skip"))
    testing.speedrun(run)
    assert (state(run), attempts(run)) == ("finished", [("skipped", "skipped_by_exception")])
    assert "cannot be stored" in last(run).error.message


@both_kinds
def test_a_result_that_cannot_be_stored_is_the_nodes_error_and_not_retried(
    testing: TestingApp, is_async: bool
) -> None:
    run = testing.start(one_node(lambda self: threading.Lock(), is_async, retry=Retry(attempts=5)))
    testing.speedrun(run)
    assert (state(run), attempts(run)) == ("paused", [("failed", "paused_by_exception")])
    assert "the result of node 'work' cannot be stored" in last(run).error.message


@pytest.mark.parametrize("wait", [-1, timedelta(seconds=-1)])
def test_a_reattempt_before_now_is_the_nodes_error(testing: TestingApp, wait: Any) -> None:
    run = testing.start(one_node(lambda self: self.reattempt(wait=wait) if self.ctx.attempt == 1 else None))
    testing.speedrun(run)
    assert attempts(run) == [("failed", "paused_by_exception")]
    assert "negative" in last(run).error.message


# -- What is beside ------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["raise", "retry", "pause", "cancel", "skip"])
def test_a_finished_run_stays_finished_whatever_its_other_nodes_end_with(apps: Apps, end: str) -> None:
    gate, calls = Gate(), []

    class Flow(Workflow):
        @task(retry=Retry(attempts=2 if end == "retry" else 1, first=timedelta(0)))
        def slow(self) -> None:
            calls.append("slow")
            gate.pass_through()
            if end in ("raise", "retry"):
                raise CardDeclined(1, card="x")
            getattr(self, end)()

        @task
        def ends(self) -> None:
            gate.wait_for_arrival()
            self.finished("early")

    run = apps(Flow).start(Flow)
    assert result(run) == "early"
    gate.open()
    eventually(lambda: last(run, "slow").state not in ("executing", "scheduled"), "the other has ended")
    assert (state(run), result(run), calls) == ("finished", "early", ["slow"])
    assert len(attempts(run, "slow")) == 1


def test_a_node_that_dies_in_a_finished_run_does_not_run_again(apps: Apps) -> None:
    gate, calls = Gate(), []

    class Flow(Workflow):
        @task
        def slow(self) -> None:
            calls.append("slow")
            gate.pass_through()

        @task
        def ends(self) -> None:
            gate.wait_for_arrival()
            self.finished("early")

    first, second = apps(Flow), apps(Flow, worker=False)
    run = first.start(Flow)
    assert result(run) == "early"
    crash(first, reaped_by=second)
    gate.open()
    assert attempts(second.run(run.id), "slow") == [("failed", "recovered")]
    assert state(second.run(run.id)) == "finished"


@pytest.mark.parametrize("how", ["cancel", "raise"])
def test_a_node_that_cancels_the_run_cancels_what_is_scheduled(testing: TestingApp, how: str) -> None:
    class Flow(Workflow):
        @task
        def ends(self) -> None:
            if how == "cancel":
                self.cancel()
            raise CardDeclined(1, card="x")

        @task(wait=timedelta(days=1))
        def scheduled(self) -> None: ...

        detent.on_exception(action="cancel")

    run = testing.start(Flow)
    testing.speedrun(run)
    assert state(run) == "canceled"
    assert last(run, "scheduled").state == "canceled"


@both_kinds
def test_an_error_is_logged_and_reported_once_its_state_is_durable(
    apps: Apps, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    reported: list[Any] = []
    flow = one_node(decline, is_async)

    def on_error(error: BaseException, ctx: detent.Context) -> None:
        # Another connection sees it: it is committed.
        run = app.run(ctx.run.id)
        reported.append((error, ctx.name, ctx.attempt, state(run), attempts(run)))

    app = apps(flow, on_error=on_error)
    with caplog.at_level(logging.WARNING, "detent.worker"):
        run = app.start(flow)
        wait_for(run, "paused")
        eventually(lambda: reported, "it is reported")
    [(error, name, attempt, run_state, seen)] = reported
    assert isinstance(error, CardDeclined)
    assert (name, attempt) == ("work", 1)
    assert (run_state, seen) == ("paused", [("failed", "paused_by_exception")])
    [line] = [record for record in caplog.records if record.exc_info and record.exc_info[1] is error]
    assert run.id in line.getMessage()
    assert "'work' (attempt 1)" in line.getMessage()


@pytest.mark.parametrize("action", ["pause", "cancel", "skip", "reattempt"])
def test_every_error_is_reported_whatever_becomes_of_it(testing: TestingApp, url: str, action: Any) -> None:
    reported: list[int] = []

    def body(self: Any) -> None:
        if self.ctx.attempt == 1:
            decline(self)

    with TestingApp(url, on_error=lambda error, ctx: reported.append(ctx.attempt)) as app:
        run = app.start(one_node(body, on_exception=action))
        app.speedrun(run)
        app.settle_down()
    assert reported == [1]


def test_an_error_hook_that_fails_is_no_harm(apps: Apps, caplog: pytest.LogCaptureFixture) -> None:
    flow = one_node(decline)
    fine = one_node(lambda self: None)
    fine.__blueprint__.name = "fine"

    def on_error(error: BaseException, ctx: detent.Context) -> None:
        raise RuntimeError("the pager is down")

    app = apps(flow, fine, on_error=on_error)
    run = app.start(flow)
    wait_for(run, "paused")
    assert result(app.start(fine)) == "after"
    assert attempts(run) == [("failed", "paused_by_exception")]


@both_kinds
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_what_would_end_a_process_pauses_the_run_and_the_worker_lives_on(
    apps: Apps, is_async: bool, kind: type[BaseException]
) -> None:
    """From a thread it would not end the process anyway; from the loop it would take all others along."""

    def body(self: Any) -> None:
        if self.ctx.attempt == 1:
            raise kind("a node must not")

    flow = one_node(body, is_async)
    app = apps(flow)
    run = app.start(flow)
    wait_for(run, "paused")
    assert attempts(run) == [("failed", "paused_by_exception")]
    assert_error(run, kind, "a node must not")
    run.resume()
    assert result(run) == "after"


def test_an_async_node_that_awaits_something_cancelled_fails(testing: TestingApp) -> None:
    class Flow(Workflow):
        @step
        async def waits(self) -> None:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            future.cancel()
            await future

    run = testing.start(Flow)
    testing.speedrun(run)
    assert (state(run), attempts(run, "waits")) == ("paused", [("failed", "paused_by_exception")])
    assert "awaited something that was cancelled" in last(run, "waits").error.message
