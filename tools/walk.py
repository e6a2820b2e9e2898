"""Which files a call passes: `python tools/walk.py` prints the three walks of docs/architecture.md.

    function   from `app.start` to `run.result()`
    graph      a node whose end makes a join ready, to the end of its run
    decider    from an input to an effect that fails and becomes a dead letter

Every file of Detent counts in which a function is called between the two ends, in the caller's
thread and in those that execute and commit.  The threads that only wait (heartbeat, listener,
upkeep) are left out: they do the same while nothing happens.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any

import detent
from detent import Decider, Decision, EffectContext

PACKAGE = str(Path(detent.__file__).parent) + "/"
IN_THE_BACKGROUND = ("detent-heartbeat", "detent-listener", "detent-upkeep", "detent-watch")
LONGEST = 10.0  # seconds


class Walk:
    """The files that were entered, in the order of their first call, and how often the file changed."""

    def __init__(self) -> None:
        self.files: dict[str, list[str]] = {}  # with the first functions that were called in them
        self.changes = 0
        self._on = False
        self._last: dict[int, str] = {}

    def seen(self, frame: FrameType, event: str, argument: object) -> None:
        name = frame.f_code.co_filename
        if not self._on or event != "call" or not name.startswith(PACKAGE):
            return
        if threading.current_thread().name.startswith(IN_THE_BACKGROUND):
            return
        file, thread = name.removeprefix(PACKAGE), threading.get_ident()
        functions = self.files.setdefault(file, [])
        if frame.f_code.co_name not in functions:
            functions.append(frame.f_code.co_name)
        self.changes += self._last.get(thread) != file
        self._last[thread] = file

    @contextmanager
    def recorded(self) -> Iterator[None]:
        self._on = True
        try:
            yield
        finally:
            self._on = False

    def print(self, title: str) -> None:
        print(f"{title}: {len(self.files)} files, {self.changes} changes of file")
        for file, functions in self.files.items():
            print(f"  {file:<34} {', '.join(functions[:4])}{', …' if len(functions) > 4 else ''}")
        print()


@detent.step
def double(number: int) -> int:
    return 2 * number


@detent.workflow
def plain(ctx: detent.Context, number: int) -> int:
    return double(number) + 1


class Join(detent.Workflow):
    @detent.step(depends_on=[])
    def left(self) -> int:
        return 1

    @detent.step(depends_on=[])
    def right(self) -> int:
        return 2

    @detent.step(depends_on=["left", "right"])
    def both(self) -> int:
        return 3


@dataclass(frozen=True)
class Ring:
    id: str


@dataclass(frozen=True)
class Rang:
    pass


@dataclass(frozen=True)
class Call:
    number: str


class Bell(Decider[int, Ring, Rang, Call]):
    type = "bell"
    retry = detent.Retry(attempts=1)

    def initial(self) -> int:
        return 0

    def decide(self, state: int, input: Ring, now: datetime) -> Decision:
        return Decision.event(Rang()).with_effect(Call("112"))

    def evolve(self, state: int, event: Rang) -> int:
        return state + 1

    def handle(self, effect: Call, ctx: EffectContext) -> None:
        raise ConnectionError("engaged")


def main() -> None:
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        for name, (definitions, work) in WALKS.items():
            walked(name, f"sqlite:///{folder}/{name}.db", definitions, work)


def walked(name: str, url: str, definitions: list[Any], work: Callable[[detent.App], None]) -> None:
    """Do the work twice: the second time everything is loaded, and only that is recorded."""
    walk = Walk()
    threading.setprofile(walk.seen)
    sys.setprofile(walk.seen)
    try:
        with detent.App(url, include=definitions) as app:
            work(app)
            time.sleep(0.5)  # what the first time has left to do
            with walk.recorded():
                work(app)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    walk.print(name)


def function(app: detent.App) -> None:
    assert app.start(plain, 1).result(timeout=LONGEST) == 3


def graph(app: detent.App) -> None:
    app.start(Join).result(timeout=LONGEST)


def decider(app: detent.App) -> None:
    before = app.dead_letters.count()
    app.execute(Bell, Ring("bell"))
    until = time.monotonic() + LONGEST
    while app.dead_letters.count() == before:
        assert time.monotonic() < until, "the effect did not become a dead letter"
        time.sleep(0.05)


WALKS: dict[str, tuple[list[Any], Callable[[detent.App], None]]] = {
    "function": ([plain], function),
    "graph": ([Join], graph),
    "decider": ([Bell], decider),
}

if __name__ == "__main__":
    main()
