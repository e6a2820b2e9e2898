"""Publishing from steps, nodes and effects: a value that people may read while they run.

There is one row for each name, and a later value replaces it.  It is not part of the
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
    text = services.codec.encode(value, f"the published value {name!r}")
    row = published_row(
        claimed.run_id, name, text, seq=seq, written_by=claimed.attempt, now=services.clock.now()
    )
    problem = unfit(row)
    if problem is not None:
        raise problem
    record = Record(worker=claimed.worker, run_id=claimed.run_id, steps=[row])
    services.committer.post(record, forever=True)


def published_row(
    run_id: str, name: str, text: str, *, now: int, seq: int = 0, written_by: int = 0
) -> rows.Step:
    """The row of the latest value under a name."""
    return rows.Step(
        run_id=run_id,
        key=f"published/{name}",
        seq=seq,
        kind="published",
        name=name,
        state=StepState.WAITING,  # so that the next value replaces it
        written_by=written_by,
        result=text,
        started_at=now,
        finished_at=now,
    )
