"""The decorators `@step` and `@workflow`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from ..arguments import refuse_unknown
from ..errors import InvalidOption
from ..kernel.policies import ExceptionPolicy, Retry
from .functions import Executor, FunctionWorkflow, NodeAction, OnException, Step
from .node_options import Condition, NodeOptions
from .transactional import Isolation

P = ParamSpec("P")
R = TypeVar("R")


@overload
def step(function: Callable[P, R], /) -> Step[P, R]: ...
@overload
def step(  # type: ignore[overload-overlap]
    *,
    transactional: Literal[True],
    isolation: Isolation | None = None,
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
    database: its writes and its record commit together.  `isolation` is that of the
    transaction; without it the database's default holds.  `executor="process"` runs it
    in another process.  `id` fixes its name over renames.

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
        if not self._options.keys() <= _STEP_OPTIONS:
            known = _STEP_OPTIONS | set(NodeOptions.__struct_fields__) - {"chained"}
            where = Step(function).place
            refuse_unknown(
                where, self._options, known, kind="option", instead=_STEP_INSTEAD, error=InvalidOption
            )
        return Step(function, node=self.node, **self._options)


_STEP_OPTIONS = set(inspect.signature(Step.__init__).parameters) - {"self", "function", "node"}
_STEP_INSTEAD = {
    "name": "to give a name, write id='charge'",
    "retries": "write retry=detent.Retry(attempts=5)",
    "attempts": "write retry=detent.Retry(attempts=5)",
    "max_attempts": "write retry=detent.Retry(attempts=5)",
    "deadline": "write timeout=30 to limit each attempt at the step",
}
_WORKFLOW_OPTIONS = set(inspect.signature(FunctionWorkflow.__init__).parameters) - {"self", "function"}
_WORKFLOW_INSTEAD = {
    "name": "to give a name, write id='fulfil'",
    "timeout": "limit a run with app.options(deadline=timedelta(hours=1)), and a step with @step(timeout=30)",
    "deadline": "a deadline belongs to one run: app.options(deadline=timedelta(hours=1)).start(...)",
    "retry": "only steps are retried: @step(retry=detent.Retry(attempts=5))",
}


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
    refuse_unknown(
        "@workflow()",
        options,
        _WORKFLOW_OPTIONS,
        kind="option",
        instead=_WORKFLOW_INSTEAD,
        error=InvalidOption,
    )
    return lambda function: FunctionWorkflow(function, **options)
