"""Instances are runs: paused, resumed, canceled from outside, and never collected."""

from datetime import timedelta
from typing import Any

import pytest

import detent
from detent import Decision, Retry
from detent.app.dead_letters import backlogs
from detent.errors import InvalidState
from detent.testing import TestingApp
from tests.conformance.builders import everything
from tests.deciders.orders import (
    AT_ONCE,
    Fail,
    Log,
    Mail,
    Say,
    Stop,
    change,
    executions,
    letters,
    log,
    sql,
    texts,
    types,
)
from tests.functions.world import Apps, Gate, eventually

WAITING = ("scheduled", None)
CANCELED = ("canceled", "canceled_by_operator")


def pass_time(app: TestingApp, **span: float) -> None:
    app.clock.advance(**span)
    app.poke()
    app.settle_down()


# -- Pause and resume ----------------------------------------------------------------------------------


def test_a_paused_instance_refuses_inputs_and_changes_nothing(apps: Apps) -> None:
    app = apps(Log, worker=False)
    app.execute(Log, Say("l", "a"))
    app.run("log:l").pause(reason="a look at the books")
    before = everything(app.engine.store)
    with pytest.raises(InvalidState, match="log:l") as caught:
        app.execute(Log, Say("l", "b"), input_id="x")
    assert "paused" in str(caught.value)
    assert "resume" in str(caught.value)
    assert everything(app.engine.store) == before
    assert app.execute(Log, Say("m", "another one is not held up"))
    app.run("log:l").resume()
    assert app.execute(Log, Say("l", "b"), input_id="x")


def test_a_pause_holds_timers_and_a_resume_keeps_their_times(testing: TestingApp) -> None:
    testing.include(Log)
    testing.execute(Log, Say("l", "a", timers={"soon": 60.0, "late": 600.0}))
    due = {one.scheduled_for for one in executions(testing, "log:l", "timer")}
    testing.run("log:l").pause()
    pass_time(testing, seconds=300)
    assert texts(testing, Log) == ["a"]
    testing.run("log:l").resume()
    assert {one.scheduled_for for one in executions(testing, "log:l", "timer")} == due
    testing.poke()
    eventually(lambda: texts(testing, Log) == ["a", "ring soon"], "what is overdue fires now")
    pass_time(testing, seconds=299)
    assert texts(testing, Log) == ["a", "ring soon"]
    pass_time(testing, seconds=1)
    eventually(lambda: "ring late" in texts(testing, Log), "what is not, at its time")


def test_a_pause_holds_effects(apps: Apps) -> None:
    idle = apps(Log, worker=False)
    idle.execute(Log, Say("l", "a", mails=["one"]))
    idle.run("log:l").pause()
    worker = apps(Log)
    worker.execute(Log, Say("m", "a", mails=["two"]))
    eventually(lambda: len(texts(worker, Log, "m")) == 2, "another's effect is carried out")
    assert letters(worker, "log:l", "effect") == [WAITING]
    worker.run("log:l").resume()
    eventually(lambda: texts(worker, Log) == ["a", "sent one"], "it is carried out now")


def test_what_executes_when_its_instance_is_paused_ends_and_is_decided(apps: Apps) -> None:
    gate = Gate()

    def on_mail(effect: Mail, ctx: Any) -> Any:
        gate.pass_through()
        return Say("l", "sent", mails=["another"], timers={"k": 0.0})

    app = apps(decider := log(on_mail))
    app.execute(decider, Say("l", "a", mails=["one"]))
    gate.wait_for_arrival()
    app.run("log:l").pause()
    gate.open()
    eventually(lambda: texts(app, decider) == ["a", "sent"], "its answer is decided")
    assert letters(app, "log:l", "effect") == [("completed", "success"), WAITING]
    assert letters(app, "log:l", "timer") == [WAITING]
    assert app.run("log:l").state == "paused"


@pytest.mark.parametrize("kind", ["effect", "timer"])
def test_what_another_instance_brings_waits_until_the_paused_one_is_resumed(apps: Apps, kind: str) -> None:
    """Only what the paused instance has begun itself may still be decided."""

    class Neighbourly(Log):
        type = "log"
        retry = Retry(attempts=10_000, first=timedelta(seconds=0.05), longest=timedelta(seconds=0.05))

        def decide(self, state: Any, input: Any, now: Any) -> Decision:
            decision = super().decide(state, input, now)
            if kind == "timer" and input.id == "l":
                return decision.with_timer(after=timedelta(0), input=Say("paused", "hello"))
            return decision

        def handle(self, effect: Mail, ctx: Any) -> Any:
            return Say("paused", "hello")

    app = apps(Neighbourly)
    app.execute(Neighbourly, Say("paused", "a"))
    app.run("log:paused").pause()
    app.execute(Neighbourly, Say("l", "a", mails=["one"] if kind == "effect" else []))
    eventually(lambda: len(letters(app, "log:l", kind)) > 1, "it was refused once")
    assert texts(app, Neighbourly, "paused") == ["a"]
    app.run("log:paused").resume()
    eventually(lambda: texts(app, Neighbourly, "paused") == ["a", "hello"], "it is decided now")
    assert app.dead_letters.count() == 0


def test_an_effect_that_fails_while_its_instance_is_paused_is_tried_again_after_the_resume(
    apps: Apps,
) -> None:
    gate, tries = Gate(), []

    def on_mail(effect: Mail, ctx: Any) -> Any:
        tries.append(ctx.attempt)
        if len(tries) == 1:
            gate.pass_through()
            raise ConnectionError("no mail server")
        return Say("l", "sent")

    app = apps(decider := log(on_mail, retry=AT_ONCE))
    app.execute(decider, Say("l", "a", mails=["one"]))
    gate.wait_for_arrival()
    app.run("log:l").pause()
    gate.open()
    eventually(lambda: len(letters(app, "log:l", "effect")) == 2, "it has failed")
    assert tries == [1]
    app.run("log:l").resume()
    eventually(lambda: texts(app, decider) == ["a", "sent"], "it was sent")


def test_dead_letters_stay_dead_when_their_instance_is_paused_and_resumed(apps: Apps) -> None:
    def on_mail(effect: Mail, ctx: Any) -> Any:
        raise detent.PermanentError("no such address")

    app = apps(decider := log(on_mail))
    app.execute(decider, Say("l", "a", mails=["one"]))
    eventually(lambda: app.dead_letters.count() == 1, "it is a dead letter")
    app.run("log:l").pause()
    app.run("log:l").resume()
    app.execute(decider, Say("l", "b"))
    assert letters(app, "log:l", "effect") == [("failed", "dead_letter")]


def test_a_dead_letter_that_is_replayed_in_a_paused_instance_waits(apps: Apps) -> None:
    def on_mail(effect: Mail, ctx: Any) -> Any:
        if ctx.attempt == 1:
            raise detent.PermanentError("no such address")
        return Say("l", "sent")

    app = apps(decider := log(on_mail))
    app.execute(decider, Say("l", "a", mails=["one"]))
    eventually(lambda: app.dead_letters.count() == 1, "it is a dead letter")
    app.run("log:l").pause()
    app.dead_letters.replay(app.dead_letters()[0])
    assert letters(app, "log:l", "effect")[-1] == WAITING
    app.run("log:l").resume()
    eventually(lambda: texts(app, decider) == ["a", "sent"], "it was sent")


# -- Cancel --------------------------------------------------------------------------------------------


def test_a_cancel_ends_timers_effects_and_the_inbox_and_inputs_are_ignored_from_then_on(apps: Apps) -> None:
    app = apps(Log, worker=False)
    app.execute(Log, Say("l", "a", mails=["one"], timers={"k": 0.0, "m": 60.0}))
    app.enqueue_input(Log, Say("l", "queued"))
    app.run("log:l").cancel(reason="not wanted")
    assert app.run("log:l").state == "canceled"
    for kind, count in (("timer", 2), ("effect", 1), ("inbox", 1)):
        assert letters(app, "log:l", kind) == [CANCELED] * count
    assert app.execute(Log, Say("l", "b")) == []
    app.enqueue_input(Log, Say("l", "c"))
    worker = apps(Log)
    worker.execute(Log, Say("m", "a", mails=["two"]))
    eventually(lambda: len(texts(worker, Log, "m")) == 2, "the worker works")
    assert types(worker, Log) == ["Said"]


def test_what_waits_in_the_inbox_of_a_canceled_instance_is_ignored(apps: Apps) -> None:
    """It waits no more: nobody would ever empty that inbox."""
    app = apps(Log, worker=False)
    app.execute(Log, Say("l", "a"))
    for text in "bc":
        app.enqueue_input(Log, Say("l", text))
        app.enqueue_input(Log, Say("m", text))
    app.run("log:l").cancel()
    rows = sql(app, "SELECT state FROM detent_inputs WHERE run_id = 'log:l'")
    assert rows == [("ignored",)] * 2
    [backlog] = backlogs(app.engine)
    assert (backlog.pending, backlog.instances) == (2, 1)


def test_what_waits_in_the_inbox_of_an_instance_that_ends_is_ignored(apps: Apps) -> None:
    """They wait behind an input that cannot be decided; else they would have been decided before the end."""
    app = apps(Log, worker=False)
    for input in (Fail("l"), Say("l", "a")):
        app.enqueue_input(Log, input)
    app.execute(Log, Stop("l"))
    worker = apps(Log)
    eventually(lambda: backlogs(worker.engine) == [], "nothing waits any more")
    assert types(worker, Log) == ["Stopped"]
    assert sql(worker, "SELECT DISTINCT state FROM detent_inputs") == [("ignored",)]
    eventually(lambda: letters(worker, "log:l", "inbox") == [("completed", "success")], "it was emptied")


def test_an_effect_that_executes_when_its_instance_is_canceled_sees_it_and_is_not_decided(apps: Apps) -> None:
    gate, seen = Gate(), []

    def on_mail(effect: Mail, ctx: Any) -> Any:
        gate.pass_through()
        seen.append(ctx.cancel_requested)
        return Say("l", "sent")

    app = apps(decider := log(on_mail))
    app.execute(decider, Say("l", "a", mails=["one"]))
    gate.wait_for_arrival()
    app.run("log:l").cancel()
    gate.open()
    eventually(lambda: letters(app, "log:l", "effect")[0][0] == "canceled", "it has ended")
    assert texts(app, decider) == ["a"]
    assert seen == [True]


def test_a_paused_instance_can_be_canceled(apps: Apps) -> None:
    app = apps(Log, worker=False)
    app.execute(Log, Say("l", "a", timers={"k": 60.0}))
    app.run("log:l").pause()
    app.run("log:l").cancel()
    assert letters(app, "log:l", "timer") == [CANCELED]
    assert app.execute(Log, Say("l", "b")) == []


@pytest.mark.parametrize("verb", ["pause", "resume", "cancel"])
def test_a_finished_instance_is_left_alone(apps: Apps, verb: str) -> None:
    app = apps(Log, worker=False)
    app.execute(Log, Stop("l"))
    with pytest.raises(InvalidState, match="log:l"):
        getattr(app.run("log:l"), verb)()


def test_a_canceled_instance_is_recorded_as_ignoring_where_inputs_are_observed(apps: Apps) -> None:
    app = apps(decider := log(observe=True), worker=False)
    app.execute(decider, Say("l", "a"))
    app.run("log:l").cancel()
    app.execute(decider, Say("l", "b"))
    assert sql(app, "SELECT state FROM detent_inputs ORDER BY seq") == [("applied",), ("ignored",)]


# -- Looks and limits ----------------------------------------------------------------------------------


def test_retention_never_removes_an_instance(apps: Apps) -> None:
    """Its events are the truth, and whatever it has told others is told by them."""
    app = apps(Log, worker=False)
    app.execute(Log, Stop("l"))
    app.execute(Log, Say("m", "a"))
    app.run("log:m").cancel()
    change(app, "UPDATE detent_runs SET finished_at = 1")
    assert app.gc(older_than=timedelta(0)) == 0
    assert types(app, Log) == ["Stopped"]
    assert app.run("log:l").state == "finished"
    assert app.execute(Log, Say("l", "b")) == [], "it is still over"


def test_verbs_of_graphs_and_functions_do_not_fit_an_instance(apps: Apps) -> None:
    app = apps(Log, worker=False)
    app.execute(Log, Say("l", "a", mails=["one"]))
    node = executions(app, "log:l", "effect")[0].node
    run = app.run("log:l")
    before = everything(app.engine.store)
    for verb in (
        lambda: run.skip(node),
        lambda: run.reattempt(node),
        run.freeze,
        run.export_graph,
        lambda: app.fork(run, from_step=node),
    ):
        with pytest.raises(detent.DetentError):
            verb()
    assert everything(app.engine.store) == before


def test_an_instance_is_listed_among_the_runs(apps: Apps) -> None:
    app = apps(Log, worker=False)
    app.execute(Log, Say("l", "a"))
    [run] = app.runs(type="log")
    assert (run.id, run.type, run.state) == ("log:l", "log", "ready")
    assert run.history()[0].event == "started"


def test_one_may_wait_for_the_end_of_an_instance(apps: Apps) -> None:
    ours, theirs = apps(Log, worker=False), apps(Log, worker=False)
    ours.execute(Log, Say("l", "a"))
    run = theirs.run("log:l")
    ours.execute(Log, Stop("l"))
    assert run.result(timeout=20) is None
    assert run.refresh().state == "finished"
