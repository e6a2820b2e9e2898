"""Errors of graphs and their nodes."""

from __future__ import annotations

from .facts import facts
from .roots import DefinitionError
from .runs import InvalidState, RunError


@facts
class GraphInvalid(DefinitionError):
    """The graph cannot be run.

    try:
        app.start(graph)
    except detent.GraphInvalid as error:
        print(error.problem)
    """

    what: str
    problem: str

    def __str__(self) -> str:
        return f"{self.what} is not a valid graph: {self.problem}"


@facts
class CannotReattempt(InvalidState):
    """The node cannot be attempted again; `state` gives the reason.

    try:
        run.reattempt("charge")
    except detent.CannotReattempt as error:
        print(error.node, error.state)
    """

    node: str = ""

    def __str__(self) -> str:
        hint = f"; {self.hint}" if self.hint else ""
        return f"cannot reattempt node {self.node!r} of run {self.run_id}: {self.state}{hint}"


@facts
class NodeNotFound(RunError):
    """The run has no node with this name."""

    run_id: str
    node: str

    def __str__(self) -> str:
        return f"run {self.run_id} has no node {self.node!r}; run.nodes() lists them"


@facts
class StepNotDefined(RunError):
    """The run has to execute a node that the code no longer defines.

    try:
        run.result()
    except detent.StepNotDefined as error:
        print(error.type, error.node)
    """

    run_id: str
    type: str
    node: str

    def __str__(self) -> str:
        return (
            f"run {self.run_id} has to execute {self.node!r}, which {self.type} no longer defines. "
            f"Deploy code that has it and call run.resume(), "
            f"or call run.skip({self.node!r}) to continue without it"
        )


@facts
class AnonymousStepMoved(RunError):
    """A completed anonymous step now has another number."""

    run_id: str
    type: str
    node: str
    other: str

    def __str__(self) -> str:
        return (
            f"run {self.run_id} has done {self.node!r}, a step of {self.type} without a name. A step like "
            f"that was added, removed or moved, so this number has another body now (see {self.other!r}). "
            f"The run is paused: a body could run twice, or never. Name these steps in the code: "
            f"`def {self.node}` for the body that the run has done under that name, other names for the "
            f"rest. Then run.resume()"
        )


@facts
class MissingJob(RunError):
    """A frozen graph names a job that no app includes.

    try:
        run.result()
    except detent.MissingJob as error:
        print(error.node, error.job)
    """

    run_id: str
    job: str
    node: str
    frozen_at: str

    def __str__(self) -> str:
        return (
            f'Dynamic run {self.run_id} references job "{self.job}" which no longer exists.\n\n'
            f"Node: {self.node}\n"
            f"Frozen at: {self.frozen_at}\n\n"
            f"Dynamic runs cannot be healed by code changes.\n\n"
            f"Options:\n"
            f'1. Restore the step "{self.job}", include it, and run.resume()\n'
            f"2. Cancel this run and start a new one\n"
            f"3. Edit its graph: run.export_graph(), run.import_graph(...) (last resort)"
        )


@facts
class GraphTampered(RunError):
    """The stored graph does not match its signature.

    try:
        run.result()
    except detent.GraphTampered as error:
        print(error.what, error.signature, error.actual)
    """

    what: str
    signature: str
    actual: str

    def __str__(self) -> str:
        return (
            f"{self.what} is not the graph that was frozen: its signature is {self.signature[:16]}…, "
            f"but its content has {self.actual[:16]}…. It is not executed; restore it from a backup, "
            f"or check it and call run.import_graph(...)"
        )


@facts
class ExpressionError(RunError):
    """An expression of a graph has no value."""

    expression: str
    reason: str

    def __str__(self) -> str:
        return f"cannot evaluate {self.expression}: {self.reason}"


@facts
class DeadEnd(RunError):
    """A condition is false, and there is no `otherwise`."""

    node: str
    condition: str

    def __str__(self) -> str:
        return (
            f"{self.node!r} is a dead end: {self.condition} is false, and there is no otherwise; "
            f"add `with g.otherwise(): pass` if nothing should happen"
        )
