"""docs/benchmarks.md and its plots, from a file of results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from . import plots, soak
from .results import RESULTS, merged
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
Each measurement runs in its own process on a new, empty database. Rounds, shapes and systems are
interleaved: in each round, every system runs a shape before the next shape begins. The best of the repeats
counts, because other load on a machine can only slow a measurement down. The speed of a shared machine may
change between two shapes, so compare systems within a shape. Set-up, migrations and a first warm-up run are
not measured.

Durability is the same for all: PostgreSQL and MariaDB with the settings of a new installation (`fsync` and
`synchronous_commit` on), SQLite in WAL mode with `synchronous=FULL` for Detent and with the peer's own
setting for a peer. Redis has its defaults, which can lose the last seconds in a crash; Restate has its own
store.

Peers are installed from their packages in pinned versions, each in its own environment, and used as their
documentation shows, with up to 200 runs in flight unless the remark next to a figure says otherwise. They are
not tuned further; improvements to their adapters are welcome. CPU is that of all processes of the client and
of the server, per unit (run, step or node). The server counts transactions, writing transactions, statements
and WAL. It counts transactions from the beginning of the measurement to the end of the process, so some of
the start may be included. Memory is the sum of the peaks of the client's processes.
"""


def write_page(sources: list[Path]) -> Path:
    """From these files, of which the first has everything, or from the latest."""
    found = sources or sorted(RESULTS.glob("2*.json"))[-1:]
    if not found:
        raise SystemExit("no results yet: run python -m bench first")
    document = merged([json.loads(file.read_text()) for file in found])
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
    versions = [f"| {name} | {text} |" for name, text in sorted(document.get("versions", {}).items())]
    return "\n".join(
        [
            "# Benchmarks",
            "",
            "This page compares Detent with other systems on one machine. `make bench` measures them on"
            " yours; `python -m bench --page` writes this page from the results.",
            "",
            f"Measured {document['at'][:10]} on {machine['cores']} cores ({processor}), {machine['system']},"
            f" Python {machine['python']}; {_repeats(document['repeats'])}.",
            "",
            *(f"- {sentence}" for sentence in more_repeats(document["repeats"])),
            "",
            "## Where other systems are better",
            "",
            *_list(behind(rows), "No peer was better in any shape that was measured here."),
            "",
            "Targets of Detent that are not reached:",
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


def _repeats(repeats: dict[str, dict[str, int]]) -> str:
    """How often each system was measured in each shape."""
    more = ", or of more where the list below says so" if more_repeats(repeats) else ""
    return f"best of {_usual(repeats)}{more}"


def _usual(repeats: dict[str, dict[str, int]]) -> int:
    return min(times for systems in repeats.values() for times in systems.values())


def more_repeats(repeats: dict[str, dict[str, int]]) -> list[str]:
    """The shapes that some systems were measured in more often than usual."""
    shapes: dict[tuple[str, int], list[str]] = {}
    for shape, systems in repeats.items():
        peers = {name: times for name, times in systems.items() if not name.startswith("limit:")}
        for times in sorted({*peers.values()} - {_usual(repeats)}):
            names = ", ".join(sorted(name for name in peers if peers[name] == times))
            shapes.setdefault((names, times), []).append(shape)
    return [f"best of {times} for {names}: {'; '.join(found)}" for (names, times), found in shapes.items()]


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
    "writes": "writing",
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
    lines = ["## Soak", "", _soak_said(document, slices), "", *_list(steep, SOAK_FLAT), ""]
    for name, (title, unit) in SOAK_PLOTS.items():
        points = [
            (float(each.executions), float(getattr(each, name))) for each in slices if getattr(each, name)
        ]
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
        return f"{said}, with no other load."
    first, last = slices[0], slices[-1]
    return (
        f"{said}, next to an idle session that keeps its snapshot, so that PostgreSQL cannot remove dead"
        f" rows. A full scan of the ready executions has to skip them, and its time grew from"
        f" {first.look_ms:.0f} to {last.look_ms:.0f} ms. Claims continue from their last positions instead;"
        f" at the end, the worker spent {last.look_share:.0%} of its time on full scans."
    )


SOAK_FLAT = (
    "The throughput, the cost of claims, the latency of a start, and the size of tables and indexes for each"
    f" execution were at most {soak.FLAT} times worse in the last quarter than in the first, compared with an"
    " empty database in the same minutes. A plot without first points had nothing to measure there."
)
SOAK_PLOTS = {
    "per_second": ("Throughput", "runs/s"),
    "claim_us_per_execution": ("Cost of a claim per execution", "µs"),
    "empty_claim_ms": ("Claim on an empty queue", "ms"),
    "start_ms_p50": ("From start() to the first line of the step, idle, p50", "ms"),
    "tables_mib": ("Tables", "MiB"),
    "indexes_mib": ("Indexes", "MiB"),
    "dead_rows": ("Dead rows", "rows"),
}
