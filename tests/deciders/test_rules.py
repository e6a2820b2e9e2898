"""The rules of deciders: one transaction per instance, order of arrival, the end, the ids of inputs."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

import detent
from detent import Decision
from detent.kernel.rows import RunState
from detent.testing import TestingApp
from tests.conformance.builders import everything
from tests.deciders.operations import (
    Torn,
    applied,
    bringing,
    claimed,
    deciding_of,
    draining,
    enqueuing_of,
    remembered,
    torn_at,
)
from tests.deciders.orders import (
    Create,
    Fail,
    Log,
    Order,
    Paid,
    Pay,
    Ring,
    Said,
    Say,
    Stop,
    Undecidable,
    change,
    executions,
    gap_free,
    letters,
    log,
    sql,
    texts,
    types,
)
from tests.functions.world import Apps, eventually

STATEMENTS = 60  # more than any of these transactions has


# -- One transaction -----------------------------------------------------------------------------------


def begun(app: detent.App, decider: Any) -> None:
    """An instance with a timer and an effect, all of it due, and something in its inbox."""
    app.execute(decider, Say("l", "first", mails=["one"], timers={"k": 0, "other": 3600}))
    app.enqueue_input(decider, Say("l", "queued"))


def by_timer(app: detent.App, decider: Any) -> Any:
    return bringing(app, decider, claimed(app, decider, "timer"), Ring("l", "k", 60))


def by_effect(app: detent.App, decider: Any) -> Any:
    return bringing(app, decider, claimed(app, decider, "effect"), Stop("l"))


def by_inbox(app: detent.App, decider: Any) -> Any:
    return draining(app, decider, claimed(app, decider, "inbox"))


OPERATIONS: dict[str, Callable[[detent.App, Any], Any]] = {
    "the first input": lambda app, decider: deciding_of(app, decider, Say("new", "a", mails=["m"]), "id"),
    "an input": lambda app, decider: deciding_of(
        app, decider, Say("l", "b", mails=["m"], timers={"k": 5}, cancels=["other"]), "id"
    ),
    "the last input": lambda app, decider: deciding_of(app, decider, Stop("l", mails=["m"]), "id"),
    "a timer": by_timer,
    "the answer of an effect": by_effect,
    "an inbox": by_inbox,
    "an input for an inbox": lambda app, decider: enqueuing_of(app, decider, Say("new", "c")),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_crash_at_any_statement_leaves_nothing_half_done(
    apps: Apps, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decider = log(snapshot_every=1, observe=True)
    app = apps(decider, worker=False)
    begun(app, decider)
    op = OPERATIONS[operation](app, decider)
    before = everything(app.engine.store)
    for number in range(STATEMENTS):
        try:
            with torn_at(number, monkeypatch):
                [answer] = applied(app, op)
            break
        except Torn:
            assert everything(app.engine.store) == before
    else:
        pytest.fail(f"more than {STATEMENTS} statements")
    assert not isinstance(answer, Exception)
    assert number > 2
    assert everything(app.engine.store) != before
    gap_free(app, decider, ["l", "new"])


def test_after_a_crash_the_state_in_memory_is_that_of_the_events(
    apps: Apps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state was changed in place before the transaction was rolled back."""
    decider = log()
    app = apps(decider, worker=False)
    app.execute(decider, Say("l", "a"))
    for number in range(STATEMENTS):
        try:
            with torn_at(number, monkeypatch):
                applied(app, deciding_of(app, decider, Say("l", "b")))
            break
        except Torn:
            continue
    app.execute(decider, Say("l", "c"))
    assert remembered(app, decider).said == ["a", "b", "c"]
    assert app.state_at(decider, "l").said == ["a", "b", "c"]


def test_what_the_database_raises_while_a_state_is_read_is_no_answer(
    apps: Apps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends the batch, which is tried again; whoever asked does not hear of it."""
    monkeypatch.setattr("detent.stores.verbs.streams.FEW", 0)  # so that events are read page by page
    app = apps(Log, worker=False)
    app.execute(Log, Say("l", "a"))
    for number in range(STATEMENTS):
        app.engine.services.bound(Log).recall("log:l")  # it remembers nothing: its events are read
        try:
            with torn_at(number, monkeypatch):
                [answer] = applied(app, deciding_of(app, Log, Say("l", "b")))
            break
        except Torn:
            continue
    assert answer.events[0].text == "b"
    assert texts(app, Log) == ["a", "b"]


def test_an_input_that_cannot_be_decided_leaves_nothing_and_its_neighbours_commit(apps: Apps) -> None:
    app = apps(Log, worker=False)
    answers = applied(
        app,
        deciding_of(app, Log, Say("l", "a")),
        deciding_of(app, Log, Fail("l")),
        deciding_of(app, Log, Fail("never")),
        deciding_of(app, Log, Say("l", "b")),
        deciding_of(app, Log, Say("m", "c")),
    )
    assert [isinstance(answer, Undecidable) for answer in answers] == [False, True, True, False, False]
    assert texts(app, Log) == ["a", "b"]
    assert texts(app, Log, "m") == ["c"]
    assert sql(app, "SELECT COUNT(*) FROM detent_runs")[0][0] == 2
    gap_free(app, Log, ["l", "m"])


def test_an_input_whose_evolve_raises_fails_alone(apps: Apps) -> None:
    """What comes behind it in the same commit is decided, on the state without it."""

    class Brittle(Log):
        type = "brittle"

        def evolve(self, state: Any, event: Any) -> Any:
            state = super().evolve(state, event)
            if isinstance(event, Said) and event.text == "crack":
                raise Undecidable("half of it has happened")
            return state

    app = apps(Brittle, worker=False)
    app.execute(Brittle, Say("l", "before"))
    answers = applied(
        app,
        deciding_of(app, Brittle, Say("l", "a")),
        deciding_of(app, Brittle, Say("l", "x", also=["crack"])),
        deciding_of(app, Brittle, Say("l", "b")),
    )
    assert [isinstance(answer, Undecidable) for answer in answers] == [False, True, False]
    assert texts(app, Brittle) == ["before", "a", "b"]
    app.execute(Brittle, Say("l", "c"))
    assert remembered(app, Brittle).said == ["before", "a", "b", "c"]


def test_a_status_that_cannot_be_told_leaves_nothing(apps: Apps) -> None:
    class Shy(Log):
        type = "shy"
        observe = True

        def status(self, state: Any) -> str:
            if len(state.said) > 1:
                raise Undecidable("no name for it")
            return "open"

    app = apps(Shy, worker=False)
    app.execute(Shy, Say("l", "a"))
    before = everything(app.engine.store)
    with pytest.raises(Undecidable):
        app.execute(Shy, Say("l", "b"))
    assert everything(app.engine.store) == before


def test_events_that_a_caller_changes_do_not_change_the_state(apps: Apps) -> None:
    class Keeper(Log):
        """Keeps the events themselves in its state."""

        type = "keeper"

        def evolve(self, state: Any, event: Any) -> Any:
            state.said.append(event)
            return state

        def decide(self, state: Any, input: Any, now: datetime) -> Decision:
            return Decision.event(Said(",".join(event.text for event in state.said), now))

    app = apps(Keeper, worker=False)
    [event] = app.execute(Keeper, Say("l"))
    event.text = "spoilt"  # type: ignore[union-attr]
    app.execute(Keeper, Say("l"))
    assert texts(app, Keeper) == ["", ""]


# -- Order, and time -----------------------------------------------------------------------------------


def test_inputs_of_one_instance_are_decided_in_the_order_of_arrival(apps: Apps) -> None:
    app = apps(Log, worker=False)
    operations = [deciding_of(app, Log, Say(instance, str(n))) for n in range(20) for instance in "lm"]
    applied(app, *operations)
    assert texts(app, Log) == texts(app, Log, "m") == [str(n) for n in range(20)]
    gap_free(app, Log, ["l", "m"])


def test_each_decision_sees_those_before_it_in_the_same_commit(apps: Apps) -> None:
    app = apps(Order, worker=False)
    _, paid, _ = applied(
        app,
        deciding_of(app, Order, Create("o")),
        deciding_of(app, Order, Pay("o", 7)),
        deciding_of(app, Order, Pay("o", 8)),
    )
    assert paid.events == [Paid(7)]
    assert types(app, Order, "o") == ["Created", "Paid", "detent.TimerCancelled", "Refused"]
    assert app.state_at(Order, "o").paid == 7
    assert letters(app, "order:o", "timer") == []


def test_decide_is_given_the_time_of_the_apps_clock(testing: TestingApp) -> None:
    testing.include(Log)
    testing.execute(Log, Say("l", "now", timers={"k": 60.0}))
    testing.clock.advance(seconds=90)
    testing.poke()
    eventually(lambda: len(testing.events(Log, "l")) == 2, "the timer has fired")
    first, second = testing.events(Log, "l")
    start = testing.clock() - timedelta(seconds=90)
    assert [first.event.at, second.event.at] == [start, testing.clock()]  # type: ignore[union-attr]
    assert [first.at, second.at] == [start, testing.clock()]
    assert (first.cause, second.cause) == ("Say", "Ring")


# -- The end -------------------------------------------------------------------------------------------


def test_a_finished_instance_ignores_inputs_silently(apps: Apps) -> None:
    app = apps(Log, worker=False)
    app.execute(Log, Say("l", "a"))
    app.execute(Log, Stop("l"))
    before = everything(app.engine.store)
    assert app.execute(Log, Say("l", "b")) == []
    assert everything(app.engine.store) == before
    assert app.run("log:l").state == "finished"


def test_an_observed_instance_records_what_it_ignores(apps: Apps) -> None:
    decider = log(observe=True)
    app = apps(decider, worker=False)
    app.execute(decider, Say("l", "a"))
    app.execute(decider, Stop("l"))
    app.execute(decider, Say("l", "b"))
    app.enqueue_input(decider, Say("l", "c"))
    rows = sql(app, "SELECT type, state, from_status, to_status FROM detent_inputs ORDER BY seq")
    assert rows == [
        ("Say", "applied", "open", "open"),
        ("Stop", "applied", "open", "over"),
        ("Say", "ignored", None, None),
        ("Say", "ignored", None, None),
    ]
    assert types(app, decider) == ["Said", "Stopped"]


def test_at_the_end_pending_timers_are_cancelled_and_pending_effects_run(testing: TestingApp) -> None:
    sent: list[str] = []

    def on_mail(effect: Any, ctx: Any) -> Any:
        sent.append(effect.text)
        return Say("l", "an answer that comes too late")

    decider = log(on_mail)
    testing.include(decider)
    testing.execute(decider, Say("l", "a", timers={"k": 60.0, "m": 120.0}))
    testing.execute(decider, Stop("l", mails=["bye"], timers={"n": 60.0}))
    eventually(lambda: letters(testing, "log:l", "effect") == [("completed", "success")], "it was sent")
    testing.clock.advance(hours=1)
    testing.poke()
    testing.settle_down()
    assert sent == ["bye"]
    assert letters(testing, "log:l", "timer") == [("canceled", "canceled_by_finish")] * 3
    assert types(testing, decider) == ["Said", "Stopped"]
    assert testing.run("log:l").refresh().state == "finished"


def test_an_effect_of_a_finished_instance_is_retried_until_it_is_a_dead_letter(testing: TestingApp) -> None:
    def on_mail(effect: Any, ctx: Any) -> Any:
        raise ConnectionError("no mail server")

    decider = log(on_mail, retry=detent.Retry(attempts=3, first=timedelta(0), jitter=0))
    testing.include(decider)
    testing.execute(decider, Stop("l", mails=["bye"]))
    eventually(
        lambda: letters(testing, "log:l", "effect")[-1] == ("failed", "dead_letter"), "it is a dead letter"
    )
    assert len(letters(testing, "log:l", "effect")) == 3
    assert testing.run("log:l").refresh().state == "finished"


def test_inputs_that_arrive_with_the_last_one_are_ignored(apps: Apps) -> None:
    app = apps(Log, worker=False)
    answers = applied(
        app,
        deciding_of(app, Log, Say("l", "a")),
        deciding_of(app, Log, Stop("l")),
        deciding_of(app, Log, Say("l", "b")),
        enqueuing_of(app, Log, Say("l", "c")),
    )
    assert [getattr(answer, "events", None) for answer in answers[2:3]] == [[]]
    assert types(app, Log) == ["Said", "Stopped"]
    assert letters(app, "log:l", "inbox") == []
    assert app.run("log:l").row.state == RunState.FINISHED


# -- The ids of inputs ---------------------------------------------------------------------------------


def test_the_same_input_id_again_is_no_second_decision(apps: Apps) -> None:
    app = apps(Log, worker=False)
    assert [event.text for event in app.execute(Log, Say("l", "a"), input_id="x")] == ["a"]  # type: ignore[union-attr]
    before = everything(app.engine.store)
    assert app.execute(Log, Say("l", "other"), input_id="x") == []
    assert app.enqueue_input(Log, Say("l", "other"), input_id="x") is False
    assert everything(app.engine.store) == before


def test_an_input_id_counts_for_its_instance_alone(apps: Apps) -> None:
    app = apps(Log, Order, worker=False)
    assert app.execute(Log, Say("l", "a"), input_id="x")
    assert app.execute(Log, Say("m", "a"), input_id="x")
    assert app.execute(Log, Say("l", "b"), input_id="X")
    assert app.execute(Order, Create("l"), input_id="x")


def test_the_same_input_id_twice_in_one_commit_is_one_decision(apps: Apps) -> None:
    app = apps(Log, worker=False)
    first, second, third = applied(
        app,
        deciding_of(app, Log, Say("l", "a"), "x"),
        deciding_of(app, Log, Say("l", "b"), "x"),
        enqueuing_of(app, Log, Say("l", "c"), "x"),
    )
    assert (len(first.events), second.events, third.created) == (1, [], False)
    assert texts(app, Log) == ["a"]


def test_an_input_that_waits_in_the_inbox_is_not_executed_beside_it(apps: Apps) -> None:
    app = apps(Log, worker=False)
    assert app.enqueue_input(Log, Say("l", "a"), input_id="x") is True
    assert app.execute(Log, Say("l", "b"), input_id="x") == []
    applied(app, draining(app, Log, claimed(app, Log, "inbox")))
    assert texts(app, Log) == ["a"]
    assert app.execute(Log, Say("l", "b"), input_id="x") == []


def test_an_input_that_was_refused_may_come_again(apps: Apps) -> None:
    """Its id is marked in the transaction of its decision, and there was none."""
    app = apps(Log, worker=False)
    with pytest.raises(Undecidable):
        app.execute(Log, Fail("l"), input_id="x")
    assert app.execute(Log, Say("l", "a"), input_id="x")


def test_an_input_whose_answer_was_lost_is_not_decided_again(
    apps: Apps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies behind the commit and before the caller has heard of it."""
    app = apps(Log, worker=False)
    applied(app, deciding_of(app, Log, Say("l", "a"), "x"))  # and nobody has got the answer
    other = apps(Log, worker=False)
    assert other.execute(Log, Say("l", "a"), input_id="x") == []
    assert texts(other, Log) == ["a"]


def test_a_commit_that_was_cut_off_is_found_again(apps: Apps) -> None:
    app = apps(Log, worker=False)
    store = app.engine.store
    decided = deciding_of(app, Log, Say("l", "a"))
    queued = enqueuing_of(app, Log, Say("l", "b"))
    assert store.already_applied(decided) is None
    assert store.already_applied(queued) is None
    applied(app, decided, queued)
    assert [event.text for event in store.already_applied(decided).events] == ["a"]
    assert store.already_applied(queued).created is True
    drained = draining(app, Log, claimed(app, Log, "inbox"))
    assert store.already_applied(drained) is None
    applied(app, drained)
    assert store.already_applied(drained).more is False  # it was settled


def test_the_counter_of_positions_is_that_of_the_events(apps: Apps) -> None:
    app = apps(Log, worker=False)
    for number in range(5):
        app.execute(Log, Say(str(number), "a", also=["b"]))
        with pytest.raises(Undecidable):
            app.execute(Log, Fail(str(number)))
    assert sql(app, "SELECT value FROM detent_counters WHERE name = 'events'") == [(10,)]
    gap_free(app, Log, list("01234"))
    assert change(app, "UPDATE detent_events SET cause = cause WHERE position > :p", p=8) in (0, 2)
    assert executions(app, "log:0", "effect") == []
