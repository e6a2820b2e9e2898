"""A decider that crashes: its inputs are given again, and its instances must come to the same events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import DetentError
from ..kernel.decide import DECIDER
from ..stores.driver import Driver
from ..stores.sqlite.driver import SqliteDriver
from .apps import MOST_MOVES, TestingApp
from .clock import ManualClock
from .crashing_store import Crash, CrashingStore, Point, crashing, points_of

MANY = 10_000  # instances that a test looks at


class DeciderTrial:
    """The same inputs to a decider again and again, in worlds that differ by one crash."""

    def __init__(self, decider: Any, inputs: Sequence[Any], include: Sequence[Any]) -> None:
        self._decider: Any = decider if isinstance(decider, type) else type(decider)
        self._inputs = inputs
        self._include = [decider, *include]

    def undisturbed(self) -> tuple[str, list[Point]]:
        """What the instances come to, and all points at which a crash may happen on the way."""
        app = self._app(SqliteDriver(":memory:"), ManualClock(), None)
        with app:
            self._execute(app, 0)
            self._rest(app)
            return _events(app), points_of(crashing(app).seen)

    def crashing_at(self, point: Point) -> tuple[str, list[str]]:
        """What they come to with a crash there."""
        driver, clock = SqliteDriver(":memory:"), ManualClock()
        first = self._app(driver, clock, point)
        first.open(worker=True)
        store, worker = crashing(first), first.engine.worker
        assert worker is not None
        given = self._execute(first, 0)
        if not store.crashed.is_set():
            self._rest(first)
        worker.crash()
        store.dead = True
        with self._app(driver, clock, None) as second:
            second.engine.store.reap(worker.id, max_recoveries=10, now=clock.now())
            second.poke()
            second.settle_down()
            self._execute(second, given)
            self._rest(second)
            return _events(second), []

    def _app(self, driver: Driver, clock: ManualClock, point: Point | None) -> TestingApp:
        store = CrashingStore(driver, dialect="sqlite", point=point)
        return TestingApp(clock=clock, include=self._include, store=store)

    def _execute(self, app: TestingApp, first: int) -> int:
        """Give the inputs from that one on, each when all is quiet; return which one met the crash.

        If the answer to an input is lost, the input is sent again with the same id.
        """
        for number, input in enumerate(self._inputs[first:], start=first):
            try:
                app.execute(self._decider, input, input_id=f"input {number}")
            except Crash:
                return number
            self._settle_down(app)
            if crashing(app).crashed.is_set():
                return number
        return len(self._inputs)

    def _settle_down(self, app: TestingApp) -> None:
        """Wait until nothing runs, or all of it is dead."""
        store, worker = crashing(app), app.engine.worker
        assert worker is not None
        while not store.crashed.wait(0.0005) and not worker.settled_down():
            continue

    def _rest(self, app: TestingApp) -> None:
        """Let time fly until nothing is due any more, or until the crash."""
        for _ in range(MOST_MOVES):
            self._settle_down(app)
            due = None if crashing(app).crashed.is_set() else app.engine.store.next_due()
            if due is None:
                return
            app.clock.move_to(due)
            app.poke()
        raise DetentError(
            f"{self._decider.type} keeps setting timers and never finishes: "
            f"give crash_everywhere inputs that finish the instance"
        )


def _events(app: TestingApp) -> str:
    """All events of all instances, comparable; and what was given up."""
    store = app.engine.store
    told = []
    for run in sorted(store.runs(limit=MANY), key=lambda run: run.id):
        if run.kind == DECIDER:
            told += [f"{run.id} {event.sequence} {event.type} {event.data}" for event in store.events(run.id)]
            dead = [row.node for row in store.executions(run.id) if row.outcome == "dead_letter"]
            told += [f"{run.id} has given up {node}" for node in sorted(dead)]
    return f"[{'; '.join(told)}]"
