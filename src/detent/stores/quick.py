"""Records of steps in a single statement, and so in one round trip: the commonest batch by far."""

from __future__ import annotations

from collections.abc import Sequence

from ..kernel.model import Operation, Record, Step
from .fitness import unfit


def plain_records(operations: Sequence[Operation]) -> tuple[str, list[Step]] | None:
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
