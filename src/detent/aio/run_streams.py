"""Reading streams of a run on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Self

from ..app.run_streams import Reading, StreamEntry
from .threads import in_thread


class AsyncStream(AsyncIterator[Any]):
    """The values of a stream, in order; see `AsyncRun.stream`.

    async for token in run.stream("tokens"):
        await response.write(token)
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._entries = self._read()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        return (await anext(self._entries)).value

    def entries(self) -> AsyncIterator[StreamEntry]:
        """The same with positions: continue later with `run.stream(name, after=entry.position)`."""
        return self._entries

    async def _read(self) -> AsyncIterator[StreamEntry]:
        while True:
            found = await in_thread(self._reading.look)
            for entry in found:
                yield entry
            if self._reading.over:
                return
            if not found:
                await asyncio.sleep(self._reading.wait)
