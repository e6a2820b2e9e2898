"""Versions: note who continues a run, and pin a run to another version."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...errors import InvalidState
from ...kernel.decide import DECIDER
from ...kernel.rows import ExecutionState, HistoryRow, RunRow, RunState
from ...kernel.versions import is_new, with_version
from ..base_store import BaseStore
from ..batch.locks import lock
from ..driver import Tx, batch, write
from .cancel import note


class VersionVerbs(BaseStore):
    """The verbs of versions."""

    def note_version(self, runs: Sequence[str], version: str, *, now: int) -> None:
        """Note that this version continues these runs; twice notes it once."""
        self.write(lambda tx: _note_version(tx, runs, version, now))


def _note_version(tx: Tx, runs: Sequence[str], version: str, now: int) -> None:
    found = tx.query(tx.sql.versions.lock, rows=batch([{"id": run} for run in sorted(runs)]))
    changed = [(run, versions) for run, versions in found if is_new(versions, version)]
    if not changed:
        return
    rows = [{"id": run, "versions": with_version(versions, version)} for run, versions in changed]
    write(tx, tx.sql.versions.note, rows)
    detail = msgspec.json.encode({"version": version}).decode()
    lines = [HistoryRow(run_id=run, happened_at=now, event="continued", detail=detail) for run, _ in changed]
    write(tx, tx.sql.insert_history, lines)


def repin(tx: Tx, run_id: str, version: str, now: int) -> RunRow:
    """Let only workers of that version continue a run; nothing of it may be executing."""
    run = lock(tx, run_id)
    if run.kind == DECIDER:
        raise InvalidState("repin", run_id, "an instance of a decider", "any version may decide for it")
    if RunState(run.state).final:
        raise InvalidState("repin", run_id, run.state, "app.fork(run) continues it in a new run")
    # Claims skip what we have locked; what they hold already was planned under the former version.
    states = [state for _, _, state in tx.query(tx.sql.versions.lock_executions, id=run_id)]
    if ExecutionState.EXECUTING in states:
        raise InvalidState(
            "repin", run_id, "performing", "pause it, wait until its executions have ended, then repin it"
        )
    tx.run(tx.sql.versions.pin_run, id=run_id, pin=version)
    tx.run(tx.sql.versions.pin_executions, id=run_id, pin=version)
    note(tx, run_id, "repinned", {"from": run.pin, "to": version}, now)
    return run
