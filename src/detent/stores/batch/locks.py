"""Locking runs: always in the order of their ids, so that two transactions wait in one direction."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ...errors import RunNotFound
from ...kernel.rows import RunRow
from ..driver import Tx, batch


class Locked(NamedTuple):
    """A run that we hold the lock of."""

    state: str
    watched: int  # 1: another process waits for its end; 2: a node of another run does
    signature: str | None
    irregular: int
    frozen_at: int | None
    type: str
    kind: str


def lock_runs(tx: Tx, runs: Iterable[str]) -> dict[str, Locked]:
    """Lock these runs, until the transaction ends; those that do not exist are left out."""
    return ask_runs(tx, runs)()


def ask_runs(tx: Tx, runs: Iterable[str]) -> Callable[[], dict[str, Locked]]:
    """The same, to be waited for later."""
    ordered = sorted(set(runs))
    if not ordered:
        return dict
    asked = tx.ask(tx.sql.lock_runs, rows=batch([{"id": run} for run in ordered]))
    return lambda: {row[0]: Locked(*row[1:]) for row in asked()}


def lock(tx: Tx, run_id: str) -> RunRow:
    """Lock one run, until the transaction ends, and read it."""
    rows = tx.query(tx.sql.lock_run, id=run_id)
    if not rows:
        raise RunNotFound(run_id)
    return RunRow(**dict(zip(RunRow.__struct_fields__, rows[0], strict=False)))
