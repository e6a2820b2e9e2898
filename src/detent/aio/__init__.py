"""Detent for asyncio: AsyncApp, and the awaitable versions of durable calls.

    async with detent.AsyncApp("postgresql://...", include=[fulfil]) as app:
        run = await app.start(fulfil, 42)
        print(await run.result())

Async workflows and steps run on the loop that opened the app.
"""

from .app import AsyncApp
from .completion import as_completed, first
from .run import AsyncRun
from .waits import (
    append,
    now,
    patched,
    publish,
    random,
    receive,
    send,
    sleep,
    sleep_until,
    step_guard,
    timeout,
    uuid,
)

__all__ = [
    "AsyncApp",
    "AsyncRun",
    "append",
    "as_completed",
    "first",
    "now",
    "patched",
    "publish",
    "random",
    "receive",
    "send",
    "sleep",
    "sleep_until",
    "step_guard",
    "timeout",
    "uuid",
]
