"""Readiness: what a parked run awaits, how much of it has happened, and waking it.

A row of `detent_readiness` is one thing awaited: `required` events, `settled` of
them so far.  A transaction that counts an event or parks a run holds that run's lock, so
an event is either counted here or seen by the look that precedes the parking.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ...kernel.rows import LIMIT, Await, ExecutionState, topic_of
from ..driver import Tx, batch, send, write

MANY = 1_000_000  # steps of one map


def count(tx: Tx, settled: Counter[tuple[str, str]], now: int) -> bool:
    """Count what has happened; make due the runs whose wait is over by it, and say whether there were any."""
    if not settled:
        return False
    rows = [
        {"run_id": run, "node": node, "increment": number} for (run, node), number in sorted(settled.items())
    ]
    if not write(tx, tx.sql.add_readiness, rows):
        return False  # no run waits for any of it
    full = sorted({row[0] for row in tx.query(tx.sql.full_readiness, rows=batch(rows))})
    if not full:
        return False
    wake(tx, full, now)
    return True


def release(tx: Tx, settled: Counter[tuple[str, str]], now: int) -> bool:
    """Let the next steps of maps with a limit begin, one for each that has ended; say whether any may.

    Those of a paused run stay held; they begin when it is resumed.
    """
    released: list[dict[str, Any]] = []
    for (run, node), number in sorted(settled.items()):
        if LIMIT in node:
            topic = node.partition(":")[2]
            for one, attempt, state in tx.query(tx.sql.waiting_steps, id=run, topic=topic, limit=number):
                became = ExecutionState.HELD if state == ExecutionState.HELD else ExecutionState.READY
                key = {"run_id": run, "node": one, "attempt": attempt}
                released.append({**key, "state": became, "scheduled_for": now})
    send(tx, tx.sql.park_executions, released)
    return any(row["state"] == ExecutionState.READY for row in released)


def waits(tx: Tx, run_id: str, topic: str, node: str) -> bool:
    """Whether a step of a map with a limit may not begin yet."""
    if LIMIT not in topic:
        return False
    return node in {row[0] for row in tx.query(tx.sql.waiting_steps, id=run_id, topic=topic, limit=MANY)}


def wake(tx: Tx, runs: Sequence[str], now: int) -> None:
    """Make the parked executions of these runs due."""
    rows = batch([{"run_id": run} for run in runs])
    tx.send(tx.sql.clear_readiness, rows=rows)
    tx.send(tx.sql.wake, rows=rows, now=now)


def forget(tx: Tx, runs: Sequence[str]) -> None:
    """These runs await nothing any more."""
    if runs:
        tx.send(tx.sql.clear_readiness, rows=batch([{"run_id": run} for run in runs]))


def park(tx: Tx, parked: Sequence[dict[str, Any]]) -> None:
    """Put executions down, unless what they await has happened meanwhile."""
    awaits = [item for row in parked for item in row["awaits"]]
    pending = _pending(tx, awaits) if awaits else {}
    required: list[dict[str, Any]] = []
    for row in parked:
        if all((item.run_id, item.topic) in pending for item in row["awaits"]):
            required += [
                {"run_id": item.run_id, "node": item.topic, "required": pending[item.run_id, item.topic]}
                for item in row["awaits"]
            ]
        else:
            row["scheduled_for"] = row["now"]
            if row["state"] != ExecutionState.HELD:
                row["state"] = ExecutionState.READY
        del row["awaits"], row["now"]
    send(tx, tx.sql.park_executions, parked)
    forget(tx, sorted({item.run_id for item in awaits}))
    send(tx, tx.sql.put_readiness, required)


def _pending(tx: Tx, awaits: list[Await]) -> dict[tuple[str, str], int]:
    """What has not happened yet, and how many events of it are missing."""
    pending: dict[tuple[str, str], int] = {}
    for kind, statement in (
        ("steps", tx.sql.pending_steps),
        ("child", tx.sql.pending_children),
        ("message", tx.sql.pending_messages),
    ):
        asked = [item for item in awaits if item.kind == kind]
        if asked:
            for run, name, *number in tx.query(statement, rows=batch(asked)):
                pending[run, topic_of(kind, name)] = int(number[0]) if number else 1
    return pending
