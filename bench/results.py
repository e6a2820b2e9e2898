"""The figures of a benchmark: the best of the repeats, as rows of a file."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .peers.protocol import Figure

RESULTS = Path(__file__).parent / "results"
Key = tuple[str, str, str, str]
PER_UNIT = ("cpu_client", "cpu_server")


@dataclass
class Results:
    """What was measured, and what could not be."""

    best: dict[Key, Figure] = field(default_factory=dict)
    failures: dict[tuple[str, str, str], str] = field(default_factory=dict)  # (shape, database, system): why
    versions: dict[str, str] = field(default_factory=dict)

    def keep(self, database: str, figure: Figure) -> None:
        """Other load on the machine only ever makes things slower: the best of the repeats counts."""
        key = (figure.shape, database, figure.system, figure.unit)
        known = self.best.get(key)
        samples = [*(known.samples if known else []), *(figure.samples or _own(figure))]
        if known is None or is_better(figure, known):
            self.best[key] = figure
        self.best[key].samples = samples

    def fail(self, shape: str, database: str, system: str, reason: str) -> None:
        self.failures[shape, database, system] = reason

    def rows(self) -> list[dict[str, Any]]:
        found = [_row(database, figure) for (_, database, _, _), figure in self.best.items()]
        have = {(row["shape"], row["database"], row["system"]) for row in found}
        for (shape, database, system), reason in self.failures.items():
            if (shape, database, system) not in have:
                found.append(_absent(shape, database, system, reason))
        return found

    def document(self, now: datetime, settings: dict[str, Any]) -> dict[str, Any]:
        return {
            "at": now.isoformat(),
            "machine": machine(),
            "versions": self.versions,
            "settings": settings,
            "rows": self.rows(),
        }

    def write(self, settings: dict[str, Any]) -> Path:
        RESULTS.mkdir(exist_ok=True)
        now = datetime.now(UTC)
        path = RESULTS / f"{now:%Y%m%dT%H%M%SZ}.json"
        path.write_text(json.dumps(self.document(now, settings), indent=1))
        return path


def merged(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """Several runs of the benchmark as one: the first, with what a later one has measured better.

    `repeats` says for each shape how often each system was measured, on the database where it was least.
    """
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    times: Counter[tuple[Any, ...]] = Counter()
    for document in documents:
        for row in document["rows"]:
            known = rows.get(_key(row))
            if known is None or _is_better_row(row, known):
                rows[_key(row)] = row
        for key in {_key(row)[:3] for row in document["rows"] if _is_figure(row)}:
            times[key] += document["settings"]["repeat"]
    repeats: dict[str, dict[str, int]] = {}
    for row in filter(_is_figure, rows.values()):
        systems = repeats.setdefault(row["shape"], {})
        systems[row["system"]] = min(times[_key(row)[:3]], systems.get(row["system"], sys.maxsize))
    measured = {_key(row)[:3] for row in rows.values() if _is_figure(row)}
    kept = [row for row in rows.values() if _is_figure(row) or _key(row)[:3] not in measured]
    return documents[0] | {"rows": kept, "repeats": repeats}


def _is_figure(row: dict[str, Any]) -> bool:
    return row["value"] is not None


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["shape"], row["database"], row["system"], row["unit"]


def _is_better_row(one: dict[str, Any], other: dict[str, Any]) -> bool:
    if one["value"] is None or other["value"] is None:
        return other["value"] is None and one["value"] is not None
    return bool(one["value"] > other["value"] if one["better"] == "higher" else one["value"] < other["value"])


def _own(figure: Figure) -> list[float]:
    return [] if figure.value is None else [figure.value]


def is_better(one: Figure, other: Figure) -> bool:
    if one.value is None or other.value is None:
        return other.value is None
    return one.value > other.value if one.better == "higher" else one.value < other.value


def _row(database: str, figure: Figure) -> dict[str, Any]:
    row: dict[str, Any] = {
        "shape": figure.shape,
        "database": database,
        "system": figure.system,
        "value": figure.value,
        "unit": figure.unit,
        "better": figure.better,
        "cpu_ms": figure.cpu_ms,
        "samples": figure.samples,
    }
    for name in PER_UNIT:
        seconds = getattr(figure, name)
        row[f"{name}_ms"] = 1000 * seconds / figure.units if seconds is not None and figure.units else None
    for name in ("transactions", "writes", "statements", "wal_bytes", "memory_mib"):
        row[name] = getattr(figure, name)
    if figure.unit == "ms" and len(figure.samples) > 10:
        ordered = sorted(figure.samples)
        row["p50"], row["p99"] = quantile(ordered, 0.5), quantile(ordered, 0.99)
    row["note"] = figure.note
    return row


def _absent(shape: str, database: str, system: str, reason: str) -> dict[str, Any]:
    row: dict[str, Any] = {"shape": shape, "database": database, "system": system, "value": None}
    return row | {"unit": None, "better": None, "cpu_ms": None, "samples": [], "reason": reason}


def quantile(ordered: list[float], share: float) -> float:
    """The value that this share of the samples does not exceed."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def machine() -> dict[str, Any]:
    facts: dict[str, Any] = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "processor": _first("/proc/cpuinfo", "model name"),
        "memory": _first("/proc/meminfo", "MemTotal"),
    }
    return facts


def _first(path: str, name: str) -> str | None:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), None)
