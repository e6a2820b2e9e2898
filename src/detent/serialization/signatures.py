"""The types in a function's signature: which of them can be read back from the database.

Annotations may name what is defined later, so they are resolved when first needed.  A definition checks
them when it is made, as far as they are known by then, and again when an app includes it.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec

from .annotations import NoForm, name_of
from .forms import Form, form_of

RETURN = "return"


class Signature:
    """The annotations of a function, by the names of its parameters; `return` is its result."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._resolved: dict[str, Any] = {}
        self._forms: dict[str, Form | None] = {}
        self._calls: dict[tuple[int, tuple[str, ...]], tuple[list[Any], dict[str, Any]]] = {}

    def hint(self, name: str) -> Any:
        """An annotation, Any where there is none; raises NameError where it names what is not known yet."""
        if name not in self._resolved:
            annotations = getattr(self._function, "__annotations__", {})
            if name not in annotations:
                return Any
            holder = SimpleNamespace(__annotations__={name: annotations[name]})
            scope = getattr(self._function, "__globals__", {})
            found = typing.get_type_hints(holder, globalns=scope, include_extras=True)[name]
            self._resolved[name] = found
        return self._resolved[name]

    def known_hint(self, name: str) -> Any:
        """The same; None if it cannot be resolved."""
        try:
            return self.hint(name)
        except (NameError, TypeError, AttributeError, SyntaxError):
            return None

    def form(self, name: str) -> Form | None:
        """How values are stored (see forms.py); raises NoForm, or NameError."""
        if name not in self._forms:
            self._forms[name] = form_of(self.hint(name))
        return self._forms[name]

    def problem(self, names: Sequence[str], *, complete: bool) -> str | None:
        """Why values of these could not be read back as annotated.

        Names that are not defined yet are a problem only where everything should be known: `complete`.
        """
        for name in names:
            try:
                self.form(name)
            except NoForm as error:
                return f"{_place(name)} {self._written(name)}: {error}; {ADVICE}"
            except (NameError, AttributeError, SyntaxError) as error:
                if complete:
                    return (
                        f"{_place(name)} {self._written(name)}, which cannot be resolved: {error}; import or "
                        f"define it at the top level of the module, not only under TYPE_CHECKING"
                    )
        return None

    def has_form(self, name: str) -> bool:
        """Whether its values are stored in a form of our own."""
        try:
            return self.form(name) is not None
        except (NoForm, NameError, AttributeError, SyntaxError):
            return False

    def type_of(self, name: str) -> Any:
        """The type that values are decoded to; Any where they cannot be read back as annotated."""
        try:
            self.form(name)
        except (NoForm, NameError, AttributeError, SyntaxError):
            return Any
        hint = self.hint(name)
        return None if hint is type(None) else hint

    def of_call(
        self, parameters: Sequence[inspect.Parameter], count: int, names: tuple[str, ...]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The types of so many arguments without a name, and of those with these names."""
        found = self._calls.get((count, names))
        if found is None:
            others = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), "")
            known = {p.name for p in parameters}
            kinds = {name: self.type_of(name if name in known else others) for name in names}
            found = [self.type_of(name) for name in positional(parameters, count)], kinds
            self._calls[count, names] = found
        return found

    def _written(self, name: str) -> str:
        annotation = self._function.__annotations__[name]
        return annotation if isinstance(annotation, str) else name_of(annotation)


def type_of_call(types: Sequence[Any]) -> Any:
    """The type of a stored call with exactly these arguments, none of them by name."""
    args: Any = tuple
    field: Any = ("args", args[tuple(types)]) if types else ("args", args[()], ())
    return msgspec.defstruct("StoredCall", [field], forbid_unknown_fields=True)


ADVICE = (
    "its values could not be read back from the database. Use plain values, dataclasses, enums, "
    "msgspec Structs, attrs classes or pydantic models, or annotate it as Any"
)


def _place(name: str) -> str:
    return "returns" if name == RETURN else f"has a parameter {name!r} of type"


def positional(parameters: Sequence[inspect.Parameter], count: int) -> list[str]:
    """The names of the parameters that take so many arguments without a name."""
    places = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][:count]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "")
    return places + [rest] * (count - len(places))
