"""Publishing from steps, nodes and effects: a value that people may read while they run.

There is one row for each name, and a later value replaces it.  It is no part of the
workflow's recorded way: a replay neither asks for it nor counts it.
"""

from __future__ import annotations

from typing import Any

from ..kernel import rows
from ..kernel.operations import Record
from ..kernel.rows import Claimed, StepState
from ..stores.batch.names import unfit
from .services import Services


def post_published(services: Services, claimed: Claimed, name: str, value: Any, *, seq: int = 0) -> None:
    """Hand the value to the committer, before what this caller commits next."""
    now = services.clock.now()
    row = rows.Step(
        run_id=claimed.run_id,
        key=f"published/{name}",
        seq=seq,
        kind="published",
        name=name,
        state=StepState.WAITING,  # so that the next value replaces it
        written_by=claimed.attempt,
        result=services.codec.encode(value, f"the published value {name!r}"),
        started_at=now,
        finished_at=now,
    )
    problem = unfit(row)
    if problem is not None:
        raise problem
    record = Record(worker=claimed.worker, run_id=claimed.run_id, steps=[row])
    services.committer.post(record, forever=True)
