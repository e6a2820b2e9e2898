"""How a run ended, as its caller gets it: a value, or an exception."""

from __future__ import annotations

from typing import Any

from ..errors import RunCanceled, RunFailed, RunPaused, StepFailed
from ..kernel.model import RunEnd, RunRow, RunState
from ..runtime.failures import decode_error, raisable
from ..serialization import Codec


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
