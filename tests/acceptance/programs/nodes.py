"""Jobs of large graphs, and the graphs."""

from collections.abc import Callable

import detent
from detent import step
from detent.definitions.graphs import NodeRef


@step
async def work(ctx: detent.Context) -> str:
    return ctx.key


@step
def total(names: list[str]) -> int:
    return len(set(names))


def fan_out() -> detent.Graph:
    """A thousand side by side, and one that gets what all of them returned."""
    g = detent.Graph("fan-out")
    parts = g.fan_out(range(1000), name=lambda i: f"part_{i}", job=work, depends_on=None)
    g.node("total", job=total, args={"names": parts.outputs})
    return g


def chain() -> detent.Graph:
    g = detent.Graph("chain")
    for number in range(1000):
        g.node(f"link_{number}", job=work)
    return g


def layered(layers: int, width: int) -> detent.Graph:
    """Layers in which every node needs three of the layer before."""
    g = detent.Graph("layers")
    before: list[NodeRef] = []
    for layer in range(layers):
        row = [
            g.node(
                f"node_{layer}_{place}",
                job=work,
                depends_on=[before[(place + offset) % width] for offset in range(3)] if before else None,
            )
            for place in range(width)
        ]
        before = row
    return g


def layers() -> detent.Graph:
    return layered(100, 100)


def huge() -> detent.Graph:
    return layered(200, 500)


SHAPES: dict[str, Callable[[], detent.Graph]] = {
    "fan_out": fan_out,
    "chain": chain,
    "layers": layers,
    "huge": huge,
}
