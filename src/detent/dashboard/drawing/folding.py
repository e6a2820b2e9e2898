"""Folding: a graph of any size becomes one that a person can read and a browser can draw.

    1. Fan-outs.  Nodes side by side with the same neighbours are one node with a progress (kernel.drawing).
    2. Chains.    Nodes in a row, each with one predecessor and one follower, are one node.
    3. Layers.    All nodes of a layer are one node.

Each step is taken only if more than `MOST` nodes are left after the one before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ...kernel.drawing import Drawn
from .layout import layers_of

MOST = 1_000


def fold(drawn: Sequence[Drawn]) -> list[Drawn]:
    """At most `MOST` nodes, where a chain of layers is not longer than that."""
    found = list(drawn)
    for step in (_chains, _layers, _chains):
        if len(found) <= MOST:
            break
        found = step(found)
    return found


def _chains(drawn: list[Drawn]) -> list[Drawn]:
    known = {node.id: node for node in drawn}
    followers: Counter[str] = Counter(need for node in drawn for need in node.needs if need in known)
    head: dict[str, str] = {}
    groups: dict[str, list[Drawn]] = {}
    for node in _ordered(drawn):
        inside = [need for need in node.needs if need in known]
        single = len(inside) == 1 and followers[inside[0]] == 1
        first = head[inside[0]] if single else node.id
        head[node.id] = first
        groups.setdefault(first, []).append(node)
    return _merged(groups, head)


def _layers(drawn: list[Drawn]) -> list[Drawn]:
    layer = layers_of({node.id: node.needs for node in drawn})
    groups: dict[int, list[Drawn]] = {}
    for node in drawn:
        groups.setdefault(layer[node.id], []).append(node)
    head = {node.id: group[0].id for group in groups.values() for node in group}
    return _merged({group[0].id: group for group in groups.values()}, head)


def _ordered(drawn: list[Drawn]) -> list[Drawn]:
    layer = layers_of({node.id: node.needs for node in drawn})
    return sorted(drawn, key=lambda node: layer[node.id])


def _merged(groups: Mapping[str, Sequence[Drawn]], head: Mapping[str, str]) -> list[Drawn]:
    found = []
    for first, members in groups.items():
        inside = {member.id for member in members}
        needs = dict.fromkeys(
            head[need] for member in members for need in member.needs if need in head and need not in inside
        )
        if len(members) == 1:
            [node] = members
            found.append(
                Drawn(
                    node.id,
                    node.label,
                    node.state,
                    tuple(needs),
                    node.members,
                    node.states,
                    node.shape,
                    None if node.handles is None else head.get(node.handles, node.handles),
                )
            )
            continue
        states: Counter[str] = Counter()
        for member in members:
            states.update(member.states or {member.state: 1})
        number = sum(states.values())
        label = f"{members[0].label} … {members[-1].label} × {number}"
        ids = tuple(id for member in members for id in (member.members or (member.id,)))
        found.append(Drawn(first, label, overall(states), tuple(needs), ids, dict(states), "job"))
    return found


def overall(states: Mapping[str, int]) -> str:
    """The state that stands for many: what needs attention comes first."""
    order = ("failed", "executing", "paused", "scheduled", "waiting", "canceled", "pending", "completed")
    return next((state for state in order if states.get(state)), "skipped")
