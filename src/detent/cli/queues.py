"""`detent queues`: limits, how full queues are, and an operator's verbs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click
from rich.text import Text

from ..app.limit_texts import parse_limit
from ..app.queues import QueueStatus
from ..kernel.queues import LIMITS, Rate
from .command import Front, app_argument, command, json_option
from .find_app import opened
from .output import console, keep_whole, table, write_json


@click.group(cls=Front, context_settings={"help_option_names": ["-h", "--help"]})
def queues() -> None:
    """Show queues and their limits; pause, resume and change them while workers run."""


@command(name="list", example="detent queues list shop:app")
@app_argument
@json_option
def list_queues(app: str, as_json: bool) -> None:
    """Show each queue: its limits, what waits, what executes, whether it is paused.

    A limit that an operator has changed is shown with the value that the code declares.
    """
    with opened(app) as found:
        statuses = [queue.status() for queue in found.queues]
    if as_json:
        write_json([_document(one) for one in statuses])
        return
    rows = table("queue", "state", "waiting", "executing", "limits", right=("waiting", "executing"))
    for one in statuses:
        state = Text("open", style="green")
        if one.paused:
            state = Text("paused" + (f": {one.reason}" if one.reason else ""), style="bold yellow")
        rows.add_row(one.name, state, one.waiting_text, f"{sum(one.executing.values()):,}", _limits(one))
    console().print(keep_whole(rows))


@command(example='detent queues pause shop:app mail --reason "the provider is down"')
@app_argument
@click.argument("queue")
@click.option("--reason", help="Why; it is shown with the queue and with what waits for it.")
@json_option
def pause(app: str, queue: str, reason: str | None, as_json: bool) -> None:
    """Let nothing begin on a queue.  What executes ends."""
    with opened(app) as found:
        found.queues[queue].pause(reason)
        _said(found.queues[queue].status(), as_json=as_json)


@command(example="detent queues resume shop:app mail")
@app_argument
@click.argument("queue")
@json_option
def resume(app: str, queue: str, as_json: bool) -> None:
    """Let executions begin again on a queue."""
    with opened(app) as found:
        found.queues[queue].resume()
        _said(found.queues[queue].status(), as_json=as_json)


@command(
    name="set",
    example="detent queues set shop:app mail --concurrency 10 --rate 100/1m\n"
    "detent queues set shop:app mail --rate none\n"
    "detent queues set shop:app mail --reset",
)
@app_argument
@click.argument("queue")
@click.option("--concurrency", metavar="N", help="How many execute at a time, over all workers.")
@click.option("--per-worker", metavar="N", help="How many execute at a time in one worker.")
@click.option("--key-concurrency", metavar="N", help="How many execute at a time for one key.")
@click.option("--rate", metavar="N/SPAN", help="How many begin in a span, such as 100/1m.")
@click.option("--key-rate", metavar="N/SPAN", help="How many begin in a span for one key.")
@click.option("--fair", type=click.Choice(["yes", "no"]), help="Whether keys take turns.")
@click.option("--aging", metavar="SPAN", help="The wait that is worth one level of priority.")
@click.option("--reset", is_flag=True, help="Go back to what the code declares.")
@json_option
def set_limits(app: str, queue: str, reset: bool, as_json: bool, **given: str | None) -> None:
    """Change limits while workers run; `none` removes one.

    A change is stored.  It applies until the code declares another value.
    """
    limits = {name: _limit(name, text) for name, text in given.items() if text is not None}
    if reset == bool(limits):
        raise click.UsageError("give the limits to change, or --reset")
    with opened(app) as found:
        if reset:
            found.queues[queue].reset()
        else:
            found.queues[queue].set(**limits)
        _said(found.queues[queue].status(), as_json=as_json)


def _limit(name: str, text: str) -> Any:
    """A limit as the API takes it."""
    try:
        return parse_limit(name, text)
    except ValueError as error:
        raise click.UsageError(f"--{name.replace('_', '-')} {error}") from None


def _limits(one: QueueStatus) -> str:
    parts = []
    for name in LIMITS:
        value = one.limits[name]
        if name in one.changed:
            parts.append(f"{name} {_text(value)} (code: {_text(one.declared[name])})")
        elif value not in (None, False):
            parts.append(f"{name} {_text(value)}")
    return ", ".join(parts)


def _text(value: Any) -> str:
    if isinstance(value, Rate):
        return f"{value.count}/{value.per.total_seconds():g}s"
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g}s"
    return "none" if value is None else str(value).lower()


def _said(status: QueueStatus, *, as_json: bool) -> None:
    if as_json:
        write_json(_document(status))
        return
    state = "paused" if status.paused else "open"
    limits = _limits(status)
    console().print(f"{status.name}: {state}" + (f", {limits}" if limits else ""))


def _document(one: QueueStatus) -> dict[str, Any]:
    return {
        "name": one.name,
        "paused": one.paused,
        "paused_at": one.paused_at,
        "reason": one.reason,
        "waiting": one.waiting,
        "executing": dict(one.executing),
        "limits": {name: _plain(value) for name, value in one.limits.items()},
        "declared": {name: _plain(value) for name, value in one.declared.items()},
        "changed": list(one.changed),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Rate):
        return {"count": value.count, "per_seconds": value.per.total_seconds()}
    return value.total_seconds() if isinstance(value, timedelta) else value


for _command in (list_queues, pause, resume, set_limits):
    queues.add_command(_command)
