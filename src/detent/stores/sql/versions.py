"""The statements of versions: which code has executed a run, and which may."""

from __future__ import annotations

import msgspec

from .dialect import Dialect


class VersionStatements(msgspec.Struct, frozen=True):
    lock: str
    note: str
    lock_executions: str
    pin_run: str
    pin_executions: str


def build_versions(d: Dialect) -> VersionStatements:
    """Return the statements in the dialect `d`."""
    return VersionStatements(
        lock=f"""
SELECT r.id, r.versions
  FROM {d.rows("id")}
  {d.join("detent_runs", "r")} ON r.id = x.id
 ORDER BY r.id {d.bytewise}
 {d.lock("r")}""",
        note=d.update("detent_runs", ("id", "versions"), "versions = x.versions", "t.id = x.id"),
        lock_executions=f"""
SELECT e.node, e.attempt, e.state
  FROM detent_executions e {d.by("PRIMARY")}
 WHERE e.run_id = :id
 ORDER BY e.node {d.bytewise}, e.attempt
 {d.lock("e")}""",
        pin_run="UPDATE detent_runs SET pin = :pin WHERE id = :id",
        pin_executions=f"UPDATE detent_executions {d.by('PRIMARY')} SET pin = :pin WHERE run_id = :id",
    )
