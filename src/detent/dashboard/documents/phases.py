"""Why a run is where it is: what executes, what it waits for, when it is tried again.

A run that is `ready` may be in the backlog, may wait for a person, or may sleep for a month.  Its phase tells
these apart; every other state is its own phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...clock import from_micros
from ...kernel.decide import DECIDER
from ...kernel.rows import ExecutionRow, ExecutionState, RunRow
from ...stores.driver import Tx
from ...stores.verbs import statistics
from ...stores.verbs.statistics import WaitingStep
from .source import Document, Source

ACTIVE = [
    ExecutionState.READY,
    ExecutionState.TIMER,
    ExecutionState.PARKED,
    ExecutionState.HELD,
    ExecutionState.EXECUTING,
]
PHASES = ("queued", "waiting", "retrying", "performing", "paused", "finished", "failed", "canceled")


def phases(source: Source, rows: Sequence[RunRow]) -> dict[str, Document]:
    """By run: its phase, and the reason in words and as data.  Two queries, whatever the number of runs."""
    store = source.engine.store
    active = [row.id for row in rows if row.state == "ready"]
    executions: dict[str, list[ExecutionRow]] = {}
    waits: dict[str, list[WaitingStep]] = {}
    if active:
        for execution in store.executions_of(active, states=ACTIVE):
            executions.setdefault(execution.run_id, []).append(execution)

        def read(tx: Tx) -> list[WaitingStep]:
            return statistics.waiting_steps(tx, active)

        for step in store.read(read):
            waits.setdefault(step.run_id, []).append(step)
    now = source.engine.clock.now()
    return {row.id: _phase(row, executions.get(row.id, []), waits.get(row.id, []), now) for row in rows}


def _phase(row: RunRow, executions: list[ExecutionRow], waits: list[WaitingStep], now: int) -> Document:
    if row.state != "ready":
        return _document(row.state, "")
    executing = [one for one in executions if one.state == ExecutionState.EXECUTING]
    if executing:
        names = sorted({one.job.removeprefix(f"{row.type}.") for one in executing})
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return _document("performing", f"executes {', '.join(names[:3])}{more}", names=names[:10])
    timers = [one for one in executions if one.state == ExecutionState.TIMER and one.scheduled_for]
    retry = min((one for one in timers if one.failures), key=lambda one: one.scheduled_for or 0, default=None)
    if retry is not None:
        what = f"tries {retry.job} again, attempt {retry.attempt}"
        return _document("retrying", what, until=_moment(retry.scheduled_for))
    messages = [step for step in waits if step.kind == "receive"]
    if messages:
        names = sorted({step.name for step in messages})
        until = min((step.wake_at for step in messages if step.wake_at), default=None)
        return _document(
            "waiting",
            f"waits for the message {', '.join(names)}",
            on="message",
            names=names,
            until=_moment(until),
        )
    if any(one.state == ExecutionState.READY for one in executions):
        due = min(
            one.scheduled_for or one.created_at for one in executions if one.state == ExecutionState.READY
        )
        return _document("queued", f"in the queue {row.queue}", since=_moment(min(due, now)))
    if row.kind == DECIDER:
        next_timer = min((one.scheduled_for or 0 for one in timers), default=None)
        why = "waits for inputs" if next_timer is None else "waits for inputs, next timer"
        return _document("waiting", why, on="inputs", until=_moment(next_timer))
    wakes = [step.wake_at for step in waits if step.wake_at] + [one.scheduled_for or 0 for one in timers]
    if wakes:
        return _document(
            "waiting", "sleeps" if waits else "starts later", on="timer", until=_moment(min(wakes))
        )
    return _document("waiting", "waits for other runs or steps", on="runs")


def _document(phase: str, why: str, **facts: Any) -> Document:
    return {"phase": phase, "why": why, "on": None, "names": [], "until": None, "since": None, **facts}


def _moment(micros: int | None) -> Any:
    return None if micros is None else from_micros(micros)
