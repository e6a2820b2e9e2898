"""Records of steps in a single statement, and so in one round trip: the commonest batch by far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..kernel.model import Operation, Record, Step, Verdict
from .base import Tx
from .fitness import unfit


def quickly(
    operations: Sequence[Operation], record: Callable[[Tx, str, list[Step]], bool]
) -> Callable[[Tx], list[Any] | None] | None:
    """A way to apply a batch that only records, by a driver's own statement; None for any other batch.

    It answers None where the statement did not write it: the lease may be lost, the long way will tell.
    """
    found = _plain_records(operations)
    if found is None:
        return None
    worker, steps = found
    return lambda tx: [Verdict.APPLIED] * len(operations) if record(tx, worker, steps) else None


def _plain_records(operations: Sequence[Operation]) -> tuple[str, list[Step]] | None:
    """The worker and the steps of a batch that only records, each step once; None for any other."""
    worker = None
    steps: dict[tuple[str, str], Step] = {}
    for op in operations:
        if not isinstance(op, Record) or op.executions or op.children or op.consume or op.reopen:
            return None
        if worker is not None and op.worker != worker:
            return None
        worker = op.worker
        for step in op.steps:
            if (step.run_id, step.key) in steps or unfit(step) is not None:
                return None
            steps[step.run_id, step.key] = step
    # In the order of the keys, as all tables are written.
    return None if worker is None or not steps else (worker, [steps[key] for key in sorted(steps)])
