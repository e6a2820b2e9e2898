"""Streams of a run from outside, in any process: `run.stream("tokens")`, `run.append("log", "seen")`.

A reader asks for the entries beyond the last position that it has seen: often while entries come, and
seldom while none do.  It ends when the run is over and nothing of it executes any more.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from ..arguments import check_count, check_flag, check_text
from ..clock import from_micros
from ..definitions.context import current_frame
from ..errors import InvalidState
from ..execution.publish import published_row
from ..ids import uuid7
from ..kernel.external_changes import Append, Publish
from ..kernel.rows import NewEntry, Step
from .engine import Engine

FIRST_LOOK, LONGEST_LOOK = 0.02, 0.5  # seconds between two looks
PAGE = 200  # entries that are read at once
LAST = 2**62  # a position that no entry has


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """One entry of a stream, with its position.

        for entry in run.stream("tokens").entries():
            print(entry.position, entry.value)

    `step` is the step that appended it (`main`: the workflow itself; empty: `run.append()`), and `attempt`
    its attempt: a step that is repeated after a failure or a crash appends its values again.
    """

    position: int
    value: Any
    step: str
    attempt: int
    at: datetime


class Reading:
    """One reader's place in a stream."""

    def __init__(self, engine: Engine, run_id: str, name: str, *, after: int, follow: bool) -> None:
        check_text("run.stream()", "name", name, example="tokens")
        self._after = check_count("run.stream()", "after", after, least=0, most=LAST)
        self._follow = check_flag("run.stream()", "follow", follow)
        if current_frame("run.stream()") is not None:
            raise InvalidState(
                "read a stream in a workflow", run_id, "not the same for every replay", "read it in a step"
            )
        self._engine = engine
        self._run_id = run_id
        self._name = name
        self.wait = FIRST_LOOK  # seconds until the next look
        self.over = False

    def look(self) -> list[StreamEntry]:
        """The next entries; `over` says that there will be no others."""
        found = self._page()
        if not found and not (self._follow and self._engine.store.streams_may_grow(self._run_id)):
            # What was appended before the end is there when the end is seen.
            found = self._page()
            self.over = not found
        self.wait = FIRST_LOOK if found else min(self.wait * 2, LONGEST_LOOK)
        return found

    def _page(self) -> list[StreamEntry]:
        decode = self._engine.services.codec.decode
        rows = self._engine.store.stream(self._run_id, self._name, after=self._after, limit=PAGE)
        if rows:
            self._after = rows[-1].position
        return [
            StreamEntry(row.position, decode(row.value), row.step, row.attempt, from_micros(row.appended_at))
            for row in rows
        ]


class Stream(Iterator[Any]):
    """The values of a stream, in order; see `Run.stream`.

    for token in run.stream("tokens"):
        print(token, end="", flush=True)
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._entries = self._read()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return next(self._entries).value

    def entries(self) -> Iterator[StreamEntry]:
        """The same with positions: continue later with `run.stream(name, after=entry.position)`."""
        return self._entries

    def _read(self) -> Iterator[StreamEntry]:
        while True:
            found = self._reading.look()
            yield from found
            if self._reading.over:
                return
            if not found:
                time.sleep(self._reading.wait)


def append_to(engine: Engine, run_id: str, name: str, value: Any) -> None:
    """Append to a stream of a run from outside; see `Run.append`."""
    _refuse_in_workflow("append", run_id)
    engine.store.change(Append(entry_of(engine, run_id, name, value, "run.append()")), now=engine.clock.now())


def entry_of(engine: Engine, run_id: str, name: str, value: Any, where: str) -> NewEntry:
    """An entry that is appended from outside; `where` names the call in errors."""
    check_text(where, "name", name, example="tokens")
    return NewEntry(
        run_id=run_id,
        name=name,
        entry_id=uuid7(),
        step="",
        attempt=1,
        value=engine.services.codec.encode(value, f"a value of the stream {name!r}"),
        appended_at=engine.clock.now(),
    )


def publish_for(engine: Engine, run_id: str, name: str, value: Any) -> None:
    """Publish a value of a run from outside; see `Run.publish`."""
    _refuse_in_workflow("publish", run_id)
    engine.store.change(
        Publish(value_of(engine, run_id, name, value, "run.publish()")), now=engine.clock.now()
    )


def value_of(engine: Engine, run_id: str, name: str, value: Any, where: str) -> Step:
    """A value that is published from outside; `where` names the call in errors."""
    check_text(where, "name", name, example="progress")
    text = engine.services.codec.encode(value, f"the published value {name!r}")
    return published_row(run_id, name, text, now=engine.clock.now())


def _refuse_in_workflow(what: str, run_id: str) -> None:
    if current_frame(f"run.{what}()") is not None:
        hint = f"call detent.{what}() for the workflow's own run, or do it in a step"
        raise InvalidState(f"{what} in a workflow", run_id, "not recorded", hint)
