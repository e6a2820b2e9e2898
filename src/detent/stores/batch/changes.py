"""Changes: what a transaction writes, gathered per table, and written in one order.

Each table is written in the order of its keys: where an insert waits for another's, as
at unique keys and in MySQL's gaps, two transactions then wait in one direction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import field

from ...kernel.advance import Advance
from ...kernel.journal import FINAL
from ...kernel.rows import (
    EndedExecution,
    GraphPart,
    HistoryRow,
    NewEntry,
    NewExecution,
    NewRun,
    Readiness,
    RunEnd,
    RunState,
    Step,
)
from ..driver import Tx, batch, send
from ..verbs.cancel import cancel_rest, wake_waiting
from ..verbs.deadlines import rows_of
from ..verbs.listing import attribute_rows, mark_drifted
from ..verbs.queues import give_keys
from ..verbs.run_streams import append
from . import chains, readiness


class Changes(msgspec.Struct):
    """What a batch writes, gathered per table."""

    runs: list[NewRun] = field(default_factory=list)
    executions: list[NewExecution] = field(default_factory=list)
    steps: dict[tuple[str, str], Step] = field(default_factory=dict)
    history: list[HistoryRow] = field(default_factory=list)
    ended_executions: list[dict[str, Any]] = field(default_factory=list)
    ended_runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    parked: list[dict[str, Any]] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    consumed: list[dict[str, Any]] = field(default_factory=list)
    settled: Counter[tuple[str, str]] = field(default_factory=Counter)
    reopened: list[dict[str, str]] = field(default_factory=list)
    steps_once: list[Step] = field(default_factory=list)  # an error where such a step is recorded
    unwaited: set[str] = field(default_factory=set)
    held: set[str] = field(default_factory=set)
    canceled: set[str] = field(default_factory=set)
    ended: list[EndedExecution] = field(default_factory=list)
    counts: dict[tuple[str, str], Readiness] = field(default_factory=dict)
    withdrawn: list[dict[str, Any]] = field(default_factory=list)
    signatures: dict[str, tuple[str, int]] = field(default_factory=dict)  # the graph in force; irregular
    graphs: list[GraphPart] = field(default_factory=list)
    finished: set[str] = field(default_factory=set)  # runs of graphs that ended with nodes scheduled
    waits: list[dict[str, str]] = field(default_factory=list)
    over: set[str] = field(default_factory=set)  # runs whose end nodes of other runs wait for
    appends: list[NewEntry] = field(default_factory=list)
    drifted: set[str] = field(default_factory=set)  # runs to mark as drifted
    continued: dict[str, chains.Continued] = field(default_factory=dict)
    received: list[dict[str, Any]] = field(default_factory=list)  # messages that went on to another run
    now: int = 0

    def step(self, step: Step) -> None:
        # A statement may not touch a row twice: the latest state of a step is enough, and a
        # record is written once, whatever is said of the step after it.
        known = self.steps.get((step.run_id, step.key))
        if known is None or known.state not in FINAL:
            self.steps[step.run_id, step.key] = step

    def reopen(self, step: Step) -> None:
        """Overwrite a record that was final: a failed undoing is tried again."""
        self.reopened.append({"run_id": step.run_id, "step_key": step.key})
        self.steps[step.run_id, step.key] = step

    def advanced(self, advance: Advance) -> None:
        """Take over what was planned for a graph's run."""
        self.executions += advance.executions
        self.ended += advance.ended
        for node in advance.counted:
            count = advance.counts[node]
            self.counts[advance.facts.id, node] = Readiness(
                run_id=advance.facts.id, node=node, required=count.required, settled=count.settled
            )


def end_run(run_id: str, end: RunEnd, now: int, changes: Changes) -> None:
    """Note the run's end, or its pause."""
    final = RunState(end.state).final
    changes.ended_runs[run_id] = {
        "id": run_id,
        "state": end.state,
        "result": end.result,
        "error": end.error,
        "finished_at": now if final else None,
    }
    if end.state == RunState.CANCELED:
        changes.canceled.add(run_id)
    elif final:
        changes.unwaited.add(run_id)
    else:
        changes.held.add(run_id)
        changes.history.append(
            HistoryRow(run_id=run_id, happened_at=now, event="paused", detail=end.error or "null")
        )


def _is_over(ended: Mapping[str, Any] | None) -> bool:
    return ended is not None and RunState(ended["state"]).final


def write_changes(tx: Tx, changes: Changes) -> tuple[bool, list[str]]:
    """Write it all; return whether a run was woken, and which children were canceled along with a run."""
    sql = tx.sql
    if tx.driver.keyed:
        give_keys(changes.executions, tx.driver.keyed)
    for statement, rows in (
        (sql.insert_runs, sorted(changes.runs, key=lambda run: run.id)),
        # Ended before the next attempt begins: one active execution per node.
        (sql.end_executions, sorted(changes.ended_executions, key=lambda end: (end["run_id"], end["node"]))),
        (sql.graphs.withdraw, sorted(changes.withdrawn, key=lambda row: (row["run_id"], row["node"]))),
        (sql.insert_executions, sorted(changes.executions, key=execution_order)),
        (sql.graphs.insert_ended, sorted(changes.ended, key=execution_order)),
        (sql.graphs.insert_graphs, changes.graphs),
        (sql.graphs.put_counts, [changes.counts[key] for key in sorted(changes.counts)]),
        (sql.reopen_steps, changes.reopened),
        (sql.record_once, changes.steps_once),
        (sql.upsert_steps, [changes.steps[key] for key in sorted(changes.steps)]),
        # (A run's own messages stay in the order of sending.)
        (sql.insert_messages, sorted(changes.messages, key=lambda sent: sent["run_id"])),
        (sql.consume_messages, changes.consumed),
        (sql.end_runs, list(changes.ended_runs.values())),
        (sql.insert_history, changes.history),
    ):
        send(tx, statement, rows)
    _write_beside(tx, changes)
    # Counted before anything is parked: parking checks by itself what has happened so far.
    woken = False
    if changes.settled:
        woken = readiness.count(tx, changes.settled, changes.now)
        woken = readiness.release(tx, changes.settled, changes.now) or woken
    if changes.parked:
        readiness.park(tx, changes.parked)
    if changes.waits:
        send(tx, sql.graphs.insert_waits, changes.waits)
        targets = sorted({wait["target"] for wait in changes.waits})
        tx.send(sql.graphs.await_runs, rows=batch([{"id": run} for run in targets]))
        # A run that ends in this batch did not know yet that it is waited for.
        changes.over.update(run for run in targets if _is_over(changes.ended_runs.get(run)))
    for run in sorted(changes.held):
        tx.send(sql.hold, id=run)
    for run in sorted(changes.finished):
        tx.send(sql.graphs.finish_rest, id=run, now=changes.now)
    for run, (signature, irregular) in sorted(changes.signatures.items()):
        tx.send(sql.graphs.set_graph, id=run, signature=signature, irregular=irregular)
    if changes.over:
        woken = wake_waiting(tx, sorted(changes.over), changes.now) or woken
    if changes.unwaited:
        readiness.forget(tx, sorted(changes.unwaited))
    canceled = [child for run in sorted(changes.canceled) for child in cancel_rest(tx, run, changes.now)]
    return woken, canceled


def _write_beside(tx: Tx, changes: Changes) -> None:
    """Write what few runs have: attributes, entries of streams, a mark of drift, deadlines."""
    if changes.continued or changes.received:
        chains.write_all(tx, changes.continued, changes.received)
    if attributed := [run for run in changes.runs if run.attributes]:
        send(tx, tx.driver.adapt(tx.driver.queries.insert_attributes), attribute_rows(attributed))
    if changes.appends:
        append(tx, changes.appends)
    if changes.drifted:
        mark_drifted(tx, changes.drifted)
    if limited := [run for run in changes.runs if run.deadline is not None]:
        send(tx, tx.sql.deadlines.insert, rows_of(limited))


def execution_order(row: NewExecution | EndedExecution) -> tuple[str, str, int]:
    return row.run_id, row.node, row.attempt
