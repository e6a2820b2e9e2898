"""What an app serves, and how it loads heroes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from ..definitions.blueprint import Blueprint
from ..definitions.deciders import Decider, DeciderPlan, is_decider
from ..definitions.functions import Definition, FunctionWorkflow, Step
from ..definitions.projections import Projection, ProjectionPlan
from ..errors import ConfigurationError, UnknownDefinition, UnknownProjection
from ..kernel.graph import AWAIT_JOB

Served = Definition[Any, Any] | Blueprint | DeciderPlan | ProjectionPlan
Claimable = Definition[Any, Any] | Blueprint | DeciderPlan


class Registry:
    """What an app serves, by name: functions, steps, templates, and blueprints of workflow classes."""

    def __init__(self, definitions: Iterable[Served]) -> None:
        self._found: dict[str, Claimable] = {}
        self._projections: dict[str, ProjectionPlan] = {}
        self._claimable: frozenset[str] = frozenset()
        self.names: tuple[str, ...] = ()
        self.add(definitions)

    def add(self, definitions: Iterable[Served]) -> None:
        for definition in definitions:
            if isinstance(definition, ProjectionPlan):  # they are not claimed: they have names of their own
                self._projections[definition.name] = definition
            else:
                self._found[definition.name] = definition
        # A worker claims single nodes of a class: those that its code does not have it leaves to others.
        nodes = {f"{plan.name}.{node}" for plan in self.plans for node in plan.nodes}
        letters = {job for plan in self.deciders for job in plan.jobs}
        self.names = tuple(sorted({*self._found, *nodes, *letters, AWAIT_JOB}))
        self._claimable = frozenset(self.names)

    @property
    def all(self) -> list[Served]:
        """Every definition that the app includes."""
        return [*self._found.values(), *self._projections.values()]

    def __contains__(self, definition: Claimable) -> bool:
        return self._found.get(definition.name) is definition

    @property
    def workflows(self) -> list[str]:
        """What can be started."""
        return sorted(
            name for name, found in self._found.items() if not isinstance(found, Step | DeciderPlan)
        )

    @property
    def plans(self) -> list[Blueprint]:
        return [found for found in self._found.values() if isinstance(found, Blueprint)]

    @property
    def deciders(self) -> list[DeciderPlan]:
        return [found for found in self._found.values() if isinstance(found, DeciderPlan)]

    def decider(self, asked: type[Decider[Any, Any, Any, Any]] | str) -> DeciderPlan:
        """The decider of that class, object or type."""
        if isinstance(asked, str):
            found = self._found.get(asked)
            if found is None:
                raise UnknownDefinition(asked)
            if not isinstance(found, DeciderPlan):
                raise _no_decider(asked)
            return found
        given: Any = asked  # perhaps an object of the class, perhaps anything
        if not is_decider(given):
            raise _no_decider(given)
        cls = given if isinstance(given, type) else type(given)
        found = self._found.get(getattr(cls, "type", None) or "")
        if not isinstance(found, DeciderPlan) or found.cls is not cls:
            raise UnknownDefinition(cls.__name__)
        return found

    @property
    def projections(self) -> list[ProjectionPlan]:
        return list(self._projections.values())

    def projection(self, asked: type[Projection] | Projection | str) -> ProjectionPlan:
        """The projection of that class, object or name."""
        name = asked if isinstance(asked, str) else getattr(asked, "name", None)
        found = self._projections.get(name or "")
        cls = asked if isinstance(asked, type) else type(asked)
        if found is None or (not isinstance(asked, str) and found.cls is not cls):
            called = asked if isinstance(asked, str) else getattr(cls, "__name__", str(cls))
            raise UnknownProjection(called, tuple(sorted(self._projections)))
        return found

    def knows(self, name: str) -> bool:
        return name in self._claimable

    def find(self, name: str) -> Claimable | None:
        return self._found.get(name)

    def workflow(self, name: str) -> FunctionWorkflow[Any, Any]:
        found = self._found.get(name)
        if not isinstance(found, FunctionWorkflow):
            raise UnknownDefinition(name)
        return found

    def step(self, name: str) -> Step[Any, Any]:
        found = self._found.get(name)
        if not isinstance(found, Step):
            raise UnknownDefinition(name)
        return found

    def plan(self, name: str) -> Blueprint:
        found = self._found.get(name)
        if not isinstance(found, Blueprint):
            raise UnknownDefinition(name)
        return found


class Heroes(Protocol):
    """How the app loads the subjects of runs."""

    def load(self, type: str, id: str) -> Any:
        """The hero; None if it is gone."""
        ...


def _no_decider(asked: Any) -> ConfigurationError:
    return ConfigurationError(
        f"{asked!r:.200} is not a decider; give a class derived from detent.Decider, or its `type`"
    )
