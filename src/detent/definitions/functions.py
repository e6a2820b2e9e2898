"""Durable functions: the classes behind `@step` and `@workflow`.

A definition is a plain object around a function.  Outside a run, a call of it is a plain
call of the function.  Inside a run, the frame of the run executes and records the call,
or answers it from the journal.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta
from functools import cached_property
from types import MethodType
from typing import Any, Concatenate, Literal, NoReturn, ParamSpec, Protocol, Self, TypeVar, Unpack, overload

from ..arguments import check_flag, check_positive_duration, refuse
from ..errors import DefinitionError, InvalidOption, NotInRun
from ..kernel.policies import ACTIONS, NO_RETRY, REATTEMPT, Retry
from ..keywords import shows
from ..serialization.signatures import RETURN, Signature, type_of_call
from .awaitables import refuse_without_loop, watched
from .callers import AsyncCaller, Handle, Spawner, SyncCaller, Wraps, refuse_on_loop
from .child_options import CHILD_DEFAULTS, ChildKeywords, ChildOptions, checked_child_options
from .context import Call, Context, Frame, current_frame
from .maps import Maps
from .node_options import KeyOption, NodeOptions, check_key_option, check_queue_and_priority
from .transactional import Isolation, problem_of

P = ParamSpec("P")
Q = ParamSpec("Q")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)

OnException = Literal["raise", "pause", "cancel", "skip", "reattempt"]
Executor = Literal["thread", "process"]
_PLAIN = NodeOptions()
LONGEST_NAME = 200


class HasNodes(Protocol):
    """An object of a `detent.Workflow` class, whose steps are methods."""

    def reattempt(self, *, wait: timedelta | float = 0) -> NoReturn: ...


class Definition(Spawner[P, R_co]):
    """A function with a name, and what its signature tells."""

    kind = ""

    def __init__(self, function: Callable[P, R_co], name: str | None) -> None:
        _check_function(self.kind, function)
        self.function = function
        self.name = name if name is not None else function.__name__
        self.is_async: bool = inspect.iscoroutinefunction(function)
        _check_name(self.kind, self.name)
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise self._error("is a generator; return a list, or publish() the items")
        self._signature = inspect.signature(function)
        self._parameters = list(self._signature.parameters.values())
        self.types = Signature(function)
        self._parameters_checked = False
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self.__qualname__ = function.__qualname__
        self.__module__ = function.__module__
        self.__wrapped__ = function

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name}>"

    @cached_property
    def returns(self) -> Any:
        """The type that results are decoded to."""
        self.check_types()
        return self.types.type_of(RETURN)

    def check_types(self, *, complete: bool = True) -> None:
        """Raise DefinitionError if a value that is stored could not be read back as annotated."""
        problem = self.types.problem(self._stored, complete=complete)
        if problem is not None:
            raise self._error(problem)

    @property
    def _stored(self) -> list[str]:
        """What is always read back from the database: the result, and the parameters of a workflow."""
        return [RETURN]

    @cached_property
    def wants_context(self) -> bool:
        """Whether a first parameter `ctx`, or one annotated `detent.Context`, asks for the context."""
        if not self._parameters:
            return False
        first = self._parameters[0]
        return first.name == "ctx" or self.types.known_hint(first.name) is Context

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
        """The parameters that need a value."""
        several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        return [p.name for p in self.own_parameters if p.default is p.empty and p.kind not in several]

    def argument_types(self, count: int, names: tuple[str, ...]) -> tuple[list[Any], dict[str, Any]]:
        """The types that stored arguments are decoded to."""
        return self.types.of_call(self.own_parameters, count, names)

    @cached_property
    def stored_call(self) -> Any:
        """A type that decodes a stored call at once; None where its arguments can differ in number or form.

        One by one, they take five times as long.
        """
        count = self._plain_arity
        if count < 0 or self.has_forms or any(p.default is not p.empty for p in self.own_parameters):
            return None
        return type_of_call(self.argument_types(count, ())[0])

    @cached_property
    def own_parameters(self) -> list[inspect.Parameter]:
        """The parameters that the caller gives."""
        return self._parameters[self.given_by_engine :]

    def check_parameters(self) -> None:
        """Raise DefinitionError if an argument could not be read back by the worker that makes the call."""
        if not self._parameters_checked:
            problem = self.types.problem([p.name for p in self.own_parameters], complete=True)
            if problem is not None:
                raise self._error(problem)
            self._parameters_checked = True

    @cached_property
    def has_forms(self) -> bool:
        """Whether an argument is stored in another form than msgspec gives it."""
        return any(self.types.has_form(p.name) for p in self.own_parameters)

    # A ctx may be passed on, or left to the engine.
    @overload
    def __call__(
        self: Wraps[Callable[Concatenate[Context, Q], T]], *args: Q.args, **kwargs: Q.kwargs
    ) -> T: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        frame = current_frame(self.name)
        if frame is None:
            return self.function(*args, **kwargs)
        if self.is_async:
            if frame.loop_thread is None:
                refuse_without_loop(frame, self.name, f"{self.name}.sync(...)")
            return watched(frame, self.name, frame.adrive(self.routine(frame, args, kwargs)))
        if frame.loop_thread is not None:
            refuse_on_loop(frame, self.name, "call")
        return frame.drive(self.routine(frame, args, kwargs))

    def routine(self, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call[Any]:
        """What calling it inside of a run comes to."""
        raise NotImplementedError

    @property
    def aio(self) -> AsyncCaller[P, R_co]:
        """The same from async code: `await charge.aio(42)`, `await charge.aio.map(ids)`."""
        return AsyncCaller(self)

    @property
    def sync(self) -> SyncCaller[P, R_co]:
        """The same from sync code: `fetch.sync(url)`, `fetch.sync.map(urls)`."""
        return SyncCaller(self)

    def _spawn(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Handle[Any]:
        frame = current_frame(self.name)
        if frame is None:
            raise NotInRun(f"{self.name}.spawn()")
        handle: Handle[Any] = frame.spawn(self, [(args, kwargs)])[0]
        return handle

    @property
    def place(self) -> str:
        """What it is, and where it is defined, for messages: `step 'charge' (shop.py:12)`."""
        code = getattr(self.function, "__code__", None)
        where = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
        return f"{self.kind} {self.name!r}{where}"

    def _error(self, what: str) -> DefinitionError:
        return DefinitionError(f"{self.place} {what}")


class Step(Definition[P, R_co], Maps):
    """A function whose result is remembered; see `detent.step`.

    @step
    def charge(order_id: int) -> str: ...

    handle = charge.spawn(42)  # in a workflow
    """

    kind = "step"

    def __init__(
        self,
        function: Callable[P, R_co],
        *,
        id: str | None = None,
        retry: Retry | None = None,
        timeout: timedelta | float | None = None,
        on_exception: Any = None,
        transactional: bool = False,
        isolation: Isolation | None = None,
        executor: Executor = "thread",
        strict: bool = False,
        queue: str | None = None,
        key: KeyOption = None,
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
        check_queue_and_priority(self.place, queue, priority)
        self.key = check_key_option(self.place, key)
        for option, value in (("transactional", transactional), ("strict", strict)):
            check_flag(self.place, option, value, error=InvalidOption)
        if executor not in ("thread", "process"):
            raise self._error(f"has executor={executor!r}; it is 'thread' or 'process'")
        if executor == "process":
            self._check_process(transactional)
        problem = problem_of(self, len(self._parameters), transactional, isolation)
        if problem is not None:
            raise self._error(problem)
        self.isolation = isolation
        self.retry = retry or (REATTEMPT if on_exception == "reattempt" else NO_RETRY)
        self.on_exception = on_exception
        self.transactional = transactional
        self.executor = executor
        self.strict = strict
        self.queue = queue
        self.priority = priority
        self.compensation: Step[Any, Any] | None = None
        self.check_types(complete=False)

    @property
    def _stored(self) -> list[str]:
        return [] if self.is_method else [RETURN]  # the results of nodes are read as JSON

    def _check_plain(self, on_exception: Any) -> None:
        if on_exception not in ACTIONS:
            raise self._error(f"has on_exception={on_exception!r}; it is one of {', '.join(ACTIONS)}")
        if not self.node.chained or self.node.given:
            what = ", ".join(f"{name}=" for name in self.node.given) or "@task"
            raise self._error(f"is not a method of a Workflow class: {what} is only for nodes of those")

    def _seconds(self, timeout: Any) -> float | None:
        if timeout is None:
            return None
        return check_positive_duration(self.place, "timeout", timeout, error=InvalidOption).total_seconds()

    def _check_node(self, executor: str, id: str | None) -> str:
        if id is not None:
            raise self._error(f"is a method, and its node has its name: rename it instead of id={id!r}")
        if executor == "process":
            raise self._error("is a method, which another process cannot call; use job=a_step instead")
        return "raise"  # what becomes of it is decided by policies

    # In a Workflow class a step is a method: `self.validate()` just calls it.
    @overload
    def __get__(self, instance: None, owner: Any = None) -> Self: ...
    @overload
    def __get__(
        self: Step[Concatenate[Any, Q], T], instance: HasNodes, owner: Any = None
    ) -> Callable[Q, T]: ...
    @overload
    def __get__(self, instance: object, owner: Any = None) -> Self: ...
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

    def routine(self, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call[Any]:
        return frame.call(self, args, kwargs)

    def compensate_with(self, compensation: Step[Any, Any]) -> Step[P, R_co]:
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


class FunctionWorkflow(Definition[P, R_co]):
    """A durable function; see `detent.workflow`.

    @workflow
    def fulfil(order_id: int) -> str: ...

    run = app.start(fulfil, 42)
    """

    kind = "workflow"

    def __init__(
        self,
        function: Callable[P, R_co],
        *,
        id: str | None = None,
        on_exception: Literal["fail", "pause"] = "fail",
        queue: str | None = None,
        priority: int | None = None,
        strict: bool = False,
        pin: bool = False,
    ) -> None:
        super().__init__(function, id)
        if on_exception not in ("fail", "pause"):
            raise self._error(f"has on_exception={on_exception!r}; it is 'fail' or 'pause'")
        check_queue_and_priority(self.place, queue, priority)
        check_flag(self.place, "strict", strict, error=InvalidOption)
        check_flag(self.place, "pin", pin, error=InvalidOption)
        self.on_exception = on_exception
        self.queue = queue
        self.priority = priority
        self.strict = strict
        self.pin = pin
        self.check_types(complete=False)

    @property
    def _stored(self) -> list[str]:
        return [*(p.name for p in self.own_parameters), RETURN]

    def routine(self, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call[Any]:
        return frame.child(self, args, kwargs)

    @shows(ChildKeywords, defaults=CHILD_DEFAULTS)
    def options(self, **options: Unpack[ChildKeywords]) -> Child[P, R_co]:
        """The same workflow as a child run with an id, a deadline, a queue, a priority, attributes."""
        return Child(self, checked_child_options(self.name, options))


class Child(Spawner[P, R_co]):
    """A workflow with the options of the child run that a call starts; see `FunctionWorkflow.options`.

    child = ship.options(id="ship-42", queue="mail")
    label = child(42)
    """

    def __init__(self, workflow: FunctionWorkflow[P, R_co], options: ChildOptions) -> None:
        self._workflow = workflow
        self._options = options

    @property
    def function(self) -> Callable[P, R_co]:
        """The workflow's function as it was written."""
        return self._workflow.function

    def __repr__(self) -> str:
        return f"{self._workflow!r}.options(...)"

    @overload
    def __call__(
        self: Wraps[Callable[Concatenate[Context, Q], T]], *args: Q.args, **kwargs: Q.kwargs
    ) -> T: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        view: Any = self.aio if self._workflow.is_async else self.sync
        return view(*args, **kwargs)

    @property
    def aio(self) -> AsyncCaller[P, R_co]:
        """The same from async code: `await ship.options(id="ship-42").aio(order)`."""
        return AsyncCaller(self._workflow, self._options)

    @property
    def sync(self) -> SyncCaller[P, R_co]:
        """The same from sync code: `ship.options(id="ship-42").sync(order)`."""
        return SyncCaller(self._workflow, self._options)

    def _spawn(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Handle[Any]:
        frame = current_frame(self._workflow.name)
        if frame is None:
            raise NotInRun(f"{self._workflow.name}.options(...).spawn()")
        handle: Handle[Any] = frame.spawn(self._workflow, [(args, kwargs)], self._options)[0]
        return handle


def _is_method(function: Any) -> bool:
    """Whether a function stands in the body of a class, and is called with its object."""
    owner, _, _ = getattr(function, "__qualname__", "").rpartition(".")
    if not owner or owner.endswith("<locals>"):
        return False
    return next(iter(inspect.signature(function).parameters), None) == "self"


def _check_function(kind: str, function: Any) -> None:
    if isinstance(function, str):
        advice = f"to give the {kind} a name, write @{kind}(id={function!r})"
        raise DefinitionError(f"@{kind}({function!r}) is not accepted: {advice}")
    if isinstance(function, Definition):
        raise DefinitionError(
            f"{function.place} is decorated with @{kind} as well; a function is a step or a workflow, "
            f"not both: remove one of the two decorators"
        )
    if not callable(function) or isinstance(function, type | staticmethod | classmethod):
        raise DefinitionError(f"@{kind} decorates a function, not {function!r}")
    if not hasattr(function, "__name__"):
        raise DefinitionError(
            f"@{kind} decorates a function with a name, not {function!r}; "
            f"call it in a named function: def charge(...): ..."
        )


def _check_name(kind: str, name: Any) -> None:
    if not isinstance(name, str):
        refuse(f"@{kind}()", "id", name, "give a text, for example id='charge'", InvalidOption)
    if not name or len(name) > LONGEST_NAME or not name.isprintable() or any(c in name for c in "#/:"):
        raise DefinitionError(
            f"{kind} name {name!r} is invalid: use 1 to {LONGEST_NAME} printable characters, "
            f"without '#', '/' and ':'"
        )
