"""Durations as people type them: `90s`, `5m`, `2h`, `1d`.

The command line and the dashboard read and write durations with this module.
"""

from __future__ import annotations

import re
from datetime import timedelta

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d|w)?", re.ASCII)
_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "min": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}


def parse_duration(text: str) -> timedelta:
    """Return the duration; a number alone is seconds.  Raises ValueError with an example."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError(f"{text!r} is not a duration; write 90, 90s, 5m, 2h or 1d")
    try:
        return float(match[1]) * _UNITS[match[2] or "s"]
    except OverflowError:
        raise ValueError(f"{text!r} is longer than a duration can be") from None


def duration_text(duration: timedelta) -> str:
    """Return the shortest text that `parse_duration` reads as the same duration: `90s`, `5m`, `2h`."""
    micros = duration // timedelta(microseconds=1)
    for unit, size in (("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000)):
        if micros and micros % size == 0:
            return f"{micros // size}{unit}"
    return f"{micros / 1e6:.6f}".rstrip("0").rstrip(".") + "s"
