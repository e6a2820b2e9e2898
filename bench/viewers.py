"""The dashboard with many viewers: what they cost the workers.

One process works, one serves the dashboard, one holds the connections of 200 viewers, who look at the pages
that change most.  Rounds with and without viewers alternate, so that other load on the machine meets both.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import detent

from . import workflows
from .databases import cpu_of
from .peers.protocol import CONCURRENCY, Figure, from_window, window

VIEWERS = 200
RUNS = 10_000
ROUNDS = 3
PAGES = ("/", "/runs", "/runs?state=active", "/queues", "/workers")


def viewers(kind: str, url: str) -> list[Figure]:
    """10,000 one-step runs, without and with 200 viewers of the dashboard."""
    alone: list[Figure] = []
    watched: list[Figure] = []
    used = 0.0  # seconds of CPU, by the dashboard
    with (
        detent.App(url, include=workflows.ALL, migrate=True).open(worker=False) as app,
        _process(_WORKER, url),
        _process(_DASHBOARD, url) as dashboard,
    ):
        port, pid = dashboard.split()
        _measured(app, "")  # the first runs of a process are slow
        for _ in range(ROUNDS):
            alone.append(_measured(app, f"{RUNS:,} runs, no viewers"))
            with ExitStack() as stack:
                stack.enter_context(_process(_VIEWERS, port))
                before = cpu_of(int(pid))
                watched.append(_measured(app, f"{RUNS:,} runs, {VIEWERS} viewers"))
                used += cpu_of(int(pid)) - before
    without, with_them = _median(alone), _median(watched)
    # Below zero: the difference is smaller than what other load on the machine makes.
    cost = (1 - _value(with_them) / _value(without)) * 100
    share = used / sum(one.seconds or 0.0 for one in watched) * 100
    return [
        without,
        with_them,
        Figure(f"{VIEWERS} viewers cost", cost, "%", "lower"),
        Figure(f"the dashboard of {VIEWERS} viewers uses", share, "% of a core", "lower"),
    ]


def _median(figures: list[Figure]) -> Figure:
    return sorted(figures, key=_value)[len(figures) // 2]


def _value(figure: Figure) -> float:
    assert figure.value is not None
    return figure.value


def _measured(app: detent.App, name: str) -> Figure:
    with window() as seen:
        app.start_many(workflows.one_step, [(0,)] * RUNS)
        while app.runs.active(limit=1):
            time.sleep(0.05)
    return from_window(Figure(name, RUNS / seen.seconds, "runs/s", "higher", units=RUNS), seen)


async def look(port: int) -> None:
    """Hold the connections of all viewers until stdin ends."""
    streams = []
    received = [0] * VIEWERS  # events
    for number in range(VIEWERS):
        page = PAGES[number % len(PAGES)].replace("?", "%3F").replace("=", "%3D")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET /live?page={page}&version=none HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        status = await reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(f"the dashboard answers {status!r}")
        streams.append((asyncio.create_task(_read(reader, received, number)), writer))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for task, writer in streams:
        task.cancel()
        writer.close()
    if not all(received):
        raise RuntimeError(f"{received.count(0)} viewers of {VIEWERS} were sent nothing")


async def _read(reader: asyncio.StreamReader, received: list[int], number: int) -> None:
    while text := await reader.read(65_536):
        received[number] += text.count(b"data: ")


_WORKER = (
    "import sys, detent, bench.workflows as w\n"
    f"with detent.App(sys.argv[1], include=w.ALL, concurrency={CONCURRENCY}):\n"
    "    print('ready', flush=True); sys.stdin.read()"
)
_DASHBOARD = """\
import os, socket, sys, threading, detent, uvicorn, bench.workflows as w
with detent.App(sys.argv[1], include=w.ALL).open(worker=False) as app, socket.socket() as listening:
    listening.bind(("127.0.0.1", 0))
    config = uvicorn.Config(detent.dashboard(app), lifespan="off", log_level="error",
                            timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    print(listening.getsockname()[1], os.getpid(), flush=True)
    sys.stdin.read()
    server.should_exit = True
    thread.join()
"""
_VIEWERS = "import asyncio, sys, bench.viewers as v; asyncio.run(v.look(int(sys.argv[1])))"


@contextmanager
def _process(code: str, argument: str) -> Iterator[str]:
    """A process that says when it is ready, and ends with its stdin."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, argument], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    said = process.stdout.readline().strip()
    if not said:
        raise RuntimeError(f"a process of the benchmark ended with {process.wait()}")
    try:
        yield said
    finally:
        process.communicate()
    if process.returncode:
        raise RuntimeError(f"a process of the benchmark ended with {process.returncode}")
