"""Checks of the arguments of the public API.

Every check takes where the argument was given (`"app.options()"`), its name and the value, and
returns the value in the form that the engine uses:

    delay = check_duration("app.options()", "delay", delay)      # a timedelta; seconds are accepted

A value that is not accepted raises `InvalidArgument`, which names the argument and the value and
says what is accepted, with an example.  Definitions pass `error=InvalidOption`, which is also a
`DefinitionError`.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, NoReturn

from .errors import InvalidArgument

LONGEST_RUN_ID = 200
LONGEST_NAME = 255  # of a queue, a message, a published value
LONGEST_KEY = 500  # of a step, a node, a message: made of other names
LONGEST_DURATION = timedelta(days=36_525)  # 100 years: the longest that locks and timers accept, rounded
SMALLEST_INTEGER, LARGEST_INTEGER = -(2**31), 2**31 - 1  # of an INTEGER column

# The parts that a duration may be given in.
UNITS = {
    name: timedelta(**{name: 1})
    for name in ("microseconds", "milliseconds", "seconds", "minutes", "hours", "days", "weeks")
}
_NOTHING = timedelta(0)
_shortened = reprlib.Repr()
_shortened.maxstring = _shortened.maxother = _shortened.maxlong = 80


def refuse(
    where: str, argument: str, value: Any, advice: str, error: type[InvalidArgument] = InvalidArgument
) -> NoReturn:
    """Raise the error for an argument that is not accepted."""
    raise error(where, argument, _shortened.repr(value), advice)


def refuse_unknown(
    where: str,
    given: Mapping[str, Any],
    known: Iterable[str],
    *,
    kind: str = "argument",
    instead: Mapping[str, str] | None = None,
    error: type[InvalidArgument] = InvalidArgument,
) -> None:
    """Refuse the first name in `given` that is not in `known`, and suggest the nearest one.

    `instead` has the advice for names that people expect to find.
    """
    names = sorted(known)
    for name, value in given.items():
        if name in names:
            continue
        import difflib  # only needed for a mistake

        advice = f"there is no {kind} {name!r}"
        nearest = difflib.get_close_matches(name, names, n=1)
        if instead is not None and name in instead:
            advice += f"; {instead[name]}"
        elif nearest:
            advice += f"; did you mean {nearest[0]!r}?"
        else:
            advice += f"; it is one of {', '.join(names)}"
        refuse(where, name, value, advice, error)


def check_text(
    where: str,
    argument: str,
    value: Any,
    *,
    example: str,
    longest: int = LONGEST_NAME,
    error: type[InvalidArgument] = InvalidArgument,
) -> str:
    """A text that every database stores unchanged."""
    what = f"give a text of 1 to {longest} printable characters, for example {argument}={example!r}"
    if not isinstance(value, str):
        refuse(where, argument, value, what, error)
    if not value:
        refuse(where, argument, value, f"it is empty: {what}", error)
    if len(value) > longest:
        refuse(where, argument, value, f"it has {len(value)} characters: {what}", error)
    if not value.isprintable():
        refuse(
            where,
            argument,
            value,
            f"it has control characters or surrogates, which databases refuse; {what}",
            error,
        )
    if value[-1] == " ":
        refuse(where, argument, value, "it ends with a space, which MySQL ignores; remove the space", error)
    return value


def check_run_id(where: str, argument: str, value: Any) -> str:
    """The id of a run."""
    if not isinstance(value, str) and isinstance(getattr(value, "id", None), str):
        refuse(where, argument, value, f"give the id of the run: {argument}=run.id")
    return check_text(where, argument, value, example="order-42", longest=LONGEST_RUN_ID)


def check_stored_id(where: str, argument: str, value: Any) -> str:
    """The id of a run that exists: the engine makes ids that are longer than those of users."""
    return check_text(where, argument, value, example="order-42")


def check_message(where: str, name: Any, id: Any = None) -> None:
    """The name of a message, and the id that its sender has chosen."""
    check_text(where, "name", name, example="approved")
    if id is not None:
        check_text(where, "id", id, example="event-7", longest=LONGEST_KEY)


def check_node(where: str, argument: str, value: Any) -> str:
    """The name of a node or of a step."""
    return check_text(where, argument, value, example="charge", longest=LONGEST_KEY)


def check_reason(where: str, value: Any) -> str | None:
    """A remark by the caller; None if there is none."""
    example = "for example reason='the bank is closed'"
    if value is None:
        return value
    if not isinstance(value, str):
        refuse(where, "reason", value, f"give a text, {example}")
    if "\0" in value or any("\ud800" <= char <= "\udfff" for char in value):
        refuse(where, "reason", value, f"it has NUL or a surrogate, which databases refuse; {example}")
    return value


def check_queue(
    where: str, argument: str, value: Any, *, error: type[InvalidArgument] = InvalidArgument
) -> str:
    """The name of a queue."""
    return check_text(where, argument, value, example="mail", error=error)


def check_queues(where: str, value: Any) -> tuple[str, ...]:
    """The queues that an app declares."""
    if isinstance(value, str) or not isinstance(value, Collection) or not value:
        refuse(where, "queues", value, "give a list of names, for example queues=['default', 'mail']")
    return tuple(check_queue(where, "queues", name) for name in value)


def check_priority(where: str, value: Any, *, error: type[InvalidArgument] = InvalidArgument) -> int:
    """A priority: any whole number that fits in the database's column."""
    what = "give a whole number; higher numbers run first, for example priority=10"
    if isinstance(value, bool) or not isinstance(value, int):
        refuse(where, "priority", value, what, error)
    if not SMALLEST_INTEGER <= value <= LARGEST_INTEGER:
        limits = f"the range is {SMALLEST_INTEGER:,} to {LARGEST_INTEGER:,}"
        refuse(where, "priority", value, f"{what}; {limits}", error)
    return value


def check_count(
    where: str,
    argument: str,
    value: Any,
    *,
    least: int = 1,
    most: int = LARGEST_INTEGER,
    example: int = 10,
    error: type[InvalidArgument] = InvalidArgument,
) -> int:
    """A whole number within limits."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        limits = f"from {least} to {most:,}" if most < LARGEST_INTEGER else f"{least} or more"
        refuse(
            where, argument, value, f"give a whole number, {limits}, for example {argument}={example}", error
        )
    return value


def check_number(
    where: str,
    argument: str,
    value: Any,
    *,
    least: float,
    most: float = math.inf,
    example: float,
    error: type[InvalidArgument] = InvalidArgument,
) -> float:
    """A finite number within limits."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not least <= value <= most  # NaN is not
        or not _finite(value)
    ):
        limits = f"{least:g} or more" if math.isinf(most) else f"from {least:g} to {most:g}"
        refuse(where, argument, value, f"give a number, {limits}, for example {argument}={example:g}", error)
    return value


def check_flag(
    where: str, argument: str, value: Any, *, error: type[InvalidArgument] = InvalidArgument
) -> bool:
    """True or False; other values that Python treats as true or false are not accepted."""
    if not isinstance(value, bool):
        refuse(where, argument, value, "give True or False", error)
    return value


def check_choice(
    where: str,
    argument: str,
    value: Any,
    choices: Collection[str],
    *,
    error: type[InvalidArgument] = InvalidArgument,
) -> str:
    """One of several words."""
    if not isinstance(value, str) or value not in choices:
        refuse(where, argument, value, f"give one of {', '.join(map(repr, map(str, choices)))}", error)
    return value


def check_function(
    where: str,
    argument: str,
    value: Any,
    *,
    takes: str,
    error: type[InvalidArgument] = InvalidArgument,
) -> Any:
    """A function, or another callable object."""
    if not callable(value):
        refuse(where, argument, value, f"give a function that takes {takes}", error)
    return value


def check_duration(
    where: str,
    argument: str,
    value: Any,
    *,
    least: timedelta | None = _NOTHING,
    error: type[InvalidArgument] = InvalidArgument,
) -> timedelta:
    """A duration: a timedelta, or a number of seconds.  `least=None` accepts negative ones."""
    if isinstance(value, timedelta):
        found = value
    elif isinstance(value, int | float) and not isinstance(value, bool) and _finite(value):
        if abs(value) > LONGEST_DURATION.total_seconds():
            refuse(where, argument, value, _too_long(argument), error)
        found = timedelta(seconds=value)
    else:
        advice = f"give a timedelta or a number of seconds, for example {argument}=timedelta(minutes=5)"
        refuse(where, argument, value, advice, error)
    if abs(found) > LONGEST_DURATION:
        refuse(where, argument, value, _too_long(argument), error)
    if least is not None and found < least:
        limit = "it cannot be negative" if not least else f"it must be at least {least.total_seconds():g} s"
        refuse(where, argument, value, f"{limit}, for example {argument}=timedelta(minutes=5)", error)
    return found


def check_parts(where: str, parts: Mapping[str, Any], *, least: timedelta | None = _NOTHING) -> timedelta:
    """A duration that is given in parts: minutes=5, hours=2."""
    refuse_unknown(where, parts, UNITS)
    total = _NOTHING
    for name, value in parts.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not _finite(value):
            refuse(where, name, value, f"give a number, for example {name}=5")
        if abs(value) > LONGEST_DURATION / UNITS[name]:
            refuse(where, name, value, f"it is at most {LONGEST_DURATION.days:,} days, for example {name}=5")
        total += value * UNITS[name]
    return check_duration(where, "duration", total, least=least)


def check_timeout(where: str, value: Any) -> float | None:
    """How long a caller waits, in seconds; None is without limit, a negative one does not wait."""
    if value is None:
        return None
    return max(0.0, check_duration(where, "timeout", value, least=None).total_seconds())


def check_positive_duration(
    where: str, argument: str, value: Any, *, error: type[InvalidArgument] = InvalidArgument
) -> timedelta:
    """A duration that is longer than nothing."""
    found = check_duration(where, argument, value, error=error)
    if not found:
        refuse(
            where,
            argument,
            value,
            f"it must be more than 0, for example {argument}=timedelta(minutes=5)",
            error,
        )
    return found


def check_age(where: str, argument: str, value: Any) -> timedelta:
    """How long data is kept before it is deleted.

    Seconds are not accepted: a number that was meant as days would delete almost everything.
    """
    if not isinstance(value, timedelta):
        advice = "give a timedelta; it decides what is deleted, so a plain number is not accepted"
        refuse(where, argument, value, f"{advice}, for example {argument}=timedelta(days=30)")
    return check_duration(where, argument, value)


def check_moment(
    where: str, argument: str, value: Any, *, error: type[InvalidArgument] = InvalidArgument
) -> datetime:
    """A datetime with a time zone."""
    example = f"for example {argument}=datetime.now(UTC) + timedelta(hours=1)"
    if not isinstance(value, datetime):
        refuse(where, argument, value, f"give a datetime with a time zone, {example}", error)
    if value.utcoffset() is None:
        refuse(
            where, argument, value, f"it has no time zone, so it is not a definite moment; {example}", error
        )
    return value


def check_deadline(where: str, argument: str, value: Any) -> timedelta | datetime:
    """A moment, or a duration from now."""
    if isinstance(value, datetime):
        return check_moment(where, argument, value)
    if isinstance(value, timedelta | int | float):
        return check_positive_duration(where, argument, value)
    refuse(
        where,
        argument,
        value,
        f"give a timedelta, a number of seconds or a datetime with a time zone, "
        f"for example {argument}=timedelta(hours=1)",
    )


RESERVED = "detent."  # how names of attributes begin that belong to Detent


def check_attributes(where: str, value: Any) -> dict[str, str | int | bool]:
    """Attributes of a run, by name; None is no attributes.  Their lengths are checked with the database."""
    example = "for example attributes={'customer': 'acme'}"
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        refuse(where, "attributes", value, f"give a dict of names and values, {example}")
    for name, one in value.items():
        if not isinstance(name, str) or not name:
            refuse(
                where,
                "attributes",
                value,
                f"the name of an attribute must be a text that is not empty, {example}",
            )
        if name.startswith(RESERVED):
            refuse(where, "attributes", value, f"names that begin with {RESERVED!r} are reserved, {example}")
        if not isinstance(one, str | int):  # a bool is an int
            refuse(
                where,
                "attributes",
                value,
                f"attribute {name!r} is {one!r}; attributes are texts, whole numbers and bools, {example}",
            )
        if isinstance(one, int) and not -(2**63) <= one < 2**63:
            refuse(where, "attributes", value, f"attribute {name!r} is too large; a number has up to 64 bits")
    return dict(value)


def _finite(value: float) -> bool:
    return isinstance(value, int) or math.isfinite(value)  # math cannot convert a huge int


def _too_long(argument: str) -> str:
    return f"it is at most {LONGEST_DURATION.days:,} days, for example {argument}=timedelta(days=365)"
