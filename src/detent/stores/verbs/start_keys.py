"""Starts with a key: dedup windows and debounces, in one transaction under the lock of the key's row."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ...errors import RunNotFound
from ...kernel.operations import Start
from ...kernel.rows import ExecutionState, RunState
from ...kernel.start_keys import DEDUP, Holder, StartKey, deduplicated
from ..base_store import BaseStore
from ..batch import apply as batches
from ..batch.locks import lock
from ..driver import Tx, batch, write

Planner = Callable[[str | None, int], Start]  # from a run's id (None: a new one) and its due time
FORGOTTEN_AT_ONCE = 1000


class KeyedStart(msgspec.Struct, frozen=True):
    """What became of a start with a key."""

    run_id: str  # of the run that the start belongs to
    begun: Start | None = None  # what was written; None if the start belongs to an earlier run
    new: bool = False  # False: a run that waited got other arguments


class StartKeyVerbs(BaseStore):
    """The verbs of start keys."""

    def start_by_key(self, key: StartKey, plan: Planner, *, now: int) -> KeyedStart:
        """Start a run, unless the key says that it is another one; see `start_by_key` below."""
        return self._changing(lambda tx: self._told(tx, start_by_key(tx, key, plan, now)))

    def forget_start_keys(self, *, before: int) -> int:
        """Remove rows that no start needs since before then; return how many."""
        return self.write(lambda tx: _forget(tx, before))


def start_by_key(tx: Tx, key: StartKey, plan: Planner, now: int) -> KeyedStart:
    """Start a run, give one that waits other arguments, or find the one that the start belongs to."""
    holder = _lock(tx, key, now)
    if key.mode == DEDUP:
        if deduplicated(holder, now) and tx.query(tx.sql.run, id=holder.run_id):
            return KeyedStart(holder.run_id)
        return _begin(tx, key, plan(None, now), first_at=now, until=key.until(now, now))
    if holder.run_id and _has_not_begun(tx, holder.run_id):
        return _replace(tx, key, plan, holder, now)
    due = key.until(now, now)
    return _begin(tx, key, plan(None, due), first_at=now, until=due)


def _lock(tx: Tx, key: StartKey, now: int) -> Holder:
    place = {"mode": key.mode, "type": key.type, "start_key": key.key}
    while True:
        write(tx, tx.sql.start_keys.put, [{**place, "last_run": "", "first_at": now, "until": 0}])
        found = tx.query(tx.sql.start_keys.lock, **place)
        if found:
            return Holder(*found[0])
        # It was there, and was removed before we had its lock.


def _has_not_begun(tx: Tx, run_id: str) -> bool:
    """Lock a run with its executions, and tell whether none of them was ever delivered.

    Claims skip what we have locked: they come before this, or after our commit.
    """
    try:
        run = lock(tx, run_id)
    except RunNotFound:
        return False
    rows = tx.query(tx.sql.start_keys.lock_executions, id=run_id)
    if RunState(run.state).final:
        return False
    return all(state != ExecutionState.EXECUTING and deliveries == 0 for state, deliveries in rows)


def _replace(tx: Tx, key: StartKey, plan: Planner, holder: Holder, now: int) -> KeyedStart:
    """Give a run that waits the arguments and the options of a later start."""
    former = lock(tx, holder.run_id)
    [(watched,)] = tx.query(tx.sql.start_keys.watch, id=former.id)
    until = key.until(holder.first_at, now)
    start = plan(former.id, until)
    for run in start.runs:
        run.created_at, run.watched = former.created_at, watched
    _withdraw(tx, former.id)
    _begin(tx, key, start, first_at=holder.first_at, until=until)
    if former.state == RunState.PAUSED:
        tx.run(tx.sql.set_run_state, id=former.id, state=former.state, error=former.error, finished_at=None)
        tx.run(tx.sql.hold, id=former.id)
    return KeyedStart(former.id, start)


def _withdraw(tx: Tx, run_id: str) -> None:
    """Remove what the start of a run that has not begun has written."""
    sql = tx.sql.start_keys
    tx.run(sql.withdraw_executions, id=run_id)
    tx.run(sql.withdraw_readiness, id=run_id)
    tx.run(sql.withdraw_graphs, id=run_id)
    tx.run(sql.withdraw_attributes, id=run_id)
    tx.run(sql.withdraw_deadlines, id=run_id)
    tx.run(sql.withdraw_run, id=run_id)


def _begin(tx: Tx, key: StartKey, start: Start, *, first_at: int, until: int) -> KeyedStart:
    start.chosen = start.remote = True
    run_id = start.runs[0].id
    place = {"mode": key.mode, "type": key.type, "start_key": key.key}
    tx.run(tx.sql.start_keys.set, run_id=run_id, first_at=first_at, until=until, **place)
    applied = batches.apply(tx, [start], helpers_wanted=True)
    tx.made_ready = tx.made_ready or applied.made_ready
    [answer] = applied.answers
    if isinstance(answer, Exception):
        raise answer
    created = answer[0].created
    return KeyedStart(run_id, start if created else None, new=created)


def _forget(tx: Tx, before: int) -> int:
    found = tx.query(tx.sql.start_keys.expired, before=before, limit=FORGOTTEN_AT_ONCE)
    if found:
        rows = [{"mode": mode, "type": type, "start_key": key} for mode, type, key in found]
        tx.run(tx.sql.start_keys.forget, rows=batch(rows))
    return len(found)
