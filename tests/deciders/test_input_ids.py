"""Input ids: a repeat makes no second decision, for as long as the decider keeps the ids."""

from datetime import timedelta
from typing import Any

import pytest

from detent.app import retention
from detent.errors import DefinitionError
from detent.testing import TestingApp
from tests.deciders.orders import Fail, Log, Say, log, pending_inputs, sql, texts
from tests.functions.world import Apps, eventually

DAY = timedelta(days=1)
Forgetful = log(input_ids_kept=30 * DAY)


def ids(app: Any) -> list[str | None]:
    return [row[0] for row in sql(app, "SELECT input_id FROM detent_inputs ORDER BY seq")]


def test_a_repeat_inside_the_window_makes_no_second_decision(testing: TestingApp) -> None:
    testing.include(Forgetful)
    testing.execute(Forgetful, Say("l", "a"), input_id="x")
    testing.clock.advance(days=29, hours=23)
    testing.gc(older_than=DAY)
    assert testing.execute(Forgetful, Say("l", "a"), input_id="x") == []
    assert testing.enqueue_input(Forgetful, Say("l", "a"), input_id="x") is False
    assert (texts(testing, Forgetful), ids(testing)) == (["a"], ["x"])


def test_an_id_is_forgotten_after_the_window(testing: TestingApp) -> None:
    testing.include(Forgetful)
    testing.execute(Forgetful, Say("l", "a"), input_id="x")
    testing.enqueue_input(Forgetful, Say("m", "b"), input_id="y")
    testing.settle_down()
    testing.clock.advance(days=15)
    testing.execute(Forgetful, Say("l", "c"), input_id="z")
    testing.clock.advance(days=16)
    testing.gc(older_than=DAY)
    assert ids(testing) == ["z"]
    assert len(testing.execute(Forgetful, Say("l", "a"), input_id="x")) == 1
    assert texts(testing, Forgetful) == ["a", "c", "a"], "the events stay"


def test_ids_are_kept_for_ever_unless_the_decider_says_otherwise(testing: TestingApp) -> None:
    testing.include(Log)
    testing.execute(Log, Say("l", "a"), input_id="x")
    testing.clock.advance(days=10_000)
    testing.gc(older_than=DAY)
    assert ids(testing) == ["x"]


def test_each_decider_keeps_its_ids_for_its_own_time(testing: TestingApp) -> None:
    class Brief(Log):
        type = "brief"
        input_ids_kept = DAY

    class Lasting(Log):
        type = "lasting"

    testing.include(Forgetful, Brief, Lasting)
    for number in range(3):
        for decider in (Forgetful, Brief, Lasting):
            testing.execute(decider, Say("l", "a"), input_id=f"{decider.type} {number}")
    testing.clock.advance(days=2)
    testing.gc(older_than=DAY)
    assert {id.partition(" ")[0] for id in ids(testing) if id} == {"log", "lasting"}
    testing.clock.advance(days=30)
    testing.gc(older_than=DAY)
    assert {id.partition(" ")[0] for id in ids(testing) if id} == {"lasting"}


def test_what_waits_in_an_inbox_is_never_removed(testing: TestingApp) -> None:
    testing.include(Forgetful)
    testing.enqueue_input(Forgetful, Fail("l"), input_id="x")
    testing.clock.advance(days=31)
    testing.gc(older_than=DAY)
    assert (ids(testing), pending_inputs(testing)) == (["x"], 1)


def test_an_observed_input_stays_without_its_id(testing: TestingApp) -> None:
    testing.include(decider := log(input_ids_kept=DAY, observe=True))
    testing.execute(decider, Say("l", "a"), input_id="x")
    testing.execute(decider, Say("l", "b"))
    testing.clock.advance(days=2)
    testing.gc(older_than=DAY)
    seen = testing.deciders.observations(decider)
    assert [(one.input.text, one.input_id, one.to_status) for one in seen] == [
        ("b", None, "open"),
        ("a", None, "open"),
    ]
    assert len(testing.execute(decider, Say("l", "a"), input_id="x")) == 1


def test_ids_are_forgotten_in_batches(testing: TestingApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detent.app.input_ids.AT_ONCE", 3)
    testing.include(Forgetful)
    for number in range(10):
        testing.execute(Forgetful, Say("l", "a"), input_id=str(number))
    testing.clock.advance(days=31)
    for number in range(10, 15):
        testing.execute(Forgetful, Say("l", "a"), input_id=str(number))
    testing.gc(older_than=DAY)
    assert ids(testing) == [str(number) for number in range(10, 15)]


def test_a_worker_forgets_ids_beside_its_work(apps: Apps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "EVERY", 0.05)
    decider = log(input_ids_kept=timedelta(milliseconds=100))
    app = apps(decider)
    app.execute(decider, Say("l", "a"), input_id="x")
    eventually(lambda: ids(app) == [], "it was forgotten")
    app.execute(decider, Say("l", "b"), input_id="x")
    eventually(lambda: ids(app) == [], "and the next one, too")
    assert texts(app, decider) == ["a", "b"]


@pytest.mark.parametrize("window", [30, timedelta(0), "30d", -DAY], ids=repr)
def test_a_window_that_makes_no_sense_is_refused(apps: Apps, window: Any) -> None:
    with pytest.raises(DefinitionError, match="input_ids_kept"):
        apps(log(input_ids_kept=window), worker=False)
