"""Limits of queues: declared, changed by operators, and kept by the rules of admission."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detent import Queue, Rate
from detent.errors import InvalidArgument, InvalidOption
from detent.kernel.admission import (
    Admission,
    Candidate,
    Refusal,
    next_permitted,
    permitted,
    stamp,
    urgency,
    window,
)
from detent.kernel.queues import LIMITS, Configured, Limits, Period, checked_limits, shown, stored

SECOND = 1_000_000


def candidate(number: int = 0, key: str | None = None, **given: Any) -> Candidate:
    fields: dict[str, Any] = {
        "run_id": f"run-{number:05}",
        "node": "main",
        "attempt": 1,
        "precedence": 0,
        "scheduled_for": 0,
        "key": key,
        "started_at": None,
    }
    return Candidate(**(fields | given))


# Declaring


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("concurrency", 0),
        ("concurrency", True),
        ("per_worker", -1),
        ("key_concurrency", 1.5),
        ("rate", 5),
        ("key_rate", (5, 1)),
        ("fair", 1),
        ("aging", 0),
        ("aging", "a minute"),
    ],
)
def test_a_limit_that_means_nothing_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidOption) as caught:
        Queue("mail", **{name: value})
    assert name in str(caught.value)


@pytest.mark.parametrize("given", [(0, 1), (1, 0), (1, -1), (1, timedelta(microseconds=9)), (1.5, 1)])
def test_a_rate_that_means_nothing_is_refused(given: Any) -> None:
    with pytest.raises(InvalidArgument):
        Rate(*given)


def test_limits_come_back_as_they_were_written() -> None:
    queue = Queue(
        "llm",
        concurrency=9,
        per_worker=4,
        key_concurrency=2,
        rate=Rate(100, per=timedelta(minutes=1)),
        key_rate=Rate(20, per=1),
        fair=True,
        aging=30,
    )
    text = msgspec.json.encode(queue.limits)
    again = shown(msgspec.json.decode(text, type=Limits))
    assert again == {name: getattr(queue, name) for name in LIMITS}
    assert Queue("llm", **again) == queue


def test_a_queue_without_limits_is_not_limited() -> None:
    assert not Queue("default").limits.limited
    assert not Configured(name="default").limited
    assert Configured(name="default", paused_at=1).limited
    for name, value in {"concurrency": 1, "fair": True, "aging": 1, "rate": Rate(1, 1)}.items():
        assert Queue("default", **{name: value}).limits.limited  # type: ignore[arg-type]


# The code and the operator


def configured(**declared: Any) -> Configured:
    return Configured(name="mail", declared=Queue("mail", **declared).limits)


def change(queue: Configured, **given: Any) -> Configured:
    return queue.changed(stored(checked_limits("set()", given)))


def test_an_operators_change_applies_until_the_code_declares_another_value() -> None:
    queue = change(configured(concurrency=50), concurrency=10, rate=Rate(5, 1))
    assert queue.limits == Limits(concurrency=10, rate=Period(5, SECOND))
    deployed = msgspec.structs.replace(queue, declared=Limits(concurrency=60))
    assert deployed.limits == Limits(concurrency=60, rate=Period(5, SECOND))
    rolled_back = msgspec.structs.replace(deployed, declared=Limits(concurrency=50))
    assert rolled_back.limits.concurrency == 10


def test_a_change_survives_the_way_through_the_database() -> None:
    queue = change(
        configured(concurrency=50, key_rate=Rate(3, 2)), key_rate=Rate(1, 1), aging=5, concurrency=None
    )
    text = msgspec.json.encode(queue)
    again = msgspec.json.decode(text, type=Configured)
    assert again.limits == queue.limits == Limits(key_rate=Period(1, SECOND), aging=5 * SECOND)


def test_setting_the_declared_value_removes_the_change() -> None:
    queue = change(configured(concurrency=50, rate=Rate(5, 1)), concurrency=10, rate=None)
    assert change(queue, concurrency=50, rate=Rate(5, 1)).changes == {}


# Counting


def test_no_more_than_the_limit_execute() -> None:
    admission = Admission(Limits(concurrency=3), now=0, room=10, executing={"": 1, "a": 1})
    assert [admission.take(candidate(n)) for n in range(3)] == [True, False, False]
    assert admission.refusal(None) is Refusal.CONCURRENCY


def test_a_lower_limit_than_what_executes_lets_nothing_begin() -> None:
    admission = Admission(Limits(concurrency=2), now=0, room=10, executing={"a": 5})
    assert admission.room == 0
    assert not admission.take(candidate())


def test_one_key_at_its_limit_does_not_stop_another() -> None:
    admission = Admission(Limits(key_concurrency=1), now=0, room=10, executing={"a": 1})
    assert not admission.take(candidate(1, "a"))
    assert admission.take(candidate(2, "b"))
    assert not admission.take(candidate(3, "b"))
    assert admission.refusal("b") is Refusal.KEY_CONCURRENCY


def test_an_execution_without_a_key_has_no_key_limits() -> None:
    limits = Limits(key_concurrency=1, key_rate=Period(1, SECOND))
    admission = Admission(limits, now=0, room=10, executing={"": 5})
    assert all(admission.take(candidate(n)) for n in range(3))


def test_a_function_that_goes_on_needs_a_slot_and_no_rate() -> None:
    limits = Limits(concurrency=1, rate=Period(1, SECOND))
    admission = Admission(limits, now=5, room=10, begins={"": [(4, 1)]})
    assert not admission.take(candidate(1))
    assert admission.take(candidate(2, started_at=1))
    assert not admission.take(candidate(3, started_at=1))
    assert admission.records == {}


def test_a_rate_says_when_the_next_may_begin() -> None:
    rate = Period(2, SECOND)
    limits = Limits(rate=rate)
    admission = Admission(limits, now=SECOND // 2, room=10, begins={"": [(0, 1)]})
    assert [admission.take(candidate(n)) for n in range(2)] == [True, False]
    assert admission.records == {"": (SECOND // 2, 1)}
    assert admission.next_moment == window(rate)


def test_what_began_at_the_same_moment_is_counted_together() -> None:
    limits = Limits(rate=Period(5, SECOND))
    admission = Admission(limits, now=7, room=10, begins={"": [(7, 2)]})
    assert [admission.take(candidate(n)) for n in range(4)] == [True, True, True, False]
    assert admission.records == {"": (7, 5)}


# Order


def test_priority_comes_first_and_aging_lets_the_old_overtake() -> None:
    urgent = candidate(1, precedence=-5, scheduled_for=100)
    old = candidate(2, precedence=0, scheduled_for=0)
    assert min((urgent, old), key=lambda c: urgency(c, None)) is urgent
    assert min((urgent, old), key=lambda c: urgency(c, 21)) is urgent  # 5 levels are worth 105
    assert min((urgent, old), key=lambda c: urgency(c, 19)) is old


# Properties

rates = st.builds(Period, st.integers(1, 5), st.integers(1000, 50_000))


@given(
    rates, st.lists(st.tuples(st.integers(0, 20_000), st.integers(1, 3)), max_size=12), st.integers(0, 20_000)
)
def test_the_next_permitted_moment_is_the_first_one(
    rate: Period, begins: list[tuple[int, int]], now: int
) -> None:
    moment = next_permitted(rate, begins, now)
    assert permitted(rate, begins, moment) > 0
    assert moment == now or permitted(rate, begins, moment - 1) == 0


@given(st.integers(1, 10**6), st.integers(1000, 10**11), st.integers(0, 10**15))
def test_a_recorded_moment_is_never_early(count: int, per: int, now: int) -> None:
    rate = Period(count, per)
    assert 0 <= stamp(rate, now) - now <= (0 if count <= 1000 else per // 1000)


limits = st.builds(
    Limits,
    concurrency=st.none() | st.integers(1, 4),
    key_concurrency=st.none() | st.integers(1, 3),
    rate=st.none() | rates,
    key_rate=st.none() | rates,
)
keys = st.sampled_from([None, "a", "b", "c"])
# An arrival, a claim with so much room after so many microseconds, an end, a crash, a clock that is set back.
deeds = st.one_of(
    st.tuples(st.just("arrive"), keys, st.integers(1, 6)),
    st.tuples(st.just("claim"), st.integers(0, 6), st.integers(0, 30_000)),
    st.tuples(st.just("end"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("crash"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("back"), st.integers(1, 20_000), st.just(0)),
)


class World:
    """A queue in memory, with a judge that sees real time and knows nothing of the rules."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.real = self.clock = 0
        self.waiting: list[Candidate] = []
        self.executing: list[Candidate] = []
        self.begins: dict[str, list[tuple[int, int]]] = {}
        self.log: list[tuple[int, str]] = []  # when, by real time, and which key
        self.arrived = self.done = 0

    def arrive(self, key: str | None, number: int) -> None:
        for _ in range(number):
            self.arrived += 1
            self.waiting.append(candidate(self.arrived, key))

    def claim(self, room: int, later: int) -> None:
        self.real += later
        self.clock += later
        executing: dict[str, int] = {}
        for one in self.executing:
            executing[one.key or ""] = executing.get(one.key or "", 0) + 1
        begins = {"": self.begins.get("", []), **self.begins}
        admission = Admission(self.limits, now=self.clock, room=room, executing=executing, begins=begins)
        for one in list(self.waiting):
            if admission.take(one):
                self.waiting.remove(one)
                self.executing.append(one)
                self.log.append((self.real, one.key or ""))
        for key, (at, number) in admission.records.items():
            kept = [begun for begun in self.begins.get(key, []) if begun[0] != at]
            self.begins[key] = [*kept, (at, number)]

    def end(self, which: int, _: int) -> None:
        if self.executing:
            self.executing.pop(which % len(self.executing))
            self.done += 1

    def crash(self, which: int, _: int) -> None:
        """It is handed on: another attempt waits, and the slot is free."""
        if self.executing:
            self.waiting.append(self.executing.pop(which % len(self.executing)))

    def back(self, by: int, _: int) -> None:
        self.clock -= by

    def judge(self) -> None:
        keyed = [one.key for one in self.executing if one.key]
        assert len(self.executing) <= (self.limits.concurrency or len(self.executing))
        for key in keyed:
            assert keyed.count(key) <= (self.limits.key_concurrency or len(keyed))
        assert len(self.waiting) + len(self.executing) + self.done == self.arrived
        self._windows(self.limits.rate, [at for at, _ in self.log])
        for key in set(keyed):
            self._windows(self.limits.key_rate, [at for at, of in self.log if of == key])

    @staticmethod
    def _windows(rate: Period | None, log: list[int]) -> None:
        for begin in log if rate is not None else ():
            assert rate is not None
            assert sum(begin <= at < begin + rate.per for at in log) <= rate.count


@settings(max_examples=150)
@given(limits, st.lists(deeds, max_size=40))
def test_no_limit_is_ever_exceeded_and_nothing_is_lost(
    limits: Limits, story: list[tuple[str, Any, int]]
) -> None:
    world = World(limits)
    for deed, first, second in story:
        getattr(world, deed)(first, second)
        world.judge()


@settings(max_examples=100)
@given(limits, st.lists(keys, min_size=1, max_size=12))
def test_everything_begins_in_the_end(limits: Limits, arrivals: list[str | None]) -> None:
    """The moment that a claim names is late enough: whoever waits for it begins, or is told a later one."""
    world = World(limits)
    for key in arrivals:
        world.arrive(key, 1)
    for _ in range(len(arrivals) * 2 + 2):
        world.claim(20, 80_000)  # longer than any window
        world.judge()
        while world.executing:
            world.end(0, 0)
    assert world.done == len(arrivals)
