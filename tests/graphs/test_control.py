"""Control from outside, while nodes execute in another app: pause, resume, cancel, skip."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

import detent
from detent import InvalidState, Workflow, step, task
from detent.errors import NodeNotFound, RunNotFound
from detent.testing import TestingApp
from tests.functions.world import Apps, Gate, events, eventually, result, state
from tests.graphs.world import attempts, last, one_node, states


class Diamond:
    """`left` and `right` beside each other, then `join`; each waits at its gate."""

    def __init__(self, **options: Any) -> None:
        self.left, self.right = Gate(), Gate()
        self.calls: list[str] = []
        world = self

        class Flow(Workflow, name="diamond"):
            @task
            def left(self) -> None:
                world.calls.append("left")
                world.left.pass_through()

            @task(**options)
            def right(self) -> None:
                world.calls.append("right")
                world.right.pass_through()

            @task(depends_on=[left, right])
            def join(self) -> str:
                world.calls.append("join")
                return "joined"

        self.flow = Flow


@pytest.fixture
def gated() -> tuple[Gate, Any, list[str]]:
    """A workflow of `work`, that waits at a gate, and `after`."""
    gate, calls = Gate(), []

    class Flow(Workflow, name="gated"):
        @step
        def work(self) -> str:
            calls.append("work")
            gate.pass_through()
            return "worked"

        @step
        def after(self) -> str:
            calls.append("after")
            return "done"

    return gate, Flow, calls


# -- Pause and resume ----------------------------------------------------------------------------------


def test_a_pause_lets_what_executes_end_and_holds_what_follows(apps: Apps, gated: Any) -> None:
    gate, flow, calls = gated
    worker, operator = apps(flow), apps(flow, worker=False)
    run = worker.start(flow)
    gate.wait_for_arrival()
    operator.run(run.id).pause(reason="a look at the books")
    assert state(run) == "paused"
    gate.open()
    eventually(lambda: last(run).state == "completed", "it has ended")
    assert attempts(run) == [("completed", "success")]
    assert last(run).stored_result == '"worked"'
    assert (states(run).get("after", "scheduled"), calls) == ("scheduled", ["work"])
    operator.run(run.id).resume()
    assert result(run) == "done"
    assert calls == ["work", "after"]
    assert events(run, "paused") == [{"by": "operator", "reason": "a look at the books"}]


def test_a_pause_between_two_nodes_beside_each_other_holds_their_join(apps: Apps) -> None:
    world = Diamond()
    worker, operator = apps(world.flow), apps(world.flow, worker=False)
    run = worker.start(world.flow)
    world.left.wait_for_arrival()
    world.right.wait_for_arrival()
    world.left.open()
    eventually(lambda: last(run, "left").state == "completed", "the left one has ended")
    operator.run(run.id).pause()
    world.right.open()
    eventually(lambda: last(run, "right").state == "completed", "the right one has ended")
    assert world.calls.count("join") == 0
    operator.run(run.id).resume()
    assert result(run) == "joined"
    assert world.calls.count("join") == 1


def test_a_resume_while_a_node_still_executes_begins_no_second_attempt(apps: Apps, gated: Any) -> None:
    gate, flow, calls = gated
    worker, operator = apps(flow), apps(flow)
    run = worker.start(flow)
    gate.wait_for_arrival()
    operator.run(run.id).pause()
    operator.run(run.id).resume()
    gate.open()
    assert result(run) == "done"
    assert (calls, attempts(run)) == (["work", "after"], [("completed", "success")])


def test_the_last_node_of_a_paused_run_ends_and_the_run_is_over(apps: Apps, gated: Any) -> None:
    """There is nothing left that a pause could hold."""
    gate, _, _ = gated

    class Flow(Workflow, name="short"):
        @step
        def only(self) -> str:
            gate.pass_through()
            return "done"

    worker, operator = apps(Flow), apps(Flow, worker=False)
    run = worker.start(Flow)
    gate.wait_for_arrival()
    operator.run(run.id).pause()
    gate.open()
    eventually(lambda: last(run, "only").state == "completed", "it has ended")
    assert state(run) == "finished"
    assert result(run) == "done"
    assert attempts(run, "only") == [("completed", "success")]


def test_a_node_that_fails_in_a_paused_run_is_recorded_and_begins_again_on_resume(apps: Apps) -> None:
    gate = Gate()

    def body(self: Any) -> None:
        if self.ctx.attempt == 1:
            gate.pass_through()
            raise LookupError("no such order")

    flow = one_node(body)
    worker, operator = apps(flow), apps(flow, worker=False)
    run = worker.start(flow)
    gate.wait_for_arrival()
    operator.run(run.id).pause()
    gate.open()
    eventually(lambda: last(run).state == "failed", "it has ended")
    assert (state(run), attempts(run)) == ("paused", [("failed", "paused_by_exception")])
    operator.run(run.id).resume()
    assert result(run) == "after"


def test_scheduled_nodes_keep_their_time_over_a_pause(testing: TestingApp) -> None:
    run = testing.start(one_node(lambda self: None, wait=timedelta(days=3)))
    testing.settle_down()
    due = last(run).scheduled_for
    run.pause()
    testing.clock.advance(days=1)
    assert (last(run).state, last(run).scheduled_for) == ("scheduled", due)
    run.resume()
    testing.settle_down()
    assert (last(run).state, last(run).scheduled_for) == ("scheduled", due)
    testing.speedrun(run)
    assert (state(run), testing.clock()) == ("finished", due)


def test_what_is_overdue_after_a_pause_runs_now(testing: TestingApp) -> None:
    run = testing.start(one_node(lambda self: None, wait=timedelta(days=3)))
    testing.settle_down()
    due = last(run).scheduled_for
    run.pause()
    testing.clock.advance(days=30)
    testing.poke()
    testing.settle_down()
    assert last(run).state == "scheduled"
    run.resume()
    testing.settle_down()
    assert (state(run), last(run).scheduled_for, attempts(run)) == (
        "finished",
        due,
        [("completed", "success")],
    )


def test_a_retry_that_waits_keeps_its_time_over_a_pause(testing: TestingApp) -> None:
    def body(self: Any) -> None:
        if self.ctx.attempt == 1:
            raise LookupError

    policy = detent.ExceptionPolicy("reattempt", wait=timedelta(days=3))
    run = testing.start(one_node(body, on_exception=policy))
    testing.settle_down()
    due = last(run).scheduled_for
    run.pause()
    run.resume()
    testing.settle_down()
    assert (last(run).attempt, last(run).state, last(run).scheduled_for) == (2, "scheduled", due)


def test_a_paused_run_that_has_not_begun_does_not_begin(apps: Apps) -> None:
    flow = one_node(lambda self: None)
    run = apps(flow, worker=False).start(flow)
    run.pause()
    worker = apps(flow)
    other = worker.options(priority=-1).start(flow)
    assert result(other) == "after"
    assert last(run).state == "scheduled"
    run.resume()
    assert result(run) == "after"


def test_two_failed_nodes_begin_again_with_one_resume(testing: TestingApp) -> None:
    class Flow(Workflow):
        @task
        def left(self) -> None:
            if self.ctx.attempt == 1:
                raise LookupError("left")

        @task
        def right(self) -> None:
            if self.ctx.attempt == 1:
                raise LookupError("right")

        @task(depends_on=[left, right])
        def join(self) -> str:
            return "joined"

    run = testing.start(Flow)
    testing.speedrun(run)
    testing.settle_down()
    assert state(run) == "paused"
    run.resume()
    testing.speedrun(run)
    assert result(run) == "joined"
    assert len(attempts(run, "join")) == 1


def test_what_waits_beside_a_failed_node_waits_for_the_resume(testing: TestingApp) -> None:
    calls: list[str] = []

    class Flow(Workflow):
        @task
        def fails(self) -> None:
            if self.ctx.attempt == 1:
                raise LookupError

        @task(wait=timedelta(hours=1))
        def beside(self) -> None:
            calls.append("beside")

    run = testing.start(Flow)
    testing.settle_down()
    assert state(run) == "paused"
    testing.clock.advance(hours=2)
    testing.poke()
    testing.settle_down()
    assert calls == []
    run.resume()
    testing.speedrun(run)
    assert (state(run), calls, len(attempts(run, "beside"))) == ("finished", ["beside"], 1)


# -- Cancel --------------------------------------------------------------------------------------------


def test_a_cancel_is_seen_by_what_executes_elsewhere_and_nothing_follows(apps: Apps) -> None:
    gate, told = Gate(), threading.Event()

    def body(self: Any) -> str:
        gate.pass_through()
        eventually(lambda: self.ctx.cancel_requested, "the node is told")
        told.set()
        return "too late"

    flow = one_node(body)
    worker, operator = apps(flow), apps(flow, worker=False)
    run = worker.start(flow)
    gate.wait_for_arrival()
    operator.run(run.id).cancel(reason="changed their bound")
    assert state(run) == "canceled"
    gate.open()
    assert told.wait(20)
    eventually(lambda: last(run).state != "executing", "it has ended")
    assert attempts(run) == [("canceled", "canceled_by_operator")]
    assert attempts(run, "after") == []
    assert {"reason": "changed their bound"} in events(run, "canceled")


def test_a_canceled_node_that_raises_is_recorded_as_canceled_with_its_error(apps: Apps) -> None:
    gate = Gate()

    def body(self: Any) -> None:
        gate.pass_through()
        raise LookupError("in the end")

    flow = one_node(body, retry=detent.Retry(attempts=5, first=timedelta(0)))
    worker = apps(flow)
    run = worker.start(flow)
    gate.wait_for_arrival()
    run.cancel()
    gate.open()
    eventually(lambda: last(run).state != "executing", "it has ended")
    assert attempts(run) == [("canceled", "canceled_by_operator")]
    assert last(run).error.message == "in the end"


def test_an_async_node_is_cancelled_with_its_run(apps: Apps) -> None:
    begun, cancelled = threading.Event(), threading.Event()

    class Flow(Workflow):
        @step
        async def hangs(self) -> None:
            begun.set()
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                cancelled.set()
                raise

    worker, operator = apps(Flow), apps(Flow, worker=False)
    run = worker.start(Flow)
    assert begun.wait(20)
    operator.run(run.id).cancel()
    assert cancelled.wait(20)
    eventually(lambda: last(run, "hangs").state != "executing", "it has ended")
    assert attempts(run, "hangs") == [("canceled", "canceled_by_operator")]


def test_a_heartbeat_ends_a_node_of_a_canceled_run(apps: Apps) -> None:
    gate = Gate()

    def body(self: Any) -> None:
        gate.pass_through()
        eventually(self.ctx.heartbeat, "it is canceled")

    flow = one_node(body)
    run = apps(flow).start(flow)
    gate.wait_for_arrival()
    run.cancel()
    gate.open()
    eventually(lambda: last(run).state == "canceled", "it has ended")


def test_a_paused_run_can_be_canceled_and_its_failed_node_stays_failed(testing: TestingApp) -> None:
    def body(self: Any) -> None:
        raise LookupError

    run = testing.start(one_node(body))
    testing.speedrun(run)
    run.cancel()
    assert (state(run), attempts(run)) == ("canceled", [("failed", "paused_by_exception")])


# -- Skip ----------------------------------------------------------------------------------------------


def test_a_failed_node_can_be_skipped_and_the_run_goes_on(testing: TestingApp) -> None:
    def body(self: Any) -> None:
        raise LookupError

    run = testing.start(one_node(body))
    testing.speedrun(run)
    run.skip("work")
    testing.speedrun(run)
    assert state(run) == "finished"
    assert attempts(run) == [("failed", "paused_by_exception"), ("skipped", "skipped_by_operator")]
    assert attempts(run, "after") == [("completed", "success")]
    assert {"node": "work", "by": "operator"} in events(run, "skipped")


def test_a_node_that_paused_itself_can_be_skipped(testing: TestingApp) -> None:
    run = testing.start(one_node(lambda self: self.pause()))
    testing.speedrun(run)
    run.skip("work")
    assert state(run) == "paused"
    run.resume()
    testing.speedrun(run)
    assert state(run) == "finished"
    assert attempts(run) == [("canceled", "paused_by_flow_control"), ("skipped", "skipped_by_operator")]


def test_a_scheduled_node_of_a_run_that_is_paused_can_be_skipped_and_the_run_stays_paused(
    testing: TestingApp,
) -> None:
    run = testing.start(one_node(lambda self: None, wait=timedelta(days=1)))
    testing.settle_down()
    run.pause()
    run.skip("work")
    testing.settle_down()
    assert (state(run), attempts(run)) == ("paused", [("skipped", "skipped_by_operator")])
    assert attempts(run, "after") in ([], [("scheduled", None)])
    run.resume()
    testing.speedrun(run)
    assert state(run) == "finished"


def test_skipping_one_of_two_failed_nodes_leaves_the_run_paused(testing: TestingApp) -> None:
    class Flow(Workflow):
        @task
        def left(self) -> None:
            raise LookupError("left")

        @task
        def right(self) -> None:
            raise LookupError("right")

        @task(depends_on=[left, right])
        def join(self) -> str:
            return "joined"

    run = testing.start(Flow)
    testing.speedrun(run)
    eventually(lambda: states(run) == {"left": "failed", "right": "failed"}, "both have failed")
    run.skip("left")
    assert state(run) == "paused"
    run.skip("right")
    testing.speedrun(run)
    assert result(run) == "joined"


def test_a_skipped_node_counts_for_its_join_once(testing: TestingApp) -> None:
    class Flow(Workflow):
        @task(wait=timedelta(days=1))
        def left(self) -> None: ...

        @task
        def right(self) -> None: ...

        @task(depends_on=[left, right])
        def join(self) -> str:
            return "joined"

    run = testing.start(Flow)
    testing.settle_down()
    run.skip("left")
    testing.speedrun(run)
    assert (result(run), attempts(run, "join")) == ("joined", [("completed", "success")])


def test_the_last_node_can_be_skipped_and_the_run_is_finished(testing: TestingApp) -> None:
    class Flow(Workflow):
        @step(wait=timedelta(days=1))
        def only(self) -> None: ...

    run = testing.start(Flow)
    testing.settle_down()
    run.skip("only")
    testing.settle_down()
    assert (state(run), result(run)) == ("finished", None)


# -- What does not apply -------------------------------------------------------------------------------


def test_an_executing_node_can_neither_be_skipped_nor_reattempted(apps: Apps, gated: Any) -> None:
    gate, flow, _ = gated
    worker, operator = apps(flow), apps(flow, worker=False)
    run = worker.start(flow)
    gate.wait_for_arrival()
    for verb in ("skip", "reattempt"):
        with pytest.raises(InvalidState, match=f"cannot {verb} node 'work' of run {run.id}: .*executing"):
            getattr(operator.run(run.id), verb)("work")
    gate.open()
    assert result(run) == "done"
    assert attempts(run) == [("completed", "success")]


def test_a_completed_node_cannot_be_skipped(apps: Apps, gated: Any) -> None:
    gate, flow, _ = gated
    gate.open()

    class Flow(flow, name="longer"):  # type: ignore[misc,call-arg,valid-type]
        @step(wait=timedelta(days=1))
        def later(self) -> None: ...

    run = apps(Flow).start(Flow)
    eventually(lambda: "later" in states(run), "the last one waits")
    with pytest.raises(InvalidState, match=f"cannot skip node 'work' of run {run.id}: .*completed"):
        run.skip("work")


def test_a_node_that_has_not_been_reached_cannot_be_skipped(testing: TestingApp) -> None:
    run = testing.start(one_node(lambda self: None, wait=timedelta(days=1)))
    testing.settle_down()
    with pytest.raises(
        InvalidState, match=f"cannot skip node 'after' of run {run.id}: it is not reached yet"
    ):
        run.skip("after")


def test_a_resume_of_what_is_not_paused_is_refused(testing: TestingApp) -> None:
    run = testing.start(one_node(lambda self: None, wait=timedelta(days=1)))
    testing.settle_down()
    with pytest.raises(InvalidState, match=f"cannot resume run {run.id}: it is ready") as caught:
        run.resume()
    assert (caught.value.verb, caught.value.state, caught.value.run_id) == ("resume", "ready", run.id)


@pytest.mark.parametrize("final", ["finished", "canceled"])
@pytest.mark.parametrize("verb", ["pause", "resume", "cancel", "skip", "reattempt"])
def test_nothing_applies_to_a_run_that_is_over(testing: TestingApp, final: str, verb: str) -> None:
    run = testing.start(one_node(lambda self: self.cancel() if final == "canceled" else None))
    testing.speedrun(run)
    before = [(item.node, item.attempt, item.state) for item in run.executions()]
    with pytest.raises(InvalidState, match=rf"cannot {verb} .*run {run.id}: it is {final}") as caught:
        getattr(run, verb)(*(["work"] if verb in ("skip", "reattempt") else []))
    assert caught.value.run_id == run.id
    assert caught.value.state == final
    assert [(item.node, item.attempt, item.state) for item in run.executions()] == before
    assert state(run) == final


@pytest.mark.parametrize("verb", ["skip", "reattempt"])
def test_a_node_that_is_not_there_is_named(testing: TestingApp, verb: str) -> None:
    run = testing.start(one_node(lambda self: None, wait=timedelta(days=1)))
    with pytest.raises(NodeNotFound, match="has no node 'wrok'"):
        getattr(run, verb)("wrok")


def test_a_run_that_is_not_there_is_named(testing: TestingApp) -> None:
    with pytest.raises(RunNotFound, match="nowhere"):
        testing.run("nowhere")


def test_an_async_app_controls_nodes_alike(url: str) -> None:
    def body(self: Any) -> None:
        raise LookupError("first")

    flow = one_node(body)

    async def program() -> list[Any]:
        seen: list[Any] = []
        async with detent.AsyncApp(url, include=[flow]) as app:
            run = await app.start(flow)
            with pytest.raises(detent.RunPaused):
                await run.result(timeout=20)
            await run.reattempt("work")
            with pytest.raises(detent.RunPaused):
                await run.result(timeout=20)
            await run.skip("work")
            seen.append(await run.result(timeout=20))
            seen.append([(item.node, item.state) for item in await run.executions()])
        return seen

    value, rows = asyncio.run(program())
    assert value == "after"
    assert rows == [("work", "failed"), ("work", "failed"), ("work", "skipped"), ("after", "completed")]
