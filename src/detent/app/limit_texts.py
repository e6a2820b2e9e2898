"""Limits of queues as people type them: `10`, `100/1m`, `5m`, `yes`.

The command line and the dashboard read and write limits with this module.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from ..durations import duration_text, parse_duration
from ..kernel.queues import Rate

RATES = ("rate", "key_rate")


def parse_limit(name: str, text: str) -> Any:
    """Return a limit from its text; empty or `none` removes it.  Raises ValueError with an example."""
    given = text.strip().lower()
    if name == "fair":
        if given not in ("yes", "no", "true", "false", ""):
            raise ValueError("write yes or no")
        return given in ("yes", "true")
    if given in ("", "none"):
        return None
    try:
        if name in RATES:
            count, _, per = given.partition("/")
            return Rate(_whole(count), per=parse_duration(per))
        return parse_duration(given) if name == "aging" else _whole(given)
    except ValueError:
        example = "100/1m" if name in RATES else "5m" if name == "aging" else "10"
        raise ValueError(f"{text!r} is not understood; write {example}") from None


def _whole(text: str) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
        raise ValueError(f"{text!r} is not a whole number")
    return int(digits)


def limit_text(value: Any) -> str:
    """Return a limit as `parse_limit` reads it; empty means no limit."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Rate):
        return f"{value.count}/{duration_text(value.per)}"
    return duration_text(value) if isinstance(value, timedelta) else str(value)
