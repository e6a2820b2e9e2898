"""Awaitable calls: a call that can never be awaited, or is not, is an error.

Python only warns about a coroutine that was not awaited, when it is collected.  In a workflow that
means a step that did not run, in a run that looks finished.  So a call of an async step from a `def`
workflow raises at once, and a workflow that returns without having awaited a call fails.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from ..errors import NotAwaited
from .context import Frame, Unawaited

T = TypeVar("T")


def refuse_without_loop(frame: Frame, what: str, instead: str) -> None:
    """Refuse an async call in a `def` workflow, unless that has started an event loop of its own.

    `instead` is what such a workflow writes.
    """
    if frame.loop_thread is None and not _loop_is_running():
        raise NotAwaited(what, f"this workflow is a `def` and cannot await it; write {instead}")


def watched(frame: Frame, what: str, coroutine: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
    """Remember a coroutine until it has begun."""
    if frame.unawaited is None:
        frame.unawaited = Unawaited()
    frame.unawaited.add(what, coroutine)
    return coroutine


def refuse_unawaited(frame: Frame) -> None:
    """Raise NotAwaited where a workflow that has returned did not await what it called.

    A coroutine that belongs to a task is left to that task, and a closed one was given up on purpose.
    """
    names = close_unawaited(frame)
    if names:
        raise NotAwaited(", ".join(names), f"write `await {names[0]}(...)`")


def close_unawaited(frame: Frame) -> list[str]:
    """Close what was called and has not begun, so that Python does not warn; returns the names."""
    remembered, frame.unawaited = frame.unawaited, None
    forgotten = remembered.not_begun() if remembered is not None else []
    if not forgotten:
        return []
    of_tasks = {id(task.get_coro()) for task in frame.branches}
    forgotten = [item for item in forgotten if id(item[1]) not in of_tasks]
    for _, coroutine in forgotten:
        coroutine.close()
    return list(dict.fromkeys(what for what, _ in forgotten))


def _loop_is_running() -> bool:
    import asyncio  # inside of a run it is loaded already

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
