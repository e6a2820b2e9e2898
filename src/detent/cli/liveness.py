"""Which workers live, as another worker would see it."""

from __future__ import annotations

import time

from ..kernel.model import WorkerRow
from ..stores.sql import SqlStore


def living(store: SqlStore) -> list[tuple[WorkerRow, bool]]:
    """Every worker that is in office, and whether its process lives."""
    rows = store.workers()
    if not rows:
        return []
    now = store.pulse("", now=time.time_ns() // 1000).now
    office = store.driver.office()
    try:
        vacant = office.vacant(rows)
    finally:
        office.leave()
    return [(row, row.id not in vacant and row.lease_until >= now) for row in rows]
