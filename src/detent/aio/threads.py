"""Blocking work, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar, cast

from ..context import ask_database
from ..runtime.services import Threads

T = TypeVar("T")


async def in_thread(job: Callable[[], T]) -> T:
    """Run blocking work in a thread, never in the loop's default executor: that one is the user's."""
    ask_database("the database")
    return cast(T, await asyncio.wrap_future(Threads.shared().submit(job)))
