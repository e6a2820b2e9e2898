"""What an operation came to, found out after its commit: in doubt, or refused by a unique key."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ...errors import AlreadyRunning
from ...kernel.decide import Decide, Decided, Enqueue
from ...kernel.operations import Operation, Park, Record, Settle, Settled, Start, Started, Verdict
from ...kernel.rows import ExecutionState, NewRun
from ...kernel.settle import Outcome
from ..driver import Tx, batch
from ..verbs.run_streams import has_entry
from .conflicts import conflict_of, conflict_of_children, known_runs
from .deciders import decided_already


def explain_conflict(tx: Tx, op: Operation) -> Any:
    """After a unique violation of one operation alone: what is in its way, or its answer."""
    start = op.children if isinstance(op, Record) else op
    if not isinstance(start, Start):
        return already_applied(tx, op)
    known = known_runs(tx, [Start(runs=start.runs, executions=[], chosen=True)])
    if isinstance(op, Record):
        return conflict_of_children(start.runs, known) or already_applied(tx, op)
    if (conflict := conflict_of(start.runs, known)) is not None:
        return conflict
    for run in start.runs:
        if run.exclusive and run.id not in known:
            rows = tx.query(tx.sql.hero_run, type=run.type, hero_type=run.hero_type, hero_id=run.hero_id)
            if rows:
                return AlreadyRunning(rows[0][0], run.type, f"{run.hero_type} {run.hero_id}")
    if all(run.id in known for run in start.runs):
        return [Started(id=run.id, created=False) for run in start.runs]
    return None


def already_applied(tx: Tx, op: Operation) -> Any:
    """Whether an operation whose commit was cut off went through; its answer if so.

    Ids, tokens and keys are ours alone, so finding them means that we wrote them: unless our
    worker was thought dead meanwhile, and another one has come by the same place.
    """
    if isinstance(op, Record | Settle | Park) and not tx.query(tx.sql.fence, id=op.worker):
        return None
    if isinstance(op, Decide) and op.drain:
        return Decided(applied=len(op.inputs)) if op.ends is not None and _settled(tx, op.ends) else None
    if isinstance(op, Decide | Enqueue):
        return decided_already(tx, op)
    if isinstance(op, Start):
        return _already_started(tx, op)
    if isinstance(op, Record):
        if op.appends:
            return Verdict.APPLIED if has_entry(tx, op.appends[-1]) else None
        if op.executions or op.children:
            nodes = {row.node for row in op.executions} | {run.parent_key for run in _children(op)}
            rows = tx.query(tx.sql.journal, rows=batch([{"id": op.run_id}]))
            if nodes and nodes <= {row[1] for row in rows}:
                return Verdict.APPLIED
    elif isinstance(op, Settle | Park) and _settled(tx, op):
        ended = op.plan.run if isinstance(op, Settle) else None
        if isinstance(op, Settle) and op.successor is not None and ended is not None:
            rows = tx.query(tx.sql.ends, rows=batch([{"id": op.key.run_id}]))
            ended = replace(ended, continued_as=rows[0][4] if rows else None)
        return Settled(verdict=Verdict.APPLIED, ended=ended)
    return None


def _settled(tx: Tx, op: Settle | Park) -> bool:
    """Whether this very operation ended its execution.

    The token stays in the row until the next claim.  A row that has it, and that is no longer executing,
    was settled by this operation, or its worker was thought dead.
    """
    rows = tx.query(tx.sql.delivered, **_key_and_token(op))
    return bool(rows) and rows[0][0] != ExecutionState.EXECUTING and rows[0][1] != Outcome.RECOVERED


def _already_started(tx: Tx, op: Start) -> list[Started] | None:
    """A chosen id may have been taken by another start, and then this one did not begin the run.

    The time of its creation decides: no other start plans the same run in the same microsecond.
    """
    rows = tx.query(tx.sql.created_runs, rows=batch([{"id": run.id} for run in op.runs]))
    found = {row[0]: tuple(row[1:]) for row in rows}
    ours = {run.id for run in op.runs if found.get(run.id) == (run.type, run.input, run.created_at)}
    if not ours or any(run.id not in found for run in op.runs):
        return None
    return [Started(id=run.id, created=run.id in ours) for run in op.runs]


def _children(op: Record) -> list[NewRun]:
    return op.children.runs if op.children is not None else []


def _key_and_token(op: Settle | Park) -> dict[str, Any]:
    return {"run_id": op.key.run_id, "node": op.key.node, "attempt": op.key.attempt, "token": op.token}
