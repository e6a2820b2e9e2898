"""The decorators `@step` and `@workflow`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Concatenate, Literal, ParamSpec, TypedDict, TypeVar, Unpack, overload

from ..arguments import refuse_unknown
from ..errors import InvalidOption
from ..kernel.policies import ExceptionPolicy, Retry
from ..keywords import defaults_of_parameters, shows
from .functions import Executor, FunctionWorkflow, OnException, Step
from .node_options import PREVIOUS, Condition, KeyOption, NodeOptions
from .transactional import Isolation

P = ParamSpec("P")
R = TypeVar("R")


class NodeKeywords(TypedDict, total=False):
    """The keywords that `@step(...)` and `@task(...)` share."""

    retry: Retry | None
    timeout: timedelta | float | None
    queue: str | None
    key: KeyOption
    priority: int | None
    wait: timedelta | float | None
    skip_if: Condition | None
    only_if: Condition | None
    depends_on: Any
    job: Any
    args: Mapping[str, Any] | Callable[[Any], Mapping[str, Any]] | None


class StepKeywords(NodeKeywords, total=False):
    """The keywords of `@step(...)`, apart from those that an overload of `step` names."""

    id: str | None
    strict: bool
    on_exception: OnException | ExceptionPolicy | Sequence[ExceptionPolicy] | None
    before_step: Any
    after_step: Any
    also_depends_on: Any


class WorkflowKeywords(TypedDict, total=False):
    """The keywords of `@workflow(...)`."""

    id: str | None
    on_exception: Literal["fail", "pause"]
    queue: str | None
    priority: int | None
    strict: bool
    pin: bool


NODE_DEFAULTS = {**defaults_of_parameters(NodeOptions), **defaults_of_parameters(Step.__init__)}
STEP_DEFAULTS = {**NODE_DEFAULTS, "depends_on": PREVIOUS}


@overload
def step(function: Callable[P, R], /) -> Step[P, R]: ...
@overload
def step(  # type: ignore[overload-overlap]
    *, transactional: Literal[True], isolation: Isolation | None = None, **options: Unpack[StepKeywords]
) -> Callable[[Callable[Concatenate[Any, P], R]], Step[P, R]]: ...
@overload
def step(
    *, transactional: bool = False, executor: Executor = "thread", **options: Unpack[StepKeywords]
) -> StepMaker: ...
@shows(StepKeywords, defaults=STEP_DEFAULTS)
def step(
    function: Callable[..., Any] | None = None,
    /,
    *,
    transactional: bool = False,
    isolation: Isolation | None = None,
    executor: Executor = "thread",
    **options: Unpack[StepKeywords],
) -> Any:
    """Make a function a step: it runs at least once, and after its result is recorded it does not run again.

        @step(retry=detent.Retry(attempts=5), timeout=30)
        def charge(order_id: int) -> str: ...

    `transactional=True` gives it a first parameter `tx`, a transaction of the same
    database: its writes and its record commit together.  `isolation` is the isolation
    level; the default is that of the database.  `executor="process"` runs it in another
    process.  `id` sets its name, so that you can rename the function.

    In a `detent.Workflow` class it makes a method a node that follows the previous step;
    docs/graphs.md lists the options.
    """
    if function is not None:
        return Step(function)
    own = {"transactional": transactional, "isolation": isolation, "executor": executor}
    return StepMaker({**own, **options}, chained=True)


class StepMaker:
    """`step(...)` with options, before it gets its function.  With `job=` a class needs no function.

    careful = step(retry=detent.Retry(attempts=5))
    charge = careful(charge_card)
    """

    def __init__(self, options: Mapping[str, Any], *, chained: bool) -> None:
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
    **options: Unpack[WorkflowKeywords],
) -> Callable[[Callable[P, R]], FunctionWorkflow[P, R]]: ...
@shows(WorkflowKeywords, defaults=defaults_of_parameters(FunctionWorkflow.__init__))
def workflow(function: Callable[..., Any] | None = None, /, **options: Unpack[WorkflowKeywords]) -> Any:
    """Make a function a durable workflow: after a crash, it continues from its last recorded step.

        @workflow
        def fulfil(order_id: int) -> str:
            return charge(order_id)

    Code outside steps can run again; a replay has to make the same durable calls.
    `strict=True` pauses a run that differs from its record in any way: other arguments (also
    with `on_drift="warn"`), or a recorded step that the code no longer calls.
    `pin=True`: only workers of the version that started a run continue it (`App(version=...)`).
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
