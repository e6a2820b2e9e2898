"""Queues and schedules: what their pages show, what an operator does, and the line that says who did it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

import detent
from detent import Queue, Rate
from detent.app.views import history_events
from detent.stores.verbs import drains
from detent.testing import TestingApp
from tests.dashboard.client import TOKEN, VIEWER_TOKEN, Client, csrf_of
from tests.dashboard.conftest import operator
from tests.dashboard.world import INCLUDE, parrot

QUEUES = (
    Queue("default"),
    Queue("mail", concurrency=5, rate=Rate(100, per=60)),
    Queue("llm", key_concurrency=2, fair=True),
)


@pytest.fixture
def busy(url: str) -> Iterator[TestingApp]:
    """Two queues with limits, and a schedule."""
    with TestingApp(url, include=INCLUDE, queues=QUEUES) as app:
        app.schedule("nightly", parrot, args=("good night",), cron="0 3 * * *", tz="Europe/Paris")
        yield app


def queue(client: Client, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in client.api("queues")["queues"] if one["name"] == name)
    return found


def signed(lines: list[dict[str, Any]], event: str) -> dict[str, Any]:
    """Who did it and why, as the newest line of that event says."""
    detail = next(line["detail"] for line in lines if line["event"] == event)
    return {"by": detail["by"], "reason": detail["reason"]}


SIGNED = {"by": "ada", "reason": "because"}


def test_a_queue_shows_its_limits_and_what_waits_for_each_key(busy: TestingApp) -> None:
    busy.queues["llm"].pause("the model is down")
    for number in range(3):
        busy.options(queue="llm", key="acme").start(parrot, str(number))
    busy.options(queue="llm", key="zenith").start(parrot, "x")
    busy.settle_down()
    client = operator(busy)
    found = queue(client, "llm")
    assert found["waiting"] == 4
    assert found["by_key"] == [
        {"key": "acme", "executing": 0, "waiting": 3},
        {"key": "zenith", "executing": 0, "waiting": 1},
    ]
    assert found["oldest_run"] is not None
    assert {one["name"]: one["text"] for one in found["limits"]} == {"key_concurrency": "2", "fair": "yes"}
    page = client.get("/queues").text
    assert "the model is down" in page
    assert "acme" in page


def test_a_queue_shows_how_much_of_its_rate_is_used(busy: TestingApp) -> None:
    for number in range(3):
        busy.options(queue="mail").start(parrot, str(number))
    busy.settle_down()
    client = operator(busy)
    assert queue(client, "mail")["begun"] == 3
    assert "3 of 100/1m" in client.get("/queues").text


def test_a_queue_is_paused_and_resumed_with_a_line_each(busy: TestingApp) -> None:
    client = operator(busy)
    answer = client.act("pause-queue", queue="mail")
    assert answer.headers["location"] == "/queues?done=pause-queue"
    assert "The queue is paused." in client.get(answer.headers["location"]).text
    assert busy.queues["mail"].paused
    assert busy.queues["mail"].reason == "because"
    assert signed(queue(client, "mail")["history"], "paused") == SIGNED
    client.act("resume-queue", queue="mail")
    assert not busy.queues["mail"].paused
    assert signed(queue(client, "mail")["history"], "resumed") == SIGNED
    assert [line.event for line in busy.queues["mail"].history()] == ["paused", "resumed"]


def test_limits_are_changed_and_go_back_to_those_of_the_code(busy: TestingApp) -> None:
    client = operator(busy)
    form = client.get("/act/set-limits?queue=mail").text
    assert 'name="concurrency" value="5"' in form
    assert 'name="rate" value="100/1m"' in form
    client.act("set-limits", queue="mail", concurrency="9", rate="", aging="5m")
    limits = busy.queues["mail"].limits
    assert (limits["concurrency"], limits["rate"], limits["aging"]) == (9, None, timedelta(minutes=5))
    assert signed(queue(client, "mail")["history"], "limits set") == SIGNED
    assert "the code says 5" in client.get("/queues").text
    client.act("reset-limits", queue="mail")
    assert busy.queues["mail"].limits["concurrency"] == 5
    assert signed(queue(client, "mail")["history"], "limits reset") == SIGNED


@pytest.mark.parametrize(
    "wrong",
    [{"concurrency": "many"}, {"concurrency": "0"}, {"rate": "5"}, {"aging": "-1"}, {"fair": "odd"}, {}],
)
def test_limits_that_make_no_sense_are_refused(small: TestingApp, wrong: dict[str, str]) -> None:
    client = operator(small)
    answer = client.act("set-limits", queue="default", **wrong)
    assert answer.status_code in (400, 409)
    assert 'role="alert"' in answer.text
    assert small.queues["default"].history() == []


def test_the_api_leaves_a_limit_that_is_not_named_as_it_is(busy: TestingApp) -> None:
    client = Client(detent.dashboard(busy, token=TOKEN))
    bearer = {"authorization": f"Bearer {TOKEN}"}

    def post(verb: str, **body: Any) -> int:
        return client.request("POST", f"/api/actions/{verb}", json=body, headers=bearer).status_code

    assert post("set-limits", queue="mail", reason="x", concurrency=7, rate=None) == 200
    limits = busy.queues["mail"].limits
    assert (limits["concurrency"], limits["rate"]) == (7, None)
    assert post("set-limits", queue="mail", reason="x", key_concurrency=3) == 200
    assert busy.queues["mail"].limits["concurrency"] == 7
    assert post("set-limits", queue="mail", reason="x", concurrency=[1]) == 400
    assert post("pause-queue", queue="nothing", reason="x") == 404
    assert post("trigger", schedule="nothing", reason="x") == 404
    assert post("trigger", schedule="nightly", reason="x") == 200


def test_a_schedule_shows_its_next_firings_and_its_last_run(busy: TestingApp) -> None:
    busy.settle_down()
    busy.advance(days=2)
    busy.settle_down()
    client = operator(busy)
    [found] = client.api("schedules")["schedules"]
    assert (found["name"], found["state"], found["last_state"]) == ("nightly", "active", "finished")
    assert len(found["next"]) == 3
    one = client.api("schedule", name="nightly")
    assert one["runs"][0]["id"] == found["last_run"]
    assert one["input"] == {"text": "good night"}
    page = client.get("/schedule?name=nightly").text
    assert "Next firings" in page
    assert found["last_run"] in page
    assert "0 3 * * *" in client.get("/schedules").text


def test_a_schedule_is_paused_resumed_and_started_now(busy: TestingApp) -> None:
    busy.settle_down()
    client = operator(busy)
    assert client.act("pause-schedule", schedule="nightly").headers["location"].startswith("/schedule?name=")
    assert busy.schedules["nightly"].state == "paused"
    assert client.api("schedules")["schedules"][0]["next"] == []
    client.act("resume-schedule", schedule="nightly")
    assert busy.schedules["nightly"].state == "active"
    started = client.act("trigger", schedule="nightly").headers["location"]
    assert started.startswith("/runs/nightly@")
    history = client.api("schedule", name="nightly")["history"]
    for event in ("paused", "resumed", "triggered"):
        assert signed(history, event) == SIGNED


def test_missing_runs_of_a_schedule_are_started(busy: TestingApp) -> None:
    busy.settle_down()
    client = operator(busy)
    span = {"start": "2026-01-01", "end": "2026-01-04"}
    assert client.act("backfill", schedule="nightly", **span).status_code == 303
    assert signed(client.api("schedule", name="nightly")["history"], "backfilled") == SIGNED
    assert len(client.api("schedule", name="nightly")["runs"]) == 3
    for wrong in ({"start": "soon", "end": "later"}, {"start": "2026-01-04", "end": "2026-01-01"}):
        assert client.act("backfill", schedule="nightly", **wrong).status_code == 400


def test_only_a_schedule_that_was_made_at_run_time_is_deleted(busy: TestingApp) -> None:
    busy.schedules.create("poll", parrot, args=("x",), every=60)
    busy.settle_down()
    client = operator(busy)
    assert client.act("delete-schedule", schedule="nightly").status_code == 409
    assert client.act("delete-schedule", schedule="poll").headers["location"].startswith("/schedules?")
    assert [one["name"] for one in client.api("schedules")["schedules"]] == ["nightly"]
    assert client.get("/schedule?name=poll").status_code == 404


def test_a_view_stores_no_schedule(url: str) -> None:
    """A schedule that no worker has stored is shown, and a viewer changes nothing."""
    app = detent.App(url, include=[parrot]).open()
    try:
        app.schedule("nightly", parrot, args=("x",), cron="0 3 * * *")
        client = Client(detent.dashboard(app))
        assert [one["name"] for one in client.api("schedules")["schedules"]] == ["nightly"]
        assert "nightly" in client.get("/schedules").text
        assert app.engine.store.schedules(limit=10) == []
    finally:
        app.close()


def test_empty_pages_say_what_to_write(small: TestingApp) -> None:
    client = Client(detent.dashboard(small))
    assert "app.schedule(" in client.get("/schedules").text
    assert "queues=[" in client.get("/queues").text


def test_a_queue_that_only_a_worker_names_is_shown_and_not_changed(url: str) -> None:
    with TestingApp(url, include=INCLUDE, queues=QUEUES):
        stranger = detent.App(url).open()
        try:
            client = Client(detent.dashboard(stranger, token=TOKEN))
            client.login()
            assert {"default", "mail", "llm"} <= {one["name"] for one in client.api("queues")["queues"]}
        finally:
            stranger.close()


def test_a_worker_is_drained_and_claims_again(busy: TestingApp) -> None:
    client = operator(busy)
    [worker] = client.api("workers")["workers"]
    assert worker["state"] == "alive"
    assert f"/act/drain?worker={worker['id']}" in client.get("/workers").text
    answer = client.act("drain", worker=worker["id"])
    assert answer.headers["location"] == "/workers?done=drain"
    [row] = client.api("workers")["workers"]
    assert row["state"] == "draining"
    assert queue(client, "mail")["workers"] == 0
    busy.advance(seconds=4)
    assert client.api("workers")["workers"][0]["state"] == "drained"
    assert "can be stopped" in client.get("/workers").text
    client.act("undrain", worker=worker["id"])
    assert client.api("workers")["workers"][0]["state"] == "alive"
    lines = history_events(busy.engine.store.history(drains.history_of(worker["id"])))
    assert [(one.event, one.detail["by"], one.detail["reason"]) for one in lines] == [
        ("drained", "ada", "because"),
        ("claims again", "ada", "because"),
    ]
    assert client.act("drain", worker="nobody").status_code == 400


CHANGES = (
    "pause-queue",
    "set-limits",
    "reset-limits",
    "pause-schedule",
    "trigger",
    "create-schedule",
    "change-schedule",
    "delete-schedule",
    "drain",
)


@pytest.mark.parametrize("verb", CHANGES)
def test_a_viewer_changes_neither_queues_nor_schedules_nor_workers(small: TestingApp, verb: str) -> None:
    small.schedule("nightly", parrot, args=("x",), cron="0 3 * * *")
    client = Client(detent.dashboard(small, token=TOKEN, viewer_token=VIEWER_TOKEN))
    client.login(VIEWER_TOKEN)
    assert "/act/" not in "".join(client.get(path).text for path in ("/queues", "/schedules", "/workers"))
    fields = {"queue": "default", "schedule": "nightly", "reason": "x"}
    assert client.get(f"/act/{verb}?queue=default").status_code == 403
    assert client.post(f"/act/{verb}", fields).status_code == 403
    bearer = {"authorization": f"Bearer {VIEWER_TOKEN}"}
    answer = client.request("POST", f"/api/actions/{verb}", json={"reason": "x"}, headers=bearer)
    assert answer.status_code == 403
    assert not small.queues["default"].paused


def test_a_queue_is_not_paused_without_a_csrf_token(small: TestingApp) -> None:
    client = operator(small)
    token = csrf_of(client.get("/act/pause-queue?queue=default").text)
    fields = {"queue": "default", "reason": "x"}
    for wrong in ("", token[:-1] + "x"):
        assert client.post("/act/pause-queue", {**fields, "csrf": wrong}).status_code == 403
    elsewhere = {"origin": "https://evil.test"}
    answer = client.post("/act/pause-queue", {**fields, "csrf": token}, headers=elsewhere)
    assert answer.status_code == 403
    assert not small.queues["default"].paused


def test_the_line_and_the_pause_of_a_queue_are_one_transaction(
    busy: TestingApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    from detent.stores.verbs import queue_verbs

    def broken(*args: Any) -> None:
        raise RuntimeError("no history today")

    monkeypatch.setattr(queue_verbs, "note", broken)
    assert operator(busy).act("pause-queue", queue="mail").status_code == 500
    assert not busy.queues["mail"].paused
