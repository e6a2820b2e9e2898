"""The statements that schedules need."""

from __future__ import annotations

import msgspec

from ...kernel.schedules import ScheduleRow
from .dialect import Dialect, columns_of

_ALL = columns_of(ScheduleRow)


class ScheduleStatements(msgspec.Struct, frozen=True):
    page: str
    one: str
    lock: str
    insert: str
    save: str
    delete: str
    due: str
    next_due: str
    seen: str
    of_code: str
    run_states: str


def build_schedules(d: Dialect) -> ScheduleStatements:
    """Return the statements in the dialect `d`."""
    row = ", ".join(f"s.{c}" for c in _ALL)
    changes = ", ".join(f"{c} = x.{c}" for c in _ALL if c != "name")
    return ScheduleStatements(
        page=f"""
SELECT {row} FROM detent_schedules s
 WHERE s.name > :after
 ORDER BY s.name {d.bytewise}
 LIMIT :limit""",
        one=f"SELECT {row} FROM detent_schedules s WHERE s.name = :name",
        lock=f"""
SELECT {row} FROM detent_schedules s {d.by("PRIMARY")} WHERE s.name = :name
 {d.lock("s")}""",
        insert=d.insert_new("detent_schedules", _ALL, ("name",)),
        save=d.update("detent_schedules", _ALL, changes, "t.name = x.name"),
        delete="DELETE FROM detent_schedules WHERE name = :name",
        # Those that another worker is firing are left to it.  Served by detent_schedules_due.
        due=f"""
SELECT {row}
  FROM detent_schedules s {d.by("detent_schedules_due")}
 WHERE s.due_at <= :now
   AND {d.one_of("s.served_by", "served_by")}
 ORDER BY s.due_at, s.name
 LIMIT :limit
 {d.lock("s")} {d.skip_locked}""",
        next_due=f"""
SELECT MIN(s.due_at)
  FROM detent_schedules s
 WHERE s.due_at IS NOT NULL
   AND {d.one_of("s.served_by", "served_by")}""",
        # The version of the code that the row has, is still there.
        seen=d.update(
            "detent_schedules",
            ("name", "fingerprint", "seen_at"),
            "seen_at = x.seen_at",
            "t.name = x.name AND t.fingerprint = x.fingerprint AND t.seen_at < x.seen_at",
        ),
        of_code=f"""
SELECT s.name, s.fingerprint, s.seen_at
  FROM detent_schedules s
 WHERE s.source = 'code'
   AND s.state IN ('active', 'paused')
   AND {d.one_of("s.job", "job")}""",
        run_states=f"""
SELECT r.id, COALESCE(k.state, r.state)
  FROM {d.rows("id")}
  {d.join("detent_runs", "r")} ON r.id = x.id
  LEFT JOIN detent_chains c ON c.id = r.chain
  LEFT JOIN detent_runs k ON k.id = c.current_run""",
    )
