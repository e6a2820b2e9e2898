"""Graphs of growing size: the cost of a node must not grow with the graph that it is in."""

from __future__ import annotations

import resource

import detent
from detent.definitions.graphs import NodeRef

from . import workflows
from .peers.protocol import CONCURRENCY, TITLES, WIDTH, Figure, Window, from_window, window


def fan_out(name: str, width: int) -> detent.Graph:
    g = detent.Graph(name)
    parts = g.fan_out(
        range(width),
        name=lambda i: f"part_{i}",
        job=workflows.anoop,
        args=lambda i: {"number": i},
        depends_on=None,
    )
    g.node("join", job=workflows.anoop, args={"number": 0}, depends_on=parts)
    return g


def chain(length: int) -> detent.Graph:
    g = detent.Graph("chain")
    for number in range(length):
        g.node(f"link_{number}", job=workflows.anoop, args={"number": number})
    return g


def layered(layers: int, width: int) -> detent.Graph:
    """Every node needs three of the layer before."""
    g = detent.Graph("layers")
    before: list[NodeRef] = []
    for layer in range(layers):
        before = [
            g.node(
                f"node_{layer}_{place}",
                job=workflows.anoop,
                args={"number": place},
                depends_on=[before[(place + offset) % width] for offset in range(3)] if before else None,
            )
            for place in range(width)
        ]
    return g


def graph_fan_out(kind: str, url: str) -> list[Figure]:
    """A graph of 1,000 nodes side by side and a join."""
    seen = _run(url, fan_out("fan-out", WIDTH))
    return [from_window(Figure("graph: fan-out 1,000 + join", seen.seconds, "s", "lower", units=WIDTH), seen)]


def graph_chain(kind: str, url: str) -> list[Figure]:
    """A graph of 1,000 nodes one after the other: one commit each."""
    return [_nodes("graph: chain of 1,000", 1000, _run(url, chain(1000)))]


def graph_long_chain(kind: str, url: str) -> list[Figure]:
    """Ten times as long a chain: a link must not cost more."""
    return [_nodes("graph: chain of 10,000", 10_000, _run(url, chain(10_000)))]


def graph_layers(kind: str, url: str) -> list[Figure]:
    """10,000 nodes in layers of 100."""
    return [_nodes("graph: 100 x 100 layers", 10_000, _run(url, layered(100, 100)))]


def graph_huge(kind: str, url: str) -> list[Figure]:
    """100,000 nodes in layers of 500, and the memory that it takes."""
    graph = layered(200, 500)
    before = _memory()
    seen = _run(url, graph)
    shape = TITLES["graph-huge"][0]
    return [_nodes(shape, 100_000, seen), Figure(shape, (_memory() - before) / 1024, "MiB", "lower")]


def _nodes(shape: str, units: int, seen: Window) -> Figure:
    return from_window(Figure(shape, units / seen.seconds, "nodes/s", "higher", units=units), seen)


def _run(url: str, graph: detent.Graph) -> Window:
    """From the start to the result, after a small graph that warms up."""
    with detent.App(url, include=workflows.ALL, migrate=True, concurrency=CONCURRENCY) as app:
        app.start(fan_out("warm", 10)).result()
        with window() as seen:
            app.start(graph).result()
        return seen


def _memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
