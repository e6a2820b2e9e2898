"""Blocking work, awaited."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..definitions.context import ask_database
from ..execution.services import Threads
from ..stores.driver import user_transaction

T = TypeVar("T")


async def in_thread(job: Callable[[], T]) -> T:
    """Run blocking work in a thread, never in the loop's default executor: that one is the user's."""
    ask_database("the database")
    held = user_transaction.get()

    def inside() -> T:
        """As code of the same transactional step: it must not wait for that step's own transaction."""
        token = user_transaction.set(held)
        try:
            return job()
        finally:
            user_transaction.reset(token)

    return await Threads.shared().run(job if held is None else inside)
