"""Dead letters: what a decider's instance sent out or took in, and was given up.

It stays given up, whatever settings say later, until an operator replays it or
throws it away: under the instance's lock, so that of two who do so one comes first.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ...errors import InvalidState, NotADeadLetter
from ...kernel.decide import DECIDER, InputState
from ...kernel.rows import Claimed, ExecutionState, NewExecution, RunRow, RunState
from ...kernel.settle import INBOX, TIMER, Outcome
from ..batch.locks import lock
from ..driver import Tx, batch, rows_to, write
from .cancel import note
from .nodes import fresh


class DeadRow(msgspec.Struct, kw_only=True):
    """A dead letter as it is read back."""

    run_id: str
    node: str
    attempt: int
    kind: str
    job: str
    input: str | None
    error: str | None
    failures: int
    recoveries: int
    finished_at: int
    type: str

    @property
    def place(self) -> tuple[int, str, str]:
        return self.finished_at, self.run_id, self.node


class TimerRow(msgspec.Struct, kw_only=True):
    """A timer that waits."""

    node: str
    topic: str | None
    job: str
    scheduled_for: int | None
    attempt: int
    state: str
    failures: int
    input: str | None


class EffectRow(msgspec.Struct, kw_only=True):
    """An effect that is not carried out yet, or was given up."""

    node: str
    job: str
    state: str
    outcome: str | None
    attempt: int
    failures: int
    scheduled_for: int | None
    error: str | None


class Observed(msgspec.Struct, kw_only=True):
    """How often an input led from one status to another, as inputs are observed."""

    source: str
    input: str
    target: str
    count: int
    ended: bool  # some instance that it happened to is over


class InboxRow(msgspec.Struct, kw_only=True):
    """How much waits in the inboxes of a decider."""

    type: str
    pending: int
    oldest: int
    instances: int


def dead(tx: Tx, *, type: str, run_id: str, since: int, limit: int) -> list[DeadRow]:
    rows = tx.query(tx.sql.deciders.dead_letters, type=type, id=run_id, since=since, limit=limit)
    return rows_to(DeadRow, rows)


def walk_dead(
    tx: Tx, *, type: str, run_id: str, beyond: tuple[int, str, str], until: int, limit: int
) -> list[DeadRow]:
    at, run, node = beyond
    rows = tx.query(
        tx.sql.deciders.walk_dead,
        type=type,
        id=run_id,
        at=at,
        run_id=run,
        node=node,
        until=until,
        limit=limit,
    )
    return rows_to(DeadRow, rows)


def replay(tx: Tx, run_id: str, node: str, now: int) -> list[str]:
    """Take a dead letter up again, with a fresh budget; one that is not dead is left alone."""
    run, letter = _given_up(tx, run_id, node)
    if letter.kind == TIMER and letter.topic is not None:
        named = batch([{"run_id": run_id, "name": letter.topic}])
        outcomes = [row[4] for row in tx.query(tx.sql.deciders.timers, rows=named)]
        if any(outcome != Outcome.DEAD_LETTER for outcome in outcomes):  # a key has one timer
            raise NotADeadLetter(f"{run_id}/{node}", f"replaced: a timer with its key {letter.topic!r} waits")
    _mark(tx, letter, Outcome.REPLAYED)
    _again(tx, run, letter, now)
    note(tx, run_id, "replayed", {"node": node, "attempt": letter.attempt}, now)
    return [run_id]


def discard(tx: Tx, run_id: str, node: str, now: int) -> list[str]:
    """Throw a dead letter away; of an inbox only the input that blocks it, and the inputs after it continue.

    The inbox of a canceled instance does not continue: canceling has ignored all that waited in it.
    """
    run, letter = _given_up(tx, run_id, node)
    _mark(tx, letter, Outcome.DISCARDED)
    detail: dict[str, Any] = {"node": node, "attempt": letter.attempt}
    if letter.kind == INBOX and run.state != RunState.CANCELED:
        for (seq,) in tx.query(tx.sql.deciders.waiting_inputs, id=run_id, limit=1):
            row = {"seq": seq, "state": InputState.DISCARDED, "handled_at": now}
            tx.run(tx.sql.deciders.end_inputs, rows=batch([row | {"from_status": None, "to_status": None}]))
            detail["input"] = seq
        _again(tx, run, letter, now)
    note(tx, run_id, "discarded", detail, now)
    return [run_id]


def _given_up(tx: Tx, run_id: str, node: str) -> tuple[RunRow, Claimed]:
    """The latest attempt at a letter, if it is a dead one; its instance is locked."""
    run = lock(tx, run_id)
    if run.kind != DECIDER:
        raise InvalidState("look for dead letters of", run_id, run.kind, "only a decider has them")
    latest: list[Claimed] = rows_to(Claimed, tx.query(tx.sql.latest, id=run_id))
    outcomes = {(row[0], row[1]): row[2] for row in tx.query(tx.sql.failed_attempts, id=run_id)}
    found = next((row for row in latest if row.node == node), None)
    if found is None:
        raise NotADeadLetter(f"{run_id}/{node}", "not known")
    outcome = outcomes.get((node, found.attempt))
    if outcome != Outcome.DEAD_LETTER:
        raise NotADeadLetter(f"{run_id}/{node}", outcome or "waiting, under way, or done")
    return run, found


def _mark(tx: Tx, letter: Claimed, outcome: Outcome) -> None:
    tx.run(
        tx.sql.deciders.set_outcome,
        id=letter.run_id,
        node=letter.node,
        attempt=letter.attempt,
        outcome=str(outcome),
    )


def _again(tx: Tx, run: RunRow, letter: Claimed, now: int) -> None:
    again: NewExecution = fresh(letter, now)
    if run.state == RunState.CANCELED:
        raise InvalidState("replay a dead letter of", run.id, run.state, "it does not continue")
    if run.state == RunState.PAUSED:
        again.state = ExecutionState.HELD
    write(tx, tx.sql.insert_executions, [again])
