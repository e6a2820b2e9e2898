"""Attributes: searchable facts of a run, given at its start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..arguments import check_attributes, refuse
from ..kernel.operations import Start
from ..kernel.rows import Attribute
from ..stores.batch.names import unfit_attributes


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
    attributes = check_attributes(where, given)
    unfit = unfit_attributes(attributes)
    if unfit is not None:
        refuse(where, "attributes", given, str(unfit))
    return attributes
