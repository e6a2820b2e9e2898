"""Graphs of growing size: the cost of a node must not grow with the graph that it is in."""

from __future__ import annotations

import resource
import time

import detent

from . import workflows
from .databases import server_cpu
from .shapes import CONCURRENCY, WIDTH, Figure


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
    before: list[detent.graphs.NodeRef] = []
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
    seconds, _ = _run(kind, url, fan_out("fan-out", WIDTH), warm=fan_out("warm", 10))
    return [Figure("graph: fan-out 1,000 + join", seconds, "s", "lower")]


def graph_chain(kind: str, url: str) -> list[Figure]:
    """A graph of 1,000 nodes one after the other: one commit each."""
    seconds, cpu = _run(kind, url, chain(1000), warm=fan_out("warm", 10))
    return [Figure("graph: chain of 1,000", 1000 / seconds, "nodes/s", "higher", cpu_ms=cpu * 1000 / 1000)]


def graph_layers(kind: str, url: str) -> list[Figure]:
    """10,000 nodes in layers of 100."""
    seconds, cpu = _run(kind, url, layered(100, 100), warm=fan_out("warm", 10))
    return [
        Figure("graph: 100 x 100 layers", 10_000 / seconds, "nodes/s", "higher", cpu_ms=cpu * 1000 / 10_000)
    ]


def graph_huge(kind: str, url: str) -> list[Figure]:
    """100,000 nodes in layers of 500, and the memory that it takes."""
    graph = layered(200, 500)
    before = _memory()
    seconds, cpu = _run(kind, url, graph, warm=fan_out("warm", 10))
    shape = "graph: 100,000 nodes"
    return [
        Figure(shape, 100_000 / seconds, "nodes/s", "higher", cpu_ms=cpu * 1000 / 100_000),
        Figure(shape, (_memory() - before) / 1024, "MiB", "lower"),
    ]


def _run(kind: str, url: str, graph: detent.Graph, *, warm: detent.Graph) -> tuple[float, float]:
    """Seconds from the start to the result, and CPU seconds of client and server."""
    with detent.App(url, include=workflows.ALL, migrate=True, concurrency=CONCURRENCY) as app:
        app.start(warm).result()
        cpu = time.process_time() + server_cpu(kind)
        begun = time.perf_counter()
        app.start(graph).result()
        return time.perf_counter() - begun, time.process_time() + server_cpu(kind) - cpu


def _memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
