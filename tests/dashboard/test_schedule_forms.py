"""Schedules that operators make and change: the form, its preview, the API, and the audit line."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Literal
from urllib.parse import urlencode

import pytest

import detent
from detent import workflow
from detent.testing import TestingApp
from tests.dashboard.client import TOKEN, Client, csrf_of
from tests.dashboard.conftest import operator

SIGNED = {"by": "ada", "reason": "because"}


@workflow
def report(region: Literal["eu", "us"], days: int, secret: str = "", tags: list[str] | None = None) -> str:
    return f"{region} {days} {secret} {tags}"


@workflow
def loose(*regions: str) -> str:
    return ",".join(regions)


@pytest.fixture
def office(url: str) -> Iterator[TestingApp]:
    with TestingApp(url, include=[report, loose]) as app:
        yield app


@pytest.fixture
def small_office(tmp_path: Any) -> Iterator[TestingApp]:
    with TestingApp(f"sqlite:///{tmp_path}/office.db", include=[report, loose]) as app:
        yield app


FORM = {"workflow": "report", "name": "nightly", "field.region": "us", "field.days": "7"}


def post(client: Client, verb: str, **fields: str) -> Any:
    token = csrf_of(client.get("/act/pause-queue?queue=default").text)
    return client.post(f"/act/{verb}", {"reason": "because", **fields, "csrf": token})


def test_an_operator_makes_changes_and_deletes_a_schedule(office: TestingApp) -> None:
    client = operator(office)
    assert "/act/create-schedule" in client.get("/schedules").text
    choice = client.get("/act/create-schedule").text
    assert 'method="get"' in choice
    assert "<option>report</option>" in choice
    form = client.get("/act/create-schedule?workflow=report").text
    for name in ("name", "field.region", "field.days", "field.tags", "cron", "every", "tz", "jitter"):
        assert f'name="{name}"' in form
    answer = post(client, "create-schedule", **FORM, cron="0 3 * * *", tz="Europe/Paris", overlap="skip")
    assert answer.headers["location"] == "/schedule?name=nightly&done=create-schedule"
    made = office.schedules["nightly"]
    assert (made.cron, made.tz, made.overlap, made.source) == (
        "0 3 * * *",
        "Europe/Paris",
        "skip",
        "run time",
    )

    page = client.get("/act/change-schedule?schedule=nightly").text
    for shown in ('value="0 3 * * *"', 'value="Europe/Paris"', "<option selected>us</option>", 'value="7"'):
        assert shown in page
    changed = {
        "schedule": "nightly",
        "cron": "",
        "every": "2h",
        "tz": "",
        "field.region": "eu",
        "field.days": "1",
    }
    assert post(client, "change-schedule", **changed).status_code == 303
    assert (made.refresh().every, made.cron, made.overlap) == (timedelta(hours=2), None, "skip")
    office.advance(hours=2)
    assert made.last_run is not None
    assert made.last_run.result() == "eu 1  None"
    assert client.act("delete-schedule", schedule="nightly").status_code == 303
    lines = [(one.event, one.detail) for one in made.history()]
    assert [event for event, _ in lines] == ["created", "changed", "deleted"]
    assert all({"by": one["by"], "reason": one["reason"]} == SIGNED for _, one in lines)


def test_the_api_makes_and_changes_a_schedule(office: TestingApp) -> None:
    client = Client(detent.dashboard(office, token=TOKEN))
    bearer = {"authorization": f"Bearer {TOKEN}"}

    def act(verb: str, **body: Any) -> Any:
        return client.request("POST", f"/api/actions/{verb}", json={"reason": "x", **body}, headers=bearer)

    body = {"name": "poll", "workflow": "report", "arguments": {"region": "eu", "days": 3}, "every": "5m"}
    assert len(act("create-schedule", **body).json()["next"]) == 5
    assert act("create-schedule", **body).status_code == 200  # the same twice is one
    assert act("create-schedule", **{**body, "every": "6m"}).status_code == 409
    assert act("change-schedule", schedule="poll", every=600).status_code == 200
    made = office.schedules["poll"]
    assert made.every == timedelta(minutes=10)
    assert made.args["kwargs"] == {"region": "eu", "days": 3}
    assert act("change-schedule", schedule="poll", arguments={"region": "us", "days": 4}).status_code == 200
    assert made.refresh().args["kwargs"] == {"region": "us", "days": 4}
    assert made.every == timedelta(minutes=10)
    refused = act("change-schedule", schedule="poll", arguments={"region": "mars", "days": 4})
    assert (refused.status_code, refused.json()["field"]) == (400, "arguments")
    found = client.request(
        "GET", "/api/schedule/preview?cron=0+3+*+*+*&tz=Europe/Paris", headers=bearer
    ).json()
    assert (len(found["next"]), found["tz"]) == (5, "Europe/Paris")
    wrong = client.request("GET", "/api/schedule/preview?cron=0+3+*+*", headers=bearer)
    assert (wrong.status_code, wrong.json()["field"]) == (400, "cron")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"cron": "61 * * * *"}, "cron"),
        ({"cron": "0 0 30 2 *"}, "cron"),
        ({}, "cron"),
        ({"cron": "0 3 * * *", "every": "5m"}, "every"),
        ({"every": "soon"}, "every"),
        ({"every": "500ms"}, "every"),
        ({"cron": "0 3 * * *", "tz": "Mars/Base"}, "tz"),
        ({"every": "5m", "tz": "Europe/Paris"}, "tz"),
        ({"every": "5m", "jitter": "6m"}, "jitter"),
        ({"every": "5m", "overlap": "explode"}, "overlap"),
        ({"every": "5m", "name": "a b"}, "name"),
        ({"every": "5m", "name": ""}, "name"),
        ({"every": "5m", "field.days": "many"}, "field.days"),
        ({"every": "5m", "field.region": "mars"}, "field.region"),
        ({"every": "5m", "field.tags": "[1]"}, "field.tags"),
        ({"every": "5m", "reason": ""}, "reason"),
    ],
)
def test_what_is_wrong_stands_beside_its_field(
    small_office: TestingApp, fields: dict[str, str], field: str
) -> None:
    client = operator(small_office)
    answer = post(client, "create-schedule", **{**FORM, **fields})
    assert answer.status_code == 400
    assert f'name="{field}"' in answer.text.partition('aria-invalid="true"')[0].rpartition("<label")[2]
    assert 'value="7"' in answer.text or field == "field.days"  # what was typed is kept
    assert list(small_office.schedules) == []


def test_a_preview_shows_the_next_five_times_and_stores_nothing(small_office: TestingApp) -> None:
    client = operator(small_office)
    shown = post(
        client, "create-schedule", **FORM, cron="0 3 * * *", tz="Europe/Paris", reason="", preview="1"
    )
    assert shown.status_code == 200
    assert shown.text.count("03:00:00 CE") == 5
    assert post(client, "create-schedule", **FORM, cron="x", preview="1").status_code == 400
    assert list(small_office.schedules) == []


def test_arguments_that_the_mask_hides_are_neither_shown_nor_changed(small_office: TestingApp) -> None:
    kwargs = {"region": "eu", "days": 1, "secret": "xyzzy"}
    made = small_office.schedules.create("poll", report, kwargs=kwargs, every=60)
    client = operator(small_office, mask=["secret"])
    form = client.get("/act/change-schedule?schedule=poll").text
    assert "xyzzy" not in form
    assert "field." not in form
    assert post(client, "change-schedule", schedule="poll", every="2m").status_code == 303
    assert (made.refresh().every, made.args["kwargs"]) == (timedelta(minutes=2), kwargs)


def test_a_workflow_with_any_number_of_arguments_takes_none_from_the_form(small_office: TestingApp) -> None:
    client = operator(small_office)
    assert 'name="arguments"' in client.get("/act/create-schedule?workflow=loose").text
    assert (
        post(client, "create-schedule", workflow="loose", name="l", arguments="", every="5m").status_code
        == 303
    )
    for wrong in ("[1]", '{"x": 1}', "{"):
        answer = post(client, "create-schedule", workflow="loose", name="m", arguments=wrong, every="5m")
        assert answer.status_code == 400
    assert post(client, "create-schedule", workflow="nothing", name="m", every="5m").status_code == 400


def test_a_hostile_text_in_the_form_is_shown_as_text(small_office: TestingApp) -> None:
    hostile = '"><script>alert(1)</script>'
    client = operator(small_office)
    page = client.get(
        "/act/create-schedule?" + urlencode({"workflow": "report", "name": hostile, "cron": hostile})
    )
    assert "<script>alert" not in page.text
    answer = post(client, "create-schedule", **{**FORM, "name": hostile, "cron": hostile})
    assert "<script>alert" not in answer.text


def test_a_schedule_of_the_code_is_not_changed_here(small_office: TestingApp) -> None:
    small_office.schedule("hourly", report, args=("eu", 1), every=3600)
    small_office.settle_down()
    client = operator(small_office)
    assert "/act/change-schedule" not in client.get("/schedule?name=hourly").text
    assert post(client, "change-schedule", schedule="hourly", every="1m").status_code == 409
