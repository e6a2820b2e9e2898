"""Generations of projections: taken by one worker at a time, moved on, replaced, dropped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...errors import InvalidState, ProjectionNotBlocked
from ...kernel.decide import EventRow
from ...kernel.projections import (
    LIVE,
    REBUILDING,
    RETIRED,
    ProjectionRow,
    first_generation,
    in_state,
    is_outdated,
    moved_to,
    next_generation,
    retire,
)
from ..driver import Tx, batch, news, rows_to, write
from ..sql.dialect import columns_of
from .cancel import note

DROPPED_AT_ONCE = 5_000  # items of a generation that one transaction removes
_LAST = "\U0010ffff"  # behind every text that begins like the one before it


def generations(tx: Tx) -> tuple[list[ProjectionRow], int]:
    """All generations of all projections, and the position of the newest event."""
    rows = tx.query(tx.sql.projections.generations)
    return rows_to(ProjectionRow, [row[:-1] for row in rows]), max((row[-1] for row in rows), default=0)


def overview(tx: Tx) -> tuple[list[tuple[ProjectionRow, int | None]], int]:
    """The same, each with the time of the first event that it has not seen."""
    rows = tx.query(tx.sql.projections.overview)
    found = rows_to(ProjectionRow, [row[:-2] for row in rows])
    head = tx.query(tx.sql.deciders.counter)[0][0] if not rows else rows[0][-2]
    return [(row, raw[-1]) for row, raw in zip(found, rows, strict=True)], head


def head_of(tx: Tx) -> int:
    """The position of the newest event."""
    head: int = tx.query(tx.sql.deciders.counter)[0][0]
    return head


def _named(tx: Tx, name: str) -> list[ProjectionRow]:
    return [row for row in generations(tx)[0] if row.name == name]


def begin_generations(tx: Tx, versions: Mapping[str, int], now: int) -> bool:
    """Begin what projections of these versions need; whether there was anything.  Twice does nothing."""
    rows, _ = generations(tx)
    known: dict[str, list[ProjectionRow]] = {}
    for row in rows:
        known.setdefault(row.name, []).append(row)
    begun = False
    for name, version in sorted(versions.items()):
        if name not in known:
            _insert(tx, first_generation(name, version, now))
            begun = True
        elif is_outdated(known[name], version):
            begun = _begin_next(tx, name, version, now) is not None or begun
    return begun


def _begin_next(
    tx: Tx, name: str, version: int, now: int, *, restart: bool = True, asked: bool = False
) -> int | None:
    """Begin another generation beside the live one; None if another process just did."""
    under_way = in_state(_named(tx, name), REBUILDING)
    given_up = lock(tx, name, under_way.generation) if under_way is not None else None
    # The process with the lock of the live one decides about its successor.
    if lock_live(tx, name) is None:
        return None
    rows = _named(tx, name)
    now_under_way = in_state(rows, REBUILDING)
    if (now_under_way and now_under_way.generation) != (given_up and given_up.generation):
        return None
    if not asked and not is_outdated(rows, version):
        return None
    if given_up is not None:
        if not restart:
            state = f"being rebuilt (generation {given_up.generation})"
            raise InvalidState(
                "rebuild", f"projection:{name}", state, "rebuild(..., restart=True) starts it again"
            )
        retire(given_up, now)
        save(tx, given_up)
    fresh = next_generation(rows, version, now)
    _insert(tx, fresh)
    return fresh.generation


def rebuild(tx: Tx, name: str, version: int, *, restart: bool, now: int) -> int | None:
    """Begin a generation from the first event on; None: look again, another was quicker."""
    if not _named(tx, name):
        _insert(tx, first_generation(name, version, now))
        number: int | None = 1
    else:
        number = _begin_next(tx, name, version, now, restart=restart, asked=True)
    if number is not None:
        note(tx, f"projection:{name}", "rebuilding", {"generation": number, "by": "operator"}, now)
        tell(tx)
    return number


def tell(tx: Tx) -> None:
    """Wake the workers of other processes at the commit."""
    tx.driver.notify(tx, news(work=True))


def _insert(tx: Tx, row: ProjectionRow) -> None:
    write(tx, tx.sql.projections.insert, [row])


def take(tx: Tx, name: str, generation: int) -> ProjectionRow | None:
    """Lock a generation; None if another process has it, or if there is none."""
    rows = rows_to(ProjectionRow, tx.query(tx.sql.projections.take, name=name, generation=generation))
    return rows[0] if rows else None


def lock(tx: Tx, name: str, generation: int) -> ProjectionRow | None:
    """The same, waiting for the lock."""
    rows = rows_to(ProjectionRow, tx.query(tx.sql.projections.lock, name=name, generation=generation))
    return rows[0] if rows else None


def save(tx: Tx, row: ProjectionRow) -> None:
    """Write a generation that we have locked."""
    values = {c: getattr(row, c) for c in columns_of(ProjectionRow) if c != "version"}
    tx.run(tx.sql.projections.save, **values)


def events_behind(tx: Tx, position: int, limit: int) -> list[EventRow]:
    """The events behind a position, in order.

    None is missing between them: a position is taken under a lock that is held until the commit,
    so when one is seen, all that are lower were committed before it.
    """
    found: list[EventRow] = rows_to(
        EventRow, tx.query(tx.sql.deciders.events_since, after=position, limit=limit)
    )
    return found


def lock_live(tx: Tx, name: str) -> ProjectionRow | None:
    """Lock the live generation, waiting for the lock.

    Call it with no other lock than that of the generation that is rebuilt, so that no deadlock is possible.
    """
    known = in_state(_named(tx, name), LIVE)
    found = None if known is None else lock(tx, name, known.generation)
    return found if found is not None and found.state == LIVE else None


def take_over(tx: Tx, rebuilt: ProjectionRow, live: ProjectionRow | None, now: int) -> None:
    """Put a rebuilt generation in the place of the live one; both are locked."""
    if live is not None:
        retire(live, now)
        save(tx, live)
    rebuilt.state, rebuilt.updated_at = LIVE, now
    save(tx, rebuilt)
    detail = {
        "generation": rebuilt.generation,
        "before": None if live is None else live.generation,
        "position": rebuilt.position,
    }
    note(tx, f"projection:{rebuilt.name}", "swapped", detail, now)
    tell(tx)


def skip(tx: Tx, name: str, position: int | None, now: int) -> int:
    """Go on behind the event that blocks a projection; return its position.  Twice is an error."""
    blocked = [row for row in _named(tx, name) if row.blocked]
    for known in sorted(blocked, key=lambda row: row.state != LIVE):
        row = lock(tx, name, known.generation)
        if row is None or not row.blocked or row.begun_at is None:
            continue
        skipped = row.position + 1
        if position is not None and skipped != position:
            continue
        note(
            tx,
            f"projection:{name}",
            "skipped",
            {"position": skipped, "generation": row.generation, "failures": row.failures, "by": "operator"},
            now,
        )
        moved_to(row, skipped, now)
        save(tx, row)
        tell(tx)
        return skipped
    raise ProjectionNotBlocked(name)


# What is kept by key


def read_item(tx: Tx, name: str, generation: int, key: str) -> str | None:
    rows = tx.query(tx.sql.projections.item, name=name, generation=generation, key=key)
    return rows[0][0] if rows else None


def first_items(tx: Tx, name: str, generation: int, limit: int) -> dict[str, str]:
    return dict(tx.query(tx.sql.projections.first_items, name=name, generation=generation, limit=limit))


def write_items(tx: Tx, name: str, generation: int, texts: Iterable[tuple[str, str | None]]) -> None:
    """Write what has changed; None removes an item."""
    put, gone = [], []
    for key, text in texts:
        row: dict[str, Any] = {"projection": name, "generation": generation, "item_key": key}
        if text is None:
            gone.append(row)
        else:
            put.append(row | {"value": text})
    write(tx, tx.sql.projections.put_items, put)
    write(tx, tx.sql.projections.delete_items, gone)


def drop_items(tx: Tx, name: str, generation: int) -> bool:
    """Remove some of a retired generation's items; whether all are gone now."""
    keys = tx.query(tx.sql.projections.some_keys, name=name, generation=generation, limit=DROPPED_AT_ONCE)
    rows = [{"projection": name, "generation": generation, "item_key": key} for (key,) in keys]
    if rows:
        tx.run(tx.sql.projections.delete_items, rows=batch(rows))
    return len(rows) < DROPPED_AT_ONCE


def delete(tx: Tx, row: ProjectionRow) -> None:
    """Forget a retired generation."""
    assert row.state == RETIRED
    tx.run(tx.sql.projections.delete, name=row.name, generation=row.generation)


# Reading the live one


def live(tx: Tx, name: str) -> ProjectionRow | None:
    rows = rows_to(ProjectionRow, tx.query(tx.sql.projections.reached, name=name))
    return rows[0] if rows else None


def live_item(tx: Tx, name: str, key: str) -> str | None:
    rows = tx.query(tx.sql.projections.live_item, name=name, key=key)
    return rows[0][0] if rows else None


def live_items(tx: Tx, name: str, prefix: str, after: str, limit: int) -> Sequence[tuple[str, str]]:
    known = live(tx, name)
    if known is None:
        return []
    rows = tx.query(
        tx.sql.projections.items,
        name=name,
        generation=known.generation,  # should it be replaced just now: it stays for a while
        low=prefix,
        high=prefix + _LAST,
        after=after,
        limit=limit,
    )
    # (MySQL takes `a` for a text that begins with `a `.)
    return [(key, text) for key, text in rows if key.startswith(prefix)]
