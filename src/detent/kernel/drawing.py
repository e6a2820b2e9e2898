"""Drawing graphs: layers, folded fan-outs, Mermaid and DOT.  Pure text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

FOLDED_FROM = 4  # nodes side by side that have the same neighbours are drawn as one

_COLOURS = {
    "completed": "#3fa34d",
    "skipped": "#9aa0a6",
    "executing": "#2f7fd6",
    "scheduled": "#c9a227",
    "failed": "#d64545",
    "canceled": "#7d5ba6",
    "pending": "#c8ccd0",
}


class Drawn(msgspec.Struct, frozen=True):
    """A node, or several that look alike, as it is drawn."""

    id: str
    label: str
    state: str
    needs: tuple[str, ...]
    members: tuple[str, ...] = ()
    states: Mapping[str, int] | None = None
    shape: str = "job"
    handles: str | None = None  # the node whose error leads here


class Seen(msgspec.Struct, frozen=True):
    """A node as a drawing wants it."""

    id: str
    name: str
    kind: str
    state: str
    needs: tuple[str, ...]
    handles: str | None = None


def folded(nodes: Sequence[Seen], *, fold: bool = True) -> list[Drawn]:
    """The nodes to draw; fan-outs become one with a count of their states."""
    followers: dict[str, list[str]] = {}
    for node in nodes:
        for needed in node.needs:
            followers.setdefault(needed, []).append(node.id)
    groups: dict[tuple[str | None, ...], list[Seen]] = {}
    for node in nodes:
        behind = sorted(followers.get(node.id, ()))
        key = (node.kind, node.handles, *sorted(node.needs), None, *behind)
        groups.setdefault(key, []).append(node)
    stands_for: dict[str, str] = {}
    together: dict[str, list[Seen]] = {}
    for members in groups.values():
        if fold and len(members) >= FOLDED_FROM:
            together[members[0].id] = members
            stands_for.update({member.id: members[0].id for member in members})
    drawn = []
    for node in nodes:
        if stands_for.get(node.id, node.id) != node.id:
            continue
        needs = tuple(dict.fromkeys(stands_for.get(needed, needed) for needed in node.needs))
        handles = None if node.handles is None else stands_for.get(node.handles, node.handles)
        alike = together.get(node.id)
        if alike is None:
            drawn.append(Drawn(node.id, node.name, node.state, needs, shape=node.kind, handles=handles))
        else:
            states = Counter(member.state for member in alike)
            label = f"{_common([member.name for member in alike])} × {len(alike)}"
            ids = tuple(member.id for member in alike)
            drawn.append(
                Drawn(node.id, label, _overall(states), needs, ids, dict(states), node.kind, handles)
            )
    return drawn


def _common(names: Sequence[str]) -> str:
    """What the names of many nodes have in common: `mutation_…`."""
    first, last = min(names), max(names)
    length = next(
        (n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last))
    )
    return f"{first[:length]}…" if length else f"{first}…{last}"


def _overall(states: Mapping[str, int]) -> str:
    for state in ("failed", "executing", "scheduled", "canceled", "pending", "completed", "skipped"):
        if states.get(state):
            return state
    return "pending"


def layers(drawn: Sequence[Drawn]) -> list[list[Drawn]]:
    """The nodes by how far they are from the beginning."""
    known = {node.id: node for node in drawn}
    left = {node.id: [needed for needed in node.needs if needed in known] for node in drawn}
    depth: dict[str, int] = {}
    waiting = {id: len(needs) for id, needs in left.items()}
    followers: dict[str, list[str]] = {}
    for id, needs in left.items():
        for needed in needs:
            followers.setdefault(needed, []).append(id)
    free = [id for id, count in waiting.items() if count == 0]
    while free:
        id = free.pop(0)
        depth[id] = 1 + max((depth[needed] for needed in left[id]), default=-1)
        for follower in followers.get(id, ()):
            waiting[follower] -= 1
            if waiting[follower] == 0:
                free.append(follower)
    rows: list[list[Drawn]] = [[] for _ in range(1 + max(depth.values(), default=-1))]
    for node in drawn:
        rows[depth[node.id]].append(node)
    return rows


def counted(states: Mapping[str, int]) -> str:
    """`180 completed, 20 scheduled`."""
    return ", ".join(f"{number} {state}" for state, number in sorted(states.items()))


def to_mermaid(drawn: Iterable[Drawn]) -> str:
    """A flow chart, for Markdown."""
    nodes = list(drawn)
    short = {node.id: f"n{number}" for number, node in enumerate(nodes)}
    lines = ["graph TD"]
    for node in nodes:
        opening, closing = {"when": ("{", "}"), "spread": ("[[", "]]"), "result": ("([", "])")}.get(
            node.shape, ("[", "]")
        )
        label = _label(node).replace('"', "#quot;").replace("\n", "<br/>")
        lines.append(f'    {short[node.id]}{opening}"{label}"{closing}:::{node.state}')
    for node in nodes:
        for needed in node.needs:
            arrow = "-. error .->" if needed == node.handles else "-->"
            if needed in short:
                lines.append(f"    {short[needed]} {arrow} {short[node.id]}")
    used = sorted({node.state for node in nodes})
    lines += [f"    classDef {state} fill:{_COLOURS[state]},color:#fff,stroke:none" for state in used]
    return "\n".join(lines) + "\n"


def to_dot(drawn: Iterable[Drawn], name: str) -> str:
    """A graph for Graphviz."""
    nodes = list(drawn)
    known = {node.id for node in nodes}
    shapes = {"when": "diamond", "spread": "box3d", "result": "oval"}
    lines = [f"digraph {quoted(name)} {{", "    rankdir=TB;", "    node [style=filled, fontcolor=white];"]
    for node in nodes:
        shape = shapes.get(node.shape, "box")
        colour = _COLOURS[node.state]
        lines.append(
            f'    {quoted(node.id)} [label={quoted(_label(node))}, shape={shape}, color="{colour}"];'
        )
    for node in nodes:
        for needed in node.needs:
            style = ' [style=dashed, label="error"]' if needed == node.handles else ""
            if needed in known:
                lines.append(f"    {quoted(needed)} -> {quoted(node.id)}{style};")
    return "\n".join([*lines, "}"]) + "\n"


def _label(node: Drawn) -> str:
    return node.label if node.states is None else f"{node.label}\n{counted(node.states)}"


def quoted(text: str) -> str:
    """A text as DOT takes it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
