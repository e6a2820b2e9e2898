"""Inboxes: durable at once, decided in the order of arrival, held up by what cannot be decided."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

import detent
from detent.app.dead_letters import backlogs
from detent.errors import InvalidInput
from detent.kernel.settle import Outcome
from tests.conformance.builders import Attempt, everything, held_open, is_seen_waiting, settling
from tests.deciders import rolling
from tests.deciders.operations import applied, bringing, claimed, deciding_of, draining, enqueuing_of
from tests.deciders.orders import (
    Fail,
    Log,
    Mail,
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
    pending_inputs,
    sql,
    texts,
    types,
)
from tests.functions.world import Apps, Gate, eventually, reap

DONE = ("completed", "success")
WAITING = ("scheduled", None)


def inbox(app: detent.App, instance: str = "l") -> list[tuple[str, str | None]]:
    return letters(app, f"log:{instance}", "inbox")


# -- Durable, and in order -----------------------------------------------------------------------------


def test_an_input_is_durable_before_it_is_decided(apps: Apps) -> None:
    app = apps(Log, worker=False)
    assert app.enqueue_input(Log, Say("l", "a")) is True
    app.close()
    other = apps(Log, worker=False)
    assert (types(other, Log), pending_inputs(other), inbox(other)) == ([], 1, [WAITING])
    worker = apps(Log)
    eventually(lambda: texts(worker, Log) == ["a"], "it was decided")
    assert pending_inputs(worker) == 0


def test_inputs_are_decided_in_the_order_of_arrival_by_several_workers(apps: Apps) -> None:
    workers = [apps(Log) for _ in range(3)]
    instances = [f"l{number}" for number in range(5)]
    for number in range(60):
        for instance in instances:
            workers[number % 3].enqueue_input(Log, Say(instance, str(number)))
    app = workers[0]
    eventually(lambda: pending_inputs(app) == 0, "all were decided")
    for instance in instances:
        assert texts(app, Log, instance) == [str(number) for number in range(60)]
    gap_free(app, Log, instances)


def test_more_inputs_than_share_a_commit_are_decided_in_order(apps: Apps) -> None:
    app = apps(Log, worker=False)
    count = 450
    applied(app, *(enqueuing_of(app, Log, Say("l", str(number))) for number in range(count)))
    assert inbox(app) == [WAITING], "one execution empties it"
    worker = apps(Log)
    eventually(lambda: pending_inputs(worker) == 0, "all were decided")
    assert texts(worker, Log) == [str(number) for number in range(count)]
    eventually(lambda: inbox(worker) == [DONE], "and it has settled")


def test_an_input_may_begin_its_instance_and_end_it(apps: Apps) -> None:
    app = apps(Log, worker=False)
    for input in (Say("l", "a"), Stop("l"), Say("l", "b")):
        app.enqueue_input(Log, input)
    drained = draining(app, Log, claimed(app, Log, "inbox"))
    [answer] = applied(app, drained)
    assert (answer.applied, answer.more) == (3, False)
    assert types(app, Log) == ["Said", "Stopped"]
    assert sql(app, "SELECT state FROM detent_inputs ORDER BY seq") == [
        ("applied",),
        ("applied",),
        ("ignored",),
    ]
    assert app.run("log:l").state == "finished"


def test_the_same_input_id_waits_once(apps: Apps) -> None:
    app = apps(Log, worker=False)
    assert [app.enqueue_input(Log, Say("l", str(number)), input_id="x") for number in range(3)] == [
        True,
        False,
        False,
    ]
    assert pending_inputs(app) == 1


# -- While it is being emptied -------------------------------------------------------------------------


def test_an_input_that_comes_while_the_inbox_is_emptied_is_decided(apps: Apps) -> None:
    """It came behind the reading, and before the commit: the inbox does not settle."""
    app = apps(Log, worker=False)
    app.enqueue_input(Log, Say("l", "a"))
    letter = claimed(app, Log, "inbox")
    drained = draining(app, Log, letter)
    app.enqueue_input(Log, Say("l", "b"))
    [answer] = applied(app, drained)
    assert (answer.applied, answer.more) == (1, True)
    assert inbox(app) == [("executing", None)]
    applied(app, draining(app, Log, letter))
    assert (texts(app, Log), inbox(app)) == (["a", "b"], [DONE])


@pytest.mark.parametrize("together", [True, False])
def test_what_was_decided_from_an_inbox_is_not_decided_again(apps: Apps, together: bool) -> None:
    """The same operation twice, in one commit or in two, while the inbox stays open for another input."""
    app = apps(Log, worker=False)
    app.enqueue_input(Log, Say("l", "a"))
    letter = claimed(app, Log, "inbox")
    drained = draining(app, Log, letter)
    app.enqueue_input(Log, Say("l", "b"))
    if together:
        applied(app, drained, drained)
    else:
        applied(app, drained)
        applied(app, drained)
    assert (texts(app, Log), inbox(app)) == (["a"], [("executing", None)])
    applied(app, draining(app, Log, letter))
    assert (texts(app, Log), inbox(app)) == (["a", "b"], [DONE])


@pytest.mark.parametrize("order", ["enqueued first", "drained first"])
def test_in_one_commit_an_input_and_the_end_of_the_emptying_lose_no_wake_up(apps: Apps, order: str) -> None:
    app = apps(Log, worker=False)
    app.enqueue_input(Log, Say("l", "a"))
    drained = draining(app, Log, claimed(app, Log, "inbox"))
    queued = enqueuing_of(app, Log, Say("l", "b"))
    applied(app, *((queued, drained) if order == "enqueued first" else (drained, queued)))
    expected = [("executing", None)] if order == "enqueued first" else [DONE, WAITING]
    assert inbox(app) == expected
    assert (texts(app, Log), pending_inputs(app)) == (["a"], 1)


def test_an_input_that_waits_for_the_end_of_the_emptying_calls_somebody_again(apps: Apps) -> None:
    """Held open: the emptying has settled and not committed, when another process enqueues."""
    first, second = apps(Log, worker=False), apps(Log, worker=False)
    first.enqueue_input(Log, Say("l", "a"))
    drained = draining(first, Log, claimed(first, Log, "inbox"))
    with held_open(first.engine.store, drained):
        attempt = Attempt(lambda: second.enqueue_input(Log, Say("l", "b")))
        is_seen_waiting(attempt, first.engine.store)
    assert attempt.result() is True
    assert inbox(first) == [DONE, WAITING]
    worker = apps(Log)
    eventually(lambda: texts(worker, Log) == ["a", "b"], "nothing was forgotten")


def test_an_emptying_that_waits_for_an_input_sees_it(apps: Apps) -> None:
    """Held open the other way round: the input is there and not committed, when the emptying settles."""
    first, second = apps(Log, worker=False), apps(Log, worker=False)
    first.enqueue_input(Log, Say("l", "a"))
    drained = draining(first, Log, claimed(first, Log, "inbox"))
    with held_open(second.engine.store, enqueuing_of(second, Log, Say("l", "b"))):
        attempt = Attempt(lambda: applied(first, drained))
        is_seen_waiting(attempt, second.engine.store)
    [answer] = attempt.result()
    assert answer.more is True
    assert inbox(first) == [("executing", None)]


def test_an_inbox_whose_worker_died_is_emptied_once(apps: Apps) -> None:
    app = apps(Log, worker=False)
    for number in range(5):
        app.enqueue_input(Log, Say("l", str(number)))
    drained = draining(app, Log, claimed(app, Log, "inbox"))
    app.engine.store.reap("w1", max_recoveries=5, now=app.engine.clock.now())
    worker = apps(Log)
    eventually(lambda: pending_inputs(worker) == 0, "another has emptied it")
    [late] = applied(app, drained)
    assert late.stale
    assert texts(worker, Log) == ["0", "1", "2", "3", "4"]


def test_a_worker_that_was_thought_dead_does_not_decide_what_another_has_decided(apps: Apps) -> None:
    first, second = apps(Log), apps(Log)
    for number in range(300):
        first.enqueue_input(Log, Say("l", str(number)))
        if number == 150:
            reap(first, reaped_by=second)
    eventually(lambda: pending_inputs(second) == 0, "all were decided")
    assert texts(second, Log) == [str(number) for number in range(300)]


# -- Before what comes later ---------------------------------------------------------------------------


def test_an_input_that_is_executed_comes_behind_what_waits_in_the_inbox(apps: Apps) -> None:
    app = apps(Log, worker=False)
    for text in "abc":
        app.enqueue_input(Log, Say("l", text))
    events = app.execute(Log, Say("l", "d"))
    assert [event.text for event in events if isinstance(event, Said)] == ["d"], "only its own are returned"
    assert (texts(app, Log), pending_inputs(app)) == (["a", "b", "c", "d"], 0)
    worker = apps(Log)
    eventually(lambda: inbox(worker) == [DONE], "the inbox has settled")
    assert texts(worker, Log) == ["a", "b", "c", "d"]
    gap_free(worker, Log, ["l"])


def test_an_input_that_waits_for_an_uncommitted_enqueue_comes_behind_it(apps: Apps) -> None:
    """Held open: the input is in the inbox and not committed, when another process executes one."""
    first, second = apps(Log, worker=False), apps(Log, worker=False)
    first.execute(Log, Say("l", "begun"))
    with held_open(first.engine.store, enqueuing_of(first, Log, Say("l", "a"))):
        attempt = Attempt(lambda: second.execute(Log, Say("l", "b")))
        is_seen_waiting(attempt, first.engine.store)
    attempt.result()
    assert texts(second, Log) == ["begun", "a", "b"]


def test_an_input_that_is_executed_while_a_worker_empties_the_inbox_comes_behind_it(apps: Apps) -> None:
    """The first one decides what waits; the worker does not decide it again."""
    app = apps(Log, worker=False)
    for text in "ab":
        app.enqueue_input(Log, Say("l", text))
    letter = claimed(app, Log, "inbox")
    drained = draining(app, Log, letter)
    app.execute(Log, Say("l", "c"))
    app.enqueue_input(Log, Say("l", "d"))
    [answer] = applied(app, drained)
    assert (answer.applied, answer.more) == (0, True)
    applied(app, draining(app, Log, letter))
    assert (texts(app, Log), inbox(app)) == (["a", "b", "c", "d"], [DONE])


@pytest.mark.parametrize("order", ["enqueued first", "executed first"])
def test_in_one_commit_inputs_are_decided_in_the_order_of_the_operations(apps: Apps, order: str) -> None:
    app = apps(Log, worker=False)
    queued, executed = enqueuing_of(app, Log, Say("l", "a")), deciding_of(app, Log, Say("l", "b"))
    applied(app, *((queued, executed) if order == "enqueued first" else (executed, queued)))
    worker = apps(Log)
    expected = ["a", "b"] if order == "enqueued first" else ["b", "a"]
    eventually(lambda: texts(worker, Log) == expected, "both were decided")
    assert sql(worker, "SELECT state FROM detent_inputs") == [("applied",)]


def test_the_answer_of_an_effect_comes_behind_what_waits_in_the_inbox(apps: Apps) -> None:
    app = apps(Log, worker=False)
    app.execute(Log, Say("l", "a", mails=["one"]))
    effect = claimed(app, Log, "effect")
    app.enqueue_input(Log, Say("l", "b"))
    applied(app, bringing(app, Log, effect, Say("l", "c")))
    assert texts(app, Log) == ["a", "b", "c"]


def test_a_timer_comes_behind_what_waits_in_the_inbox_and_can_be_cancelled_by_it(apps: Apps) -> None:
    app = apps(Log, worker=False)
    app.execute(Log, Say("l", "a", timers={"k": 0.0}))
    app.execute(Log, Say("m", "a", timers={"k": 0.0}))
    first, second = claimed(app, Log, "timer", "w1"), claimed(app, Log, "timer", "w2")
    app.enqueue_input(Log, Say("l", "b"))
    app.enqueue_input(Log, Say("m", "b", cancels=["k"]))
    for timer in (first, second):
        instance = timer.run_id.partition(":")[2]
        applied(app, bringing(app, Log, timer, Ring(instance, "k")))
    assert texts(app, Log, "l") == ["a", "b", "ring k"]
    assert types(app, Log, "m") == ["Said", "Said", "detent.TimerCancelled"]
    assert letters(app, "log:m", "timer") == [("canceled", "canceled_by_decision")]


def test_an_input_from_the_inbox_may_end_the_instance_before_the_one_that_is_executed(apps: Apps) -> None:
    app = apps(Log, worker=False)
    app.execute(Log, Say("l", "a"))
    run = app.run("log:l")
    waiting = Attempt(lambda: run.result(timeout=20))
    app.enqueue_input(Log, Stop("l"))
    assert app.execute(Log, Say("l", "too late")) == []
    waiting.result()
    assert types(app, Log) == ["Said", "Stopped"]


def test_an_input_that_is_refused_leaves_what_it_found_in_the_inbox_decided(apps: Apps) -> None:
    app = apps(Log, worker=False)
    app.enqueue_input(Log, Say("l", "a"))
    with pytest.raises(Undecidable):
        app.execute(Log, Fail("l"))
    assert (texts(app, Log), pending_inputs(app)) == (["a"], 0)


def test_a_blocked_inbox_does_not_hold_up_what_is_executed(apps: Apps) -> None:
    app = apps(Log, worker=False)
    for input in (Say("l", "a"), Fail("l"), Say("l", "behind it")):
        app.enqueue_input(Log, input)
    app.execute(Log, Say("l", "b"))
    assert (texts(app, Log), pending_inputs(app)) == (["a", "b"], 2)


def test_an_inbox_that_is_a_dead_letter_stays_one_when_an_input_is_executed(apps: Apps) -> None:
    app = apps(Log, worker=False)
    app.enqueue_input(Log, Say("l", "a"))
    applied(app, settling(claimed(app, Log, "inbox"), Outcome.DEAD_LETTER, now=app.engine.clock.now()))
    app.execute(Log, Say("l", "b"))
    assert (texts(app, Log), pending_inputs(app)) == (["b"], 1)


def test_a_full_inbox_is_emptied_in_several_commits_before_what_is_executed(
    apps: Apps, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executed from a thread and from asyncio."""
    monkeypatch.setattr("detent.stores.batch.inboxes.AT_ONCE", 7)
    app = apps(Log, worker=False)
    first = [str(number) for number in range(50)]
    applied(app, *(enqueuing_of(app, Log, Say("l", text)) for text in first))
    attempt = Attempt(lambda: app.execute(Log, Say("l", "from a thread")))

    async def main() -> None:
        other = await detent.AsyncApp(url, include=[Log]).open()
        await asyncio.gather(*(other.execute(Log, Say("l", f"async {number}")) for number in range(10)))
        await other.close()

    asyncio.run(main())
    assert len(attempt.result()) == 1
    said = texts(app, Log)
    assert said[:50] == first
    assert sorted(said[50:]) == sorted(["from a thread", *(f"async {number}" for number in range(10))])
    assert [text for text in said if text.startswith("async")] == [f"async {number}" for number in range(10)]
    gap_free(app, Log, ["l"])


def test_what_arrives_later_does_not_hold_up_an_input_that_waits_for_a_full_inbox(
    apps: Apps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("detent.stores.batch.inboxes.AT_ONCE", 2)
    app = apps(Log, worker=False)
    applied(app, *(enqueuing_of(app, Log, Say("l", text)) for text in "abc"))
    executed = deciding_of(app, Log, Say("l", "executed"))
    [postponed] = applied(app, executed)
    assert (postponed.postponed is not None, texts(app, Log)) == (True, ["a", "b"])
    app.enqueue_input(Log, Say("l", "later"))
    executed.upto = postponed.postponed
    applied(app, executed)
    assert texts(app, Log) == ["a", "b", "c", "executed"]


# -- What cannot be decided ----------------------------------------------------------------------------


def failed_inboxes(app: detent.App) -> list[Any]:
    """The attempts at an inbox that ended with an error."""
    return [one for one in app.run("log:l").executions() if one.kind == "inbox" and one.error is not None]


def test_an_input_that_cannot_be_decided_blocks_its_inbox_alone_and_visibly(apps: Apps) -> None:
    app = apps(Log)
    for instance in "lm":
        app.enqueue_input(Log, Say(instance, "a"))
    app.enqueue_input(Log, Fail("l"))
    app.enqueue_input(Log, Say("l", "behind it"))
    app.enqueue_input(Log, Say("m", "b"))
    eventually(lambda: texts(app, Log, "m") == ["a", "b"], "the other goes on")
    eventually(lambda: failed_inboxes(app), "it has failed")
    assert texts(app, Log) == ["a"]
    assert pending_inputs(app) == 2
    failed = failed_inboxes(app)
    assert "Undecidable" in failed[-1].error.type
    assert app.execute(Log, Say("l", "past the inbox")), "the instance itself goes on"


def test_a_blocked_inbox_goes_on_when_the_code_is_repaired(apps: Apps) -> None:
    broken = apps(Log)
    broken.enqueue_input(Log, Say("l", "a"))
    broken.enqueue_input(Log, Fail("l"))
    broken.enqueue_input(Log, Say("l", "b"))
    eventually(lambda: len(inbox(broken)) > 1, "it has failed")
    broken.close()

    class Repaired(Log):
        type = "log"

        def decide(self, state: Any, input: Any, now: Any) -> Any:
            if isinstance(input, Fail):
                input = Say(input.id, "repaired")
            return super().decide(state, input, now)

    app = apps(Repaired)
    eventually(lambda: texts(app, Repaired) == ["a", "repaired", "b"], "in the old order")


def test_an_inbox_that_was_given_up_is_a_dead_letter_that_new_inputs_do_not_wake(apps: Apps) -> None:
    app = apps(Log, worker=False)
    app.enqueue_input(Log, Fail("l"))
    change(app, "UPDATE detent_executions SET failures = 19")
    worker = apps(Log)
    eventually(lambda: worker.dead_letters.count(Log) == 1, "it was given up")
    [letter] = worker.dead_letters()
    assert (letter.kind, letter.instance) == ("inbox", "l")
    worker.enqueue_input(Log, Say("l", "behind it"))
    assert inbox(worker) == [("failed", "dead_letter")]
    assert pending_inputs(worker) == 2
    worker.dead_letters.discard(letter)
    eventually(lambda: texts(worker, Log) == ["behind it"], "what is behind it is decided")
    assert pending_inputs(worker) == 0


def test_a_replayed_inbox_begins_with_the_input_that_stopped_it(apps: Apps) -> None:
    works = threading.Event()

    class Waiting(Log):
        type = "log"

        def decide(self, state: Any, input: Any, now: Any) -> Any:
            if isinstance(input, Fail) and works.is_set():
                input = Say(input.id, "decided")
            return super().decide(state, input, now)

    app = apps(Waiting, worker=False)
    app.enqueue_input(Waiting, Fail("l"))
    app.enqueue_input(Waiting, Say("l", "b"))
    change(app, "UPDATE detent_executions SET failures = 19")
    worker = apps(Waiting)
    eventually(lambda: worker.dead_letters.count() == 1, "it was given up")
    works.set()
    worker.dead_letters.replay(worker.dead_letters()[0])
    eventually(lambda: texts(worker, Waiting) == ["decided", "b"], "all of it was decided")
    assert worker.dead_letters.count() == 0


def test_an_input_that_only_the_new_code_knows_waits_for_it(apps: Apps) -> None:
    """In a rolling deploy a worker with the old code meets it: that is no reason to give it up."""
    old, new = apps(rolling.Old), apps(rolling.New, worker=False)
    new.enqueue_input(rolling.New, rolling.Ping("r"))
    new.enqueue_input(rolling.New, rolling.Begin("r"))

    def failed() -> list[Any]:
        return [one.error for one in executions(new, "rolling:r", "inbox") if one.error]

    eventually(failed, "the old code has met it")
    assert InvalidInput.__name__ in failed()[-1].type
    assert old.dead_letters.count() == 0
    assert types(old, rolling.Old, "r")[:1] == ["Pinged"], "what is before it was decided"
    old.close()
    worker = apps(rolling.New)
    eventually(lambda: "Begun" in types(worker, rolling.New, "r"), "the new code has decided it")


# -- Instances in other states -------------------------------------------------------------------------


def test_inputs_for_a_paused_instance_wait_until_it_is_resumed(apps: Apps) -> None:
    app = apps(Log)
    app.execute(Log, Say("l", "a"))
    app.run("log:l").pause()
    assert app.enqueue_input(Log, Say("l", "b")) is True
    assert app.enqueue_input(Log, Say("l", "c")) is True
    app.execute(Log, Say("m", "another instance works"))
    assert (texts(app, Log), pending_inputs(app), inbox(app)) == (["a"], 2, [WAITING])
    app.run("log:l").resume()
    eventually(lambda: texts(app, Log) == ["a", "b", "c"], "they were decided")


def test_a_pause_stops_the_emptying_of_an_inbox(apps: Apps) -> None:
    """However much waits in it: what was read before the pause is not decided after it."""
    app = apps(Log, worker=False)
    for text in "ab":
        app.enqueue_input(Log, Say("l", text))
    letter = claimed(app, Log, "inbox")
    drained = draining(app, Log, letter)
    app.run("log:l").pause()
    [answer] = applied(app, drained)
    assert (answer.applied, answer.more, answer.error) == (0, True, None)
    assert (texts(app, Log), pending_inputs(app), inbox(app)) == ([], 2, [("executing", None)])
    app.engine.store.reap("w1", max_recoveries=5, now=app.engine.clock.now())
    worker = apps(Log)
    worker.run("log:l").resume()
    eventually(lambda: texts(worker, Log) == ["a", "b"], "they are decided now")


def test_a_worker_puts_down_the_inbox_of_an_instance_that_is_paused_meanwhile(
    apps: Apps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pause comes when the worker has read the inputs, and has not given them yet."""
    gate = Gate()
    worker, operator = apps(Log), apps(Log, worker=False)
    operator.execute(Log, Say("l", "begun"))
    store = worker.engine.store
    read = store.pending_inputs

    def held_up(run_id: str, *, limit: int) -> Any:
        rows = read(run_id, limit=limit)
        gate.pass_through()
        return rows

    monkeypatch.setattr(store, "pending_inputs", held_up)
    worker.enqueue_input(Log, Say("l", "a"))
    gate.wait_for_arrival()
    operator.run("log:l").pause()
    gate.open()
    eventually(lambda: sql(operator, "SELECT state FROM detent_executions") == [("held",)], "it was put down")
    assert texts(operator, Log) == ["begun"]
    operator.run("log:l").resume()
    eventually(lambda: texts(operator, Log) == ["begun", "a"], "it is decided now")


def test_inputs_for_an_instance_that_is_over_are_ignored_and_call_nobody(apps: Apps) -> None:
    app = apps(Log)
    app.execute(Log, Stop("l"))
    assert app.enqueue_input(Log, Say("l", "b")) is True
    assert (pending_inputs(app), inbox(app)) == (0, [])
    assert sql(app, "SELECT state FROM detent_inputs") == [("ignored",)]


def test_an_input_that_a_rolled_back_end_has_ignored_is_not_lost(apps: Apps) -> None:
    """An operation is asked again when its transaction has to be repeated: it must not remember."""
    app = apps(Log, worker=False)
    app.execute(Log, Say("l", "a", mails=["one"]))
    stop = bringing(app, Log, claimed(app, Log, "effect"), Stop("l"))
    queued = enqueuing_of(app, Log, Say("l", "b"))
    with pytest.raises(RuntimeError), held_open(app.engine.store, stop, queued):
        raise RuntimeError("the database has chosen us as the victim of a deadlock")
    app.engine.store.reap("w1", max_recoveries=5, now=app.engine.clock.now())
    late, answer = applied(app, stop, queued)
    assert (late.stale, answer.created) == (True, True)
    assert pending_inputs(app) == 1


def test_what_waits_can_be_seen(apps: Apps) -> None:
    app = apps(Log, worker=False)
    for number in range(7):
        app.enqueue_input(Log, Say("lm"[number % 2], str(number)))
    [backlog] = backlogs(app.engine)
    assert (backlog.decider, backlog.pending, backlog.instances) == ("log", 7, 2)
    assert backlog.oldest.total_seconds() >= 0


def test_enqueueing_in_an_effect_is_once_over_its_attempts(apps: Apps) -> None:
    tries: list[int] = []

    def on_mail(effect: Mail, ctx: Any) -> None:
        app.enqueue_input(decider, Say("m", "one"))
        app.enqueue_input(decider, Say("m", "two"))
        tries.append(ctx.attempt)
        if len(tries) < 3:
            raise ConnectionError("after the deed")

    decider = log(on_mail, retry=detent.Retry(attempts=5, first=timedelta(0), jitter=0))
    app = apps(decider)
    app.execute(decider, Say("l", "a", mails=["one"]))
    eventually(lambda: len(tries) == 3, "it has been tried three times")
    eventually(lambda: pending_inputs(app) == 0, "its inbox is empty")
    assert texts(app, decider, "m") == ["one", "two"]


def test_a_refused_input_leaves_nothing(apps: Apps) -> None:
    app = apps(Log, worker=False)
    input: Any = "hello"
    before = everything(app.engine.store)
    with pytest.raises(InvalidInput):
        app.enqueue_input(Log, input)
    assert everything(app.engine.store) == before
