"""Rows: runs, executions, steps, workers, as plain data.

Everything here is plain data that goes into a batch as JSON, so that any
number of rows is one parameter of one statement.  Times are microseconds.

An execution that waits is `scheduled` to the world.  The database tells four
kinds of waiting apart, so that claiming only ever looks at what is due:

    ready    may be claimed now
    timer    becomes ready at `scheduled_for`
    parked   becomes ready when what it awaits has happened (or at `scheduled_for`)
    held     its run is paused
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

MAIN = "main"
Attribute = str | int | bool  # a searchable fact of a run
DRIFTED = "detent.drifted"  # true for a run whose code asked for other steps or arguments than recorded


class RunState(StrEnum):
    READY = "ready"
    PERFORMING = "performing"  # never stored: a run with something executing
    PAUSED = "paused"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELED = "canceled"

    @property
    def final(self) -> bool:
        return self in FINAL_RUN_STATES


FINAL_RUN_STATES = frozenset({RunState.FINISHED, RunState.FAILED, RunState.CANCELED})


class ExecutionState(StrEnum):
    READY = "ready"
    TIMER = "timer"
    PARKED = "parked"
    HELD = "held"
    EXECUTING = "executing"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"
    SKIPPED = "skipped"

    @property
    def public(self) -> str:
        """The state as people see it: all four kinds of waiting are `scheduled`."""
        return "scheduled" if self in SCHEDULED_STATES else str(self)


SCHEDULED_STATES = frozenset(
    {ExecutionState.READY, ExecutionState.TIMER, ExecutionState.PARKED, ExecutionState.HELD}
)


class StepState(StrEnum):
    """What the journal knows of a step."""

    EXECUTING = "executing"  # seen running; runs again after a crash
    RETRYING = "retrying"  # failed, to be tried again at `wake_at`
    WAITING = "waiting"  # a sleep or a receive that has begun
    COMPLETED = "completed"
    FAILED = "failed"


# Plain data that never refers back to its holder: the collector of cycles need not count it (gc=False).
# With thousands of runs under way it would otherwise take a third of the time.
class Row(msgspec.Struct, gc=False):
    """A row as it travels to and from the database."""


class NewRun(Row):
    id: str
    type: str
    kind: str
    queue: str
    priority: int
    input: str
    created_at: int
    parent: str | None = None
    parent_key: str | None = None
    parent_seq: int = 0  # its place in the parent's journal
    hero_type: str | None = None
    hero_id: str | None = None
    exclusive: int = 0
    deadline: int | None = None
    forked_from: str | None = None
    signature: str | None = None  # of the graph that it was last settled under
    frozen_at: int | None = None  # its graph is stored with it
    watched: int = 0
    attributes: dict[str, Attribute] = {}  # rows of a table of their own
    queue_key: str | None = None  # inherited by what it begins
    versions: str | None = None  # see kernel/versions.py
    pin: str | None = None  # only workers of that version continue it


class NewExecution(Row):
    run_id: str
    node: str
    attempt: int
    kind: str
    job: str
    queue: str
    precedence: int
    state: str
    created_at: int
    scheduled_for: int | None
    topic: str | None = None
    input: str | None = None
    worker: str | None = None
    token: str | None = None
    deliveries: int = 0
    recoveries: int = 0
    failures: int = 0
    started_at: int | None = None
    seq: int = 0  # of a spawned step: its place in the journal, on its first attempt
    queue_key: str | None = None  # whose limits it counts against
    pin: str | None = None  # that of its run


class EndedExecution(Row):
    """An execution that ends as it begins: an inline node, or one that is passed over."""

    run_id: str
    node: str
    attempt: int
    kind: str
    job: str
    queue: str
    precedence: int
    state: str
    outcome: str
    created_at: int
    finished_at: int
    result: str | None = None
    error: str | None = None
    ancestry_hash: str | None = None


class Step(Row):
    """One entry of a run's journal."""

    run_id: str
    key: str = msgspec.field(name="step_key")
    seq: int
    kind: str
    name: str
    state: str
    written_by: int  # the attempt of `main` that wrote it: shows progress to a rescuer
    attempt: int = 1
    input: str | None = None
    result: str | None = None
    error: str | None = None
    wake_at: int | None = None
    undo: str | None = msgspec.field(default=None, name="undo_step")  # UNDO is a word of MariaDB's own
    progress: str | None = None
    started_at: int | None = None
    finished_at: int | None = None


class NewEntry(Row):
    """A value to append to a stream of a run; the store gives it its position."""

    run_id: str
    name: str  # of the stream
    entry_id: str  # the same entry is stored once, also if its commit has to be repeated
    step: str
    attempt: int
    value: str
    appended_at: int
    keep: int | None = None  # of the stream, only so many of the latest entries stay


class EntryRow(Row):
    """An entry of a stream."""

    position: int
    step: str
    attempt: int
    value: str
    appended_at: int


class Error(msgspec.Struct, omit_defaults=True):
    """An exception as it is stored.

    if run.error is not None:
        print(run.error.type, run.error.message, run.error.traceback)
    """

    type: str
    message: str
    traceback: str = ""
    args: Any = None
    fields: Any = None
    rebuildable: bool = False
    # Of a node that is reattempted: how often by its `retry`, and by each policy.
    reattempts: dict[str, int] | None = None


def stored_error(error: Exception) -> str:
    """An error of Detent's own, as it is stored: its facts are its fields."""
    cls = type(error)
    stored = Error(
        type=f"{cls.__module__}.{cls.__qualname__}", message=str(error), fields=vars(error), rebuildable=True
    )
    return msgspec.json.encode(stored).decode()


class Lease(msgspec.Struct, kw_only=True, frozen=True, gc=False):
    """Who may settle an execution: a worker, by a token of this delivery."""

    worker: str
    token: str


class ExecutionKey(msgspec.Struct, kw_only=True, frozen=True, gc=False):
    run_id: str
    node: str
    attempt: int


class Claimed(Row):
    """An execution that a worker holds, with what it needs to know of the run."""

    run_id: str
    node: str
    attempt: int
    kind: str
    job: str
    queue: str
    precedence: int
    worker: str
    token: str
    deliveries: int
    recoveries: int
    failures: int
    input: str | None
    topic: str | None
    type: str
    run_input: str
    run_state: str
    parent: str | None
    parent_key: str | None
    deadline: int | None
    forked_from: str | None
    started_at: int | None = None
    run_kind: str = "function"
    run_queue: str = ""
    run_priority: int = 0
    hero_type: str | None = None
    hero_id: str | None = None
    signature: str | None = None
    frozen_at: int | None = None
    queue_key: str | None = None
    run_key: str | None = None
    versions: str | None = None
    pin: str | None = None


# What a run awaits before it continues.


class Await(Row):
    """One thing that a parked run waits for.

    `kind` is `steps` (spawned executions of this run with that topic), `child`
    (a run of that id), `message` (one of that name), or `run`: a node of a graph
    waits for a run of that id, and other nodes of its run continue meanwhile.
    """

    run_id: str
    kind: str
    name: str

    @property
    def topic(self) -> str:
        return topic_of(self.kind, self.name)


def topic_of(kind: str, name: str) -> str:
    """The readiness row that an event of this kind increments."""
    return f"{kind}:{name}"


LIMIT = " at most "  # in the topic of spawned steps of which only so many may begin before others have ended


def limited_topic(name: str, limit: int) -> str:
    """The topic of spawned steps of which at most `limit` are under way."""
    return f"{name}{LIMIT}{limit}"


# Operations: what the committer carries to the store.  One operation happens
# whole or not at all; operations of one batch share a transaction.


class RunEnd(Row):
    state: str
    result: str | None = None
    error: str | None = None
    continued_as: str | None = None  # the run that continues it, or a later one of the chain


class GraphPart(Row):
    """A piece of a stored graph: large ones do not fit into one row everywhere."""

    run_id: str  # or the signature of a class's graph, which many runs share
    part: int
    body: str


class Readiness(Row):
    """How far a node of a graph is from being ready."""

    run_id: str
    node: str
    required: int
    settled: int


class HistoryRow(Row):
    run_id: str
    happened_at: int
    event: str
    detail: str = "null"


# Answers.


class Message(Row):
    seq: int
    name: str
    value: str


class RunRow(Row):
    """A run as it is read back."""

    id: str
    type: str
    kind: str
    state: str
    queue: str
    priority: int
    input: str
    result: str | None
    error: str | None
    parent: str | None
    parent_key: str | None
    hero_type: str | None
    hero_id: str | None
    deadline: int | None
    forked_from: str | None
    created_at: int
    finished_at: int | None
    signature: str | None = None
    frozen_at: int | None = None
    irregular: int = 0  # readiness is recounted at every settle
    queue_key: str | None = None
    versions: str | None = None
    pin: str | None = None
    chain: str | None = None  # of runs that continue each other: the key in detent_chains
    continues: str | None = None  # the run before it in the chain
    continued_as: str | None = None  # the run after it in the chain
    performing: int = 0
    attributes: dict[str, Attribute] = {}  # without those of Detent itself
    drifted: bool = False  # it has the attribute DRIFTED


class ExecutionRow(Row):
    run_id: str
    node: str
    attempt: int
    kind: str
    job: str
    queue: str
    state: str
    outcome: str | None
    scheduled_for: int | None
    worker: str | None
    recoveries: int
    failures: int
    result: str | None
    error: str | None
    created_at: int
    started_at: int | None
    finished_at: int | None
    ancestry_hash: str | None = None
    input: str | None = None
    queue_key: str | None = None


class WorkerRow(Row):
    id: str
    name: str
    pid: int
    queues: str
    concurrency: int
    lock_no: int
    started_at: int
    beat_at: int
    lease_until: int
    jobs: str = "[]"  # what it can execute, so that others find jobs that no worker can
    version: str = ""  # of its code
    drain_at: int | None = None  # when an operator asked it to claim nothing more


class HeartbeatReading(Row):
    """What a worker looks at now and then."""

    now: int  # by the database's clock
    # Id, lock number, end of lease, and whether the database sees that the lock is held; files it cannot see.
    workers: list[tuple[str, int, int, bool]] = []
    drained: list[str] = []  # workers that an operator asked to claim nothing more
    next_due: int | None = None
    next_deadline: int | None = None  # of a run, that is; it may be over by now
    next_schedule: int | None = None  # when a schedule is due, of whatever workers
    head: int = 0  # the position of the newest event
    ready: bool = False
    limited: dict[str, bool] = {}  # queues that have limits or are paused; True: their keys matter
    interrupted: list[tuple[str, str]] = []  # run, and what became of it


def attribute_text(value: Attribute) -> str:
    """An attribute as it is stored and compared: `true`, `12`, `acme`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    # Not str(value): an enum's own members would show their names.
    return int.__repr__(value) if isinstance(value, int) else str.__str__(value)
