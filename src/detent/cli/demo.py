"""`detent demo`: an order, a worker, and a kill -9 in the middle.

The worker is a real `detent worker`, and it is really killed.  The result is counted from
a file that the steps write when they run.
"""

from __future__ import annotations

import os
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from .. import demo as shop
from ..app.app import App
from ..app.run import Run
from ..kernel.rows import RunState, Step, StepState
from .command import Command, Failure, command
from .dashboard import DEFAULT_PORT
from .demo_stage import Act, Curtain, Proof, Stage, View, stage_for
from .output import console, write_json

_KILL_AFTER = len(shop.PARCELS) // 2  # things packed
_LOOK = 0.06  # seconds between two looks at the database
_DRAMA = 1.0  # seconds without a worker
_LONGEST = 60.0
_ACTS = (
    ("reserve_stock", "reserve stock"),
    ("charge_card", "charge the card"),
    ("sleep", "sleep, durably"),
    ("pack", "pack"),
    ("ship", "ship"),
    ("send_email", "send an e-mail"),
)
_ONCE = [key for key, _ in _ACTS if key not in ("sleep", "pack")]


@command(example="detent demo\ndetent demo --url postgresql://user@host/scratch", cls=Command)
@click.option("--url", help="Another database than a new SQLite file; its tables are created.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder for the files.  [default: a temporary folder]",
)
@click.option("--json", "as_json", is_flag=True, help="Print only the result, as JSON.")
@click.option("--dashboard", is_flag=True, help="Run a small shop and its dashboard instead, until Ctrl-C.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=DEFAULT_PORT, show_default=True, help="Its port."
)
def demo(url: str | None, folder: Path | None, as_json: bool, dashboard: bool, port: int) -> None:
    """Watch a workflow survive a kill -9.

    Starts an order and a worker, kills the worker in the middle of a step, starts another worker, and
    counts how often each step ran.  The exit code is 1 if anything was lost or done twice.
    """
    home = folder.absolute() if folder is not None else Path(tempfile.mkdtemp(prefix="detent-demo-"))
    home.mkdir(parents=True, exist_ok=True)
    if dashboard:
        from .shop_window import run_shop  # with all that the shop includes: other commands do without

        run_shop(url or f"sqlite:///{quote(str(home / 'shop.db'))}", port)
        return
    stage = stage_for(None if as_json else console())
    director = Director(url or f"sqlite:///{quote(str(home / 'demo.db'))}", home, stage)
    try:
        proof = director.perform()
    finally:
        director.strike()
    if as_json:
        write_json(proof.document())
    stage.finish(proof, Curtain(_command(), director.url, str(director.notes)))
    sys.exit(0 if proof.holds else 1)


class Director:
    """Runs the demo and reads its progress from the database."""

    def __init__(self, url: str, home: Path, stage: Stage) -> None:
        self.url = url
        self.order = f"order-{secrets.token_hex(2)}"
        self.notes = home / f"{self.order}.txt"
        self._log = home / "worker.log"
        self._stage = stage
        self._app = App(url, include=[shop.fulfil], migrate=True)
        self._worker: subprocess.Popen[bytes] | None = None
        self._began = time.monotonic()

    def perform(self) -> Proof:
        """Run the whole demo."""
        stage = self._stage
        stage.open(shop.fulfil.function)
        self._began = time.monotonic()
        run = self._app.options(id=self.order).start(shop.fulfil, self.order)
        with stage.running():
            stage.tell(f"{self.order} is started: it is stored in the database, and no worker is running yet")
            first = self._hire("the first worker")
            self._watch(run, lambda view: view.packed >= _KILL_AFTER)
            stage.tell(f"kill -9 {first}", alarm=True)
            self._kill()
            died = time.monotonic()
            self._watch(run, lambda view: time.monotonic() - died > _DRAMA)
            second = self._hire("another worker")
            with stage.noticing(f"it notices that {first} is dead, and continues the order"):
                self._watch(run, lambda view: view.taken_up)
            self._watch(run, lambda view: view.over)
            took = time.monotonic() - self._began
            self._retire()
        return self._prove(run.refresh(), first, second, took)

    def strike(self) -> None:
        """Stop everything that is running."""
        if self._worker is not None:
            self._worker.kill()
            self._worker.wait()
            self._worker = None
        self._app.close()

    # The worker

    def _hire(self, title: str) -> int:
        """Start a real worker; it drains if this process ends."""
        arguments = [sys.executable, "-m", "detent", "worker", "detent.demo:app", "--supervised"]
        environment = {**os.environ, shop.URL_VARIABLE: self.url, shop.NOTES_VARIABLE: str(self.notes)}
        with self._log.open("ab") as log:
            self._worker = subprocess.Popen(
                arguments, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment
            )
        self._stage.worker = self._worker.pid
        self._stage.tell(f"detent worker detent.demo:app   ({title}, process {self._worker.pid})")
        return self._worker.pid

    def _kill(self) -> None:
        assert self._worker is not None
        self._worker.send_signal(signal.SIGKILL)
        self._worker.wait()
        self._worker = None
        self._stage.worker = None

    def _retire(self) -> None:
        assert self._worker is not None
        self._worker.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._worker.wait(timeout=10)
        self._stage.worker = None

    # The audience's view

    def _watch(self, run: Run[Any], until: Callable[[View], bool]) -> None:
        """Show the state in the database until the condition is met."""
        while True:
            view = self._view(run)
            self._stage.show(view)
            if until(view):
                return
            if self._worker is not None and self._worker.poll() is not None:
                raise Failure(f"the worker ended unexpectedly; see {self._log}")
            if time.monotonic() - self._began > _LONGEST:
                raise Failure(f"the order did not finish within {_LONGEST:.0f} s; see {self._log}")
            time.sleep(_LOOK)

    def _view(self, run: Run[Any]) -> View:
        store = self._app.engine.store
        row = run.refresh().row
        journal = {_act(step): step for step in store.journal([run.id])[run.id]}
        place = journal.get("progress")
        packed = shop.PARCELS.index(place.progress) + 1 if place is not None and place.progress else 0
        mains = store.executions(run.id)
        return View(
            order=run.id,
            state=run.state,
            acts=[_shown(key, title, journal.get(key)) for key, title in _ACTS],
            packed=packed,
            of=len(shop.PARCELS),
            taken_up=len(mains) > 1 and mains[-1].state != "ready",
            over=RunState(row.state).final or row.state == RunState.PAUSED,
            seconds=time.monotonic() - self._began,
        )

    # The proof

    def _prove(self, run: Run[Any], first: int, second: int, took: float) -> Proof:
        lines = [line.partition(" ") for line in self.notes.read_text().splitlines()]
        told = [(int(pid), text) for pid, _, text in lines]
        counts = Counter(text.removesuffix(" ran") for _, text in told if text.endswith(" ran"))
        things = Counter(text.removeprefix("packed ") for _, text in told if text.startswith("packed "))
        kept = sum(1 for pid, text in told if pid == first and text.startswith("packed "))
        return Proof(
            order=run.id,
            state=run.state,
            result=None if run.state != "finished" else run.result(timeout=5),
            counts=dict(counts),
            packed_before=kept,
            packed_after=sum(things.values()) - kept,
            killed=first,
            second=second,
            seconds=took,
            problems=list(_problems(run, counts, things)),
        )


def _problems(run: Run[Any], counts: Counter[str], things: Counter[str]) -> Iterator[str]:
    if run.state != "finished":
        yield f"the order is {run.state}, not finished"
    for name in _ONCE:
        if counts[name] != 1:
            yield f"{name} ran {counts[name]} times, not once"
    if counts["pack"] != 2:
        yield f"pack ran {counts['pack']} times, not twice"
    missing = [thing for thing in shop.PARCELS if not things[thing]]
    if missing:
        yield f"not packed: {', '.join(missing)}"
    # What was in hand when the worker was killed may be noted twice; no more than that.
    if sum(things.values()) > len(shop.PARCELS) + 1:
        yield "some things were packed twice"


def _act(step: Step) -> str:
    return step.kind if step.kind in ("sleep", "progress") else step.key


def _shown(key: str, title: str, step: Step | None) -> Act:
    if step is None:
        return Act(key=key, title=title, done=False, seconds=None)
    # A sleep ends at its time, also without a worker.
    end = step.wake_at if step.kind == "sleep" else step.finished_at
    done = step.state == StepState.COMPLETED or (
        step.kind == "sleep" and (end or 0) <= time.time_ns() // 1000
    )
    took = None if end is None or step.started_at is None else (end - step.started_at) / 1e6
    return Act(key=key, title=title, done=done, seconds=took)


def _command() -> str:
    """How to call detent from this shell."""
    name = Path(sys.argv[0])
    if name.name != "detent":
        return "python -m detent"
    on_path = any(Path(folder, "detent").exists() for folder in os.environ.get("PATH", "").split(os.pathsep))
    return "detent" if on_path else shlex.quote(os.path.relpath(name))
