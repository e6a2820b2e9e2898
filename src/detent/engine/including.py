"""What an app serves: definitions given, those of modules given, and those that they call."""

from __future__ import annotations

from collections.abc import Iterable
from types import CodeType, ModuleType
from typing import Any

from ..errors import DefinitionError
from ..functions import Definition, Step


def collect(include: Iterable[Any]) -> list[Definition[Any, Any]]:
    """The definitions of an app: those given, those of modules given, and those that they call."""
    found: dict[str, Definition[Any, Any]] = {}
    todo: list[Any] = list(include)
    while todo:
        item = todo.pop(0)
        if isinstance(item, ModuleType):
            todo += [value for value in vars(item).values() if isinstance(value, Definition)]
        elif isinstance(item, Definition):
            known = found.get(item.name)
            if known is item:
                continue
            if known is not None:
                raise DefinitionError(
                    f"two definitions are called {item.name!r}: {_place(known)} and {_place(item)}; "
                    f"give one of them another name, @{item.kind}(id=...)"
                )
            found[item.name] = item
            todo += _mentioned(item)
        else:
            raise DefinitionError(f"include takes workflows, steps and modules, not {item!r}")
    return list(found.values())


def _mentioned(definition: Definition[Any, Any]) -> list[Definition[Any, Any]]:
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
    return [value for value in found if isinstance(value, Definition)]


def _names(code: CodeType) -> Iterable[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _place(definition: Definition[Any, Any]) -> str:
    return f"{definition.__module__}.{definition.__qualname__}"
