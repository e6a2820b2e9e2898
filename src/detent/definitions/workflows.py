"""Graph workflows as classes: `Workflow`, `task`, `cancel_if`, `on_exception`, `job_options`.

The class body only collects declarations.  When it ends, blueprint.py builds the graph, or
raises an error.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, ClassVar, ParamSpec, TypeVar, Unpack, dataclass_transform, overload

from ..arguments import check_duration
from ..clock import span_micros
from ..errors import DefinitionError, InvalidOption, InvalidState
from ..kernel.policies import ExceptionPolicy, Matcher, Retry
from ..keywords import shows
from .blueprint import Blueprint, Body, blueprint
from .context import Context, FlowControl, RunInfo, current_step
from .decorators import NODE_DEFAULTS, NodeKeywords, StepMaker
from .functions import Step
from .node_options import (
    Condition,
    NodeAction,
    NodeOptions,
    check_condition,
    check_queue_and_priority,
)

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Condition)


class TaskKeywords(NodeKeywords, total=False):
    """The keywords of `@task(...)`."""

    on_exception: NodeAction | ExceptionPolicy | Sequence[ExceptionPolicy] | None
    transactional: bool


@overload
def task(function: Callable[P, R], /) -> Step[P, R]: ...
@overload
def task(**options: Unpack[TaskKeywords]) -> StepMaker: ...
@shows(TaskKeywords, defaults={**NODE_DEFAULTS, "depends_on": ()})
def task(function: Callable[..., Any] | None = None, /, **options: Unpack[TaskKeywords]) -> Any:
    """Make a method a node that depends only on the nodes that it names.

    @task(depends_on="validate")
    def check_fraud(self) -> None: ...
    """
    if function is not None and not callable(function):
        raise DefinitionError(f"@task({function!r}): write @task(depends_on={function!r})")
    if function is not None:
        return Step(function, node=NodeOptions(chained=False))
    return StepMaker(options, chained=False)


def cancel_if(condition: F, /) -> F:
    """Cancel the run if this is true before one of its nodes; a decorator of a method.

        @cancel_if
        def account_closed(self) -> bool:
            return self.hero.closed

    `cancel_if("account_closed")` and `cancel_if(lambda self: ...)` in the body do the same.
    """
    body = _body_of("cancel_if", sys._getframe(1).f_locals)
    problem = check_condition("cancel_if", condition)
    if problem is not None:
        raise DefinitionError(problem)
    body.conditions.append(condition)
    return condition


def on_exception(
    *on: Matcher,
    action: NodeAction,
    max_reattempts: int | None = 100,
    wait: timedelta | float | None = None,
    backoff: Retry | None = None,
    then: str = "pause",
) -> None:
    """Set the exception policy of the nodes of this class that have none of their own.

    on_exception(ConnectionError, "httpx.HTTPError", action="reattempt", max_reattempts=5)
    on_exception(action="cancel")       # for every other exception
    """
    body = _body_of("on_exception", sys._getframe(1).f_locals)
    body.policies.append(
        ExceptionPolicy(action, on=on, max_reattempts=max_reattempts, wait=wait, backoff=backoff, then=then)
    )


def job_options(*, queue: str | None = None, priority: int | None = None) -> None:
    """Set the queue and the priority of the nodes of this class that have none of their own.

    class Report(detent.Workflow):
        job_options(queue="reports", priority=-5)
    """
    body = _body_of("job_options", sys._getframe(1).f_locals)
    check_queue_and_priority("job_options()", queue, priority)
    given = {"queue": queue, "priority": priority}
    body.job_options.update({name: value for name, value in given.items() if value is not None})


def _body_of(what: str, namespace: Any) -> Body:
    """The class body that a call stands in: its locals are the namespace that we prepared."""
    if not isinstance(namespace, Body):
        raise DefinitionError(f"{what}() belongs in the body of a Workflow class")
    return namespace


@dataclass_transform(kw_only_default=True)
class WorkflowType(type):
    """Makes workflow classes: compiles the graph when the body ends."""

    __blueprint__: Blueprint

    @classmethod
    def __prepare__(cls, name: str, bases: tuple[type, ...], /, **kwargs: Any) -> Body:
        return Body()

    def __new__(
        cls,
        class_name: str,
        bases: tuple[type, ...],
        body: dict[str, Any],
        *,
        name: str | None = None,
        pin: bool = False,
    ) -> Any:
        made = super().__new__(cls, class_name, bases, dict(body))
        assert isinstance(body, Body)
        made.__blueprint__ = Blueprint(made, class_name if name is None else name, body, pin=pin)
        return made

    def __init__(cls, class_name: str, bases: tuple[type, ...], body: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(class_name, bases, body)

    def __repr__(cls) -> str:
        return repr(cls.__blueprint__)


class Workflow(metaclass=WorkflowType):
    """A graph workflow: its nodes are methods, its fields are its inputs.

        class OrderWorkflow(detent.Workflow):
            order_id: int

            @step
            def validate(self) -> None: ...

            @task(depends_on="validate")
            def check_fraud(self) -> None: ...

        app.options(hero=user).start(OrderWorkflow, order_id=123)

    Nodes that do not depend on each other run at the same time, on any worker.  They
    share data by storing it elsewhere, not on `self`.
    """

    may_proceed_without_hero: ClassVar[bool] = False
    hero: Any = None

    def __init__(self, **fields: Any) -> None:
        hero = fields.pop("hero", None)
        vars(self).update(blueprint(type(self)).checked_fields(fields), hero=hero)

    def __setattr__(self, name: str, value: Any) -> None:
        self._refuse_change(name)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        self._refuse_change(name)
        super().__delattr__(name)

    def _refuse_change(self, name: str) -> None:
        if name in blueprint(type(self)).fields:
            raise AttributeError(
                f"{type(self).__name__}.{name} is an input of the run and cannot be changed: other nodes, on "
                f"other machines, would not see it; store the value where they can read it"
            )

    # What runs it knows of

    @property
    def ctx(self) -> Context:
        """The context of the running node: attempt, logger, heartbeat, idempotency_key, iterate."""
        return self._executing("read the ctx of")

    @property
    def run(self) -> RunInfo:
        """The run that this node belongs to: its id, type and parent."""
        return self.ctx.run

    # Flow control

    def cancel(self) -> typing.NoReturn:
        """End this node and cancel the run."""
        self._leave(FlowControl("cancel"))

    def pause(self, *, after: bool = False) -> typing.NoReturn:
        """Pause the run; on resume this node runs again, or with `after=True` the next nodes run."""
        self._leave(FlowControl("pause", after=after))

    def skip(self) -> typing.NoReturn:
        """End this node as skipped; the run continues."""
        self._leave(FlowControl("skip"))

    def reattempt(self, *, wait: timedelta | float = 0) -> typing.NoReturn:
        """End this attempt; the node runs again after `wait`."""
        span = check_duration("self.reattempt()", "wait", wait, error=InvalidOption)
        self._leave(FlowControl("reattempt", wait=span_micros(span)))

    def finished(self, result: Any = None) -> typing.NoReturn:
        """End the run now with a value; scheduled nodes are canceled."""
        self._leave(FlowControl("finished", result=result))

    def _leave(self, signal: FlowControl) -> typing.NoReturn:
        self._executing("finish" if signal.verb == "finished" else signal.verb)
        raise signal

    def _executing(self, verb: str) -> Context:
        """The context of the node that runs here and now, of this very run."""
        mine: Context | None = self.__dict__.get("_ctx")
        if mine is None or current_step() is not mine:
            run = mine.run.id if mine is not None else type(self).__name__
            raise InvalidState(verb, run, "not executing a node here", "call it in a node's body")
        return mine

    # Hooks, to be overridden; one that raises counts as the node raising

    def before_step_starts(self, name: str) -> Any:
        """Called before every node that is not skipped."""

    def before_step(self, name: str) -> Any:
        """Called directly before the body of a node."""

    def after_step(self, name: str) -> Any:
        """Called after the body of a node has returned."""

    def around_step(self, name: str) -> AbstractContextManager[Any]:
        """A context manager around the body of a node (it can be async for `async def` nodes)."""
        return nullcontext()
