"""Recorded runs for the tests of replay, and the steps that they are made of."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Sequence
from typing import Any

import detent
from detent import step, workflow
from detent.app.exports import export
from detent.kernel.drift import Recording
from detent.kernel.operations import Operation
from detent.kernel.rows import RunRow, Step
from detent.stores.batch.apply import Applied
from detent.stores.sqlite.driver import SqliteDriver
from detent.stores.store import Store
from detent.testing import TestingApp, WorkflowDrifted, replay

calls: list[str] = []


@step
def work(number: int) -> int:
    calls.append(f"work {number}")
    return number


@step
async def double(number: int) -> int:
    calls.append(f"double {number}")
    return 2 * number


@step
def broken(name: str) -> None:
    raise ValueError(name)


@workflow
def child(number: int) -> int:
    return work(number)


class Prefixes(Store):
    """A store that remembers, after each commit, what it holds of the run `run`."""

    def __init__(self) -> None:
        super().__init__(SqliteDriver(":memory:"), dialect="sqlite")
        self._seen: list[tuple[RunRow, list[Step], list[tuple[int, str, str]]]] = []
        self._guard = threading.Lock()

    def apply(self, operations: Sequence[Operation], **options: Any) -> Applied:
        applied = super().apply(operations, **options)
        self._look()
        return applied

    def recordings(self, now: int) -> list[Recording]:
        """The run as it was after each commit, and as it is."""
        self._look()
        return [Recording.of(row, steps, history, now) for row, steps, history in self._seen]

    def _look(self) -> None:
        with self._guard, contextlib.suppress(detent.RunNotFound):
            self._seen.append((self.run("run"), self.journal(["run"])["run"], self.history("run")))


def exported(run: detent.Run[Any]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(export(run._engine, run.refresh().row)))
    return document


def recorded_by(app: TestingApp, flow: Any) -> dict[str, Any]:
    """A run of `flow`, to its end; with 1 where it takes an argument."""
    run = app.start(flow, *([1] if flow.accepts("number") else []))
    return exported(app.speedrun(run))


def told(
    before: Any, after: Any, *, until: str = "", include: Sequence[Any] = (), timeout: float = 10.0
) -> list[str]:
    """What a replay says of the code `after`, for a run of `before` that stands behind a step."""
    with TestingApp(include=[work, double, child]) as app:
        run = recorded_by(app, before)
    if until:
        journal = sorted(run["journal"], key=lambda entry: int(entry["seq"]))
        keys = [entry["step_key"] for entry in journal if entry["kind"] in ("step", "sleep")]
        kept = keys[: keys.index(until) + 1]
        run["journal"] = [entry for entry in run["journal"] if entry["step_key"] in kept]
        run["run"] |= {"state": "ready", "result": None, "error": None, "finished_at": None}
    try:
        replay(run, after, include=include, timeout=timeout)
    except WorkflowDrifted as drift:
        return [str(each) for each in drift.differences]
    return []
