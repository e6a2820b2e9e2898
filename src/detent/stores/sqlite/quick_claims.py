"""Claims on SQLite: what is ready is read together with its runs, and leased with bound values.

After each row that a query returns, sqlite3 waits for Python's lock, which a busy event loop is slow to
release.  So a search returns all rows as one JSON text.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from ...kernel.rows import Claimed
from ..driver import FoundWork, Tx
from ..driver import batch as as_json
from ..sql.claims import claimed_columns
from ..sql.dialect import columns_of, served
from ..sql.graphs import ON_KEY
from .quick_batches import BoundRows

LARGEST_INPUT = 64 * 1024  # characters; longer ones are copied once less by the long way
_FIELDS = columns_of(Claimed)
_INPUTS = (_FIELDS.index("input"), _FIELDS.index("run_input"))
_TOKEN = _FIELDS.index("token")
_PRECEDENCE = _FIELDS.index("precedence")
_DECODER = msgspec.json.Decoder()
# As the lease leaves them; the token is not known before the order is.
_LEASED = {
    "worker": ":worker",
    "token": "NULL",
    "deliveries": "e.deliveries + 1",
    "started_at": "COALESCE(e.started_at, MAX(e.created_at, :now))",
}


def _returned(place: int) -> str:
    """A value for the JSON text; 0 for an input that is too long for it."""
    return f"iif(length(c{place}) > {LARGEST_INPUT}, 0, c{place})" if place in _INPUTS else f"c{place}"


# Served by detent_executions_ready, in its order.  A worker that is not alive gets nothing.
SEARCH = f"""
SELECT json_group_array(json_array({", ".join(_returned(place) for place in range(len(_FIELDS)))}, due))
  FROM (SELECT {", ".join(f"{one} AS c{place}" for place, one in enumerate(claimed_columns("e", _LEASED)))},
               e.scheduled_for AS due
          FROM detent_executions AS e CROSS JOIN detent_runs AS r ON r.id = e.run_id
         WHERE e.state = 'ready' AND e.queue = :queue
           AND e.job IN (SELECT value FROM json_each(:jobs))
           AND {served("e")}
           AND EXISTS (SELECT 1 FROM detent_workers WHERE id = :worker)
         ORDER BY e.precedence, e.scheduled_for, e.run_id
         LIMIT :limit)"""

_LEASE = """
UPDATE detent_executions AS t
   SET state = 'executing', worker = x.worker, token = x.token, deliveries = x.deliveries,
       started_at = x.started_at"""

LEASE = BoundRows(
    f"{_LEASE} FROM {{rows}} WHERE {ON_KEY}",
    *("run_id", "node", "attempt", "worker", "token", "deliveries", "started_at"),
    single=f"{_LEASE} WHERE {ON_KEY}",
)


def claim(
    tx: Tx,
    worker: str,
    *,
    queues: Sequence[str],
    jobs: Sequence[str],
    tokens: Sequence[str],
    now: int,
    version: str,
) -> FoundWork | None:
    """Lease what is ready, in a transaction; None, and nothing is leased, if an input is long."""
    found = FoundWork()
    given = {"worker": worker, "jobs": as_json(jobs), "now": now, "version": version}
    for queue in queues:
        if left := tokens[len(found.claimed) :]:
            begun = time.perf_counter()
            [[text]] = tx.query(SEARCH, queue=queue, limit=len(left), **given)
            found.seconds += time.perf_counter() - begun
            found.searches += 1
            if not _take(queue, _DECODER.decode(text), left, found):
                return None
    _lease(tx, found.claimed)
    return found


def _take(queue: str, rows: Sequence[list[Any]], tokens: Sequence[str], found: FoundWork) -> bool:
    """Add what a search has found; False if an input was left out."""
    places: dict[int, int] = {}
    for row, token in zip(rows, tokens, strict=False):
        due = row.pop()
        if row[_INPUTS[0]] == 0 or row[_INPUTS[1]] == 0:
            return False
        row[_TOKEN] = token
        places[row[_PRECEDENCE]] = due  # they come in this order: the last one stays
        found.claimed.append(Claimed(*row))
    found.places += [(queue, precedence, due) for precedence, due in places.items()]
    return True


def _lease(tx: Tx, claimed: Sequence[Claimed]) -> None:
    values: list[Any] = []
    for c in claimed:
        values += (c.run_id, c.node, c.attempt, c.worker, c.token, c.deliveries, c.started_at)
    LEASE.run(tx.connection, values)
