"""Figures for people: how many runs are in each state, how many ended, what runs wait for.

Every read has a limit and uses an index, so that it takes milliseconds on a database with a million runs.
A count that reaches its limit is shown as "10,000+".
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..driver import Tx, batch, rows_to
from ..sql.queries import STATES

MOST = 10_000  # runs that are counted of a state
COUNTED = ("paused", "failed", "canceled")


class WaitingStep(msgspec.Struct, frozen=True):
    """A sleep or a receive that a run waits in."""

    run_id: str
    kind: str
    name: str
    wake_at: int | None


class MessageRow(msgspec.Struct, frozen=True):
    """A message to a run."""

    seq: int
    message_id: str
    name: str
    value: str
    sent_at: int
    consumed: int


class Due(msgspec.Struct, frozen=True):
    """An execution that may be claimed now."""

    run_id: str
    node: str
    queue: str
    since: int | None


class Ended(msgspec.Struct, frozen=True):
    """A run that ended, without its payloads."""

    id: str
    type: str
    queue: str
    state: str
    created_at: int
    finished_at: int


def state_counts(tx: Tx, *, most: int = MOST) -> dict[str, int]:
    """How many runs are in each state that needs no look at executions; each count ends at `most`.

    `active` counts the runs that are ready or performing.  Served by detent_runs_state.
    """
    conditions = {state: STATES[state] for state in COUNTED}
    conditions["active"] = "r.state = 'ready' AND r.state <> 'finished'"
    select = tx.driver.queries.count_state
    found = {}
    for state, condition in conditions.items():
        statement = f"SELECT COUNT(*) FROM ({select} WHERE {condition} LIMIT :most) AS bounded"
        found[state] = int(tx.query(tx.driver.adapt(statement), most=most)[0][0])
    return found


def ended_between(tx: Tx, since: int, until: int, *, most: int) -> int:
    """How many runs ended in this time, at most `most`."""
    statement = tx.driver.adapt(tx.driver.queries.count_finished)
    return int(tx.query(statement, since=since, until=until, most=most)[0][0])


def recently_ended(tx: Tx, *, since: int, limit: int) -> list[Ended]:
    """The runs that ended since then, latest first."""
    statement = tx.driver.adapt(tx.driver.queries.recently_ended)
    return rows_to(Ended, tx.query(statement, since=since, limit=limit))


def backlog(tx: Tx, queue: str, *, limit: int) -> list[Due]:
    """The executions of a queue that are claimed next."""
    return rows_to(Due, tx.query(tx.driver.adapt(tx.driver.queries.backlog), queue=queue, limit=limit))


def waiting_steps(tx: Tx, runs: Sequence[str]) -> list[WaitingStep]:
    """What these runs wait for, in no order."""
    statement = tx.driver.adapt(tx.driver.queries.waiting_steps)
    return rows_to(WaitingStep, tx.query(statement, rows=batch([{"id": run} for run in runs])))


def published(tx: Tx, run_id: str, *, limit: int) -> dict[str, str | None]:
    """The latest value that a run published under each name, in the order of publishing."""
    rows = tx.query(tx.driver.adapt(tx.driver.queries.published_by), id=run_id, limit=limit)
    return {name: result for name, result, _ in sorted(rows, key=lambda row: row[2])}


def messages(tx: Tx, run_id: str, *, limit: int) -> list[MessageRow]:
    """Messages to a run, oldest first; at most `limit`."""
    statement = tx.driver.adapt(tx.driver.queries.messages_of)
    found = rows_to(MessageRow, tx.query(statement, id=run_id, limit=limit))
    return sorted(found, key=lambda row: row.seq)
