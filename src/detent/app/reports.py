"""From what was committed to events: the one place where the engine's events about runs are made.

    committed operations  ->  RunStarted, RunFinished…, ExecutionEnded, ExecutionRetried, ExecutionParked,
                              DeadLettered, Drifted
    changes by verbs      ->  RunPaused, RunResumed, RunCanceled…; what a dead worker left behind

It is called after the commit, and only while there are subscribers.  It runs in the threads of the
engine, so it calls no user code and, apart from runs whose type was not read, asks no database.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, overload

from ..arguments import check_function, refuse
from ..clock import Clock, from_micros
from ..events import (
    DeadLettered,
    Drifted,
    Event,
    ExecutionEnded,
    ExecutionEvent,
    ExecutionParked,
    ExecutionRetried,
    Failure,
    RunCanceled,
    RunEvent,
    RunFailed,
    RunFinished,
    RunPaused,
    RunResumed,
    RunStarted,
)
from ..execution.failures import decode_error
from ..kernel.decide import Decide, Decided
from ..kernel.operations import (
    Note,
    Operation,
    Park,
    Record,
    Recovered,
    RunChange,
    Settle,
    Settled,
    SettlePlan,
    Start,
    Verdict,
)
from ..kernel.rows import Claimed, NewRun, RunEnd, RunState, Step, StepState
from ..kernel.settle import Outcome
from ..observe import Observer, checked_kinds
from ..stores.batch.apply import Applied
from ..stores.store import Store

log = logging.getLogger("detent.worker")
SUBSCRIBE = "app.subscribe()"
UNKNOWN = Failure(type="unknown", message="its error was not recorded")
_STEPS = ("step", "undo")


def subscribe(
    observer: Observer, function: Callable[[Any], Any], events: Collection[type[Event]] | None
) -> Callable[[], None]:
    """Check what `app.subscribe` was given, and subscribe it."""
    check_function(SUBSCRIBE, "function", function, takes="an event")
    kinds = checked_kinds(events)
    if kinds is None:
        advice = "give classes of detent.events, for example events=(events.RunFailed,), or None for all"
        refuse(SUBSCRIBE, "events", events, advice)
    return observer.subscribe(function, kinds)


class Reporter:
    """Makes events of what an engine has committed, and emits them."""

    def __init__(self, observer: Observer, store: Store, clock: Clock) -> None:
        self._observer = observer
        self._store = store
        self._clock = clock

    def committed(
        self,
        operations: Sequence[Operation],
        applied: Applied,
        later: Callable[[Callable[[], None]], object],
    ) -> None:
        """Emit what follows from a batch.  `later` runs in another thread what has to ask the database.

        It is committed: what goes wrong here must not look as if it were not.
        """
        try:
            now = self._clock.now()
            for event in _of_batch(operations, applied, now):
                self._observer.emit(event)
            if applied.changed:
                later(lambda: self.changed(applied.changed))
        except Exception:
            log.exception("could not build the events about %d committed operations", len(operations))

    def changed(self, changes: Iterable[RunChange | Recovered]) -> None:
        """Log and emit what a verb has changed."""
        for change in _once(changes):
            try:
                self._changed(change)
            except Exception:  # the run has been removed since, or the database is away
                log.warning("could not report a change of a run", exc_info=True)

    def started(self, runs: Iterable[NewRun]) -> None:
        """Runs were started by a verb of their own."""
        for run in runs:
            self._observer.emit(_started(run))

    def accepted(self, run_id: str, type: str, queue: str) -> None:
        """An operator has accepted the drift of a run."""
        now = from_micros(self._clock.now())
        self._observer.emit(Drifted(time=now, run_id=run_id, type=type, queue=queue, kind="accepted"))

    def _changed(self, change: RunChange | Recovered) -> None:
        if isinstance(change, Recovered):
            if self._observer.active:
                for event in _settled(change.execution, change.plan, change.at, change.execution.node):
                    self._observer.emit(event)
            if change.plan.run is not None:
                orphan = change.execution
                self._stopped(orphan.run_id, orphan.type, orphan.run_queue, change.plan.run, change.at)
            return
        end = RunEnd(state=change.state, error=change.error)
        type, queue = change.type, change.queue
        if type is None and self._observer.active:
            row = self._store.run(change.run_id)
            type, queue = row.type, row.queue
        self._stopped(change.run_id, type or "", queue, end, change.at, change.reason)

    def _stopped(
        self, run_id: str, type: str, queue: str | None, end: RunEnd, at: int, reason: str | None = None
    ) -> None:
        """A run changed its state without an execution that settled: a pause by an error goes to the log."""
        if end.state == RunState.PAUSED and end.error is not None:
            what = decode_error(end.error).message
            facts = {"run": run_id, "type": type}
            log.error("run %s of %s is paused: %s", run_id, type, what, extra=facts)
        if self._observer.active:
            self._observer.emit(_run_event(run_id, type, queue, end, at, reason))


def _once(changes: Iterable[RunChange | Recovered]) -> Iterator[RunChange | Recovered]:
    """Several executions of one run may stop it in the same transaction: that is one pause."""
    paused: set[str] = set()
    for change in changes:
        if isinstance(change, Recovered) and change.plan.run is not None:
            run_id = change.execution.run_id
            if run_id in paused:
                change.plan.run = None
            paused.add(run_id)
        yield change


def _of_batch(operations: Sequence[Operation], applied: Applied, now: int) -> Iterator[Event]:
    yield from (_started(run) for run in applied.decided.begun)
    for operation, answer in zip(operations, applied.answers, strict=True):
        yield from _events(operation, answer, now)
    bound_deciders = {
        operation.run_id: operation.bound for operation in operations if isinstance(operation, Decide)
    }
    for run_id, end in applied.decided.ends.items():
        yield _run_event(run_id, bound_deciders[run_id].name, bound_deciders[run_id].queue, end, now)


def _events(operation: Operation, answer: Any, now: int) -> Iterator[Event]:
    """What an operation that was answered like this has brought."""
    match operation, answer:
        case Start(), list():
            created = {started.id for started in answer if started.created}
            yield from _begun(operation, created)
        case Record(about=Claimed() as claimed), Verdict.APPLIED:
            for step in operation.steps:
                if step.kind in _STEPS and step.attempt:
                    yield from _of_step(claimed, step, now)
            if operation.children is not None:
                yield from _begun(operation.children, {run.id for run in operation.children.runs})
        case Settle(), Settled(verdict=Verdict.APPLIED):
            yield from _of_settle(operation, answer)
            yield from _continued(operation, answer)
        case Decide(ends=Settle() as ends), Decided(stale=False, error=None, postponed=None, held=False):
            if not answer.more:
                yield from _of_settle(ends, Settled(verdict=Verdict.APPLIED))
        case Park(about=Claimed() as claimed), Settled(verdict=Verdict.APPLIED) | Verdict.APPLIED:
            until = None if operation.wake_at is None else from_micros(operation.wake_at)
            yield ExecutionParked(**_facts(claimed, operation.now), until=until)
        case Note(announces=Event() as event), _:
            yield event


def _begun(start: Start, created: set[str]) -> Iterator[Event]:
    for run in start.runs:
        if run.id in created:
            yield _started(run)
            if run.id in start.ends:
                yield _run_event(run.id, run.type, run.queue, start.ends[run.id], run.created_at)


def _started(run: NewRun) -> Event:
    time = from_micros(run.created_at)
    return RunStarted(time=time, run_id=run.id, type=run.type, queue=run.queue, parent=run.parent)


def _of_settle(operation: Settle, answer: Settled) -> Iterator[Event]:
    claimed = operation.about
    if claimed is None:
        return
    plan = operation.plan
    if answer.run_state == RunState.CANCELED:  # whatever it came to: it is recorded as canceled
        plan = SettlePlan(state=plan.state, outcome=Outcome.CANCELED_BY_OPERATOR, error=plan.error)
    name = claimed.node if operation.run_graph is None else operation.run_graph.graph.shown(claimed.node)
    yield from _settled(claimed, plan, operation.now, name)
    if answer.ended is not None:
        queue = claimed.run_queue or claimed.queue
        yield _run_event(claimed.run_id, claimed.type, queue, answer.ended, operation.now)


def _continued(operation: Settle, answer: Settled) -> Iterator[Event]:
    claimed, ended = operation.about, answer.ended
    if claimed is not None and ended is not None and ended.continued_as is not None:
        yield RunStarted(
            time=from_micros(operation.now),
            run_id=ended.continued_as,
            type=claimed.type,
            queue=claimed.run_queue or claimed.queue,
            parent=claimed.parent,
        )


def _settled(claimed: Claimed, plan: SettlePlan, now: int, node: str) -> Iterator[ExecutionEvent]:
    facts, error = _facts(claimed, now), _failure(plan.error)
    facts["node"] = node
    duration = _since(claimed.started_at, now)
    if plan.again is not None:
        wait = _since(now, plan.again.scheduled_for or now)
        yield ExecutionRetried(**facts, outcome=str(plan.outcome), wait=wait, duration=duration, error=error)
        return
    yield ExecutionEnded(**facts, outcome=str(plan.outcome), duration=duration, error=error)
    if plan.outcome == Outcome.DEAD_LETTER:
        yield DeadLettered(**facts, error=error)


def _of_step(claimed: Claimed, step: Step, now: int) -> Iterator[Event]:
    """A step of a durable function, which has no execution of its own."""
    now = step.finished_at or now
    facts = _facts(claimed, now)
    facts.update(node=step.key, name=step.name, kind=step.kind, attempt=step.attempt)
    error, duration = _failure(step.error), _since(step.started_at, now)
    if step.state == StepState.RETRYING:
        outcome, wait = Outcome.REATTEMPTED_BY_EXCEPTION, _since(now, step.wake_at or now)
        yield ExecutionRetried(**facts, outcome=str(outcome), wait=wait, duration=duration, error=error)
    elif step.state in (StepState.COMPLETED, StepState.FAILED):
        outcome = Outcome.SUCCESS if step.state == StepState.COMPLETED else Outcome.FAILED
        if outcome is Outcome.SUCCESS and error is not None:
            outcome = Outcome.SKIPPED_BY_EXCEPTION
        yield ExecutionEnded(**facts, outcome=str(outcome), duration=duration, error=error)


@overload
def _since(begin: int, end: int) -> timedelta: ...
@overload
def _since(begin: int | None, end: int) -> timedelta | None: ...
def _since(begin: int | None, end: int) -> timedelta | None:
    """From one moment to the next; clocks of two machines may differ."""
    return None if begin is None else timedelta(microseconds=max(0, end - begin))


def _facts(claimed: Claimed, now: int) -> dict[str, Any]:
    return {
        "time": from_micros(now),
        "run_id": claimed.run_id,
        "type": claimed.type,
        "queue": claimed.queue,
        "node": claimed.node,
        "name": claimed.job,
        "kind": claimed.kind,
        "attempt": claimed.attempt,
        "worker": claimed.worker,
    }


def _run_event(
    run_id: str, type: str, queue: str | None, end: RunEnd, at: int, reason: str | None = None
) -> RunEvent:
    """The event for a run that has come to this state."""
    facts: dict[str, Any] = {"time": from_micros(at), "run_id": run_id, "type": type, "queue": queue}
    error = _failure(end.error)
    match RunState(end.state):
        case RunState.FINISHED:
            return RunFinished(**facts)
        case RunState.FAILED:
            return RunFailed(**facts, error=error or UNKNOWN)
        case RunState.CANCELED:
            return RunCanceled(**facts, error=error, reason=reason)
        case RunState.PAUSED:
            return RunPaused(**facts, error=error, reason=reason)
        case _:
            return RunResumed(**facts)


def _failure(text: str | None) -> Failure | None:
    if text is None:
        return None
    stored = decode_error(text)
    return Failure(type=stored.type, message=stored.message, traceback=stored.traceback)
