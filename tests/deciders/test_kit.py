"""The test kit with deciders: virtual time for timers and retries, effects recorded instead of handled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pytest

import detent
from detent import Decider, Decision, Retry
from detent.errors import DefinitionError, DetentError
from detent.testing import TestingApp, record_effects
from tests.deciders.declared import (
    HOUR,
    Create,
    Created,
    Input,
    Mailed,
    MailSent,
    Order,
    Paid,
    Pay,
    PaymentTimeout,
    SendEmail,
    TimedOut,
)


def happened(app: TestingApp, instance: str = "o-1") -> list[str]:
    return [recorded.type for recorded in app.events(Order, instance)]


def test_a_decider_need_not_be_included(testing: TestingApp) -> None:
    assert testing.execute(Order, Create("o-1")) == [Created("a@b")]
    assert testing.enqueue_input(Order, Pay("o-1", 5))
    testing.settle_down()
    assert testing.state_at(Order, "o-1").paid == 5


def test_a_timer_fires_under_virtual_time(testing: TestingApp) -> None:
    testing.execute(Order, Create("o-1"))
    begun = testing.clock()
    run = testing.speedrun(Order, "o-1")
    assert (run.id, run.state) == ("order:o-1", "finished")
    assert happened(testing) == ["Created", "Mailed", "TimedOut"]
    assert testing.clock() - begun == HOUR


def test_an_instance_is_a_run_to_speedrun(testing: TestingApp) -> None:
    run: detent.Run[Any] = testing.start(Order, Create("o-1"))
    assert testing.speedrun(run).state == "finished"


def test_a_speedrun_stops_where_nothing_is_due_any_more(testing: TestingApp) -> None:
    testing.execute(Order, Create("o-1"))
    testing.execute(Order, Pay("o-1", 5))
    assert testing.speedrun(Order, "o-1").state == "ready"


def test_an_advance_lets_happen_what_becomes_due_and_no_more(testing: TestingApp) -> None:
    testing.execute(Order, Create("o-1"))
    begun = testing.clock()
    testing.advance(minutes=59)
    assert "TimedOut" not in happened(testing)
    testing.advance(timedelta(minutes=1))
    assert happened(testing)[-1] == "TimedOut"
    assert testing.clock() - begun == HOUR


@dataclass
class Tick:
    id: str


@dataclass
class Ticked:
    at: datetime


class Metronome(Decider[list[datetime], Tick, Ticked, None]):
    """Sets its own timer again, for ever."""

    type = "metronome"

    def initial(self) -> list[datetime]:
        return []

    def decide(self, state: list[datetime], input: Tick, now: datetime) -> Decision:
        return Decision.event(Ticked(now)).with_timer(after=HOUR, input=input, key="tick")

    def evolve(self, state: list[datetime], event: Ticked) -> list[datetime]:
        return [*state, event.at]


def test_time_that_is_advanced_far_passes_through_every_moment_in_between(testing: TestingApp) -> None:
    begun = testing.clock()
    testing.execute(Metronome, Tick("m"))
    testing.advance(hours=3, minutes=30)
    assert testing.state_at(Metronome, "m") == [begun + number * HOUR for number in range(4)]
    assert testing.clock() == begun + timedelta(hours=3, minutes=30)


def test_an_instance_that_is_never_over_ends_its_speedrun_with_an_error(
    detent_app: TestingApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("detent.testing.apps.MOST_MOVES", 20)
    detent_app.execute(Metronome, Tick("m"))
    with pytest.raises(DetentError, match="metronome:m keeps setting timers"):
        detent_app.speedrun(Metronome, "m")


def test_a_decider_with_arguments_stays_the_one_that_was_included(testing: TestingApp) -> None:
    class Polite(Order):
        def __init__(self, greeting: str) -> None:
            self.greeting = greeting

        def evolve(self, state: Any, event: Any) -> Any:
            return replace(super().evolve(state, event), status=self.greeting)

    testing.include(Polite("hello"))
    testing.execute(Polite, Create("o-1"))
    assert testing.state_at(Polite, "o-1").status == "hello"


# -- Effects, recorded -------------------------------------------------------------------------------


def test_an_effect_is_recorded_instead_of_handled(testing: TestingApp) -> None:
    recorder = record_effects(testing, Order)
    testing.execute(Order, Create("o-1", "ann@b"))
    testing.settle_down()
    assert recorder.effects == recorder.of(SendEmail) == [SendEmail("ann@b", "o-1")]
    assert happened(testing) == ["Created"]


def test_an_answer_is_decided_as_an_input(testing: TestingApp) -> None:
    record_effects(testing, Order, {SendEmail: lambda effect: MailSent(effect.id)})
    testing.execute(Order, Create("o-1"))
    testing.settle_down()
    assert happened(testing) == ["Created", "Mailed"]


def test_an_answer_may_be_the_input_itself(testing: TestingApp) -> None:
    record_effects(testing, Order, answers={SendEmail: Pay("o-1", 7)})
    testing.execute(Order, Create("o-1"))
    testing.settle_down()
    assert testing.state_at(Order, "o-1").paid == 7


def test_an_effect_that_fails_is_tried_again_and_then_is_a_dead_letter(testing: TestingApp) -> None:
    recorder = record_effects(testing, Order, {SendEmail: ConnectionError("down")})
    testing.execute(Order, Create("o-1"))
    testing.settle_down()
    assert len(recorder.effects) == 1
    testing.advance(minutes=30)
    assert len(recorder.effects) == Order.retry.attempts
    [letter] = testing.dead_letters(Order)
    assert letter.error is not None
    assert letter.error.message == "down"


def test_answers_in_a_list_come_one_after_the_other(testing: TestingApp) -> None:
    answers = [ConnectionError("down"), TimeoutError, MailSent("o-1")]
    recorder = record_effects(testing, Order, {SendEmail: answers})
    testing.execute(Order, Create("o-1"))
    testing.advance(minutes=30)
    assert len(recorder.effects) == 3
    assert happened(testing) == ["Created", "Mailed"]
    assert testing.dead_letters(Order) == []


def test_behind_its_block_effects_are_handled_again(testing: TestingApp) -> None:
    with record_effects(testing, Order) as recorder:
        testing.execute(Order, Create("o-1"))
        testing.settle_down()
    testing.execute(Order, Create("o-2"))
    testing.settle_down()
    assert recorder.effects == [SendEmail("a@b", "o-1")]
    assert happened(testing, "o-2") == ["Created", "Mailed"]


def test_a_recorder_stays_when_its_decider_is_started_or_included_again(testing: TestingApp) -> None:
    recorder = record_effects(testing, Order)
    testing.include(Order)
    testing.start(Order, Create("o-1"))
    testing.settle_down()
    assert len(recorder.effects) == 1


def test_an_answer_to_what_is_no_effect_is_refused(detent_app: TestingApp) -> None:
    with pytest.raises(DefinitionError, match="no effect 'Pay'; it declares SendEmail"):
        record_effects(detent_app, Order, {Pay: None})


def test_effects_of_a_decider_that_handles_them_on_the_loop_are_recorded_too(detent_app: TestingApp) -> None:
    class Modern(Order):
        retry = Retry(attempts=1)

        async def handle(self, effect: SendEmail, ctx: detent.EffectContext) -> Any:  # type: ignore[override]
            raise AssertionError("handled")

    recorder = record_effects(detent_app, Modern)
    detent_app.execute(Modern, Create("o-1"))
    detent_app.settle_down()
    assert len(recorder.effects) == 1
    assert detent_app.dead_letters(Modern) == []


def test_what_the_pure_kit_says_is_what_the_engine_does(testing: TestingApp) -> None:
    """One story, told twice: the events, the timer and the effect are the same."""
    inputs: list[Input] = [
        Create("o-1"),
        MailSent("o-1"),
        Pay("o-1", 5),
        Pay("o-1", 6),
        PaymentTimeout("o-1"),
    ]
    story = detent.testing.given(Order)
    record_effects(testing, Order)
    for input in inputs:
        story = story.when(input)
        assert testing.execute(Order, input) == story.events, input
        assert testing.state_at(Order, "o-1") == story.state
    assert {Created, Mailed, Paid, TimedOut}.isdisjoint({type(event) for event in story.events})
