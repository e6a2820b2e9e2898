"""Crashing on purpose: a store that dies just before or just after a chosen commit."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..definitions.context import Abandoned
from ..kernel.decide import Decide, Enqueue
from ..kernel.operations import Operation, Park, Record, Send, Settle
from ..kernel.rows import MAIN, StepState
from ..stores.batch.apply import Applied
from ..stores.driver import Driver, Line, Slots, Tx, UserTx
from ..stores.store import Store
from .apps import TestingApp


class Crash(Abandoned):
    """The process is dead; nothing of it reaches the database any more."""


@dataclass(frozen=True)
class Point:
    """A moment at which a crash may happen: just before or just after a commit."""

    label: str
    number: int
    after: bool

    def __str__(self) -> str:
        count = f" (time {self.number})" if self.number > 1 else ""
        return f"{'after' if self.after else 'before'} the commit of {self.label}{count}"


def points_of(seen: Iterable[str]) -> list[Point]:
    """Before and after each of the commits of an undisturbed run."""
    counts: Counter[str] = Counter()
    points = []
    for label in seen:
        counts[label] += 1
        points += [Point(label, counts[label], after) for after in (False, True)]
    return points


END = Point("the end of the run", 1, after=False)  # all is recorded, but not what the function returned


class CrashingStore(Store):
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
        self.returned: str | None = None  # what the function returned, before it was durable
        self.crashed = threading.Event()

    def apply(
        self,
        operations: Sequence[Operation],
        *,
        helpers_wanted: bool = False,
        slots: Slots | None = None,
        line: Line | None = None,
    ) -> Applied:
        self._check()
        for operation in operations:
            if isinstance(operation, Settle) and _label(operation) == END.label and self.returned is None:
                self.returned = operation.plan.result
        labels = [label for operation in operations if (label := _label(operation))]
        self._maybe_die(labels, after=False)
        applied = super().apply(operations, helpers_wanted=helpers_wanted, slots=slots, line=line)
        self._note(operations)
        self._maybe_die(labels, after=True)
        self.seen += labels
        return applied

    @contextmanager
    def transaction(self, owner: str = "a trial", *, isolation: str | None = None) -> Iterator[UserTx]:
        self._check()
        with super().transaction(owner, isolation=isolation) as tx:
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
    """What an operation is to the reader of a report; None if a crash is not interesting."""
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
        if operation.key.node != MAIN:
            return f"the end of {operation.key.node}"
        return END.label if operation.parent is None else f"the end of child run {operation.key.run_id}"
    if isinstance(operation, Park):
        return "a wait"
    if isinstance(operation, Send):
        return f"message {operation.name}"
    if isinstance(operation, Decide):
        return _label_of_decision(operation)
    if isinstance(operation, Enqueue):
        return f"the queued input {operation.input.type}"
    return None


def _label_of_decision(operation: Decide) -> str:
    names = ", ".join(given.type for given in operation.inputs) or "nothing"
    if operation.ends is None:
        return f"the input {names}"
    return f"{names} from {operation.ends.key.node}"


def crashing(app: TestingApp) -> CrashingStore:
    assert isinstance(app.engine.store, CrashingStore)
    return app.engine.store
