"""The statements of start keys: dedup windows and debounces."""

from __future__ import annotations

import msgspec

from .dialect import Dialect

KEY = ("mode", "type", "start_key")
COLUMNS = (*KEY, "last_run", "first_at", "until")


class StartKeyStatements(msgspec.Struct, frozen=True):
    put: str
    lock: str
    set: str
    lock_executions: str
    withdraw_executions: str
    withdraw_readiness: str
    withdraw_graphs: str
    withdraw_attributes: str
    withdraw_deadlines: str
    withdraw_run: str
    watch: str
    expired: str
    forget: str


def build_start_keys(d: Dialect) -> StartKeyStatements:
    """Return the statements in the dialect `d`."""
    return StartKeyStatements(
        put=d.insert_new("detent_start_keys", COLUMNS, KEY),
        lock=f"""
SELECT k.last_run, k.first_at, k.until
  FROM detent_start_keys k
 WHERE k.mode = :mode AND k.type = :type AND k.start_key = :start_key
 {d.lock("k")}""",
        set="""
UPDATE detent_start_keys SET last_run = :run_id, first_at = :first_at, until = :until
 WHERE mode = :mode AND type = :type AND start_key = :start_key""",
        lock_executions=f"""
SELECT e.state, e.deliveries
  FROM detent_executions e {d.by("PRIMARY")}
 WHERE e.run_id = :id
 ORDER BY e.node {d.bytewise}, e.attempt
 {d.lock("e")}""",
        # What a start has written, of a run that has not begun.  Messages and history stay.
        withdraw_executions="DELETE FROM detent_executions WHERE run_id = :id",
        withdraw_readiness="DELETE FROM detent_readiness WHERE run_id = :id",
        withdraw_graphs="DELETE FROM detent_graphs WHERE run_id = :id",
        withdraw_attributes="DELETE FROM detent_attributes WHERE run_id = :id",
        withdraw_deadlines="DELETE FROM detent_deadlines WHERE run_id = :id",
        withdraw_run="DELETE FROM detent_runs WHERE id = :id",
        watch="SELECT watched FROM detent_runs WHERE id = :id",
        # Rows that no start needs any more.  A debounce is needed as long as its run has not begun.
        expired=f"""
SELECT k.mode, k.type, k.start_key
  FROM detent_start_keys k {d.by("detent_start_keys_until")}
 WHERE k.until < :before
   AND NOT EXISTS (SELECT 1 FROM detent_executions e
                    WHERE e.run_id = k.last_run AND e.deliveries = 0
                      AND e.state IN ('ready', 'timer', 'parked', 'held'))
 ORDER BY k.until
 LIMIT :limit
 {d.lock("k")} {d.skip_locked}""",
        forget=d.delete("detent_start_keys", KEY),
    )
