"""Detent for asyncio: AsyncApp, and the awaitable versions of durable calls.

    async with detent.AsyncApp("postgresql://...", include=[fulfil]) as app:
        run = await app.start(fulfil, 42)
        print(await run.result())

Async workflows and steps run on the loop that opened the app.
"""

from typing import TYPE_CHECKING, Any

from .app import AsyncApp
from .completion import as_completed, first
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

if TYPE_CHECKING:
    from .run import AsyncRun

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


if not TYPE_CHECKING:  # a type checker must not believe that every name exists

    def __getattr__(name: str) -> Any:
        """`AsyncRun` comes with the engine, which a program that does not use its app does not load."""
        if name == "AsyncRun":
            from .run import AsyncRun

            return AsyncRun
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
