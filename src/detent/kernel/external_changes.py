"""Changes of runs, nodes, dead letters and schedules that are requested from outside, as plain data.

`Store.change` makes each of them in one transaction, or in one of the user (`app.within`).  The docstring of
a change says what its answer is, where it has one, and what asking twice does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Generic, TypeVar

import msgspec

from .advance import RunGraph
from .rows import Attribute, NewEntry, RunRow, Step
from .schedules import ScheduleRow

T = TypeVar("T")


class Change(msgspec.Struct, Generic[T], frozen=True):
    """A change that is answered with a `T`."""

    wakes: ClassVar[bool] = False  # notify workers and waiting callers
    readies: ClassVar[bool] = False  # after the commit of a user's transaction, workers look for work


# Runs


class Pause(Change[list[str]], frozen=True):
    """Stop new executions of a run.  Answers with its id, or that of the current run of its chain.

    Twice is InvalidState.
    """

    wakes = True
    run_id: str
    reason: str | None = None


class PauseWith(Change[bool], frozen=True):
    """Pause an active run with an error.  Twice does nothing, and answers False."""

    wakes = True
    run_id: str
    error: str


class Resume(Change[RunRow], frozen=True):
    """Continue a paused or failed run.  A run of a graph needs its run_graph.  Twice is InvalidState."""

    wakes = True
    readies = True
    run_id: str
    run_graph: RunGraph | None = None
    accept_drift: bool = False


class Cancel(Change[list[str]], frozen=True):
    """End a run and its children.  Answers with the ids of all that were canceled.  Twice is InvalidState."""

    wakes = True
    readies = True  # what has a compensation is undone by a worker
    run_id: str
    reason: str | None = None


class Repin(Change[RunRow], frozen=True):
    """Let only workers of that version continue a run.  Nothing of it may be executing."""

    wakes = True
    run_id: str
    version: str


class SetAttributes(Change[None], frozen=True):
    """Set attributes of a run, and remove those that are None.  Twice does the same."""

    run_id: str
    changes: Mapping[str, Attribute | None]


class Publish(Change[None], frozen=True):
    """Publish a value of an active run from outside.  Twice publishes it again."""

    row: Step


class Append(Change[None], frozen=True):
    """Append to a stream of an active run from outside.  Twice is one entry."""

    entry: NewEntry


class Note(Change[None], frozen=True):
    """Add a line to the history of a run.  Twice adds two."""

    run_id: str
    event: str
    detail: object


class Delete(Change[int], frozen=True):
    """Remove a run that is over, with its children.  Answers with their number.  Twice is RunNotFound."""

    run_id: str


# Nodes and graphs


class Skip(Change[RunRow], frozen=True):
    """Go on as if a node had completed.  Twice is InvalidState."""

    wakes = True
    run_id: str
    node: str
    run_graph: RunGraph | None


class Reattempt(Change[RunRow], frozen=True):
    """Begin another attempt at a node that stopped.  Twice is CannotReattempt."""

    wakes = True
    run_id: str
    node: str
    run_graph: RunGraph | None


class Reconcile(Change[bool], frozen=True):
    """Heal a run by the graph of today.  Answers False if `mine`, claimed and not begun, was withdrawn.

    Twice changes nothing.
    """

    wakes = True
    run_id: str
    run_graph: RunGraph
    mine: str | None = None


class Freeze(Change[None], frozen=True):
    """Give the run of a class its graph to keep.  Twice is InvalidState."""

    run_id: str
    text: str
    signature: str


class ReplaceGraph(Change[None], frozen=True):
    """Give a paused run another graph, that of the run_graph.  Twice gives it the same again."""

    run_id: str
    text: str
    run_graph: RunGraph


# Dead letters


class ReplayLetter(Change[list[str]], frozen=True):
    """Take a dead letter up again.  Twice is NotADeadLetter."""

    wakes = True
    run_id: str
    node: str


class DiscardLetter(Change[list[str]], frozen=True):
    """Throw a dead letter away.  Twice is NotADeadLetter."""

    wakes = True
    run_id: str
    node: str


# Schedules


class CreateSchedule(Change[bool], frozen=True):
    """Store a schedule.  Twice is answered with False; another one of that name is ScheduleConflict."""

    row: ScheduleRow


class PauseSchedule(Change[ScheduleRow], frozen=True):
    """Stop firing.  Twice changes the reason."""

    name: str
    reason: str | None = None


class ResumeSchedule(Change[ScheduleRow], frozen=True):
    """Fire again, from now on.  Twice does nothing."""

    name: str


class DeleteSchedule(Change[None], frozen=True):
    """Forget a schedule.  Twice is UnknownSchedule."""

    name: str
