"""Healing: a run meets another graph than the one it was last settled under.  Pure.

    (graph, latest executions)  ->  Healing

Readiness is recounted from what is done; nothing that is done runs again.

    1. A node that is gone: a warning where it is done, a reason to pause where it
       was still to be executed, and no code for it is left.
    2. A node that is not done and stands before one that is: bypassed, and counted as
       done, unless it is under way.
    3. What is scheduled although it is not ready in this graph is withdrawn; it comes
       back when it is ready.  So is a job that is an inline node in this graph.
    4. Whatever else is ready now, and has not failed, begins.
    5. A spread whose items exist is never expanded again: it is collected from them.
    6. An inline node that failed, and that a resume takes up, gets another attempt in the
       same transaction: its evaluation, or a mark that it was bypassed.  Which of the two
       is known only when all inline nodes are evaluated: one of them may make it ready.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec
from msgspec import field

from .advance import Count
from .graph import END, RESULT, SPREAD, Graph
from .rows import SCHEDULED_STATES, ExecutionState
from .settle import Outcome, has_settled


class Past(msgspec.Struct, frozen=True):
    """The latest attempt at a node."""

    node: str
    attempt: int
    state: str
    outcome: str | None
    kind: str = "node"

    @property
    def done(self) -> bool:
        return has_settled(self.state, self.outcome)

    @property
    def scheduled(self) -> bool:
        return self.state in SCHEDULED_STATES

    @property
    def active(self) -> bool:
        return self.scheduled or self.state == ExecutionState.EXECUTING

    @property
    def resumed(self) -> bool:
        """Whether it is an inline node that failed, and is to be evaluated again when it is ready."""
        return self.kind == "inline" and self.outcome == Outcome.REATTEMPTED

    @property
    def public(self) -> str:
        return ExecutionState(self.state).public

    @property
    def stopped(self) -> bool:
        """Whether it is for a resume to begin it again."""
        by_error = self.state == ExecutionState.FAILED and not self.done
        return by_error or self.outcome == Outcome.PAUSED_BY_FLOW_CONTROL


class Healing(msgspec.Struct):
    """What is to be done with a run."""

    gone: list[str] = field(default_factory=list)  # done, and not in the graph any more
    undefined: list[str] = field(default_factory=list)  # to be executed, and not in the graph
    bypassed: list[str] = field(default_factory=list)
    withdrawn: list[str] = field(default_factory=list)
    early: list[str] = field(default_factory=list)  # executing, though not ready in this graph
    ready: list[str] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)  # failed inline nodes that a resume takes up
    expanded: set[str] = field(default_factory=set)  # spreads whose items exist
    passed: set[str] = field(default_factory=set)  # bypassed now or before: they count as done
    counts: dict[str, Count] = field(default_factory=dict)
    finished: bool = False
    irregular: bool = False  # counting alone would go wrong from here on

    @property
    def changes(self) -> dict[str, list[str]]:
        """What is worth a line in the history."""
        found = {
            "removed": self.gone,
            "undefined": self.undefined,
            "bypassed": self.bypassed,
            "withdrawn": self.withdrawn,
            "begun": self.ready,
        }
        return {name: nodes for name, nodes in found.items() if nodes}


def heal(graph: Graph, past: Mapping[str, Past], *, mine: str | None = None) -> Healing:
    """Return what a run needs that has come so far, to continue by `graph`.

    `mine` is a node that the caller has claimed and not begun: it counts as scheduled.
    """
    healing = Healing(
        resumed=[node for node, latest in past.items() if latest.resumed],
        expanded={spread for node in past if (spread := graph.spread_of(node)) is not None},
    )
    _part(graph, past, healing)
    done = {node for node, latest in past.items() if latest.done and graph.knows(node)}
    before = _before(graph, {node for node in done if node in graph.nodes})
    _pass_over(graph, past, done, before, healing)
    counted = done | healing.passed
    _recount(graph, past, counted, healing, mine)
    busy = {node for node, latest in past.items() if latest.active and node not in healing.withdrawn}
    _count_items(graph, past, counted | busy, healing)
    ends = sum(sink in counted for sink in graph.sinks)
    if len(graph.sinks) > 1:
        healing.counts[END] = Count(ends, len(graph.sinks))
    healing.finished = ends == len(graph.sinks) and not healing.undefined and not busy
    healing.finished = healing.finished or any(_concludes(graph, past[node]) for node in done)
    # A worker may settle a node whose followers have settled, or begin one that had attempts before.
    healing.irregular = bool(
        len(counted) > len(done)
        or healing.withdrawn
        or healing.early
        or healing.undefined
        or any(node in before or graph.spread_of(node) in counted for node in busy)
        or any(graph.spread_of(node) in busy for node in past)
        or any(node in past for node in graph.nodes if node not in counted and node not in busy)
    )
    return healing


def _concludes(graph: Graph, latest: Past) -> bool:
    """Whether it is a result: the run ends with it, whatever else is under way."""
    node = graph.nodes.get(latest.node)
    return node is not None and node.kind == RESULT and latest.state == ExecutionState.COMPLETED


def _part(graph: Graph, past: Mapping[str, Past], healing: Healing) -> None:
    """Nodes of the past that the graph does not have."""
    for node, latest in past.items():
        if graph.knows(node):
            continue
        if latest.done or latest.outcome == Outcome.BYPASSED_BY_DEPLOY:
            healing.gone.append(node)
        elif latest.active or latest.stopped:
            healing.undefined.append(node)


def _pass_over(
    graph: Graph, past: Mapping[str, Past], done: set[str], before: set[str], healing: Healing
) -> None:
    """Nodes that stand before what is done, and are neither done nor under way."""
    healing.passed = {node for node in before - done if node not in past or not past[node].active}
    for node in graph.nodes:
        known = past.get(node)
        if node in healing.passed and (known is None or known.outcome != Outcome.BYPASSED_BY_DEPLOY):
            healing.bypassed.append(node)


def _recount(
    graph: Graph, past: Mapping[str, Past], counted: set[str], healing: Healing, mine: str | None
) -> None:
    for node, needs in graph.needs.items():
        if node in counted:
            continue
        settled = sum(needed in counted for needed in needs)
        if len(needs) > 1:
            healing.counts[node] = Count(settled, len(needs))
        known = past.get(node)
        ready = settled == len(needs)
        was_job = known is not None and known.scheduled and graph.nodes[node].inline
        if known is not None and known.active:
            if was_job or not ready:
                early = not known.scheduled and node != mine
                (healing.early if early else healing.withdrawn).append(node)
            if was_job and ready and node not in healing.expanded:
                healing.ready.append(node)
        elif node in healing.expanded:
            if not ready:
                healing.early.append(node)  # its items are under way, and it is collected with the last
        elif ready and not (known is not None and known.stopped):
            healing.ready.append(node)


def _before(graph: Graph, done: Collection[str]) -> set[str]:
    """The ancestors of what is done."""
    found: set[str] = set()
    todo = list(done)
    while todo:
        for needed in graph.needs[todo.pop()]:
            if needed not in found:
                found.add(needed)
                todo.append(needed)
    return found


def _count_items(graph: Graph, past: Mapping[str, Past], settling: set[str], healing: Healing) -> None:
    """Collect spreads by their items, unless the node is settled already, or by an execution of its own:

    it may have been a job in the graph before, and be under way as such.
    """
    items: dict[str, list[Past]] = {}
    for node, latest in past.items():
        spread = graph.spread_of(node)
        if spread is not None and spread not in settling and graph.nodes[spread].kind == SPREAD:
            items.setdefault(spread, []).append(latest)
    for spread, them in items.items():
        settled = sum(item.done for item in them)
        healing.counts[f"{spread}[]"] = Count(settled, len(them))
        if settled == len(them):
            healing.ready.append(f"{spread}[]")
