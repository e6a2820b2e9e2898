"""Chains: the current run of a chain, and what a run has to wait for before it continues as a new one."""

from __future__ import annotations

from ...errors import RunNotFound
from ...kernel.rows import RunRow
from ..base_store import BaseStore
from ..driver import Tx
from .listing import to_runs


class ChainVerbs(BaseStore):
    """The verbs of chains; a run is continued by its `Settle` operation (stores/batch/chains.py)."""

    def find_current(self, run_id: str) -> RunRow | None:
        """A run; if it was continued, the current run of its chain.  None if it is not there."""
        with self._reading() as tx:
            row = _find(tx, run_id)
            while row is not None and row.continued_as is not None:
                found = tx.query(tx.sql.chains.current, chain=row.chain)
                row = _find(tx, found[0][0] if found else row.continued_as)
            return row

    def current(self, run_id: str) -> RunRow:
        """The same; raises RunNotFound if it is not there."""
        row = self.find_current(run_id)
        if row is None:
            raise RunNotFound(run_id)
        return row

    def forget_received(self, *, before: int) -> int:
        """Forget messages to first runs of chains that were received, and sent before then."""
        return self.write(lambda tx: tx.run(tx.sql.chains.forget_received, before=before))

    def open_work(self, run_id: str) -> list[tuple[str, str]]:
        """What the run has spawned and what has not ended: kinds and names, as in `Await`."""
        with self._reading() as tx:
            return [(kind, name) for kind, name in tx.query(tx.sql.chains.open_work, id=run_id)]


def _find(tx: Tx, run_id: str) -> RunRow | None:
    rows = tx.query(tx.sql.run, id=run_id)
    return to_runs(rows)[0] if rows else None
