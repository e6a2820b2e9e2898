"""Why a run does not continue at this moment: `run.waiting_for`.

A run that waits says for what: a message, a time, children or spawned steps, another run.  A run that could
be executed and is not says why no worker takes it.  Those last reasons are a list of functions,
`NOT_BEGUN`; each looks at one execution that is ready, and the first that knows a reason answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

import msgspec

from ..clock import from_micros
from ..kernel.admission import Refusal
from ..kernel.journal import cancel_key, order_key
from ..kernel.rows import (
    MAIN,
    SCHEDULED_STATES,
    ExecutionRow,
    ExecutionState,
    RunRow,
    RunState,
    Step,
    StepState,
    WorkerRow,
)
from .engine import Engine
from .liveness import alive
from .queues import queue_reasons

SHOWN = 20  # executions of a run that are looked at
HELD = {  # why a queue holds an execution, in the words of a WaitReason
    Refusal.PAUSED: "paused",
    Refusal.CONCURRENCY: "limit",
    Refusal.KEY_CONCURRENCY: "limit",
    Refusal.RATE: "rate",
    Refusal.KEY_RATE: "rate",
}


@dataclass(frozen=True, slots=True)
class WaitReason:
    """One thing that a run waits for.

        for reason in run.waiting_for:
            print(reason)  # the message 'approval', until 2030-01-01T12:00:00Z

    `kind` is `message`, `timer`, `retry`, `child`, `steps`, `run`, `resume` (it is paused), `worker` (none
    is alive), `queue` (no worker takes from it), `version` (the run is pinned, and no worker has that
    version), `job` (no worker knows it), `paused` (the queue is), `limit` or
    `rate` (of the queue, or of the run's key on it), or `slot` (the workers are busy).
    `name` is the message, the run, the queue, the version or the job.
    """

    kind: str
    text: str
    name: str | None = None
    node: str | None = None
    until: datetime | None = None

    def __str__(self) -> str:
        return self.text if self.until is None else f"{self.text}, until {self.until:%Y-%m-%dT%H:%M:%SZ}"


@dataclass(frozen=True)
class Asked:
    """An execution that is ready, and that no worker has claimed."""

    engine: Engine
    run: RunRow
    execution: ExecutionRow
    workers: Sequence[WorkerRow]  # that are alive

    @cached_property
    def serving(self) -> list[WorkerRow]:
        """The workers that take from its queue."""
        return [worker for worker in self.workers if self.execution.queue in worker.queues.split(",")]


def no_worker(asked: Asked) -> WaitReason | None:
    """No worker is alive, or none takes from the queue, or none has its version, or none knows the job."""
    queue, job, node = asked.execution.queue, asked.execution.job, asked.execution.node
    if not asked.workers:
        return WaitReason("worker", "no worker is alive", node=node)
    if not asked.serving:
        return WaitReason("queue", f"no live worker takes from the queue {queue!r}", queue, node)
    serving = asked.serving
    if asked.run.pin is not None:
        serving = [one for one in serving if one.version == asked.run.pin]
        if not serving:
            text = f"no live worker on the queue {queue!r} has the version {asked.run.pin!r} of the code"
            return WaitReason("version", text, asked.run.pin, node)
    if not any(job in msgspec.json.decode(one.jobs, type=list[str]) for one in serving):
        return WaitReason("job", f"no live worker on the queue {queue!r} includes {job!r}", job, node)
    return None


def held_by_queue(asked: Asked) -> WaitReason | None:
    """The queue is paused, or one of its limits is reached."""
    for reason in queue_reasons(asked.engine, asked.run.id):
        if reason.node == asked.execution.node:
            return WaitReason(
                HELD[Refusal(reason.kind)], reason.text, reason.queue, reason.node, reason.until
            )
    return None


def no_slot(asked: Asked) -> WaitReason | None:
    """It is in the backlog."""
    queue = asked.execution.queue
    return WaitReason("slot", f"a free worker on the queue {queue!r}", queue, asked.execution.node)


# In the order of asking: the first that answers is the reason.
NOT_BEGUN: tuple[Callable[[Asked], WaitReason | None], ...] = (no_worker, held_by_queue, no_slot)


def waiting_for(engine: Engine, row: RunRow) -> list[WaitReason]:
    """What a run waits for at this moment; empty if it is over, or is executed."""
    if RunState(row.state).final:
        return []
    if row.state == RunState.PAUSED:
        return [WaitReason("resume", "run.resume(): it is paused")]
    open_ = [one for one in engine.store.executions(row.id) if one.state in SCHEDULED_STATES]
    main = [one for one in open_ if one.node == MAIN and row.kind == "function"]
    found: list[WaitReason] = []
    if main and main[0].state != ExecutionState.READY:
        found += _of_function(engine, row, main[0])
    rest = [one for one in open_ if one not in main or one.state == ExecutionState.READY]
    found += _of_executions(engine, row, rest[:SHOWN])
    return found


def _of_executions(engine: Engine, run: RunRow, executions: Sequence[ExecutionRow]) -> Iterator[WaitReason]:
    """What nodes, spawned steps and letters wait for, each by itself."""
    workers: list[WorkerRow] | None = None
    awaited = dict(engine.store.runs_awaited(run.id)) if executions else {}
    for one in executions:
        if one.state == ExecutionState.READY:
            workers = alive(engine.store) if workers is None else workers
            yield _not_begun(Asked(engine, run, one, workers))
        elif one.node in awaited:
            target = awaited[one.node]
            yield WaitReason("run", f"the end of run {target}", target, one.node, _until(one.scheduled_for))
        elif one.state == ExecutionState.TIMER:
            kind = "retry" if one.attempt > 1 else "timer"
            text = f"the next attempt at {one.node!r}" if kind == "retry" else f"the time of {one.node!r}"
            yield WaitReason(kind, text, node=one.node, until=_until(one.scheduled_for))


def _not_begun(asked: Asked) -> WaitReason:
    reasons = (reason(asked) for reason in NOT_BEGUN)
    return next(found for found in reasons if found is not None)


def _of_function(engine: Engine, run: RunRow, main: ExecutionRow) -> Iterator[WaitReason]:
    """What a function waits for, by its journal and by what it has parked for."""
    now = engine.clock.now()
    steps = engine.store.journal([run.id]).get(run.id, [])
    known = {step.key for step in steps}
    reasons = [_of_step(step, now) for step in steps if not _is_over(step, known)]
    found = [reason for reason in reasons if reason is not None]
    for topic, missing in engine.store.awaited(run.id):
        kind, _, name = topic.partition(":")
        if kind == "child":
            found.append(WaitReason("child", f"the end of its child {name}", name, MAIN))
        elif kind == "steps":
            many = f"{missing} spawned step{'' if missing == 1 else 's'}"
            found.append(WaitReason("steps", many, node=MAIN))
    if not found and main.scheduled_for is not None:  # started with a delay
        found.append(WaitReason("timer", "its time", node=MAIN, until=_until(main.scheduled_for)))
    yield from found


def _is_over(step: Step, known: set[str]) -> bool:
    """A wait whose end was noted, or that the workflow's own code has cancelled."""
    return order_key(step.key) in known or cancel_key(step.key) in known


def _of_step(step: Step, now: int) -> WaitReason | None:
    until = _until(step.wake_at)
    if step.state == StepState.RETRYING:
        return WaitReason("retry", f"the next attempt at {step.name!r}", node=step.key, until=until)
    if step.state != StepState.WAITING:
        return None
    if step.kind == "receive":
        return WaitReason("message", f"the message {step.name!r}", step.name, step.key, until)
    if step.kind == "result":
        return WaitReason("run", f"the end of run {step.name}", step.name, step.key, until)
    if step.kind == "sleep" and step.wake_at is not None and step.wake_at > now:
        return WaitReason("timer", "a time", node=step.key, until=until)
    return None


def _until(moment: int | None) -> datetime | None:
    return None if moment is None else from_micros(moment)
