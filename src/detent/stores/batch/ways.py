"""Which of the quicker ways a batch can go, and what a way has leased."""

from __future__ import annotations

from collections.abc import Sequence

from ...kernel.operations import Operation
from ...kernel.rows import Claimed, NewExecution, NewRun
from ..driver import Driver, Slots, Way
from . import next_nodes


def way_of(
    driver: Driver, operations: Sequence[Operation], *, helpers_wanted: bool, slots: Slots | None
) -> Way | None:
    """A way to apply this batch in a few statements, without reading first; None if there is none."""
    return driver.quick(operations, helpers_wanted=helpers_wanted) or next_nodes.way_of(
        driver, operations, helpers_wanted=helpers_wanted, slots=slots
    )


def leases_of(way: Way, left: Sequence[int]) -> list[tuple[NewExecution, Claimed | NewRun]]:
    """What a way has leased to our worker; the leases of operations that it has left are given back."""
    if way.slots is None:
        return []
    without = set(left)
    way.slots.give_back(
        {row.token for place in left for row, _ in way.leased[place] if row.token is not None}
    )
    return [one for place, leased in enumerate(way.leased) if place not in without for one in leased]
