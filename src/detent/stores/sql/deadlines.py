"""The statements that runs with a deadline need."""

from __future__ import annotations

import msgspec

from .dialect import Dialect, insert


class DeadlineStatements(msgspec.Struct, frozen=True):
    insert: str
    due: str
    states: str
    waiting: str
    forget: str
    postpone: str
    next: str


def build_deadlines(d: Dialect) -> DeadlineStatements:
    """Return the statements in the dialect `d`."""
    return DeadlineStatements(
        insert=insert(d, "detent_deadlines", ("run_id", "deadline")),
        # Those that another worker is looking at are left to it.  Served by detent_deadlines_due.
        due=f"""
SELECT t.run_id
  FROM detent_deadlines t {d.by("detent_deadlines_due")}
 WHERE t.deadline <= :now
 ORDER BY t.deadline, t.run_id
 LIMIT :limit
 {d.lock("t")} {d.skip_locked}""",
        states=f"""
SELECT r.id, r.state
  FROM {d.rows("id")}
  {d.join("detent_runs", "r")} ON r.id = x.id""",
        # Rows that another transaction has locked are skipped, so this never waits.
        waiting=f"""
SELECT e.run_id, e.node, e.attempt, e.kind, e.job, e.queue, e.pin
  FROM {d.rows("run_id")}
  {d.join("detent_executions", "e")} ON e.run_id = x.run_id
 WHERE e.state IN ('ready', 'timer', 'parked')
 ORDER BY e.run_id {d.bytewise}, e.node {d.bytewise}
 {d.lock("e")} {d.skip_locked}""",
        forget=d.delete("detent_deadlines", ("run_id",)),
        postpone=d.update(
            "detent_deadlines", ("run_id", "deadline"), "deadline = x.deadline", "t.run_id = x.run_id"
        ),
        # Runs that have ended need no deadline.
        next="""
SELECT MIN(t.deadline)
  FROM detent_deadlines t
  JOIN detent_runs r ON r.id = t.run_id
 WHERE r.state = 'ready'""",
    )
