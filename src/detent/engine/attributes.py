"""Attributes: searchable facts of a run, given at its start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..arguments import refuse
from ..kernel.model import RESERVED, Attribute, Start
from ..stores.fitness import unfit_attributes

EXAMPLE = "for example attributes={'customer': 'acme'}"


def with_attributes(start: Start, given: Mapping[str, Attribute] | None) -> Start:
    """The same start, of runs that have these attributes (checked before)."""
    if given:
        attributes = dict(given)
        for run in start.runs:
            run.attributes = attributes
    return start


def checked_changes(given: Any) -> dict[str, Attribute | None]:
    """Attributes to set, and None for those to remove."""
    where = "run.set_attributes()"
    if not isinstance(given, Mapping) or not given:
        refuse(where, "attributes", given, "give a dict of names and values; None removes one")
    checked_attributes(where, {name: "" if value is None else value for name, value in given.items()})
    return dict(given)


def checked_attributes(where: str, given: Any) -> dict[str, Attribute]:
    """The attributes of a run, or those of a query."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        refuse(where, "attributes", given, f"give a dict of names and values, {EXAMPLE}")
    for name, value in given.items():
        if not isinstance(name, str) or not name:
            refuse(where, "attributes", given, f"the name of an attribute is a text, not empty, {EXAMPLE}")
        if name.startswith(RESERVED):
            refuse(
                where,
                "attributes",
                given,
                f"names that begin with {RESERVED!r} are reserved for Detent; use another name instead of"
                f" {name!r}, {EXAMPLE}",
            )
        if not isinstance(value, str | int):  # a bool is an int
            refuse(
                where,
                "attributes",
                given,
                f"attribute {name!r} is {value!r}; attributes are texts, whole numbers and bools, {EXAMPLE}",
            )
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            refuse(where, "attributes", given, f"attribute {name!r} is too large; a number has up to 64 bits")
    attributes = dict(given)
    unfit = unfit_attributes(attributes)
    if unfit is not None:
        refuse(where, "attributes", given, str(unfit))
    return attributes
