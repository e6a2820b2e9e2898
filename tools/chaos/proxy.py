"""A TCP proxy on the loopback that can lose, delay and hold back what passes through it."""

import asyncio
import threading
from contextlib import suppress
from typing import Any

from tools import servers

CHUNK = 65536


class Proxy:
    """Forwards connections to a port of this machine, in a thread of its own."""

    def __init__(self, behind: int) -> None:
        self.port = servers._free_port()
        self._behind = behind
        self._delay = 0.0  # seconds for everything, in both directions
        self._refusing = False
        self._swallowing = False  # requests pass, answers do not
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._flowing = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def __enter__(self) -> "Proxy":
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(self, *exception: object) -> None:
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def pass_through(self) -> None:
        """Forward everything, at once."""
        self._call(self._set(delay=0.0, refusing=False, swallowing=False, flowing=True))

    def delay(self, seconds: float) -> None:
        """Hold everything back for this long."""
        self._call(self._set(delay=seconds))

    def hold(self) -> None:
        """Forward nothing, and close nothing: packets are lost on the way."""
        self._call(self._set(flowing=False))

    def swallow(self) -> None:
        """Forward requests, and lose the answers."""
        self._call(self._set(swallowing=True))

    def cut(self) -> None:
        """Close all connections, and take no new ones."""
        self._call(self._set(refusing=True))
        self._call(self._close_all())

    def _call(self, coroutine: Any) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    async def _set(
        self,
        *,
        delay: float | None = None,
        refusing: bool | None = None,
        swallowing: bool | None = None,
        flowing: bool | None = None,
    ) -> None:
        self._delay = self._delay if delay is None else delay
        self._refusing = self._refusing if refusing is None else refusing
        self._swallowing = self._swallowing if swallowing is None else swallowing
        if flowing is not None:
            (self._flowing.set if flowing else self._flowing.clear)()

    async def _listen(self) -> None:
        self._flowing.set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def _stop(self) -> None:
        self._server.close()
        await self._close_all()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _close_all(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        await self._flowing.wait()
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._behind)
        except OSError:
            writer.transport.abort()
            return
        ours = {writer, there_writer}
        self._open |= ours
        try:
            await asyncio.gather(
                self._pump(reader, there_writer, answers=False),
                self._pump(there_reader, writer, answers=True),
            )
        finally:
            self._open -= ours
            for one in ours:
                one.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                if self._delay:
                    await asyncio.sleep(self._delay)
                await self._flowing.wait()
                if answers and self._swallowing:
                    continue
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
