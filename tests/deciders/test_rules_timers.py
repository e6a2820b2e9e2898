"""Timers: consumed with the decision that they cause, replaced and cancelled by key, also while they fire."""

from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest

import detent
from detent import Decision, Retry
from detent.definitions.deciders import TIMERS
from detent.errors import NotADeadLetter
from detent.kernel.settle import Outcome
from detent.testing import TestingApp
from tests.conformance.builders import Attempt, held_open, is_seen_waiting, settling
from tests.deciders.operations import applied, bringing, claimed, deciding_of
from tests.deciders.orders import (
    Create,
    Log,
    Order,
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
    sql,
    texts,
    types,
)
from tests.functions.world import Apps, eventually

CANCELED = ("canceled", "canceled_by_decision")
FIRED = ("completed", "success")
WAITING = ("scheduled", None)
RECORD = "detent.TimerCancelled"


def pass_time(app: TestingApp, **span: float) -> None:
    """Let time pass, and whatever is due happen."""
    app.clock.advance(**span)
    app.poke()
    app.settle_down()


def has_events(app: detent.App, count: int) -> bool:
    return len(app.events(Log, "l")) == count


@pytest.fixture
def idle(apps: Apps) -> detent.App:
    """An app without a worker, whose log has a timer `k` that is due."""
    app = apps(Log, worker=False)
    app.execute(Log, Say("l", "a", timers={"k": 0.0}))
    return app


# -- Firing --------------------------------------------------------------------------------------------


def test_a_keyed_timer_reschedules_itself_for_ever(testing: TestingApp) -> None:
    rounds = 150
    testing.include(Log)
    start = testing.clock()
    testing.execute(Log, Say("l", "a", timers={"k": 60.0}, every=60.0))
    for number in range(1, rounds + 1):
        pass_time(testing, seconds=60)
        eventually(partial(has_events, testing, number + 1), "it has fired once")
    rings = [one.event for one in testing.events(Log, "l")][1:]
    assert [event.at for event in rings if isinstance(event, Said)] == [
        start + timedelta(seconds=60 * number) for number in range(1, rounds + 1)
    ]
    assert letters(testing, "log:l", "timer") == [FIRED] * rounds + [WAITING]
    assert RECORD not in types(testing, Log)


def test_a_timer_is_not_early_and_fires_once(testing: TestingApp) -> None:
    testing.include(Log)
    testing.execute(Log, Say("l", "a", timers={"k": 60.0}))
    pass_time(testing, seconds=59)
    assert texts(testing, Log) == ["a"]
    pass_time(testing, seconds=1)
    eventually(lambda: texts(testing, Log) == ["a", "ring k"], "it has fired")
    pass_time(testing, hours=1)
    assert texts(testing, Log) == ["a", "ring k"]


def test_a_timer_may_be_due_at_once_and_at_a_moment_that_is_past(testing: TestingApp) -> None:
    class Late(Log):
        type = "late"

        def decide(self, state: Any, input: Any, now: datetime) -> Decision:
            decision = super().decide(state, input, now)
            if isinstance(input, Ring):
                return decision
            return decision.with_timer(at=now - timedelta(days=1), input=Ring(input.id, "past"))

    testing.include(Late)
    testing.execute(Late, Say("l", "a"))
    eventually(lambda: texts(testing, Late) == ["a", "ring past"], "it has fired")


def test_timers_without_a_key_stand_beside_each_other(testing: TestingApp) -> None:
    class Keyless(Log):
        type = "keyless"

        def decide(self, state: Any, input: Any, now: datetime) -> Decision:
            decision = super().decide(state, input, now)
            if isinstance(input, Ring):
                return decision
            for number in range(3):
                decision = decision.with_timer(after=timedelta(minutes=1), input=Ring(input.id, str(number)))
            return decision

    testing.include(Keyless)
    testing.execute(Keyless, Say("l", "a"))
    testing.execute(Keyless, Say("l", "b"))
    pass_time(testing, minutes=1)
    eventually(lambda: len(texts(testing, Keyless)) == 8, "all have fired")
    assert sorted(texts(testing, Keyless)[2:]) == sorted(f"ring {number % 3}" for number in range(6))


def test_a_timer_may_be_for_another_instance(testing: TestingApp) -> None:
    class Neighbourly(Log):
        type = "neighbourly"

        def decide(self, state: Any, input: Any, now: datetime) -> Decision:
            decision = super().decide(state, input, now)
            if isinstance(input, Say):
                return decision.with_timer(after=timedelta(minutes=1), input=Ring("other", "k"), key="k")
            return decision

    testing.include(Neighbourly)
    testing.execute(Neighbourly, Say("l", "a"))
    pass_time(testing, minutes=1)
    eventually(lambda: texts(testing, Neighbourly, "other") == ["ring k"], "the other has begun by it")
    assert texts(testing, Neighbourly) == ["a"]
    assert letters(testing, "neighbourly:l", "timer") == [FIRED]


# -- Replacing -----------------------------------------------------------------------------------------


def test_a_timer_with_the_key_of_a_pending_one_replaces_it(testing: TestingApp) -> None:
    testing.include(Log)
    testing.execute(Log, Say("l", "a", timers={"k": 60.0}))
    testing.execute(Log, Say("l", "b", timers={"k": 120.0}))
    assert letters(testing, "log:l", "timer") == [CANCELED, WAITING]
    pass_time(testing, seconds=60)
    assert texts(testing, Log) == ["a", "b"]
    pass_time(testing, seconds=60)
    eventually(lambda: texts(testing, Log) == ["a", "b", "ring k"], "it has fired")
    assert RECORD not in types(testing, Log), "a timer that was replaced was not cancelled"


def test_replacing_a_timer_resets_its_attempts_and_its_error(apps: Apps) -> None:
    class Failing(Log):
        type = "failing"

        def decide(self, state: Any, input: Any, now: datetime) -> Decision:
            if isinstance(input, Ring):
                raise Undecidable("not today")
            return super().decide(state, input, now)

    app = apps(Failing)
    app.execute(Failing, Say("l", "a", timers={"k": 0.0}))
    eventually(lambda: len(letters(app, "failing:l", "timer")) > 1, "it has failed")
    app.execute(Failing, Say("l", "b", timers={"k": 3600.0}))
    *failed, tried, fresh = executions(app, "failing:l", "timer")
    assert {one.outcome for one in failed} == {"reattempted_by_exception"}
    assert (tried.state, tried.outcome) == CANCELED
    assert (fresh.node != tried.node, fresh.attempt, fresh.error, fresh.state) == (True, 1, None, "scheduled")
    rows = sql(app, "SELECT failures, recoveries FROM detent_executions WHERE node = :node", node=fresh.node)
    assert rows == [(0, 0)]


def test_of_two_timers_with_one_key_in_a_decision_the_last_counts(testing: TestingApp) -> None:
    class Twice(Log):
        type = "twice"

        def decide(self, state: Any, input: Any, now: datetime) -> Decision:
            decision = super().decide(state, input, now)
            if isinstance(input, Ring):
                return decision
            for minutes in (1, 2):
                decision = decision.with_timer(
                    after=timedelta(minutes=minutes), input=Ring("l", str(minutes)), key="k"
                )
            return decision

    testing.include(Twice)
    testing.execute(Twice, Say("l", "a"))
    assert letters(testing, "twice:l", "timer") == [WAITING]
    pass_time(testing, minutes=5)
    eventually(lambda: texts(testing, Twice) == ["a", "ring 2"], "the second has fired")


# -- Cancelling ----------------------------------------------------------------------------------------


def test_a_cancelled_timer_never_fires_and_leaves_a_record(testing: TestingApp) -> None:
    testing.include(Log)
    testing.execute(Log, Say("l", "a", timers={"k": 60.0, "m": 60.0}))
    testing.execute(Log, Say("l", "b", cancels=["k"]))
    pass_time(testing, hours=1)
    eventually(lambda: "ring m" in texts(testing, Log), "the other has fired")
    assert types(testing, Log) == ["Said", "Said", RECORD, "Said"]
    assert texts(testing, Log) == ["a", "b", "ring m"]
    record = testing.events(Log, "l")[2]
    assert (record.event, record.cause) == (detent.TimerCancelled("k"), "Say")


def test_cancelling_what_is_not_pending_leaves_no_record(testing: TestingApp) -> None:
    testing.include(Log)
    testing.execute(Log, Say("l", "never", cancels=["k"]))
    testing.execute(Log, Say("l", "a", timers={"k": 60.0}))
    pass_time(testing, seconds=60)
    eventually(lambda: "ring k" in texts(testing, Log), "it has fired")
    testing.execute(Log, Say("l", "too late", cancels=["k"]))
    testing.execute(Log, Say("l", "b", timers={"k": 60.0}))
    testing.execute(Log, Say("l", "c", cancels=["k", "k"]))
    testing.execute(Log, Say("l", "d", cancels=["k"]))
    assert types(testing, Log).count(RECORD) == 1
    assert types(testing, Log)[-2:] == [RECORD, "Said"]


def test_a_timer_of_another_instance_with_that_key_stays(testing: TestingApp) -> None:
    testing.include(Log)
    for instance in "lm":
        testing.execute(Log, Say(instance, "a", timers={"k": 60.0}))
    testing.execute(Log, Say("l", "b", cancels=["k"]))
    assert letters(testing, "log:m", "timer") == [WAITING]


def test_a_key_is_cancelled_before_it_is_scheduled_in_the_same_decision(testing: TestingApp) -> None:
    testing.include(Log)
    testing.execute(Log, Say("l", "a", timers={"k": 60.0}))
    testing.execute(Log, Say("l", "b", timers={"k": 120.0}, cancels=["k"]))
    assert types(testing, Log) == ["Said", "Said", RECORD]
    assert letters(testing, "log:l", "timer") == [CANCELED, WAITING]
    pass_time(testing, hours=1)
    eventually(lambda: texts(testing, Log) == ["a", "b", "ring k"], "it has fired once")


def test_the_record_of_a_cancelled_timer_is_not_shown_to_evolve(testing: TestingApp) -> None:
    testing.include(Order)
    testing.execute(Order, Create("o"))
    testing.execute(Order, Pay("o"))
    assert RECORD in types(testing, Order, "o")
    assert testing.state_at(Order, "o").status == "paid"


def test_a_timer_that_waits_for_its_next_attempt_can_be_cancelled(apps: Apps) -> None:
    class Failing(Log):
        type = "failing"

        def decide(self, state: Any, input: Any, now: datetime) -> Decision:
            if isinstance(input, Ring):
                raise Undecidable("not today")
            return super().decide(state, input, now)

    app = apps(Failing)
    app.execute(Failing, Say("l", "a", timers={"k": 0.0}))
    eventually(lambda: len(letters(app, "failing:l", "timer")) > 1, "it has failed")
    app.execute(Failing, Say("l", "b", cancels=["k"]))
    assert letters(app, "failing:l", "timer")[-1] == CANCELED
    assert types(app, Failing) == ["Said", "Said", RECORD]


# -- Cancelling what fires at this moment --------------------------------------------------------------


def test_a_timer_that_is_cancelled_after_its_claim_does_not_fire(idle: detent.App) -> None:
    timer = claimed(idle, Log, "timer")
    idle.execute(Log, Say("l", "b", cancels=["k"]))
    [late] = applied(idle, bringing(idle, Log, timer, Ring("l", "k")))
    assert late.stale
    assert types(idle, Log) == ["Said", "Said", RECORD]
    assert letters(idle, "log:l", "timer") == [CANCELED]


def test_a_timer_that_has_fired_cannot_be_cancelled(idle: detent.App) -> None:
    applied(idle, bringing(idle, Log, claimed(idle, Log, "timer"), Ring("l", "k")))
    idle.execute(Log, Say("l", "b", cancels=["k"]))
    assert texts(idle, Log) == ["a", "ring k", "b"]
    assert RECORD not in types(idle, Log)
    assert letters(idle, "log:l", "timer") == [FIRED]


def test_in_one_commit_a_timer_that_is_cancelled_first_does_not_fire(idle: detent.App) -> None:
    timer = claimed(idle, Log, "timer")
    cancel = deciding_of(idle, Log, Say("l", "b", cancels=["k"]))
    _, late = applied(idle, cancel, bringing(idle, Log, timer, Ring("l", "k")))
    assert late.stale
    assert types(idle, Log) == ["Said", "Said", RECORD]
    assert letters(idle, "log:l", "timer") == [CANCELED]


def test_in_one_commit_a_timer_that_fires_first_cannot_be_cancelled(idle: detent.App) -> None:
    timer = claimed(idle, Log, "timer")
    cancel = deciding_of(idle, Log, Say("l", "b", cancels=["k"]))
    fired, _ = applied(idle, bringing(idle, Log, timer, Ring("l", "k")), cancel)
    assert not fired.stale
    assert texts(idle, Log) == ["a", "ring k", "b"]
    assert RECORD not in types(idle, Log)
    assert letters(idle, "log:l", "timer") == [FIRED]


def test_in_one_commit_a_timer_that_has_come_again_can_be_cancelled(idle: detent.App) -> None:
    timer = claimed(idle, Log, "timer")
    cancel = deciding_of(idle, Log, Say("l", "b", cancels=["k"]))
    applied(idle, bringing(idle, Log, timer, Ring("l", "k", every=60)), cancel)
    assert types(idle, Log) == ["Said", "Said", "Said", RECORD]
    assert letters(idle, "log:l", "timer") == [FIRED]
    gap_free(idle, Log, ["l"])


def test_in_one_commit_a_timer_that_is_replaced_first_does_not_fire(idle: detent.App) -> None:
    timer = claimed(idle, Log, "timer")
    renew = deciding_of(idle, Log, Say("l", "b", timers={"k": 60.0}))
    _, late = applied(idle, renew, bringing(idle, Log, timer, Ring("l", "k")))
    assert late.stale
    assert types(idle, Log) == ["Said", "Said"]
    assert letters(idle, "log:l", "timer") == [CANCELED, WAITING]


@pytest.mark.parametrize("order", ["failed first", "cancelled first"])
def test_in_one_commit_a_timer_that_has_failed_is_cancelled_with_its_next_attempt(
    idle: detent.App, order: str
) -> None:
    timer = claimed(idle, Log, "timer")
    failed = settling(timer, Outcome.REATTEMPTED_BY_EXCEPTION, now=idle.engine.clock.now(), wait=60_000_000)
    cancel = deciding_of(idle, Log, Say("l", "b", cancels=["k"]))
    applied(idle, *((failed, cancel) if order == "failed first" else (cancel, failed)))
    assert WAITING not in letters(idle, "log:l", "timer")
    assert types(idle, Log) == ["Said", "Said", RECORD]


def test_a_timer_of_a_dead_worker_can_be_cancelled(idle: detent.App) -> None:
    claimed(idle, Log, "timer")
    idle.engine.store.reap("w1", max_recoveries=5, now=idle.engine.clock.now())
    idle.execute(Log, Say("l", "b", cancels=["k"]))
    assert letters(idle, "log:l", "timer") == [("failed", "recovered"), CANCELED]
    assert types(idle, Log) == ["Said", "Said", RECORD]


def test_a_timer_of_a_dead_worker_fires_once(apps: Apps) -> None:
    app = apps(Log, worker=False)
    app.execute(Log, Say("l", "a", timers={"k": 0.0}))
    timer = claimed(app, Log, "timer")
    app.engine.store.reap("w1", max_recoveries=5, now=app.engine.clock.now())
    other = apps(Log)
    eventually(lambda: texts(other, Log) == ["a", "ring k"], "another worker has fired it")
    [late] = applied(app, bringing(app, Log, timer, Ring("l", "k")))
    assert late.stale
    assert texts(other, Log) == ["a", "ring k"]


def test_a_timer_whose_decision_fails_is_tried_again_and_then_a_dead_letter(testing: TestingApp) -> None:
    tries: list[str] = []

    class Failing(Log):
        type = "failing"

        def decide(self, state: Any, input: Any, now: datetime) -> Decision:
            if isinstance(input, Ring):
                tries.append(input.key)
                raise Undecidable("not today")
            return super().decide(state, input, now)

    testing.include(Failing)
    testing.execute(Failing, Say("l", "a", timers={"k": 60.0}))
    for _ in range(25):
        pass_time(testing, hours=1)
    eventually(lambda: testing.dead_letters.count() == 1, "it is a dead letter")
    assert len(tries) == 20
    [letter] = testing.dead_letters(Failing)
    assert (letter.kind, letter.type, letter.instance, letter.attempts) == ("timer", "Ring", "l", 20)
    assert testing.execute(Failing, Say("l", "the instance goes on"))


def test_a_retry_needs_no_time_to_be_the_same_for_everybody() -> None:
    """What the tests above wait for: a timer waits less than an hour between two attempts."""
    waits = [TIMERS.wait_after(n, Undecidable()) for n in range(1, 20)]
    assert all(wait is not None and wait <= Retry().longest for wait in waits)


def test_a_timer_does_not_fire_for_another_instance_once_its_own_is_over(apps: Apps) -> None:
    """It was cancelled when its instance ended, earlier in the same commit."""
    app = apps(Log, worker=False)
    app.execute(Log, Say("l", "a", timers={"k": 0}))
    app.execute(Log, Say("m", "b"))
    timer = claimed(app, Log, "timer")
    _, fired = applied(app, deciding_of(app, Log, Stop("l")), bringing(app, Log, timer, Ring("m", "k")))
    assert fired.stale
    assert texts(app, Log, "m") == ["b"]
    assert letters(app, "log:l", "timer") == [("canceled", "canceled_by_finish")]


# -- Dead timers ---------------------------------------------------------------------------------------


@pytest.fixture
def dead(idle: detent.App) -> detent.App:
    """An app without a worker, whose log has a timer `k` that is a dead letter."""
    applied(idle, settling(claimed(idle, Log, "timer"), Outcome.DEAD_LETTER, now=idle.engine.clock.now()))
    return idle


def test_cancelling_a_timer_reaches_its_dead_letter(dead: detent.App) -> None:
    [letter] = dead.dead_letters(Log)
    dead.execute(Log, Say("l", "b", cancels=["k"]))
    assert letters(dead, "log:l", "timer") == [CANCELED]
    assert types(dead, Log) == ["Said", "Said", RECORD]
    assert (dead.dead_letters(Log), dead.dead_letters.count()) == ([], 0)
    for verb in (dead.dead_letters.replay, dead.dead_letters.discard):
        with pytest.raises(NotADeadLetter):
            verb(letter)
    dead.execute(Log, Say("l", "c", cancels=["k"]))
    assert types(dead, Log) == ["Said", "Said", RECORD, "Said"], "there is nothing left to cancel"


def test_replacing_a_timer_reaches_its_dead_letter(dead: detent.App) -> None:
    """A key has one timer.  A replacement leaves no record among the events."""
    [letter] = dead.dead_letters(Log)
    dead.execute(Log, Say("l", "b", timers={"k": 60.0}))
    assert letters(dead, "log:l", "timer") == [CANCELED, WAITING]
    assert types(dead, Log) == ["Said", "Said"]
    assert dead.dead_letters(Log) == []
    with pytest.raises(NotADeadLetter):
        dead.dead_letters.replay(letter)


def test_the_end_of_an_instance_cancels_its_dead_timers(dead: detent.App) -> None:
    dead.execute(Log, Stop("l"))
    assert letters(dead, "log:l", "timer") == [("canceled", "canceled_by_finish")]
    assert dead.dead_letters(Log) == []


def test_a_dead_timer_of_another_instance_or_key_stays(dead: detent.App) -> None:
    dead.execute(Log, Say("m", "b", cancels=["k"]))
    dead.execute(Log, Say("l", "c", cancels=["other"]))
    assert len(dead.dead_letters(Log)) == 1
    dead.dead_letters.replay(dead.dead_letters(Log)[0])
    applied(dead, bringing(dead, Log, claimed(dead, Log, "timer", "w2"), Ring("l", "k")))
    assert texts(dead, Log) == ["a", "c", "ring k"]


@pytest.mark.parametrize("order", ["given up first", "cancelled first"])
def test_in_one_commit_a_timer_that_becomes_a_dead_letter_can_be_cancelled(
    idle: detent.App, order: str
) -> None:
    timer = claimed(idle, Log, "timer")
    given_up = settling(timer, Outcome.DEAD_LETTER, now=idle.engine.clock.now())
    cancel = deciding_of(idle, Log, Say("l", "b", cancels=["k"]))
    applied(idle, *((given_up, cancel) if order == "given up first" else (cancel, given_up)))
    assert letters(idle, "log:l", "timer") == [CANCELED]
    assert types(idle, Log) == ["Said", "Said", RECORD]
    assert idle.dead_letters(Log) == []


def test_a_dead_timer_is_cancelled_or_replayed_and_never_both(dead: detent.App, apps: Apps) -> None:
    """Held open: the cancel is decided and not committed, when another process replays the timer."""
    other = apps(Log, worker=False)
    [letter] = dead.dead_letters(Log)
    with held_open(dead.engine.store, deciding_of(dead, Log, Say("l", "b", cancels=["k"]))):
        attempt = Attempt(lambda: other.dead_letters.replay(letter))
        is_seen_waiting(attempt, dead.engine.store)
    with pytest.raises(NotADeadLetter):
        attempt.result()
    assert letters(dead, "log:l", "timer") == [CANCELED]


def test_a_dead_timer_from_before_this_rule_is_not_replayed_beside_its_successor(dead: detent.App) -> None:
    """An earlier version left the dead timer in place when its key was armed again."""
    dead.execute(Log, Say("l", "b", timers={"k": 60.0}))
    change(
        dead,
        "UPDATE detent_executions SET state = 'failed', outcome = 'dead_letter' WHERE state = 'canceled'",
    )
    [letter] = dead.dead_letters(Log)
    with pytest.raises(NotADeadLetter, match="replaced: a timer with its key 'k' waits"):
        dead.dead_letters.replay(letter)
    dead.dead_letters.discard(letter)
    assert dead.dead_letters(Log) == []
