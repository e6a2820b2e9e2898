"""The statements that runs with graphs need."""

from __future__ import annotations

import msgspec

from ...kernel.rows import EndedExecution, GraphPart, Readiness
from .dialect import Dialect, columns_of, insert

WAITING = "('ready', 'timer', 'parked', 'held')"
KEYS = ("run_id", "node", "attempt")
ON_KEY = "t.run_id = x.run_id AND t.node = x.node AND t.attempt = x.attempt"


class GraphStatements(msgspec.Struct, frozen=True):
    """Counting, values, waits for other runs, healing."""

    insert_ended: str
    counts: str
    put_counts: str
    hashes: str
    outputs: str
    past: str
    last_reattempt: str
    finish_rest: str
    withdraw: str
    insert_graphs: str
    graph: str
    delete_graph: str
    set_graph: str
    set_frozen: str
    insert_waits: str
    waits: str
    delete_waits: str
    await_runs: str
    wake_nodes: str
    outdated_runs: str
    unknown_jobs: str
    skip_execution: str
    renew: str


def build_graphs(d: Dialect) -> GraphStatements:
    """Return the statements in the dialect `d`."""
    return GraphStatements(**_settled(d), **_stored(d), **_waits(d), **_changed(d))


def _settled(d: Dialect) -> dict[str, str]:
    """What settled nodes have left, and how many of the predecessors of a node have settled."""
    return dict(
        insert_ended=insert(d, "detent_executions", columns_of(EndedExecution)),
        counts=f"""
SELECT t.run_id, t.node, t.settled, t.required
  FROM {d.rows("run_id", "node")}
  {d.join("detent_readiness", "t")} ON t.run_id = x.run_id AND t.node = x.node""",
        # Absolute values: the transaction that counts holds the run's lock.
        put_counts=d.upsert_unless(
            "detent_readiness",
            columns_of(Readiness),
            ("run_id", "node"),
            ("required", "settled"),
            "required < 0",
        ),
        # What settled nodes have left: the inbox of those that follow.
        hashes=f"""
SELECT e.run_id, e.node, e.attempt, e.ancestry_hash
  FROM {d.rows("run_id", "node")}
  {d.join("detent_executions", "e")}
    ON e.run_id = x.run_id AND e.node = x.node AND e.ancestry_hash IS NOT NULL""",
        outputs=f"""
SELECT e.node, e.attempt, e.result, e.ancestry_hash,
       CASE WHEN e.outcome = 'branched_by_exception' THEN e.error END
  FROM {d.rows("run_id", "node")}
  {d.join("detent_executions", "e")}
    ON e.run_id = x.run_id AND e.node = x.node AND e.ancestry_hash IS NOT NULL""",
        past="SELECT node, attempt, state, outcome, kind FROM detent_executions WHERE run_id = :id",
        # Served by the primary key.
        last_reattempt="""
SELECT error FROM detent_executions
 WHERE run_id = :id AND node = :node AND outcome = 'reattempted_by_exception'
 ORDER BY attempt DESC LIMIT 1""",
        finish_rest=f"""
UPDATE detent_executions {d.by("PRIMARY")}
   SET state = 'canceled', outcome = 'canceled_by_finish', finished_at = :now
 WHERE run_id = :id AND state IN {WAITING}""",
    )


def _stored(d: Dialect) -> dict[str, str]:
    """Graphs that are stored with their runs."""
    return dict(
        insert_graphs=d.insert_new("detent_graphs", columns_of(GraphPart), ("run_id", "part")),
        graph="SELECT body FROM detent_graphs WHERE run_id = :id ORDER BY part",
        delete_graph="DELETE FROM detent_graphs WHERE run_id = :id",
        set_graph="UPDATE detent_runs SET signature = :signature, irregular = :irregular WHERE id = :id",
        set_frozen="UPDATE detent_runs SET frozen_at = :frozen_at WHERE id = :id",
    )


def _waits(d: Dialect) -> dict[str, str]:
    """Nodes that wait for other runs."""
    return dict(
        insert_waits=d.insert_new("detent_waits", ("target", "run_id", "node"), ("target", "run_id", "node")),
        waits=f"""
SELECT w.run_id, w.node FROM {d.rows("target")} {d.join("detent_waits", "w")} ON w.target = x.target""",
        delete_waits=d.delete("detent_waits", ("target",)),
        await_runs=d.update(
            "detent_runs", ("id",), "watched = CASE WHEN t.watched IN (0, 2) THEN 2 ELSE 3 END", "t.id = x.id"
        ),
        # The row's own lock is enough: a pause or a cancel comes before it or after it.
        wake_nodes=d.update(
            "detent_executions",
            ("run_id", "node"),
            "scheduled_for = :now, state = CASE t.state WHEN 'held' THEN 'held' ELSE 'ready' END",
            "t.run_id = x.run_id AND t.node = x.node AND t.state IN ('timer', 'parked', 'held')",
        ),
    )


def _changed(d: Dialect) -> dict[str, str]:
    """What a deploy or an operator changes in the graph of a run."""
    return dict(
        # Only executions that were not claimed since they were read, or that the caller holds.
        withdraw=d.update(
            "detent_executions",
            (*KEYS, "finished_at", "mine"),
            "state = 'canceled', outcome = 'bypassed_by_deploy', finished_at = x.finished_at",
            f"{ON_KEY} AND (t.state IN {WAITING} OR (x.mine = 1 AND t.state = 'executing'))",
        ),
        # Runs of a class that were last settled under another graph.  Served by detent_runs_signature.
        outdated_runs="""
SELECT id FROM detent_runs
 WHERE signature IS NOT NULL AND signature <> :signature AND type = :type AND kind = 'class'
   AND frozen_at IS NULL AND state = 'ready' AND id > :behind
   AND (pin IS NULL OR pin = :version)
 ORDER BY id LIMIT :limit""",
        # Nodes that are due for long, and that no worker can run.  Pinned runs wait for their version.
        unknown_jobs=f"""
SELECT e.run_id, e.node, e.attempt, e.job
  FROM detent_executions e {d.by("detent_executions_ready")}
 WHERE e.state = 'ready'
   AND e.kind = 'node'
   AND e.scheduled_for <= :before
   AND e.pin IS NULL
   AND NOT {d.one_of("e.job", "job")}
 ORDER BY e.scheduled_for
 LIMIT :limit""",
        renew=d.update(
            "detent_executions",
            (*KEYS, "job", "queue", "precedence", "input", "queue_key"),
            "job = x.job, queue = x.queue, precedence = x.precedence, input = x.input,"
            " queue_key = x.queue_key",
            f"{ON_KEY} AND t.state IN {WAITING}",
        ),
        skip_execution=f"""
UPDATE detent_executions
   SET state = 'skipped', outcome = 'skipped_by_operator', result = :result, finished_at = :now,
       ancestry_hash = :digest
 WHERE run_id = :id AND node = :node AND attempt = :attempt AND state IN {WAITING}""",
    )
