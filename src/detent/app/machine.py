"""Inspecting deciders: the state machine over all instances, and the details of one instance."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any, Generic, TypeVar

from ..clock import from_micros
from ..definitions.context import ask_database
from ..definitions.deciders import Decider, DeciderPlan, instance_of
from ..errors import ConfigurationError, InvalidState, PayloadError
from ..execution.bound_decider import LoadedDecider
from ..execution.failures import decode_error
from ..kernel.decide import DECIDER, EventRow
from ..kernel.machine import HistoryStep, Sightings, StateMachineView, Trace, TransitionInfo, compare
from ..kernel.rows import Error, RunRow
from ..kernel.settle import Outcome
from ..stores.verbs.dead_letters import EffectRow, TimerRow
from .dead_letters import Backlog, backlogs
from .deciders import Asked
from .engine import Engine
from .listing import Walk
from .observations import AT_ONCE, Observation, observations
from .views import shown_state

HISTORY = "history"
OBSERVATIONS = "observations"
INSTANCES = 1_000  # that a view is made from, unless another number is asked for
DECISIONS = 1_000  # of an instance's history that are kept, unless another number is asked for
PAGE = 2_000  # events that are held at a time
EVERY = 2**31 - 1

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class PendingTimer:
    """A pending timer: an input that arrives later."""

    key: str | None
    type: str
    input: Any  # as it is stored, where today's code cannot read it
    due: datetime | None
    attempt: int
    failures: int


@dataclass(frozen=True, slots=True)
class PendingEffect:
    """An effect that is not done: waiting, executing, or a dead letter."""

    node: str
    type: str
    state: str  # of its execution; `dead_letter` where it was given up
    attempt: int
    error: Error | None  # why the last attempt failed


@dataclass(frozen=True, slots=True)
class PastDecision:
    """A past decision of an instance: the input and its result."""

    sequence: int  # of its first event
    cause: str
    from_status: str
    to_status: str
    events: tuple[str, ...]
    at: datetime


@dataclass(frozen=True, slots=True)
class InstanceView(Generic[S]):
    """One instance of a decider: its state, pending work and history.

    view = app.deciders.instance(Order, "o-1")
    print(view.status, view.state, view.timers)
    """

    decider: str
    instance: str
    run_id: str
    run_state: str
    status: str
    state: S
    terminal: bool
    sequence: int  # of its last event
    timers: tuple[PendingTimer, ...]
    effects: tuple[PendingEffect, ...]
    inbox: int  # inputs that wait
    history: tuple[PastDecision, ...]  # the newest decisions, in order


def machine(
    engine: Engine, decider: Asked, source: str, limit: int | None, *, decisions: int | None = None
) -> StateMachineView:
    """The state machine of a decider: what it declares, and what its newest instances did.

    `decisions` bounds how many decisions of instances are followed, over all instances.
    """
    ask_database("the state machine of a decider")
    bound = engine.services.bound(decider)
    most = _checked(EVERY if limit is None else limit)
    unreadable: dict[str, Exception] = {}
    if source == HISTORY:
        seen = _followed(engine, bound, most, unreadable, decisions)
    elif source == OBSERVATIONS:
        seen = _noted(engine, bound, most)
    else:
        raise ConfigurationError(f"source={source!r}: give {HISTORY!r} or {OBSERVATIONS!r}")
    return compare(
        bound.name,
        initial=bound.status(bound.initial()),
        declared=_declared(bound.plan),
        seen=seen,
        unreadable=unreadable,
    )


def _checked(limit: Any) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= EVERY:
        raise ConfigurationError(f"limit={limit!r}: must be a whole number, 1 or more")
    return limit


def _declared(plan: DeciderPlan) -> list[TransitionInfo]:
    return [
        TransitionInfo(
            one.source, one.trigger, one.target, effects=_names(one.effects), timers=_names(one.timers)
        )
        for one in plan.decider.transitions
    ]


def _names(given: tuple[Any, ...]) -> tuple[str, ...]:
    return tuple(one if isinstance(one, str) else str(getattr(one, "__name__", one)) for one in given)


def _noted(engine: Engine, bound: LoadedDecider, limit: int) -> Sightings:
    """What was noted of inputs as they came: needs `observe = True`, and reads no events."""
    seen = Sightings()
    rows = engine.store.observed(bound.name, limit=limit)
    left = {row.source for row in rows}
    for row in rows:
        # Nothing is noted of what an instance ignores that is over: its last status is never left.
        over = bool(row.ended) and row.target not in left
        seen.add(row.source, row.input, row.target, count=int(row.count), terminal=over)
    return seen


def _followed(
    engine: Engine,
    bound: LoadedDecider,
    limit: int,
    unreadable: dict[str, Exception],
    decisions: int | None,
) -> Sightings:
    """What the events of instances tell, one instance after the other."""
    seen = Sightings()
    left = sys.maxsize if decisions is None else decisions
    walk = Walk(engine, None, {"type": bound.name, "limit": limit})
    while not walk.over:
        for row in walk.next_page():
            if row.kind != DECIDER:
                continue
            steps = Sightings()  # of one that breaks off, nothing counts
            try:
                for step in islice(_steps(engine, Trace(bound), row.id), left):
                    left -= 1
                    steps.add(step.source, step.cause, step.target, terminal=step.terminal)
            except Exception as error:  # of its events, or of `evolve`: named, and no end of the view
                unreadable[instance_of(row.id)] = error
                continue
            for key, count in steps.counts.items():
                seen.add(*key, count=count)
            seen.terminal |= steps.terminal
            if left <= 0:
                return seen
    return seen


def _steps(engine: Engine, trace: Trace, run_id: str) -> Iterator[HistoryStep]:
    """The decisions of an instance, in order, read page by page."""
    while True:
        rows: list[EventRow] = engine.store.events(run_id, after=trace.sequence, limit=PAGE)
        yield from trace.feed(rows)
        if len(rows) < PAGE:
            yield from trace.end()
            return


def instance_view(engine: Engine, decider: Asked, instance: str, history: int | None) -> InstanceView[Any]:
    """One instance: its state, what it waits for, and how it came there."""
    ask_database("an instance of a decider")
    bound = engine.services.bound(decider)
    row: RunRow = engine.row(bound.plan.run_id(str(instance)))
    if row.kind != DECIDER or row.type != bound.name:
        raise InvalidState("look at the instance", row.id, f"a run of {row.type}")
    trace = Trace(bound)
    kept = deque(_steps(engine, trace, row.id), maxlen=history)
    return InstanceView(
        decider=bound.name,
        instance=instance_of(row.id),
        run_id=row.id,
        run_state=shown_state(row),
        status=bound.status(trace.state),
        state=trace.state,
        terminal=bound.terminal(trace.state),
        sequence=trace.sequence,
        timers=tuple(_timer(bound, timer) for timer in engine.store.pending_timers(row.id)),
        effects=tuple(_effect(effect) for effect in engine.store.pending_effects(row.id)),
        inbox=engine.store.inbox_depth(row.id),
        history=tuple(_past(step) for step in kept),
    )


def _timer(bound: LoadedDecider, row: TimerRow) -> PendingTimer:
    name = row.job.partition("@")[2]
    input: Any = row.input
    with suppress(PayloadError):  # a view shows what it can: the timer itself will tell when it fires
        input = bound.input_of(name, row.input or "null")
    return PendingTimer(
        key=row.topic,
        type=name,
        input=input,
        due=None if row.scheduled_for is None else from_micros(row.scheduled_for),
        attempt=row.attempt,
        failures=row.failures,
    )


def _effect(row: EffectRow) -> PendingEffect:
    return PendingEffect(
        node=row.node,
        type=row.job.partition("!")[2],
        state=str(row.outcome) if row.outcome == Outcome.DEAD_LETTER else row.state,
        attempt=row.attempt,
        error=None if row.error is None else decode_error(row.error),
    )


def _past(step: HistoryStep) -> PastDecision:
    return PastDecision(
        sequence=step.sequence,
        cause=step.cause,
        from_status=step.source,
        to_status=step.target,
        events=step.events,
        at=from_micros(step.happened_at),
    )


class Deciders:
    """`app.deciders`: inspects deciders and their instances.

    print(app.deciders.machine(Order).to_mermaid())
    print(app.deciders.instance(Order, "o-1").status)
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def machine(
        self,
        decider: type[Decider[Any, Any, Any, Any]] | str,
        *,
        source: str = HISTORY,
        limit: int | None = INSTANCES,
    ) -> StateMachineView:
        """The state machine of a decider: declared and seen transitions.

        It reads the newest `limit` instances: it folds their events, or with `source="observations"`
        reads the recorded inputs, which needs `observe = True` and costs one query.
        """
        return machine(self._engine, decider, source, limit)

    def instance(
        self, decider: type[Decider[S, Any, Any, Any]], instance: str, *, history: int | None = DECISIONS
    ) -> InstanceView[S]:
        """An instance with its state, its pending work, and its newest decisions (at most `history`)."""
        return instance_view(self._engine, decider, instance, history)

    def observations(
        self,
        decider: type[Decider[Any, Any, Any, Any]] | str,
        instance: str | None = None,
        *,
        after: datetime | None = None,
        before: datetime | None = None,
        limit: int = AT_ONCE,
        cursor: Observation | int | None = None,
    ) -> list[Observation]:
        """Recorded inputs of a decider or of one instance, newest first.

        With `observe = True` these are all inputs, otherwise those with an id and those of the inbox.
        `after` and `before` limit the time of arrival.  `cursor`, the last one of a page, gives the next.
        """
        return observations(
            self._engine, decider, instance, after=after, before=before, cursor=cursor, limit=limit
        )

    def inboxes(self) -> list[Backlog]:
        """The pending inputs in inboxes, one item for each decider."""
        return backlogs(self._engine)

    def forget_snapshots(self, decider: type[Decider[Any, Any, Any, Any]] | str) -> int:
        """Remove the snapshots of a decider; return the number.

        New ones are stored when inputs arrive.  Call this after a change in a function that `evolve`
        calls, which Detent does not notice.
        """
        name = self._engine.services.bound(decider).name
        return self._engine.store.forget_snapshots(name)
