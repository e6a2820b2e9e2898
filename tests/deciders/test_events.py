"""Subscribers hear of instances, of their effects and timers, and of what was given up."""

from typing import Any

from detent import EffectContext, PermanentError
from detent.events import (
    DeadLettered,
    ExecutionBegan,
    ExecutionEnded,
    ExecutionRetried,
    RunEvent,
    RunFinished,
    RunStarted,
)
from tests.deciders.orders import AT_ONCE, Log, Mail, Say, Stop, log
from tests.functions.world import Apps, Seen


def test_an_instance_is_reported_when_it_begins_and_when_it_is_over(apps: Apps) -> None:
    app = apps(Log)
    seen = Seen()
    app.subscribe(seen, events=(RunStarted, RunFinished))
    app.execute(Log, Say("l", "a"))
    app.execute(Log, Say("l", "b"))
    app.enqueue_input(Log, Say("m", "c"))
    app.execute(Log, Stop("l"))
    seen.wait(1, RunFinished)
    assert [(type(event).__name__, event.run_id, event.type) for event in seen.events] == [
        ("RunStarted", "log:l", "log"),
        ("RunStarted", "log:m", "log"),
        ("RunFinished", "log:l", "log"),
    ]


def test_an_effect_and_its_answer_are_reported(apps: Apps) -> None:
    app = apps(Log)
    seen = Seen()
    app.subscribe(seen, events=(RunEvent,))
    app.execute(Log, Say("l", "a", mails=["one"], timers={"k": 0.01}))
    ended = seen.wait(2, ExecutionEnded)
    assert {(event.kind, event.outcome, event.run_id) for event in ended} == {
        ("effect", "success", "log:l"),
        ("timer", "success", "log:l"),
    }
    assert {event.kind for event in seen.of(ExecutionBegan)} == {"effect", "timer"}


def test_an_effect_that_is_given_up_is_reported_as_a_dead_letter(apps: Apps) -> None:
    def refused(effect: Mail, ctx: EffectContext) -> Any:
        raise ConnectionError("no route") if ctx.attempt < 2 else PermanentError("no such address")

    app = apps(decider := log(refused, retry=AT_ONCE))
    seen = Seen()
    app.subscribe(seen, events=(ExecutionRetried, DeadLettered))
    app.execute(decider, Say("l", "a", mails=["one"]))
    [dead] = seen.wait(1, DeadLettered)
    assert (dead.run_id, dead.type, dead.kind, dead.attempt) == ("log:l", "log", "effect", 2)
    assert dead.error.message == "no such address"
    [letter] = app.dead_letters()
    assert letter.id.endswith(dead.node)
    [retried] = seen.of(ExecutionRetried)
    assert (retried.attempt, retried.error.message) == (1, "no route")
