"""How a definition is called from sync and from async code: `fetch.sync`, `charge.aio`, and handles.

Each method has up to four overloads: the function takes a `ctx` or not, and it is `async def` or not.  The
caller leaves the `ctx` out, and gets the value instead of a coroutine.  `Wraps` gives a type checker the
whole function to compare; the type arguments of a class are compared less exactly (mypy ignores what
`Concatenate` adds in the type of `self`, pyright ignores default values).
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from typing import (
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    Required,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from ..arguments import check_count, check_flag, refuse
from ..errors import BlockingCall
from .awaitables import refuse_without_loop, watched
from .child_options import ChildOptions
from .context import Call, Context, Frame, current_frame

P = ParamSpec("P")
Q = ParamSpec("Q")
A = TypeVar("A")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)
T_co = TypeVar("T_co", covariant=True)
F_co = TypeVar("F_co", covariant=True)


class Wraps(Protocol[F_co]):
    """An object around a function."""

    @property
    def function(self) -> F_co: ...


class Called(Protocol):
    """What this module needs to know of a definition."""

    function: Callable[..., Any]
    name: str
    is_async: bool

    def routine(self, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call[Any]: ...


class MapOptions(TypedDict, total=False):
    """The keywords of `map` whose results have types."""

    return_exceptions: Literal[False]
    concurrency: int | None


class MapWithExtra(TypedDict, total=False):
    """The keywords of `map` with more arguments for each call."""

    extra: Required[Mapping[str, Any]]
    return_exceptions: bool
    concurrency: int | None


class MapWithErrors(TypedDict, total=False):
    """The keywords of `map` with errors among the results."""

    return_exceptions: Required[Literal[True]]
    concurrency: int | None


class AsyncCaller(Generic[P, R_co]):
    """`charge.aio`: calls a step or a workflow from async code.

    receipt = await charge.aio(42)
    receipts = await charge.aio.map([1, 2, 3])
    """

    def __init__(self, definition: Called, options: ChildOptions | None = None) -> None:
        self._definition = definition
        self._options = options

    @property
    def function(self) -> Callable[P, R_co]:
        """The function as it was written."""
        return self._definition.function

    @overload
    def __call__(
        self: Wraps[Callable[Concatenate[Context, Q], Coroutine[Any, Any, T]]],
        *args: Q.args,
        **kwargs: Q.kwargs,
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def __call__(
        self: Wraps[Callable[Concatenate[Context, Q], T]], *args: Q.args, **kwargs: Q.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def __call__(
        self: Wraps[Callable[P, Coroutine[Any, Any, T]]], *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]: ...
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """Call it; in a run the call is recorded."""
        definition: Called = self._definition
        frame = current_frame(definition.name)
        if frame is None:
            return _call_plainly(definition.function, args, kwargs)
        refuse_without_loop(frame, definition.name, _sync_form(definition, "(...)"))
        return watched(
            frame, definition.name, frame.adrive(_routine(frame, definition, args, kwargs, self._options))
        )

    @overload
    def map(
        self: Wraps[Callable[[A], Coroutine[Any, Any, T]]], items: Iterable[A], **options: Unpack[MapOptions]
    ) -> Coroutine[Any, Any, list[T]]: ...
    @overload
    def map(
        self: Wraps[Callable[[Context, A], Coroutine[Any, Any, T]]],
        items: Iterable[A],
        **options: Unpack[MapOptions],
    ) -> Coroutine[Any, Any, list[T]]: ...
    @overload
    def map(
        self: Wraps[Callable[[A], T]], items: Iterable[A], **options: Unpack[MapOptions]
    ) -> Coroutine[Any, Any, list[T]]: ...
    @overload
    def map(
        self: Wraps[Callable[[Context, A], T]], items: Iterable[A], **options: Unpack[MapOptions]
    ) -> Coroutine[Any, Any, list[T]]: ...
    @overload
    def map(
        self, items: Iterable[Any], **options: Unpack[MapWithExtra]
    ) -> Coroutine[Any, Any, list[Any]]: ...
    @overload
    def map(
        self, items: Iterable[Any], **options: Unpack[MapWithErrors]
    ) -> Coroutine[Any, Any, list[Any]]: ...
    def map(
        self: Any,
        items: Iterable[Any],
        *,
        extra: Mapping[str, Any] | None = None,
        return_exceptions: bool = False,
        concurrency: int | None = None,
    ) -> Coroutine[Any, Any, list[Any]]:
        """Spawn one for each item; the results in order.  See `Step.map`."""
        definition: Called = self._definition
        wanted = Mapped(definition.name, items, extra, return_exceptions, concurrency)
        frame = current_frame(definition.name)
        if frame is None:
            return wanted.plainly(lambda args, kwargs: _call_plainly(definition.function, args, kwargs))
        refuse_without_loop(frame, f"{definition.name}.map", _sync_form(definition, ".map(...)"))
        return watched(frame, f"{definition.name}.map", _map(frame, definition, self._options, wanted))


class SyncCaller(Generic[P, R_co]):
    """`fetch.sync`: calls a step or a workflow from sync code.

    page = fetch.sync("https://example.com")
    pages = fetch.sync.map(urls)
    """

    def __init__(self, definition: Called, options: ChildOptions | None = None) -> None:
        self._definition = definition
        self._options = options

    @property
    def function(self) -> Callable[P, R_co]:
        """The function as it was written."""
        return self._definition.function

    @overload
    def __call__(
        self: Wraps[Callable[Concatenate[Context, Q], Coroutine[Any, Any, T]]],
        *args: Q.args,
        **kwargs: Q.kwargs,
    ) -> T: ...
    @overload
    def __call__(
        self: Wraps[Callable[Concatenate[Context, Q], T]], *args: Q.args, **kwargs: Q.kwargs
    ) -> T: ...
    @overload
    def __call__(
        self: Wraps[Callable[P, Coroutine[Any, Any, T]]], *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Call it; in a run the call is recorded."""
        definition: Called = self._definition
        frame = current_frame(definition.name)
        if frame is None:
            value = definition.function(*args, **kwargs)
            return _run_plainly(value) if definition.is_async else value
        refuse_on_loop(frame, definition.name, "call")
        return frame.drive(_routine(frame, definition, args, kwargs, self._options))

    @overload
    def map(
        self: Wraps[Callable[[A], Coroutine[Any, Any, T]]], items: Iterable[A], **options: Unpack[MapOptions]
    ) -> list[T]: ...
    @overload
    def map(
        self: Wraps[Callable[[Context, A], Coroutine[Any, Any, T]]],
        items: Iterable[A],
        **options: Unpack[MapOptions],
    ) -> list[T]: ...
    @overload
    def map(self: Wraps[Callable[[A], T]], items: Iterable[A], **options: Unpack[MapOptions]) -> list[T]: ...
    @overload
    def map(
        self: Wraps[Callable[[Context, A], T]], items: Iterable[A], **options: Unpack[MapOptions]
    ) -> list[T]: ...
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
    ) -> list[Any]:
        """Spawn one for each item; the results in order.  See `Step.map`."""
        definition: Called = self._definition
        wanted = Mapped(definition.name, items, extra, return_exceptions, concurrency)
        frame = current_frame(definition.name)
        if frame is None:
            return [wanted.outcome(self, args, kwargs) for args, kwargs in wanted.calls]
        refuse_on_loop(frame, definition.name, "map")
        return frame.drive(wanted.call(frame, definition, self._options))


class Handle(Generic[T_co]):
    """Work that was given to another worker, and its result to come.

    handle = charge.spawn(42)
    receipt = handle.result()  # in async code: await handle
    """

    def __init__(self, frame: Frame, key: str, topic: str, definition: Any, run_id: str | None) -> None:
        self.frame = frame
        self.key = key
        self.topic = topic
        self.definition = definition
        self.run_id = run_id  # of the child run; None for a spawned step

    def result(self) -> T_co:
        """Wait for the result; the worker is free meanwhile."""
        refuse_on_loop(self.frame, self.key, "wait for")
        return cast(T_co, self.frame.drive(self.frame.gathered([self]))[0])

    def __await__(self) -> Generator[Any, None, T_co]:
        async def wait() -> T_co:
            return cast(T_co, (await self.frame.adrive(self.frame.gathered([self])))[0])

        return wait().__await__()


class Spawner(Generic[P, R_co]):
    """A definition that can be given to another worker: `charge.spawn(42)`."""

    def _spawn(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Handle[Any]:
        raise NotImplementedError

    @overload
    def spawn(
        self: Wraps[Callable[Concatenate[Context, Q], Coroutine[Any, Any, T]]],
        *args: Q.args,
        **kwargs: Q.kwargs,
    ) -> Handle[T]: ...
    @overload
    def spawn(
        self: Wraps[Callable[Concatenate[Context, Q], T]], *args: Q.args, **kwargs: Q.kwargs
    ) -> Handle[T]: ...
    @overload
    def spawn(
        self: Wraps[Callable[P, Coroutine[Any, Any, T]]], *args: P.args, **kwargs: P.kwargs
    ) -> Handle[T]: ...
    @overload
    def spawn(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R_co]: ...
    def spawn(self: Any, *args: Any, **kwargs: Any) -> Handle[Any]:
        """Give a step to any worker, or start a workflow as a child run.

        The handle has the result: `handle.result()`, `await handle`.
        """
        handle: Handle[Any] = self._spawn(args, kwargs)
        return handle


class Mapped:
    """What a call of `map` asks for."""

    def __init__(
        self,
        name: str,
        items: Iterable[Any],
        extra: Mapping[str, Any] | None,
        return_exceptions: bool,
        concurrency: int | None,
    ) -> None:
        where = f"{name}.map()"
        _check_extra(where, extra)
        self.return_exceptions = check_flag(where, "return_exceptions", return_exceptions)
        self.concurrency = None if concurrency is None else check_count(where, "concurrency", concurrency)
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
            ((item,), dict(extra or {})) for item in items
        ]

    def call(self, frame: Frame, definition: Called, options: ChildOptions | None) -> Call[list[Any]]:
        """The durable call: all at once, or a few at a time."""
        if self.concurrency is None:
            handles = frame.spawn(definition, self.calls, options)
            return frame.gathered(handles, return_exceptions=self.return_exceptions)
        return frame.mapped(
            definition,
            self.calls,
            options,
            concurrency=self.concurrency,
            return_exceptions=self.return_exceptions,
        )

    def outcome(self, perform: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a call outside of runs comes to."""
        try:
            return perform(*args, **kwargs)
        except Exception as error:
            if not self.return_exceptions:
                raise
            return error

    async def plainly(
        self, perform: Callable[[tuple[Any, ...], dict[str, Any]], Coroutine[Any, Any, Any]]
    ) -> list[Any]:
        """What the calls outside of runs come to, on an event loop."""
        values: list[Any] = []
        for args, kwargs in self.calls:
            try:
                values.append(await perform(args, kwargs))
            except Exception as error:
                if not self.return_exceptions:
                    raise
                values.append(error)
        return values


def _routine(
    frame: Frame,
    definition: Called,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: ChildOptions | None,
) -> Call[Any]:
    if options is None:
        return definition.routine(frame, args, kwargs)
    return frame.child(definition, args, kwargs, options)


def _check_extra(where: str, extra: Any) -> None:
    if extra is None or (isinstance(extra, Mapping) and all(isinstance(name, str) for name in extra)):
        return
    refuse(where, "extra", extra, "give keyword arguments, for example extra={'currency': 'EUR'}")


async def _map(frame: Frame, definition: Called, options: ChildOptions | None, wanted: Mapped) -> list[Any]:
    return await frame.adrive(wanted.call(frame, definition, options))


def refuse_on_loop(frame: Frame, name: str, verb: str) -> None:
    """Raise BlockingCall where a sync call would block the event loop of the workflow."""
    if frame.loop_thread == threading.get_ident():
        hint = (
            f"await {name}.aio(...)" if verb == "call" else f"await {name}.aio.map(...), or await the handle"
        )
        raise BlockingCall(name, hint)


def _sync_form(definition: Called, call: str) -> str:
    """How a `def` workflow calls a definition."""
    return f"{definition.name}.sync{call}" if definition.is_async else f"{definition.name}{call}"


async def _call_plainly(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = function(*args, **kwargs)
    return await value if inspect.isawaitable(value) else value


def _run_plainly(value: Any) -> Any:
    import asyncio  # slow to load, and rarely needed here

    return asyncio.run(value)
