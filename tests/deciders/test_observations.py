"""Recorded inputs can be read: by decider and instance, by time, page by page."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

import detent
from detent.errors import ConfigurationError
from detent.testing import TestingApp
from tests.deciders.orders import Log, Say, Stop, change, log
from tests.functions.world import Apps

Observing = log(observe=True)


def seen(app: Any, *args: Any, **filters: Any) -> list[tuple[str, str, str]]:
    rows = app.deciders.observations(Observing, *args, **filters)
    return [(one.instance, getattr(one.input, "text", one.type), one.state) for one in rows]


def test_every_input_of_an_observing_decider_can_be_read(apps: Apps) -> None:
    app = apps(Observing, worker=False)
    app.execute(Observing, Say("l", "a"))
    app.execute(Observing, Stop("l"))
    app.execute(Observing, Say("l", "b"), input_id="x")
    app.enqueue_input(Observing, Say("m", "c"))
    assert seen(app) == [
        ("m", "c", "pending"),
        ("l", "b", "ignored"),
        ("l", "Stop", "applied"),
        ("l", "a", "applied"),
    ]
    assert seen(app, "m") == [("m", "c", "pending")]
    [late, stop, first] = app.deciders.observations(Observing, "l")
    assert (late.input, late.input_id, late.from_status) == (Say("l", "b"), "x", None)
    assert (stop.from_status, stop.to_status) == ("open", "over")
    assert (first.decider, first.type, first.handled_at) == ("log", "Say", first.received_at)
    assert late.seq > stop.seq > first.seq


def test_observations_are_read_page_by_page(apps: Apps) -> None:
    app = apps(Observing, worker=False)
    for number in range(7):
        app.execute(Observing, Say(f"l{number % 2}", str(number)))
    pages, cursor = [], None
    while page := app.deciders.observations(Observing, limit=3, cursor=cursor):
        pages.append([one.input.text for one in page])
        cursor = page[-1]
    assert pages == [["6", "5", "4"], ["3", "2", "1"], ["0"]]
    last = app.deciders.observations(Observing, limit=3)[-1]
    assert seen(app, "l0", cursor=last.seq) == [("l0", "2", "applied"), ("l0", "0", "applied")]


def test_observations_are_found_by_when_they_were_received(testing: TestingApp) -> None:
    testing.include(Observing)
    moments = []
    for text in "abc":
        moments.append(testing.clock())
        testing.execute(Observing, Say("l", text))
        testing.clock.advance(hours=1)
    for instance in ((), ("l",)):
        found = seen(testing, *instance, after=moments[1], before=moments[2])
        assert found == [("l", "b", "applied")]
        assert len(seen(testing, *instance, after=moments[2] + timedelta(hours=1))) == 0


def test_an_input_that_the_code_cannot_read_is_shown_as_it_is_stored(apps: Apps) -> None:
    app = apps(Observing, worker=False)
    app.execute(Observing, Say("l", "a"))
    change(app, "UPDATE detent_inputs SET type = 'Gone'")
    [one] = app.deciders.observations(Observing)
    assert (one.type, '"text":"a"' in one.input) == ("Gone", True)


def test_inputs_of_another_decider_are_not_shown(apps: Apps) -> None:
    class Other(Log):
        type = "other"
        observe = True

    app = apps(Observing, Other, worker=False)
    app.execute(Observing, Say("l", "a"))
    app.execute(Other, Say("l", "b"))
    assert [one.input for one in app.deciders.observations(Other)] == [Say("l", "b")]
    assert [one.input for one in app.deciders.observations("log")] == [Say("l", "a")]


@pytest.mark.parametrize("filters", [{"limit": 0}, {"limit": "3"}, {"after": 5}, {"cursor": "x"}], ids=repr)
def test_a_filter_that_makes_no_sense_is_refused(apps: Apps, filters: dict[str, Any]) -> None:
    app = apps(Observing, worker=False)
    with pytest.raises(ConfigurationError, match=next(iter(filters))):
        app.deciders.observations(Observing, **filters)


def test_observations_are_the_same_from_asyncio(url: str, apps: Apps) -> None:
    apps(Observing, worker=False).execute(Observing, Say("l", "a"))

    async def main() -> list[Any]:
        app = detent.AsyncApp(url, include=[Observing])
        found = await app.deciders.observations(Observing, "l", limit=5)
        await app.close()
        return found

    [one] = asyncio.run(main())
    assert replace(one, seq=0).input == Say("l", "a")
