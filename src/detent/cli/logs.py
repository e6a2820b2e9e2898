"""The worker's log: lines for people, or JSON lines for machines."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from ..definitions.log_fields import log_fields
from .output import without_machinery

log = logging.getLogger("detent.cli")
_COLORS = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "red", "DEBUG": "bright_black"}
_CONTEXT = ("run", "type", "step", "attempt")  # what code inside of a run is known by
_SHOWN = ("run", "step", "attempt")  # what people see of it


def set_up(*, as_json: bool, level: str) -> None:
    """Show the log of this process: on stderr for people, on stdout as JSON lines.

    Logging that the user's module has set up stays unchanged, unless JSON was requested.
    """
    root = logging.getLogger()
    if root.handlers and not as_json:
        return
    handler = logging.StreamHandler(sys.stdout if as_json else sys.stderr)
    handler.setFormatter(JsonLines() if as_json else Lines())
    root.handlers = [handler]
    root.setLevel(level.upper())


def tell(message: str, **facts: Any) -> None:
    """Log a line of the command itself; the facts are keys in the JSON form."""
    log.info(message, extra={"facts": facts})


class JsonLines(logging.Formatter):
    """One JSON object per line: time, level, logger, message, then other fields."""

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, Any] = {
            "time": _moment(record).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        document |= _known(record, _CONTEXT)
        document |= getattr(record, "facts", {})
        if record.exc_info:
            document["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(document, enc_hook=str).decode()


class Lines(logging.Formatter):
    """`14:03:22 message`, coloured in a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        known = " ".join(f"{name}={value}" for name, value in _known(record, _SHOWN).items())
        message = f"{record.getMessage()}{f'  ({known})' if known else ''}"
        if record.exc_info:
            message += "\n" + without_machinery(self.formatException(record.exc_info))
        time = f"{_moment(record).astimezone():%H:%M:%S}"
        if not sys.stderr.isatty():
            return f"{time} {record.levelname.lower():7} {message}"
        color = _COLORS.get(record.levelname)
        return f"{click.style(time, dim=True)} {click.style(message, fg=color) if color else message}"


def _known(record: logging.LogRecord, names: tuple[str, ...]) -> dict[str, Any]:
    """The run fields of the record, or those of the code that logged it."""
    found = log_fields() | {name: getattr(record, name) for name in names if hasattr(record, name)}
    return {name: found[name] for name in names if found.get(name) is not None}


def _moment(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)
