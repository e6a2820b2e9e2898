"""The statements that streams of runs need.

All of them are served by the primary key (run, name, position), apart from `known`: that is served by the
unique key (run, entry).
"""

from __future__ import annotations

import msgspec

from .dialect import Dialect

_COLUMNS = ("run_id", "name", "position", "entry_id", "step", "attempt", "value", "appended_at")


class RunStreamStatements(msgspec.Struct, frozen=True):
    heads: str
    insert: str
    trim: str
    known: str
    page: str
    next_name: str
    busy: str


def build_run_streams(d: Dialect) -> RunStreamStatements:
    """Return the statements in the dialect `d`."""
    return RunStreamStatements(
        # MAX() would read the whole stream on MySQL.
        heads=f"""
SELECT x.run_id, x.name,
       (SELECT s.position FROM detent_streams s {d.by("PRIMARY")}
         WHERE s.run_id = x.run_id AND s.name = x.name
         ORDER BY s.position DESC LIMIT 1)
  FROM {d.rows("run_id", "name")}""",
        insert=d.insert_new("detent_streams", _COLUMNS, ("run_id", "entry_id")),
        trim="DELETE FROM detent_streams WHERE run_id = :run_id AND name = :name AND position <= :upto",
        known="SELECT 1 FROM detent_streams WHERE run_id = :run_id AND entry_id = :entry_id",
        page=f"""
SELECT s.position, s.step, s.attempt, s.value, s.appended_at
  FROM detent_streams s {d.by("PRIMARY")}
 WHERE s.run_id = :run_id AND s.name = :name AND s.position > :after
 ORDER BY s.position
 LIMIT :limit""",
        # One stream at a time: GROUP BY would read every entry of the run.
        next_name=f"""
SELECT x.name,
       (SELECT s.position FROM detent_streams s {d.by("PRIMARY")}
         WHERE s.run_id = :run_id AND s.name = x.name
         ORDER BY s.position LIMIT 1),
       (SELECT s.position FROM detent_streams s {d.by("PRIMARY")}
         WHERE s.run_id = :run_id AND s.name = x.name
         ORDER BY s.position DESC LIMIT 1)
  FROM (SELECT s.name FROM detent_streams s {d.by("PRIMARY")}
         WHERE s.run_id = :run_id AND s.name > :after
         ORDER BY s.name LIMIT 1) x""",
        # Whether a run, or something that executes for it, may still append.
        busy="""
SELECT CASE WHEN r.state IN ('finished', 'failed', 'canceled') THEN 0 ELSE 1 END,
       CASE WHEN EXISTS (SELECT 1 FROM detent_executions e
                          WHERE e.run_id = r.id
                            AND e.state IN ('ready', 'timer', 'parked', 'held', 'executing'))
            THEN 1 ELSE 0 END
  FROM detent_runs r
 WHERE r.id = :run_id""",
    )
