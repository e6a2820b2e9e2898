"""docs/benchmarks.md and its plots, from a file of results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from . import plots, soak
from .results import RESULTS
from .table import COMPARED_WITH, ordered, ratio
from .targets import behind, missed

DOCS = Path(__file__).parents[1] / "docs"
Row = dict[str, Any]
SERVER = {
    "postgres": "PostgreSQL",
    "sqlite": "SQLite",
    "mysql": "MariaDB",
    "redis": "Redis",
    "own": "its own",
}

METHOD = """\
Every measurement is a process of its own on a fresh, empty database. Rounds, shapes and systems are
interleaved: in each round each system has its turn at a shape before the next shape begins. The best of the
repeats counts, because other load on a machine only ever makes things slower. Set-up, migrations and a first
run that warms up are not measured.

The durability is the same for all: PostgreSQL and MariaDB as a fresh installation leaves them (`fsync` and
`synchronous_commit` on), SQLite in WAL mode with `synchronous=FULL` for Detent and with the peer's own
setting for a peer. Redis has its defaults, which lose the last seconds in a crash; Restate has its own store.

Peers are installed from their packages in pinned versions, each in an environment of its own, and written the
way their documentation shows, with up to 200 runs under way unless the remark beside a figure says otherwise.
They are not tuned further: who knows one better is welcome to improve its adapter. CPU is that of all
processes of the client and of the server, for each unit (run, step or node). Transactions, those of them that
wrote, statements and WAL are counted by the server; the first from the begin of the measurement to the end of
the process, with what the server learned late of its start. Memory is the sum of the peaks of the client's
processes.
"""


def write_page(source: Path | None) -> Path:
    """From this file, or from the latest."""
    found = source or max(RESULTS.glob("2*.json"), default=None)
    if found is None:
        raise SystemExit("no results yet: run python -m bench first")
    document = json.loads(found.read_text())
    folder = DOCS / "benchmarks"
    folder.mkdir(exist_ok=True)
    for old in folder.glob("bars-*.svg"):
        old.unlink()
    sections = [_section(shape, document["rows"], folder) for shape in _shapes(document["rows"])]
    page = DOCS / "benchmarks.md"
    page.write_text("\n".join([_head(document), *sections, _soak(folder)]).rstrip() + "\n")
    return page


def _shapes(rows: list[Row]) -> list[str]:
    return list(dict.fromkeys(row["shape"] for row in rows))


def _head(document: dict[str, Any]) -> str:
    machine, rows = document["machine"], document["rows"]
    processor = machine.get("processor") or "unknown processor"
    settings = document.get("settings", {})
    versions = [f"| {name} | {text} |" for name, text in sorted(document.get("versions", {}).items())]
    return "\n".join(
        [
            "# Benchmarks",
            "",
            "This page is written by `python -m bench --page` from the figures that `make bench` leaves"
            " behind; run it on your machine.",
            "",
            f"Measured {document['at'][:10]} on {machine['cores']} cores ({processor}), {machine['system']},"
            f" Python {machine['python']}; best of {settings.get('repeat', '?')}.",
            "",
            "## Where Detent is not ahead",
            "",
            *_list(behind(rows), "No peer was better at any shape that was measured here."),
            "",
            "Of what Detent aims at itself:",
            "",
            *_list([*missed(rows), *_not_flat()], "Every target that was measured here is reached."),
            "",
            "## Method",
            "",
            METHOD,
            "| | version |",
            "|---|---|",
            *versions,
            "",
            *_absent(rows),
        ]
    )


def _list(sentences: list[str], otherwise: str) -> list[str]:
    return [f"- {sentence}" for sentence in sentences] or [otherwise]


def _absent(rows: list[Row]) -> list[str]:
    """Systems without a single figure are named with their reason."""
    measured = {row["system"] for row in rows if row["value"] is not None}
    reasons = {row["system"]: row["reason"] for row in rows if row.get("reason")}
    missing = {name: why for name, why in reasons.items() if name not in measured}
    if not missing:
        return []
    return ["Not measured at all:", "", *(f"- {name}: {why}" for name, why in missing.items()), ""]


def _section(shape: str, rows: list[Row], folder: Path) -> str:
    mine = ordered([row for row in rows if row["shape"] == shape])
    lines = [f"## {shape[0].upper()}{shape[1:]}", ""]
    for number, (unit, group) in enumerate(_by_unit(mine)):
        name = f"bars-{_slug(shape)}{f'-{number}' if number else ''}.svg"
        if len(group) > 1:
            (folder / name).write_text(plots.bars(_title(shape, unit, group), _bars(group)))
            lines += [f"![{shape}, {unit}](benchmarks/{name})", ""]
    return "\n".join([*lines, *_table(mine, rows), ""])


def _title(shape: str, unit: str, group: list[Row]) -> str:
    return f"{shape}: {unit}, {'more' if group[0]['better'] == 'higher' else 'less'} is better"


def _by_unit(rows: list[Row]) -> list[tuple[str, list[Row]]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row["value"] is not None:
            # A limit stands beside the figures that it limits.
            unit = row["unit"] if not row["system"].startswith("limit:") else next(iter(found), row["unit"])
            found.setdefault(unit, []).append(row)
    return list(found.items())


def _bars(group: list[Row]) -> list[tuple[str, float, str]]:
    return [
        (
            f"{_name(row)}, {SERVER[row['database']]}",
            row["value"],
            f"{plots.short(row['value'])} {row['unit']}",
        )
        for row in group
    ]


def _name(row: Row) -> str:
    if row["system"] == "detent":
        return "Detent"
    return str(row["system"]).replace("limit:", "limit: ").replace("-", " ")


def _table(mine: list[Row], rows: list[Row]) -> list[str]:
    extra = [name for name in _COLUMNS if any(row.get(name) is not None for row in mine)]
    heads = ["system", "on", "value", "Detent is", *(_COLUMNS[name] for name in extra), "remark"]
    lines = ["| " + " | ".join(heads) + " |", "|---|---|" + "---:|" * (len(heads) - 3) + "---|"]
    for row in mine:
        times = ratio(row, rows)
        cells = [
            f"**{_name(row)}**" if row["system"] == "detent" else _name(row),
            SERVER[row["database"]],
            "–" if row["value"] is None else f"{plots.short(row['value'])} {row['unit']}",
            "" if times is None else _times(times, row),
            *("" if row.get(name) is None else plots.short(row[name]) for name in extra),
            (row.get("reason") or row.get("note") or "").replace("|", "/"),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _times(times: float, row: Row) -> str:
    if str(row["system"]).startswith("limit:"):
        return f"{times:.0%} of it"
    against = "" if row["database"] not in COMPARED_WITH else " (PostgreSQL)"
    return f"{plots.short(times)} ×{against}"


_COLUMNS = {
    "p99": "p99 ms",
    "cpu_client_ms": "client CPU-ms",
    "cpu_server_ms": "server CPU-ms",
    "transactions": "transactions",
    "writes": "that wrote",
    "statements": "statements",
    "wal_bytes": "WAL bytes",
    "memory_mib": "MiB",
}


def _slug(text: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in text.lower()).split())


def _soak(folder: Path) -> str:
    """What `make soak` has left, if it ran."""
    document = soak.latest()
    if document is None:
        return ""
    slices = [soak.Slice(**each) for each in document["slices"]]
    steep = soak.grown(slices)
    lines = ["## Soak", "", _soak_said(document, slices), "", *_list(steep, "All of it stayed flat."), ""]
    for name, (title, unit) in SOAK_PLOTS.items():
        points = [(float(each.executions), float(getattr(each, name))) for each in slices]
        file = f"soak-{name.replace('_', '-')}.svg"
        (folder / file).write_text(plots.line(title, unit, points, "executions"))
        lines += [f"![{title}](benchmarks/{file})", ""]
    return "\n".join(lines)


def _not_flat() -> list[str]:
    document = soak.latest()
    slices = [] if document is None else [soak.Slice(**each) for each in document["slices"]]
    return [f"the soak should stay flat: {sentence}" for sentence in soak.grown(slices)]


def _soak_said(document: dict[str, Any], slices: list[soak.Slice]) -> str:
    said = f"{slices[-1].executions:,} runs of one step on PostgreSQL ({document['at'][:10]})"
    if not document["reader"]:
        return f"{said}, with nothing beside them."
    first, last = slices[0], slices[-1]
    return (
        f"{said}, beside a session that keeps its snapshot: nothing that died since can be cleared away. A "
        f"look over everything that is ready has to step over it, and has grown from {first.look_ms:.0f} to "
        f"{last.look_ms:.0f} ms; claims go on from their last places instead, and the worker gave such looks "
        f"{last.look_share:.0%} of its time at the end."
    )


SOAK_PLOTS = {
    "per_second": ("Throughput", "runs/s"),
    "claim_us_per_execution": ("What a claim costs for each execution", "µs"),
    "empty_claim_ms": ("A claim on an empty queue", "ms"),
    "start_ms_p50": ("From start() to the first line of the step, idle, p50", "ms"),
    "tables_mib": ("Tables", "MiB"),
    "indexes_mib": ("Indexes", "MiB"),
    "dead_rows": ("Dead rows", "rows"),
}
