"""A step by hand: the guards below `@step`."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast

from ..definitions.context import Call, Routine
from ..errors import InvalidState
from ..kernel.journal import FINAL
from ..kernel.rows import Step, StepState
from .failures import encode_error
from .frame import FrameCore

T = TypeVar("T")


class Guard(Generic[T]):
    """What the guards for sync and for async code share."""

    def __init__(self, frame: FrameCore, key: str, name: str, type: Any) -> None:
        self._frame = frame
        self._key = key
        self._name = name
        self._type = type
        self._entry: Step | None = None
        self._started = frame.now()

    @property
    def pending(self) -> bool:
        """Whether nothing is recorded for this step yet."""
        return self._entry is None or self._entry.state not in FINAL

    @property
    def result(self) -> T:
        """The recorded value; raises the recorded error."""
        if self._entry is None or self.pending:
            raise InvalidState(
                f"read the result of step {self._name!r} of",
                self._frame.run_id,
                "pending",
                "record it first, with guard.success(value)",
            )
        return cast(T, self._frame.recorded(self._name, self._entry, self._type))

    def opening(self) -> Call[None] | Routine[None]:
        """Look for the record: one that is there is an answer, and has its turn."""
        found = self._frame.journal.peek(self._key)
        if found is not None and found.state in FINAL:
            return Call(self._key, self._name, self._open())
        return self._open()

    def _open(self) -> Routine[None]:
        self._entry = self._frame.journal.find(self._key)
        if self.pending:
            self._frame.begin_new(self._key, "step", self._name)
            yield from self._frame.checkpoint()

    def recording(self, state: StepState, **facts: Any) -> Call[None]:
        """Record the end of the step; once."""
        if not self.pending:
            raise InvalidState(f"record step {self._name!r} of", self._frame.run_id, "already recorded")
        return Call(self._key, self._name, self._record(state, facts))

    def succeeding(self, value: Any) -> Call[None]:
        text = self._frame.encode(value, f"the result of step {self._key!r}")
        return self.recording(StepState.COMPLETED, result=text)

    def failing(self, error: Exception) -> Call[None]:
        return self.recording(StepState.FAILED, error=encode_error(error))

    def _record(self, state: StepState, facts: dict[str, Any]) -> Routine[None]:
        frame = self._frame
        times = {"started_at": self._started, "finished_at": frame.now()}
        entry = frame.entry(self._key, "step", self._name, state, **times, **facts)
        yield from frame.record(entry)
        self._entry = entry


class StepGuard(Guard[T]):
    """`pending` says whether there is work to do; `result` is what was recorded."""

    def success(self, value: T) -> None:
        """Record the result; once."""
        self._frame.drive(self.succeeding(value))

    def fail(self, error: Exception) -> None:
        """Record the failure; once."""
        self._frame.drive(self.failing(error))


class AsyncStepGuard(Guard[T]):
    """The same for async code: what records is awaited."""

    async def success(self, value: T) -> None:
        """Record the result; once."""
        await self._frame.adrive(self.succeeding(value))

    async def fail(self, error: Exception) -> None:
        """Record the failure; once."""
        await self._frame.adrive(self.failing(error))
