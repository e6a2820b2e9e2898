"""Starting runs in async code: the methods that AsyncApp, `app.options(...)` and `app.within(...)` share.

A type checker compares the arguments with the parameters of the workflow, without the `ctx` that Detent
gives, and takes the type of the result from what it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

from ..app.starters import FourOrMore, WrapsWorkflow
from ..definitions.context import Context
from ..definitions.deciders import Decider
from ..definitions.functions import FunctionWorkflow
from ..definitions.graphs import Graph
from ..definitions.templates import Template
from ..definitions.workflows import Workflow

if TYPE_CHECKING:  # loaded when a run is started
    from .run import AsyncRun

P = ParamSpec("P")
R = TypeVar("R")
In = TypeVar("In")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


class AsyncStarts:
    """Starts runs in async code."""

    async def _start_one(
        self, definition: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> AsyncRun[Any]:
        raise NotImplementedError

    async def _start_each(self, definition: Any, calls: Iterable[tuple[Any, ...]]) -> list[AsyncRun[Any]]:
        raise NotImplementedError

    # With and without a ctx, async and sync.
    @overload
    async def start(
        self,
        definition: FunctionWorkflow[Concatenate[Context, P], Coroutine[Any, Any, R]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> AsyncRun[R]: ...
    @overload
    async def start(
        self, definition: FunctionWorkflow[Concatenate[Context, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> AsyncRun[R]: ...
    @overload
    async def start(
        self, definition: FunctionWorkflow[P, Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs
    ) -> AsyncRun[R]: ...
    @overload
    async def start(
        self, definition: FunctionWorkflow[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> AsyncRun[R]: ...
    @overload
    async def start(self, definition: Template[P], *args: P.args, **kwargs: P.kwargs) -> AsyncRun[Any]: ...
    @overload
    async def start(self, definition: type[Decider[Any, In, Any, Any]], input: In) -> AsyncRun[None]: ...
    @overload
    async def start(
        self, definition: type[Workflow] | Graph | str, *args: Any, **kwargs: Any
    ) -> AsyncRun[Any]: ...
    async def start(self, definition: Any, *args: Any, **kwargs: Any) -> AsyncRun[Any]:
        """Start a run; it is durable when this returns.

            run = await app.start(fulfil, 42)

        In `app.within(connection)` it is durable when your transaction commits.
        """
        return await self._start_one(definition, args, kwargs)

    @overload
    async def start_many(
        self,
        definition: WrapsWorkflow[Callable[[Context], Coroutine[Any, Any, R]]],
        calls: Iterable[tuple[()]],
    ) -> list[AsyncRun[R]]: ...
    @overload
    async def start_many(
        self, definition: WrapsWorkflow[Callable[[], Coroutine[Any, Any, R]]], calls: Iterable[tuple[()]]
    ) -> list[AsyncRun[R]]: ...
    @overload
    async def start_many(
        self, definition: WrapsWorkflow[Callable[[Context], R]], calls: Iterable[tuple[()]]
    ) -> list[AsyncRun[R]]: ...
    @overload
    async def start_many(
        self, definition: WrapsWorkflow[Callable[[], R]], calls: Iterable[tuple[()]]
    ) -> list[AsyncRun[R]]: ...
    @overload
    async def start_many(
        self,
        definition: WrapsWorkflow[Callable[[Context, A], Coroutine[Any, Any, R]]],
        calls: Iterable[tuple[A]],
    ) -> list[AsyncRun[R]]: ...
    @overload
    async def start_many(
        self, definition: WrapsWorkflow[Callable[[A], Coroutine[Any, Any, R]]], calls: Iterable[tuple[A]]
    ) -> list[AsyncRun[R]]: ...
    @overload
    async def start_many(
        self, definition: WrapsWorkflow[Callable[[Context, A], R]], calls: Iterable[tuple[A]]
    ) -> list[AsyncRun[R]]: ...
    @overload
    async def start_many(
        self, definition: WrapsWorkflow[Callable[[A], R]], calls: Iterable[tuple[A]]
    ) -> list[AsyncRun[R]]: ...
    @overload
    async def start_many(
        self,
        definition: WrapsWorkflow[Callable[[Context, A, B], Coroutine[Any, Any, R]]],
        calls: Iterable[tuple[A, B]],
    ) -> list[AsyncRun[R]]: ...
    @overload
    async def start_many(
        self,
        definition: WrapsWorkflow[Callable[[A, B], Coroutine[Any, Any, R]]],
        calls: Iterable[tuple[A, B]],
    ) -> list[AsyncRun[R]]: ...
    @overload
    async def start_many(
        self, definition: WrapsWorkflow[Callable[[Context, A, B], R]], calls: Iterable[tuple[A, B]]
    ) -> list[AsyncRun[R]]: ...
    @overload
    async def start_many(
        self, definition: WrapsWorkflow[Callable[[A, B], R]], calls: Iterable[tuple[A, B]]
    ) -> list[AsyncRun[R]]: ...
    @overload
    async def start_many(
        self,
        definition: WrapsWorkflow[Callable[[Context, A, B, C], Coroutine[Any, Any, R]]],
        calls: Iterable[tuple[A, B, C]],
    ) -> list[AsyncRun[R]]: ...
    @overload
    async def start_many(
        self,
        definition: WrapsWorkflow[Callable[[A, B, C], Coroutine[Any, Any, R]]],
        calls: Iterable[tuple[A, B, C]],
    ) -> list[AsyncRun[R]]: ...
    @overload
    async def start_many(
        self, definition: WrapsWorkflow[Callable[[Context, A, B, C], R]], calls: Iterable[tuple[A, B, C]]
    ) -> list[AsyncRun[R]]: ...
    @overload
    async def start_many(
        self, definition: WrapsWorkflow[Callable[[A, B, C], R]], calls: Iterable[tuple[A, B, C]]
    ) -> list[AsyncRun[R]]: ...
    @overload
    async def start_many(
        self, definition: FunctionWorkflow[..., Coroutine[Any, Any, R]], calls: Iterable[FourOrMore]
    ) -> list[AsyncRun[R]]: ...
    @overload
    async def start_many(
        self, definition: FunctionWorkflow[..., R], calls: Iterable[FourOrMore]
    ) -> list[AsyncRun[R]]: ...
    @overload
    async def start_many(
        self, definition: type[Workflow] | Template[Any] | str, calls: Iterable[tuple[Any, ...]]
    ) -> list[AsyncRun[Any]]: ...
    async def start_many(self, definition: Any, calls: Iterable[tuple[Any, ...]]) -> list[AsyncRun[Any]]:
        """Start a run for each tuple of arguments, all in one commit.

        runs = await app.start_many(fulfil, [(1,), (2,), (3,)])
        """
        return await self._start_each(definition, calls)
