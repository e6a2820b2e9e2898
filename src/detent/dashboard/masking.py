"""Masks: payload fields that the dashboard does not show.

    App(url, mask=["card", "password"])                  # fields of these names, at any depth
    dashboard(app, mask=lambda path, value: ...)         # your own rule: return what is shown

What the app or the dashboard masks is hidden.  A mask covers arguments, results, messages, published values,
attributes, events and states, in pages, in the API and in live updates.  It fails closed: where the names of
arguments are not known, because the code of a step is not included, every positional argument is masked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..app.settings import PayloadMask

MASKED = "•••"
Path = tuple[str | int, ...]
Rule = Callable[[Path, Any], Any]


class Mask:
    """What is hidden."""

    def __init__(self, *masks: PayloadMask | None) -> None:
        self._rules: list[Rule] = [mask for mask in masks if callable(mask)]
        lists = [mask for mask in masks if mask is not None and not callable(mask)]
        self._names = frozenset(name.lower() for names in lists for name in names)

    @property
    def active(self) -> bool:
        return bool(self._rules or self._names)

    def hides(self, name: str) -> bool:
        """Whether a field of that name is hidden as a whole."""
        return name.lower() in self._names

    def __call__(self, value: Any, path: Path = ()) -> Any:
        """A decoded JSON value with its hidden parts replaced."""
        if not self.active:
            return value
        for rule in self._rules:
            try:
                shown = rule(path, value)
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
