"""Deciding: which rows follow from a turn."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from detent.kernel.decide import Alarm, Coded, Followed, Given, Turn, follow

NOW = 1_000_000
RUN = "order:o-1"
KEYS = ["k", "l", "m"]
MIND: Any = SimpleNamespace(
    name="order",
    queue="default",
    precedence=-3,
    cancelled=lambda key: Coded("detent.TimerCancelled", key),
    effect_job=lambda effect: f"order!{effect}",
    timer_job=lambda input: f"order@{input}",
)

coded = st.builds(Coded, type=st.sampled_from(["A", "B"]), data=st.text(max_size=3))
alarms = st.builds(
    Alarm,
    type=st.sampled_from(["X", "Y"]),
    data=st.text(max_size=3),
    due=st.integers(NOW - 5, NOW + 5),
    key=st.none() | st.sampled_from(KEYS),
)
turns = st.builds(
    Turn,
    events=st.lists(coded, min_size=1, max_size=4),
    seen=st.just(()),
    effects=st.lists(coded, max_size=4),
    timers=st.lists(alarms, max_size=6),
    cancels=st.lists(st.sampled_from(KEYS), max_size=5),
)
pendings = st.sets(st.sampled_from(KEYS))
afters = st.integers(0, 10**9)


def followed(turn: Turn, *, after: int = 0, pending: Sequence[str] | set[str] = ()) -> Followed:
    return follow(
        MIND, RUN, turn, given=Given(input=None, type="Pay", turn="t"), after=after, pending=pending, now=NOW
    )


@given(turn=turns, after=afters, pending=pendings)
def test_events_are_numbered_from_the_last_without_a_gap(turn: Turn, after: int, pending: set[str]) -> None:
    events = followed(turn, after=after, pending=pending).events
    assert [row.sequence for row in events] == list(range(after + 1, after + 1 + len(events)))
    assert [(row.type, row.data) for row in events[: len(turn.events)]] == [
        (event.type, event.data) for event in turn.events
    ]
    assert {(row.run_id, row.decider, row.cause, row.turn, row.happened_at) for row in events} == {
        (RUN, "order", "Pay", "t", NOW)
    }


@given(turn=turns, pending=pendings)
def test_a_record_tells_of_each_pending_timer_that_is_cancelled_once(turn: Turn, pending: set[str]) -> None:
    records = followed(turn, pending=pending).events[len(turn.events) :]
    assert {row.type for row in records} <= {"detent.TimerCancelled"}
    assert sorted(row.data for row in records) == sorted(pending & set(turn.cancels))


@given(turn=turns, pending=pendings)
def test_the_last_timer_with_a_key_is_the_one_that_fires(turn: Turn, pending: set[str]) -> None:
    rows = [row for row in followed(turn, pending=pending).executions if row.kind == "timer"]
    for key in KEYS:
        given = [alarm for alarm in turn.timers if alarm.key == key]
        found = [(row.job, row.input, row.scheduled_for) for row in rows if row.topic == key]
        assert found == [(f"order@{alarm.type}", alarm.data, alarm.due) for alarm in given[-1:]]
    without = [(f"order@{alarm.type}", alarm.data, alarm.due) for alarm in turn.timers if alarm.key is None]
    assert [(row.job, row.input, row.scheduled_for) for row in rows if row.topic is None] == without
    for row in rows:
        assert row.scheduled_for is not None
        assert row.state == ("ready" if row.scheduled_for <= NOW else "timer")


@given(turn=turns, after=afters, pending=pendings)
def test_effects_and_timers_have_names_of_their_own(turn: Turn, after: int, pending: set[str]) -> None:
    """Also among those of all other turns: their names begin with the number of the turn's last event."""
    done = followed(turn, after=after, pending=pending)
    names = [row.node for row in done.executions]
    assert len(set(names)) == len(names)
    last = done.events[-1].sequence
    assert {name.partition(":")[2].partition(".")[0] for name in names} <= {str(last)}
    effects = [(row.job, row.input, row.state) for row in done.executions if row.kind == "effect"]
    assert effects == [(f"order!{effect.type}", effect.data, "ready") for effect in turn.effects]


@given(turn=turns, pending=pendings)
def test_what_is_cancelled_or_replaced_does_not_fire(turn: Turn, pending: set[str]) -> None:
    keys = {alarm.key for alarm in turn.timers if alarm.key is not None}
    assert followed(turn, pending=pending).canceled == set(turn.cancels) | keys
