"""Output: colours by state, times and durations in words, tables, and JSON for scripts."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from typing import Any

import click
import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..app.run import Run
from ..kernel.rows import Error

STYLES = {
    "ready": "cyan",
    "scheduled": "cyan",
    "waiting": "cyan",
    "performing": "bold blue",
    "executing": "bold blue",
    "retrying": "yellow",
    "paused": "yellow",
    "finished": "green",
    "completed": "green",
    "failed": "bold red",
    "canceled": "magenta",
    "skipped": "dim",
}
_PIPE_WIDTH = 200  # not a terminal: do not cut lines
_FOLDED = 8  # lines of a traceback
# A frame of ours: its place, then the lines of its code, which are indented more.
_MACHINERY = re.compile(
    r'^  File "[^"]*[/\\]detent[/\\](?:runtime[/\\]\w+|aio[/\\]\w+|functions)\.py".*\n(?:    .*\n)*',
    re.MULTILINE,
)


def console(*, stderr: bool = False) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _PIPE_WIDTH
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=False)


def write_json(value: Any) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """A table without borders; the first column is never cut off."""
    made = Table(box=SIMPLE_HEAD, header_style="dim", pad_edge=False, show_edge=False)
    for number, name in enumerate(columns):
        made.add_column(
            name, justify="right" if name in right else "left", no_wrap=number == 0, overflow="fold"
        )
    return made


def keep_whole(made: Table) -> Table:
    """Make the first column as wide as its longest cell."""
    first = made.columns[0]
    first.min_width = max((len(str(cell)) for cell in first.cells), default=0)
    return made


def state_text(state: str) -> Text:
    return Text(state, style=STYLES.get(state, ""))


def ago(moment: datetime | None) -> str:
    """`12 s ago`, `in 2 h`."""
    if moment is None:
        return "–"
    seconds = (datetime.now(UTC) - moment).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"{span(seconds)} ago" if seconds > 0 else f"in {span(-seconds)}"


def span(seconds: float | None) -> str:
    """A duration with a suitable precision."""
    if seconds is None:
        return "–"
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    for limit, unit, size in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def seconds(run: Run[Any]) -> float | None:
    """How long a run took, if it has ended."""
    return None if run.finished_at is None else (run.finished_at - run.created_at).total_seconds()


def local_time(moment: datetime) -> str:
    """A moment in the local time zone."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def brief(value: Any, longest: int = 48) -> str:
    """A value as one short line."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def brief_call(call: Any, longest: int = 60) -> str:
    """The arguments of a call, as in Python."""
    if not isinstance(call, dict) or not {*call} <= {"args", "kwargs"}:
        return brief(call, longest)
    parts = [brief(value, longest) for value in call.get("args", ())]
    parts += [f"{name}={brief(value, longest)}" for name, value in call.get("kwargs", {}).items()]
    text = ", ".join(parts)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def error_title(error: Error) -> str:
    return f"{error.type.removeprefix('builtins.')}: {error.message}"


def folded(traceback: str) -> tuple[int, list[str]]:
    """The number of omitted lines, and the last lines."""
    lines = without_machinery(traceback).rstrip().splitlines()
    return len(traceback.rstrip().splitlines()) - len(lines[-_FOLDED:]), lines[-_FOLDED:]


def without_machinery(traceback: str) -> str:
    """A traceback without the frames between the worker and the user's code."""
    return _MACHINERY.sub("", traceback)
