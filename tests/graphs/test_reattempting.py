"""Reattempts from outside: only what failed, only as long as nothing has come after it, one at a time."""

from datetime import timedelta
from typing import Any

import pytest

import detent
from detent import CannotReattempt, InvalidState, Workflow, step, task
from detent.kernel.external_changes import Reattempt
from detent.stores.batch.locks import lock
from detent.stores.verbs import nodes
from detent.testing import TestingApp
from tests.conformance.builders import Attempt, is_seen_waiting
from tests.functions.world import Apps, Gate, events, eventually, result, state, wait_for
from tests.graphs.world import attempts, last, one_node, states

FAILED = ("failed", "paused_by_exception")
DONE = ("completed", "success")


class Shaky:
    """A diamond: `a`, then `b` and `c`, then `d`; `c` fails as often as it is told to."""

    def __init__(self, failures: int = 1) -> None:
        self.calls: list[str] = []
        world = self

        class Flow(Workflow, name="shaky"):
            @task
            def a(self) -> None:
                world.calls.append("a")

            @task(depends_on="a")
            def b(self) -> None:
                world.calls.append("b")

            @task(depends_on="a")
            def c(self) -> None:
                world.calls.append("c")
                if self.ctx.attempt <= failures:
                    raise LookupError("c")

            @task(depends_on=[b, c])
            def d(self) -> str:
                world.calls.append("d")
                return "done"

        self.flow = Flow


def paused(testing: TestingApp, flow: Any) -> detent.Run[Any]:
    run = testing.start(flow)
    testing.speedrun(run)
    testing.settle_down()
    assert state(run) == "paused"
    return run


def test_a_failed_node_is_attempted_again_and_its_run_goes_on(testing: TestingApp) -> None:
    world = Shaky()
    run = paused(testing, world.flow)
    run.reattempt("c")
    testing.speedrun(run)
    assert result(run) == "done"
    assert attempts(run, "c") == [FAILED, DONE]
    assert sorted(world.calls) == ["a", "b", "c", "c", "d"]
    assert {"node": "c", "by": "operator"} in events(run, "reattempted")


def test_one_that_fails_again_can_be_attempted_again(testing: TestingApp) -> None:
    run = paused(testing, Shaky(failures=2).flow)
    run.reattempt("c")
    testing.speedrun(run)
    assert (state(run), attempts(run, "c")) == ("paused", [FAILED, FAILED])
    run.reattempt("c")
    testing.speedrun(run)
    assert attempts(run, "c") == [FAILED, FAILED, DONE]


def test_a_node_that_paused_itself_can_be_attempted_again(testing: TestingApp) -> None:
    run = paused(testing, one_node(lambda self: self.pause() if self.ctx.attempt == 1 else None))
    run.reattempt("work")
    run.resume()
    testing.speedrun(run)
    assert attempts(run) == [("canceled", "paused_by_flow_control"), DONE]


def test_one_that_timed_out_can_be_attempted_again(apps: Apps) -> None:
    gate = Gate()

    def body(self: Any) -> None:
        if self.ctx.attempt == 1:
            gate.pass_through()

    flow = one_node(body, timeout=0.05)
    run = apps(flow).start(flow)
    wait_for(run, "paused")
    gate.open()
    run.reattempt("work")
    assert result(run) == "after"
    assert attempts(run) == [FAILED, DONE]


def test_a_completed_node_is_refused(testing: TestingApp) -> None:
    run = paused(testing, Shaky().flow)
    with pytest.raises(CannotReattempt, match=rf"cannot reattempt node 'b' of run {run.id}: it is completed"):
        run.reattempt("b")
    assert attempts(run, "b") == [DONE]


def test_a_skipped_node_is_refused(testing: TestingApp) -> None:
    class Flow(Workflow):
        @step(skip_if=True)
        def skipped(self) -> None: ...

        @step
        def fails(self) -> None:
            raise LookupError

    run = paused(testing, Flow)
    with pytest.raises(CannotReattempt, match="it is skipped"):
        run.reattempt("skipped")


def test_a_node_that_has_not_been_reached_is_refused(testing: TestingApp) -> None:
    run = paused(testing, Shaky().flow)
    with pytest.raises(CannotReattempt, match=r"node 'd' .*it has not been reached yet") as caught:
        run.reattempt("d")
    assert (caught.value.node, caught.value.run_id, caught.value.verb) == ("d", run.id, "reattempt")


def test_a_scheduled_node_is_refused(testing: TestingApp) -> None:
    run = testing.start(one_node(lambda self: None, wait=timedelta(days=1)))
    testing.settle_down()
    with pytest.raises(CannotReattempt, match="its latest attempt is scheduled"):
        run.reattempt("work")
    assert attempts(run) == [("scheduled", None)]


def test_a_node_after_which_another_has_completed_is_refused(testing: TestingApp) -> None:
    """Only a deploy can bring that about: it was failed, and what followed it then did not need it."""

    class Before(Workflow, name="moving"):
        @task
        def fails(self) -> None:
            raise LookupError

        @task
        def other(self) -> None: ...

        @task(wait=timedelta(days=1))
        def waits(self) -> None: ...

    class After(Workflow, name="moving"):
        @task
        def fails(self) -> None:
            raise LookupError

        @task(depends_on="fails")
        def other(self) -> None: ...

        @task(wait=timedelta(days=1))
        def waits(self) -> None: ...

    run = paused(testing, Before)
    assert states(run)["other"] == "completed"
    testing.include(After)
    with pytest.raises(CannotReattempt, match=r"node 'fails' .*'other' has completed after it") as caught:
        run.reattempt("fails")
    assert "app.fork" in caught.value.hint
    assert attempts(run, "fails") == [FAILED]


def test_of_two_at_once_one_wins(apps: Apps) -> None:
    world = Shaky()
    first = apps(world.flow)
    second = apps(world.flow, worker=False)
    run = first.start(world.flow)
    wait_for(run, "paused")
    eventually(lambda: last(run, "b").state == "completed", "its neighbour has ended")
    store, rival = first.engine.store, second.engine.store
    ours, theirs = first.engine.run_graph(run.id), second.engine.run_graph(run.id)
    now = first.engine.clock.now()
    with store._writer.transaction() as tx:
        nodes.reattempt(tx, run.id, "c", run_graph=ours, now=now)
        attempt = Attempt(lambda: rival.change(Reattempt(run.id, "c", run_graph=theirs), now=now))
        is_seen_waiting(attempt, store)
    with pytest.raises(InvalidState, match=f"cannot reattempt node 'c' of run {run.id}"):
        attempt.result()
    first.engine._poke()
    assert result(run) == "done"
    assert attempts(run, "c") == [FAILED, DONE]


def test_a_reattempt_while_the_run_is_being_resumed_begins_one_attempt(apps: Apps) -> None:
    world = Shaky()
    first = apps(world.flow)
    second = apps(world.flow, worker=False)
    run = first.start(world.flow)
    wait_for(run, "paused")
    eventually(lambda: last(run, "b").state == "completed", "its neighbour has ended")
    store, rival = first.engine.store, second.engine.store
    theirs, now = second.engine.run_graph(run.id), first.engine.clock.now()
    ours = first.engine.run_graph(run.id)
    assert ours is not None
    with store._writer.transaction() as tx:
        row = lock(tx, run.id)
        nodes.resume_graph(tx, row, ours, now)
        attempt = Attempt(lambda: rival.change(Reattempt(run.id, "c", run_graph=theirs), now=now))
        is_seen_waiting(attempt, store)
    with pytest.raises(InvalidState):
        attempt.result()
    first.engine._poke()
    assert result(run) == "done"
    assert attempts(run, "c") == [FAILED, DONE]


def test_a_failed_node_is_not_enqueued_again_by_a_siblings_completion(apps: Apps) -> None:
    gate, calls = Gate(), []

    class Flow(Workflow):
        @task
        def slow(self) -> None:
            gate.pass_through()

        @task
        def fails(self) -> None:
            calls.append("fails")
            raise LookupError

        @task(depends_on=[slow, fails])
        def join(self) -> None:
            calls.append("join")

    app = apps(Flow)
    run = app.start(Flow)
    gate.wait_for_arrival()
    wait_for(run, "paused")
    gate.open()
    eventually(lambda: last(run, "slow").state == "completed", "the sibling has ended")
    assert (state(run), calls, attempts(run, "fails")) == ("paused", ["fails"], [FAILED])
    assert attempts(run, "join") == []


def test_a_failed_node_is_not_enqueued_again_by_a_sibling_that_an_operator_skips(testing: TestingApp) -> None:
    class Flow(Workflow):
        @task
        def one(self) -> None:
            raise LookupError("one")

        @task
        def other(self) -> None:
            raise LookupError("other")

        @task(depends_on=[one, other])
        def join(self) -> None: ...

    run = paused(testing, Flow)
    run.skip("one")
    testing.settle_down()
    assert (state(run), attempts(run, "other")) == ("paused", [FAILED])


def test_reattempting_one_of_two_failed_nodes_leaves_the_other_alone(testing: TestingApp) -> None:
    calls: list[str] = []

    class Flow(Workflow):
        @task
        def one(self) -> None:
            calls.append("one")
            if self.ctx.attempt == 1:
                raise LookupError("one")

        @task
        def other(self) -> None:
            calls.append("other")
            if self.ctx.attempt == 1:
                raise LookupError("other")

        @task(depends_on=[one, other])
        def join(self) -> str:
            return "joined"

    run = paused(testing, Flow)
    run.reattempt("one")
    testing.settle_down()
    assert (state(run), calls.count("other")) == ("paused", 1)
    run.reattempt("other")
    testing.speedrun(run)
    assert result(run) == "joined"
    assert (attempts(run, "one"), attempts(run, "other")) == ([FAILED, DONE], [FAILED, DONE])


def test_a_reattempt_in_a_run_that_an_operator_has_paused_waits_for_the_resume(apps: Apps) -> None:
    gate = Gate()

    def body(self: Any) -> None:
        if self.ctx.attempt == 1:
            gate.pass_through()
            self.pause()

    flow = one_node(body)
    app = apps(flow)
    run = app.start(flow)
    gate.wait_for_arrival()
    run.pause()
    gate.open()
    eventually(lambda: last(run).state == "canceled", "it has ended")
    run.reattempt("work")
    assert (state(run), last(run).attempt, last(run).state) == ("paused", 2, "scheduled")
    run.resume()
    assert result(run) == "after"
    assert attempts(run) == [("canceled", "paused_by_flow_control"), DONE]
