"""The state machine of a decider as it was seen, and one instance with all it has; on each database."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import detent
from detent import AsyncApp, RunNotFound
from detent.app.machine import machine
from detent.errors import ConfigurationError, InvalidState
from detent.testing import TestingApp, record_effects
from tests.deciders.declared import Create, MailSent, Order, Pay, PaymentTimeout, SendEmail, Ship, State

Counts = dict[tuple[str, str, str], int]


def lived_through(app: TestingApp) -> None:
    """Three orders: one shipped, one timed out, one that waits for its payment."""
    record_effects(app, Order)
    for instance in ("shipped", "late", "open"):
        app.execute(Order, Create(instance))
    app.execute(Order, Pay("shipped", 5))
    app.execute(Order, Ship("shipped"))
    app.execute(Order, PaymentTimeout("late"))
    app.execute(Order, Pay("late", 5))  # ignored: it is over
    app.execute(Order, Ship("open"))  # refused, which is no status of its own


def counts(view: detent.StateMachineView) -> Counts:
    return {edge.key: edge.count for edge in view.observed}


EXPECTED: Counts = {
    ("new", "Create", "created"): 3,
    ("created", "Pay", "paid"): 1,
    ("created", "PaymentTimeout", "timed out"): 1,
    ("paid", "Ship", "shipped"): 1,
    ("created", "Ship", "created"): 1,
}


@pytest.mark.parametrize("source", ["history", "observations"])
def test_what_happened_is_laid_over_what_is_declared(testing: TestingApp, source: str) -> None:
    lived_through(testing)
    view = testing.deciders.machine(Order, source=source)
    assert counts(view) == EXPECTED
    assert [edge.key for edge in view.undeclared] == [("created", "Ship", "created")]
    assert view.unseen == ()
    assert len(view.declared) == 4


@pytest.mark.parametrize("source", ["history", "observations"])
def test_beginnings_and_ends_are_known(testing: TestingApp, source: str) -> None:
    lived_through(testing)
    states = testing.deciders.machine(Order, source=source).states
    assert [state.status for state in states if state.initial] == ["new"]
    assert {state.status for state in states if state.terminal} == {"shipped", "timed out"}


@pytest.mark.parametrize("source", ["history", "observations"])
def test_a_decider_without_instances_shows_what_it_declares(testing: TestingApp, source: str) -> None:
    testing.include(Order)
    view = testing.deciders.machine(Order, source=source)
    assert view.unseen == view.declared
    assert {state.status for state in view.states if state.terminal} == {"shipped", "timed out"}


@pytest.mark.parametrize("source", ["history", "observations"])
def test_only_the_newest_instances_are_looked_at_where_a_limit_is_given(
    testing: TestingApp, source: str
) -> None:
    testing.execute(Order, Create("old"))
    testing.execute(Order, Pay("old", 5))
    testing.clock.advance(seconds=1)
    testing.execute(Order, Create("newer"))
    testing.settle_down()
    assert ("created", "Pay", "paid") not in counts(testing.deciders.machine(Order, source=source, limit=1))
    assert ("created", "Pay", "paid") in counts(testing.deciders.machine(Order, source=source, limit=None))


def test_only_so_many_decisions_are_followed_as_are_asked_for(testing: TestingApp) -> None:
    testing.execute(Order, Create("o-1"))
    testing.execute(Order, Pay("o-1", 5))
    testing.execute(Order, Create("o-2"))
    testing.settle_down()
    for most, followed in ((1, 1), (2, 2)):
        view = machine(testing.engine, Order, "history", None, decisions=most)
        assert sum(edge.count for edge in view.observed) == followed


def test_inputs_that_went_through_an_inbox_are_observed(testing: TestingApp) -> None:
    record_effects(testing, Order)
    testing.enqueue_input(Order, Create("o-1"))
    testing.enqueue_input(Order, Pay("o-1", 5))
    testing.settle_down()
    expected = {("new", "Create", "created"): 1, ("created", "Pay", "paid"): 1}
    assert counts(testing.deciders.machine(Order, source="observations")) == expected
    assert counts(testing.deciders.machine(Order)) == expected


def test_instances_of_another_decider_do_not_count(testing: TestingApp) -> None:
    class Other(Order):
        type = "other"

    lived_through(testing)
    testing.execute(Other, Create("o-1"))
    for source in ("history", "observations"):
        assert counts(testing.deciders.machine(Order, source=source)) == EXPECTED


def test_histories_longer_than_a_page_are_read_page_by_page(
    testing: TestingApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("detent.app.machine.PAGE", 2)  # a decision of two events lies across pages
    lived_through(testing)
    assert counts(testing.deciders.machine(Order)) == EXPECTED
    assert [past.cause for past in testing.deciders.instance(Order, "shipped").history] == [
        "Create",
        "Pay",
        "Ship",
    ]


def test_an_instance_that_cannot_be_read_is_named_and_the_others_count(testing: TestingApp) -> None:
    lived_through(testing)

    class Forgetful(Order):
        def evolve(self, state: State, event: Any) -> State:
            if type(event).__name__ == "Shipped":
                raise RuntimeError("unheard of")
            return super().evolve(state, event)

    testing.include(Forgetful)
    view = testing.deciders.machine(Forgetful)
    assert list(view.unreadable) == ["shipped"]
    assert ("created", "Pay", "paid") not in counts(view)
    assert counts(view)["created", "PaymentTimeout", "timed out"] == 1


def test_statuses_are_told_apart_by_every_letter(testing: TestingApp) -> None:
    class Shouting(Order):
        def status(self, state: State) -> str:
            return state.status.upper() if state.paid else state.status

    testing.execute(Shouting, Create("o-1"))
    testing.execute(Shouting, Pay("o-1", 5))
    testing.execute(Shouting, MailSent("o-1"))
    assert ("PAID", "MailSent", "PAID") in counts(testing.deciders.machine(Shouting, source="observations"))


@pytest.mark.parametrize("wrong", [{"source": "rumour"}, {"limit": 0}, {"limit": True}])
def test_a_view_that_makes_no_sense_is_refused(detent_app: TestingApp, wrong: Any) -> None:
    detent_app.include(Order)
    with pytest.raises(ConfigurationError):
        detent_app.deciders.machine(Order, **wrong)


def test_a_view_is_asked_for_by_name_as_well(testing: TestingApp) -> None:
    lived_through(testing)
    assert testing.deciders.machine("order").to_mermaid() == testing.deciders.machine(Order).to_mermaid()


# -- One instance ------------------------------------------------------------------------------------


def test_an_instance_shows_its_state_and_what_it_waits_for(testing: TestingApp) -> None:
    record_effects(testing, Order)
    begun = testing.clock()
    testing.execute(Order, Create("o-1"))
    testing.settle_down()
    view = testing.deciders.instance(Order, "o-1")
    assert (view.decider, view.instance, view.run_id, view.run_state) == (
        "order",
        "o-1",
        "order:o-1",
        "ready",
    )
    assert (view.status, view.state, view.terminal, view.sequence) == ("created", State("created"), False, 1)
    [timer] = view.timers
    assert (timer.key, timer.type, timer.attempt) == ("payment", "PaymentTimeout", 1)
    assert timer.input == PaymentTimeout("o-1")
    assert timer.due is not None
    assert (timer.due - begun).total_seconds() == 3600
    assert (view.effects, view.inbox) == ((), 0)


def test_a_timer_that_the_code_of_today_cannot_read_is_shown_as_it_is_stored(testing: TestingApp) -> None:
    class Younger(Order):
        """Knows timers no more."""

    testing.execute(Order, Create("o-1"))
    testing.include(Younger)
    bound = testing.engine.services.bound(Younger)
    bound.plan.inputs = {name: kind for name, kind in bound.plan.inputs.items() if kind is not PaymentTimeout}
    [timer] = testing.deciders.instance(Younger, "o-1").timers
    assert (timer.type, timer.input) == ("PaymentTimeout", '{"id":"o-1"}')


def test_an_instance_shows_how_it_came_there(testing: TestingApp) -> None:
    lived_through(testing)
    view = testing.deciders.instance(Order, "shipped")
    assert [(past.sequence, past.cause, past.from_status, past.to_status) for past in view.history] == [
        (1, "Create", "new", "created"),
        (2, "Pay", "created", "paid"),
        (4, "Ship", "paid", "shipped"),
    ]
    assert view.history[1].events == ("Paid", "detent.TimerCancelled")
    assert view.history[0].at == testing.clock()
    assert (view.terminal, view.run_state, view.timers) == (True, "finished", ())


def test_of_a_long_history_the_newest_decisions_are_kept(testing: TestingApp) -> None:
    lived_through(testing)
    view = testing.deciders.instance(Order, "shipped", history=1)
    assert [past.cause for past in view.history] == ["Ship"]
    assert view.status == "shipped"
    assert testing.deciders.instance(Order, "shipped", history=0).history == ()


def test_an_effect_that_is_tried_again_shows_why(testing: TestingApp) -> None:
    record_effects(testing, Order, {SendEmail: ConnectionError("down")})
    testing.execute(Order, Create("o-1"))
    testing.settle_down()
    [effect] = testing.deciders.instance(Order, "o-1").effects
    assert (effect.type, effect.state, effect.attempt) == ("SendEmail", "timer", 2)
    assert effect.error is not None
    assert effect.error.message == "down"


def test_an_effect_that_was_given_up_is_shown_as_a_dead_letter(testing: TestingApp) -> None:
    record_effects(testing, Order, {SendEmail: detent.PermanentError("no such address")})
    testing.execute(Order, Create("o-1"))
    testing.settle_down()
    [effect] = testing.deciders.instance(Order, "o-1").effects
    assert (effect.state, effect.attempt) == ("dead_letter", 1)
    assert effect.error is not None
    assert effect.error.message == "no such address"


def test_what_waits_in_the_inbox_is_counted(testing: TestingApp) -> None:
    testing.execute(Order, Create("o-1"))
    testing.run("order:o-1").pause()
    for amount in (1, 2):
        testing.enqueue_input(Order, Pay("o-1", amount))
    view = testing.deciders.instance(Order, "o-1")
    assert (view.inbox, view.run_state) == (2, "paused")


def test_an_instance_that_never_was_is_not_found(testing: TestingApp) -> None:
    testing.include(Order)
    with pytest.raises(RunNotFound):
        testing.deciders.instance(Order, "o-1")


def test_a_run_that_only_looks_like_an_instance_is_refused(testing: TestingApp) -> None:
    testing.include(Order)
    testing.options(id="order:o-1").start(idle)
    with pytest.raises(InvalidState):
        testing.deciders.instance(Order, "o-1")


@detent.workflow
def idle() -> None: ...


def test_both_views_can_be_awaited(url: str) -> None:
    async def look() -> tuple[detent.StateMachineView, detent.InstanceView[State]]:
        async with AsyncApp(url, include=[Order]) as app:
            await app.execute(Order, Create("o-1"))
            return await app.deciders.machine(Order, source="observations"), await app.deciders.instance(
                Order, "o-1"
            )

    view, instance = asyncio.run(look())
    assert ("new", "Create", "created") in counts(view)
    assert instance.instance == "o-1"
