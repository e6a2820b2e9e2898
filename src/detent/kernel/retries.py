"""Retries of nodes in stored graphs: a `Retry` as data."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from ..errors import DefinitionError
from .policies import Retry, class_name


class StoredRetry(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A `Retry`, with waits in seconds and exception classes by their dotted names."""

    attempts: int
    first: float
    factor: float
    longest: float
    jitter: float = 0.0
    on: tuple[str, ...] = ("builtins.Exception",)
    never_on: tuple[str, ...] = ()

    def wait_after(self, attempt: int, error: BaseException) -> timedelta | None:
        """The wait before the next attempt, or None to give up."""
        names = {class_name(cls) for cls in type(error).__mro__}
        if names.isdisjoint(self.on) or not names.isdisjoint(self.never_on):
            return None
        return self._waits().wait_after(attempt, error)

    def _waits(self) -> Retry:
        return Retry(
            attempts=self.attempts,
            first=timedelta(seconds=self.first),
            factor=self.factor,
            longest=timedelta(seconds=self.longest),
            jitter=self.jitter,
            on=(BaseException,),
        )

    @property
    def problem(self) -> str | None:
        """What is wrong with it; a stored graph may come from anywhere."""
        try:
            self._waits()
        except (DefinitionError, OverflowError, ValueError) as error:
            return str(error)
        return None


def stored_retry(retry: Retry) -> StoredRetry:
    """The form in which a graph holds a `Retry`; a function in it has none."""
    if getattr(retry, "wait_from", None) is not None:
        raise DefinitionError("retry: a stored graph holds no functions; wait_from is for steps")
    return StoredRetry(
        attempts=retry.attempts,
        first=retry.first.total_seconds(),
        factor=retry.factor,
        longest=retry.longest.total_seconds(),
        jitter=retry.jitter,
        on=_names(retry.on),
        never_on=_names(retry.never_on),
    )


def _names(classes: tuple[object, ...]) -> tuple[str, ...]:
    for cls in classes:
        if not isinstance(cls, type):
            raise DefinitionError(
                f"retry: a stored graph holds no functions; give exception classes instead of {cls!r}"
            )
    return tuple(class_name(cls) for cls in classes if isinstance(cls, type))
