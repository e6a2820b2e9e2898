"""Figures of queues for people: which keys wait, how many began in the window of a rate.

Every read has a limit and uses an index, like those of statistics.py.
"""

from __future__ import annotations

from ...kernel.admission import NO_KEY, scope_of, window
from ...kernel.queues import Configured
from ..driver import Tx, batch

MOST_KEYS = 50  # keys whose waiting executions are counted
MOST_PER_KEY = 1_000  # waiting executions that are counted for one key


def waiting_by_key(tx: Tx, queue: str, *, keys: int = MOST_KEYS, most: int = MOST_PER_KEY) -> dict[str, int]:
    """How many executions of a queue wait, for its first keys; each count ends at `most`.

    Executions without a key are not counted.  Served by detent_executions_keyed.
    """
    found = [row[0] for row in tx.query(tx.sql.queues.keys, queue=queue, after="", limit=keys)]
    asked = {key: tx.ask(tx.sql.queues.waiting_key, queue=queue, queue_key=key, limit=most) for key in found}
    return {key: int(answer()[0][0]) for key, answer in asked.items() if scope_of(key) != NO_KEY}


def begun(tx: Tx, queues: list[Configured], *, now: int) -> dict[str, int]:
    """How many executions began in the window of the rate that is open now, by queue."""
    limited = {queue.name: rate for queue in queues if (rate := queue.limits.rate) is not None}
    if not limited:
        return {}
    moment: int = tx.query(tx.sql.queues.clock, now=now)[0][0]
    rows = [
        {"queue": name, "queue_key": NO_KEY, "begun_at": moment - window(rate)}
        for name, rate in sorted(limited.items())
    ]
    found = dict.fromkeys(limited, 0)
    for name, _, _, number in tx.query(tx.sql.queues.begins, rows=batch(rows)):
        found[name] += int(number)
    return found
