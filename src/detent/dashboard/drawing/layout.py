"""Layered layout of a directed acyclic graph, from top to bottom.

The four steps of Sugiyama's method:

    1. Layers.     A node lies one layer below the lowest of the nodes that it needs.
    2. Waypoints.  An edge that passes a layer gets a waypoint in it, so that it is routed around the nodes.
    3. Order.      Sweeps down and up order each layer by the median of its neighbours; the order with the
                   fewest crossings is kept.
    4. Places.     Sweeps move each node towards the middle of its neighbours, as far as the order allows.

The result is deterministic.  Two promises hold for every graph, whatever the sweeps do: nodes never overlap,
and every edge goes down.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

GAP_X = 28.0  # between two nodes of a layer
GAP_Y = 46.0  # between two layers
WAYPOINT = 8.0  # the width that an edge takes in a layer that it passes
MOST_WAYPOINTS = 4_000  # beyond, edges are drawn straight: such a graph is folded before people read it
SWEEPS = 8


@dataclass(frozen=True, slots=True)
class Box:
    """A node to place: its size, and the ids of the nodes that it needs."""

    id: str
    width: float
    height: float
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a node lies: its left upper corner, and its layer."""

    id: str
    x: float
    y: float
    width: float
    height: float
    layer: int


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge from the lower side of one node to the upper side of another."""

    source: str
    target: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """A placed graph."""

    nodes: tuple[Placed, ...]
    edges: tuple[Edge, ...]
    width: float
    height: float


class CyclicGraph(ValueError):
    """The graph has a cycle, and so no layers."""


def layers_of(needs: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """The layer of each node; ids that are not nodes do not count."""
    waiting = {id: sum(one in needs for one in needed) for id, needed in needs.items()}
    followers: dict[str, list[str]] = {id: [] for id in needs}
    for id, needed in needs.items():
        for one in needed:
            if one in followers:
                followers[one].append(id)
    layer = dict.fromkeys(needs, 0)
    free = deque(id for id, count in waiting.items() if count == 0)
    seen = 0
    while free:
        id = free.popleft()
        seen += 1
        for follower in followers[id]:
            layer[follower] = max(layer[follower], layer[id] + 1)
            waiting[follower] -= 1
            if waiting[follower] == 0:
                free.append(follower)
    if seen < len(needs):
        raise CyclicGraph(f"{len(needs) - seen} nodes need each other in a circle")
    return layer


def place(boxes: Sequence[Box]) -> Layout:
    """Place all nodes."""
    if not boxes:
        return Layout((), (), 0.0, 0.0)
    return _Placing(boxes).layout()


class _Placing:
    """One layout in the making.  Nodes and waypoints are numbers: the first ones are the nodes."""

    def __init__(self, boxes: Sequence[Box]) -> None:
        self.boxes = boxes
        self.number = {box.id: n for n, box in enumerate(boxes)}
        layer = layers_of({box.id: box.needs for box in boxes})
        self.layer = [layer[box.id] for box in boxes]
        self.width = [box.width for box in boxes]
        self.edges = [
            (self.number[need], n)
            for n, box in enumerate(boxes)
            for need in dict.fromkeys(box.needs)
            if need in self.number
        ]
        self.routes = self._routes()
        self.above: list[list[int]] = [[] for _ in self.layer]
        self.below: list[list[int]] = [[] for _ in self.layer]
        for route in self.routes:
            for upper, lower in itertools.pairwise(route):
                self.below[upper].append(lower)
                self.above[lower].append(upper)
        self.rows: list[list[int]] = [[] for _ in range(1 + max(self.layer))]
        for n, depth in enumerate(self.layer):
            self.rows[depth].append(n)

    def _routes(self) -> list[list[int]]:
        """Each edge as the nodes and waypoints that it connects."""
        passed = sum(self.layer[b] - self.layer[a] - 1 for a, b in self.edges)
        routes = []
        for a, b in self.edges:
            between = range(self.layer[a] + 1, self.layer[b]) if passed <= MOST_WAYPOINTS else range(0)
            route = [a]
            for depth in between:
                route.append(len(self.layer))
                self.layer.append(depth)
                self.width.append(WAYPOINT)
            routes.append([*route, b])
        return routes

    def layout(self) -> Layout:
        self._order()
        centre = self._centres()
        left = min(centre[n] - self.width[n] / 2 for n in range(len(self.layer)))
        tops, height = self._tops()
        nodes = tuple(
            Placed(
                box.id,
                round(centre[n] - box.width / 2 - left, 1),
                round(tops[self.layer[n]], 1),
                box.width,
                box.height,
                self.layer[n],
            )
            for n, box in enumerate(self.boxes)
        )
        right = max(centre[n] + self.width[n] / 2 for n in range(len(self.layer)))
        edges = tuple(self._edge(route, centre, left, tops) for route in self.routes)
        return Layout(nodes, edges, round(right - left, 1), round(height, 1))

    # Order

    def _order(self) -> None:
        best, fewest = [list(row) for row in self.rows], self._crossings()
        for sweep in range(SWEEPS):
            if fewest == 0:
                break
            self._sweep(downwards=sweep % 2 == 0)
            crossings = self._crossings()
            if crossings < fewest:
                best, fewest = [list(row) for row in self.rows], crossings
        self.rows = best

    def _sweep(self, *, downwards: bool) -> None:
        neighbours = self.above if downwards else self.below
        rows = self.rows[1:] if downwards else self.rows[-2::-1]
        previous = self.rows[0] if downwards else self.rows[-1]
        for row in rows:
            place = {n: at for at, n in enumerate(previous)}
            own = {n: at for at, n in enumerate(row)}
            scale = max(1, len(previous)) / max(1, len(row))
            row.sort(key=lambda n: _median([place[one] for one in neighbours[n]], own[n] * scale))
            previous = row

    def _crossings(self) -> int:
        """How many pairs of edges between neighbouring layers cross."""
        total = 0
        for upper, lower in zip(self.rows, self.rows[1:], strict=False):
            place = {n: at for at, n in enumerate(lower)}
            seen: list[int] = []  # the lower ends so far, sorted: those behind an end cross its edge
            for n in upper:
                ends = sorted(place[one] for one in self.below[n])
                total += sum(len(seen) - bisect_right(seen, end) for end in ends)
                seen = sorted(seen + ends)
        return total

    # Places

    def _centres(self) -> list[float]:
        """The horizontal centre of everything."""
        centre = [0.0] * len(self.layer)
        for row in self.rows:
            at = 0.0
            for n in row:
                centre[n] = at + self.width[n] / 2
                at += self.width[n] + GAP_X
            middle = (at - GAP_X) / 2
            for n in row:
                centre[n] -= middle
        for sweep in range(SWEEPS):
            rows = self.rows if sweep % 2 == 0 else self.rows[::-1]
            neighbours = self.above if sweep % 2 == 0 else self.below
            for row in rows:
                wanted = [_mean([centre[one] for one in neighbours[n]], centre[n]) for n in row]
                for n, x in zip(row, _spread(wanted, [self.width[n] for n in row]), strict=True):
                    centre[n] = x
        return centre

    def _tops(self) -> tuple[list[float], float]:
        """The upper side of each layer, and the height of all."""
        tallest = [0.0] * len(self.rows)
        for n, box in enumerate(self.boxes):
            tallest[self.layer[n]] = max(tallest[self.layer[n]], box.height)
        tops, at = [], 0.0
        for height in tallest:
            tops.append(at)
            at += height + GAP_Y
        return tops, at - GAP_Y

    def _edge(self, route: list[int], centre: list[float], left: float, tops: list[float]) -> Edge:
        first, last = route[0], route[-1]
        points = [(centre[first] - left, tops[self.layer[first]] + self.boxes[first].height)]
        points += [(centre[n] - left, tops[self.layer[n]] + GAP_Y / 2) for n in route[1:-1]]
        points.append((centre[last] - left, tops[self.layer[last]]))
        rounded = tuple((round(x, 1), round(y, 1)) for x, y in points)
        return Edge(self.boxes[first].id, self.boxes[last].id, rounded)


def _median(places: list[int], otherwise: float) -> float:
    if not places:
        return otherwise
    places.sort()
    middle = len(places) // 2
    return float(places[middle]) if len(places) % 2 else (places[middle - 1] + places[middle]) / 2


def _mean(places: list[float], otherwise: float) -> float:
    return sum(places) / len(places) if places else otherwise


def _spread(wanted: list[float], widths: list[float]) -> list[float]:
    """Centres close to those wanted, in this order, that keep the distances.

    Neighbours that are too close are merged into a block, which lies where its members want to be on average.
    """
    blocks: list[tuple[float, int, float]] = []  # sum of what its members want, their number, length so far
    offsets: list[float] = []  # of each node from the beginning of its block
    starts: list[int] = []
    for n, want in enumerate(wanted):
        total, count, length = want, 1, 0.0
        offsets.append(0.0)
        starts.append(n)
        while blocks:
            before_total, before_count, before_length = blocks[-1]
            first = starts[-1]
            distance = (widths[first - 1] + widths[first]) / 2 + GAP_X
            begin = before_total / before_count
            if begin + before_length + distance <= total / count:
                break
            shift = before_length + distance
            for member in range(first, n + 1):
                offsets[member] += shift
            total = before_total + total - shift * count
            count += before_count
            length += shift
            blocks.pop()
            starts.pop()
        blocks.append((total, count, length))
    places = [0.0] * len(wanted)
    bounds = [*starts, len(wanted)]
    for block, (total, count, _) in enumerate(blocks):
        for member in range(bounds[block], bounds[block + 1]):
            places[member] = total / count + offsets[member]
    return places


def smooth(points: Sequence[tuple[float, float]]) -> str:
    """The path of an SVG through these points: a curve that is vertical at each of them."""
    x, y = points[0]
    parts = [f"M{x:g} {y:g}"]
    for a, b in points[1:]:
        middle = (y + b) / 2
        parts.append(f"C{x:g} {middle:g} {a:g} {middle:g} {a:g} {b:g}")
        x, y = a, b
    return "".join(parts)
