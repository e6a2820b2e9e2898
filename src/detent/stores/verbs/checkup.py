"""What a doctor asks of a database: its schema, its durability, its haste, what waits in it."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from ...ids import uuid7
from ..driver import Listener, news
from ..migrate import migrations
from ..store import Store

_WAITING = """
SELECT job, queue, state, COUNT(*), MIN(scheduled_for)
  FROM detent_executions
 WHERE state IN ('ready', 'timer', 'parked', 'held', 'executing')
 GROUP BY job, queue, state
 ORDER BY job, queue, state"""

# What must be so, or a commit that was reported done may be lost with the machine's power.
_DURABILITY: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {
    "sqlite": (
        "SELECT 'synchronous', CASE WHEN synchronous >= 2 THEN 'FULL' ELSE 'NORMAL' END"
        "  FROM pragma_synchronous",
        {"synchronous": ("FULL",)},
    ),
    "postgres": (
        "SELECT name, setting FROM pg_settings WHERE name IN ('fsync', 'synchronous_commit')",
        {"fsync": ("on",), "synchronous_commit": ("on", "remote_write", "remote_apply", "local")},
    ),
    "mysql": (
        "SELECT 'innodb_flush_log_at_trx_commit', @@innodb_flush_log_at_trx_commit",
        {"innodb_flush_log_at_trx_commit": ("1",)},
    ),
}
_HEARING = 1.5  # seconds that a listener waits without a call


class Waiting(msgspec.Struct, frozen=True):
    """Executions that are not over, of one job in one queue."""

    job: str
    queue: str
    state: str
    count: int
    oldest: int | None


class Durability(msgspec.Struct, frozen=True):
    """Settings that decide whether a commit survives a power cut."""

    found: Mapping[str, str]
    wanted: Mapping[str, str]  # what should be changed, and to what


def schema(store: Store) -> int:
    """The schema's version; raises SchemaTooOld, SchemaTooNew or MigrationChanged when it is not ours."""
    store.check_schema()
    return migrations(store.dialect)[-1].version


def waiting(store: Store) -> list[Waiting]:
    """What is not over yet, summed up."""
    with store.transaction() as tx:
        return [Waiting(*row) for row in tx.query(_WAITING)]


def durability(store: Store) -> Durability:
    """Whether this database keeps what it has committed."""
    statement, wanted = _DURABILITY[store.dialect]
    with store.transaction() as tx:
        found = {str(name): str(value) for name, value in tx.query(statement)}
    bad = {name: good[0] for name, good in wanted.items() if found.get(name) not in good}
    return Durability(MappingProxyType(found), MappingProxyType(bad))


def commit_seconds(store: Store, *, tries: int = 5) -> float:
    """How long a tiny transaction takes.  It writes a row and deletes it again before the commit."""
    return statistics.median(_commit(store) for _ in range(tries))


def _commit(store: Store) -> float:
    id = f"doctor-{uuid7()}"
    began = time.perf_counter()
    with store.transaction() as tx:
        tx.run(
            tx.sql.insert_worker,
            id=id,
            name="doctor",
            pid=0,
            queues="",
            concurrency=0,
            lock_no=0,
            now=0,
            lease_until=0,
            jobs="[]",
            version="",
            drain_at=None,
        )
        tx.run(tx.sql.delete_worker, id=id)
    return time.perf_counter() - began


def wake_up_seconds(store: Store, other: Store) -> float | None:
    """How long it takes until `store` hears that `other` has news; None when it does not hear it."""
    listener = store.driver.listener()
    try:
        for _ in range(4):  # the first waits of some are short
            listener.wait(0.02)
        heard: list[float] = []
        ear = threading.Thread(target=lambda: heard.append(_hear(listener)), daemon=True)
        ear.start()
        time.sleep(0.1)  # until it listens
        began = time.perf_counter()
        with other.transaction() as tx:
            other.driver.notify(tx, news(work=False))
        ear.join(timeout=2 * _HEARING)
        took = heard[0] - began if heard else _HEARING
        return took if took < _HEARING / 2 else None
    finally:
        listener.close()


def _hear(listener: Listener) -> float:
    listener.wait(_HEARING)
    return time.perf_counter()
