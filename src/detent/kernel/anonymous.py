"""Anonymous steps of a class: their names are their numbers, so a deploy may give a name to another body.

    before: step_1 = charge the card            after: step_1 = check the address
                                                       step_2 = charge the card

A run that has completed `step_1` would charge the card again.  Each anonymous node carries a
fingerprint of its body; a body that is found under another number has moved.  An edited body has
another fingerprint, and keeps its number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from .graph import Graph
from .heal import Past
from .rows import ExecutionState


def moved(before: Graph, now: Graph, past: Mapping[str, Past], *, mine: str | None = None) -> dict[str, str]:
    """The anonymous steps that a run has done or is at, and that have another body now.

    `{"step_1": "step_2"}`: the body of step_1 is step_2 now, or the one that is step_1 now was step_2.
    `mine` is a node that the caller has claimed and not begun.
    """
    return {
        name: other
        for name, other in places_moved(before, now).items()
        if name in past and (past[name].done or _executing(past[name], mine))
    }


def places_moved(before: Graph, now: Graph) -> dict[str, str]:
    """The names that have another body now; with the other name of that body, or of the former one."""
    if not (before.anonymous and now.anonymous):
        return {}
    old, new = _places(before), _places(now)
    found: dict[str, str] = {}
    for name, node in before.nodes.items():
        if node.body is None or name not in now.nodes or now.nodes[name].body == node.body:
            continue
        elsewhere = new.get(node.body) or old.get(now.nodes[name].body or "")
        if elsewhere is not None:
            found[name] = elsewhere
    return found


def _executing(latest: Past, mine: str | None) -> bool:
    return latest.state == ExecutionState.EXECUTING and latest.node != mine


def _places(graph: Graph) -> dict[str, str]:
    """Where each body is, if it is in one place only."""
    bodies = {name: node.body for name, node in graph.nodes.items() if node.body is not None}
    times = Counter(bodies.values())
    return {body: name for name, body in bodies.items() if times[body] == 1}
