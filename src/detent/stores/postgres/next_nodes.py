"""The statement that settles nodes and begins what follows them (batch/next_nodes.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...kernel.rows import NewExecution
from ..batch.next_nodes import SettledNode
from ..driver import NodeSettler, Tx, batch, named_to_pyformat
from ..sql.dialect import columns_of
from .dialect import typed

_JSON = ("parents", "begun")


def settler(statement: str) -> NodeSettler:
    """Settles nodes by that statement."""

    def settle(
        tx: Tx, worker: str, nodes: Sequence[SettledNode], payload: str
    ) -> Callable[[], list[tuple[Any, ...]]]:
        return tx.ask(statement, worker=worker, rows=batch(nodes), payload=payload)

    return settle


def next_nodes_statement(channel: str) -> str:
    """Ends of nodes with their followers, fenced; answers which nodes have ended.

    Runs are locked first, in the order of their ids, as everywhere.  A node's parents have settled before
    it began, so that this statement sees their hashes, however long it waits for the lock of the run.
    COALESCE: as in `end`.  Notifies other processes unless the payload is empty.
    """
    plain = tuple(column for column in columns_of(SettledNode) if column not in _JSON)
    begun = columns_of(NewExecution)
    names = ", ".join(begun)
    return named_to_pyformat(f"""
WITH alive AS MATERIALIZED (SELECT id FROM detent_workers WHERE id = :worker FOR KEY SHARE),
     run AS MATERIALIZED (
SELECT x.*, r.state AS was, r.signature AS settled_by, r.irregular AS irregular
  FROM json_to_recordset(CAST(:rows AS json)) AS x({typed(plain)}, parents json, begun json)
  JOIN detent_runs AS r ON r.id = x.run_id
 WHERE EXISTS (SELECT 1 FROM alive)
 ORDER BY r.id COLLATE "C"
   FOR UPDATE OF r),
     ended AS (
UPDATE detent_executions AS t
   SET state = run.state, outcome = run.outcome, result = run.result, error = run.error,
       finished_at = run.finished_at,
       ancestry_hash = '2:' || rtrim(translate(encode(sha256(convert_to(run.head || COALESCE((
           SELECT string_agg('"' || e.ancestry_hash || '"', ',' ORDER BY e.ancestry_hash COLLATE "C")
             FROM json_array_elements_text(run.parents) AS p(node)
            CROSS JOIN LATERAL (
                  SELECT h.ancestry_hash FROM detent_executions AS h
                   WHERE h.run_id = run.run_id AND h.node = p.node AND h.ancestry_hash IS NOT NULL
                   ORDER BY h.attempt DESC LIMIT 1) AS e), '') || ']]', 'UTF8')), 'base64'), '+/', '-_'), '=')
  FROM run
 WHERE t.run_id = run.run_id AND t.node = run.node AND t.attempt = run.attempt
   AND COALESCE(t.state, '') = 'executing' AND t.token = run.token
   AND run.was = 'ready' AND run.settled_by = run.signature AND run.irregular = 0
RETURNING t.run_id, t.node, run.begun),
     begun AS (
INSERT INTO detent_executions ({names})
SELECT {", ".join(f"b.{name}" for name in begun)}
  FROM ended CROSS JOIN LATERAL json_to_recordset(ended.begun) AS b({typed(begun)})),
     told AS MATERIALIZED (
SELECT pg_notify('{channel}', :payload) WHERE CAST(:payload AS text) <> '' AND EXISTS (SELECT 1 FROM ended))
SELECT run_id, node, (SELECT COUNT(*) FROM told) FROM ended""")
