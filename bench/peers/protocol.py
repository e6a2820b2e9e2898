"""What a measuring process and the harness say to each other.  Standard library only: peers import it.

A measuring process is started as `python -m bench.peers.NAME SHAPE URL`.  Around what it measures it opens
a `window`: at both edges it tells the harness, which reads the database server's counters and answers.  So
set-up and warm-up are not counted, and no adapter has to know how a server is asked.  At the end it sends
its figures.

Lines of the protocol begin with a mark, so that whatever else a system prints does no harm.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

MARK = "@bench "
# So many may be under way; an adapter that uses fewer says so beside its figure.
CONCURRENCY = 200
RUNS, STEPS = 500, 5
MANY = 5000
SINGLES = 1000
SEQUENCE = 100
WIDTH = 1000
KEYS, RUNS_PER_KEY = 1000, 10  # of a queue on which each key executes one at a time
NOT_MEASURED = "not measured"  # it may be able to do it
PEER_RUNS_PER_KEY = 2  # peers get fewer, which a rate does not show
SAMPLES = 60
IDLE_SECONDS = 15.0
# A session of PostgreSQL may tell what it did up to ten seconds later: its start must not count as idling.
SETTLE_SECONDS = 11.0

# Name: what it is called in tables, its unit, and which way is better.
TITLES: dict[str, tuple[str, str, str]] = {
    "steps": ("500 x 5 steps", "steps/s", "higher"),
    "runs": ("5,000 one-step runs", "runs/s", "higher"),
    "singles": ("one-step runs, started one by one", "runs/s", "higher"),
    "sequence": ("1 x 100 steps", "steps/s", "higher"),
    "fan-out": ("fan-out 1,000 + join", "s", "lower"),
    "limits": ("10,000 runs, 1,000 keys, one at a time per key", "runs/s", "higher"),
    "latency-same": ("idle start, same process", "ms", "lower"),
    "latency-other": ("idle start, other process", "ms", "lower"),
    "idle-cpu": ("idle worker, CPU", "%", "lower"),
    "idle-queries": ("idle worker, queries", "1/s", "lower"),
    "import": ("import", "ms", "lower"),
    "graph-huge": ("graph: 100,000 nodes", "nodes/s", "higher"),
}


@dataclass
class Figure:
    """One measured value; `better` is `higher` or `lower`.  What a window saw is divided by `units` later."""

    shape: str
    value: float | None
    unit: str
    better: str
    cpu_ms: float | None = None
    system: str = "detent"
    samples: list[float] = field(default_factory=list)
    units: int = 0  # so many runs, steps or nodes were done in the window
    window: int | None = None  # the number of the window that it was measured in
    cpu_client: float | None = None  # seconds
    cpu_server: float | None = None  # of servers that the process itself has started
    memory_mib: float | None = None  # the peak of all processes of the client's side
    seconds: float | None = None  # that the window was open
    transactions: float | None = None  # for each unit, these four; the harness adds them
    writes: float | None = None
    statements: float | None = None
    wal_bytes: float | None = None
    note: str = ""


class Missing(Exception):
    """The system has no such shape, or cannot run here; the message says why."""


@dataclass
class Window:
    """A stretch of time that is measured."""

    number: int
    seconds: float = 0.0
    cpu_client: float = 0.0
    cpu_server: float = 0.0
    memory_mib: float = 0.0


@dataclass
class _State:
    windows: int = 0
    servers: list[int] = field(default_factory=list)


_STATE = _State()


def is_a_server(pid: int) -> None:
    """Count this process, and those that it starts, as a server rather than as the client."""
    _STATE.servers.append(pid)


@contextmanager
def window() -> Iterator[Window]:
    """Measure what happens inside; the clock starts after the harness has read its counters."""
    found = Window(_STATE.windows)
    _STATE.windows += 1
    _tell({"begin": found.number})
    client, server = _cpu()
    begun = time.perf_counter()
    yield found
    found.seconds = time.perf_counter() - begun
    client_after, server_after = _cpu()
    found.cpu_client, found.cpu_server = client_after - client, server_after - server
    found.memory_mib = _memory()
    _tell({"end": found.number})


def rate(shape: str, units: int, seen: Window, note: str = "") -> Figure:
    """So many units in the window, as units per second."""
    return _figure(shape, units / seen.seconds, units, seen, note)


def taken(shape: str, units: int, seen: Window, note: str = "") -> Figure:
    """So many units in the window, as the seconds that all of them took."""
    return _figure(shape, seen.seconds, units, seen, note)


def latencies(shape: str, milliseconds: Sequence[float], note: str = "") -> Figure:
    """The middle one counts, all of them are kept."""
    title, unit, better = TITLES[shape]
    ordered = sorted(milliseconds)
    return Figure(title, statistics.median(ordered), unit, better, samples=ordered, note=note)


def _figure(shape: str, value: float, units: int, seen: Window, note: str) -> Figure:
    title, unit, better = TITLES[shape]
    figure = Figure(title, value, unit, better, units=units, note=note)
    return from_window(figure, seen)


def from_window(figure: Figure, seen: Window) -> Figure:
    """Say in which window a figure was measured."""
    figure.window, figure.memory_mib, figure.seconds = seen.number, seen.memory_mib, seen.seconds
    figure.cpu_client, figure.cpu_server = seen.cpu_client, seen.cpu_server
    return figure


def idle() -> list[Figure]:
    """What a worker costs that has nothing to do: call it while one runs.  The harness adds the queries."""
    time.sleep(SETTLE_SECONDS)
    with window() as seen:
        time.sleep(IDLE_SECONDS)
    title, unit, better = TITLES["idle-cpu"]
    used = 100 * (seen.cpu_client + seen.cpu_server) / seen.seconds
    return [from_window(Figure(title, used, unit, better, units=0), seen)]


def import_time(module: str) -> list[Figure]:
    """How long an import takes in a fresh Python; the best of five, as the first has to read the disk.

    All are measured as they are when installed: compiled, wherever their source lies and whatever the
    environment says about writing that down.
    """
    import subprocess

    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    code = f"import time; t = time.perf_counter(); import {module}; print((time.perf_counter() - t) * 1000)"
    found = []
    with tempfile.TemporaryDirectory() as compiled:
        env["PYTHONPYCACHEPREFIX"] = compiled
        for _ in range(5):
            done = subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
            )
            found.append(float(done.stdout.split()[-1]))
    title, unit, better = TITLES["import"]
    return [Figure(title, min(found), unit, better, samples=sorted(found))]


def serve(shapes: dict[str, Callable[[str], list[Figure]]], missing: dict[str, str] | None = None) -> None:
    """The main program of an adapter: run the shape that was asked for, on the database that was given."""
    shape, url = sys.argv[1:3]
    try:
        if shape not in shapes:
            raise Missing((missing or {}).get(shape, "its model has no such thing"))
        figures = shapes[shape](url)
    except Missing as reason:
        send({"missing": str(reason)})
    else:
        send({"figures": [asdict(figure) for figure in figures]})
    sys.stdout.flush()
    os._exit(0)  # threads and children of the system must not keep us; the harness ends what is left


def send(message: dict[str, Any]) -> None:
    print(f"\n{MARK}{json.dumps(message)}", flush=True)


def _tell(message: dict[str, Any]) -> None:
    """Send, and wait until the harness has read its counters.  By hand, without one, go on."""
    if os.environ.get("BENCH_HARNESS"):
        send(message)
        sys.stdin.readline()


# -- Processes -----------------------------------------------------------------------------------------


def _stat(pid: str) -> list[str]:
    """What follows the program's name in /proc/PID/stat: state, parent, group, session, ..."""
    return (Path("/proc") / pid / "stat").read_text().rpartition(")")[2].split()


def _processes() -> dict[int, list[str]]:
    """Ourselves and everything that we have started: our descendants, and the rest of our session."""
    every: dict[int, list[str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                every[int(entry.name)] = _stat(entry.name)
    own = os.getpid()
    session = every[own][3]
    lone = session != str(own)  # started by hand: the session is the terminal's
    found = {own} | (set() if lone else {pid for pid, stat in every.items() if stat[3] == session})
    return {pid: every[pid] for pid in _with_descendants(found, every)}


def _with_descendants(roots: set[int], every: dict[int, list[str]]) -> set[int]:
    found = set(roots)
    grown = True
    while grown:
        more = {pid for pid, stat in every.items() if int(stat[1]) in found} - found
        grown = bool(more)
        found |= more
    return found


def _cpu() -> tuple[float, float]:
    """CPU seconds so far of the client's side and of the servers that it has started."""
    every = _processes()
    servers = _with_descendants(set(_STATE.servers) & set(every), every)
    tick = os.sysconf("SC_CLK_TCK")
    client = server = 0.0
    for pid, stat in every.items():
        used = sum(int(stat[place]) for place in (11, 12, 13, 14)) / tick
        if pid in servers:
            server += used
        elif pid == os.getpid():
            client += time.process_time() + sum(int(stat[place]) for place in (13, 14)) / tick
        else:
            client += used
    return client, server


def _memory() -> float:
    """MiB: the sum of the peaks of all processes of the client's side."""
    total = 0
    for pid in _processes():
        with suppress(OSError):
            for line in (Path("/proc") / str(pid) / "status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    total += int(line.split()[1])
    return total / 1024
