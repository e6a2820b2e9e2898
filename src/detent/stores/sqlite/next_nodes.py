"""Ends of nodes with their followers on SQLite (batch/next_nodes.py), with bound values.

SQLite has no statement that updates some rows and inserts others.  So there are three, in a transaction: one
reads which nodes are as the plan assumes, with the hashes of their parents; one ends them, one begins
what follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ...kernel.ancestry import hash_of
from ...kernel.rows import NewExecution
from ..batch.fast_paths import Unexpected
from ..batch.next_nodes import SettledNode
from ..driver import Tx
from ..driver import batch as as_json
from ..sql.dialect import columns_of
from ..sql.graphs import ON_KEY
from .quick_batches import BoundRows

_DECODER = msgspec.json.Decoder(list[tuple[str, str, list[str | None]]])
_BEGUN = columns_of(NewExecution)

# One row with all of them: sqlite3 waits for Python's lock after each.  (`+`: by the primary key.)
CHECK = BoundRows(
    """
SELECT json_group_array(json_array(x.run_id, x.node, json((
           SELECT json_group_array((
                  SELECT h.ancestry_hash FROM detent_executions AS h
                   WHERE h.run_id = x.run_id AND h.node = p.value AND h.ancestry_hash IS NOT NULL
                   ORDER BY h.attempt DESC LIMIT 1))
             FROM json_each(x.parents) AS p))))
  FROM {rows}
 CROSS JOIN detent_runs AS r ON r.id = x.run_id
 CROSS JOIN detent_executions AS t ON t.run_id = x.run_id AND t.node = x.node AND t.attempt = x.attempt
 WHERE +t.state = 'executing' AND t.token = x.token
   AND +r.state = 'ready' AND +r.signature = x.signature AND r.irregular = 0
   AND EXISTS (SELECT 1 FROM detent_workers WHERE id = ?)""",
    *("run_id", "node", "attempt", "token", "signature", "parents"),
)

_END = """
UPDATE detent_executions AS t
   SET state = x.state, outcome = x.outcome, result = x.result, error = x.error,
       finished_at = x.finished_at, ancestry_hash = x.ancestry_hash"""

END = BoundRows(
    f"{_END} FROM {{rows}} WHERE {ON_KEY}",
    *("run_id", "node", "attempt", "state", "outcome", "result", "error", "finished_at", "ancestry_hash"),
    single=f"{_END} WHERE {ON_KEY}",
)

BEGIN = BoundRows(
    f"""
INSERT INTO detent_executions ({", ".join(_BEGUN)})
SELECT {", ".join(_BEGUN)} FROM {{rows}}
 WHERE x.run_id IS NOT NULL""",
    *_BEGUN,
)


def settle_nodes(
    tx: Tx, worker: str, nodes: Sequence[SettledNode], payload: str
) -> Callable[[], list[tuple[str, str]]]:
    """End nodes and begin what follows them; answers which were as their plans assume."""
    hashes = _check(tx, worker, nodes)
    fit = [node for node in nodes if (node.run_id, node.node) in hashes]
    _write(tx, fit, hashes)
    if payload and fit:
        tx.driver.notify(tx, payload)
    return lambda: list(hashes)


def _check(tx: Tx, worker: str, nodes: Sequence[SettledNode]) -> dict[tuple[str, str], list[str]]:
    """The hashes of the parents of each node that may be settled."""
    values: list[Any] = []
    for n in nodes:
        values += (n.run_id, n.node, n.attempt, n.token, n.signature, as_json(n.parents))
    texts = [row[0] for row in CHECK.query(tx.connection, values, worker)]
    return {
        (run, node): [one for one in hashes if one is not None]
        for text in texts
        for run, node, hashes in _DECODER.decode(text)
    }


def _write(tx: Tx, nodes: Sequence[SettledNode], hashes: dict[tuple[str, str], list[str]]) -> None:
    ended: list[Any] = []
    begun: list[Any] = []
    for n in nodes:
        # (`str`: a member of an enumeration takes five times as long to bind.)
        ended += (n.run_id, n.node, n.attempt, str(n.state), str(n.outcome), n.result, n.error)
        ended += (n.finished_at, hash_of(n.head, hashes[n.run_id, n.node]))
        for row in n.begun:
            row.state = str(row.state)
            begun += msgspec.structs.astuple(row)
    if END.run(tx.connection, ended) != len(nodes):
        raise Unexpected
    BEGIN.run(tx.connection, begun)
