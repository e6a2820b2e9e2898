"""`detent worker`: runs until it gets a signal, then drains.

The first SIGTERM or SIGINT drains: the worker claims nothing new, running work continues
to its next step, and the rest goes back to the queue.  The second signal stops at once.
This loses nothing either: other workers notice, and continue.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from types import FrameType
from typing import Any

import click

from .. import __version__
from ..aio import AsyncApp
from ..app.app import App
from .command import Failure, app_argument, command
from .find_app import Target, find, kind, place
from .logs import set_up, tell
from .supervisor import supervise

YOUNGEST = 10_000  # new objects after which Python's collector looks at them; 700 by default


@command(example="detent worker shop:app --queues default,high --concurrency 50 --processes 4")
@app_argument
@click.option(
    "--queues", metavar="A,B", help="Take work from these queues only.  [default: all of the app's]"
)
@click.option(
    "--concurrency", type=click.IntRange(min=1), help="The number of concurrent executions per process."
)
@click.option(
    "--processes", type=click.IntRange(min=1), default=1, show_default=True, help="The number of processes."
)
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="How long a drain waits for running steps.  [default: the app's, 10]",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Lines for people on stderr, or JSON lines on stdout.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --log-format json.")
@click.option("--supervised", is_flag=True, hidden=True)
def worker(
    app: str,
    queues: str | None,
    concurrency: int | None,
    processes: int,
    grace: float | None,
    log_level: str,
    log_format: str,
    as_json: bool,
    supervised: bool,
) -> None:
    """Run a worker of an app until it is stopped.

    SIGTERM or Ctrl-C drains: running work continues to its next step, and the exit code is 0.  A second
    signal stops at once.  Neither loses anything.
    """
    target = find(app)
    if not target.definitions:
        raise Failure("a worker runs code, and a database URL has none; give MODULE:APP")
    set_up(as_json=as_json or log_format == "json", level=log_level)
    _adjust(target.app, queues, concurrency, grace)
    if not supervised:
        _introduce(target, processes)
    if processes > 1:
        sys.exit(supervise([sys.executable, "-m", "detent", *_child_arguments()], processes))
    sys.exit(_serve(target, supervised=supervised))


def _adjust(app: App, queues: str | None, concurrency: int | None, grace: float | None) -> None:
    changes: dict[str, Any] = {}
    if concurrency is not None:
        changes["concurrency"] = concurrency
    if grace is not None:
        changes["grace"] = timedelta(seconds=grace)
    serve = [name.strip() for name in (queues or "").split(",") if name.strip()]
    app.engine.adjust(serve=serve, **changes)


def _child_arguments() -> list[str]:
    """The command line of one supervised process."""
    ctx = click.get_current_context()
    given = ctx.params
    arguments = ["worker", given["app"], "--supervised", "--log-level", given["log_level"]]
    for name in ("queues", "concurrency", "grace"):
        if given[name] is not None:
            arguments += [f"--{name}", str(given[name])]
    return [*arguments, "--json" if given["as_json"] else f"--log-format={given['log_format']}"]


def _introduce(target: Target, processes: int) -> None:
    engine = target.app.engine
    names, workflows = engine.registry.names, engine.registry.workflows
    concurrency = engine.settings.concurrency
    tell(
        f"detent {__version__} serves {target.reference} on {kind(engine.url)}, {place(engine.url)}",
        app=target.reference,
        database=kind(engine.url),
        place=place(engine.url),
    )
    tell(
        f"queues {', '.join(engine.served)}; {concurrency} at a time"
        f"{f' in each of {processes} processes' if processes > 1 else ''}",
        queues=list(engine.served),
        concurrency=concurrency,
        processes=processes,
    )
    tell(
        f"{_count(len(workflows), 'workflow')} ({', '.join(workflows) or 'none'}), "
        f"{_count(len(names) - len(workflows), 'step')}",
        workflows=workflows,
        steps=[name for name in names if name not in workflows],
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _serve(target: Target, *, supervised: bool) -> int:
    if target.own is not None:
        asyncio.run(_serve_async(target.own, supervised=supervised))
    else:
        stop = threading.Event()
        _on_signal(stop.set, target.app)
        if supervised:
            _watch_parent(stop.set)
        target.app.open(worker=True)
        _at_work(target.app)
        while not stop.wait(1):  # a wait without end may sleep through a signal that comes to another thread
            pass
        target.app.close()
    tell("drained; stopped", pid=os.getpid())
    return 0


async def _serve_async(app: AsyncApp, *, supervised: bool) -> None:
    """The same on an event loop that also runs async workflows and steps."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def ask() -> None:
        loop.call_soon_threadsafe(stop.set)

    _on_signal(ask, app.sync)
    if supervised:
        _watch_parent(ask)
    await app.open(worker=True)
    _at_work(app.sync)
    await stop.wait()
    await app.close()


def tune_collector() -> None:
    """Let Python's collector of cycles do less, in a process that only executes runs.

    What is loaded by now lives as long as the process, so the collector need not look at it again.  The runs
    under way are more objects than the collector waits for by default, so it would find them all alive,
    again and again.  Measured with one-step runs on PostgreSQL, this takes a quarter off the CPU time of the
    process: 238 us per run before, 211 frozen, 177 with the higher threshold.  A collector that the app has
    turned off, or a higher threshold of its own, stays.
    """
    gc.collect()
    gc.freeze()
    youngest, *older = gc.get_threshold()
    if youngest:
        gc.set_threshold(max(youngest, YOUNGEST), *older)


def _at_work(app: App) -> None:
    tune_collector()
    running = app.engine.worker
    id = running.id if running is not None else ""
    tell(f"worker {id} is running, pid {os.getpid()}", worker=id, pid=os.getpid())


def _on_signal(ask: Callable[[], None], app: App) -> None:
    """The first signal drains, the second stops at once."""
    asked = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            os._exit(128 + number)
        asked.set()
        grace = app.engine.settings.grace.total_seconds()
        tell(f"draining, for at most {grace:g} s; a second signal stops at once", signal=number)
        ask()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)


def _watch_parent(ask: Callable[[], None]) -> None:
    """Stop when the supervisor has ended: stdin is a pipe from it, which is then closed."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        ask()

    threading.Thread(target=watch, name="detent-parent", daemon=True).start()
