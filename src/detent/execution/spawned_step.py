"""Spawned steps: executions of their own, on any worker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from ..clock import span_micros
from ..definitions.context import Abandoned, Canceled, Routine
from ..definitions.functions import Step
from ..errors import DeadlineExceeded, PayloadError
from ..kernel import rows as kernel_rows
from ..kernel.operations import Settle, Settled, Verdict
from ..kernel.rows import Claimed
from ..kernel.settle import Ending, Outcome
from .calls import decode_call
from .deadlines import deadline_exceeded, has_passed
from .failures import encode_error
from .frame import jittered
from .requests import Body, Commit, TransactionalBody
from .services import Services
from .work import Work

_ACTIONS = {
    "raise": Outcome.FAILED,
    "reattempt": Outcome.FAILED,
    "skip": Outcome.SKIPPED_BY_EXCEPTION,
    "pause": Outcome.PAUSED_BY_EXCEPTION,
    "cancel": Outcome.CANCELED_BY_EXCEPTION,
}


class SpawnedStep(Work):
    """One attempt at a spawned step of a durable function."""

    def __init__(
        self, services: Services, claimed: Claimed, step: Step[Any, Any], steps: Iterable[kernel_rows.Step]
    ) -> None:
        super().__init__(services, claimed, step.name, steps)
        self.step = step
        self.is_async = step.is_async
        self._again = ""  # when the next attempt is, for the log
        if self.interrupt == "paused":
            self.interrupt = None  # it was claimed before: it ends, and is recorded

    def _execute(self) -> Routine[None]:
        self.performing = True
        ending = yield from self._ending()
        self.performing = False
        if ending is not None:
            settle = self._settle(ending)
            settle.hands_slot_on = not (self.free_slot is not None and self.free_slot(self))
            answer: Settled = yield Commit(settle)
            if answer.verdict is Verdict.STALE:
                raise Abandoned

    def _ending(self) -> Routine[Ending | None]:
        """How the attempt ended; None when a transactional step has settled itself."""
        if self.interrupt == "canceled":
            return self._end(Outcome.CANCELED_BY_OPERATOR)
        try:
            if has_passed(self.services, self.claimed):
                raise deadline_exceeded(self.claimed)
            args, kwargs = decode_call(self.services.codec, self.step, self.claimed.input or "{}")
            if self.step.transactional:
                yield TransactionalBody(self.step, self.context, args, kwargs, self._finish, self._recorded)
                return None
            value = yield Body(self.step, self.context, args, kwargs)
            return self._success(value)
        except Canceled:
            return self._end(Outcome.CANCELED_BY_OPERATOR)
        except asyncio.CancelledError:
            if self.interrupt == "canceled":
                return self._end(Outcome.CANCELED_BY_OPERATOR)
            if self.expired:
                return self._failure(deadline_exceeded(self.claimed))
            raise Abandoned from None
        except Exception as error:
            return self._failure(error)

    def _success(self, value: Any) -> Ending:
        text = self.services.codec.encode(
            value, f"the result of step {self.claimed.node!r}", self.step.returns
        )
        return self._end(Outcome.SUCCESS, result=text)

    def _failure_text(self) -> str:
        return f"step {self.context.key!r} (attempt {self.claimed.attempt}) failed{self._again}"

    def _failure(self, error: Exception) -> Ending:
        self._raised = error
        stored = encode_error(error)
        retry = self.step.retry
        in_vain = isinstance(error, PayloadError | DeadlineExceeded)
        wait = None if in_vain else retry.wait_after(self.claimed.failures + 1, error)
        if wait is not None:
            pause = jittered(span_micros(wait), retry.jitter)
            self._again = f"; the next attempt is in {pause / 1e6:g} s"
            return Ending(outcome=Outcome.REATTEMPTED_BY_EXCEPTION, now=self._now(), error=stored, wait=pause)
        outcome = _ACTIONS[self.step.on_exception]
        result = "null" if outcome is Outcome.SKIPPED_BY_EXCEPTION else None
        return Ending(outcome=outcome, now=self._now(), error=stored, result=result)

    def _finish(self, value: Any) -> Settle:
        return self._settle(self._success(value))
