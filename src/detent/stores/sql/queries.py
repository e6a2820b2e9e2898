"""The SQL of listings, of attributes, of what is overdue, and of retention; in the style of statements.py.

A listing is put together from these parts (listing.py): one index leads, and gives
the order, newest first; what else is asked is a condition on each run that it meets.
"""

from __future__ import annotations

import msgspec

from ...kernel.rows import ExecutionRow
from .dialect import Dialect, columns_of
from .statements import ACTIVE, EXECUTING, whole_run

# Everything that belongs to a run, and the index by which MySQL finds it there.  A new table with a column
# run_id gets a line here, and goes when its run goes.
TABLES_OF_A_RUN = {
    "detent_executions": "PRIMARY",
    "detent_steps": "PRIMARY",
    "detent_messages": "detent_messages_id",
    "detent_readiness": "PRIMARY",
    "detent_history": "detent_history_run",
    "detent_attributes": "PRIMARY",
    "detent_deadlines": "PRIMARY",
    "detent_graphs": "PRIMARY",
    "detent_waits": "detent_waits_run",
    "detent_events": "PRIMARY",
    "detent_inputs": "detent_inputs_id",
    "detent_snapshots": "PRIMARY",
    "detent_streams": "PRIMARY",
}
FINAL = "('finished', 'failed', 'canceled')"
# A canceled run is over, and may still be undoing what it did.
# The first run of a chain that has not ended is kept: its id is the address of the chain.
_IDLE = f"""NOT EXISTS (SELECT 1 FROM detent_executions e
                    WHERE e.run_id = r.id AND e.state IN {ACTIVE})
   AND COALESCE((SELECT k.state FROM detent_chains c JOIN detent_runs k ON k.id = c.current_run
                  WHERE c.id = r.chain AND c.first_run = r.id), '') NOT IN ('ready', 'paused')"""
# The events of a decider are the record of what happened: they do not expire.
_EXPIRED = f"r.kind <> 'decider' AND r.state IN {FINAL} AND r.finished_at < :before AND {_IDLE}"


class Queries(msgspec.Struct, frozen=True):
    """All of them; a dialect that lacks one does not type-check."""

    insert_attributes: str
    insert_new_attributes: str
    delete_attributes: str
    # Parts of a listing: what is selected, where it begins, what is asked
    whole_run: str
    by_created: str
    by_type: str
    by_state: str
    by_parent: str
    by_hero: str
    by_attribute: str
    by_executing: str
    by_overdue: str
    picked: str
    beyond: str
    beyond_attribute: str
    # Overdue work
    overdue: str
    executing: str
    executions_of: str
    execution_states: str
    waiting_steps: str
    messages_of: str
    published_by: str
    # Statistics
    count_state: str
    count_finished: str
    backlog: str
    recently_ended: str
    # Retention
    expired: str
    ancestors: str
    removable: str
    busy: str
    remove: tuple[str, ...]


def build_queries(d: Dialect) -> Queries:
    """Return the queries in the dialect `d`."""
    return Queries(
        **_attributes(d),
        **_listing(d),
        **_of_runs(d),
        **_statistics(d),
        **_retention(d),
        remove=(
            *(d.delete(table, ("run_id",), index) for table, index in TABLES_OF_A_RUN.items()),
            d.delete("detent_chains", ("current_run",), "detent_chains_current"),
            d.delete("detent_runs", ("id",)),
        ),
    )


def _attributes(d: Dialect) -> dict[str, str]:
    """Attributes of runs."""
    columns = ("run_id", "name", "value", "kind", "created_at")
    names = ", ".join(columns)
    return dict(
        insert_attributes=f"""
INSERT INTO detent_attributes ({names}) SELECT {names} FROM {d.rows(*columns)}""",
        insert_new_attributes=d.insert_new("detent_attributes", columns, ("run_id", "name")),
        delete_attributes=d.delete("detent_attributes", ("run_id", "name")),
    )


def _listing(d: Dialect) -> dict[str, str]:
    """The parts of a listing: what is selected, the index that leads, the place where it continues."""

    def runs(index: str) -> str:
        return f"FROM detent_runs r {d.by(index)}"

    return dict(
        whole_run=f"SELECT {whole_run(d)}",
        by_created=runs("detent_runs_created"),
        by_type=runs("detent_runs_type"),
        by_state=runs("detent_runs_state"),
        by_parent=runs("detent_runs_parent"),
        by_hero=runs("detent_runs_heroes"),
        by_attribute=f"""
  FROM detent_attributes a {d.by("detent_attributes_value")}
  {d.join("detent_runs", "r")} ON r.id = a.run_id""",
        # As many as workers execute at this moment: few enough to sort.  Of each run the first node counts:
        # for a DISTINCT, SQLite would read the whole table in the order of its key.
        by_executing=f"""
  FROM detent_executions p {d.by("detent_executions_ready")}
  {d.join("detent_runs", "r")} ON r.id = p.run_id AND p.state = 'executing' AND p.worker > ''
   AND NOT EXISTS (SELECT 1 FROM detent_executions o
                    WHERE o.run_id = p.run_id AND o.state = 'executing' AND o.node < p.node)""",
        # Reads all that is ready (on MySQL, what is overdue): an index for this alone would cost every claim.
        by_overdue=f"""
  FROM (SELECT e.run_id FROM detent_executions e {d.by("detent_executions_timer")}
         WHERE e.state = 'ready' AND e.scheduled_for <= :overdue
         UNION
        SELECT e.run_id FROM detent_executions e {d.by("detent_executions_timer")}
         WHERE e.state = 'timer' AND e.scheduled_for <= :overdue) AS x
  {d.join("detent_runs", "r")} ON r.id = x.run_id""",
        # Runs that an inner listing has picked (listing.py).
        picked=f"{d.join('detent_runs', 'r')} ON r.id = picked.id",
        beyond=d.beyond("r.created_at", "r.id", "<"),
        beyond_attribute=d.beyond("a.created_at", "a.run_id", "<"),
    )


def _of_runs(d: Dialect) -> dict[str, str]:
    """What the runs of a page do and wait for."""
    return dict(
        overdue=f"""
SELECT e.run_id, e.node, e.job, e.queue, e.scheduled_for
  FROM {d.rows("run_id")}
  {d.join("detent_executions", "e")} ON e.run_id = x.run_id
 WHERE e.state IN ('ready', 'timer') AND e.scheduled_for <= :overdue
 ORDER BY e.scheduled_for, e.node""",
        executing=f"""
SELECT e.worker, COUNT(*) FROM detent_executions e {d.by("detent_executions_ready")}
 WHERE e.state = 'executing'
 GROUP BY e.worker""",
        # Of these runs, by the key; conditions follow (listing.py).
        execution_states=f"""
SELECT DISTINCT e.run_id, e.state
  FROM {d.rows("id")}
  {d.join("detent_executions", "e")} ON e.run_id = x.id
 WHERE e.state IN {ACTIVE}""",
        executions_of=f"""
SELECT {", ".join(f"e.{column}" for column in columns_of(ExecutionRow))}
  FROM {d.rows("id")}
  {d.join("detent_executions", "e")} ON e.run_id = x.id""",
        # What these runs wait for: sleeps and messages, by the key of the journal.
        waiting_steps=f"""
SELECT s.run_id, s.kind, s.name, s.wake_at
  FROM {d.rows("id")}
  {d.join("detent_steps", "s")} ON s.run_id = x.id AND s.state = 'waiting'""",
        # Served by the unique key (run_id, message_id).  A run has few messages: the reader sorts them.
        messages_of="""
SELECT seq, message_id, name, value, sent_at, consumed
  FROM detent_messages
 WHERE run_id = :id
 LIMIT :limit""",
        # Served by the key of the journal.
        published_by="""
SELECT s.name, s.result, s.seq
  FROM detent_steps s
 WHERE s.run_id = :id AND s.kind IN ('publish', 'published')
 LIMIT :limit""",
    )


def _statistics(d: Dialect) -> dict[str, str]:
    """Bounded figures for people."""
    return dict(
        # Bounded: a count of a million rows takes too long for a page.  A state is added by statistics.py.
        count_state=f"SELECT 1 FROM detent_runs r {d.by('detent_runs_state')}",
        # Served by detent_runs_finished.
        count_finished=f"""
SELECT COUNT(*) FROM (
    SELECT 1 FROM detent_runs r {d.by("detent_runs_finished")}
     WHERE r.finished_at IS NOT NULL AND r.finished_at >= :since AND r.finished_at < :until
     LIMIT :most) AS bounded""",
        # In the order of claiming, by the index that claims use.
        backlog=f"""
SELECT e.run_id, e.node, e.queue, e.scheduled_for
  FROM detent_executions e {d.by("detent_executions_ready")}
 WHERE e.state = 'ready' AND e.queue = :queue
 ORDER BY e.precedence, e.scheduled_for, e.run_id
 LIMIT :limit""",
        recently_ended=f"""
SELECT r.id, r.type, r.queue, r.state, r.created_at, r.finished_at
  FROM detent_runs r {d.by("detent_runs_finished")}
 WHERE r.finished_at IS NOT NULL AND r.finished_at >= :since
 ORDER BY r.finished_at DESC, r.id DESC
 LIMIT :limit""",
    )


def _retention(d: Dialect) -> dict[str, str]:
    """What may be removed."""
    return dict(
        # What ended too long ago, longest ago first, behind a place; not all of it may go yet.
        # Served by detent_runs_finished.
        expired=f"""
SELECT r.finished_at, r.id, r.parent,
       CASE WHEN p.id IS NULL THEN 1 ELSE 0 END,
       CASE WHEN {_IDLE} THEN 1 ELSE 0 END
  FROM detent_runs r {d.by("detent_runs_finished")}
  LEFT JOIN detent_runs p ON p.id = r.parent
 WHERE r.finished_at IS NOT NULL
   AND r.finished_at < :before
   AND {d.beyond("r.finished_at", "r.id", ">")}
 ORDER BY r.finished_at, r.id
 LIMIT :limit""",
        ancestors=f"""
SELECT r.id, r.parent, CASE WHEN {_EXPIRED} THEN 1 ELSE 0 END
  FROM {d.rows("id")}
  {d.join("detent_runs", "r")} ON r.id = x.id""",
        # Runs that may be removed now, locked.  Runs locked by others (a resume, another sweep) are skipped.
        removable=f"""
SELECT r.id
  FROM {d.rows("id")}
  {d.join("detent_runs", "r")} ON r.id = x.id
 WHERE {_EXPIRED}
   AND NOT EXISTS (SELECT 1 FROM detent_runs p WHERE p.id = r.parent)
 ORDER BY r.id {d.bytewise}
 {d.lock("r")} {d.skip_locked}""",
        # Those of them that still have something to do.
        busy=f"""
SELECT x.id FROM {d.rows("id")}
  {d.join("detent_executions", "e")} ON e.run_id = x.id AND e.state IN {ACTIVE}
 LIMIT 1""",
    )


# What a listing may ask of each run.  States are spelled out: only so can a planner see that a partial index
# holds them, and SQLite wants to see that index's own condition.  IS TRUE keeps a condition a condition: as a
# semi-join, MariaDB would begin with it, and sort.
STATES = {
    "ready": f"r.state = 'ready' AND r.state <> 'finished' AND NOT {EXECUTING}",
    "performing": f"r.state = 'ready' AND ({EXECUTING}) IS TRUE",
    "paused": "r.state = 'paused' AND r.state <> 'finished'",
    "finished": "r.state = 'finished'",
    "failed": "r.state = 'failed' AND r.state <> 'finished'",
    "canceled": "r.state = 'canceled' AND r.state <> 'finished'",
    "active": "r.state IN ('ready', 'paused')",
}
# Two states have no common order in an index: each is listed for itself.
PARTS_OF_ACTIVE = ("r.state = 'ready' AND r.state <> 'finished'", STATES["paused"])
HAS_ATTRIBUTE = """(EXISTS (SELECT 1 FROM detent_attributes o
          WHERE o.run_id = r.id AND o.name = :name{n} AND o.value = :value{n})) IS TRUE"""
HAS_OVERDUE = """(EXISTS (SELECT 1 FROM detent_executions e
          WHERE e.run_id = r.id AND e.state IN ('ready', 'timer') AND e.scheduled_for <= :overdue)) IS TRUE"""
