"""The verbs of run streams, each one transaction."""

from __future__ import annotations

from itertools import islice

from msgspec.structs import replace

from ...errors import InvalidState
from ...kernel.rows import EntryRow, NewEntry, RunState, Step
from ..base_store import BaseStore
from ..batch.chains import lock_current
from ..driver import Tx, send
from . import run_streams


class RunStreamVerbs(BaseStore):
    """What a store does for the streams of runs; entries are appended by `Record` operations."""

    def stream(self, run_id: str, name: str, *, after: int, limit: int) -> list[EntryRow]:
        """The entries of a stream beyond a position, in order."""
        with self._reading() as tx:
            return run_streams.page(tx, run_id, name, after=after, limit=limit)

    def streams(self, run_id: str, *, limit: int | None = None) -> list[tuple[str, int, int]]:
        """The names of a run's streams, with their first and last positions."""
        with self._reading() as tx:
            return list(islice(run_streams.names(tx, run_id), limit))

    def streams_may_grow(self, run_id: str) -> bool:
        """Whether something can still be appended to streams of this run."""
        with self._reading() as tx:
            return run_streams.may_grow(tx, run_id)


def append_from_outside(tx: Tx, entry: NewEntry) -> None:
    """Append to a stream of an active run, or of the current run of its chain."""
    run_id = _lock_active(tx, entry.run_id, "append to a stream of")
    run_streams.append(tx, [replace(entry, run_id=run_id)])


def publish_from_outside(tx: Tx, row: Step) -> None:
    """Publish a value of an active run, or of the current run of its chain."""
    run_id = _lock_active(tx, row.run_id, "publish a value of")
    send(tx, tx.sql.upsert_steps, [replace(row, run_id=run_id)])


def _lock_active(tx: Tx, run_id: str, verb: str) -> str:
    run = lock_current(tx, run_id)
    if RunState(run.state).final:
        raise InvalidState(verb, run.id, run.state)
    return run.id
