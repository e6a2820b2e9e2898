"""Detent's own adapter: `python -m bench.ours SHAPE URL`, like those of its peers."""

from __future__ import annotations

from collections.abc import Callable

from .backlog import backlog
from .deciders import effects, hot_instance, inbox, many_instances, projection, timers
from .endurance import recovery, sleepers
from .graphs import graph_chain, graph_fan_out, graph_huge, graph_layers, graph_long_chain
from .peers.protocol import Figure, serve
from .queues import limits
from .scaling import scaling
from .shapes import SHAPES as FUNCTION_SHAPES
from .shapes import Shape
from .viewers import viewers

SHAPES: dict[str, Shape] = {
    **FUNCTION_SHAPES,
    "sleepers": sleepers,
    "recovery": recovery,
    "scaling": scaling,
    "limits": limits,
    "backlog": backlog,
    "viewers": viewers,
    "graph-fan-out": graph_fan_out,
    "graph-chain": graph_chain,
    "graph-long-chain": graph_long_chain,
    "graph-layers": graph_layers,
    "graph-huge": graph_huge,
    "decider-inputs": many_instances,
    "decider-hot": hot_instance,
    "decider-effects": effects,
    "decider-timers": timers,
    "decider-inbox": inbox,
    "decider-projection": projection,
}


def _with_url(shape: Shape) -> Callable[[str], list[Figure]]:
    return lambda url: shape(_kind(url), url)


def _kind(url: str) -> str:
    return {"postgresql": "postgres"}.get(url.partition(":")[0], url.partition(":")[0])


if __name__ == "__main__":
    serve({name: _with_url(shape) for name, shape in SHAPES.items()})
