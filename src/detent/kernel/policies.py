"""Policies: how often, how patiently, and what then.  Pure functions of their fields."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta

from ..errors import DefinitionError, PayloadError

DEFAULT_MAX_RECOVERIES = 5

# What `on_exception` may say, beside raising (the default of a function's step).
ACTIONS = ("raise", "pause", "cancel", "skip", "reattempt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often, and how patiently, a failing step is tried again.

        @step(retry=Retry(attempts=5, on=(ConnectionError, TimeoutError)))
        def charge(card: Card) -> Receipt: ...

    Waits grow by `factor` from `first` up to `longest`; up to the share `jitter`
    of each is added at random, by the worker: this class computes the same from
    the same.  What is in `never_on` is final at once.
    """

    attempts: int = 3
    first: timedelta = timedelta(seconds=1)
    factor: float = 2.0
    longest: timedelta = timedelta(minutes=5)
    jitter: float = 0.0
    on: tuple[type[BaseException], ...] = (Exception,)
    never_on: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise DefinitionError(
                f"Retry(attempts={self.attempts}) would never run the step; "
                f"attempts=1 runs it once and does not retry"
            )
        if self.first < timedelta() or self.longest < timedelta():
            raise DefinitionError(
                f"Retry(first={self.first}, longest={self.longest}): a wait cannot be negative"
            )
        if not 1 <= self.factor < math.inf or not 0 <= self.jitter <= 1:  # NaN fits nowhere
            raise DefinitionError(
                f"Retry(factor={self.factor}, jitter={self.jitter}): factor is at least 1, jitter from 0 to 1"
            )
        for name in ("on", "never_on"):
            classes = getattr(self, name)
            classes = classes if isinstance(classes, tuple) else (classes,)
            if not all(isinstance(cls, type) and issubclass(cls, BaseException) for cls in classes):
                raise DefinitionError(
                    f"Retry({name}={getattr(self, name)!r}) takes exception classes, not instances or names"
                )
            object.__setattr__(self, name, classes)

    def wait_after(self, attempt: int, error: BaseException) -> timedelta | None:
        """The wait before the next attempt, or None to give up."""
        if attempt >= self.attempts or not isinstance(error, self.on) or isinstance(error, self.never_on):
            return None
        if isinstance(error, PayloadError):  # the same value will not serialise next time either
            return None
        try:
            return min(self.first * self.factor ** (attempt - 1), self.longest)
        except OverflowError:  # factor ** 1024: far beyond any `longest`
            return self.longest


NO_RETRY = Retry(attempts=1)
# `on_exception="reattempt"` without a policy of its own.
REATTEMPT = Retry(attempts=100)


BETWEEN_TURNS = 0.2  # seconds: an innocent step is mostly done by then, and clears its run
TURNS = 100


def recovery_wait(recoveries: int, turn: int = 0) -> timedelta:
    """How long an execution that was found orphaned waits before it runs again.

    The first time not at all: a killed worker is the usual reason.  Then ever
    longer, and one after the other (`turn`) with those that died beside it, so that
    what kills its process does not take the same neighbours along every time.
    """
    if recoveries <= 1:
        return timedelta()
    return timedelta(seconds=min(0.25 * 2 ** min(recoveries - 2, 10), 30) + turn % TURNS * BETWEEN_TURNS)
