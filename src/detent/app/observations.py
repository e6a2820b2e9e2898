"""Recorded inputs of the instances of a decider."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..clock import from_micros, to_micros
from ..definitions.context import ask_database
from ..definitions.deciders import instance_of
from ..errors import ConfigurationError, PayloadError
from ..execution.bound_decider import LoadedDecider
from ..kernel.decide import InputRow
from .deciders import Asked
from .engine import Engine

AT_ONCE = 100  # that are returned, unless another number is asked for
LATEST = 2**62


@dataclass(frozen=True, slots=True)
class Observation:
    """A recorded input: its decider observes, it has an id, or it arrived in the inbox.

    for observation in app.deciders.observations(Order, "o-1"):
        print(observation.received_at, observation.type, observation.state)
    """

    seq: int  # in the order of arrival, over all instances
    decider: str
    instance: str
    type: str
    input: Any  # as it is stored, where today's code cannot read it
    input_id: str | None
    state: str  # pending, applied, ignored (the instance had finished), discarded
    received_at: datetime
    handled_at: datetime | None
    from_status: str | None  # the statuses before and after, where the decider observes
    to_status: str | None


def observations(
    engine: Engine,
    decider: Asked,
    instance: str | None,
    *,
    after: datetime | None,
    before: datetime | None,
    cursor: Observation | int | None,
    limit: int,
) -> list[Observation]:
    """Recorded inputs, newest first."""
    ask_database("the inputs of a decider")
    bound = engine.services.bound(decider)
    if type(limit) is not int or limit < 1:
        raise ConfigurationError(f"limit={limit!r}: must be a whole number, 1 or more")
    rows = engine.store.inputs(
        type=bound.name,
        run_id=None if instance is None else bound.plan.run_id(str(instance)),
        since=_moment("after", after, 0),
        until=_moment("before", before, LATEST),
        beyond=_place(cursor),
        limit=limit,
    )
    return [_shown(bound, row) for row in rows]


def _moment(name: str, given: Any, default: int) -> int:
    if given is None:
        return default
    if not isinstance(given, datetime):
        raise ConfigurationError(f"{name}={given!r}: give a datetime")
    return to_micros(given)


def _place(cursor: Any) -> int:
    place = cursor.seq if isinstance(cursor, Observation) else LATEST if cursor is None else cursor
    if type(place) is not int:
        raise ConfigurationError(f"cursor={cursor!r}: give the last observation that you have, or its seq")
    return place


def _shown(bound: LoadedDecider, row: InputRow) -> Observation:
    input: Any = row.data
    with suppress(PayloadError):
        input = bound.input_of(row.type, row.data or "null")
    return Observation(
        seq=row.seq,
        decider=bound.name,
        instance=instance_of(row.run_id),
        type=row.type,
        input=input,
        input_id=row.input_id,
        state=row.state,
        received_at=from_micros(row.received_at),
        handled_at=None if row.handled_at is None else from_micros(row.handled_at),
        from_status=row.from_status,
        to_status=row.to_status,
    )
