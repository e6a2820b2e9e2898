"""Who acts: the operator whose name and reason are written into the history of the runs that they change.

    with acting("alice", "the bank is down until noon"):
        engine.pause(run_id)

Every line that a verb adds to a history inside the block has `by` and `reason`.  The line and the change that
it reports are one transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple


class Operator(NamedTuple):
    """A person, and why they act."""

    name: str
    reason: str


_acting: ContextVar[Operator | None] = ContextVar("detent_operator", default=None)


@contextmanager
def acting(name: str, reason: str) -> Iterator[None]:
    """Write this name and this reason into every history line of the block."""
    token = _acting.set(Operator(name, reason))
    try:
        yield
    finally:
        _acting.reset(token)


def signed(detail: object) -> object:
    """The detail of a history line, with the operator who causes it if there is one."""
    operator = _acting.get()
    if operator is None or not (detail is None or isinstance(detail, dict)):
        return detail
    return {**(detail or {}), "by": operator.name, "reason": operator.reason}
