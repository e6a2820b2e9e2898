"""What the database's server did while something was measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from detent.stores.open import open_store

from .databases import server_cpu

FLUSHED_WITHIN = 3.0  # seconds that the sessions of a process that has ended may take to go


@dataclass(frozen=True)
class Counters:
    """So far; None is what this server cannot say."""

    cpu: float = 0.0
    transactions: float | None = None
    writes: float | None = None  # transactions that wrote
    statements: float | None = None
    wal_bytes: float | None = None

    def since(self, before: Counters) -> Counters:
        earlier = asdict(before)
        differences: dict[str, Any] = {
            name: None if value is None or earlier[name] is None else max(0.0, value - earlier[name])
            for name, value in asdict(self).items()
        }
        return Counters(**differences)


class Meter:
    """Reads the counters of one database's server, on a connection of its own that stays open."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind = kind
        self._ask: Callable[[str], Any] | None = None
        self._has_statements = False
        self._asked = 0  # what we ask is counted by the server as well, and taken off again
        if kind in ("postgres", "mysql"):
            connection = open_store(url).driver.connect()
            self._close = connection.close
            cursor = connection.cursor()

            def ask(statement: str) -> Any:
                self._asked += 1
                cursor.execute(statement)
                return cursor.fetchone()

            self._ask = ask
            if kind == "postgres":
                self._has_statements = self._prepare(cursor)

    @staticmethod
    def _prepare(cursor: Any) -> bool:
        """Is pg_stat_statements there?  It counts only if the server has loaded it at its start."""
        cursor.execute("SHOW shared_preload_libraries")
        if "pg_stat_statements" not in cursor.fetchone()[0]:
            return False
        cursor.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        return True

    def close(self) -> None:
        if self._ask is not None:
            self._close()

    def read(self) -> Counters:
        cpu = server_cpu(self.kind)
        if self._ask is None:
            return Counters(cpu)
        if self.kind == "mysql":
            asked = self._status("Questions") - self._asked
            return Counters(cpu, self._status("Com_commit"), statements=asked)
        asked = self._asked
        # Only a transaction that writes gets a number; unlike the statistics, numbers are never late.
        wal, writes, transactions = self._ask(
            "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0'),"
            " CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS text) AS bigint),"
            " xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
        )
        statements = None
        if self._has_statements:
            (statements,) = self._ask(
                "SELECT coalesce(sum(calls), 0) FROM pg_stat_statements WHERE dbid ="
                " (SELECT oid FROM pg_database WHERE datname = current_database())"
            )
            statements = float(statements) - asked
        return Counters(cpu, float(transactions) - asked, float(writes), statements, float(wal))

    def transactions_when_alone(self) -> float | None:
        """The transactions after every other session has gone.

        A session of PostgreSQL tells the server what it did at most once a second, and for certain when it
        ends; so this figure is read last.
        """
        if self._ask is None or self.kind != "postgres":
            return None
        until = time.monotonic() + FLUSHED_WITHIN
        while time.monotonic() < until:
            (others,) = self._ask(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            if others == 0:
                break
            time.sleep(0.05)
        return self.read().transactions

    def _status(self, name: str) -> float:
        assert self._ask is not None
        return float(self._ask(f"SHOW GLOBAL STATUS LIKE '{name}'")[1])
