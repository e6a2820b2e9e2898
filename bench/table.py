"""The table in the terminal: Detent, its peers and the limits, shape by shape, with ratios."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

Row = dict[str, Any]
# Peers that bring a store of their own are compared with Detent on its usual server.
COMPARED_WITH: dict[str, str] = {"redis": "postgres", "own": "postgres"}
NUMBERS = ("value", "Detent is", "CPU-ms", "tx", "writes", "stmts", "WAL B", "MiB")


def ratio(row: Row, rows: list[Row]) -> float | None:
    """How many times better than this row Detent is: above 1 it is ahead, below 1 it is not."""
    ours = detent_row(row, rows)
    if ours is None or row["system"] == "detent" or not row["value"] or not ours["value"]:
        return None
    times: float = (
        ours["value"] / row["value"] if ours["better"] == "higher" else row["value"] / ours["value"]
    )
    return times


def detent_row(row: Row, rows: list[Row]) -> Row | None:
    """Detent's own figure to hold beside this one."""
    database = COMPARED_WITH.get(row["database"], row["database"])
    for other in rows:
        same = other["shape"] == row["shape"] and other["database"] == database
        if same and other["system"] == "detent" and other["value"] is not None and _alike(other, row):
            return other
    return None


def _alike(one: Row, other: Row) -> bool:
    # A limit counts commits where Detent counts steps: the same thing, done bare.
    return one["unit"] == other["unit"] or str(other["system"]).startswith("limit:")


def ordered(rows: list[Row]) -> list[Row]:
    """Shapes as they were measured; Detent first, then the others from the best on, what is missing last."""
    shapes = list(dict.fromkeys(row["shape"] for row in rows))
    databases = ["postgres", "redis", "own", "sqlite", "mysql"]

    def place(row: Row) -> tuple[Any, ...]:
        value = row["value"]
        sign = -1 if row["better"] == "higher" else 1
        group = COMPARED_WITH.get(str(row["database"]), str(row["database"]))
        return (
            shapes.index(row["shape"]),
            databases.index(group),
            value is None,
            row["system"] != "detent",
            row["unit"] or "",
            sign * (value or 0.0),
            row["system"],
        )

    return sorted(rows, key=place)


def show(rows: list[Row]) -> None:
    table = Table(
        title="Best of the repeats. CPU, transactions, those that wrote, statements and WAL are per unit"
    )
    titles = ["shape", "database", "system", "value", "unit", "Detent is", *NUMBERS[2:], "note"]
    for title in titles:
        table.add_column(title, justify="right" if title in NUMBERS else "left", overflow="fold")
    last = None
    for row in ordered(rows):
        if last not in (None, row["shape"]):
            table.add_section()
        last = row["shape"]
        times = ratio(row, rows)
        table.add_row(
            row["shape"],
            row["database"],
            row["system"],
            number(row["value"]),
            row["unit"] or "",
            "" if times is None else f"{times:,.2f} x",
            number(row.get("cpu_ms")),
            number(row.get("transactions")),
            number(row.get("writes")),
            number(row.get("statements")),
            number(row.get("wal_bytes")),
            number(row.get("memory_mib")),
            row.get("reason") or row.get("note") or "",
        )
    Console(width=190).print(table)


def number(value: float | None) -> str:
    """Three digits that mean something."""
    if value is None:
        return ""
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.3g}"
