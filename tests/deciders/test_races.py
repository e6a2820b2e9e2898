"""Many at once: no lost update, no deadlock, sequences without gap or fork."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import detent
from tests.conformance.builders import Attempt, held_open, is_seen_waiting
from tests.deciders.operations import applied, bringing, claimed, deciding_of, enqueuing_of, remembered
from tests.deciders.orders import (
    Create,
    Fail,
    Log,
    Order,
    Paid,
    Pay,
    Ring,
    Say,
    Stop,
    Undecidable,
    gap_free,
    letters,
    log,
    sql,
    texts,
    types,
)
from tests.functions.world import Apps, eventually


def at_once(deeds: Sequence[Callable[[], Any]]) -> list[Any]:
    """Do all of it at the same moment, each in a thread of its own; return what came of each."""
    start = threading.Barrier(len(deeds))

    def begin(deed: Callable[[], Any]) -> Any:
        start.wait()
        try:
            return deed()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(deeds)) as pool:
        return list(pool.map(begin, deeds))


def saying(app: detent.App, who: str, count: int, instance: str = "l") -> Callable[[], None]:
    """Say so many things, one after the other."""

    def say() -> None:
        for number in range(count):
            app.execute(Log, Say(instance, f"{who}{number}"))

    return say


def in_their_order(said: list[str], who: str, count: int) -> None:
    """Whatever one has said is there, once, and in the order in which it was said."""
    assert [text for text in said if text.startswith(who)] == [f"{who}{number}" for number in range(count)]


# -- One instance --------------------------------------------------------------------------------------


def test_inputs_from_many_threads_are_all_decided_in_the_order_of_arrival(apps: Apps) -> None:
    app = apps(Log, worker=False)
    speakers = [chr(ord("a") + number) for number in range(20)]
    assert at_once([saying(app, who, 5) for who in speakers]) == [None] * 20
    said = texts(app, Log)
    assert len(said) == 100
    for who in speakers:
        in_their_order(said, who, 5)
    gap_free(app, Log, ["l"])
    assert remembered(app, Log).said == said


def test_inputs_from_two_engines_neither_get_lost_nor_fork_the_sequence(apps: Apps) -> None:
    engines = [apps(Log, worker=False), apps(Log, worker=False)]
    speakers = [chr(ord("a") + number) for number in range(10)]
    done = at_once([saying(engines[number % 2], who, 10) for number, who in enumerate(speakers)])
    assert done == [None] * 10
    said = texts(engines[0], Log)
    assert len(said) == 100
    for who in speakers:
        in_their_order(said, who, 10)
    gap_free(engines[0], Log, ["l"])
    for engine in engines:
        engine.execute(Log, Say("l", "end"))
        assert remembered(engine, Log).said[: len(said)] == said


def test_inputs_from_asyncio_are_all_decided_in_the_order_of_arrival(url: str) -> None:
    async def main() -> None:
        async with detent.AsyncApp(url, include=[Log]) as app:
            answers = await asyncio.gather(
                *(app.execute(Log, Say("l", str(number))) for number in range(100))
            )
            assert all(len(events) == 1 for events in answers)
            rows = await app.events(Log, "l")
            assert [row.event.text for row in rows] == [str(number) for number in range(100)]  # type: ignore[union-attr]
            assert [row.sequence for row in rows] == list(range(1, 101))
            assert (await app.state_at(Log, "l")).said == [str(number) for number in range(100)]

    asyncio.run(main())


def test_asyncio_and_threads_share_an_instance(url: str, apps: Apps) -> None:
    sync = apps(Log, worker=False)
    thread = Attempt(saying(sync, "t", 50))

    async def main() -> None:
        async with detent.AsyncApp(url, include=[Log]) as app:
            await asyncio.gather(*(app.execute(Log, Say("l", f"a{number}")) for number in range(50)))

    asyncio.run(main())
    thread.result()
    said = texts(sync, Log)
    assert len(said) == 100
    in_their_order(said, "t", 50)
    in_their_order(said, "a", 50)
    gap_free(sync, Log, ["l"])


def test_what_cannot_be_decided_among_many_harms_nobody(apps: Apps) -> None:
    app = apps(Log, worker=False)

    def fail() -> None:
        for _ in range(5):
            with pytest.raises(Undecidable):
                app.execute(Log, Fail("l"))

    assert at_once([saying(app, who, 5) for who in "abcde"] + [fail] * 5) == [None] * 10
    assert len(texts(app, Log)) == 25
    gap_free(app, Log, ["l"])


def test_of_many_who_end_an_instance_one_does(apps: Apps) -> None:
    engines = [apps(Log, worker=False), apps(Log, worker=False)]
    engines[0].execute(Log, Say("l", "a"))
    answers = at_once([lambda app=app: app.execute(Log, Stop("l")) for app in engines * 5])  # type: ignore[misc]
    assert sorted(map(len, answers)) == [0] * 9 + [1]
    assert types(engines[0], Log) == ["Said", "Stopped"]


# -- Input ids -----------------------------------------------------------------------------------------


def test_the_same_input_id_from_many_at_once_is_one_decision(apps: Apps) -> None:
    engines = [apps(Log, worker=False), apps(Log, worker=False)]
    answers = at_once(
        [lambda app=app: app.execute(Log, Say("l", "a"), input_id="x") for app in engines * 8]  # type: ignore[misc]
    )
    assert sorted(map(len, answers)) == [0] * 15 + [1]
    assert texts(engines[0], Log) == ["a"]


def test_the_same_input_id_executed_and_enqueued_at_once_is_one_decision(apps: Apps) -> None:
    engines = [apps(Log), apps(Log)]
    at_once(
        [lambda app=app: app.execute(Log, Say("l", "a"), input_id="x") for app in engines * 4]
        + [lambda app=app: app.enqueue_input(Log, Say("l", "a"), input_id="x") for app in engines * 4]
    )
    eventually(lambda: texts(engines[0], Log) == ["a"], "it was decided")
    eventually(
        lambda: sql(engines[0], "SELECT state FROM detent_inputs") == [("applied",)], "and marked as such"
    )
    assert texts(engines[0], Log) == ["a"]


def test_an_input_that_waits_for_the_same_id_to_commit_is_a_repeat(apps: Apps) -> None:
    """Held open: the first has decided and not committed, when the second comes."""
    first, second = apps(Log, worker=False), apps(Log, worker=False)
    with held_open(first.engine.store, deciding_of(first, Log, Say("l", "a"), "x")):
        attempt = Attempt(lambda: second.execute(Log, Say("l", "a"), input_id="x"))
        is_seen_waiting(attempt, first.engine.store)
    assert attempt.result() == []
    assert texts(first, Log) == ["a"]


def test_an_input_whose_id_was_rolled_back_elsewhere_is_decided(apps: Apps) -> None:
    first, second = apps(Log, worker=False), apps(Log, worker=False)
    attempt: Attempt[Any] | None = None
    with (
        pytest.raises(RuntimeError),
        held_open(first.engine.store, deciding_of(first, Log, Say("l", "a"), "x")),
    ):
        attempt = Attempt(lambda: second.execute(Log, Say("l", "b"), input_id="x"))
        is_seen_waiting(attempt, first.engine.store)
        raise RuntimeError("its process dies")
    assert attempt is not None
    assert len(attempt.result()) == 1
    assert texts(second, Log) == ["b"]


# -- Held open -----------------------------------------------------------------------------------------


def test_a_decision_waits_for_the_one_before_it_and_sees_what_it_did(apps: Apps) -> None:
    first, second = apps(Order, worker=False), apps(Order, worker=False)
    with held_open(first.engine.store, deciding_of(first, Order, Create("o"))):
        attempt = Attempt(lambda: second.execute(Order, Pay("o", 7)))
        is_seen_waiting(attempt, first.engine.store)
    assert attempt.result() == [Paid(7)]
    assert types(second, Order, "o") == ["Created", "Paid", "detent.TimerCancelled"]


def test_an_instance_that_another_has_begun_and_given_up_is_begun_anew(apps: Apps) -> None:
    first, second = apps(Log, worker=False), apps(Log, worker=False)
    with held_open(first.engine.store, deciding_of(first, Log, Fail("l"))):
        attempt = Attempt(lambda: second.execute(Log, Say("l", "a")))
        is_seen_waiting(attempt, first.engine.store)
    assert len(attempt.result()) == 1
    assert texts(second, Log) == ["a"]


def test_positions_commit_in_their_order(apps: Apps) -> None:
    """Whoever has taken a position holds up those behind it until it has committed."""
    first, second = apps(Log, worker=False), apps(Log, worker=False)
    for instance in "kl":
        first.execute(Log, Say(instance, "begun"))
    with held_open(first.engine.store, deciding_of(first, Log, Say("k", "a"))):
        attempt = Attempt(lambda: second.execute(Log, Say("l", "b")))
        is_seen_waiting(attempt, first.engine.store)
    attempt.result()
    assert [second.events(Log, instance)[-1].position for instance in "kl"] == [3, 4]


def test_a_position_that_was_rolled_back_leaves_no_gap(apps: Apps) -> None:
    first, second = apps(Log, worker=False), apps(Log, worker=False)
    for instance in "kl":
        first.execute(Log, Say(instance, "begun"))
    attempt: Attempt[Any] | None = None
    with pytest.raises(RuntimeError), held_open(first.engine.store, deciding_of(first, Log, Say("k", "a"))):
        attempt = Attempt(lambda: second.execute(Log, Say("l", "b")))
        is_seen_waiting(attempt, first.engine.store)
        raise RuntimeError("its process dies")
    assert attempt is not None
    attempt.result()
    gap_free(second, Log, ["k", "l"])


def test_a_timer_that_fires_while_it_is_cancelled_elsewhere_does_one_of_both(apps: Apps) -> None:
    """Held open: the cancel is decided and not committed, when another process fires the timer."""
    first, second = apps(Log, worker=False), apps(Log, worker=False)
    first.execute(Log, Say("l", "a", timers={"k": 0.0}))
    timer = claimed(second, Log, "timer")
    firing = bringing(second, Log, timer, Ring("l", "k"))
    with held_open(first.engine.store, deciding_of(first, Log, Say("l", "b", cancels=["k"]))):
        attempt = Attempt(lambda: applied(second, firing))
        is_seen_waiting(attempt, first.engine.store)
    [late] = attempt.result()
    assert late.stale
    assert types(first, Log) == ["Said", "Said", "detent.TimerCancelled"]


# -- Many instances ------------------------------------------------------------------------------------


def test_a_thousand_instances_at_once(url: str) -> None:
    async def main() -> None:
        async with detent.AsyncApp(url, include=[Log]) as app:
            inputs = [Say(str(number), text) for text in "ab" for number in range(1000)]
            await asyncio.gather(*(app.execute(Log, input) for input in inputs))
            for number in range(0, 1000, 97):
                assert (await app.state_at(Log, str(number))).said == ["a", "b"]

    asyncio.run(main())


def test_a_thousand_instances_have_positions_without_a_gap(apps: Apps) -> None:
    engines = [apps(Log, worker=False), apps(Log, worker=False)]
    instances = [str(number) for number in range(1000)]
    halves = (instances[:600], instances[400:])  # some of them are begun by both
    done = at_once(
        [
            lambda app=app, half=half: applied(app, *(deciding_of(app, Log, Say(one, "a")) for one in half))  # type: ignore[misc]
            for app, half in zip(engines, halves, strict=True)
        ]
    )
    assert [len(answers) for answers in done] == [600, 600]
    assert sql(engines[0], "SELECT COUNT(*), MIN(position), MAX(position) FROM detent_events") == [
        (1200, 1, 1200)
    ]
    assert sql(engines[0], "SELECT COUNT(DISTINCT position) FROM detent_events") == [(1200,)]
    assert sql(engines[0], "SELECT MAX(sequence) FROM detent_events") == [(2,)]


def test_batches_over_the_same_instances_in_opposite_orders_do_not_deadlock(apps: Apps) -> None:
    engines = [apps(Log, worker=False), apps(Log, worker=False)]
    instances = [f"l{number}" for number in range(10)]

    def rounds(app: detent.App, order: list[str]) -> None:
        for number in range(20):
            for answer in applied(
                app, *(deciding_of(app, Log, Say(instance, str(number))) for instance in order)
            ):
                assert len(answer.events) == 1

    done = at_once(
        [lambda: rounds(engines[0], instances), lambda: rounds(engines[1], list(reversed(instances)))]
    )
    assert done == [None, None]
    gap_free(engines[0], Log, instances)


def test_instances_that_answer_each_other_from_two_workers_do_not_deadlock(apps: Apps) -> None:
    """An effect of each brings an input for the other, again and again."""
    rounds = 15

    def on_mail(effect: Any, ctx: Any) -> Any:
        left = int(effect.text)
        other = {"l": "m", "m": "l"}[ctx.instance]
        return Say(other, str(left), mails=[str(left - 1)] if left > 1 else [])

    decider = log(on_mail)
    engines = [apps(decider), apps(decider)]
    for _ in range(4):
        for instance in "lm":
            engines[0].execute(decider, Say(instance, "start", mails=[str(rounds)]))

    def answered() -> bool:
        return sum(len(texts(engines[0], decider, one)) for one in "lm") == 8 * (rounds + 1)

    eventually(answered, "all were answered")
    gap_free(engines[0], decider, ["l", "m"])
    assert engines[0].dead_letters.count() == 0


def test_enqueued_and_executed_inputs_of_many_instances_are_all_decided(apps: Apps) -> None:
    engines = [apps(Log), apps(Log)]
    instances = [f"l{number}" for number in range(20)]

    def mixed(app: detent.App, who: str) -> None:
        for number in range(10):
            for instance in instances:
                if number % 2:
                    app.execute(Log, Say(instance, f"{who}{number}"))
                else:
                    app.enqueue_input(Log, Say(instance, f"{who}{number}"))

    assert at_once([lambda: mixed(engines[0], "a"), lambda: mixed(engines[1], "b")]) == [None, None]
    eventually(
        lambda: sql(engines[0], "SELECT COUNT(*) FROM detent_inputs WHERE state = 'pending'") == [(0,)],
        "all inboxes are empty",
    )
    for instance in instances:
        said = texts(engines[0], Log, instance)
        assert sorted(said) == sorted(f"{who}{number}" for who in "ab" for number in range(10))
        for who in "ab":
            queued = [text for text in said if text.startswith(who) and int(text[1:]) % 2 == 0]
            assert queued == [f"{who}{number}" for number in range(0, 10, 2)]
    gap_free(engines[0], Log, instances)
    assert all(state in ("completed", "scheduled") for state, _ in letters(engines[0], "log:l0", "inbox"))


def test_enqueues_from_many_at_once_call_one_to_empty_the_inbox(apps: Apps) -> None:
    engines = [apps(Log, worker=False), apps(Log, worker=False)]
    at_once([lambda app=app: app.enqueue_input(Log, Say("l", "a")) for app in engines * 8])  # type: ignore[misc]
    applied(engines[0], *(enqueuing_of(engines[0], Log, Say("l", "b")) for _ in range(3)))
    assert letters(engines[0], "log:l", "inbox") == [("scheduled", None)]
    assert sql(engines[0], "SELECT COUNT(*) FROM detent_inputs") == [(19,)]
