"""Nodes that are methods of a workflow class, or jobs in their place; conditions and hooks around them."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import cached_property, partial
from typing import Any

from ..definitions.blueprint import Blueprint
from ..definitions.context import Routine, Signal, step_var
from ..definitions.functions import Step
from ..definitions.graphs import plan_of
from ..definitions.workflows import Workflow
from ..errors import StepNotDefined
from ..kernel import rows
from ..kernel.policies import NO_RETRY, ExceptionPolicy, choose
from ..kernel.rows import Claimed
from ..kernel.settle import Ending, Outcome
from .carried_errors import Carried, acarry, carry
from .child_run import run_child
from .fields import decode_fields
from .node import NodeWork, with_function
from .requests import Ask
from .services import Services


class MethodNode(NodeWork):
    """A node that is a method of a class, or a job in its place."""

    def __init__(
        self, services: Services, claimed: Claimed, plan: Blueprint, steps: Iterable[rows.Step]
    ) -> None:
        super().__init__(services, claimed, claimed.node, steps)
        self.plan = plan
        self.declared = plan.nodes.get(claimed.node)
        if self.declared is not None:
            self.is_async = self.declared.step.is_async
            self.retry = self.declared.step.retry
            job = self.declared.options.job
            if isinstance(job, Step):
                self.is_async = job.is_async
                self.retry = job.retry if self.retry is NO_RETRY else self.retry

    def _perform(self) -> Routine[Ending | None]:
        if self.declared is None:
            raise StepNotDefined(self.claimed.run_id, self.claimed.type, self.claimed.node)
        instance, ending = yield Ask(partial(carry, self._before))
        if ending is not None:
            return ending  # type: ignore[no-any-return]
        job = self.declared.options.job
        if job is None:
            return (yield from self._call(self._hooked(self.declared.step, instance), (instance,), {}))
        kwargs = yield Ask(lambda: carry(self._arguments, instance, job))
        if isinstance(job, Step):
            if self.declared.step.timeout is not None:
                job = copy.copy(job)
                job.timeout = self.declared.step.timeout
            return (yield from self._call(self._hooked(job, instance), (), kwargs))
        return (yield from run_child(self, plan_of(job) or job, kwargs))

    def _before(self) -> tuple[Workflow | None, Ending | None]:
        """What is asked before a body runs, in the order of the law: hero, cancel_if, skip_if."""
        claimed, cls = self.claimed, self.plan.cls
        token = step_var.set(self.context)
        try:
            hero = None
            if claimed.hero_type is not None and claimed.hero_id is not None:
                hero = self._plainly(self.services.heroes.load, claimed.hero_type, claimed.hero_id)
                if hero is None and not cls.may_proceed_without_hero:  # type: ignore[attr-defined]
                    return None, self._end(Outcome.CANCELED_BY_MISSING_HERO)
            instance = self._instance(hero)
            for condition in self.plan.cancel_conditions:  # (any() would not let a StopIteration through)
                if self._holds(condition, instance):
                    return None, self._end(Outcome.CANCELED_BY_CONDITION)
            assert self.declared is not None
            options = self.declared.options
            skipped = options.skip_if is not None and self._holds(options.skip_if, instance)
            if skipped or (options.only_if is not None and not self._holds(options.only_if, instance)):
                return None, self._end(Outcome.SKIPPED_BY_CONDITION)
            self._plainly(instance.before_step_starts, claimed.node)
            return instance, None
        finally:
            step_var.reset(token)

    def _instance(self, hero: Any) -> Workflow:
        cls: Any = self.plan.cls
        instance: Workflow = cls.__new__(cls)  # without __init__: the fields were checked when it began
        fields = decode_fields(self.services.codec, self.plan, self.claimed.run_input)
        vars(instance).update(fields, hero=hero, _ctx=self.context)
        return instance

    def _holds(self, condition: Any, instance: Workflow) -> bool:
        if isinstance(condition, bool):
            return condition
        if isinstance(condition, str):
            return bool(self._plainly(getattr(instance, condition)))
        name = getattr(condition, "__name__", "")
        if any(vars(base).get(name) is condition for base in type(instance).__mro__):
            return bool(self._plainly(getattr(instance, name)))  # a subclass may have overridden it
        return bool(self._plainly(condition, instance))

    def _plainly(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function of the user from a thread; what is awaitable is awaited on the app's loop."""
        value = function(*args)
        if not inspect.isawaitable(value):
            return value

        async def wait(value: Awaitable[Any]) -> Any:
            step_var.set(self.context)
            return await value

        try:
            return asyncio.run_coroutine_threadsafe(acarry(wait(value)), self.services.loop.get()).result()
        except Carried as carried:
            raise carried.error from None

    def _arguments(self, instance: Workflow, job: Any) -> dict[str, Any]:
        """What a job in a method's place is called with: `args`, or the fields that it has parameters for."""
        assert self.declared is not None
        args = self.declared.options.args
        if callable(args):
            args = self._plainly(args, instance)
        if args is not None:
            return dict(args)
        fields = self.plan.fields
        plan = plan_of(job)
        wanted = [name for name in fields if (name in plan.fields if plan is not None else job.accepts(name))]
        return {name: getattr(instance, name) for name in wanted}

    def _policy(self, error: BaseException) -> ExceptionPolicy:
        return choose(error, self._own_policies, self.plan.policies)

    def _budget(self, policy: ExceptionPolicy) -> str:
        alike = [one for one in [*self._own_policies, *self.plan.policies] if one.label == policy.label]
        place = next((number for number, one in enumerate(alike) if one is policy), 0)
        return policy.label if place == 0 else f"{policy.label} #{place + 1}"

    @cached_property
    def _own_policies(self) -> tuple[ExceptionPolicy, ...]:
        return self.declared.options.policies if self.declared is not None else ()

    def _hooked(self, step: Step[Any, Any], instance: Workflow) -> Step[Any, Any]:
        """The step with the class's hooks around its body, in the thread or the task of the body."""
        cls: Any = self.plan.cls
        hooks = ("before_step", "after_step", "around_step")
        if all(getattr(cls, hook) is getattr(Workflow, hook) for hook in hooks):
            return step
        body, name = step.function, self.claimed.node
        if step.executor == "process":
            body = partial(_elsewhere, self.services, step)

        def around(*args: Any, **kwargs: Any) -> Any:
            self._plainly(instance.before_step, name)
            inside = _Inside()
            with self._entered(_manager(instance, name)), inside:
                inside.value = body(*args, **kwargs)
            inside.check()
            if inside.returned:
                self._plainly(instance.after_step, name)
            return inside.value

        async def aaround(*args: Any, **kwargs: Any) -> Any:
            try:
                await _awaited(instance.before_step(name))
                inside = _Inside()
                async with contextlib.AsyncExitStack() as stack:
                    manager = _manager(instance, name)
                    if hasattr(manager, "__aenter__"):
                        await stack.enter_async_context(manager)
                    else:
                        stack.enter_context(manager)
                    with inside:
                        inside.value = await body(*args, **kwargs)
                inside.check()
                if inside.returned:
                    await _awaited(instance.after_step(name))
                return inside.value
            except StopIteration as error:  # of a hook that is a `def`
                raise Carried(error) from error

        hooked = with_function(step, aaround if step.is_async else around)
        hooked.executor = "thread"
        return hooked

    @contextlib.contextmanager
    def _entered(self, manager: Any) -> Iterator[None]:
        """A context manager, or an async one, around what runs in this thread."""
        if hasattr(manager, "__enter__"):
            with manager:
                yield
            return
        self._plainly(manager.__aenter__)
        try:
            yield
        except BaseException as error:
            if not self._plainly(manager.__aexit__, type(error), error, error.__traceback__):
                raise
        else:
            self._plainly(manager.__aexit__, None, None, None)


class _Inside:
    """What became of a body inside of `around_step`, which may suppress its exception."""

    def __init__(self) -> None:
        self.value: Any = None
        self.returned = False
        self._signal: BaseException | None = None

    def __enter__(self) -> None: ...

    def __exit__(self, cls: Any, error: BaseException | None, trace: Any) -> None:
        self.returned = error is None
        if isinstance(error, Signal | asyncio.CancelledError):
            self._signal = error

    def check(self) -> None:
        """Raise the signal that the body left by: suppressing it does not undo it."""
        if self._signal is not None:
            raise self._signal


def _manager(instance: Workflow, name: str) -> Any:
    """What `around_step` returned, if it can be entered."""
    made: Any = instance.around_step(name)
    if hasattr(made, "__enter__") or hasattr(made, "__aenter__"):
        return made
    if inspect.iscoroutine(made):
        made.close()
    raise TypeError(
        f"{type(instance).__name__}.around_step returned {type(made).__name__}, not a context manager; "
        f"decorate it with @contextlib.contextmanager, or @contextlib.asynccontextmanager"
    )


def _elsewhere(services: Services, step: Step[Any, Any], *args: Any, **kwargs: Any) -> Any:
    return services.processes.call(step, args, kwargs)


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
