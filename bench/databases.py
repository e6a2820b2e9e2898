"""Fresh databases for benchmarks, and the CPU time of their servers."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from detent.ids import uuid7
from detent.stores.open import open_store

URLS = {"postgres": "DETENT_TEST_POSTGRES_URL", "mysql": "DETENT_TEST_MYSQL_URL"}
CONTROLS = {"postgres": "DETENT_TEST_POSTGRES_CONTROL", "mysql": "DETENT_TEST_MYSQL_CONTROL"}


@contextmanager
def fresh_database(kind: str) -> Iterator[str]:
    """The URL of an empty database, gone afterwards."""
    if kind == "sqlite":
        folder = tempfile.mkdtemp(prefix="detent-bench-")
        try:
            yield f"sqlite:///{folder}/bench.db"
        finally:
            shutil.rmtree(folder)
        return
    base = os.environ[URLS[kind]]
    name = f"bench_{uuid7().replace('-', '')[-12:]}"
    _run(base, f"CREATE DATABASE {name}")
    try:
        yield urlunsplit(urlsplit(base)._replace(path=f"/{name}"))
    finally:
        _run(base, f"DROP DATABASE {name}" + (" WITH (FORCE)" if kind == "postgres" else ""))


def _run(url: str, statement: str) -> None:
    connection = open_store(url).driver.connect()
    try:
        connection.cursor().execute(statement)
    finally:
        connection.close()


def server_cpu(kind: str) -> float:
    """Seconds of CPU that the database's server has used so far; 0 for SQLite, which has none."""
    control = os.environ.get(CONTROLS.get(kind, ""), "")
    if not control:
        return 0.0
    root = int(Path(json.loads(Path(control).read_text())["pid_file"]).read_text().split()[0])
    return sum(cpu_of(pid) for pid in _family(root))


def _family(root: int) -> list[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    return [root, *(pid for pid, parent in parents.items() if parent == root)]


def cpu_of(pid: int) -> float:
    try:
        fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    ticks = sum(int(fields[place]) for place in (11, 12))
    # The children that a server has waited for.
    ticks += sum(int(fields[place]) for place in (13, 14))
    return ticks / os.sysconf("SC_CLK_TCK")
