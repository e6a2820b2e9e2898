"""Executing a node of a graph: from delivery to settling.

    claimed -> run_graph (and healing) -> hero, cancel_if, skip_if -> body -> what becomes of it -> settle

Conditions and hooks run like the body, outside of any lock or transaction.  A method of a
class, a step as a job, a workflow as a child run, and waiting for another run are four
kinds of bodies of one routine.
"""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from ..clock import span_micros
from ..definitions.context import Abandoned, Canceled, Context, FlowControl, Routine, Signal, Suspended
from ..definitions.functions import Step
from ..definitions.transactional import NO_ISOLATION
from ..errors import DeadlineExceeded, DefinitionError, RunError, StepFailed
from ..kernel import rows
from ..kernel.advance import RunGraph
from ..kernel.external_changes import Reconcile
from ..kernel.graph import Node
from ..kernel.operations import Settle, Settled, Verdict
from ..kernel.policies import NO_RETRY, PAUSE, ExceptionPolicy, Retry
from ..kernel.retries import StoredRetry
from ..kernel.rows import Claimed
from ..kernel.settle import Ending, Outcome
from .calls import decode_call
from .carried_errors import Carried, carry, performed
from .deadlines import deadline_exceeded, has_passed
from .failures import decode_error, describe, encode_error
from .frame import jittered
from .requests import Body, Commit, Read, TransactionalBody
from .services import Services
from .work import Work

RETRY = "retry"  # under which name a node's own retries are counted
_ACTIONS = {
    "skip": Outcome.SKIPPED_BY_EXCEPTION,
    "pause": Outcome.PAUSED_BY_EXCEPTION,
    "cancel": Outcome.CANCELED_BY_EXCEPTION,
    "branch": Outcome.BRANCHED_BY_EXCEPTION,
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
        return self.key if work.run_graph is None else str(work.run_graph.graph.shown(self.key))


class NodeWork(Work):
    """One attempt at a node."""

    context_class = NodeContext
    retry: Retry = NO_RETRY
    returns: Any = Any  # what a job's result is annotated as

    def __init__(
        self, services: Services, claimed: Claimed, name: str, steps: Iterable[rows.Step] = ()
    ) -> None:
        super().__init__(services, claimed, name, steps)
        self.run_graph: RunGraph | None = None

    @property
    def shown(self) -> str:
        """The name that people know the node by."""
        node = self.claimed.node
        return node if self.run_graph is None else self.run_graph.graph.shown(node)

    def _execute(self) -> Routine[None]:
        self.performing = True
        ending = yield from self._ending()
        self.performing = False
        while ending is not None:
            answer: Settled = yield Commit(self._settle(ending))
            if answer.verdict is Verdict.STALE:
                raise Abandoned
            if answer.verdict is not Verdict.OUTDATED:
                break
            yield Read(self._look_again)  # the run was given a graph of its own meanwhile

    def _ending(self) -> Routine[Ending | None]:
        """How the attempt ended; None when it has settled or parked itself."""
        try:
            if self.interrupt == "canceled":
                return self._end(Outcome.CANCELED_BY_OPERATOR)
            if self.interrupt is not None:
                raise Suspended
            try:
                yield from self._prepare()
                ending = yield from self._perform()
                if ending is not None and ending.outcome is Outcome.SUCCESS:
                    self._check_deadline()
                return ending
            except FlowControl as signal:
                return self._flow(signal)
        except Canceled:
            return self._end(Outcome.CANCELED_BY_OPERATOR)
        except asyncio.CancelledError:
            if self.interrupt == "canceled":
                return self._end(Outcome.CANCELED_BY_OPERATOR)
            if self.expired:
                return (yield from self._failed(deadline_exceeded(self.claimed)))
            raise Abandoned from None
        except Carried as carried:
            return (yield from self._failed(carried.error))
        except (Signal, GeneratorExit):
            raise
        except BaseException as error:
            # A SystemExit is an error of this node, and the worker continues; a Ctrl-C is not.
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise
            return (yield from self._failed(error))

    def _check_deadline(self) -> None:
        if has_passed(self.services, self.claimed):
            raise deadline_exceeded(self.claimed)

    def _perform(self) -> Routine[Ending | None]:
        """The body, and what surrounds it."""
        raise NotImplementedError

    def _prepare(self) -> Routine[None]:
        """Find the graph; heal the run first if it was settled under another one."""
        run_graphs = self.services.run_graphs
        if run_graphs.known(self.claimed) is None:
            run_graph: RunGraph = yield Read(lambda: run_graphs.of(self.claimed))
        else:
            run_graph = run_graphs.of(self.claimed)
        self.run_graph = run_graph
        graph = run_graph.graph
        if self.claimed.frozen_at is None and self.claimed.signature != graph.signature:
            ours = yield Read(self._reconcile)
            if not ours:
                raise Abandoned
        self._check_deadline()
        if self.services.observer.active:
            self.services.began(self.claimed, self.context)

    def _reconcile(self) -> bool:
        assert self.run_graph is not None
        heal = Reconcile(self.claimed.run_id, self.run_graph, mine=self.claimed.node)
        ours = self.services.store.change(heal, now=self._now())
        if self.services.local is not None:
            self.services.local.poke()  # what is new and ready
        return ours

    def _look_again(self) -> None:
        row = self.services.store.run(self.claimed.run_id)
        self.claimed.signature, self.claimed.frozen_at = row.signature, row.frozen_at
        self.run_graph = self.services.run_graphs.of(self.claimed)

    # How it ended

    def _success(self, value: Any) -> Ending:
        text = self.services.codec.encode(value, f"the result of node {self.shown!r}", self.returns)
        return self._end(Outcome.SUCCESS, result=text)

    def _flow(self, signal: FlowControl) -> Ending:
        outcome = _FLOW[signal.verb]
        if signal.verb == "pause" and signal.after:
            outcome = Outcome.PAUSED_AFTER
        result = None
        if signal.verb == "finished":
            result = self.services.codec.encode(signal.result, f"the result of {self.claimed.type!r}")
        return self._end(outcome, result=result, wait=signal.wait)

    def _failed(self, error: BaseException) -> Routine[Ending]:
        """What an exception comes to: the node's own `retry`, then a policy; each counts for itself."""
        if isinstance(error, StepFailed) and isinstance(error.__cause__, SystemExit):
            error = error.__cause__  # policies see what the body raised
        self._raised = error
        spent: dict[str, int] = {}
        if self.claimed.failures:
            spent = yield Read(self._reattempts)
        if isinstance(error, DeadlineExceeded):
            return self._failure(error, "cancel")
        if isinstance(error, RunError) and self.run_graph is None:
            return self._failure(error, "pause")  # its graph is not what it should be
        node = self._node
        own = self.retry if node is None or node.retry is None else node.retry
        if own.wait_after(spent.get(RETRY, 0) + 1, error) is not None:
            return self._again(error, spent, RETRY, own)
        policy = self._policy(error)
        budget = self._budget(policy)
        action, retry = policy.decide(error, spent.get(budget, 0))
        if action == "reattempt" and retry is not None:
            return self._again(error, spent, budget, retry)
        return self._failure(error, "branch" if node is not None and node.on_error else action)

    def _reattempts(self) -> dict[str, int]:
        """How often this node was reattempted by exceptions since it began, or was resumed: by what."""
        text = self.services.store.last_reattempt(self.claimed.run_id, self.claimed.node)
        counts = None if text is None else decode_error(text).reattempts
        return {RETRY: self.claimed.failures} if counts is None else counts

    def _again(
        self, error: BaseException, spent: Mapping[str, int], budget: str, retry: Retry | StoredRetry
    ) -> Ending:
        count = spent.get(budget, 0) + 1
        wait = retry.wait_after(count, error)
        stored = describe(error)
        stored.reattempts = {**spent, budget: count}
        return Ending(
            outcome=Outcome.REATTEMPTED_BY_EXCEPTION,
            now=self._now(),
            error=msgspec.json.encode(stored).decode(),
            wait=0 if wait is None else jittered(span_micros(wait), retry.jitter),
        )

    def _failure(self, error: BaseException, action: str) -> Ending:
        return Ending(outcome=_ACTIONS[action], now=self._now(), error=encode_error(error))

    @property
    def _node(self) -> Node | None:
        """What the graph says of the node, or of the spread that it is an item of."""
        graph = self.run_graph.graph if self.run_graph is not None else None
        if graph is None:
            return None
        return graph.nodes.get(graph.spread_of(self.claimed.node) or self.claimed.node)

    def _policy(self, error: BaseException) -> ExceptionPolicy:
        node = self._node
        if node is not None and node.on_exception is not None:
            return ExceptionPolicy(node.on_exception)
        return PAUSE

    def _budget(self, policy: ExceptionPolicy) -> str:
        """Under which name reattempts by this policy are counted."""
        return policy.label

    def _settle(self, ending: Ending) -> Settle:
        operation = super()._settle(ending)
        operation.parent, operation.run_graph = self.claimed.parent, self.run_graph
        return operation

    def _failure_text(self) -> str:
        return f"node {self.shown!r} (attempt {self.claimed.attempt}) raised"

    def _call(
        self, step: Step[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Routine[Ending | None]:
        """Call a step's function; a transactional one settles within its own transaction."""
        if not step.transactional:
            value = yield from performed(Body(step, self.context, args, kwargs))
            return self._success(value)

        if step.isolation is not None:
            raise DefinitionError(f"{step.place} is a node of a graph: {NO_ISOLATION}")

        def finish(value: Any) -> Settle:
            return self._settle(self._flow(value) if isinstance(value, FlowControl) else self._success(value))

        yield from performed(
            TransactionalBody(
                _completing(step),
                self.context,
                args,
                kwargs,
                finish,
                self._recorded,
                look_again=self._look_again,
            )
        )
        return None


class JobNode(NodeWork):
    """A node that calls a step that the app includes."""

    def __init__(
        self, services: Services, claimed: Claimed, step: Step[Any, Any], steps: Iterable[rows.Step]
    ) -> None:
        super().__init__(services, claimed, step.name, steps)
        self.step = step
        self.is_async = step.is_async
        self.retry = step.retry
        self.returns = step.returns

    def _perform(self) -> Routine[Ending | None]:
        args, kwargs = carry(decode_call, self.services.codec, self.step, self.claimed.input or "{}")
        step, node = self.step, self._node
        if node is not None and node.timeout is not None:
            step = copy.copy(step)
            step.timeout = node.timeout
        return (yield from self._call(step, args, kwargs))

    def _policy(self, error: BaseException) -> ExceptionPolicy:
        own = super()._policy(error)
        if own is PAUSE and self.step.on_exception in _ACTIONS:
            return ExceptionPolicy(self.step.on_exception)
        return own


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

    return with_function(step, awhole if step.is_async else whole)


def with_function(step: Step[Any, Any], function: Callable[..., Any]) -> Step[Any, Any]:
    """The step with another function in its place."""
    again = copy.copy(step)
    again.function = function
    return again
