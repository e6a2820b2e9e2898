"""Executions and history of a run for users, built from stored rows."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from ..arguments import check_stored_id
from ..clock import from_micros
from ..errors import DetentError
from ..execution.failures import decode_error
from ..kernel.decide import DECIDER
from ..kernel.graph import Graph
from ..kernel.journal import ACCEPTED, CANCEL, ORDER, cancel_key
from ..kernel.rows import (
    Attribute,
    Error,
    ExecutionRow,
    ExecutionState,
    RunEnd,
    RunRow,
    RunState,
    Step,
    StepState,
)
from ..kernel.versions import all_versions, started_by
from .engine import Engine
from .graphs import graph_of
from .values import Call, Reader

TYPED = frozenset({"main", "step", "node", "undo"})  # kinds that call a definition by its name
# Kinds of journal entries that are no steps.
UNSEEN = frozenset({"spawn", "spawned", "progress", "published", ORDER, ACCEPTED})


@dataclass(frozen=True, slots=True)
class Execution:
    """One attempt at a node, or one recorded step of a durable function.

    for execution in run.executions():
        print(execution.node, execution.attempt, execution.state, execution.outcome)
    """

    run_id: str
    node: str
    node_id: str  # of a graph: as it is stored
    job: str  # the name of the step or the workflow that it calls
    attempt: int
    kind: str  # main, step, sleep, receive, child, ...
    state: str
    outcome: str | None
    worker: str | None
    created_at: int | None  # microseconds; None for a recorded step
    scheduled_for: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    stored_input: str | None  # as text
    stored_result: str | None
    error: Error | None  # its class, message and traceback
    ancestry_hash: str | None  # of a settled node
    reader: Reader = field(repr=False, compare=False)

    @property
    def input(self) -> Call | None:
        """The decoded arguments: `input.args`, `input.kwargs`."""
        return self.reader.call(self._definition, self.stored_input)

    @property
    def result(self) -> Any:
        """The decoded result."""
        return self.reader.result(self._definition, self.stored_result)

    @property
    def _definition(self) -> str | None:
        """The name of the definition whose types its values have."""
        return self.job if self.kind in TYPED else None

    @property
    def duration(self) -> float | None:
        """Seconds from start to end, if both are known."""
        if self.started_at is None or self.finished_at is None:
            return None
        return (self.finished_at - self.started_at).total_seconds()


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """One event in the history of a run.

    for happening in run.history():
        print(happening.at, happening.event, happening.detail)
    """

    at: datetime
    event: str
    detail: Any


def history_events(lines: Iterable[tuple[int, str, str]]) -> list[HistoryEvent]:
    """Stored lines of a history, as users read them."""
    return [HistoryEvent(from_micros(at), event, msgspec.json.decode(detail)) for at, event, detail in lines]


def id_of(where: str, argument: str, run: Any) -> str:
    """The id of a run that was given as an object or by its id."""
    return run.id if isinstance(run, RunFacts) else check_stored_id(where, argument, run)


class RunFacts:
    """The attributes of a run that need no query; `Run` and `AsyncRun` share them."""

    def __init__(self, engine: Engine, row: RunRow, *, fresh: bool = False) -> None:
        self._engine = engine
        self._row = row
        self._fresh = fresh  # just started here, and never asked for since

    def __repr__(self) -> str:
        return f"<run {self.id} of {self.type}, {self.state}>"

    @property
    def id(self) -> str:
        """The id of the run."""
        return self._row.id

    @property
    def type(self) -> str:
        """The name of the run's definition."""
        return self._row.type

    @property
    def state(self) -> str:
        """`ready`, `performing`, `paused`, `finished`, `failed` or `canceled`."""
        return shown_state(self._row)

    @property
    def version(self) -> str | None:
        """The version of the code that started the run; None if that is not known."""
        return started_by(self._row.versions)

    @property
    def versions(self) -> tuple[str, ...]:
        """The versions of the code that started the run and continued it, in order."""
        return all_versions(self._row.versions)

    @property
    def pinned_to(self) -> str | None:
        """The only version whose workers continue the run; None if workers of all versions do."""
        return self._row.pin

    @property
    def queue(self) -> str:
        """The queue of the run."""
        return self._row.queue

    @property
    def priority(self) -> int:
        """The priority of the run; a higher one runs sooner."""
        return self._row.priority

    @property
    def hero(self) -> tuple[str, str] | None:
        """The type and the id of its hero (the subject of the run), as in `app.options(hero=...)`."""
        row = self._row
        return None if row.hero_type is None or row.hero_id is None else (row.hero_type, row.hero_id)

    @property
    def parent(self) -> str | None:
        """The id of its parent run, or None."""
        return self._row.parent

    @property
    def forked_from(self) -> str | None:
        """The id of the run from which it was forked, or None."""
        return self._row.forked_from

    @property
    def continued_as(self) -> str | None:
        """The id of the run that continues it (`detent.continue_as_new`), or None.

            if run.refresh().continued_as is not None:
                later = app.run(run.continued_as)

        `run.current()` is the last run of the chain.
        """
        return self._row.continued_as

    @property
    def continues(self) -> str | None:
        """The id of the run that it continues (`detent.continue_as_new`), or None.

        earlier = app.run(run.continues)
        """
        return self._row.continues

    @property
    def deadline(self) -> datetime | None:
        """When the run fails if it is not done; None if it has no deadline."""
        return _moment(self._row.deadline)

    @property
    def input(self) -> Call:
        """What it was started with, decoded: `input.args`, `input.kwargs`."""
        return Reader(self._engine).call(self.type, self._row.input) or Call((), {})

    @property
    def error(self) -> Error | None:
        """The error that failed or paused it: `error.type`, `.message` and `.traceback`."""
        return _error(self._row.error)

    @property
    def created_at(self) -> datetime:
        """When the run was started."""
        return from_micros(self._row.created_at)

    @property
    def finished_at(self) -> datetime | None:
        """When the run ended; None if it has not ended."""
        return None if self._row.finished_at is None else from_micros(self._row.finished_at)

    @property
    def attributes(self) -> dict[str, Attribute]:
        """The attributes by which the run can be found."""
        return dict(self._row.attributes)

    @property
    def drifted(self) -> bool:
        """Whether a replay ever requested other steps or arguments than recorded."""
        return self._row.drifted

    @property
    def cursor(self) -> str:
        """Its position in a listing: `app.runs(cursor=...)` continues after it, even if it was removed."""
        return cursor_of(self._row)

    @property
    def row(self) -> RunRow:
        """The stored row of the run."""
        return self._row

    def _ended(self, end: RunEnd) -> Any:
        """Note how the run ended; returns its value, or raises its error."""
        if end.continued_as is not None:  # the end of a later run of its chain
            self._row = replace(self._row, state=RunState.FINISHED, performing=0)
            return self._engine.outcome(replace(self._row, id=end.continued_as), end)
        self._row = ended_row(self._row, end)
        return self._engine.outcome(self._row, end)


def cursor_of(row: RunRow) -> str:
    """A run's place in a listing, as text."""
    return f"{row.created_at}@{row.id}"


def place_of(cursor: str) -> tuple[int, str] | None:
    """The place that a cursor names; None if it is none."""
    created_at, at, id = cursor.partition("@")
    return (int(created_at), id) if at and re.fullmatch("[0-9]{1,18}", created_at) else None


def shown_state(row: RunRow) -> str:
    """The state of a run, where something executing makes it `performing`."""
    performing = row.performing and row.state == RunState.READY
    return str(RunState.PERFORMING if performing else row.state)


def ended_row(row: RunRow, end: RunEnd) -> RunRow:
    """A run as it is known after its end."""
    return replace(row, state=end.state, result=end.result, error=end.error, performing=0)


def executions_of(engine: Engine, run_id: str) -> list[Execution]:
    """Attempts and steps of a run, in the order in which they began."""
    _ = engine.services
    run = engine.row(run_id)
    until = engine.clock.now() if run.finished_at is None else run.finished_at
    graph = _graph(engine, run)
    rows = engine.store.executions(run_id)
    if graph is not None:
        # Under a clock that stands still, what is needed comes before what needs it.
        rows.sort(key=lambda row: (graph.place(row.node), row.attempt))
    reader = Reader(engine)
    shown = [_of_execution(row, row.node if graph is None else graph.shown(row.node), reader) for row in rows]
    # The child run of a node is the same execution as the node.
    hidden = UNSEEN if run.kind == "function" else {*UNSEEN, "child"}
    steps = [
        _of_step(_awake(step, until), reader)
        for step in engine.store.journal([run_id])[run_id]
        if step.kind not in hidden
    ]
    return sorted([*shown, *steps], key=_order)


def shown_executions(engine: Engine, run: RunRow, rows: list[ExecutionRow]) -> list[Execution]:
    """Executions of a run as people see them, in the given order."""
    graph, reader = _graph(engine, run) if rows else None, Reader(engine)
    return [_of_execution(row, row.node if graph is None else graph.shown(row.node), reader) for row in rows]


def history_of(engine: Engine, row: RunRow) -> list[HistoryEvent]:
    """What happened to a run: its start, its steps, what was noted, its end."""
    row = engine.row(row.id)
    events = [HistoryEvent(from_micros(row.created_at), "started", {"type": row.type, "queue": row.queue})]
    for item in executions_of(engine, row.id):
        facts = {"node": item.node, "attempt": item.attempt, "kind": item.kind}
        if item.finished_at is not None:
            facts["outcome"] = item.outcome or item.state
            if item.error is not None:
                facts["error"] = f"{item.error.type}: {item.error.message}"
            events.append(HistoryEvent(item.finished_at, item.state, facts))
    graph = _graph(engine, row)
    for moment, event, detail in engine.store.history(row.id):
        events.append(HistoryEvent(from_micros(moment), event, _named(msgspec.json.decode(detail), graph)))
    if row.kind == DECIDER:
        events += [
            HistoryEvent(
                from_micros(one.happened_at),
                "event",
                {"sequence": one.sequence, "type": one.type, "cause": one.cause},
            )
            for one in engine.store.events(row.id)
        ]
    if row.finished_at is not None:
        events.append(HistoryEvent(from_micros(row.finished_at), f"run {row.state}", None))
    return sorted(events, key=lambda event: event.at)


_LISTS = ("removed", "undefined", "bypassed", "withdrawn", "begun")  # nodes, in what healing notes


def _named(detail: Any, graph: Graph | None) -> Any:
    """What was noted, with the names of nodes instead of their ids."""
    if graph is None or not isinstance(detail, dict):
        return detail
    named: dict[str, Any] = {
        name: [graph.shown(id) for id in detail[name]] for name in _LISTS if name in detail
    }
    if isinstance(detail.get("node"), str):
        named["node"] = graph.shown(detail["node"])
    return {**detail, **named}


def _graph(engine: Engine, run: RunRow) -> Graph | None:
    """The graph of a run, where there is one that can be read."""
    try:
        return None if run.kind in ("function", DECIDER) else graph_of(engine, run)
    except DetentError:
        return None


def _of_execution(row: ExecutionRow, name: str, reader: Reader) -> Execution:
    return Execution(
        run_id=row.run_id,
        node=name,
        node_id=row.node,
        job=row.job,
        attempt=row.attempt,
        kind=row.kind,
        state=ExecutionState(row.state).public,
        outcome=row.outcome,
        worker=row.worker,
        created_at=row.created_at,
        scheduled_for=_moment(row.scheduled_for),
        started_at=_moment(row.started_at),
        finished_at=_moment(row.finished_at),
        stored_input=row.input,
        stored_result=row.result,
        error=_error(row.error),
        ancestry_hash=row.ancestry_hash,
        reader=reader,
    )


def _awake(step: Step, until: int) -> Step:
    """A sleep is recorded when it begins; it is over when its time has come."""
    asleep = step.kind == "sleep" and step.state == StepState.WAITING
    if not asleep or step.wake_at is None or step.wake_at > until:
        return step
    return replace(step, state=str(StepState.COMPLETED), finished_at=step.wake_at)


def _of_step(step: Step, reader: Reader) -> Execution:
    canceled = step.kind == CANCEL
    key = step.key.removeprefix(cancel_key("")) if canceled else step.key
    return Execution(
        run_id=step.run_id,
        node=key,
        node_id=key,
        job=step.name,
        attempt=step.attempt,
        kind=step.kind,
        state="canceled" if canceled else step.state,
        outcome="canceled_by_workflow" if canceled else "success" if step.state == "completed" else None,
        worker=None,
        created_at=None,
        scheduled_for=_moment(step.wake_at),
        started_at=_moment(step.started_at),
        finished_at=_moment(step.finished_at),
        stored_input=step.input,
        stored_result=step.result,
        error=_error(step.error),
        ancestry_hash=None,
        reader=reader,
    )


def _order(item: Execution) -> tuple[float, int]:
    moment = item.started_at or item.finished_at or item.scheduled_for
    return (moment.timestamp() if moment is not None else 0.0, 0 if item.kind == "main" else 1)


def _moment(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)


def _error(text: str | None) -> Error | None:
    return None if text is None else decode_error(text)
