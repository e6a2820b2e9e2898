"""Chosen ids: which runs have them already, and what may not begin because of that."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from ...errors import RunConflict
from ...kernel.operations import Operation, Record, Start
from ...kernel.rows import NewRun
from ..driver import Tx, batch


class Known(msgspec.Struct, frozen=True):
    """A run whose id is asked for."""

    type: str
    input: str
    parent: str | None
    parent_key: str | None


def known_of(runs: Iterable[NewRun]) -> dict[str, Known]:
    """Runs that begin in this batch, as they are found by their ids."""
    return {run.id: Known(run.type, run.input, run.parent, run.parent_key) for run in runs}


def known_runs(tx: Tx, operations: Iterable[Operation]) -> dict[str, Known]:
    """Which of the chosen ids are taken, and by what."""
    return ask_known(tx, operations)()


def ask_known(tx: Tx, operations: Iterable[Operation]) -> Callable[[], dict[str, Known]]:
    starts = (op.children if isinstance(op, Record) else op for op in operations)
    chosen = {run.id for op in starts if isinstance(op, Start) and op.chosen for run in op.runs}
    if not chosen:
        return dict
    asked = tx.ask(tx.sql.known_runs, rows=batch([{"id": run} for run in sorted(chosen)]))
    return lambda: {row[0]: Known(*row[1:]) for row in asked()}


def conflict_of(runs: Iterable[NewRun], known: dict[str, Known]) -> RunConflict | None:
    """Why these runs cannot begin: an id always means the same work."""
    for run in runs:
        found = known.get(run.id)
        if found is not None and (found.type, found.input) != (run.type, run.input):
            return RunConflict(run.id, found.type)
    return None


def conflict_of_children(runs: Iterable[NewRun], known: dict[str, Known]) -> RunConflict | None:
    """The same for children: one belongs to one call of its parent, so any other run is in its way."""
    begun: dict[str, Known] = {}
    for run in runs:
        found = known.get(run.id) or begun.get(run.id)
        if found is not None and (found.parent, found.parent_key) != (run.parent, run.parent_key):
            return RunConflict(run.id, found.type, run.parent or "")
        begun |= known_of([run])
    return None
