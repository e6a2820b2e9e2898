"""Queues and their limits: what users declare, what the database stores, and which of the two applies.

    Queue("llm", per_worker=4, key_concurrency=2, key_rate=Rate(20, per=timedelta(seconds=1)), fair=True)

`Queue` and `Rate` are what users write.  `Limits` is the same in the form that the database stores, in
microseconds.  An operator's change is stored beside the declared value:

    1. A change applies as long as the code declares the value that it replaced.
    2. When the code declares another value, that value applies.

Who may begin next is decided in `admission.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypedDict

import msgspec

from ..arguments import check_count, check_flag, check_positive_duration, check_text, refuse
from ..clock import span_micros
from ..errors import InvalidArgument, InvalidOption
from ..serialization.decoders import convert

LONGEST_QUEUE_KEY = 200  # characters: an index of MySQL holds no more beside the other columns
SHORTEST_PERIOD = timedelta(milliseconds=1)
# The key in the database of executions without one, on queues where keys take turns.  No user can give it,
# for it is not printable.  MySQL, which fills texts up with spaces to compare them, sorts it behind "".
KEYLESS = "\x7f"
QUEUE = "Queue()"


@dataclass(frozen=True, slots=True, init=False)
class Rate:
    """At most `count` begin in every window of the length `per`.

        Queue("mail", rate=Rate(100, per=timedelta(minutes=1)))

    The window slides: there is no moment at which a counter starts again from zero.
    """

    count: int
    per: timedelta

    def __init__(self, count: int, per: timedelta | float) -> None:
        check_count("Rate()", "count", count, example=100, error=InvalidOption)
        period = check_positive_duration("Rate()", "per", per, error=InvalidOption)
        if period < SHORTEST_PERIOD:
            refuse("Rate()", "per", per, "it must be at least one millisecond", InvalidOption)
        object.__setattr__(self, "count", count)
        object.__setattr__(self, "per", period)


@dataclass(frozen=True, slots=True, init=False)
class Queue:
    """A queue of an app, with its limits.

        app = detent.App(url, queues=[Queue("mail", concurrency=50, rate=Rate(100, per=60))])
        app.options(queue="mail", key="customer-7").start(welcome, 42)

    `concurrency` limits how many execute at a time over all workers, `per_worker` in one worker,
    `key_concurrency` for one key.  `rate` and `key_rate` limit how many begin.  With `fair` the keys
    take turns.  With `aging` an execution gains one level of priority each time it has waited that long.
    A queue without any of these is not limited, and costs nothing.
    """

    name: str
    concurrency: int | None
    per_worker: int | None
    key_concurrency: int | None
    rate: Rate | None
    key_rate: Rate | None
    fair: bool
    aging: timedelta | None

    def __init__(
        self,
        name: str,
        *,
        concurrency: int | None = None,
        per_worker: int | None = None,
        key_concurrency: int | None = None,
        rate: Rate | None = None,
        key_rate: Rate | None = None,
        fair: bool = False,
        aging: timedelta | float | None = None,
    ) -> None:
        check_text(QUEUE, "name", name, example="mail", error=InvalidOption)
        given = {
            "concurrency": concurrency,
            "per_worker": per_worker,
            "key_concurrency": key_concurrency,
            "rate": rate,
            "key_rate": key_rate,
            "fair": fair,
            "aging": aging,
        }
        for field, value in {"name": name, **checked_limits(QUEUE, given, InvalidOption)}.items():
            object.__setattr__(self, field, value)

    @property
    def limits(self) -> Limits:
        """The limits, as they are stored."""
        return Limits(**stored({name: getattr(self, name) for name in LIMITS}))


class LimitKeywords(TypedDict, total=False):
    """The keywords of `queue.set(...)`."""

    concurrency: int | None
    per_worker: int | None
    key_concurrency: int | None
    rate: Rate | None
    key_rate: Rate | None
    fair: bool
    aging: timedelta | float | None


LIMIT_DEFAULTS: dict[str, Any] = {**dict.fromkeys(LimitKeywords.__annotations__), "fair": False}


def checked_limits(
    where: str, given: Mapping[str, Any], error: type[InvalidArgument] = InvalidArgument
) -> dict[str, Any]:
    """Limits by name, as `Queue` holds them; None removes a limit."""
    checked = dict(given)
    for name, value in given.items():
        if name == "fair":
            check_flag(where, name, value, error=error)
        elif value is None:
            continue
        elif name == "aging":
            checked[name] = check_positive_duration(where, name, value, error=error)
        elif name in ("rate", "key_rate"):
            if not isinstance(value, Rate):
                example = f"{name}=Rate(100, per=timedelta(minutes=1))"
                refuse(where, name, value, f"give a Rate, for example {example}", error)
        else:
            check_count(where, name, value, error=error)
    return checked


def given_key(stored: str | None) -> str | None:
    """A key from the database as it was given; None if none was."""
    return None if stored == KEYLESS else stored


def check_queue_key(where: str, value: Any, *, error: type[InvalidArgument] = InvalidArgument) -> str:
    """The key of an execution: the customer, tenant or account whose limits it counts against."""
    return check_text(where, "key", value, example="customer-7", longest=LONGEST_QUEUE_KEY, error=error)


# As the database stores it


class Period(msgspec.Struct, frozen=True, gc=False):
    """A rate, in microseconds."""

    count: int
    per: int


class Limits(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The limits of a queue; durations are in microseconds."""

    concurrency: int | None = None
    per_worker: int | None = None
    key_concurrency: int | None = None
    rate: Period | None = None
    key_rate: Period | None = None
    fair: bool = False
    aging: int | None = None

    @property
    def limited(self) -> bool:
        """Whether executions of this queue are claimed by the path that counts."""
        return self != NO_LIMITS

    @property
    def keyed(self) -> bool:
        """Whether the keys of executions matter."""
        return self.fair or self.key_concurrency is not None or self.key_rate is not None


NO_LIMITS = Limits()
LIMITS = Limits.__struct_fields__


def stored(given: Mapping[str, Any]) -> dict[str, Any]:
    """Limits by name in the form of `Limits`."""
    return {name: _stored(value) for name, value in given.items()}


def _stored(value: Any) -> Any:
    if isinstance(value, Rate):
        return Period(value.count, span_micros(value.per))
    return span_micros(value) if isinstance(value, timedelta) else value


def shown(limits: Limits) -> dict[str, Any]:
    """Limits by name as users write them: `Rate`, `timedelta`, numbers."""
    values: dict[str, Any] = {name: getattr(limits, name) for name in LIMITS}
    for name, value in values.items():
        if isinstance(value, Period):
            values[name] = Rate(value.count, timedelta(microseconds=value.per))
    if limits.aging is not None:
        values["aging"] = timedelta(microseconds=limits.aging)
    return values


class Change(msgspec.Struct, frozen=True, gc=False):
    """One limit as an operator has set it, and the declared value that it replaces."""

    value: Any
    instead_of: Any


class Configured(msgspec.Struct, frozen=True, kw_only=True):
    """The row of a queue: what the code declares, what operators have changed, whether it is paused."""

    name: str
    declared: Limits = NO_LIMITS
    changes: dict[str, Change] = {}
    paused_at: int | None = None
    reason: str | None = None
    turn: str = ""  # the key that had the last turn

    @property
    def limits(self) -> Limits:
        """The limits that apply."""
        applied = {name: change.value for name, change in self.applied.items()}
        return convert({**_plain(self.declared), **applied}, Limits) if applied else self.declared

    @property
    def applied(self) -> dict[str, Change]:
        """The changes that apply: the code still declares what they replaced."""
        declared = _plain(self.declared)
        return {name: one for name, one in self.changes.items() if one.instead_of == declared[name]}

    @property
    def limited(self) -> bool:
        """Whether its executions are claimed by the path that counts."""
        return self.paused_at is not None or self.limits.limited

    def changed(self, given: Mapping[str, Any]) -> Configured:
        """The same with these limits set by an operator; setting the declared value removes a change."""
        declared = _plain(self.declared)
        plain = {name: msgspec.to_builtins(value) for name, value in given.items()}
        changes = {name: one for name, one in self.applied.items() if name not in plain}
        changes |= {
            name: Change(value, declared[name]) for name, value in plain.items() if value != declared[name]
        }
        return msgspec.structs.replace(self, changes=changes)


def _plain(limits: Limits) -> dict[str, Any]:
    """All limits by name, as JSON holds them."""
    return {name: msgspec.to_builtins(getattr(limits, name)) for name in LIMITS}
