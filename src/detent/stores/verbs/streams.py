"""Reading the events of instances, and folding them to states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ...errors import InvalidState, UnreadableEvent
from ...kernel.decide import BoundDecider, EventRow, SnapshotRow
from ..driver import Tx, batch, rows_to

PAGE = 2_000  # events of one instance that are read at once
EVERY = 2**62  # more events than there are
FEW = 200  # events that an instance may be behind, to be read together with others


class Loaded(NamedTuple):
    """An instance's state, and how it was computed."""

    sequence: int
    state: Any
    replayed: int
    broken: Exception | None
    waits: bool = False  # inputs wait in its inbox


def load_states(tx: Tx, bound_deciders: Mapping[str, BoundDecider]) -> dict[str, Loaded]:
    """The states of instances whose locks we hold: remembered, or from what is stored."""
    if not bound_deciders:
        return {}
    keys = batch([{"id": run} for run in sorted(bound_deciders)])
    rows = tx.query(tx.sql.deciders.heads, rows=keys)
    heads: dict[str, int] = {row[0]: row[1] or 0 for row in rows}
    waiting = {row[0] for row in rows if row[2] is not None}
    known: dict[str, tuple[int, Any]] = {}
    for run, bound in bound_deciders.items():
        remembered = bound.recall(run)
        if remembered is not None and remembered[0] <= heads[run]:
            known[run] = remembered
    cold = {run: bound for run, bound in bound_deciders.items() if run not in known and heads[run]}
    known |= snapshots(tx, {run: bound for run, bound in cold.items() if _may_have_one(bound, heads[run])})
    missing = {run: known[run][0] if run in known else 0 for run in bound_deciders}
    few = {run: after for run, after in missing.items() if 0 < heads[run] - after <= FEW}
    read = _read_few(tx, few)
    loaded = {}
    for run, bound in bound_deciders.items():
        try:
            after, state = known[run] if run in known else (0, bound.initial())
        except Exception as error:  # of `initial`: the answer to those who ask for this instance
            loaded[run] = Loaded(heads[run], None, 0, error)
            continue
        pages = [read.get(run, [])] if run in few else pages_of(tx, run, after, heads[run])
        folded = _folded(bound, run, state, after, heads[run], pages)
        loaded[run] = folded._replace(waits=True) if run in waiting else folded
    return loaded


def _may_have_one(bound: BoundDecider, head: int) -> bool:
    return bound.snapshot_every is not None and head >= bound.snapshot_every


def snapshots(tx: Tx, bound_deciders: Mapping[str, BoundDecider]) -> dict[str, tuple[int, Any]]:
    """The states of snapshots that fit the code of today."""
    wanted = {run: bound for run, bound in bound_deciders.items() if bound.snapshot_every is not None}
    if not wanted:
        return {}
    keys = batch([{"id": run} for run in sorted(wanted)])
    rows: list[SnapshotRow] = rows_to(SnapshotRow, tx.query(tx.sql.deciders.snapshots, rows=keys))
    found = {}
    for row in rows:
        bound = wanted[row.run_id]
        state = bound.thawed(row.body) if row.fingerprint == bound.snapshots else None
        if state is not None:
            found[row.run_id] = (row.sequence, state)
    return found


def _read_few(tx: Tx, few: Mapping[str, int]) -> dict[str, list[EventRow]]:
    """The newest events of many instances, in one query."""
    if not few:
        return {}
    keys = batch([{"id": run, "sequence": after} for run, after in sorted(few.items())])
    found: dict[str, list[EventRow]] = {}
    rows: list[EventRow] = rows_to(EventRow, tx.query(tx.sql.deciders.new_events, rows=keys))
    for row in sorted(rows, key=lambda row: row.sequence):
        found.setdefault(row.run_id, []).append(row)
    return found


def pages_of(tx: Tx, run_id: str, after: int, upto: int) -> Iterator[list[EventRow]]:
    """The events of an instance, page by page."""
    while after < upto:
        rows = tx.query(tx.sql.deciders.more_events, id=run_id, after=after, upto=upto, limit=PAGE)
        if not rows:
            return
        page: list[EventRow] = rows_to(EventRow, rows)
        yield page
        after = page[-1].sequence


def _folded(bound: BoundDecider, run: str, state: Any, after: int, head: int, pages: Any) -> Loaded:
    sequence = after
    for page in pages:  # (an error of the database is not caught here)
        try:
            state = bound.fold(state, _without_gap(run, page, sequence))
        except Exception as error:  # of the code that reads events, or of `evolve`: the caller gets it
            return Loaded(head, None, 0, error)
        sequence += len(page)
    if sequence != head:
        return Loaded(head, None, 0, _missing(run, sequence + 1))
    return Loaded(head, state, head - after, None)


def _without_gap(run: str, page: list[EventRow], after: int) -> list[EventRow]:
    for number, row in enumerate(page, start=after + 1):
        if row.sequence != number:
            raise _missing(run, number)
    return page


def _missing(run: str, sequence: int) -> UnreadableEvent:
    return UnreadableEvent(run, sequence, 0, "?", "it is missing from the store")


def events(tx: Tx, run_id: str, *, after: int, limit: int) -> list[EventRow]:
    """The events of an instance behind a number, in order."""
    found: list[EventRow] = []
    for page in pages_of(tx, run_id, after, min(after + limit, EVERY)):
        found += page
    return found


def state_of(tx: Tx, run_id: str, bound: BoundDecider, upto: int | None = None) -> Any:
    """The state after the event `upto`, or after the last one, of an instance whose lock we need not hold."""
    head = tx.query(tx.sql.deciders.heads, rows=batch([{"id": run_id}]))[0][1] or 0
    if upto is not None and upto > head:
        raise InvalidState("read the state of", run_id, f"at event {head}, not {upto}")
    goal = head if upto is None else upto
    after, state = snapshots(tx, {run_id: bound}).get(run_id, (0, None))
    if not 0 < after <= goal:
        after, state = 0, bound.initial()
    loaded = _folded(bound, run_id, state, after, goal, pages_of(tx, run_id, after, goal))
    if loaded.broken is not None:
        raise loaded.broken
    return loaded.state
