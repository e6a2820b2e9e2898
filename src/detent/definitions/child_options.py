"""The options of a child run: `ship.options(id="ship-42", queue="mail").spawn(order)`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, TypedDict

import msgspec

from ..arguments import (
    check_attributes,
    check_deadline,
    check_priority,
    check_queue,
    check_run_id,
    refuse,
    refuse_unknown,
)
from ..clock import span_micros, to_micros
from ..kernel.queues import check_queue_key
from ..kernel.rows import Attribute

_INSTEAD = {
    "timeout": "use deadline=timedelta(hours=1) to limit the whole child, or @step(timeout=30) for one step",
    "delay": "call detent.sleep() before the child is started, or at the beginning of the child",
}


class ChildKeywords(TypedDict, total=False):
    """The keywords of `ship.options(...)`."""

    id: str | None
    deadline: timedelta | datetime | float | None
    queue: str | None
    key: str | None
    priority: int | None
    attributes: Mapping[str, Attribute] | None


CHILD_DEFAULTS: dict[str, Any] = dict.fromkeys(ChildKeywords.__annotations__)


class ChildOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a child run; None means the default of the workflow or of the parent."""

    where: str
    id: str | None = None
    deadline: timedelta | datetime | None = None
    queue: str | None = None
    key: str | None = None
    priority: int | None = None
    attributes: Mapping[str, Any] = {}

    def deadline_at(self, now: int, limit: int | None) -> int | None:
        """The deadline in microseconds, never later than `limit`, that of the parent."""
        if self.deadline is None:
            return limit
        own = (
            to_micros(self.deadline)
            if isinstance(self.deadline, datetime)
            else now + span_micros(self.deadline)
        )
        return own if limit is None else min(own, limit)

    def refuse_attributes(self, why: str) -> None:
        """Raise for attributes that no database can store."""
        refuse(self.where, "attributes", dict(self.attributes), why)


def checked_child_options(workflow: str, given: Mapping[str, Any]) -> ChildOptions:
    """The options of a child of that workflow, from its keywords."""
    where = f"{workflow}.options()"
    refuse_unknown(where, given, CHILD_DEFAULTS, kind="option", instead=_INSTEAD)
    id, deadline, queue, priority = (given.get(name) for name in ("id", "deadline", "queue", "priority"))
    return ChildOptions(
        where=where,
        id=None if id is None else check_run_id(where, "id", id),
        deadline=None if deadline is None else check_deadline(where, "deadline", deadline),
        queue=None if queue is None else check_queue(where, "queue", queue),
        key=None if given.get("key") is None else check_queue_key(where, given["key"]),
        priority=None if priority is None else check_priority(where, priority),
        attributes=check_attributes(where, given.get("attributes")),
    )
