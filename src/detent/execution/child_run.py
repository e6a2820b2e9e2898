"""Nodes that wait for a run: one that they start, a child, or another one."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..definitions.context import Abandoned, Canceled, Routine
from ..errors import RunCanceled, UnknownDefinition
from ..kernel.operations import Record, Settled, Verdict
from ..kernel.rows import Await, Claimed, RunState
from ..kernel.settle import Ending, Outcome
from .carried_errors import carry
from .failures import raisable
from .new_runs import Startable, Terms, begin
from .node import NodeWork
from .requests import Commit, Read
from .services import Services
from .spawn import fitting_id


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
        assert self.run_graph is not None
        target = self.run_graph.graph.nodes[self.claimed.node].run
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
        row = yield Read(partial(work.services.store.find_current, child))
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
        key=claimed.run_key,
        version=work.services.version,
    )
    start = carry(begin, work.services.codec, startable, (), kwargs, terms)
    for run in start.runs:
        run.parent, run.parent_key, run.watched = claimed.run_id, claimed.node, 2
    answer = yield Commit(Record(worker=claimed.worker, run_id=claimed.run_id, children=start, about=claimed))
    if answer is Verdict.CANCELED:
        raise Canceled
    if answer is not Verdict.APPLIED:
        raise Abandoned


def _awaiting(work: NodeWork, target: str) -> Routine[Ending | None]:
    """The end of another run as the end of this node; None when it was parked to wait for it."""
    row = yield Read(lambda: work.services.store.current(target))
    if row.state == RunState.FINISHED:
        return work._end(Outcome.SUCCESS, result=row.result or "null")
    if row.state == RunState.FAILED:
        raise raisable(row.type, row.error)
    if row.state == RunState.CANCELED:
        raise RunCanceled(row.id)
    ended = Await(run_id=work.claimed.run_id, kind="run", name=row.id)
    answer: Settled = yield Commit(work._park([ended]))
    if answer.verdict is Verdict.STALE:
        raise Abandoned
    return None
