"""Executing a node of a graph: from delivery to settling.

    claimed -> course (and healing) -> hero, cancel_if, skip_if -> body -> what becomes of it -> settle

Conditions and hooks run like the body, outside of any lock or transaction.  A method of a
class, a step as a job, a workflow as a child run, and waiting for another run are four
kinds of bodies of one routine.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import Any

from ..blueprint import Blueprint
from ..clock import from_micros, span_micros
from ..context import Abandoned, Canceled, Context, FlowControl, Routine, Suspended, step_var
from ..errors import DeadlineExceeded, RunCanceled, RunError, StepNotDefined, UnknownDefinition
from ..functions import FunctionWorkflow, Step
from ..graphs import Template, plan_of
from ..kernel import model
from ..kernel.advance import Course
from ..kernel.graph import AWAIT_JOB
from ..kernel.model import Await, Claimed, Park, Record, RunState, Settle, Settled, Verdict
from ..kernel.policies import NO_RETRY, PAUSE, ExceptionPolicy, Retry, choose
from ..kernel.settle import Ending, Outcome
from ..workflows import Workflow
from .beginning import Startable, Terms, begin, decode_fields
from .calls import decode_call
from .failures import encode_error, raisable
from .frame import jittered
from .mains import key_of
from .requests import Ask, Body, Commit, Read, TransactionalBody
from .services import Services
from .spawned import Work
from .spawning import fitting_id

log = logging.getLogger("detent.worker")

_ACTIONS = {
    "skip": Outcome.SKIPPED_BY_EXCEPTION,
    "pause": Outcome.PAUSED_BY_EXCEPTION,
    "cancel": Outcome.CANCELED_BY_EXCEPTION,
}
_FLOW = {
    "cancel": Outcome.CANCELED_BY_FLOW_CONTROL,
    "pause": Outcome.PAUSED_BY_FLOW_CONTROL,
    "skip": Outcome.SKIPPED_BY_FLOW_CONTROL,
    "reattempt": Outcome.REATTEMPTED,
    "finished": Outcome.FINISHED_BY_FLOW_CONTROL,
}


class NodeContext(Context):
    """The context of a node of a graph."""

    @property
    def node(self) -> str:
        work: Any = self._backend
        return self.key if work.course is None else str(work.course.graph.shown(self.key))


class NodeWork(Work):
    """One attempt at a node."""

    context_class = NodeContext
    retry: Retry = NO_RETRY

    def __init__(
        self, services: Services, claimed: Claimed, name: str, steps: Iterable[model.Step] = ()
    ) -> None:
        super().__init__(services, claimed, name, steps)
        self.course: Course | None = None
        self._raised: Exception | None = None

    def _routine(self) -> Routine[None]:
        try:
            ending = yield from self._ending()
            while ending is not None:
                answer: Settled = yield Commit(self._settle(ending))
                if answer.verdict is Verdict.STALE:
                    raise Abandoned
                if answer.verdict is not Verdict.OUTDATED:
                    break
                yield Read(self._look_again)  # the run was given a graph of its own meanwhile
        except Suspended:
            yield Commit(self._park())
        except Abandoned:
            return
        finally:
            self.live = False
        self._report()

    def _ending(self) -> Routine[Ending | None]:
        """How the attempt ended; None when it has settled, or was put down, by itself."""
        try:
            if self.interrupt == "canceled":
                return self._end(Outcome.CANCELED_BY_OPERATOR)
            if self.interrupt is not None:
                raise Suspended
            try:
                yield from self._prepare()
                return (yield from self._perform())
            except FlowControl as signal:
                return self._flow(signal)
        except Canceled:
            return self._end(Outcome.CANCELED_BY_OPERATOR)
        except asyncio.CancelledError:
            if self.interrupt != "canceled":
                raise Abandoned from None
            return self._end(Outcome.CANCELED_BY_OPERATOR)
        except Exception as error:
            return self._failure(error)

    def _perform(self) -> Routine[Ending | None]:
        """The body, and what surrounds it."""
        raise NotImplementedError

    def _prepare(self) -> Routine[None]:
        """Find the graph; heal the run first if it was settled under another one."""
        courses = self.services.courses
        if courses.known(self.claimed) is None:
            self.course = yield Read(lambda: courses.of(self.claimed))
        else:
            self.course = courses.of(self.claimed)
        graph = self.course.graph
        if self.claimed.frozen_at is None and self.claimed.signature != graph.signature:
            ours = yield Read(self._reconcile)
            if not ours:
                raise Abandoned
        if self.claimed.deadline is not None and self._now() >= self.claimed.deadline:
            moment = from_micros(self.claimed.deadline).isoformat()
            raise DeadlineExceeded(self.claimed.run_id, moment)

    def _reconcile(self) -> bool:
        assert self.course is not None
        ours = self.services.store.reconcile(
            self.claimed.run_id, course=self.course, now=self._now(), mine=self.claimed.node
        )
        if self.services.local is not None:
            self.services.local.poke()  # what is new and ready
        return ours

    def _look_again(self) -> None:
        row = self.services.store.run(self.claimed.run_id)
        self.claimed.signature, self.claimed.frozen_at = row.signature, row.frozen_at
        self.course = self.services.courses.of(self.claimed)

    # How it ended

    def _end(self, outcome: Outcome, *, result: str | None = None, wait: int = 0) -> Ending:
        return Ending(outcome=outcome, now=self._now(), result=result, wait=wait)

    def _success(self, value: Any) -> Ending:
        text = self.services.codec.encode(value, f"the result of node {self.context.name!r}")
        return self._end(Outcome.SUCCESS, result=text)

    def _flow(self, signal: FlowControl) -> Ending:
        outcome = _FLOW[signal.verb]
        if signal.verb == "pause" and signal.after:
            outcome = Outcome.PAUSED_AFTER
        result = None
        if signal.verb == "finished":
            result = self.services.codec.encode(signal.result, f"the result of {self.claimed.type!r}")
        return self._end(outcome, result=result, wait=signal.wait)

    def _failure(self, error: Exception) -> Ending:
        self._raised = error
        stored = encode_error(error)
        failures = self.claimed.failures
        retry: Retry | None = self.retry
        if isinstance(error, DeadlineExceeded):
            action = "cancel"
        elif isinstance(error, RunError) and self.course is None:
            action = "pause"  # its graph is not what it should be
        elif self.retry.wait_after(failures + 1, error) is not None:
            action = "reattempt"
        else:
            action, retry = self._policy(error).decide(error, failures)
        if action == "reattempt" and retry is not None:
            wait = retry.wait_after(failures + 1, error)
            pause = jittered(span_micros(wait), retry.jitter) if wait is not None else 0
            return Ending(outcome=Outcome.REATTEMPTED_BY_EXCEPTION, now=self._now(), error=stored, wait=pause)
        return Ending(outcome=_ACTIONS[action], now=self._now(), error=stored)

    def _policy(self, error: Exception) -> ExceptionPolicy:
        graph = self.course.graph if self.course is not None else None
        node = (
            None
            if graph is None
            else graph.nodes.get(graph.spread_of(self.claimed.node) or self.claimed.node)
        )
        if node is not None and node.on_exception is not None:
            return ExceptionPolicy(node.on_exception)
        return PAUSE

    def _settle(self, ending: Ending) -> Settle:
        operation = super()._settle(ending)
        operation.parent, operation.course = self.claimed.parent, self.course
        return operation

    def _park(self, target: str | None = None) -> Park:
        """Put it down: at once due again, or until another run has ended."""
        awaits = [] if target is None else [Await(run_id=self.claimed.run_id, kind="run", name=target)]
        return Park(
            worker=self.claimed.worker,
            key=key_of(self.claimed),
            token=self.claimed.token,
            now=self._now(),
            wake_at=self._now() if target is None else None,
            awaits=awaits,
        )

    def _report(self) -> None:
        """The state is durable: now the exception goes to the log, and to whoever wants to hear of it."""
        error = self._raised
        if error is None:
            return
        log.warning(
            "run %s: node %r (attempt %d) raised",
            self.claimed.run_id,
            self.context.name,
            self.claimed.attempt,
            exc_info=error,
        )
        if self.services.on_error is not None:
            try:
                self.services.on_error(error, self.context)
            except Exception:
                log.exception("the error hook itself failed")

    def _call(
        self, step: Step[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Routine[Ending | None]:
        """Call a step's function; a transactional one settles within its own transaction."""
        if not step.transactional:
            value = yield Body(step, self.context, args, kwargs)
            return self._success(value)

        def finish(value: Any) -> Settle:
            return self._settle(self._flow(value) if isinstance(value, FlowControl) else self._success(value))

        yield TransactionalBody(
            _completing(step), self.context, args, kwargs, finish, self._recorded, self._look_again
        )
        return None


class JobNode(NodeWork):
    """A node that calls a step that the app includes."""

    def __init__(
        self, services: Services, claimed: Claimed, step: Step[Any, Any], steps: Iterable[model.Step]
    ) -> None:
        super().__init__(services, claimed, step.name, steps)
        self.step = step
        self.is_async = step.is_async
        self.retry = step.retry

    def _perform(self) -> Routine[Ending | None]:
        args, kwargs = decode_call(self.services.codec, self.step, self.claimed.input or "{}")
        return (yield from self._call(self.step, args, kwargs))

    def _policy(self, error: Exception) -> ExceptionPolicy:
        own = super()._policy(error)
        if own is PAUSE and self.step.on_exception in _ACTIONS:
            return ExceptionPolicy(self.step.on_exception)
        return own


class MethodNode(NodeWork):
    """A node that is a method of a class, or a job in its place."""

    def __init__(
        self, services: Services, claimed: Claimed, plan: Blueprint, steps: Iterable[model.Step]
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
        instance, ending = yield Ask(self._before)
        if ending is not None:
            return ending  # type: ignore[no-any-return]
        job = self.declared.options.job
        if job is None:
            return (yield from self._call(self._hooked(self.declared.step, instance), (instance,), {}))
        kwargs = yield Ask(lambda: self._arguments(instance, job))
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
            if any(self._holds(condition, instance) for condition in self.plan.cancel_conditions):
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
        instance.__dict__.update(fields, hero=hero, _ctx=self.context)
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

        return asyncio.run_coroutine_threadsafe(wait(value), self.services.loop.get()).result()

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

    def _policy(self, error: Exception) -> ExceptionPolicy:
        own = self.declared.options.policies if self.declared is not None else ()
        return choose(error, own, self.plan.policies)

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
            with self._entered(instance.around_step(name)):
                value = body(*args, **kwargs)
            self._plainly(instance.after_step, name)
            return value

        async def aaround(*args: Any, **kwargs: Any) -> Any:
            await _awaited(instance.before_step(name))
            manager: Any = instance.around_step(name)
            async with contextlib.AsyncExitStack() as stack:
                if hasattr(manager, "__aenter__"):
                    await stack.enter_async_context(manager)
                else:
                    stack.enter_context(manager)
                value = await body(*args, **kwargs)
            await _awaited(instance.after_step(name))
            return value

        hooked = _with_function(step, aaround if step.is_async else around)
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


def _completing(step: Step[Any, Any]) -> Step[Any, Any]:
    """The step, returning a signal that completes it: its transaction is to be committed."""
    body = step.function

    def whole(*args: Any, **kwargs: Any) -> Any:
        try:
            return body(*args, **kwargs)
        except FlowControl as signal:
            if not signal.completes:
                raise
            return signal

    async def awhole(*args: Any, **kwargs: Any) -> Any:
        try:
            return await body(*args, **kwargs)
        except FlowControl as signal:
            if not signal.completes:
                raise
            return signal

    return _with_function(step, awhole if step.is_async else whole)


def _with_function(step: Step[Any, Any], function: Callable[..., Any]) -> Step[Any, Any]:
    again = copy.copy(step)
    again.function = function
    return again


def _elsewhere(services: Services, step: Step[Any, Any], *args: Any, **kwargs: Any) -> Any:
    return services.processes.call(step, args, kwargs)


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


class ChildNode(NodeWork):
    """A node that is a whole workflow: a child run."""

    def __init__(self, services: Services, claimed: Claimed, definition: Any) -> None:
        super().__init__(services, claimed, definition.name)
        self.definition = definition

    def _perform(self) -> Routine[Ending | None]:
        call = self.services.codec.decode(self.claimed.input or "{}", what="a node's input")
        return (yield from run_child(self, self.definition, call.get("kwargs", {})))


class AwaitNode(NodeWork):
    """A node that waits for another run."""

    def _perform(self) -> Routine[Ending | None]:
        assert self.course is not None
        target = self.course.graph.nodes[self.claimed.node].run
        assert target is not None
        return (yield from _awaiting(self, target))


def run_child(work: NodeWork, definition: Any, kwargs: dict[str, Any]) -> Routine[Ending | None]:
    """Start the child of this node unless it is there, and wait for its end.

    A child that failed or was canceled is left as it is: another attempt at the node begins
    another one.
    """
    number = 1
    while True:
        name = f"{work.claimed.run_id}/{work.claimed.node}"
        child = fitting_id(name if number == 1 else f"{name}#{number}")
        row = yield Read(partial(work.services.store.find_run, child))
        if row is None:
            yield from _begin_child(work, definition, kwargs, child)
            break
        failed = row.state in (RunState.FAILED, RunState.CANCELED)
        if not failed or (row.finished_at or 0) >= (work.claimed.started_at or 0):
            break
        number += 1
    return (yield from _awaiting(work, child))


def _begin_child(work: NodeWork, definition: Any, kwargs: dict[str, Any], child: str) -> Routine[None]:
    claimed = work.claimed
    startable: Startable = definition
    queue, priority = definition.queue, definition.priority
    if work.services.registry.find(startable.name) is not startable:
        raise UnknownDefinition(startable.name)
    terms = Terms(
        id=child,
        queue=queue or claimed.run_queue,
        priority=claimed.run_priority if priority is None else priority,
        now=work._now(),
        deadline=claimed.deadline,
        declared=work.services.queues,
    )
    start = begin(work.services.codec, startable, (), kwargs, terms)
    for run in start.runs:
        run.parent, run.parent_key, run.watched = claimed.run_id, claimed.node, 2
    answer = yield Commit(Record(worker=claimed.worker, run_id=claimed.run_id, children=start))
    if answer is Verdict.CANCELED:
        raise Canceled
    if answer is not Verdict.APPLIED:
        raise Abandoned


def _awaiting(work: NodeWork, target: str) -> Routine[Ending | None]:
    """The end of another run as the end of this node; None when it was put down to wait for it."""
    row = yield Read(lambda: work.services.store.run(target))
    if row.state == RunState.FINISHED:
        return work._end(Outcome.SUCCESS, result=row.result or "null")
    if row.state == RunState.FAILED:
        raise raisable(row.type, row.error)
    if row.state == RunState.CANCELED:
        raise RunCanceled(row.id)
    answer: Settled = yield Commit(work._park(target))
    if answer.verdict is Verdict.STALE:
        raise Abandoned
    return None


def node_work(services: Services, claimed: Claimed, steps: Iterable[model.Step]) -> NodeWork:
    """What executes a node that this worker has claimed."""
    if claimed.job == AWAIT_JOB:
        return AwaitNode(services, claimed, claimed.node)
    if claimed.run_kind == "class":
        return MethodNode(services, claimed, services.registry.plan(claimed.type), steps)
    found = services.registry.find(claimed.job)
    if isinstance(found, Step):
        return JobNode(services, claimed, found, steps)
    if isinstance(found, FunctionWorkflow | Blueprint | Template):
        return ChildNode(services, claimed, found)
    raise UnknownDefinition(claimed.job)
