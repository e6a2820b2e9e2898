"""Draining a worker: an operator asks it to claim nothing more; what it executes ends.

The worker sees it at its next heartbeat.  It stays registered, and claims again when the drain ends.
"""

from __future__ import annotations

from ..driver import Tx
from .cancel import note


def history_of(worker: str) -> str:
    """Under which id the history of a worker is kept."""
    return f"worker:{worker}"


def drain(tx: Tx, worker: str, *, now: int) -> bool:
    """Ask a worker to claim nothing more; False if it is not registered.  Twice keeps the first moment."""
    return _set(tx, worker, now, "drained", now)


def undrain(tx: Tx, worker: str, *, now: int) -> bool:
    """Let a drained worker claim again; False if it is not registered.  Twice does nothing."""
    return _set(tx, worker, None, "claims again", now)


def _set(tx: Tx, worker: str, moment: int | None, event: str, now: int) -> bool:
    rows = tx.query(tx.sql.lock_worker, id=worker)
    if not rows:
        return False
    if (rows[0][2] is None) is not (moment is None):
        tx.run(tx.sql.drain_worker, id=worker, drain_at=moment)
        note(tx, history_of(worker), event, {"by": "operator"}, now)
    return True
