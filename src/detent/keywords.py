"""Keywords that are declared once, as a TypedDict, and shown everywhere.

    class StartOptions(TypedDict, total=False):
        id: str | None
        priority: int | None

    @shows(StartOptions, defaults={"id": None, "priority": None})
    def options(self, **options: Unpack[StartOptions]) -> Starter: ...

Type checkers and editors read `Unpack[StartOptions]`.  `help()` and `inspect.signature()` do not, so
`shows` gives them a signature with the keywords in it.  The function itself still gets a dict, and can
answer an unknown keyword with a better message than Python's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def shows(keywords: type, *, defaults: Mapping[str, Any]) -> Callable[[F], F]:
    """Show the keys of a TypedDict as keywords of a function, in place of its `**options`."""

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        listed = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults[name],
                annotation=getattr(type, "__forward_arg__", type),
            )
            for name, type in keywords.__annotations__.items()
        ]
        function.__signature__ = signature.replace(parameters=[*own, *listed])  # type: ignore[attr-defined]
        return function

    return decorate


def defaults_of_fields(cls: Any) -> dict[str, Any]:
    """The defaults of a struct by field, all of which have one."""
    return dict(zip(cls.__struct_fields__, cls.__struct_defaults__, strict=True))


def defaults_of_parameters(function: Callable[..., Any]) -> dict[str, Any]:
    """The defaults of a function's parameters, for those that have one."""
    parameters = inspect.signature(function).parameters.values()
    return {one.name: one.default for one in parameters if one.default is not one.empty}
