"""Deadlines of what executes: an async body is cancelled when its run's deadline passes."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable

from ..clock import from_micros
from ..errors import DeadlineExceeded
from ..kernel.rows import Claimed
from .services import Services


def deadline_exceeded(claimed: Claimed) -> DeadlineExceeded:
    """The error of a run whose deadline has passed."""
    return DeadlineExceeded(claimed.run_id, from_micros(claimed.deadline or 0).isoformat())


def has_passed(services: Services, claimed: Claimed) -> bool:
    return claimed.deadline is not None and services.clock.now() >= claimed.deadline


def at_deadline(
    services: Services, claimed: Claimed, expire: Callable[[], None]
) -> asyncio.TimerHandle | None:
    """Call `expire` on this loop at the deadline; None if there is none.

    Under a virtual clock a body that executes holds the time still: its deadline is looked at when it ends.
    """
    if claimed.deadline is None or services.clock.virtual:
        return None
    seconds = max(0.0, (claimed.deadline - services.clock.now()) / 1e6)
    # In an empty context: it is not a timer of the workflow's own code, which would keep it in memory.
    return asyncio.get_running_loop().call_later(seconds, expire, context=contextvars.Context())
