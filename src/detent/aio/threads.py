"""Blocking work, awaited."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ..definitions.context import ask_database, replaying

if TYPE_CHECKING:
    from ..app.engine import Engine

T = TypeVar("T")


async def in_thread(job: Callable[[], T]) -> T:
    """Run blocking work in a thread, never in the loop's default executor: that one is the user's."""
    from ..execution.services import Threads  # with all that an open app needs
    from ..stores.driver import user_transaction

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


async def opened(engine: Engine) -> None:
    """Open the database without blocking the loop, unless it is open."""
    if not engine.is_open and not replaying():
        await in_thread(engine.ensure_open)
