"""The awaitable forms of `detent.first` and `detent.as_completed`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any, TypeVar

from ..definitions.callers import Handle
from ..definitions.completion import checked_handles
from ..definitions.context import Frame
from ..definitions.durable import needed_frame
from .waits import durable

T = TypeVar("T")


@durable
def first(handles: Iterable[Handle[T]]) -> Coroutine[Any, Any, Handle[T]]:
    """Wait until one of several spawned steps or children is done; see `detent.first`.

    fast = await detent.aio.first([ask.spawn("a"), ask.spawn("b")])
    answer = await fast
    """
    frame = needed_frame("first", blocking=False)
    return _first(frame, checked_handles("aio.first", handles, frame))


def as_completed(handles: Iterable[Handle[T]]) -> AsyncIterator[Handle[T]]:
    """The handles in the order in which they are done; see `detent.as_completed`.

    async for handle in detent.aio.as_completed([ask.spawn(name) for name in names]):
        print(await handle)
    """
    frame = needed_frame("as_completed", blocking=False)
    return _completed(frame, checked_handles("aio.as_completed", handles, frame, empty=True))


async def _first(frame: Frame, handles: list[Handle[T]]) -> Handle[T]:
    place = await frame.adrive(frame.first(handles))
    return handles[place]


async def _completed(frame: Frame, left: list[Handle[T]]) -> AsyncIterator[Handle[T]]:
    while left:
        place = await frame.adrive(frame.first(left))
        yield left.pop(place)
