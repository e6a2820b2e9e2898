"""Which routine executes a node: a method, a step, a child run, or a wait for another run."""

from __future__ import annotations

from collections.abc import Iterable

from ..blueprint import Blueprint
from ..errors import UnknownDefinition
from ..functions import FunctionWorkflow, Step
from ..graphs import Template
from ..kernel import model
from ..kernel.graph import AWAIT_JOB
from ..kernel.model import Claimed
from .children import AwaitNode, ChildNode
from .methods import MethodNode
from .nodes import JobNode, NodeWork
from .services import Services


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
