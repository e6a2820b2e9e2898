"""Streams of runs: ordered values that steps and workflows append, and that readers follow.

The lock of the run guards its streams.  So positions are committed in their order, also when several
workers append to one stream: a reader that has seen position 7 has seen all entries before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...errors import RunNotFound
from ...kernel.rows import EntryRow, NewEntry
from ..driver import Tx, batch, rows_to, send


def append(tx: Tx, entries: Sequence[NewEntry]) -> None:
    """Give the entries their positions, in the given order, and store them; the runs are locked."""
    streams = sorted({(entry.run_id, entry.name) for entry in entries})
    asked = batch([{"run_id": run, "name": name} for run, name in streams])
    found = tx.query(tx.sql.run_streams.heads, rows=asked)
    heads: dict[tuple[str, str], int] = {(run, name): head or 0 for run, name, head in found}
    rows = []
    kept: dict[tuple[str, str], int] = {}
    for entry in entries:
        stream = entry.run_id, entry.name
        heads[stream] += 1
        rows.append(
            {
                "run_id": entry.run_id,
                "name": entry.name,
                "position": heads[stream],
                "entry_id": entry.entry_id,
                "step": entry.step,
                "attempt": entry.attempt,
                "value": entry.value,
                "appended_at": entry.appended_at,
            }
        )
        if entry.keep is not None:
            kept[stream] = entry.keep
    send(tx, tx.sql.run_streams.insert, rows)
    for (run, name), keep in sorted(kept.items()):
        upto = heads[run, name] - keep
        if upto > 0:
            tx.send(tx.sql.run_streams.trim, run_id=run, name=name, upto=upto)


def has_entry(tx: Tx, entry: NewEntry) -> bool:
    """Whether an entry was stored."""
    return bool(tx.query(tx.sql.run_streams.known, run_id=entry.run_id, entry_id=entry.entry_id))


def page(tx: Tx, run_id: str, name: str, *, after: int, limit: int) -> list[EntryRow]:
    """The entries of a stream beyond a position, in order."""
    rows = tx.query(tx.sql.run_streams.page, run_id=run_id, name=name, after=after, limit=limit)
    return rows_to(EntryRow, rows)


def names(tx: Tx, run_id: str) -> Iterator[tuple[str, int, int]]:
    """The streams of a run by name, with their first and last positions."""
    after = ""
    while rows := tx.query(tx.sql.run_streams.next_name, run_id=run_id, after=after):
        name, first, last = rows[0]
        yield name, first, last
        after = name


def may_grow(tx: Tx, run_id: str) -> bool:
    """Whether something can still be appended: the run is active, or work of it has not ended."""
    rows = tx.query(tx.sql.run_streams.busy, run_id=run_id)
    if not rows:
        raise RunNotFound(run_id)
    return any(rows[0])
