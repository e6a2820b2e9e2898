"""crash_everywhere: crash at every durable point of a workflow, and see that it comes out the same."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..app import Run
from ..context import Abandoned
from ..graphs import job_name
from ..kernel.decide import Decide, Enqueue
from ..kernel.model import MAIN, Operation, Park, Record, Send, Settle, StepState
from ..runtime.failures import describe
from ..stores.base import Driver, Lessor, Tx
from ..stores.batch import Applied
from ..stores.sql import SqlStore
from ..stores.sqlite import SqliteDriver
from .apps import TestingApp
from .clock import ManualClock


class Crash(Abandoned):
    """The process is dead; nothing of it reaches the database any more."""


class WorkflowNotCrashSafe(AssertionError):
    """A workflow comes out differently when it crashes; the message lists where."""


@dataclass(frozen=True)
class Point:
    """A moment at which a crash may happen: just before or just after a commit."""

    label: str
    number: int
    after: bool

    def __str__(self) -> str:
        count = f" (time {self.number})" if self.number > 1 else ""
        return f"{'after' if self.after else 'before'} the commit of {self.label}{count}"


def crash_everywhere(
    workflow: Any,
    *args: Any,
    with_: Callable[[Run[Any]], None] | None = None,
    include: Sequence[Any] = (),
    **kwargs: Any,
) -> int:
    """Run a workflow again and again, crashing at every single durable point, and recover.

        crash_everywhere(fulfil, 42)
        crash_everywhere(approve, 7, with_=lambda run: run.send("approval", True))
        crash_everywhere(OrderWorkflow, order_id=7)     # also classes, graphs, templates

    Fails with the list of points where the result differs from an undisturbed run, a
    recorded step ran again, or a transactional step committed twice.  Returns how many
    points it tried.
    """
    trial = _Trial(workflow, args, kwargs, with_, include)
    expected, points = trial.undisturbed()
    wrong = []
    for point in points:
        outcome, twice = trial.crashing_at(point)
        if outcome != expected:
            wrong.append(f"{point}: the run ended with {outcome}, not with {expected}")
        wrong += [f"{point}: step {key!r} was recorded twice" for key in twice]
    if wrong:
        lines = "\n  ".join(wrong)
        raise WorkflowNotCrashSafe(
            f"{job_name(workflow)} is not safe at {len(wrong)} of {len(points)} points:\n  {lines}"
        )
    return len(points)


class _Trial:
    def __init__(
        self,
        workflow: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        with_: Callable[[Run[Any]], None] | None,
        include: Sequence[Any],
    ) -> None:
        self._workflow = workflow
        self._args = args
        self._kwargs = kwargs
        self._with = with_
        self._include = [workflow, *include]

    def undisturbed(self) -> tuple[str, list[Point]]:
        driver = SqliteDriver(":memory:")
        app = self._app(driver, ManualClock(), None)
        with app:
            run = self._begin(app)
            app.speedrun(run)
            outcome = _outcome(run)
            seen = list(_crashing(app).seen)
        counts: Counter[str] = Counter()
        points = []
        for label in seen:
            counts[label] += 1
            points += [Point(label, counts[label], after) for after in (False, True)]
        return outcome, points

    def crashing_at(self, point: Point) -> tuple[str, list[str]]:
        driver, clock = SqliteDriver(":memory:"), ManualClock()
        first = self._app(driver, clock, point)
        first.open(worker=True)
        run = self._begin(first)
        store = _crashing(first)
        worker = first.engine.worker
        assert worker is not None
        self._run_until_dead(first, store)
        worker.vanish()
        store.dead = True
        second = self._app(driver, clock, None)
        _crashing(second).recorded = store.recorded
        with second:
            second.engine.store.bury(worker.id, max_recoveries=10, now=clock.now())
            second.poke()
            again = second.run(run.id)
            second.speedrun(again)
            return _outcome(again), _crashing(second).twice

    def _run_until_dead(self, app: TestingApp, store: CrashingStore) -> None:
        """Let time fly until the crash, or until the run is over without having met it."""
        worker = app.engine.worker
        while worker is not None and not store.crashed.wait(0.0005):
            if worker.settled_down():
                due = store.next_due()
                if due is None:
                    return
                app.clock.move_to(due)
                app.poke()

    def _app(self, driver: Driver, clock: ManualClock, point: Point | None) -> TestingApp:
        store = CrashingStore(driver, dialect="sqlite", point=point)
        return TestingApp(clock=clock, include=self._include, store=store)

    def _begin(self, app: TestingApp) -> Run[Any]:
        run = app.options(id="crash-everywhere").start(self._workflow, *self._args, **self._kwargs)
        if self._with is not None:
            # The outside world does not crash with the worker: it has a store of its own.
            outside = self._app(app.engine.store.driver, app.clock, None)
            self._with(outside.run(run.id))
            app.poke()
        return run


class CrashingStore(SqlStore):
    """A store that dies at a chosen point, and takes everything of its app along."""

    def __init__(self, driver: Driver, *, dialect: str, point: Point | None) -> None:
        super().__init__(driver, dialect=dialect)
        self._point = point
        self._counts: Counter[str] = Counter()
        self._shared = driver
        self.seen: list[str] = []
        self.recorded: set[tuple[str, str]] = set()
        self.twice: list[str] = []
        self.dead = False
        self.crashed = threading.Event()

    def apply(
        self, operations: Sequence[Operation], *, helpers_wanted: bool = False, lessor: Lessor | None = None
    ) -> Applied:
        self._check()
        labels = [label for operation in operations if (label := _label(operation))]
        self._maybe_die(labels, after=False)
        applied = super().apply(operations, helpers_wanted=helpers_wanted, lessor=lessor)
        self._note(operations)
        self._maybe_die(labels, after=True)
        self.seen += labels
        return applied

    @contextmanager
    def transaction(self) -> Iterator[Tx]:
        self._check()
        with super().transaction() as tx:
            self._within: list[Operation] = []
            yield tx
            labels = [label for operation in self._within if (label := _label(operation))]
            self._maybe_die(labels, after=False)
        self._note(self._within)
        self._maybe_die(labels, after=True)
        self.seen += labels

    def apply_within(self, tx: Tx, operation: Operation) -> Any:
        self._within.append(operation)
        return super().apply_within(tx, operation)

    def claim(self, *args: Any, **kwargs: Any) -> Any:
        return [] if self.dead else super().claim(*args, **kwargs)

    def close(self) -> None:
        """The database in memory is shared by the apps of a trial: it goes when the trial is over."""

    def _check(self) -> None:
        if self.dead:
            raise Crash

    def _maybe_die(self, labels: list[str], *, after: bool) -> None:
        point = self._point
        if not after:
            self._counts.update(labels)
        if point is None or self.dead or point.after is not after or point.label not in labels:
            return
        if self._counts[point.label] >= point.number:
            self.dead = True
            self.crashed.set()
            raise Crash

    def _note(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            if isinstance(operation, Settle) and operation.plan.goes_on:
                node = (operation.key.run_id, f"node {operation.key.node}")
                if node in self.recorded:
                    self.twice.append(operation.key.node)
                self.recorded.add(node)
            for step in operation.steps if isinstance(operation, Record) else ():
                if step.state in (StepState.COMPLETED, StepState.FAILED):
                    if (step.run_id, step.key) in self.recorded:
                        self.twice.append(step.key)
                    self.recorded.add((step.run_id, step.key))


def _label(operation: Operation) -> str | None:
    """What an operation is to the reader of a report; None where a crash is not interesting."""
    if isinstance(operation, Record):
        parts = [
            f"{step.key} ({step.state})" for step in operation.steps if step.state != StepState.EXECUTING
        ]
        parts += [f"spawn {row.node}" for row in operation.executions]
        parts += [
            f"child {run.parent_key}" for run in (operation.children.runs if operation.children else ())
        ]
        return ", ".join(parts) or None
    if isinstance(operation, Settle):
        return f"the end of {operation.key.node if operation.key.node != MAIN else 'the run'}"
    if isinstance(operation, Park):
        return "a wait"
    if isinstance(operation, Send):
        return f"message {operation.name}"
    if isinstance(operation, Decide):
        return f"{', '.join(given.type for given in operation.inputs) or 'nothing'} for {operation.run_id}"
    if isinstance(operation, Enqueue):
        return f"{operation.input.type} for the inbox of {operation.run_id}"
    return None


def _crashing(app: TestingApp) -> CrashingStore:
    assert isinstance(app.engine.store, CrashingStore)
    return app.engine.store


def _outcome(run: Run[Any]) -> str:
    """How a run ended, comparable."""
    row = run.refresh().row
    if row.state == "finished":
        return f"the value {row.result}"
    try:
        run.result(timeout=0)
    except Exception as error:
        stored = describe(error)
        return f"{row.state} ({stored.type}: {stored.message})"
    return str(row.state)
