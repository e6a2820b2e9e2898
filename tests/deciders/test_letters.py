"""Effects: at least once, answered in one transaction, retried, given up, taken over."""

import asyncio
import threading
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

import detent
from detent import EffectContext, PermanentError, Retry
from detent.errors import ConfigurationError, InvalidState, NotADeadLetter
from detent.kernel.external_changes import ReplayLetter
from detent.kernel.settle import Outcome
from detent.stores.verbs.control import cancel
from detent.testing import TestingApp
from tests.conformance.builders import Attempt, everything, is_seen_waiting, settling
from tests.deciders import rolling
from tests.deciders.operations import applied, bringing, claimed
from tests.deciders.orders import (
    AT_ONCE,
    Fail,
    Log,
    Mail,
    Say,
    Stop,
    Undecidable,
    change,
    executions,
    letters,
    log,
    sql,
    texts,
    types,
)
from tests.functions.world import Apps, Gate, crash, eventually, reap

SENT = ("completed", "success")
DEAD = ("failed", "dead_letter")
AGAIN = ("failed", "reattempted_by_exception")


def effects(app: detent.App, instance: str = "l") -> list[tuple[str, str | None]]:
    return letters(app, f"log:{instance}", "effect")


# -- The answer ----------------------------------------------------------------------------------------


def test_an_effect_runs_after_its_decision_and_its_answer_is_decided(apps: Apps) -> None:
    app = apps(Log)
    app.execute(Log, Say("l", "a", mails=["one", "two"]))
    eventually(lambda: len(texts(app, Log)) == 3, "both were answered")
    assert texts(app, Log)[0] == "a"
    assert sorted(texts(app, Log)[1:]) == ["sent one", "sent two"]
    assert effects(app) == [SENT, SENT]


def test_an_effect_may_be_async_and_may_have_no_answer(apps: Apps) -> None:
    seen: list[str] = []

    class Quiet(Log):
        type = "log"

        async def handle(self, effect: Mail, ctx: EffectContext) -> None:
            await asyncio.sleep(0)
            seen.append(effect.text)

    app = apps(Quiet)
    app.execute(Quiet, Say("l", "a", mails=["one"]))
    eventually(lambda: effects(app) == [SENT], "it is done")
    assert (seen, texts(app, Quiet)) == (["one"], ["a"])


def test_effects_obey_the_limits_of_their_queue(apps: Apps) -> None:
    """On a queue with limits by key, the key is the instance."""
    guard, now, most = threading.Lock(), Counter[str](), Counter[str]()

    def sees(step: str, whose: str) -> None:
        with guard:
            now[whose] += 1 if step == "begins" else -1
            most[whose] = max(most[whose], now[whose])

    def on_mail(effect: Mail, ctx: EffectContext) -> None:
        sees("begins", ctx.instance)
        time.sleep(0.01)
        sees("ends", ctx.instance)

    app = apps(decider := log(on_mail), queues=[detent.Queue("default", key_concurrency=1)])
    for name in ("a", "b"):
        app.execute(decider, Say(name, "x", mails=[f"mail {number}" for number in range(5)]))
    eventually(lambda: [effects(app, name) for name in "ab"] == [[SENT] * 5] * 2, "all are sent")
    assert most == {"a": 1, "b": 1}


def test_an_effect_knows_whose_it_is(apps: Apps) -> None:
    seen: list[Any] = []

    def on_mail(effect: Mail, ctx: EffectContext) -> None:
        seen.append((ctx.decider, ctx.instance, ctx.run.id, ctx.attempt, ctx.idempotency_key))

    app = apps(decider := log(on_mail))
    app.execute(decider, Say("l:with:colons", "a", mails=["one", "two"]))
    eventually(lambda: len(seen) == 2, "both have run")
    assert {one[:4] for one in seen} == {("log", "l:with:colons", "log:l:with:colons", 1)}
    assert len({one[4] for one in seen}) == 2, "each effect has a key of its own"


def test_an_answer_may_be_for_another_instance(apps: Apps) -> None:
    app = apps(decider := log(lambda effect, ctx: Say("other", "hello")))
    app.execute(decider, Say("l", "a", mails=["one"]))
    eventually(lambda: effects(app) == [SENT], "it is done")
    assert texts(app, decider, "other") == ["hello"]
    assert texts(app, decider) == ["a"]


def test_an_answer_and_the_end_of_its_effect_are_one_transaction(apps: Apps) -> None:
    """The end is refused, so there is no decision; and the other way round."""
    app = apps(Log, worker=False)
    app.execute(Log, Say("l", "a", mails=["one"]))
    effect = claimed(app, Log, "effect")
    before = everything(app.engine.store)
    [refused] = applied(app, bringing(app, Log, effect, Fail("l")))
    assert isinstance(refused, Undecidable)
    assert everything(app.engine.store) == before, "no decision, no end"
    app.engine.store.reap("w1", max_recoveries=5, now=app.engine.clock.now())
    before = everything(app.engine.store)
    [late] = applied(app, bringing(app, Log, effect, Say("l", "late")))
    assert late.stale
    assert everything(app.engine.store) == before, "no end, no decision"


def test_an_answer_that_begins_no_instance_leaves_none(apps: Apps) -> None:
    """A stale answer for an instance that does not exist yet."""
    app = apps(Log, worker=False)
    app.execute(Log, Say("l", "a", mails=["one"]))
    effect = claimed(app, Log, "effect")
    app.engine.store.reap("w1", max_recoveries=5, now=app.engine.clock.now())
    [late] = applied(app, bringing(app, Log, effect, Say("other", "late")))
    assert late.stale
    assert sql(app, "SELECT id FROM detent_runs") == [("log:l",)]


def test_a_second_answer_in_the_same_commit_is_discarded(apps: Apps) -> None:
    app = apps(Log, worker=False)
    app.execute(Log, Say("l", "a", mails=["one"]))
    effect = claimed(app, Log, "effect")
    first, second = applied(
        app, bringing(app, Log, effect, Say("l", "b")), bringing(app, Log, effect, Say("l", "c"))
    )
    assert (first.stale, second.stale) == (False, True)
    assert texts(app, Log) == ["a", "b"]


# -- Attempts ------------------------------------------------------------------------------------------


def test_the_idempotency_key_is_the_same_for_every_attempt(apps: Apps) -> None:
    seen: list[tuple[int, str]] = []

    def on_mail(effect: Mail, ctx: EffectContext) -> Any:
        seen.append((ctx.attempt, ctx.idempotency_key))
        if ctx.attempt < 3:
            raise ConnectionError("no mail server")
        return Say("l", "sent")

    app = apps(decider := log(on_mail, retry=AT_ONCE))
    app.execute(decider, Say("l", "a", mails=["one"]))
    eventually(lambda: texts(app, decider) == ["a", "sent"], "it was sent")
    assert [attempt for attempt, _ in seen] == [1, 2, 3]
    assert len({key for _, key in seen}) == 1
    assert effects(app) == [AGAIN, AGAIN, SENT]


def test_an_exhausted_effect_is_a_dead_letter_and_the_instance_goes_on(apps: Apps) -> None:
    def on_mail(effect: Mail, ctx: EffectContext) -> Any:
        raise ConnectionError("no mail server")

    app = apps(decider := log(on_mail, retry=AT_ONCE))
    app.execute(decider, Say("l", "a", mails=["one"]))
    eventually(lambda: app.dead_letters.count(decider) == 1, "it is a dead letter")
    assert effects(app) == [AGAIN, AGAIN, DEAD]
    [letter] = app.dead_letters()
    assert (letter.kind, letter.type, letter.decider, letter.instance) == ("effect", "Mail", "log", "l")
    assert letter.error is not None
    assert "no mail server" in letter.error.message
    assert app.run("log:l").refresh().state == "ready"
    assert app.execute(decider, Say("l", "b"))


def test_a_permanent_error_makes_a_dead_letter_at_once(apps: Apps) -> None:
    def on_mail(effect: Mail, ctx: EffectContext) -> Any:
        raise PermanentError("no such address")

    app = apps(decider := log(on_mail))
    app.execute(decider, Say("l", "a", mails=["one"]))
    eventually(lambda: effects(app) == [DEAD], "it is a dead letter")


def test_an_answer_that_is_no_input_makes_a_dead_letter_at_once(apps: Apps) -> None:
    app = apps(decider := log(lambda effect, ctx: "hello"))
    app.execute(decider, Say("l", "a", mails=["one"]))
    eventually(lambda: effects(app) == [DEAD], "it is a dead letter")
    [letter] = app.dead_letters()
    assert letter.error is not None
    assert "Say" in letter.error.message, "it names what it could have been"


def test_an_answer_that_cannot_be_decided_is_tried_again(apps: Apps) -> None:
    app = apps(decider := log(lambda effect, ctx: Fail("l"), retry=AT_ONCE))
    app.execute(decider, Say("l", "a", mails=["one"]))
    eventually(lambda: effects(app) == [AGAIN, AGAIN, DEAD], "it is a dead letter")
    assert texts(app, decider) == ["a"]


def test_a_timeout_is_an_attempt(apps: Apps) -> None:
    class Slow(Log):
        type = "log"
        timeout = timedelta(seconds=0.05)
        retry = Retry(attempts=2, first=timedelta(0), jitter=0)

        async def handle(self, effect: Mail, ctx: EffectContext) -> None:
            await asyncio.sleep(60)

    app = apps(Slow)
    app.execute(Slow, Say("l", "a", mails=["one"]))
    eventually(lambda: effects(app) == [AGAIN, DEAD], "it is a dead letter")


def test_a_dead_letter_stays_one_when_the_policy_changes(apps: Apps) -> None:
    """It is a stored state, not a function of today's settings."""

    def on_mail(effect: Mail, ctx: EffectContext) -> Any:
        raise ConnectionError("no mail server")

    app = apps(decider := log(on_mail, retry=Retry(attempts=1)))
    app.execute(decider, Say("l", "a", mails=["one"]))
    eventually(lambda: effects(app) == [DEAD], "it is a dead letter")
    app.close()
    patient = log(on_mail, retry=Retry(attempts=50, first=timedelta(0)))
    later = apps(patient)
    later.execute(patient, Say("m", "b", mails=["two"]))
    eventually(lambda: len(effects(later, "m")) > 2, "the new policy is in force")
    assert effects(later) == [DEAD]
    assert later.dead_letters.count(patient) == 1


def test_replay_gives_a_dead_letter_a_fresh_budget_under_the_same_key(apps: Apps) -> None:
    keys: list[str] = []
    works = threading.Event()

    def on_mail(effect: Mail, ctx: EffectContext) -> Any:
        keys.append(ctx.idempotency_key)
        if not works.is_set():
            raise ConnectionError("no mail server")
        return Say("l", "sent")

    app = apps(decider := log(on_mail, retry=AT_ONCE))
    app.execute(decider, Say("l", "a", mails=["one"]))
    eventually(lambda: app.dead_letters.count() == 1, "it is a dead letter")
    [letter] = app.dead_letters()
    app.dead_letters.replay(letter)
    eventually(lambda: len(keys) == 6 and app.dead_letters.count() == 1, "all of its new budget is used")
    works.set()
    app.dead_letters.replay(app.dead_letters()[0])
    eventually(lambda: texts(app, decider) == ["a", "sent"], "it was sent")
    assert len(set(keys)) == 1
    assert app.dead_letters.count() == 0


def test_replay_cannot_touch_what_is_in_flight_or_done(apps: Apps) -> None:
    gate = Gate()
    app = apps(decider := log(lambda effect, ctx: gate.pass_through()))
    app.execute(decider, Say("l", "a", mails=["one"]))
    gate.wait_for_arrival()
    node = executions(app, "log:l", "effect")[0].node
    for verb in (app.dead_letters.replay, app.dead_letters.discard):
        with pytest.raises(NotADeadLetter):
            verb(f"log:l/{node}")
    gate.open()
    eventually(lambda: effects(app) == [SENT], "it is done")
    with pytest.raises(NotADeadLetter):
        app.dead_letters.replay(f"log:l/{node}")


# -- Workers that die ----------------------------------------------------------------------------------


def test_an_effect_whose_lease_was_lost_runs_elsewhere_and_is_decided_once(apps: Apps) -> None:
    gate, answers = Gate(), iter(["late", "in time"])

    def on_mail(effect: Mail, ctx: EffectContext) -> Any:
        answer = next(answers)
        if answer == "late":
            gate.pass_through()
        return Say("l", answer)

    first = apps(decider := log(on_mail))
    first.execute(decider, Say("l", "a", mails=["one"]))
    gate.wait_for_arrival()
    second = apps(decider)
    reap(first, reaped_by=second)
    eventually(lambda: texts(second, decider) == ["a", "in time"], "the second has sent it")
    gate.open()
    first.close()
    assert texts(second, decider) == ["a", "in time"]
    assert effects(second) == [("failed", "recovered"), SENT]


def test_a_crash_while_an_effect_runs_runs_it_again_under_the_same_key(apps: Apps) -> None:
    gate = Gate()
    keys: list[str] = []

    def on_mail(effect: Mail, ctx: EffectContext) -> Any:
        keys.append(ctx.idempotency_key)
        if len(keys) == 1:
            gate.pass_through()
        return Say("l", "sent")

    first = apps(decider := log(on_mail))
    first.execute(decider, Say("l", "a", mails=["one"]))
    gate.wait_for_arrival()
    second = apps(decider)
    crash(first, reaped_by=second)
    eventually(lambda: texts(second, decider) == ["a", "sent"], "it was sent")
    gate.open()
    assert len(set(keys)) == 1


def test_an_effect_that_outlasts_the_grace_of_its_worker_runs_elsewhere(apps: Apps) -> None:
    gate = Gate()
    tries: list[str] = []

    def on_mail(effect: Mail, ctx: EffectContext) -> Any:
        tries.append(ctx.idempotency_key)
        if len(tries) == 1:
            gate.pass_through()
        return Say("l", "sent")

    leaving = apps(decider := log(on_mail), grace=timedelta(seconds=0.1))
    leaving.execute(decider, Say("l", "a", mails=["one"]))
    gate.wait_for_arrival()
    leaving.close()
    staying = apps(decider)
    eventually(lambda: texts(staying, decider) == ["a", "sent"], "it was sent")
    gate.open()
    assert len(tries) == 2
    assert len(set(tries)) == 1
    assert texts(staying, decider) == ["a", "sent"]


def test_a_decision_may_have_very_many_events_effects_and_timers(apps: Apps) -> None:
    app = apps(Log)
    count = 300
    many = [str(number) for number in range(count)]
    app.execute(Log, Say("l", "a", also=many, mails=many, timers=dict.fromkeys(many, 0.0)))
    eventually(lambda: len(app.events(Log, "l")) == 3 * count + 1, "all of it has happened")
    said = texts(app, Log)
    assert said[: count + 1] == ["a", *many]
    assert sorted(said[count + 1 :]) == sorted([f"sent {n}" for n in many] + [f"ring {n}" for n in many])
    assert len({one.node for one in executions(app, "log:l", "effect")}) == count


def test_attempts_are_counted_when_they_are_claimed(apps: Apps) -> None:
    """What kills its process every time is given up like what raises every time."""
    app = apps(Log, worker=False)
    app.execute(Log, Say("l", "a", mails=["one"]))
    for number in range(4):
        worker = f"w{number}"
        clock = app.engine.clock
        eventually(lambda: _is_due(app), "its next attempt is due")
        effect = claimed(app, Log, "effect", worker)
        assert effect.attempt == number + 1
        app.engine.store.reap(worker, max_recoveries=3, now=clock.now())
    assert effects(app) == [("failed", "recovered")] * 3 + [DEAD]
    [letter] = app.dead_letters()
    assert letter.error is not None
    assert "TooManyRecoveries" in letter.error.type
    assert app.run("log:l").state == "ready"
    assert app.execute(Log, Say("l", "b"))


def _is_due(app: detent.App) -> bool:
    [(due,)] = sql(
        app,
        "SELECT MIN(scheduled_for) FROM detent_executions WHERE state IN ('ready', 'timer')",
    )
    return bool(due is not None and due <= app.engine.clock.now())


# -- Deploys -------------------------------------------------------------------------------------------


def test_what_only_the_new_code_knows_is_left_to_it(apps: Apps) -> None:
    """Effects and timers of unknown kinds are neither lost nor given up by workers with the old code."""
    old, new = apps(rolling.Old), apps(rolling.New, worker=False)
    new.execute(rolling.New, rolling.Begin("r"))
    old.execute(rolling.Old, rolling.Ping("other"))
    eventually(lambda: types(old, rolling.Old, "other") == ["Pinged", "Pinged"], "the old worker works")
    waiting = [one for kind in ("effect", "timer") for one in letters(new, "rolling:r", kind)]
    assert waiting == [("scheduled", None)] * 2
    worker = apps(rolling.New)
    eventually(lambda: len(types(worker, rolling.New, "r")) == 3, "the new worker has taken both")
    assert worker.dead_letters.count() == 0


def test_an_effect_of_the_testing_app_runs_under_virtual_time(testing: TestingApp) -> None:
    tries: list[Any] = []

    def on_mail(effect: Mail, ctx: EffectContext) -> Any:
        tries.append(testing.clock())
        if len(tries) < 3:
            raise ConnectionError("no mail server")
        return Say("l", "sent")

    testing.include(decider := log(on_mail))
    testing.execute(decider, Say("l", "a", mails=["one"]))
    testing.speedrun(testing.run("log:l"))
    assert texts(testing, decider) == ["a", "sent"]
    assert tries[0] < tries[1] < tries[2]


def test_a_log_that_stops_by_the_answer_of_an_effect_is_over(apps: Apps) -> None:
    app = apps(decider := log(lambda effect, ctx: Stop("l")))
    app.execute(decider, Say("l", "a", mails=["one"], timers={"k": 3600.0}))
    run = app.run("log:l")
    run.result(timeout=20)
    assert types(app, decider) == ["Said", "Stopped"]
    assert letters(app, "log:l", "timer") == [("canceled", "canceled_by_finish")]


# -- Replaying all -------------------------------------------------------------------------------------


def given_up(app: detent.App, decider: Any, instances: list[str]) -> None:
    """Give each of these instances a dead effect; the app has no worker."""
    for number, instance in enumerate(instances):
        app.execute(decider, Say(instance, "a", mails=["one"]))
        effect = claimed(app, decider, "effect", f"w{number}")
        applied(app, settling(effect, Outcome.DEAD_LETTER, now=app.engine.clock.now()))


def test_replaying_all_skips_what_belongs_to_a_canceled_instance(apps: Apps) -> None:
    app = apps(Log, worker=False)
    given_up(app, Log, ["a", "b", "c"])
    app.run("log:b").cancel()
    report = app.dead_letters.replay_all()
    assert report.replayed == 2
    [skipped] = report.skipped
    assert skipped.letter.startswith("log:b/effect:")
    assert "canceled" in skipped.reason
    assert [one.instance for one in app.dead_letters()] == ["b"]
    assert [letters(app, f"log:{id}", "effect")[-1] for id in "ac"] == [("scheduled", None)] * 2


def test_replaying_all_visits_each_dead_letter_once(apps: Apps, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when there are more than fit a page, and none of them can be replayed."""
    monkeypatch.setattr("detent.app.dead_letters.ALL_AT_ONCE", 3)
    app = apps(Log, worker=False)
    instances = [str(number) for number in range(10)]
    given_up(app, Log, instances)
    change(app, "UPDATE detent_executions SET finished_at = 1 WHERE outcome = 'dead_letter'")
    for instance in instances[:7]:
        app.run(f"log:{instance}").cancel()
    report = app.dead_letters.replay_all(Log)
    assert report.replayed == 3
    assert sorted(one.letter.partition("/")[0] for one in report.skipped) == [
        f"log:{instance}" for instance in instances[:7]
    ]
    assert app.dead_letters.replay_all().replayed == 0


def test_replaying_all_does_not_replay_what_is_given_up_again_meanwhile(
    apps: Apps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("detent.app.dead_letters.ALL_AT_ONCE", 1)
    app = apps(Log, worker=False)
    given_up(app, Log, ["a", "b"])
    replayed: list[str] = []
    change_as_before = app.engine.store.change

    def replay_and_fail(letter: ReplayLetter, *, now: int) -> None:
        change_as_before(letter, now=now)
        replayed.append(letter.run_id)
        effect = claimed(app, Log, "effect", f"again-{len(replayed)}")
        applied(app, settling(effect, Outcome.DEAD_LETTER, now=now))
        change(app, "UPDATE detent_executions SET finished_at = 2 WHERE outcome = 'dead_letter'")

    change(app, "UPDATE detent_executions SET finished_at = 2 WHERE outcome = 'dead_letter'")
    monkeypatch.setattr(app.engine.store, "change", replay_and_fail)
    assert app.dead_letters.replay_all().replayed == 2
    assert replayed == ["log:a", "log:b"]
    assert app.dead_letters.count() == 2


def test_replaying_all_can_be_limited_to_a_decider_or_an_instance(apps: Apps) -> None:
    class Other(Log):
        type = "other"

    app = apps(Log, Other, worker=False)
    given_up(app, Log, ["a", "b"])
    given_up(app, Other, ["a"])
    assert app.dead_letters.replay_all(Log, "a").replayed == 1
    assert app.dead_letters.replay_all(Log).replayed == 1
    assert [one.decider for one in app.dead_letters()] == ["other"]
    with pytest.raises(ConfigurationError, match="needs the decider"):
        app.dead_letters.replay_all(instance="a")


def test_replaying_all_is_the_same_from_asyncio(url: str, apps: Apps) -> None:
    app = apps(Log, worker=False)
    given_up(app, Log, ["a", "b"])
    app.run("log:b").cancel()

    async def main() -> Any:
        other = detent.AsyncApp(url, include=[Log])
        report = await other.dead_letters.replay_all()
        await other.close()
        return report

    report = asyncio.run(main())
    assert (report.replayed, [one.letter.partition("/")[0] for one in report.skipped]) == (1, ["log:b"])


def test_the_dead_inbox_of_a_canceled_instance_can_be_discarded(apps: Apps) -> None:
    app = apps(Log, worker=False)
    app.enqueue_input(Log, Fail("l"))
    applied(app, settling(claimed(app, Log, "inbox"), Outcome.DEAD_LETTER, now=app.engine.clock.now()))
    app.run("log:l").cancel()
    [letter] = app.dead_letters()
    with pytest.raises(InvalidState, match="canceled"):
        app.dead_letters.replay(letter)
    app.dead_letters.discard(letter)
    assert app.dead_letters() == []
    assert letters(app, "log:l", "inbox") == [("failed", "discarded")]


def test_a_dead_letter_is_replayed_or_its_instance_canceled_in_some_order(apps: Apps) -> None:
    """Held open: the cancel is not committed, when another process replays."""
    first, second = apps(Log, worker=False), apps(Log, worker=False)
    given_up(first, Log, ["l"])
    [letter] = first.dead_letters()
    store = first.engine.store
    with store._writer.transaction() as tx:
        cancel(tx, "log:l", reason=None, now=first.engine.clock.now())
        attempt = Attempt(lambda: second.dead_letters.replay(letter))
        is_seen_waiting(attempt, store)
    with pytest.raises(InvalidState, match="canceled"):
        attempt.result()
    assert letters(second, "log:l", "effect") == [DEAD]
