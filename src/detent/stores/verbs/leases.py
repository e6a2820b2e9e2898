"""Leasing executions that were found and locked, however they were found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...kernel.rows import Claimed
from ..driver import Tx, batch, rows_to


def lease(tx: Tx, worker: str, leases: Sequence[Mapping[str, Any]], now: int) -> Callable[[], list[Claimed]]:
    """Lease executions that are locked, each with its token; ask for them with the commit, in this order."""
    rows = batch(leases)
    if tx.sql.lease:
        asked = tx.ask(tx.sql.lease, rows=rows, worker=worker, now=now)
    else:
        tx.send(tx.sql.claimed, rows=rows, worker=worker, now=now)
        asked = tx.ask(tx.sql.claimed_runs, rows=rows)
    places = {row["token"]: place for place, row in enumerate(leases)}
    return lambda: sorted(rows_to(Claimed, asked()), key=lambda claimed: places[claimed.token])
