"""Starting runs: the methods that App, `app.options(...)` and `app.within(...)` share.

A type checker compares the arguments with the parameters of the workflow, without the `ctx` that Detent
gives, and takes the type of the result from what it returns.

For `start_many` it needs an overload per number of arguments: Python has no type for "the arguments as a
tuple" that respects default values.  The arguments of workflows with four parameters or more are checked
when they are started.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from ..arguments import refuse
from ..definitions.callers import Wraps
from ..definitions.context import Context
from ..definitions.deciders import Decider
from ..definitions.functions import FunctionWorkflow
from ..definitions.graphs import Graph
from ..definitions.templates import Template
from ..definitions.workflows import Workflow

if TYPE_CHECKING:  # loaded when a run is started
    from .run import Run

START_MANY = "app.start_many()"
P = ParamSpec("P")
R = TypeVar("R")
In = TypeVar("In")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
F_co = TypeVar("F_co", covariant=True)


class WrapsWorkflow(Wraps[F_co], Protocol[F_co]):
    """A workflow made of that function."""

    def options(self) -> Any: ...


FourOrMore = tuple[Any, Any, Any, Any, *tuple[Any, ...]]


class Starts:
    """Starts runs."""

    def _start_one(self, definition: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Run[Any]:
        raise NotImplementedError

    def _start_each(self, definition: Any, calls: Iterable[tuple[Any, ...]]) -> list[Run[Any]]:
        raise NotImplementedError

    # With and without a ctx, async and sync.
    @overload
    def start(
        self,
        definition: FunctionWorkflow[Concatenate[Context, P], Coroutine[Any, Any, R]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Run[R]: ...
    @overload
    def start(
        self, definition: FunctionWorkflow[Concatenate[Context, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> Run[R]: ...
    @overload
    def start(
        self, definition: FunctionWorkflow[P, Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs
    ) -> Run[R]: ...
    @overload
    def start(self, definition: FunctionWorkflow[P, R], *args: P.args, **kwargs: P.kwargs) -> Run[R]: ...
    @overload
    def start(self, definition: Template[P], *args: P.args, **kwargs: P.kwargs) -> Run[Any]: ...
    @overload
    def start(self, definition: type[Decider[Any, In, Any, Any]], input: In) -> Run[None]: ...
    @overload
    def start(self, definition: type[Workflow] | Graph | str, *args: Any, **kwargs: Any) -> Run[Any]: ...
    def start(self, definition: Any, *args: Any, **kwargs: Any) -> Run[Any]:
        """Start a run; it is durable when this returns.

            run = app.start(fulfil, 42)

        In `app.within(connection)` it is durable when your transaction commits.
        """
        return self._start_one(definition, args, kwargs)

    @overload
    def start_many(
        self,
        definition: WrapsWorkflow[Callable[[Context], Coroutine[Any, Any, R]]],
        calls: Iterable[tuple[()]],
    ) -> list[Run[R]]: ...
    @overload
    def start_many(
        self, definition: WrapsWorkflow[Callable[[], Coroutine[Any, Any, R]]], calls: Iterable[tuple[()]]
    ) -> list[Run[R]]: ...
    @overload
    def start_many(
        self, definition: WrapsWorkflow[Callable[[Context], R]], calls: Iterable[tuple[()]]
    ) -> list[Run[R]]: ...
    @overload
    def start_many(
        self, definition: WrapsWorkflow[Callable[[], R]], calls: Iterable[tuple[()]]
    ) -> list[Run[R]]: ...
    @overload
    def start_many(
        self,
        definition: WrapsWorkflow[Callable[[Context, A], Coroutine[Any, Any, R]]],
        calls: Iterable[tuple[A]],
    ) -> list[Run[R]]: ...
    @overload
    def start_many(
        self, definition: WrapsWorkflow[Callable[[A], Coroutine[Any, Any, R]]], calls: Iterable[tuple[A]]
    ) -> list[Run[R]]: ...
    @overload
    def start_many(
        self, definition: WrapsWorkflow[Callable[[Context, A], R]], calls: Iterable[tuple[A]]
    ) -> list[Run[R]]: ...
    @overload
    def start_many(
        self, definition: WrapsWorkflow[Callable[[A], R]], calls: Iterable[tuple[A]]
    ) -> list[Run[R]]: ...
    @overload
    def start_many(
        self,
        definition: WrapsWorkflow[Callable[[Context, A, B], Coroutine[Any, Any, R]]],
        calls: Iterable[tuple[A, B]],
    ) -> list[Run[R]]: ...
    @overload
    def start_many(
        self,
        definition: WrapsWorkflow[Callable[[A, B], Coroutine[Any, Any, R]]],
        calls: Iterable[tuple[A, B]],
    ) -> list[Run[R]]: ...
    @overload
    def start_many(
        self, definition: WrapsWorkflow[Callable[[Context, A, B], R]], calls: Iterable[tuple[A, B]]
    ) -> list[Run[R]]: ...
    @overload
    def start_many(
        self, definition: WrapsWorkflow[Callable[[A, B], R]], calls: Iterable[tuple[A, B]]
    ) -> list[Run[R]]: ...
    @overload
    def start_many(
        self,
        definition: WrapsWorkflow[Callable[[Context, A, B, C], Coroutine[Any, Any, R]]],
        calls: Iterable[tuple[A, B, C]],
    ) -> list[Run[R]]: ...
    @overload
    def start_many(
        self,
        definition: WrapsWorkflow[Callable[[A, B, C], Coroutine[Any, Any, R]]],
        calls: Iterable[tuple[A, B, C]],
    ) -> list[Run[R]]: ...
    @overload
    def start_many(
        self, definition: WrapsWorkflow[Callable[[Context, A, B, C], R]], calls: Iterable[tuple[A, B, C]]
    ) -> list[Run[R]]: ...
    @overload
    def start_many(
        self, definition: WrapsWorkflow[Callable[[A, B, C], R]], calls: Iterable[tuple[A, B, C]]
    ) -> list[Run[R]]: ...
    @overload
    def start_many(
        self, definition: FunctionWorkflow[..., Coroutine[Any, Any, R]], calls: Iterable[FourOrMore]
    ) -> list[Run[R]]: ...
    @overload
    def start_many(
        self, definition: FunctionWorkflow[..., R], calls: Iterable[FourOrMore]
    ) -> list[Run[R]]: ...
    @overload
    def start_many(
        self, definition: type[Workflow] | Template[Any] | str, calls: Iterable[tuple[Any, ...]]
    ) -> list[Run[Any]]: ...
    def start_many(self, definition: Any, calls: Iterable[tuple[Any, ...]]) -> list[Run[Any]]:
        """Start a run for each tuple of arguments, all in one commit.

        runs = app.start_many(fulfil, [(1,), (2,), (3,)])
        """
        return self._start_each(definition, calls)


def calls_of(calls: Any) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The calls of `start_many`: one tuple of arguments for each run."""
    example = "for example [(1,), (2,)]"
    if isinstance(calls, str) or not isinstance(calls, Iterable):
        refuse(START_MANY, "calls", calls, f"give a list with a tuple of arguments for each run, {example}")
    found: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    for number, args in enumerate(calls):
        if not isinstance(args, tuple | list):
            refuse(START_MANY, f"calls[{number}]", args, f"give the arguments of a run as a tuple, {example}")
        found.append((tuple(args), {}))
    return found
