"""Changing many runs by a filter, each in a transaction of its own: one that refuses does not stop the rest.

What was changed no longer fits the filter, so the same call continues where one was interrupted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigurationError, DetentError
from ..kernel.rows import RunRow, RunState
from .engine import Engine
from .listing import ACTIVE, Filters, Walk

RESUMABLE = (RunState.PAUSED, RunState.FAILED)


@dataclass(frozen=True, slots=True)
class Changed:
    """The result of `app.runs.resume` or `app.runs.cancel`: the count, and the refusals by run id.

    changed = app.runs.resume(state="failed", type=fulfil)
    print(changed.count, changed.refused)
    """

    count: int = 0
    refused: dict[str, str] = field(default_factory=dict)  # by run id: why it was not changed


def resume_all(engine: Engine, state: str | None, filters: Filters) -> Changed:
    """Resume all runs that fit; `state` is paused or failed."""
    return _change(resuming(engine, state, filters), lambda row: engine.resume(row.id))


def cancel_all(engine: Engine, state: str | None, filters: Filters, reason: str | None) -> Changed:
    """Cancel all active runs that fit."""
    return _change(canceling(engine, state, filters), lambda row: engine.cancel(row.id, reason))


def resuming(engine: Engine, state: str | None, filters: Filters) -> Walk:
    """The runs that a resume by filter is about."""
    if state not in RESUMABLE:
        raise ConfigurationError(
            f"state={state!r}: to resume many runs, pass state='paused' or state='failed'"
        )
    return Walk(engine, state, filters)


def canceling(engine: Engine, state: str | None, filters: Filters) -> Walk:
    """The runs that a cancel by filter is about."""
    if state is None and not any(value is not None for value in filters.values()):
        raise ConfigurationError("select the runs to cancel; state='active' selects all that have not ended")
    if state is not None and state in ("finished", "failed", "canceled"):
        raise ConfigurationError(f"a run that is {state} cannot be canceled")
    return Walk(engine, state or ACTIVE, filters)


class Pinned(Walk):
    """The active runs that are pinned to one version."""

    def __init__(self, engine: Engine, version: str) -> None:
        super().__init__(engine, ACTIVE, {})
        self._version = version

    def next_page(self) -> list[RunRow]:
        return [row for row in super().next_page() if row.pin == self._version]


def pinned(engine: Engine, version: str) -> Walk:
    """The runs that a repin of a version is about."""
    return Pinned(engine, version)


def repin_all(engine: Engine, former: str, version: str) -> Changed:
    """Pin all active runs of one version to another."""
    return _change(pinned(engine, former), lambda row: engine.repin(row.id, version))


def count(walk: Walk) -> int:
    """How many runs it is about; changes nothing."""
    number = 0
    while not walk.over:
        number += len(walk.next_page())
    return number


def _change(walk: Walk, verb: Callable[[RunRow], Any]) -> Changed:
    number, refused = 0, {}
    while not walk.over:
        for row in walk.next_page():
            try:
                verb(row)
            except DetentError as error:  # it has changed since it was listed, or its code is not here
                refused[row.id] = str(error)
            else:
                number += 1
    return Changed(number, refused)
