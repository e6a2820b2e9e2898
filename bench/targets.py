"""What Detent sets itself, and where the figures say that it is not there, or not ahead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .plots import short
from .table import COMPARED_WITH, ratio

Row = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """At least (`higher`) or at most (`lower`) so much; of the limit, where there is one."""

    shape: str
    wanted: float
    field: str = "value"
    of_limit: bool = False
    databases: tuple[str, ...] = ("postgres", "sqlite", "mysql")


TARGETS = (
    Target("500 x 5 steps", 20_000, databases=("postgres",)),
    Target("500 x 5 steps", 0.055, field="cpu_ms", databases=("postgres",)),
    Target("1 x 100 steps", 0.8, of_limit=True, databases=("postgres", "sqlite")),
    Target("1 x 100 steps", 0.65, of_limit=True, databases=("mysql",)),
    Target("5,000 one-step runs", 8_000, databases=("sqlite",)),
    Target("5,000 one-step runs", 5_000, databases=("mysql",)),
    Target("5,000 one-step runs", 2_400, field="wal_bytes", databases=("postgres",)),
    Target("10,000 runs, 1,000 keys, one at a time per key", 2_000, databases=("postgres",)),
    Target("fan-out 1,000 + join", 0.15, databases=("postgres",)),
    Target("graph: chain of 1,000", 1_800, databases=("postgres",)),
    Target("idle start, same process", 1.5, databases=("postgres",)),
    Target("idle start, other process", 4.0, databases=("postgres",)),
    Target("graph: 100 x 100 layers", 5_000, databases=("postgres",)),
    Target("decider: 1,000 instances", 5_000, databases=("postgres",)),
    Target("import", 90),
    Target("idle worker, queries", 1.0),
    Target("idle worker, CPU", 0.5),
)
COSTS = {"cpu_ms": "CPU-ms for each", "wal_bytes": "bytes of WAL for each"}  # less is better


def missed(rows: list[Row]) -> list[str]:
    """A sentence for each target that these figures do not reach."""
    found = []
    for target in TARGETS:
        for row in rows:
            mine = row["system"] == "detent" and row["shape"] == target.shape
            if mine and row["value"] is not None and row["database"] in target.databases:
                sentence = _judge(target, row, rows)
                if sentence:
                    found.append(sentence)
    return found


def _judge(target: Target, row: Row, rows: list[Row]) -> str | None:
    value, unit, better = row[target.field], row["unit"], row["better"]
    if target.field in COSTS:
        unit, better = COSTS[target.field], "lower"
    if target.of_limit:
        limit = next(
            (
                r
                for r in rows
                if r["shape"] == row["shape"] and r["database"] == row["database"] and _is_limit(r)
            ),
            None,
        )
        if limit is None or not limit["value"]:
            return None
        value, unit = value / limit["value"], "of the server's own commit rate"
    if value is None or (value >= target.wanted if better == "higher" else value <= target.wanted):
        return None
    bound = "at least" if better == "higher" else "at most"
    place = f"{row['shape']} on {row['database']}"
    return f"{place}: {short(value)} {unit}; the target is {bound} {short(target.wanted)}"


def _is_limit(row: Row) -> bool:
    return str(row["system"]).startswith("limit:")


def behind(rows: list[Row]) -> list[str]:
    """A sentence for each peer that is better than Detent at something."""
    found = []
    for row in rows:
        times = ratio(row, rows)
        if times is None or times >= 1 or _is_limit(row):
            continue
        against = COMPARED_WITH.get(row["database"], row["database"])
        note = f" ({row['note']})" if row.get("note") else ""
        found.append(
            f"{row['shape']}: {row['system']} on {row['database']} is {1 / times:.2f} times as good as Detent"
            f" on {against}: {short(row['value'])} {row['unit']}{note}"
        )
    return found
