"""Events that `app.subscribe` passes to a function.

    from detent import events

    app.subscribe(page_somebody, events=(events.RunFailed, events.Drifted))

An event is a small immutable object.  The classes form a tree, and a class includes
its subclasses: `events=(events.RunEvent,)` subscribes to everything about runs.

    Event                 time
      RunEvent            run_id, type, queue
        RunStarted        parent
        RunFinished
        RunFailed         error
        RunCanceled       error, reason
        RunPaused         error, reason
        RunResumed
        Drifted           kind, steps, recorded, asked, paused
        ExecutionEvent    node, name, kind, attempt, worker
          ExecutionBegan
          ExecutionEnded    outcome, duration, error
          ExecutionRetried  outcome, error, wait
          ExecutionParked   until
          DeadLettered      error
      WorkerEvent         worker
        WorkerUp          queues, concurrency
        WorkerDown        reason, executions
        Claimed           count, duration
      Committed           operations, duration

Except for ExecutionBegan, an event is emitted after what it reports is committed.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal

import msgspec


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """An exception as data: its class, its message, and its traceback as text.

    def page_somebody(event: events.RunFailed) -> None:
        send_mail(f"{event.error.type}: {event.error.message}", event.error.traceback)
    """

    type: str
    message: str
    traceback: str = ""

    def __str__(self) -> str:
        return f"{self.type.rpartition('.')[2]}: {self.message}"


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """The base of all events.

    app.subscribe(print, events=(events.Event,))     # the same as events=None: all of them
    """

    time: datetime


class RunEvent(Event, frozen=True, kw_only=True):
    """Something happened to a run: its id, the name of its workflow, its queue.

    app.subscribe(lambda event: print(event.run_id, event), events=(events.RunEvent,))
    """

    run_id: str
    type: str
    queue: str | None = None


class RunStarted(RunEvent, frozen=True, kw_only=True):
    """A run, or an instance of a decider, was created.

    app.subscribe(lambda event: STARTED.labels(event.type).inc(), events=(events.RunStarted,))
    """

    parent: str | None = None


class RunFinished(RunEvent, frozen=True, kw_only=True):
    """A run has its result.

    app.subscribe(lambda event: FINISHED.labels(event.type).inc(), events=(events.RunFinished,))
    """


class RunFailed(RunEvent, frozen=True, kw_only=True):
    """A durable function raised, and its run has failed.

    app.subscribe(lambda event: page(event.run_id, str(event.error)), events=(events.RunFailed,))
    """

    error: Failure


class RunCanceled(RunEvent, frozen=True, kw_only=True):
    """A run was canceled: by an operator, by its own code, by an error, or with its parent.

    app.subscribe(lambda event: print(event.reason or event.error), events=(events.RunCanceled,))
    """

    error: Failure | None = None
    reason: str | None = None


class RunPaused(RunEvent, frozen=True, kw_only=True):
    """A run was paused: by an operator, by its own code, or (then `error` is set) by an error.

    app.subscribe(lambda event: print(event.reason or event.error), events=(events.RunPaused,))
    """

    error: Failure | None = None
    reason: str | None = None


class RunResumed(RunEvent, frozen=True, kw_only=True):
    """A run that was paused or had failed continues.

    app.subscribe(lambda event: print(event.run_id), events=(events.RunResumed,))
    """


class Drifted(RunEvent, frozen=True, kw_only=True):
    """The code of a run makes other requests than the run has recorded.

        app.subscribe(lambda event: print(event.kind, event.steps), events=(events.Drifted,))

    `kind` says what differs, `steps` are the keys of the recorded steps:

        mismatch   a step was recorded with other arguments: `recorded` and `asked`
        unasked    steps were recorded, but the code does not request them
        accepted   an operator accepts the difference: run.resume(accept_drift=True)

    `paused` is true if the run is paused because of it.
    """

    kind: Literal["mismatch", "unasked", "accepted"]
    steps: tuple[str, ...] = ()
    recorded: str | None = None
    asked: str | None = None
    paused: bool = False


class ExecutionEvent(RunEvent, frozen=True, kw_only=True):
    """Something happened to one attempt at a workflow's function, a step, a node or an effect.

        app.subscribe(lambda event: print(event.node, event.attempt), events=(events.ExecutionEvent,))

    `node` is the step or node as `run.executions()` shows it, `name` the name of its definition.
    `kind` is `main`, `step`, `undo`, `node`, `effect`, `timer` or `inbox`.  `queue` is the queue of the
    execution.
    """

    node: str
    name: str
    kind: str
    attempt: int
    worker: str | None = None


class ExecutionBegan(ExecutionEvent, frozen=True, kw_only=True):
    """This process begins an attempt, or continues a workflow that had freed its worker.

    app.subscribe(lambda event: print("began", event.node), events=(events.ExecutionBegan,))

    It is the one event that reports nothing durable.
    """


class ExecutionEnded(ExecutionEvent, frozen=True, kw_only=True):
    """An attempt has ended, and no other follows automatically; `outcome` says how.

    app.subscribe(lambda event: SECONDS.observe(event.duration), events=(events.ExecutionEnded,))

    `duration` is None if the beginning is unknown.
    """

    outcome: str
    duration: timedelta | None = None
    error: Failure | None = None


class ExecutionRetried(ExecutionEvent, frozen=True, kw_only=True):
    """An attempt has ended, and another one follows after `wait`.

    app.subscribe(lambda event: print(event.error, event.wait), events=(events.ExecutionRetried,))

    `outcome` is `reattempted_by_exception`, `reattempted`, or `recovered` if its worker died.
    """

    outcome: str
    wait: timedelta
    duration: timedelta | None = None
    error: Failure | None = None


class ExecutionParked(ExecutionEvent, frozen=True, kw_only=True):
    """A workflow waits and has freed its worker; `until` is None if it does not wait for a time.

    app.subscribe(lambda event: print(event.run_id, event.until), events=(events.ExecutionParked,))
    """

    until: datetime | None = None


class DeadLettered(ExecutionEvent, frozen=True, kw_only=True):
    """An effect, a timer or an inbox of a decider was given up, until an operator replays it.

    app.subscribe(lambda event: page(event.run_id, event.node), events=(events.DeadLettered,))
    """

    error: Failure | None = None


class WorkerEvent(Event, frozen=True, kw_only=True):
    """Something happened to a worker.

    app.subscribe(lambda event: print(event.worker), events=(events.WorkerEvent,))
    """

    worker: str


class WorkerUp(WorkerEvent, frozen=True, kw_only=True):
    """The worker of this process is registered.

    app.subscribe(lambda event: print(event.queues), events=(events.WorkerUp,))
    """

    queues: tuple[str, ...]
    concurrency: int


class WorkerDown(WorkerEvent, frozen=True, kw_only=True):
    """A worker no longer works; `executions` is how many executions it left to others.

        app.subscribe(lambda event: print(event.reason), events=(events.WorkerDown,))

    `reason`: `stopped` (this process closes its app), `dead` (this process found that another worker
    had died), `lost` (others declared the worker of this process dead; it begins again under a new id).
    """

    reason: Literal["stopped", "dead", "lost"]
    executions: int = 0


class Claimed(WorkerEvent, frozen=True, kw_only=True):
    """The worker of this process asked the database for work, and got `count` executions.

    app.subscribe(lambda event: CLAIMED.inc(event.count), events=(events.Claimed,))
    """

    count: int
    duration: timedelta


class Committed(Event, frozen=True, kw_only=True):
    """This process committed a batch of `operations` writes in one transaction.

    app.subscribe(lambda event: COMMITS.observe(event.operations), events=(events.Committed,))
    """

    operations: int
    duration: timedelta
