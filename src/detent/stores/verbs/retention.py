"""Removing runs that ended long ago, and all that belongs to them.

    1. Only what is over, and was over before a moment, and executes nothing any more: a canceled run may
       still be undoing what it did.
    2. Never before its parent.  A parent's journal reads its children, and a failed parent may be resumed:
       with a child gone, it would begin that child anew.

The walk over what has expired takes no locks, and a removal skips what others have locked.

A run that is deleted by name goes with all its children.  The same two rules hold: it is refused
while something of it is not over, and while it has a parent.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from ...errors import InvalidState
from ...kernel.decide import DECIDER
from ...kernel.rows import RunState
from ..batch.locks import lock
from ..driver import Tx, batch
from .cancel import lock_family

Place = tuple[int, str]  # when a run ended, and its id
BEGINNING: Place = (-1, "")


class Expired(msgspec.Struct, frozen=True):
    """A run that ended too long ago."""

    finished_at: int
    id: str
    parent: str | None
    parentless: int  # it has no parent, or none any more
    idle: int  # nothing of it is left to be done

    @property
    def place(self) -> Place:
        return self.finished_at, self.id

    @property
    def may_go(self) -> bool:
        return bool(self.idle and self.parentless)


def expired(tx: Tx, *, before: int, beyond: Place, limit: int) -> list[Expired]:
    """What ended before then, longest ago first."""
    statement = tx.driver.adapt(tx.driver.queries.expired)
    at, id = beyond
    return [Expired(*row) for row in tx.query(statement, before=before, at=at, id=id, limit=limit)]


def going_with(tx: Tx, parents: Collection[str], *, before: int) -> set[str]:
    """Which of these runs retention would remove: they and all their ancestors have expired."""
    statement = tx.driver.adapt(tx.driver.queries.ancestors)
    known: dict[str, tuple[str | None, bool]] = {}
    asked = set(parents)
    while asked:
        rows = tx.query(statement, rows=batch([{"id": run} for run in sorted(asked)]), before=before)
        known |= {run: (parent, bool(goes)) for run, parent, goes in rows}
        asked = {parent for _, parent, goes in rows if parent is not None and goes} - {*known}

    def goes(run: str | None) -> bool:
        while run in known:
            run, expired = known[run]
            if not expired:
                return False
        return True  # no ancestor is left

    return {run for run in parents if goes(run)}


def remove(tx: Tx, runs: Sequence[str], *, before: int) -> int:
    """Remove those of them that may be removed; return how many."""
    if not runs:
        return 0
    asked = batch([{"id": run} for run in sorted(runs)])
    found = tx.query(tx.driver.adapt(tx.driver.queries.removable), rows=asked, before=before)
    if found:
        _remove(tx, [run for (run,) in found])
    return len(found)


def delete(tx: Tx, run_id: str) -> int:
    """Remove a run that is over, with its children and all that belongs to them; return how many runs."""
    lock_family(tx, run_id)
    run = lock(tx, run_id)
    if run.kind == DECIDER:
        raise InvalidState("delete", run_id, "an instance of a decider", "its events are kept forever")
    if run.parent is not None and tx.query(tx.sql.run, id=run.parent):
        raise InvalidState("delete", run_id, f"a child of run {run.parent}", "delete that one")
    for (current,) in tx.query(tx.sql.chains.holds_first, id=run_id):
        raise InvalidState(
            "delete", run_id, f"continued as run {current}, which is active", "cancel it first"
        )
    family, generation = [run_id], [(run_id, run.state)]
    while generation:
        for id, state in generation:
            if not RunState(state).final:
                of = "" if id == run_id else f", the state of its child {id}"
                raise InvalidState("delete", run_id, f"{state}{of}", "cancel it first")
        generation = [row for id, _ in generation for row in tx.query(tx.sql.children, id=id)]
        family += [id for id, _ in generation]
    asked = batch([{"id": id} for id in sorted(family)])
    if tx.query(tx.driver.adapt(tx.driver.queries.busy), rows=asked):
        raise InvalidState("delete", run_id, f"{run.state}, with work that has not ended", "wait for its end")
    _remove(tx, family)
    return len(family)


def _remove(tx: Tx, runs: Sequence[str]) -> None:
    gone = batch([{"id": run, "run_id": run, "current_run": run} for run in sorted(runs)])
    for statement in tx.driver.queries.remove:
        tx.run(tx.driver.adapt(statement), rows=gone)
