"""Branches: the tasks that an async workflow starts.

A branch counts its steps for itself, because which of two gets on first may differ
from replay to replay.  It is numbered when it is made: a task factory, wrapped
around the one that the loop has, sees that.  Tasks of steps, and of others on the
same loop, pass through untouched.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
from types import FrameType
from typing import Any, Protocol

from ..definitions.context import frame_var, step_var
from ..kernel.journal import Scope

LONGEST_NAME = 40
_DEEPEST = 8  # calls between asyncio.as_completed and the task factory, at most


class Branching(Protocol):
    """A frame, as its branches see it."""

    def scope(self) -> Scope: ...

    def branched(self, task: asyncio.Task[Any], scope: Scope) -> None: ...


# The frame that counts, and the line of calls in it that the running code is on.
scope_var: contextvars.ContextVar[tuple[Any, Scope] | None] = contextvars.ContextVar(
    "detent_scope", default=None
)


def see_branches(loop: asyncio.AbstractEventLoop) -> None:
    """Number the tasks of workflows on this loop from now on."""
    factory = loop.get_task_factory()
    if not isinstance(factory, _Numbering):
        loop.set_task_factory(_Numbering(factory))


class _Numbering:
    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._reserved: dict[int, tuple[Any, Scope]] = {}

    def __call__(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        given: contextvars.Context | None = options.get("context")
        frame: Any = frame_var.get() if given is None else given.get(frame_var)
        inside_step = step_var.get() if given is None else given.get(step_var)
        if frame is None or inside_step is not None:
            return self._make(loop, coro, options)
        context = contextvars.copy_context() if given is None else given
        scope = self._scope(frame, coro)
        context.run(scope_var.set, (frame, scope))
        task = self._make(loop, coro, options | {"context": context})
        frame.branched(task, scope)
        return task

    def _scope(self, frame: Any, coro: Any) -> Scope:
        """The line of a new task: numbered in the order in which the code names its tasks."""
        if id(coro) not in self._reserved:
            together = _named_together()
            self._reserved = {id(each): (each, frame.scope().child(_name(each))) for each in together}
        reserved = self._reserved.pop(id(coro), None)
        return frame.scope().child(_name(coro)) if reserved is None else reserved[1]

    def _make(self, loop: asyncio.AbstractEventLoop, coro: Any, options: dict[str, Any]) -> asyncio.Task[Any]:
        if self._inner is not None:
            task: asyncio.Task[Any] = self._inner(loop, coro, **options)
            return task
        return asyncio.Task(coro, loop=loop, **options)


def _named_together() -> list[Any]:
    """The coroutines that are made tasks by one call of `asyncio.as_completed`, as the code lists them.

    It makes tasks of a set, in an order that is another one in every process.
    """
    caller: FrameType | None = sys._getframe(3)  # who makes the task
    for _ in range(_DEEPEST):
        if caller is None or not caller.f_globals.get("__name__", "").startswith("asyncio."):
            break
        listed = caller.f_locals.get("fs", caller.f_locals.get("aws"))
        if isinstance(listed, list | tuple) and caller.f_code.co_name in ("as_completed", "__init__"):
            return [each for each in listed if asyncio.iscoroutine(each)]
        caller = caller.f_back
    return []


def _name(coro: Any) -> str:
    """The name of a task's function, as part of a key."""
    name = getattr(coro, "__name__", "task")
    return "".join(c if c.isalnum() or c == "_" else "-" for c in name)[:LONGEST_NAME]
