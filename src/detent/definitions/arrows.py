"""References to the nodes of a graph that is being built, and the arrows between them.

    a >> [b, c] >> d          # as in Airflow
    d << [b, c]               # the same, read from the other end
    [a, b] >> c

`depends_on`, data and arrows may be mixed.  `Graph` resolves what they mean when it is started.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from ..errors import DefinitionError
from ..kernel.expressions import Expression, error_of, output_of
from .node_options import listed


class Wiring(Protocol):
    """The graph that nodes are added to."""

    def wire(self, before: Sequence[NodeRef], after: Sequence[NodeRef]) -> None:
        """Let `after` run after `before`."""

    def group(self, nodes: Sequence[NodeRef], depends_on: Sequence[str]) -> NodeGroup:
        """Nodes as a group; an empty one stands for what it depends on."""
        ...


class NodeRef:
    """A node of a graph that is being built.

    total = g.node("total", job=aggregate, depends_on=parts)
    g.node("notify", job=notify, args={"sum": total.output["sum"]})
    """

    def __init__(self, graph: Wiring, id: str, name: str) -> None:
        self.graph = graph
        self.id = id
        self.name = name

    def __repr__(self) -> str:
        return f"<node {self.name}>"

    @property
    def output(self) -> Expression:
        """The future result of the node: index it, compare it, compute with it, pass it to other nodes."""
        return output_of(self.id, self.name)

    @property
    def error(self) -> Expression:
        """The error of a node with an error branch: `{"type": ..., "message": ...}`, or None."""
        return error_of(self.id, self.name)

    def __rshift__(self, others: Any) -> Any:
        """`a >> b`: b runs after a."""
        return _joined(self.graph, [self], others, forward=True)

    def __lshift__(self, others: Any) -> Any:
        """`b << a`: b runs after a."""
        return _joined(self.graph, [self], others, forward=False)

    def __rrshift__(self, others: Any) -> NodeRef:
        self.graph.wire(refs(others), [self])
        return self

    def __rlshift__(self, others: Any) -> NodeRef:
        self.graph.wire([self], refs(others))
        return self


class NodeGroup(tuple[NodeRef, ...]):
    """A group of nodes, as `fan_out` returns it.

        parts = g.fan_out(ids, name=lambda i: f"part_{i}", job=process, args=lambda i: {"id": i})
        g.node("total", job=aggregate, depends_on=parts)

    An empty group is transparent: what depends on it depends on what the group depends on.
    """

    graph: Wiring
    stand_in: NodeRef | None  # of an empty group: what others depend on in its place

    def __new__(cls, graph: Wiring, nodes: Iterable[NodeRef], stand_in: NodeRef | None = None) -> NodeGroup:
        made = super().__new__(cls, nodes)
        made.graph, made.stand_in = graph, stand_in
        return made

    def __rshift__(self, others: Any) -> Any:
        """`group >> b`: b runs after all of the group."""
        return _joined(self.graph, refs(self), others, forward=True)

    def __lshift__(self, others: Any) -> Any:
        """`group << a`: all of the group run after a."""
        return _joined(self.graph, refs(self), others, forward=False)

    def __rrshift__(self, others: Any) -> NodeGroup:
        self.graph.wire(refs(others), refs(self))
        return self

    def __rlshift__(self, others: Any) -> NodeGroup:
        self.graph.wire(refs(self), refs(others))
        return self

    @property
    def outputs(self) -> Outputs:
        """The future results of the nodes, as a list to pass to another node."""
        return Outputs(self)


class Outputs(list[Expression]):
    """The outputs of a group.  The list of an empty group is empty, and still depends on what it does.

    pages = g.fan_out(urls, name=slug, job=fetch, args=lambda url: {"url": url})
    g.node("sum", job=summarise, args={"pages": pages.outputs})
    """

    def __init__(self, group: NodeGroup) -> None:
        super().__init__(node.output for node in group)
        self.stand_in = group.stand_in


def refs(value: Any) -> list[NodeRef]:
    """The nodes that are named by one, by a group, or by a list of these."""
    if isinstance(value, NodeRef):
        return [value]
    if isinstance(value, NodeGroup):
        return [value.stand_in] if value.stand_in is not None else list(value)
    found = []
    for item in listed(value):
        if not isinstance(item, NodeRef | NodeGroup):
            raise DefinitionError(f">> and << connect nodes of a graph, not {item!r}")
        found += refs(item)
    return found


def _joined(graph: Wiring, mine: Sequence[NodeRef], others: Any, *, forward: bool) -> NodeRef | NodeGroup:
    """Join two sides, and return the other one, so that the next arrow begins there."""
    theirs = refs(others)
    if not theirs:  # `a >> [] >> b`: the list is transparent
        return graph.group([], [ref.id for ref in mine] if forward else [])
    graph.wire(*((mine, theirs) if forward else (theirs, mine)))
    return others if isinstance(others, NodeRef | NodeGroup) else NodeGroup(graph, theirs)


def stand_ins(value: Any) -> Iterator[NodeRef]:
    """The empty groups whose outputs are somewhere in a value."""
    if isinstance(value, Outputs):
        if value.stand_in is not None:
            yield value.stand_in
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from stand_ins(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from stand_ins(item)
