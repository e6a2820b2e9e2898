"""The verbs of run streams, each one transaction."""

from __future__ import annotations

from itertools import islice

from ...errors import InvalidState
from ...kernel.rows import EntryRow, NewEntry, RunState, Step
from ..base_store import BaseStore
from ..driver import Tx, send
from . import run_streams
from .nodes import lock


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

    def append(self, entry: NewEntry) -> None:
        """Append to a stream of an active run from outside; twice is one entry."""
        self.write(lambda tx: _append(tx, entry))

    def publish(self, row: Step) -> None:
        """Publish a value of an active run from outside; twice publishes it again."""
        self.write(lambda tx: _publish(tx, row))


def _append(tx: Tx, entry: NewEntry) -> None:
    _lock_active(tx, entry.run_id, "append to a stream of")
    run_streams.append(tx, [entry])


def _publish(tx: Tx, row: Step) -> None:
    _lock_active(tx, row.run_id, "publish a value of")
    send(tx, tx.sql.upsert_steps, [row])


def _lock_active(tx: Tx, run_id: str, verb: str) -> None:
    run = lock(tx, run_id)
    if RunState(run.state).final:
        raise InvalidState(verb, run_id, run.state)
