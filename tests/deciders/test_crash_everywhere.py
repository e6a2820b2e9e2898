"""Crashes at every durable point of deciders: the same events, or the test kit says where they differ."""

from datetime import datetime
from typing import Any

import pytest

from detent import Decision, EffectContext
from detent.testing import WorkflowNotCrashSafe, crash_everywhere
from tests.deciders.orders import AT_ONCE, Create, Fail, Log, Mail, Order, Pay, Said, Say, Stop, log


def test_a_decider_survives_a_crash_at_every_point() -> None:
    """Two inputs and the answer of an effect, each before and after its commit."""
    assert crash_everywhere(Order, Create("o"), Pay("o", 7)) == 2 * 3


def test_timers_survive_too() -> None:
    """Created, mailed, and an hour later over."""
    assert crash_everywhere(Order, Create("o")) == 2 * 3


def test_timers_that_come_again_effects_that_fail_and_ends_survive_too() -> None:
    def unreliable(effect: Mail, ctx: EffectContext) -> Any:
        if effect.text == "never" or ctx.attempt == 1:
            raise OSError("the line is busy")
        return Say(effect.log, f"sent {effect.text}")

    decider = log(unreliable, retry=AT_ONCE, snapshot_every=2)
    told = Say("l", "a", mails=["one", "never"], timers={"k": 60, "gone": 5})
    assert crash_everywhere(decider, told, Say("l", "b", cancels=["gone"]), Say("m", "c"), Stop("l")) > 12


def test_an_input_that_is_refused_is_the_test_s_to_mend() -> None:
    with pytest.raises(Exception, match="in l"):
        crash_everywhere(Log, Fail("l"))


def test_it_names_the_points_where_the_events_differ() -> None:
    class Forgetful(Log):
        """Remembers in the process what belongs into the state."""

        type = "forgetful"

        def __init__(self) -> None:
            self.heard: list[str] = []

        def decide(self, state: Any, input: Any, now: datetime) -> Decision:
            self.heard.append(input.text)
            return Decision.event(Said(",".join(self.heard), now))

    with pytest.raises(WorkflowNotCrashSafe, match=r"(?s)forgetful is not safe.*the commit of the input Say"):
        crash_everywhere(Forgetful, Say("l", "a"), Say("l", "b"))
