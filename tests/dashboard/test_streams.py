"""Streams of a run in the dashboard: bounded, masked, in pages and in the API."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import detent
from detent import workflow
from detent.testing import TestingApp
from tests.dashboard.client import Client


@workflow
def chat(number: int) -> None:
    for place in range(number):
        detent.append("tokens", f"token {place} <b>")
    detent.append("log", {"card": "4111", "place": [1, 2]})
    detent.append("card", "4111")


@pytest.fixture
def talk(url: str) -> Iterator[TestingApp]:
    with TestingApp(url, include=[chat]) as app:
        app.options(id="chat").start(chat, 120)
        app.settle_down()
        yield app


def test_a_run_shows_its_streams(talk: TestingApp) -> None:
    client = Client(detent.dashboard(talk))
    listed = client.api("run/streams", id="chat")["streams"]
    assert [(one["name"], one["first"], one["last"]) for one in listed] == [
        ("card", 1, 1),
        ("log", 1, 1),
        ("tokens", 1, 120),
    ]
    page = client.get("/runs/chat?tab=streams&stream=tokens").text
    assert "token 119 &lt;b&gt;" in page
    assert "token 20 " in page
    assert "token 19 " not in page  # the newest hundred
    first = client.api("run/streams", id="chat", name="tokens")
    assert [one["position"] for one in first["entries"]] == list(range(1, 101))
    rest = client.api("run/streams", id="chat", name="tokens", after=str(first["next"]))
    assert (len(rest["entries"]), rest["next"]) == (20, None)
    assert client.get("/api/run/streams?id=chat&name=tokens&after=x").status_code == 400
    assert client.api("run/streams", id="chat", name="nothing")["entries"] == []


def test_a_mask_hides_entries_of_a_stream(talk: TestingApp) -> None:
    client = Client(detent.dashboard(talk, mask=["card"]))
    seen = [client.get(f"/runs/chat?tab=streams&stream={name}").text for name in ("log", "card")]
    seen += [client.get(f"/api/run/streams?id=chat&name={name}").text for name in ("log", "card")]
    assert all("•••" in text and "4111" not in text for text in seen)
