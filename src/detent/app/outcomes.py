"""How a run ended, as its caller gets it: a value, or an exception."""

from __future__ import annotations

from typing import Any

from ..errors import RunCanceled, RunFailed, RunPaused, StepFailed, TransactionMisused
from ..execution.failures import decode_error, raisable
from ..kernel.rows import RunEnd, RunRow, RunState
from ..serialization.codec import Codec
from ..stores.store import Store


def outcome_of(codec: Codec, returns: Any, row: RunRow, end: RunEnd) -> Any:
    """The value of a run that ended like this; raises how it failed."""
    if end.state == RunState.FINISHED:
        return codec.decode(end.result or "null", returns, f"the result of run {row.id}")
    error = None if end.error is None else run_error(row, end.error)
    if end.state == RunState.CANCELED:
        raise RunCanceled(row.id) from error
    if end.state == RunState.FAILED:
        raise error if error is not None else run_error(row, None)
    reason = "by an operator"
    if end.error is not None:
        stored = decode_error(end.error)
        reason = f"{stored.type.rpartition('.')[2]}: {stored.message}"
    raise RunPaused(row.id, reason) from error


def run_error(row: RunRow, text: str | None) -> Exception:
    """A run's own error; RunFailed where its class cannot be rebuilt."""
    error = raisable(row.type, text)
    if isinstance(error, StepFailed) and error.step == row.type:
        failed = RunFailed(row.id, error.type, error.message)
        failed.__cause__ = error.__cause__
        return failed
    return error


def end_for_body(store: Store, run_id: str, *, wants_pauses: bool) -> RunEnd | None:
    """In a transactional step: the end of a run that is over.  None outside of such steps.

    Waiting is refused there: on SQLite nothing else can be written meanwhile, so that no run would end.
    """
    if store.inside() is None:
        return None
    row = store.current(run_id)
    if not RunState(row.state).final and not (wants_pauses and row.state == RunState.PAUSED):
        raise TransactionMisused("run.result() of a run that has not ended")
    return end_of(row, run_id)


def end_of(row: RunRow, asked: str) -> RunEnd:
    """The end of a run; of a later run of the chain than the one that was asked for, with its id."""
    later = None if row.id == asked else row.id
    return RunEnd(state=row.state, result=row.result, error=row.error, continued_as=later)
