"""Ctrl-C in a process that starts runs and executes them, at every line of the start."""

from __future__ import annotations

import itertools
import linecache
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import detent
from detent import step, workflow
from detent.worker import upkeep, worker
from tests.functions.world import Apps

PATIENCE = 30.0
SOURCE = Path(detent.__file__).parent
TRACED = {
    str(SOURCE / name)
    for name in (
        "app/app.py",
        "app/engine.py",
        "commit/committer.py",
        "commit/loop_turns.py",
        "worker/worker.py",
        "worker/slots.py",
    )
}
called: Counter[str] = Counter()


@step
def note(name: str) -> str:
    called[name] += 1
    time.sleep(0.02)
    return name


@step
async def anote(name: str) -> str:
    called[name] += 1
    return name


@workflow
def notes(name: str) -> str:
    return note(name)


@workflow
async def anotes(name: str) -> str:
    return await anote(name)


class Interrupt:
    """Raises KeyboardInterrupt at one of the traced lines that this thread executes inside of the block."""

    def __init__(self, line: int) -> None:
        self._left = line
        self._thread = threading.get_ident()

    @property
    def struck(self) -> bool:
        return self._left < 0

    def __enter__(self) -> Interrupt:
        self._before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.settrace(self._before)

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if frame.f_code.co_filename in TRACED else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line" and threading.get_ident() == self._thread and not _leaves(frame):
            self._left -= 1
            if self._left == -1:
                raise KeyboardInterrupt
        return self._line


def _leaves(frame: FrameType) -> bool:
    """Whether this may be the end of a `with` block: a tracer may raise there, and a signal does not."""
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with ")


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "EVERY", 0.2)
    monkeypatch.setattr(worker, "FORGOTTEN_AFTER", 1.0)


@pytest.mark.parametrize("definition", [notes, anotes], ids=["sync", "async"])
def test_a_start_that_is_interrupted_anywhere_neither_loses_nor_repeats_its_run(
    apps: Apps, definition: Any
) -> None:
    app = apps(definition)
    called.clear()
    names = []
    for line in itertools.count():
        name = f"{definition.name}-{line}"
        with Interrupt(line) as interrupt, suppress(KeyboardInterrupt):
            app.options(id=name).start(definition, name)
        if not interrupt.struck:
            break
        names.append(name)
        app.options(id=name).start(definition, name)
    assert len(names) > 30
    assert [app.run(name).result(timeout=PATIENCE) for name in names] == names
    assert {name: called[name] for name in names} == dict.fromkeys(names, 1)
    no_slot_is_lost(app)


@pytest.mark.parametrize("definition", [notes, anotes], ids=["sync", "async"])
def test_a_start_without_an_id_that_is_interrupted_anywhere_is_whole_or_not_there(
    apps: Apps, definition: Any
) -> None:
    """On PostgreSQL, the event loop of the worker commits these starts."""
    app = apps(definition)
    called.clear()
    for _ in range(3):
        app.start(definition, "before").result(timeout=PATIENCE)  # the loop has its connection from here on
    for line in itertools.count():
        with Interrupt(line) as interrupt, suppress(KeyboardInterrupt):
            app.start(definition, str(line))
        if not interrupt.struck:
            break
    assert line > 30
    runs = list(app.runs(type=definition, limit=1000))
    assert all(run.result(timeout=PATIENCE) for run in runs)
    made = Counter(run.result() for run in runs)
    assert made == called
    assert set(made.values()) == {1, 3}
    no_slot_is_lost(app)


def no_slot_is_lost(app: detent.App) -> None:
    own = app.engine.worker
    assert own is not None
    deadline = time.monotonic() + PATIENCE
    while own._slots.free != own._slots.number:
        assert time.monotonic() < deadline, f"{own._slots.number - own._slots.free} slots are lost"
        time.sleep(0.05)
