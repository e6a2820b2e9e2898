"""Attributes: searchable facts of a run, given at its start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ConfigurationError
from ..kernel.model import Attribute, Start
from ..stores.fitness import unfit_attributes


def with_attributes(start: Start, given: Any) -> Start:
    """The same start, of runs that can be found by these."""
    if given:
        attributes = checked_attributes(given)
        for run in start.runs:
            run.attributes = attributes
    return start


def checked_changes(given: Any) -> dict[str, Attribute | None]:
    """Attributes to set, and None for those to remove; ConfigurationError where they are none."""
    if not isinstance(given, Mapping) or not given:
        raise ConfigurationError(f"attributes={given!r}: give a dict of names and values; None removes one")
    checked_attributes({name: "" if value is None else value for name, value in given.items()})
    return dict(given)


def checked_attributes(given: Any) -> dict[str, Attribute]:
    """The attributes of a run, or those that are asked for; ConfigurationError where they are none."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"attributes={given!r}: give a dict of names and values")
    for name, value in given.items():
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"an attribute's name is a text that is not empty, not {name!r}")
        if not isinstance(value, str | int):  # a bool is an int
            raise ConfigurationError(
                f"attribute {name!r} is {value!r}; attributes are texts, whole numbers and bools"
            )
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ConfigurationError(f"attribute {name!r} is too large; a number has at most 64 bits")
    attributes = dict(given)
    unfit = unfit_attributes(attributes)
    if unfit is not None:
        raise ConfigurationError(str(unfit))
    return attributes
