"""Projections: definitions of read models.

A projection is one function, `apply`, that is called with every event in the order of
positions.  This module runs nothing: a worker applies events in batches, each with its
checkpoint in one transaction (execution/projection.py, worker/projector.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from ..errors import DefinitionError
from ..kernel.policies import Retry
from .deciders import Decider
from .decisions import Recorded
from .node_options import made

LONGEST_NAME = 200
PATIENT = Retry(attempts=1_000_000, jitter=0.0)


class Projection:
    """A read model that is built from the events of deciders.

        class Totals(Projection):
            name = "totals"
            deciders = (Order,)

            def apply(self, event: Recorded, view: View) -> None:
                if isinstance(event.event, Paid):
                    view["paid"] = view.get("paid", 0) + event.event.amount

    `apply` (`def`, or `async def` with an AsyncView) gets each event once, in order.  Its writes to
    `view` are committed together with the checkpoint.  An exception blocks the projection at that
    event until a retry succeeds or the event is skipped.  If a projection needs arguments, include
    an object: `include=[Totals(rates)]`.
    """

    name: ClassVar[str]
    deciders: ClassVar[Sequence[type[Decider[Any, Any, Any, Any]]]] = ()  # none: all that there are
    batch: ClassVar[int] = 500  # events in one transaction, at most
    version: ClassVar[int] = 1  # a higher number: rebuild it, by the code that has that number
    retry: ClassVar[Retry] = PATIENT  # of an event that could not be applied; it is never given up

    def apply(self, event: Recorded[Any], view: Any) -> Any:
        """Apply one event to the view."""
        raise NotImplementedError

    def setup(self, view: Any) -> Any:
        """Called before the first event of each generation: create its tables.

        MySQL commits with every CREATE TABLE, so it must be safe to call this twice.
        """

    def teardown(self, view: Any) -> Any:
        """Called when a generation was replaced and is dropped: drop its tables."""


@dataclass(eq=False)
class ProjectionPlan:
    """A projection, looked at closely."""

    name: str
    projection: Projection
    deciders: frozenset[str] | None  # None: all that there are

    @property
    def cls(self) -> type[Projection]:
        return type(self.projection)

    @property
    def version(self) -> int:
        return self.projection.version


def plan_projection(item: Any) -> ProjectionPlan | None:
    """The plan of a projection's class or object; None for anything else."""
    if isinstance(item, Projection):
        return _plan(item)
    if isinstance(item, type) and issubclass(item, Projection) and item is not Projection:
        return _plan(made(item))
    return None


def _plan(projection: Projection) -> ProjectionPlan:
    cls = type(projection)
    name: Any = getattr(cls, "name", None)
    if not isinstance(name, str) or not name or name != name.strip() or len(name) > LONGEST_NAME:
        raise DefinitionError(
            f"{cls.__qualname__} needs a name for the database: name = 'totals' "
            f"(1 to {LONGEST_NAME} characters)"
        )
    if not name.isprintable():
        raise DefinitionError(f"projection {name!r} has a name that cannot be printed")
    if cls.apply is Projection.apply:
        raise DefinitionError(f"projection {name!r} ({cls.__qualname__}) has no method apply")
    for option in ("batch", "version"):
        number: Any = getattr(cls, option)
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise DefinitionError(
                f"projection {name!r} has {option}={number!r}; it must be a number, 1 or more"
            )
    if not isinstance(cls.retry, Retry):
        raise DefinitionError(f"projection {name!r} has retry={cls.retry!r}; write Retry(first=...)")
    return ProjectionPlan(name=name, projection=projection, deciders=_deciders(cls, name))


def _deciders(cls: type[Projection], name: str) -> frozenset[str] | None:
    found = set()
    for decider in cast(Sequence[Any], cls.deciders):
        called = getattr(decider, "type", None)
        if not (isinstance(decider, type) and issubclass(decider, Decider) and isinstance(called, str)):
            raise DefinitionError(
                f"projection {name!r} has {decider!r} among its deciders; give their classes"
            )
        found.add(called)
    return frozenset(found) or None
