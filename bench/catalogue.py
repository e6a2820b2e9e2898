"""What there is to measure: shapes, systems, and on which databases a system can be measured."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from .databases import URLS
from .ours import SHAPES as OURS
from .peers.protocol import TITLES
from .peers.venvs import version_of

# Where a peer keeps its state; `own` and `redis` are servers that its adapter starts.
SYSTEMS: dict[str, tuple[str, ...]] = {
    "detent": ("postgres", "sqlite", "mysql"),
    "dbos": ("postgres", "sqlite"),
    "absurd": ("postgres",),
    "langgraph": ("postgres", "sqlite"),
    "pgqueuer": ("postgres",),
    "procrastinate": ("postgres",),
    "pgqrs": ("postgres",),
    "celery": ("redis",),
    "waymark": ("postgres",),
    "restate": ("own",),
    "prefect": ("postgres", "sqlite"),
}
SHAPES = tuple(OURS)
# The shapes that peers are asked for, and what to call a missing one.
COMPARED = {
    "steps": TITLES["steps"][0],
    "sequence": TITLES["sequence"][0],
    "runs": TITLES["runs"][0],
    "singles": TITLES["singles"][0],
    "fan-out": TITLES["fan-out"][0],
    "limits": TITLES["limits"][0],
    "latency": TITLES["latency-same"][0],
    "idle": TITLES["idle-cpu"][0],
    "import": TITLES["import"][0],
}
ONCE = {"import"}  # does not depend on the database


def text() -> str:
    """For --list."""
    lines = ["shapes (those with * are measured on every system, the rest on Detent alone):"]
    for name, shape in OURS.items():
        said = (shape.__doc__ or "").strip().splitlines()[0]
        lines.append(f"  {'*' if name in COMPARED else ' '} {name:18} {said}")
    lines.append("systems, and where they keep their state:")
    for name, databases in SYSTEMS.items():
        version = "this checkout" if name == "detent" else version_of(name)
        lines.append(f"    {name:18} {', '.join(databases):24} {version}")
    return "\n".join(lines)


def known(wanted: list[str], all_of_them: Iterable[str]) -> list[str]:
    """What was asked for; an unknown name is an error, not an empty table."""
    unknown = sorted(set(wanted) - set(all_of_them))
    if unknown:
        raise SystemExit(f"unknown: {', '.join(unknown)}; see python -m bench --list")
    return wanted


def available(databases: list[str]) -> list[str]:
    """Those that run; a server is named by its variable, see tools/servers.py."""
    known(databases, ("sqlite", "postgres", "mysql"))
    found = [name for name in databases if name == "sqlite" or os.environ.get(URLS[name])]
    for name in databases:
        if name not in found:
            print(f"nothing is measured on {name}: {URLS[name]} is not set", file=sys.stderr)
    return found
