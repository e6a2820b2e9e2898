"""Which routine executes a node: a method, a step, a child run, or a wait for another run."""

from __future__ import annotations

from collections.abc import Iterable

from ..definitions.blueprint import Blueprint
from ..definitions.functions import FunctionWorkflow, Step
from ..definitions.templates import Template
from ..errors import UnknownDefinition
from ..kernel import rows
from ..kernel.graph import AWAIT_JOB
from ..kernel.rows import Claimed
from .child_run import AwaitNode, ChildNode
from .method_node import MethodNode
from .node import JobNode, NodeWork
from .services import Services


def node_work(services: Services, claimed: Claimed, steps: Iterable[rows.Step]) -> NodeWork:
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
