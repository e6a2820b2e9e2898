"""Durations and limits as people type them: `90s`, `5m`, `100/1m`."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

from ..kernel.queues import Rate

_SPAN = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*(ms|s|m|min|h|d|w)?")
_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "min": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
RATES = ("rate", "key_rate")


def span_of(text: str) -> timedelta:
    """`90s`, `5m`, `2h`, `1d`; a number alone is seconds.  ValueError if it is none of these."""
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a duration; write 90s, 5m, 2h or 1d")
    return float(match[1]) * _UNITS[match[2] or "s"]


def span_text(span: timedelta) -> str:
    """The shortest text that `span_of` reads as the same: `90s`, `5m`, `2h`."""
    seconds = span.total_seconds()
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds and seconds % size == 0:
            return f"{int(seconds // size)}{unit}"
    return f"{seconds:g}s"


def limit_of(name: str, text: str) -> Any:
    """A limit of a queue from its text; empty or `none` removes it.  ValueError if it is not understood."""
    given = text.strip().lower()
    if name == "fair":
        if given not in ("yes", "no", "true", "false", ""):
            raise ValueError("fair: write yes or no")
        return given in ("yes", "true")
    if given in ("", "none"):
        return None
    try:
        if name in RATES:
            count, slash, per = given.partition("/")
            if not slash:
                raise ValueError
            return Rate(_whole(count), per=span_of(per))
        return span_of(given) if name == "aging" else _whole(given)
    except ValueError:
        example = "100/1m" if name in RATES else "5m" if name == "aging" else "10"
        raise ValueError(f"{name}: {text!r} is not understood; write {example}, or leave it empty") from None


def _whole(text: str) -> int:
    if not (text.strip().isascii() and text.strip().isdigit() and len(text.strip()) < 10):
        raise ValueError
    return int(text)


def limit_text(value: Any) -> str:
    """A limit as `limit_of` reads it; empty: no limit."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Rate):
        return f"{value.count}/{span_text(value.per)}"
    return span_text(value) if isinstance(value, timedelta) else str(value)
