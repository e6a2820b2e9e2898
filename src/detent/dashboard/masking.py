"""Masks: payload fields that nobody sees in the dashboard.

    dashboard(app, mask=["card", "password"])           # fields of these names, at any depth
    dashboard(app, mask=lambda path, value: ...)         # your own rule: return what is shown

A mask covers arguments, results, messages, published values, attributes, events and states, in pages, in the
API and in live updates.  It fails closed: where the names of arguments are not known, because the code of a
step is not included, every positional argument is masked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..errors import ConfigurationError

MASKED = "•••"
Path = tuple[str | int, ...]
Rule = Callable[[Path, Any], Any]


class Mask:
    """What is hidden."""

    def __init__(self, given: Iterable[str] | Rule | None) -> None:
        self._rule: Rule | None = None
        self._names: frozenset[str] = frozenset()
        if callable(given):
            self._rule = given
        elif isinstance(given, str):
            raise ConfigurationError(f"mask={given!r}: give a list of field names: mask=[{given!r}]")
        elif given is not None:
            names = list(given)
            if not all(names):
                raise ConfigurationError(f"mask={names!r}: give names of fields, or a function")
            self._names = frozenset(name.lower() for name in names)

    @property
    def active(self) -> bool:
        return self._rule is not None or bool(self._names)

    def hides(self, name: str) -> bool:
        """Whether a field of that name is hidden as a whole."""
        return name.lower() in self._names

    def __call__(self, value: Any, path: Path = ()) -> Any:
        """A decoded JSON value with its hidden parts replaced."""
        if not self.active:
            return value
        if self._rule is not None:
            try:
                shown = self._rule(path, value)
            except Exception:  # a rule that fails hides what it was asked about
                return MASKED
            if shown is not value:
                return shown
        if path and isinstance(path[-1], str) and self.hides(path[-1]):
            return MASKED
        if isinstance(value, dict):
            return {key: self(item, (*path, str(key))) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self(item, (*path, place)) for place, item in enumerate(value)]
        return value
