"""given, when, then: a decider alone, without a database and without a clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest

from detent import Decider, Decision, InvalidDecision, InvalidInput, PermanentError, Timer, upcaster
from detent.errors import DefinitionError, DetentError, PayloadError
from detent.testing import DecidedOtherwise, given
from tests.deciders.declared import (
    HOUR,
    Create,
    Created,
    MailSent,
    Order,
    Packed,
    Paid,
    Pay,
    PaymentTimeout,
    Refused,
    SendEmail,
    Ship,
    Shipped,
    State,
    TimedOut,
)

NEW_YEAR = datetime(2030, 1, 1, tzinfo=UTC)
TIMEOUT = Timer(PaymentTimeout("o-1"), after=HOUR, key="payment")


def failure(check: Any) -> str:
    with pytest.raises(DecidedOtherwise) as caught:
        check()
    return str(caught.value)


def test_everything_that_is_expected_may_be_said_at_once() -> None:
    given(Order, []).when(Create("o-1", "a@b")).then(
        events=[Created("a@b")],
        effects=[SendEmail("a@b", "o-1")],
        timers=[TIMEOUT],
        cancels=[],
        state=State("created"),
        terminal=False,
    )


def test_what_is_not_given_is_not_looked_at() -> None:
    given(Order).when(Create("o-1")).then()
    given(Order).when(Create("o-1")).then(events=[Created("a@b")])


def test_an_empty_list_is_looked_at() -> None:
    created = given(Order).when(Create("o-1"))
    assert "events has " in failure(lambda: created.then(events=[]))
    assert "effects has " in failure(lambda: created.then(effects=[]))
    assert "timers has " in failure(lambda: created.then(timers=[]))


def test_a_cancelled_timer_is_named_by_its_key() -> None:
    paid = given(Order, [Created("a@b")]).when(Pay("o-1", 5)).then(cancels=["payment"])
    assert "cancels has 'payment'" in failure(lambda: paid.then(cancels=[]))


def test_each_input_sees_the_state_after_the_one_before() -> None:
    story = given(Order).when(Create("o-1")).when(Pay("o-1", 5)).when(Ship("o-1"))
    story.then(events=[Packed(), Shipped()], state=State("shipped", 5), terminal=True)


def test_one_story_may_go_on_in_two_ways() -> None:
    created = given(Order, [Created("a@b")])
    created.when(PaymentTimeout("o-1")).then(events=[TimedOut()])
    created.when(Pay("o-1", 5)).then(events=[Paid(5)])


def test_an_instance_that_is_over_ignores_inputs() -> None:
    over = given(Order, [Created("a@b"), TimedOut()]).when(Pay("o-1", 5))
    over.then(events=[], effects=[], timers=[], cancels=[], terminal=True, state=State("timed out"))
    assert "which has finished," in failure(lambda: over.then(events=[Paid(5)]))


def test_the_state_is_a_value_a_class_or_a_predicate() -> None:
    created = given(Order).when(Create("o-1"))
    created.then(state=State("created")).then(state=State).then(state=lambda state: state.paid == 0)
    assert "differs in status: expected 'paid', not 'created'" in failure(
        lambda: created.then(state=State("paid"))
    )

    def is_paid(state: State) -> bool:
        return state.paid > 0

    assert "one that fits is_paid" in failure(lambda: created.then(state=is_paid))
    assert "- Order" in failure(lambda: created.then(state=Order))


def test_the_state_can_be_looked_at_without_an_input() -> None:
    given(Order, [Created("a@b"), Paid(5)]).then(state=State("paid", 5), terminal=False)
    with pytest.raises(DetentError, match="no events to check"):
        given(Order).then(events=[])


def test_what_came_of_it_can_be_read_as_well() -> None:
    story = given(Order).when(Create("o-1"))
    assert (story.events, story.effects, story.timers) == (
        [Created("a@b")],
        [SendEmail("a@b", "o-1")],
        [TIMEOUT],
    )
    assert (story.cancels, story.terminal, story.state) == ([], False, State("created"))


# -- What differs ------------------------------------------------------------------------------------


def test_a_failure_names_what_differs_first_and_shows_the_rest() -> None:
    shipped = given(Order, [Created("a@b"), Paid(5)]).when(Ship("o-1"))
    assert failure(lambda: shipped.then(events=[Packed(), Paid(5)])) == (
        "decider 'order' in state State(status='paid', paid=5) was given Ship(id='o-1')\n"
        "events 2 is Shipped(), and Paid(amount=5) was expected\n"
        "\n"
        "events (- expected, + decided):\n"
        "    Packed()\n"
        "  - Paid(amount=5)\n"
        "  + Shipped()"
    )


def test_a_failure_names_the_field_that_differs() -> None:
    paid = given(Order, [Created("a@b")]).when(Pay("o-1", 6))
    assert "events 1 differs in amount: expected 5, not 6" in failure(lambda: paid.then(events=[Paid(5)]))


def test_a_failure_shows_every_side_that_differs() -> None:
    created = given(Order).when(Create("o-1"))
    text = failure(lambda: created.then(events=[], effects=[], timers=[TIMEOUT]))
    assert "events (- expected" in text
    assert "effects (- expected" in text
    assert "timers (- expected" not in text


def test_a_failure_says_what_is_lacking() -> None:
    refused = given(Order).when(Ship("o-1"))
    text = failure(lambda: refused.then(events=[Refused("Ship in new"), Shipped()]))
    assert "events lacks Shipped()" in text


# -- What is refused ---------------------------------------------------------------------------------


def test_what_decide_raises_is_what_the_test_may_expect() -> None:
    story = given(Order, [Created("a@b")]).when(Pay("o-1", -1))
    story.then_raises(ValueError, match="less than nothing")
    assert "does not match 'something else'" in failure(
        lambda: story.then_raises(ValueError, match="something else")
    )
    with pytest.raises(ValueError, match="less than nothing"):
        story.then(events=[])
    with pytest.raises(ValueError, match="less than nothing"):
        story.then_raises(KeyError)
    with pytest.raises(ValueError, match="less than nothing"):
        story.when(Pay("o-1", 5))


def test_an_error_that_does_not_come_is_a_failure() -> None:
    created = given(Order).when(Create("o-1"))
    text = failure(lambda: created.then_raises(InvalidDecision))
    assert "InvalidDecision was expected, and these events came: [Created(email='a@b')]" in text


def test_an_input_that_the_decider_does_not_take_is_refused() -> None:
    stranger: Any = Paid(5)
    given(Order).when(stranger).then_raises(InvalidInput, match="it takes Create, MailSent")
    given(Order).when(Create("")).then_raises(InvalidInput, match="does not name its instance")


def test_an_event_that_the_decider_does_not_know_cannot_be_given() -> None:
    with pytest.raises(InvalidDecision, match="no event of it"):
        given(Order, [Create("o-1")])


def test_only_a_decider_can_be_given() -> None:
    wrong: Any = PermanentError
    with pytest.raises(DefinitionError, match=r"given\(\) takes a decider"):
        given(wrong)


# -- As in the engine --------------------------------------------------------------------------------


@dataclass
class Note:
    id: str
    value: Any


@dataclass
class Noted:
    value: Any


class Remind(msgspec.Struct):
    what: list[str]


class Moment(msgspec.Struct, eq=False):
    at: datetime


class Notes(Decider[list[Any], Note, Noted | Moment, Remind]):
    """Its state is changed in place; what it decides depends on what it was made with."""

    type = "notes"

    def __init__(self, then: Any = None) -> None:
        self._then = then

    def initial(self) -> list[Any]:
        return []

    def decide(self, state: list[Any], input: Note, now: datetime) -> Decision:
        if self._then is None:
            return Decision.event(Noted(input.value), Moment(now))
        decision: Decision = self._then(input, now)
        return decision

    def evolve(self, state: list[Any], event: Noted | Moment) -> list[Any]:
        state.append(event.value if isinstance(event, Noted) else event.at)
        return state

    def handle(self, effect: Remind, ctx: Any) -> None: ...


def test_an_event_is_seen_as_it_is_read_back() -> None:
    given(Notes, [Noted((1, 2))]).then(state=[[1, 2]])
    given(Notes).when(Note("n", (1, 2))).then(state=[[1, 2], NEW_YEAR])


def test_what_cannot_be_stored_fails_in_the_test() -> None:
    given(Notes).when(Note("n", object())).then_raises(PayloadError)
    with pytest.raises(PayloadError):
        given(Notes, [Noted(object())])
    unfit = Notes(lambda input, now: Decision.event(Noted(1)).with_effect(Remind([object()])))  # type: ignore[list-item]
    given(unfit).when(Note("n", 1)).then_raises(PayloadError)


def test_what_is_stored_and_cannot_be_read_back_fails_in_the_test() -> None:
    wrong: Any = 5
    unfit = Notes(lambda input, now: Decision.event(Noted(1)).with_effect(Remind(wrong)))
    given(unfit).when(Note("n", 1)).then_raises(PayloadError)


def test_no_decision_and_a_strange_event_are_refused_as_in_the_engine() -> None:
    given(Notes(lambda input, now: None)).when(Note("n", 1)).then_raises(
        InvalidDecision, match="decide returned None"
    )
    given(Notes(lambda input, now: Decision.event("no event"))).when(Note("n", 1)).then_raises(
        InvalidDecision, match="no event of it"
    )
    given(Notes(lambda input, now: Decision.event())).when(Note("n", 1)).then_raises(
        InvalidDecision, match="decider 'notes'.*at least one event"
    )


def test_now_is_a_fixed_moment_unless_the_test_gives_another() -> None:
    later = NEW_YEAR + timedelta(days=1)
    given(Notes).when(Note("n", 1)).then(events=[Noted(1), Moment(NEW_YEAR)])
    given(Notes).at(later).when(Note("n", 1)).then(events=[Noted(1), Moment(later)])
    east = NEW_YEAR.astimezone(timezone(HOUR))
    [_, moment] = given(Notes).at(east).when(Note("n", 1)).events
    assert isinstance(moment, Moment)
    assert (moment.at, moment.at.tzinfo) == (NEW_YEAR, UTC)


def test_a_timer_is_the_same_with_after_and_with_at() -> None:
    created = given(Order).when(Create("o-1"))
    created.then(timers=[Timer(PaymentTimeout("o-1"), at=NEW_YEAR + HOUR, key="payment")])
    late = Timer(PaymentTimeout("o-1"), after=2 * HOUR, key="payment")
    assert "timers 1 differs in after" in failure(lambda: created.then(timers=[late]))
    assert "timers 1 differs in key" in failure(
        lambda: created.then(timers=[Timer(PaymentTimeout("o-1"), after=HOUR)])
    )


def test_of_two_timers_with_one_key_the_last_one_counts() -> None:
    def twice(input: Note, now: datetime) -> Decision:
        one = Decision.event(Noted(1)).with_timer(after=HOUR, input=Note("n", 1), key="k")
        return one.with_timer(after=2 * HOUR, input=Note("n", 2), key="k")

    given(Notes(twice)).when(Note("n", 0)).then(timers=[Timer(Note("n", 2), after=2 * HOUR, key="k")])


def test_a_state_that_is_changed_in_place_does_not_leak_into_another_story() -> None:
    begun = given(Notes, [Noted(1)])
    begun.when(Note("n", 2))
    begun.when(Note("n", 3)).then(state=[1, 3, NEW_YEAR])


@dataclass
class Old:
    total: int = 0
    currency: str = field(default="EUR")


class Accounts(Decider[int, Note, Old, None]):
    type = "accounts"

    @upcaster("Old", version=1)
    @staticmethod
    def add_currency(data: dict[str, Any]) -> dict[str, Any]:
        return {**data, "currency": "DEM"}

    def initial(self) -> int:
        return 0

    def decide(self, state: int, input: Note, now: datetime) -> Decision:
        return Decision.event(Old(input.value))

    def evolve(self, state: int, event: Old) -> int:
        assert event.currency == "EUR", "an event of today was upcast"
        return state + event.total


def test_given_events_are_of_today_and_not_upcast() -> None:
    given(Accounts, [Old(1)]).when(Note("a", 2)).then(state=3, effects=[])


def test_an_answer_to_an_effect_is_an_input_like_any_other() -> None:
    story = given(Order).when(Create("o-1")).when(MailSent("o-1"))
    story.then(effects=[], timers=[], state=State("created"))
    assert repr(story) == (
        "<story: decider 'order' in state State(status='created', paid=0) was given MailSent(id='o-1')>"
    )
