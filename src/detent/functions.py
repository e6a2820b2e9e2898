"""Durable functions: `@step` and `@workflow`.

They describe, they do not run: a definition is a plain object around a function.
Called outside of a run it just calls that function; inside, it asks the frame of
the run to carry the call out, record it, or answer it from the journal.
"""

from __future__ import annotations

import inspect
import sys
import threading
import typing
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from types import MethodType
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Self, TypeVar, cast, overload

from .context import Context, Frame, Routine, current_frame
from .declaring import Condition, NodeOptions, queue_problem
from .errors import BlockingCall, DefinitionError, NotInRun
from .kernel.policies import ACTIONS, NO_RETRY, REATTEMPT, ExceptionPolicy, Retry
from .serialization import decodable

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
T = TypeVar("T")

OnException = Literal["raise", "pause", "cancel", "skip", "reattempt"]
NodeAction = Literal["pause", "cancel", "skip", "reattempt"]
Executor = Literal["thread", "process"]
_PLAIN = NodeOptions()
LONGEST_NAME = 200


class Definition(Generic[P, R]):
    """A function with a name, and what its signature tells."""

    kind = ""

    def __init__(self, function: Callable[P, R], name: str | None) -> None:
        if not callable(function):
            raise DefinitionError(f"@{self.kind} decorates a function, not {function!r}")
        if isinstance(function, Definition | type):
            what = (
                "a class" if isinstance(function, type) else f"a {function.kind} already; use one decorator"
            )
            raise DefinitionError(f"@{self.kind} decorates a function; {function!r} is {what}")
        self.function = function
        self.name = name if name is not None else function.__name__
        self.is_async = inspect.iscoroutinefunction(function)
        _check_name(self.kind, self.name)
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise self._error("is a generator; return a list, or publish() what comes")
        self._signature = inspect.signature(function)
        self._parameters = list(self._signature.parameters.values())
        self._hints: dict[str, Any] | None = None
        self._argument_types: dict[tuple[int, tuple[str, ...]], tuple[list[Any], dict[str, Any]]] = {}
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self.__qualname__ = function.__qualname__
        self.__module__ = function.__module__
        self.__wrapped__ = function

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name}>"

    @property
    def hints(self) -> dict[str, Any]:
        """The annotations, resolved when first needed: they may name what is defined later."""
        if self._hints is None:
            try:
                self._hints = typing.get_type_hints(self.function, include_extras=True)
            except (NameError, TypeError, AttributeError):
                return {}
        return self._hints

    @cached_property
    def returns(self) -> Any:
        """The type that results are decoded to; Any where the annotation says nothing of use."""
        return _decodable(self.hints.get("return", Any))

    @cached_property
    def wants_context(self) -> bool:
        """Whether a first parameter `ctx`, or one annotated `detent.Context`, asks for the context."""
        if not self._parameters:
            return False
        first = self._parameters[0]
        return first.name == "ctx" or self.hints.get(first.name) is Context

    def without_context(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments without a context that was passed on."""
        if args and isinstance(args[0], Context):
            args = args[1:]
        if kwargs:
            kwargs = {name: value for name, value in kwargs.items() if not isinstance(value, Context)}
        return args, kwargs

    def accepts(self, name: str) -> bool:
        """Whether there is a parameter of that name."""
        return any(parameter.name == name for parameter in self._parameters)

    def check_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise TypeError, as the call itself would, before anything is stored."""
        if not kwargs and len(args) == self._plain_arity:
            return
        placeholders = [None] * self.given_by_engine
        try:
            self._signature.bind(*placeholders, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}(): {error}") from None

    @cached_property
    def _plain_arity(self) -> int:
        """How many arguments fill the signature exactly; -1 where it is not that simple."""
        simple = all(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in self._parameters)
        return len(self._parameters) - self.given_by_engine if simple else -1

    @cached_property
    def given_by_engine(self) -> int:
        """How many leading parameters the caller does not give."""
        return int(self.wants_context)

    @property
    def needed(self) -> list[str]:
        """The parameters that somebody has to give a value for."""
        own = self._parameters[self.given_by_engine :]
        several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        return [p.name for p in own if p.default is p.empty and p.kind not in several]

    def argument_types(self, count: int, names: tuple[str, ...]) -> tuple[list[Any], dict[str, Any]]:
        """The types that stored arguments are decoded to."""
        found = self._argument_types.get((count, names))
        if found is None:
            found = self._argument_types[count, names] = self._find_argument_types(count, names)
        return found

    def _find_argument_types(self, count: int, names: tuple[str, ...]) -> tuple[list[Any], dict[str, Any]]:
        own = self._parameters[self.given_by_engine :]
        positional = [p for p in own if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        rest = next((p for p in own if p.kind is p.VAR_POSITIONAL), None)
        others = next((p for p in own if p.kind is p.VAR_KEYWORD), None)
        known = {p.name for p in own}

        def hint(name: str | None) -> Any:
            return _decodable(self.hints.get(name, Any)) if name else Any

        places = [p.name for p in positional][:count]
        places += [rest.name if rest else ""] * (count - len(places))
        kinds = {n: hint(n if n in known else others.name if others else None) for n in names}
        return [hint(name) for name in places], kinds

    # A ctx may be passed on, or left to the engine.
    @overload
    def __call__(self: Definition[Concatenate[Context, Q], R], *args: Q.args, **kwargs: Q.kwargs) -> R: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        frame = current_frame(self.name)
        if frame is None:
            return self.function(*args, **kwargs)
        if self.is_async:
            return frame.adrive(self.routine(frame, args, kwargs))
        _refuse_on_loop(frame, self.name, "call")
        return frame.drive(self.routine(frame, args, kwargs))

    def routine(self, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Routine[Any]:
        """What calling it inside of a run comes to."""
        raise NotImplementedError

    @property
    def aio(self) -> AsyncView[P, R]:
        """The same from async code: `await charge.aio(42)`, `await charge.aio.map(ids)`."""
        return AsyncView(self)

    @property
    def sync(self) -> SyncView[P, R]:
        """The same from sync code: `fetch.sync(url)`, `fetch.sync.map(urls)`."""
        return SyncView(self)

    @overload
    def spawn(
        self: Definition[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> Handle[T]: ...
    @overload
    def spawn(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]: ...
    def spawn(self, *args: Any, **kwargs: Any) -> Handle[Any]:
        """Give a step to any worker, or start a workflow as a child run.

        The handle gives the result: `handle.result()`, `await handle`.
        """
        frame = current_frame(self.name)
        if frame is None:
            raise NotInRun(f"{self.name}.spawn()")
        handle: Handle[Any] = frame.spawn(self, [(args, kwargs)])[0]
        return handle

    def _check_queue(self, queue: Any, priority: Any) -> None:
        problem = queue_problem(queue, priority)
        if problem is not None:
            raise self._error(problem)

    def _error(self, what: str) -> DefinitionError:
        code = getattr(self.function, "__code__", None)
        where = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
        return DefinitionError(f"{self.kind} {self.name!r}{where} {what}")


class Step(Definition[P, R]):
    """A function whose result is remembered; see `detent.step`."""

    kind = "step"

    def __init__(
        self,
        function: Callable[P, R],
        *,
        id: str | None = None,
        retry: Retry | None = None,
        timeout: timedelta | float | None = None,
        on_exception: Any = None,
        transactional: bool = False,
        executor: Executor = "thread",
        strict: bool = False,
        queue: str | None = None,
        priority: int | None = None,
        node: NodeOptions = _PLAIN,
    ) -> None:
        super().__init__(function, id)
        self.is_method = _is_method(function)
        self.node = node
        if self.is_method:
            on_exception = self._check_node(executor, id)
        else:
            on_exception = "raise" if on_exception is None else on_exception
            self._check_plain(on_exception)
        if retry is not None and not isinstance(retry, Retry):
            raise self._error(f"has retry={retry!r}; write retry=detent.Retry(attempts=...)")
        self.timeout = self._seconds(timeout)
        self._check_queue(queue, priority)
        if executor not in ("thread", "process"):
            raise self._error(f"has executor={executor!r}; it is 'thread' or 'process'")
        if executor == "process":
            self._check_process(transactional)
        if transactional and self.timeout is not None and not self.is_async:
            raise self._error(
                "is transactional and a `def`: its thread cannot be stopped in the middle of a transaction, "
                "so it takes no timeout; make it `async def`, or set a statement timeout in it"
            )
        if transactional and len(self._parameters) <= self.is_method:
            raise self._error("is transactional, so its first parameter must be the transaction, tx")
        self.retry = retry or (REATTEMPT if on_exception == "reattempt" else NO_RETRY)
        self.on_exception = on_exception
        self.transactional = transactional
        self.executor = executor
        self.strict = strict
        self.queue = queue
        self.priority = priority
        self.compensation: Step[Any, Any] | None = None

    def _check_plain(self, on_exception: Any) -> None:
        if on_exception not in ACTIONS:
            raise self._error(f"has on_exception={on_exception!r}; it is one of {', '.join(ACTIONS)}")
        if not self.node.chained or self.node.given:
            what = ", ".join(f"{name}=" for name in self.node.given) or "@task"
            raise self._error(f"is no method of a Workflow class: {what} is for nodes of those")

    def _seconds(self, timeout: Any) -> float | None:
        if timeout is None:
            return None
        if isinstance(timeout, timedelta):
            timeout = timeout.total_seconds()
        if isinstance(timeout, bool) or not isinstance(timeout, int | float):
            raise self._error(f"has timeout={timeout!r}; write timedelta(minutes=5), or a number of seconds")
        if not timeout > 0:  # NaN neither
            raise self._error(f"has timeout={timeout!r}; it must be more than nothing")
        return float(timeout)

    def _check_node(self, executor: str, id: str | None) -> str:
        if id is not None:
            raise self._error(f"is a method, and its node is called like it: rename it rather than id={id!r}")
        if executor == "process":
            raise self._error("is a method: another process cannot have its object; use job=a_step instead")
        return "raise"  # what becomes of it is decided by policies

    # In a Workflow class a step is a method: `self.validate()` just calls it.
    @overload
    def __get__(self, instance: None, owner: Any = None) -> Self: ...
    @overload
    def __get__(
        self: Step[Concatenate[Any, Q], T], instance: object, owner: Any = None
    ) -> Callable[Q, T]: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None or not self.is_method:
            return self
        return MethodType(self.function, instance)

    def _check_process(self, transactional: bool) -> None:
        first = self._parameters[0].annotation if self._parameters else None
        context = self.accepts("ctx") or first in (Context, "Context", "detent.Context")
        if self.is_async or transactional or context:
            raise self._error(
                "runs in another process, so it cannot be async or transactional, or take a ctx"
            )
        if "<" in self.__qualname__:  # <locals>, <lambda>
            raise self._error(
                "runs in another process, which finds it by its name; define it at the top level of a module"
            )

    @cached_property
    def given_by_engine(self) -> int:
        return int(self.wants_context) + int(self.transactional) + int(self.is_method)

    def routine(self, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Routine[Any]:
        return frame.call(self, args, kwargs)

    @overload
    def map(  # type: ignore[overload-overlap]
        self: Step[P, Coroutine[Any, Any, T]], items: Iterable[Any]
    ) -> Awaitable[list[T]]: ...
    @overload
    def map(self, items: Iterable[Any]) -> list[R]: ...
    def map(self, items: Iterable[Any]) -> Any:
        """Spawn one for each item, and return the results in order (awaitable for an async step)."""
        return self.aio.map(items) if self.is_async else self.sync.map(items)

    def compensate_with(self, compensation: Step[Any, Any]) -> Step[P, R]:
        """Undo this step with another one, when the workflow fails or is canceled.

        The compensation is called with the step's arguments; a parameter named
        `result` receives the step's result.
        """
        if self.is_method:
            raise self._error("is a node of a graph, which has no compensation; add a node that undoes it")
        if not isinstance(compensation, Step):
            raise self._error(f"cannot be compensated with {compensation!r}; decorate it with @step")
        self.compensation = compensation
        return self


class FunctionWorkflow(Definition[P, R]):
    """A durable function; see `detent.workflow`."""

    kind = "workflow"

    def __init__(
        self,
        function: Callable[P, R],
        *,
        id: str | None = None,
        on_exception: Literal["fail", "pause"] = "fail",
        queue: str | None = None,
        priority: int | None = None,
        strict: bool = False,
    ) -> None:
        super().__init__(function, id)
        if on_exception not in ("fail", "pause"):
            raise self._error(f"has on_exception={on_exception!r}; it is 'fail' or 'pause'")
        self._check_queue(queue, priority)
        self.on_exception = on_exception
        self.queue = queue
        self.priority = priority
        self.strict = strict

    def routine(self, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Routine[Any]:
        return frame.child(self, args, kwargs)


class AsyncView(Generic[P, R]):
    """A definition as async code calls it."""

    def __init__(self, definition: Definition[P, R]) -> None:
        self._definition = definition

    @overload
    def __call__(
        self: AsyncView[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]: ...
    @overload
    def __call__(self: AsyncView[P, T], *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        definition = self._definition
        frame = current_frame(definition.name)
        if frame is None:
            return _call_plainly(definition.function, args, kwargs)
        return frame.adrive(definition.routine(frame, args, kwargs))

    async def map(self, items: Iterable[Any]) -> list[Any]:
        """Spawn one for each item; the results in order."""
        frame = current_frame(self._definition.name)
        if frame is None:
            return [await _call_plainly(self._definition.function, (item,), {}) for item in items]
        handles = frame.spawn(self._definition, [((item,), {}) for item in items])
        return await frame.adrive(frame.gathered(handles))


class SyncView(Generic[P, R]):
    """A definition as sync code calls it."""

    def __init__(self, definition: Definition[P, R]) -> None:
        self._definition = definition

    @overload
    def __call__(self: SyncView[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def __call__(self: SyncView[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        definition = self._definition
        frame = current_frame(definition.name)
        if frame is None:
            value = definition.function(*args, **kwargs)
            return _run_plainly(value) if definition.is_async else value
        _refuse_on_loop(frame, definition.name, "call")
        return frame.drive(definition.routine(frame, args, kwargs))

    def map(self, items: Iterable[Any]) -> list[Any]:
        """Spawn one for each item; the results in order."""
        frame = current_frame(self._definition.name)
        if frame is None:
            view: Any = self
            return [view(item) for item in items]
        _refuse_on_loop(frame, self._definition.name, "map")
        handles = frame.spawn(self._definition, [((item,), {}) for item in items])
        return frame.drive(frame.gathered(handles))


class Handle(Generic[T]):
    """Work that was given away, and its result to come."""

    def __init__(self, frame: Frame, key: str, topic: str, definition: Any, run_id: str | None) -> None:
        self._frame = frame
        self.key = key
        self.topic = topic
        self.definition = definition
        self.run_id = run_id  # of the child run; None for a spawned step

    def result(self) -> T:
        """Wait for the result; the worker is free meanwhile."""
        _refuse_on_loop(self._frame, self.key, "wait for")
        return cast(T, self._frame.drive(self._frame.gathered([self]))[0])

    def __await__(self) -> Generator[Any, None, T]:
        async def wait() -> T:
            return cast(T, (await self._frame.adrive(self._frame.gathered([self])))[0])

        return wait().__await__()


@overload
def step(function: Callable[P, R], /) -> Step[P, R]: ...
@overload
def step(  # type: ignore[overload-overlap]
    *,
    transactional: Literal[True],
    id: str | None = None,
    retry: Retry | None = None,
    timeout: timedelta | float | None = None,
    on_exception: OnException = "raise",
    strict: bool = False,
    queue: str | None = None,
    priority: int | None = None,
) -> Callable[[Callable[Concatenate[Any, P], R]], Step[P, R]]: ...
@overload
def step(
    *,
    id: str | None = None,
    retry: Retry | None = None,
    timeout: timedelta | float | None = None,
    on_exception: OnException = "raise",
    transactional: bool = False,
    executor: Executor = "thread",
    strict: bool = False,
    queue: str | None = None,
    priority: int | None = None,
) -> StepMaker: ...
@overload
def step(
    *,
    wait: timedelta | float | None = None,
    skip_if: Condition | None = None,
    only_if: Condition | None = None,
    before_step: Any = None,
    after_step: Any = None,
    depends_on: Any = ...,
    also_depends_on: Any = (),
    job: Any = None,
    args: Mapping[str, Any] | Callable[[Any], Mapping[str, Any]] | None = None,
    on_exception: NodeAction | ExceptionPolicy | Sequence[ExceptionPolicy] | None = None,
    retry: Retry | None = None,
    timeout: timedelta | float | None = None,
    queue: str | None = None,
    priority: int | None = None,
) -> StepMaker: ...
def step(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a function a step: called at least once, its result is remembered, and it is not called again.

        @step(retry=detent.Retry(attempts=5), timeout=30)
        def charge(order_id: int) -> str: ...

    `transactional=True` gives it a first parameter `tx`, a transaction of the same
    database: its writes and its record commit together.  `executor="process"` runs
    it in another process.  `id` fixes its name over renames.

    In a `detent.Workflow` class it makes a method a node that follows the step before it;
    the options for that are in the guide.
    """
    if function is not None:
        return Step(function)
    return StepMaker(options, chained=True)


class StepMaker:
    """`step(...)` with options, waiting for its function.  With `job=` a class needs none."""

    def __init__(self, options: dict[str, Any], *, chained: bool) -> None:
        known = set(NodeOptions.__struct_fields__) - {"chained"}
        given = {name: value for name, value in options.items() if name in known}
        self.node = NodeOptions(chained=chained, **given)
        self._options = {name: value for name, value in options.items() if name not in known}
        caller = sys._getframe(2)
        self.place = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        if "on_exception" in given:
            self._options["on_exception"] = given["on_exception"]

    def __call__(self, function: Callable[P, R]) -> Step[P, R]:
        unknown = [name for name in self._options if name not in _STEP_OPTIONS]
        if unknown:
            known = ", ".join(sorted(_STEP_OPTIONS | set(NodeOptions.__struct_fields__) - {"chained"}))
            raise Step(function)._error(f"has no option {unknown[0]!r}; there are {known}")
        return Step(function, node=self.node, **self._options)


_STEP_OPTIONS = set(inspect.signature(Step.__init__).parameters) - {"self", "function", "node"}


@overload
def workflow(function: Callable[P, R], /) -> FunctionWorkflow[P, R]: ...
@overload
def workflow(
    *,
    id: str | None = None,
    on_exception: Literal["fail", "pause"] = "fail",
    queue: str | None = None,
    priority: int | None = None,
    strict: bool = False,
) -> Callable[[Callable[P, R]], FunctionWorkflow[P, R]]: ...
def workflow(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a function durable: whatever crashes, it goes on from the last step that it finished.

    Code outside of steps may run again; it needs no determinism beyond asking for
    the same steps.  `strict=True` makes other arguments than recorded an error.
    """
    if function is not None:
        return FunctionWorkflow(function)
    return lambda function: FunctionWorkflow(function, **options)


def _refuse_on_loop(frame: Frame, name: str, verb: str) -> None:
    if frame.loop_thread == threading.get_ident():
        hint = (
            f"await {name}.aio(...)" if verb == "call" else f"await {name}.aio.map(...), or await the handle"
        )
        raise BlockingCall(name, hint)


async def _call_plainly(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = function(*args, **kwargs)
    return await value if inspect.isawaitable(value) else value


def _run_plainly(value: Any) -> Any:
    import asyncio  # dear to load, and rarely wanted here

    return asyncio.run(value)


def _is_method(function: Any) -> bool:
    """Whether a function stands in the body of a class, and is called with its object."""
    owner, _, _ = getattr(function, "__qualname__", "").rpartition(".")
    if not owner or owner.endswith("<locals>"):
        return False
    return next(iter(inspect.signature(function).parameters), None) == "self"


def _check_name(kind: str, name: str) -> None:
    if not name or len(name) > LONGEST_NAME or not name.isprintable() or any(c in name for c in "#/:"):
        raise DefinitionError(
            f"{kind} name {name!r} is no good: 1 to {LONGEST_NAME} printable characters, "
            f"without '#', '/' and ':'"
        )


def _decodable(hint: Any) -> Any:
    if hint is None or hint is type(None):
        return None
    return hint if decodable(hint) else Any
