"""The verbs of run streams, each one transaction."""

from __future__ import annotations

from ...kernel.rows import EntryRow
from ..base_store import BaseStore
from . import run_streams


class RunStreamVerbs(BaseStore):
    """What a store does for the streams of runs; entries are appended by `Record` operations."""

    def stream(self, run_id: str, name: str, *, after: int, limit: int) -> list[EntryRow]:
        """The entries of a stream beyond a position, in order."""
        with self._reading() as tx:
            return run_streams.page(tx, run_id, name, after=after, limit=limit)

    def streams(self, run_id: str) -> list[tuple[str, int, int]]:
        """The names of a run's streams, with their first and last positions."""
        with self._reading() as tx:
            return run_streams.names(tx, run_id)

    def streams_may_grow(self, run_id: str) -> bool:
        """Whether something can still be appended to streams of this run."""
        with self._reading() as tx:
            return run_streams.may_grow(tx, run_id)
