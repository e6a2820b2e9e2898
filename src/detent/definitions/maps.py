"""`Step.map`, for sync and async steps.

The results have types where the items are the only arguments.  With `extra`, or with errors among the
results, they are `Any`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeVar, Unpack, overload

from .callers import MapOptions, MapWithErrors, MapWithExtra, Wraps
from .context import Context

A = TypeVar("A")
T = TypeVar("T")


class Maps:
    """A step that can be called for each of many items."""

    @overload
    def map(  # type: ignore[overload-overlap]
        self: Wraps[Callable[[A], Coroutine[Any, Any, T]]], items: Iterable[A], **options: Unpack[MapOptions]
    ) -> Coroutine[Any, Any, list[T]]: ...
    @overload
    def map(  # type: ignore[overload-overlap]
        self: Wraps[Callable[[Context, A], Coroutine[Any, Any, T]]],
        items: Iterable[A],
        **options: Unpack[MapOptions],
    ) -> Coroutine[Any, Any, list[T]]: ...
    @overload
    def map(self: Wraps[Callable[[A], T]], items: Iterable[A], **options: Unpack[MapOptions]) -> list[T]: ...
    @overload
    def map(
        self: Wraps[Callable[[Context, A], T]], items: Iterable[A], **options: Unpack[MapOptions]
    ) -> list[T]: ...
    @overload
    def map(
        self: Wraps[Callable[..., Coroutine[Any, Any, Any]]],
        items: Iterable[Any],
        **options: Unpack[MapWithExtra],
    ) -> Coroutine[Any, Any, list[Any]]: ...
    @overload
    def map(
        self: Wraps[Callable[..., Coroutine[Any, Any, Any]]],
        items: Iterable[Any],
        **options: Unpack[MapWithErrors],
    ) -> Coroutine[Any, Any, list[Any]]: ...
    @overload
    def map(self, items: Iterable[Any], **options: Unpack[MapWithExtra]) -> list[Any]: ...
    @overload
    def map(self, items: Iterable[Any], **options: Unpack[MapWithErrors]) -> list[Any]: ...
    def map(
        self: Any,
        items: Iterable[Any],
        *,
        extra: Mapping[str, Any] | None = None,
        return_exceptions: bool = False,
        concurrency: int | None = None,
    ) -> Any:
        """Spawn one for each item, and return the results in order (awaitable for an async step).

            receipts = charge.map(orders, extra={"currency": "EUR"}, concurrency=20)

        `extra` are keyword arguments of every call.  At most `concurrency` calls are under way at a time.
        All are done when it returns or raises.  `return_exceptions=True` puts errors in places of results.
        """
        view = self.aio if self.is_async else self.sync
        return view.map(items, extra=extra, return_exceptions=return_exceptions, concurrency=concurrency)
