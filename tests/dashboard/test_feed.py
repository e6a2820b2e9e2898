"""Live updates: only what changed, one rendering for all viewers, nothing without viewers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import detent
from detent.dashboard import feed as feeds
from detent.dashboard.access import Access
from detent.dashboard.asgi import Site, Watched
from detent.dashboard.documents.source import Source
from detent.dashboard.feed import Feed
from detent.dashboard.masking import Mask
from detent.dashboard.rendering import Parts
from detent.testing import TestingApp
from tests.dashboard.world import fulfil, parrot


def parts_of(**texts: str) -> Parts:
    parts = Parts()
    for name, text in texts.items():
        parts.live(name, lambda text=text: text)  # type: ignore[misc]
    return parts


def changes(message: bytes) -> dict[str, str]:
    assert message.startswith(b"data: ")
    found: dict[str, str] = json.loads(message.removeprefix(b"data: "))
    return found


def test_a_container_is_sent_only_if_its_own_text_changes() -> None:
    def page(inner: str, outer: str) -> Parts:
        parts = Parts()

        def container() -> str:
            return f"<div>{outer}{parts.live('inner', lambda: f'<p>{inner}</p>')}</div>"

        assert parts.live("outer", container) == f"<div>{outer}<p>{inner}</p></div>"
        return parts

    first = page("a", "x")
    assert page("a", "x").changes(first) == {}
    assert page("b", "x").changes(first) == {"inner": "<p>b</p>"}
    assert page("b", "y").changes(first) == {"outer": "<div>y<p>b</p></div>"}


def test_a_time_that_is_only_told_in_other_words_is_no_change() -> None:
    before = parts_of(a='<p><time datetime="2026" title="x">3 s ago</time></p>')
    after = parts_of(a='<p><time datetime="2026" title="x">4 s ago</time></p>')
    assert after.changes(before) == {}
    assert after.version == before.version


class Stage:
    """A feed over texts that a test changes."""

    def __init__(self) -> None:
        self.text = "one"
        self.told: list[Callable[[], None]] = []
        self.feed: Feed[str] = Feed(lambda key: parts_of(**{key: self.text}), self.follow)

    def follow(self, told: Callable[[], None]) -> Callable[[], None]:
        self.told.append(told)
        return lambda: self.told.remove(told)

    def change(self, text: str) -> None:
        self.text = text
        for told in self.told:
            told()


async def opened(stage: Stage, key: str = "page") -> AsyncIterator[bytes]:
    stream = stage.feed.watch(key, parts_of(**{key: stage.text}).version)
    await anext(stream)
    return stream


def test_all_viewers_of_a_page_share_one_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "LONGEST", 60.0)

    async def play() -> None:
        stage = Stage()
        streams = [await opened(stage) for _ in range(50)]
        waiting = [asyncio.ensure_future(anext(stream)) for stream in streams]
        while not stage.told:
            await asyncio.sleep(0.01)
        stage.change("two")
        messages = await asyncio.gather(*waiting)
        assert {changes(message)["page"] for message in messages} == {"two"}
        assert stage.feed.renderings == 1
        for stream in streams:
            await stream.aclose()  # type: ignore[attr-defined]
        assert stage.feed.viewers == 0

    asyncio.run(asyncio.wait_for(play(), 20))


def test_without_viewers_the_feed_stops_and_follows_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "LONGEST", 0.05)
    monkeypatch.setattr(feeds, "SHORTEST", 0.01)

    async def play() -> None:
        stage = Stage()
        stream = await opened(stage)
        task = stage.feed._task
        assert task is not None
        await stream.aclose()  # type: ignore[attr-defined]
        await task
        assert stage.told == []

    asyncio.run(asyncio.wait_for(play(), 20))


def test_a_page_that_is_older_than_the_feed_gets_all_parts_at_once() -> None:
    async def play() -> None:
        stage = Stage()
        stream = stage.feed.watch("page", "an old version")
        await anext(stream)
        assert changes(await anext(stream)) == {"page": "one"}
        await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(asyncio.wait_for(play(), 20))


def test_a_viewer_who_reads_too_slowly_gets_the_whole_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "LONGEST", 60.0)
    monkeypatch.setattr(feeds, "SHORTEST", 0.0)

    async def play() -> None:
        stage = Stage()
        stream = await opened(stage)
        while not stage.told:
            await asyncio.sleep(0.01)
        for number in range(feeds.MOST_WAITING + 3):
            seen = stage.feed.renderings
            stage.change(f"text {number}")
            while stage.feed.renderings == seen:
                await asyncio.sleep(0.005)
        last = b""
        for _ in range(feeds.MOST_WAITING):
            try:
                last = await asyncio.wait_for(anext(stream), 0.2)
            except TimeoutError:
                break
        assert changes(last)["page"] == f"text {feeds.MOST_WAITING + 2}"

    asyncio.run(asyncio.wait_for(play(), 20))


def site_of(app: detent.App, **options: Any) -> Site:
    return Site(Source(app, Mask(options.pop("mask", None))), Access(**options), label="")


def test_a_commit_of_a_worker_reaches_the_viewer_of_a_run(shop: TestingApp) -> None:
    shop.options(id="order").start(fulfil, "order", 500)
    shop.settle_down()
    site = site_of(shop)
    watched = Watched("", "/runs/order", (("tab", "graph"),), False)

    async def play() -> dict[str, str]:
        stream = site.feed.watch(watched, site._render_watched(watched).version)
        await anext(stream)
        while not shop.engine._followers:
            await asyncio.sleep(0.01)
        shop.run("order").send("approval", True)
        found: dict[str, str] = {}
        while "finished" not in found.get("header", ""):
            found |= changes(await anext(stream))
        await stream.aclose()  # type: ignore[attr-defined]
        return found

    found = asyncio.run(asyncio.wait_for(play(), 60))
    assert "finished" in found["header"]


def test_live_parts_have_no_csrf_token_and_hold_the_mask(small: TestingApp) -> None:
    small.speedrun(small.options(id="one").start(parrot, "4111-1111"))
    site = site_of(small, token="x" * 20, mask=["text"])
    for path in ("/", "/runs", "/runs/one"):
        parts = site._render_watched(Watched("", path, (("tab", "steps"),), True))
        whole = "".join(parts.whole().values())
        assert "csrf" not in whole
        if path == "/runs/one":
            assert '"•••"' in whole.replace("&#34;", '"')


def test_viewers_and_operators_see_different_parts(small: TestingApp) -> None:
    small.options(id="one").start(fulfil, "one", 500)
    small.settle_down()
    site = site_of(small)
    look = "".join(site._render_watched(Watched("", "/runs/one", (), False)).whole().values())
    act = "".join(site._render_watched(Watched("", "/runs/one", (), True)).whole().values())
    assert "/act/" not in look
    assert "/act/pause" in act
