"""Versions: which code started a run, which continued it, and who may continue a pinned run.

A run holds its versions as one text with commas between them, in the order of their first use.  The first
is the version that started the run; it is empty for a run that was started before versions were stored.
"""

from __future__ import annotations

from typing import Any

from ..arguments import check_text, refuse
from ..errors import InvalidArgument

LONGEST_VERSION = 100
SEPARATOR = ","


def check_version(
    where: str, argument: str, value: Any, *, error: type[InvalidArgument] = InvalidArgument
) -> str:
    """The name of a version: printable, without commas and spaces."""
    text = check_text(where, argument, value, example="2026-11-16", longest=LONGEST_VERSION, error=error)
    if SEPARATOR in text or " " in text or not text.isprintable():
        refuse(where, argument, value, "leave out commas, spaces and control characters", error)
    return text


def started_by(versions: str | None) -> str | None:
    """The version that started a run; None if it is not known."""
    return (versions or "").partition(SEPARATOR)[0] or None


def all_versions(versions: str | None) -> tuple[str, ...]:
    """The versions that started and continued a run, in order."""
    return tuple(version for version in (versions or "").split(SEPARATOR) if version)


def is_new(versions: str | None, version: str) -> bool:
    """Whether a run has not been executed by this version before."""
    return versions != version and version not in (versions or "").split(SEPARATOR)


def with_version(versions: str | None, version: str) -> str:
    """The versions of a run that this one continues."""
    return f"{versions or ''}{SEPARATOR}{version}"
