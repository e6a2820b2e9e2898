"""Chains: a run that ends and is continued by a new one, in the transaction of its end.

The settle of a run is guarded by its delivery token, so it has one successor, whatever crashes.  The new
run takes over what addresses the old one: unread messages, the parent that waits, nodes that wait for its
result, hero, attributes, deadline, queue, key and priority.

The chain row knows the current run, so a message to the first run of a chain of thousands finds its
receiver with one query.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from ...ids import uuid7
from ...kernel.operations import Successor
from ...kernel.rows import ExecutionState, HistoryRow, NewExecution, RunRow, RunState, topic_of
from ..driver import Tx, send
from .locks import lock

LONGEST_ID = 200


class Continued(msgspec.Struct, frozen=True, gc=False):
    """A run that ends, and the one that continues it."""

    run_id: str
    new_id: str
    parent: str | None
    chain: str
    number: int  # of the new run: 2, 3...
    state: str  # in which the new run begins
    watched: int
    successor: Successor
    now: int

    @property
    def main(self) -> NewExecution:
        """The first execution of the new run."""
        held = self.state == RunState.PAUSED
        row = replace(self.successor.main, run_id=self.new_id)
        return replace(row, state=ExecutionState.HELD) if held else row

    @property
    def history(self) -> list[HistoryRow]:
        """What the histories of both runs say."""
        return [
            _line(self.run_id, "continued_as", {"run": self.new_id}, self.now),
            _line(self.new_id, "continues", {"run": self.run_id}, self.now),
        ]


def plan(tx: Tx, run_id: str, successor: Successor, *, paused: bool, watched: int, now: int) -> Continued:
    """Give the successor of a run, which is locked, its id and its place in the chain."""
    [(parent, chain, first, number)] = tx.query(tx.sql.chains.place, id=run_id)
    number = (number or 1) + 1
    while tx.query(tx.sql.chains.is_taken, id=member_id(first or run_id, number)):
        number += 1  # another run has this id
    return Continued(
        run_id=run_id,
        new_id=member_id(first or run_id, number),
        parent=parent,
        chain=chain or uuid7(),
        number=number,
        state=RunState.PAUSED if paused else RunState.READY,
        watched=watched,
        successor=successor,
        now=now,
    )


def member_id(first: str, number: int) -> str:
    """The id of a member of a chain: `loop`, `loop~2`, `loop~3`; one that is too long ends with a hash."""
    id = f"{first}~{number}"
    if len(id) <= LONGEST_ID:
        return id
    return f"{id[: LONGEST_ID - 33]}~{hashlib.sha256(id.encode()).hexdigest()[:32]}"


def write_all(tx: Tx, continued: Mapping[str, Continued], received: Sequence[dict[str, Any]]) -> None:
    """Write the runs that continue others, and where messages were sent to that went on to such runs."""
    send(tx, tx.sql.chains.insert_received, sorted(received, key=lambda sent: sent["run_id"]))
    for run in sorted(continued):
        _write(tx, continued[run])


def _write(tx: Tx, one: Continued) -> None:
    """Write the new run, and let it take over what addresses the old one, which has ended by now."""
    sql, ids = tx.sql.chains, {"id": one.run_id, "new": one.new_id}
    tx.send(
        sql.insert_run,
        **ids,
        state=str(one.state),
        input=one.successor.input,
        now=one.now,
        versions=one.successor.versions,
        pin=one.successor.main.pin,
        chain=one.chain,
    )
    if one.number == 2 or not tx.run(sql.advance, chain=one.chain, new=one.new_id, number=one.number):
        tx.send(sql.insert, chain=one.chain, number=one.number, **ids)
    tx.send(sql.link, chain=one.chain, **ids)
    tx.send(sql.copy_attributes, now=one.now, **ids)
    tx.send(sql.copy_messages, **ids)
    tx.send(sql.close_messages, id=one.run_id)
    tx.send(sql.move_deadline, **ids)
    if one.watched & 2:
        tx.send(sql.move_waits, **ids)
    if one.parent is not None:
        topics = {"topic": topic_of("child", one.run_id), "new_topic": topic_of("child", one.new_id)}
        tx.send(sql.move_readiness, parent=one.parent, **topics)


def lock_current(tx: Tx, run_id: str) -> RunRow:
    """Lock a run; if it was continued, the current run of its chain instead."""
    run = lock(tx, run_id)
    if run.continued_as is None:
        return run
    rows = tx.query(tx.sql.chains.current, chain=run.chain)
    run = lock(tx, rows[0][0] if rows else run.continued_as)
    # A snapshot may be older than the rows that we lock.
    while run.continued_as is not None:
        run = lock(tx, run.continued_as)
    return run


def _line(run_id: str, event: str, detail: dict[str, Any], now: int) -> HistoryRow:
    text = msgspec.json.encode(detail).decode()
    return HistoryRow(run_id=run_id, happened_at=now, event=event, detail=text)
