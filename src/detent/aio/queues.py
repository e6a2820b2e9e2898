"""`app.queues` for asyncio: the same verbs, awaited."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Unpack

from ..app.queues import QueueHandle, Queues, QueueStatus
from ..app.views import HistoryEvent
from ..kernel.queues import LIMIT_DEFAULTS, LimitKeywords
from ..keywords import shows
from .threads import in_thread


class AsyncQueues:
    """`app.queues` for asyncio; see `App.queues`.

    await app.queues["mail"].pause("the provider is down")
    """

    def __init__(self, queues: Queues) -> None:
        self._queues = queues

    def __getitem__(self, name: str) -> AsyncQueueHandle:
        """The queue of that name; whether there is one is known when a verb is awaited."""
        return AsyncQueueHandle(self._queues, name)

    async def __aiter__(self) -> AsyncIterator[AsyncQueueHandle]:
        for queue in await in_thread(lambda: list(self._queues)):
            yield AsyncQueueHandle(self._queues, queue.name)


class AsyncQueueHandle:
    """One queue; see `detent.QueueHandle`.

    await app.queues["mail"].set(concurrency=10)
    """

    def __init__(self, queues: Queues, name: str) -> None:
        self._queues = queues
        self.name = name

    def __repr__(self) -> str:
        return f"<queue {self.name!r}>"

    async def status(self) -> QueueStatus:
        """All that is known of the queue at this moment."""
        return await in_thread(lambda: self._found().status())

    async def limits(self) -> Mapping[str, Any]:
        """The limits that apply, by name."""
        return await in_thread(lambda: self._found().limits)

    async def pause(self, reason: str | None = None) -> None:
        """Let nothing begin.  What executes ends."""
        await in_thread(lambda: self._found().pause(reason))

    async def resume(self) -> None:
        """Let executions begin again."""
        await in_thread(lambda: self._found().resume())

    @shows(LimitKeywords, defaults=LIMIT_DEFAULTS)
    async def set(self, **limits: Unpack[LimitKeywords]) -> None:
        """Change limits; None removes one.  The keywords are those of `Queue`."""
        await in_thread(lambda: self._found().set(**limits))

    async def reset(self) -> None:
        """Go back to the limits that the code declares."""
        await in_thread(lambda: self._found().reset())

    async def history(self) -> list[HistoryEvent]:
        """What operators did to the queue, oldest first."""
        return await in_thread(lambda: self._found().history())

    def _found(self) -> QueueHandle:
        return self._queues[self.name]
