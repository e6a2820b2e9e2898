"""Spawned work in the order in which it is done: `detent.first` and `detent.as_completed`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from ..arguments import refuse
from .callers import Handle
from .context import Frame
from .durable import needed_frame

T = TypeVar("T")


def first(handles: Iterable[Handle[T]]) -> Handle[T]:
    """Wait until one of several spawned steps or children is done, and return its handle.

        fast = detent.first([ask.spawn("a"), ask.spawn("b")])
        answer = fast.result()

    It is recorded which one that was, so a replay gets the same.  `result()` raises its error if it failed.
    The others continue.
    """
    given = checked_handles("first", handles, needed_frame("first", blocking=True))
    return given[given[0].frame.drive(given[0].frame.first(given))]


def as_completed(handles: Iterable[Handle[T]]) -> Iterator[Handle[T]]:
    """The handles of spawned steps and children, in the order in which they are done; it is recorded.

    for handle in detent.as_completed([ask.spawn(name) for name in names]):
        print(handle.result())
    """
    frame = needed_frame("as_completed", blocking=True)
    return _completed(frame, checked_handles("as_completed", handles, frame, empty=True))


def _completed(frame: Frame, left: list[Handle[T]]) -> Iterator[Handle[T]]:
    while left:
        yield left.pop(frame.drive(frame.first(left)))


def checked_handles(
    what: str, handles: Iterable[Handle[T]], frame: Frame, *, empty: bool = False
) -> list[Handle[T]]:
    """The handles as a list; each belongs to the running workflow."""
    where, example = f"detent.{what}()", "for example handles=[charge.spawn(1), charge.spawn(2)]"
    try:
        given: list[Any] = list(handles)
    except TypeError:
        refuse(where, "handles", handles, f"give a list of handles, {example}")
    if not given and not empty:
        refuse(where, "handles", handles, f"give at least one handle, {example}")
    for handle in given:
        if not isinstance(handle, Handle) or handle.frame is not frame:
            refuse(where, "handles", handle, f"give handles of this workflow, {example}")
    return given
