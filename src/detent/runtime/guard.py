"""A step by hand: the guard below `@step`."""

from __future__ import annotations

from typing import Any

from ..context import Call
from ..kernel.journal import FINAL
from ..kernel.model import StepState
from .failures import encode_error
from .frame import FrameCore


class StepGuard:
    """`pending` says whether there is work to do; `result` is what was recorded."""

    def __init__(self, frame: FrameCore, key: str, name: str) -> None:
        self._frame = frame
        self._key = key
        self._name = name
        self._entry = frame.journal.find(key)
        self._started = frame.now()
        if self.pending:
            frame.drive(frame.checkpoint())

    @property
    def pending(self) -> bool:
        """Whether nothing is recorded for this step yet."""
        return self._entry is None or self._entry.state not in FINAL

    @property
    def result(self) -> Any:
        """The recorded value; raises the recorded error."""
        if self._entry is None or self.pending:
            raise LookupError(f"step {self._name!r} has no result yet; call guard.success(value)")
        return self._frame.recorded(self._name, self._entry, Any)

    def success(self, value: Any) -> None:
        """Record the result; once."""
        text = self._frame.encode(value, f"the result of step {self._key!r}")
        self._record(StepState.COMPLETED, result=text)

    def fail(self, error: Exception) -> None:
        """Record the failure; once."""
        self._record(StepState.FAILED, error=encode_error(error))

    def _record(self, state: StepState, **facts: Any) -> None:
        if not self.pending:
            raise LookupError(f"step {self._name!r} is recorded already")
        frame = self._frame
        entry = frame.entry(
            self._key, "step", self._name, state, started_at=self._started, finished_at=frame.now(), **facts
        )
        frame.drive(Call(self._key, self._name, frame.record(entry)))
        self._entry = entry
