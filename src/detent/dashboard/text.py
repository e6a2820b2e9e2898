"""Text for people: durations, sizes, times, and what hostile input may look like.

Templates escape everything.  This module takes care of what escaping does not: control characters, characters
that turn the direction of writing around, and texts of a megabyte.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

LONGEST = 20_000  # characters of a payload on a page; the API has all of it
LONGEST_LINE = 300  # of a name or a message in a list
# C0 and C1 controls (without tab and newline), bidirectional controls, zero-width characters, order marks.
_INVISIBLE = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u200b-\\u200f\\u202a-\\u202e\\u2060-\\u2069\\ufeff\\ufff9-\\ufffb]"
)


def visible(text: Any, longest: int = LONGEST_LINE) -> str:
    """A text whose every character can be seen, cut at `longest`."""
    whole = str(text)
    cut = whole[:longest]
    shown = _INVISIBLE.sub(lambda match: f"\\u{ord(match[0]):04x}", cut)
    return shown if len(whole) <= longest else f"{shown}… ({len(whole):,} characters)"


def block(text: Any) -> str:
    """The same for a longer text, such as a payload or a traceback."""
    return visible(text, LONGEST)


def duration(seconds: float | None) -> str:
    """`850 ms`, `2.4 s`, `3 min 5 s`, `2 h 10 min`, `3 d 4 h`."""
    if seconds is None:
        return "–"
    if seconds < 0.0005:
        return "0 ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:.1f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    for size, unit, small, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            big, rest = divmod(int(seconds), size)
            return f"{big} {unit} {rest // small} {smaller}" if rest // small else f"{big} {unit}"
    raise AssertionError(seconds)


def ago(moment: datetime, now: datetime) -> str:
    """`now`, `12 s ago`, `3 min ago`, `in 2 h`."""
    seconds = (now - moment).total_seconds()
    if abs(seconds) < 1:
        return "now"
    size, unit = next(
        (size, unit)
        for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
        if abs(seconds) >= size
    )
    number = int(abs(seconds) // size)
    return f"in {number} {unit}" if seconds < 0 else f"{number} {unit} ago"


def iso(moment: datetime | None) -> str | None:
    """A time for machines."""
    return (
        None
        if moment is None
        else moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )


def exact(moment: datetime) -> str:
    """A time for people, in UTC; the browser shows the viewer's own zone."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"


def number(value: float) -> str:
    """`1,234`, `12.5`, `0.02`."""
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.1f}" if value >= 10 else f"{value:.2f}"


def count(value: int, most: int) -> str:
    """A count that ends at `most`: `9,999`, then `10,000+`."""
    return f"{most:,}+" if value >= most else f"{value:,}"


def short_type(name: str) -> str:
    """`ValueError` for `builtins.ValueError`."""
    return name.rpartition(".")[2] or name
