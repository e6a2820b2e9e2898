"""What runs wait for, as it is stored; reads only."""

from __future__ import annotations

from collections.abc import Collection

from ..driver import Tx, batch

_AWAITED = """
SELECT w.node, w.required - w.settled
  FROM detent_readiness w
 WHERE w.run_id = :id AND w.settled < w.required
 ORDER BY w.node"""
_RUNS_AWAITED = """
SELECT w.node, w.target
  FROM detent_waits w
  JOIN detent_runs r ON r.id = w.target
 WHERE w.run_id = :id AND r.state IN ('ready', 'paused')
 ORDER BY w.node, w.target"""
# Conditions on a run `r`.  IS TRUE keeps each a filter: a semi-join would lose the order of the listing.
WAITING = """r.state = 'ready'
   AND (EXISTS (SELECT 1 FROM detent_executions e
                 WHERE e.run_id = r.id AND e.state IN ('timer', 'parked'))) IS TRUE
   AND (EXISTS (SELECT 1 FROM detent_executions e
                 WHERE e.run_id = r.id AND e.state IN ('ready', 'executing'))) IS NOT TRUE"""
# A wait that has timed out may have left its count behind: the journal knows whether it is over.
WAITING_ON = """(EXISTS (SELECT 1 FROM detent_readiness w
                          WHERE w.run_id = r.id AND w.node = :topic AND w.settled < w.required)) IS TRUE
   AND (EXISTS (SELECT 1 FROM detent_steps s
                 WHERE s.run_id = r.id AND s.kind = 'receive' AND s.name = :on_message
                   AND s.state = 'waiting')) IS TRUE"""


def awaited(tx: Tx, run_id: str) -> list[tuple[str, int]]:
    """The topics that a parked run waits for, and how many events of each are missing."""
    return [(row[0], int(row[1])) for row in tx.query(tx.driver.adapt(_AWAITED), id=run_id)]


def runs_awaited(tx: Tx, run_id: str) -> list[tuple[str, str]]:
    """The nodes of a run that wait for other runs, and the ids of those."""
    return [(row[0], row[1]) for row in tx.query(tx.driver.adapt(_RUNS_AWAITED), id=run_id)]


def waiting(tx: Tx, runs: Collection[str]) -> set[str]:
    """Those of the runs that are neither executed nor ready to be: they wait for something else."""
    if not runs:
        return set()
    asked = batch([{"id": run} for run in sorted(runs)])
    found = tx.query(tx.sql.schedules.run_states, rows=asked)
    ready = batch([{"id": row[0]} for row in found if row[1] == "ready"])
    states: dict[str, set[str]] = {}
    for run, state in tx.query(tx.driver.adapt(tx.driver.queries.execution_states), rows=ready):
        states.setdefault(run, set()).add(state)
    return {
        run
        for run, seen in states.items()
        if seen & {"timer", "parked"} and not seen & {"ready", "executing"}
    }
