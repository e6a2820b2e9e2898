"""Exceptions of user code that Python does not let through generators, coroutines or event loops.

A StopIteration that leaves a generator or a coroutine becomes a RuntimeError, and a future
refuses it.  A SystemExit or a KeyboardInterrupt that leaves a task stops the whole event loop.
`Carried` takes such an exception to where it is recorded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

from ..definitions.context import Routine

P = ParamSpec("P")
T = TypeVar("T")

_UNFIT = (StopIteration, SystemExit, KeyboardInterrupt)


class Carried(Exception):
    """Holds the exception that user code raised."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def carry(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call user code from a generator, or where a future takes its exception."""
    try:
        return function(*args, **kwargs)
    except _UNFIT as error:
        raise Carried(error) from error


async def acarry(awaitable: Awaitable[T]) -> T:
    """Await user code in a task of its own."""
    try:
        return await awaitable
    except _UNFIT as error:
        raise Carried(error) from error


def performed(request: Any) -> Routine[Any]:
    """Ask the driver to call user code; the reply is what it returns."""
    try:
        return (yield request)
    except StopIteration as error:
        raise Carried(error) from error
