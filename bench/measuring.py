"""One measurement: a process of its own, a fresh database, the server's counters around what it measures."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from .databases import fresh_database
from .metering import Counters, Meter
from .peers.protocol import MARK, TITLES, Figure

ROOT = Path(__file__).parents[1]
LIMIT_SECONDS = 120.0


class Failed(Exception):
    """A measurement that gave no figures; the message says why, in one line."""


@dataclass
class Answer:
    """What a process said, and what its database's server did meanwhile."""

    figures: list[Figure] = field(default_factory=list)
    missing: str = ""


def measure(argv: list[str], shape: str, kind: str, limit: float = LIMIT_SECONDS) -> Answer:
    """Run `argv SHAPE URL` on an empty database of this kind, and return its figures as rows want them."""
    with ExitStack() as stack:
        url = stack.enter_context(fresh_database(kind)) if kind in ("sqlite", "postgres", "mysql") else "-"
        meter = Meter(kind, url)
        stack.callback(meter.close)
        log = stack.enter_context(tempfile.TemporaryFile("w+"))
        process = subprocess.Popen(
            [*argv, shape, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=ROOT,
            env=_environment(),
            start_new_session=True,  # so that we can end whatever it leaves behind
        )
        stack.callback(_end, process)
        return _listen(process, meter, log, limit)


def _environment() -> dict[str, str]:
    own = {"BENCH_HARNESS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    return os.environ | own


def _listen(process: subprocess.Popen[str], meter: Meter, log: IO[str], limit: float) -> Answer:
    """Answer its marks with a reading of the counters, until it says what it has found."""
    lines = _lines(process)
    until = time.monotonic() + limit
    begins: dict[int, Counters] = {}
    seen: dict[int, Counters] = {}
    while True:
        try:
            line = lines.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            raise Failed(f"not done within {limit:.0f} s") from None
        if line is None:
            raise Failed(_last_words(process, log))
        if not line.startswith(MARK):
            continue
        message: dict[str, Any] = json.loads(line.removeprefix(MARK))
        if "missing" in message:
            return Answer(missing=message["missing"])
        if "figures" in message:
            break
        if "begin" in message:
            begins[message["begin"]] = meter.read()
        else:
            seen[message["end"]] = meter.read().since(begins[message["end"]])
        _acknowledge(process)
    figures = [Figure(**row) for row in message["figures"]]
    if len(seen) == 1 and any(figure.units for figure in figures):
        _end(process)
        seen = {number: _with_all_transactions(begins[number], seen[number], meter) for number in seen}
    return Answer([_completed(figure, seen) for figure in figures] + _queries(figures, seen, meter.kind))


def _with_all_transactions(before: Counters, found: Counters, meter: Meter) -> Counters:
    last = meter.transactions_when_alone()
    if last is None or before.transactions is None:
        return found
    return replace(found, transactions=last - before.transactions)


def _lines(process: subprocess.Popen[str]) -> queue.Queue[str | None]:
    """Its output line by line; None at the end.  Read in a thread, so that we can give up waiting."""
    found: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                found.put(line)
        found.put(None)

    threading.Thread(target=read, daemon=True).start()
    return found


def _acknowledge(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.write("\n")
        process.stdin.flush()


def _last_words(process: subprocess.Popen[str], log: IO[str]) -> str:
    with suppress(subprocess.TimeoutExpired):
        process.wait(5)
    log.seek(0)
    lines = [line.strip() for line in log.read().splitlines() if line.strip()]
    if os.environ.get("BENCH_VERBOSE"):
        print("\n".join(lines[-60:]), file=sys.stderr)
    last = lines[-1] if lines else "said nothing"
    # It may end up on a page: where somebody's home is, is nobody's business.
    return f"ended with {process.returncode}: {last[:200]}".replace(str(Path.home()), "~")


def _end(process: subprocess.Popen[str]) -> None:
    """End it and all of its session, so that nothing of it runs beside the next measurement."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()


def _completed(figure: Figure, seen: dict[int, Counters]) -> Figure:
    """Add what the server did, for each unit."""
    if figure.window is None or figure.window not in seen:
        return figure
    server = seen[figure.window]
    figure.cpu_server = (figure.cpu_server or 0.0) + server.cpu
    if figure.units:
        figure.transactions = _per(server.transactions, figure.units)
        figure.writes = _per(server.writes, figure.units)
        figure.statements = _per(server.statements, figure.units)
        figure.wal_bytes = _per(server.wal_bytes, figure.units)
        if figure.cpu_client is not None:
            figure.cpu_ms = 1000 * (figure.cpu_client + figure.cpu_server) / figure.units
    return figure


def _per(value: float | None, units: int) -> float | None:
    return None if value is None else value / units


def _queries(figures: list[Figure], seen: dict[int, Counters], kind: str) -> list[Figure]:
    """How often an idle worker asked its server, as the server counts."""
    title, unit, better = TITLES["idle-queries"]
    found = []
    for figure in figures:
        if figure.shape == TITLES["idle-cpu"][0] and figure.window in seen and figure.seconds:
            server = seen[figure.window]
            asked = server.statements if kind == "mysql" else server.transactions
            if asked is not None:
                found.append(Figure(title, asked / figure.seconds, unit, better, system=figure.system))
    return found
