"""How PostgreSQL unfolds a batch, joins it, and writes from it; and its statements for quick batches."""

from __future__ import annotations

from collections.abc import Iterable

from ...kernel.rows import Step
from ..batch.fast_paths import Beginning, End
from ..driver import STOPPED_AFTER, named_to_pyformat
from ..sql.dialect import OnConflict, columns_of, kind_of
from ..sql.statements import ACTIVE_HERO, FINAL_STEP

_TYPES = {"int": "bigint", "long": "text", "text": "text"}
HELD_LOCKS = (
    "SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks"
    " WHERE locktype = 'advisory' AND granted"
    "   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


class PostgresDialect(OnConflict):
    server_now = "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS bigint)"
    skip_locked = "SKIP LOCKED"
    bytewise = 'COLLATE "C"'
    # Conflicts with deleting the row, not with the heartbeat's update of it.
    fence = "FOR KEY SHARE"
    hurry = f", set_config('idle_in_transaction_session_timeout', '{STOPPED_AFTER}s', true)"
    dead = ""
    died = "e.finished_at"
    update_returns_joined = True
    hero = ACTIVE_HERO

    def first_of_each(self, columns: str, rows: str, found: str) -> str:
        # Not a join, for which a planner could read all executions.
        return f"SELECT {columns} FROM {rows} CROSS JOIN LATERAL (SELECT h.* {found}) AS e"

    def held(self, lock_no: str) -> str:
        return f"CASE WHEN {lock_no} IN ({HELD_LOCKS}) THEN 1 ELSE 0 END"

    def lock(self, alias: str) -> str:
        return f"FOR UPDATE OF {alias}"

    def rows(self, *columns: str, batch: str = "rows") -> str:
        return f"json_to_recordset(CAST(:{batch} AS json)) AS x({typed(columns)})"

    def join(self, table: str, alias: str, index: str = "PRIMARY") -> str:
        return f"JOIN {table} AS {alias}"

    def one_of(self, column: str, field: str, *, batch: str = "rows") -> str:
        return f"{column} = ANY(ARRAY(SELECT x.{field} FROM {self.rows(field, batch=batch)}))"

    def same_key(self, one: str, other: str) -> str:
        # A range, so that the order is that of the index by key: an equal key would be no part of the order,
        # and a planner without statistics takes the index that begins with the precedence.
        return f"{one}.queue_key >= {other}.queue_key AND {one}.queue_key <= {other}.queue_key"

    def delete(self, table: str, columns: tuple[str, ...], index: str = "PRIMARY") -> str:
        same = " AND ".join(f"t.{c} = x.{c}" for c in columns)
        return f"DELETE FROM {table} AS t USING {self.rows(*columns)} WHERE {same}"

    def gathered(self, name: str, *values: str) -> str:
        return f"CAST(json_object_agg({name}, json_build_array({', '.join(values)})) AS text)"


def typed(columns: Iterable[str]) -> str:
    """The columns of a batch with their types."""
    return ", ".join(f"{column} {_TYPES[kind_of(column)]}" for column in columns)


def record(dialect: PostgresDialect) -> str:
    """Journal entries of one worker, fenced, in one statement and so in one round trip."""
    columns = columns_of(Step)
    names = ", ".join(columns)
    changes = ", ".join(f"{c} = excluded.{c}" for c in columns[2:])
    return named_to_pyformat(f"""
WITH alive AS (SELECT id FROM detent_workers WHERE id = :worker FOR KEY SHARE)
INSERT INTO detent_steps ({names})
SELECT {names} FROM {dialect.rows(*columns)}
 WHERE EXISTS (SELECT 1 FROM alive)
    ON CONFLICT (run_id, step_key) DO UPDATE SET {changes}
 WHERE detent_steps.state NOT IN {FINAL_STEP}""")


def start(dialect: PostgresDialect) -> str:
    """Functions that begin, each with its execution, in one statement; answers how many.

    Writes nothing if a worker is to hold them from the beginning and is no longer alive.  Notifies other
    processes unless the payload is empty.  Columns that are not named here get their defaults.
    """
    return named_to_pyformat(f"""
WITH alive AS MATERIALIZED (SELECT id FROM detent_workers WHERE id = :worker FOR KEY SHARE),
     x AS MATERIALIZED (
SELECT x.*, CASE WHEN x.token IS NOT NULL THEN 1 ELSE 0 END AS leased
  FROM {dialect.rows(*columns_of(Beginning))}
 WHERE CAST(:worker AS text) = '' OR EXISTS (SELECT 1 FROM alive)),
     runs AS (
INSERT INTO detent_runs (id, type, kind, queue, priority, input, created_at, versions)
SELECT id, type, 'function', queue, priority, input, created_at, versions FROM x),
     mains AS (
INSERT INTO detent_executions (run_id, node, attempt, kind, job, queue, precedence, state, created_at,
                               scheduled_for, worker, token, deliveries, started_at)
SELECT id, 'main', 1, 'main', type, queue, -priority, CASE leased WHEN 1 THEN 'executing' ELSE 'ready' END,
       created_at, created_at, CASE leased WHEN 1 THEN CAST(:worker AS text) END, token, leased,
       CASE leased WHEN 1 THEN created_at END
  FROM x
RETURNING 1),
     told AS MATERIALIZED (SELECT pg_notify(:channel, :payload) WHERE CAST(:payload AS text) <> '')
SELECT (SELECT COUNT(*) FROM mains), (SELECT COUNT(*) FROM told)""")


def end(dialect: PostgresDialect) -> str:
    """Ends of functions and of their runs, fenced, in one statement; answers which runs have ended.

    Only runs that are ready, and whose end no node of another run waits for: the others go the long way.
    Notifies other processes if one of them waits for one of the runs.  Runs are locked first, in the order
    of their ids, as everywhere.  COALESCE keeps a planner, whose statistics know of no execution in this
    state, from comparing all that execute with each end: it takes the primary key.
    """
    return named_to_pyformat(f"""
WITH alive AS MATERIALIZED (SELECT id FROM detent_workers WHERE id = :worker FOR KEY SHARE),
     run AS MATERIALIZED (
SELECT x.*, r.state AS was, r.watched AS watched
  FROM {dialect.rows(*columns_of(End))}
  JOIN detent_runs AS r ON r.id = x.run_id
 WHERE EXISTS (SELECT 1 FROM alive)
 ORDER BY r.id COLLATE "C"
   FOR UPDATE OF r),
     ended AS (
UPDATE detent_executions AS t
   SET state = run.state, outcome = run.outcome, result = run.result, error = run.error,
       finished_at = run.finished_at, ancestry_hash = NULL
  FROM run
 WHERE t.run_id = run.run_id AND t.node = run.node AND t.attempt = run.attempt
   AND COALESCE(t.state, '') = 'executing' AND t.token = run.token AND run.was = 'ready' AND run.watched < 2
RETURNING t.run_id, run.run_state, run.result, run.error, run.finished_at, run.watched)
UPDATE detent_runs AS r
   SET state = ended.run_state, result = ended.result, error = ended.error, finished_at = ended.finished_at
  FROM ended WHERE r.id = ended.run_id
RETURNING r.id, CASE ended.watched WHEN 1 THEN pg_notify(:channel, :payload) END""")
