"""What an app serves: definitions given, those of modules given, and those that they call."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from types import CodeType, ModuleType
from typing import Any

from ..definitions.blueprint import Blueprint
from ..definitions.deciders import Decider, DeciderPlan, plan_decider
from ..definitions.functions import Definition, Step
from ..definitions.graphs import Graph, plan_of
from ..definitions.projections import Projection, ProjectionPlan, plan_projection
from ..errors import DefinitionError, UnknownDefinition
from ..execution.registry import Registry, Served

log = logging.getLogger("detent")


def collect(include: Any) -> list[Served]:
    """The definitions of an app: the given one or ones, those of modules given, and those that they call."""
    found: dict[tuple[bool, str], Served] = {}  # projections have names of their own
    several = isinstance(include, Iterable) and not isinstance(include, str | Mapping)
    todo: list[Any] = list(include) if several else [include]
    while todo:
        item = todo.pop(0)
        if isinstance(item, ModuleType):
            todo += [value for value in vars(item).values() if _of_module(value)]
            continue
        if isinstance(item, Graph):
            todo += item.jobs.values()
            continue
        served = plan_of(item) or plan_decider(item) or plan_projection(item) or item
        if not isinstance(served, Definition | Blueprint | DeciderPlan | ProjectionPlan):
            raise DefinitionError(
                f"include takes workflows, classes, templates, steps, deciders, projections and modules, "
                f"not {item!r}"
            )
        key = isinstance(served, ProjectionPlan), served.name
        known = found.get(key)
        if known is served or (isinstance(known, DeciderPlan | ProjectionPlan) and item is known.cls):
            continue
        if known is not None:
            raise DefinitionError(
                f"two definitions have the name {served.name!r}: {place_of(known)} and {place_of(served)}; "
                f"give one of them another name, " + _other_name(served)
            )
        if isinstance(served, Step) and served.is_method:
            raise DefinitionError(f"{served!r} is a method; include its class")
        if isinstance(served, Definition | Blueprint):
            served.check_types()
        found[key] = served
        if isinstance(served, Definition):
            todo += _mentioned(served)
        elif isinstance(served, Blueprint):
            todo += _jobs(served)
        elif isinstance(served, ProjectionPlan):
            todo += served.projection.deciders
    return list(found.values())


def replace_redefined(registry: Registry, definition: Served) -> bool:
    """Serve a function that was defined again, as a notebook does when a cell is run again.

    The latest definition of a step or a workflow at the top level of a module replaces the earlier one.
    One from inside of a function does not: another call of that function makes another definition.
    """
    known = registry.find(definition.name)
    if known is None or not _redefines(known, definition):
        return False
    found = [served for served in collect([definition]) if registry.find(served.name) is not served]
    for served in found:
        other = None if isinstance(served, ProjectionPlan) else registry.find(served.name)
        if other is not None and not _redefines(other, served):
            raise UnknownDefinition(served.name, place_of(other))
    registry.add(found)
    log.info("%s was defined again: the latest definition replaces the earlier one", definition.name)
    return True


def _redefines(known: Served, latest: Served) -> bool:
    return (
        isinstance(known, Definition)
        and type(known) is type(latest)
        and place_of(known) == place_of(latest)
        and "<locals>" not in place_of(latest)
    )


def _other_name(served: Served) -> str:
    if isinstance(served, DeciderPlan):
        return "type = '...'"
    if isinstance(served, ProjectionPlan):
        return "name = '...'"
    return "class ...(Workflow, name=...)" if isinstance(served, Blueprint) else f"@{served.kind}(id=...)"


def _of_module(value: Any) -> bool:
    plan = plan_of(value)
    if isinstance(value, type) and issubclass(value, Decider):
        return isinstance(getattr(value, "type", None), str)
    if isinstance(value, type) and issubclass(value, Projection):
        return isinstance(getattr(value, "name", None), str)
    return isinstance(value, Definition) or (plan is not None and not plan.abstract)


def _jobs(plan: Blueprint) -> list[Any]:
    """What a class names as jobs."""
    return [node.options.job for node in plan.nodes.values() if node.options.job is not None]


def _mentioned(definition: Definition[Any, Any]) -> list[Any]:
    """Steps and workflows that a definition's code names, so that they need not be listed one by one."""
    function = definition.function
    code: CodeType | None = getattr(function, "__code__", None)
    found: list[Any] = []
    if code is not None:
        names = set(_names(code))
        found += [value for name, value in function.__globals__.items() if name in names]
        for cell in function.__closure__ or ():
            try:
                found.append(cell.cell_contents)
            except ValueError:  # not assigned yet
                continue
    if isinstance(definition, Step) and definition.compensation is not None:
        found.append(definition.compensation)
    return [value for value in found if _of_module(value)]


def _names(code: CodeType) -> Iterable[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def place_of(served: Served) -> str:
    """The module and the name by which a definition can be found."""
    of: Any = served.cls if isinstance(served, Blueprint | DeciderPlan | ProjectionPlan) else served
    return f"{of.__module__}.{of.__qualname__}"
