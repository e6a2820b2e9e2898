"""The feed: tells every viewer what has changed on the page that they look at.

There is one feed for a dashboard, whatever the number of viewers.  It is woken by the commits of this process
and by the notifications of others (`Engine.follow`), and at least once in `LONGEST` seconds, as not every
commit notifies.  Then it renders each open page once, compares it with the rendering
before, and sends the parts that differ to all who look at that page.  Without viewers it does nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec
from starlette.concurrency import run_in_threadpool

from .rendering import Parts

log = logging.getLogger("detent.dashboard")
LONGEST = 1.0  # seconds between two looks while a page is open
SHORTEST = 0.2  # a busy database commits thousands of times in a second: people need no more than this
SHARE = 0.05  # of the time that the feed may spend with rendering: workers may need the processor
PAUSE = 3.0  # seconds at most until the next look, however long the last one took
KEEP_ALIVE = 15.0  # seconds after which a silent connection gets a comment, so that proxies keep it open
MOST_WAITING = 8  # messages that a slow viewer may be behind, before they get the whole page instead
MOST_VIEWERS = 1_000

K = TypeVar("K", bound=Hashable)


class TooManyViewers(Exception):
    """The dashboard serves as many viewers as it can."""


@dataclass(eq=False)
class _Page:
    """An open page."""

    parts: Parts
    viewers: list[asyncio.Queue[bytes]] = field(default_factory=list)


class Feed(Generic[K]):
    """Renders what is looked at, and sends what changes."""

    def __init__(
        self, render: Callable[[K], Parts], follow: Callable[[Callable[[], None]], Callable[[], None]]
    ) -> None:
        self._render = render
        self._follow = follow
        self._pages: dict[K, _Page] = {}
        self._task: asyncio.Task[None] | None = None
        self.renderings = 0  # for tests and for the curious

    @property
    def viewers(self) -> int:
        return sum(len(page.viewers) for page in self._pages.values())

    async def watch(self, key: K, version: str) -> AsyncIterator[bytes]:
        """Server-sent events for one viewer, whose page shows the parts of this version."""
        if self.viewers >= MOST_VIEWERS:
            raise TooManyViewers
        page = self._pages.get(key)
        if page is None:
            parts = await run_in_threadpool(self._render, key)
            page = self._pages.setdefault(key, _Page(parts))
        queue: asyncio.Queue[bytes] = asyncio.Queue(MOST_WAITING)
        page.viewers.append(queue)
        self._start()
        try:
            yield b"retry: 2000\n\n"
            if page.parts.version != version:
                yield event(page.parts.whole())
            while True:
                try:
                    yield await asyncio.wait_for(queue.get(), KEEP_ALIVE)
                except TimeoutError:
                    yield b": still here\n\n"
        finally:
            page.viewers.remove(queue)
            if not page.viewers and self._pages.get(key) is page:
                del self._pages[key]

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="detent-dashboard-feed")

    async def _run(self) -> None:
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def told() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                if not news.is_set():
                    loop.call_soon_threadsafe(news.set)

        unfollow = await run_in_threadpool(self._follow, told)
        try:
            while self._pages:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(news.wait(), LONGEST)
                news.clear()
                began = time.monotonic()
                for key in list(self._pages):
                    await self._look(key)
                spent = time.monotonic() - began
                await asyncio.sleep(min(PAUSE, max(SHORTEST, spent / SHARE - spent)))
        finally:
            unfollow()

    async def _look(self, key: K) -> None:
        """Render a page again, and send what differs."""
        try:
            parts = await run_in_threadpool(self._render, key)
            self.renderings += 1
        except Exception:  # the database is away, or the run is gone: the page stays as it is
            log.debug("rendering %s for its viewers failed", key, exc_info=True)
            return
        page = self._pages.get(key)
        if page is None:
            return
        changes = parts.changes(page.parts)
        page.parts = parts
        if not changes:
            return
        message = event(changes)
        for queue in page.viewers:
            if queue.full():
                while not queue.empty():
                    queue.get_nowait()
                queue.put_nowait(event(parts.whole()))
            else:
                queue.put_nowait(message)


def event(parts: dict[str, str]) -> bytes:
    """A server-sent event that carries parts of a page."""
    return b"data: " + msgspec.json.encode(parts) + b"\n\n"
