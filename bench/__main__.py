"""`make bench`: measure, show a table, write `bench/results/*.json`.

Shapes and databases are interleaved and repeated; the best of the repeats counts,
because other load on the machine only ever makes things slower.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from .databases import URLS, fresh_database
from .deciders import effects, hot_instance, inbox, many_instances, projection, timers
from .graphs import graph_chain, graph_fan_out, graph_huge, graph_layers
from .shapes import ONCE, Figure
from .shapes import SHAPES as FUNCTION_SHAPES

RESULTS = Path(__file__).parent / "results"
Key = tuple[str, str, str, str]


SHAPES = {
    **FUNCTION_SHAPES,
    "graph-fan-out": graph_fan_out,
    "graph-chain": graph_chain,
    "graph-layers": graph_layers,
    "graph-huge": graph_huge,
    "decider-inputs": many_instances,
    "decider-hot": hot_instance,
    "decider-effects": effects,
    "decider-timers": timers,
    "decider-inbox": inbox,
    "decider-projection": projection,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--databases", default="sqlite,postgres,mysql")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--one", nargs=2, metavar=("SHAPE", "DATABASE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        _measure_here(*options.one)
        return
    databases = [d for d in options.databases.split(",") if d == "sqlite" or os.environ.get(URLS[d])]
    figures = _measure(databases, options.shapes.split(","), options.repeat)
    _show(figures)
    print(f"\nwritten to {_write(figures)}")


def _measure(databases: list[str], shapes: list[str], repeat: int) -> dict[Key, Figure]:
    """Each measurement in a process of its own, so that none warms up or slows down another."""
    best: dict[Key, Figure] = {}
    for number in range(repeat):
        for shape in shapes:
            for database in databases[:1] if shape in ONCE else databases:
                print(f"round {number + 1}/{repeat}: {shape} on {database}", file=sys.stderr)
                done = subprocess.run(
                    [sys.executable, "-m", "bench", "--one", shape, database],
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if done.returncode:
                    raise SystemExit(f"{shape} on {database} failed:\n{done.stderr}")
                for row in json.loads(done.stdout.splitlines()[-1]):
                    _keep(best, database, Figure(**row))
    return best


def _keep(best: dict[Key, Figure], database: str, figure: Figure) -> None:
    key = (figure.shape, database, figure.system, figure.unit)
    known = best.get(key)
    better = known is None or (
        figure.value > known.value if figure.better == "higher" else figure.value < known.value
    )
    samples = [*(known.samples if known and not figure.samples else []), *(figure.samples or [figure.value])]
    if better:
        best[key] = figure
    best[key].samples = samples


def _measure_here(shape: str, database: str) -> None:
    with fresh_database(database) as url:
        print(json.dumps([vars(figure) for figure in SHAPES[shape](database, url)]))


def _show(figures: dict[Key, Figure]) -> None:
    table = Table(title="Detent, best of the repeats")
    for title in ("shape", "database", "system", "value", "unit", "CPU-ms/unit", "of the limit"):
        table.add_column(
            title, justify="right" if title in ("value", "CPU-ms/unit", "of the limit") else "left"
        )
    for (shape, database, system, unit), figure in sorted(figures.items()):
        limit = next(
            (
                f
                for (s, d, n, _), f in figures.items()
                if s == shape and d == database and n.startswith("limit:")
            ),
            None,
        )
        share = "" if limit is None or figure is limit else f"{figure.value / limit.value:.0%}"
        cpu = "" if figure.cpu_ms is None else f"{figure.cpu_ms:.3f}"
        table.add_row(shape, database, system, f"{figure.value:,.2f}", unit, cpu, share)
    Console(width=130).print(table)


def _write(figures: dict[Key, Figure]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    now = datetime.now(UTC)
    rows = [
        {
            "shape": shape,
            "database": database,
            "system": system,
            **{k: v for k, v in vars(figure).items() if k != "system"},
        }
        for (shape, database, system, _), figure in figures.items()
    ]
    facts = {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
    path = RESULTS / f"{now:%Y%m%dT%H%M%SZ}.json"
    path.write_text(json.dumps({"at": now.isoformat(), "machine": facts, "rows": rows}, indent=1))
    return path


if __name__ == "__main__":
    main()
