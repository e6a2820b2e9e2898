"""`detent delete`, `resume-all`, `cancel-all`: commands that ask for confirmation."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TypedDict, Unpack

import click

from ..app import bulk
from ..app.app import App
from ..app.listing import Filters, Walk
from ..clock import from_micros, span_micros
from ..kernel.rows import Attribute
from .command import app_argument, command, id_argument, json_option
from .find_app import opened
from .output import console, write_json
from .parameters import attribute, span

_DONE = {"resume": "resumed", "cancel": "canceled", "repin": "repinned"}


class Wanted(TypedDict):
    """The options that `_filter_options` adds to a command."""

    type_: str | None
    queue: str | None
    attributes: tuple[tuple[str, Attribute], ...]
    age: timedelta | None


def yes_option(function: click.decorators.FC) -> click.decorators.FC:
    return click.option("--yes", is_flag=True, help="Do not ask for confirmation.")(function)


def _filter_options(function: click.decorators.FC) -> click.decorators.FC:
    for option in (
        click.option(
            "--age",
            type=span,
            metavar="DURATION",
            help="Only runs created within this duration: 90s, 5m, 2d.",
        ),
        click.option(
            "--attribute",
            "attributes",
            type=attribute,
            metavar="NAME=VALUE",
            multiple=True,
            help="Only runs with this attribute; repeat to require several.",
        ),
        click.option("--queue", help="Only runs on this queue."),
        click.option("--type", "type_", metavar="WORKFLOW", help="Only runs of this workflow."),
    ):
        function = option(function)
    return function


@command(example="detent delete shop:app order-42")
@app_argument
@id_argument
@yes_option
@json_option
def delete(app: str, id: str, yes: bool, as_json: bool) -> None:
    """Remove an ended run, its children and all their data."""
    with opened(app) as found:
        run = found.run(id)
        _confirm(f"remove run {run.id} of {run.type} permanently?", yes=yes, as_json=as_json)
        number = run.delete()
        if as_json:
            write_json({"removed": number})
        else:
            console().print(f"[green]✓[/] removed {_runs(number)}")


@command(name="resume-all", example="detent resume-all shop:app --state failed --type fulfil --age 1d")
@app_argument
@click.option("--state", type=click.Choice(["paused", "failed"]), required=True, help="Which runs.")
@_filter_options
@yes_option
@json_option
def resume_all(app: str, state: str, yes: bool, as_json: bool, **wanted: Unpack[Wanted]) -> None:
    """Resume all matching runs, after confirmation."""
    with opened(app) as found:
        filters = _filters(found, **wanted)
        change_all(
            "resume",
            lambda: bulk.resuming(found.engine, state, filters),
            lambda: found.runs.resume(state=state, **filters),
            yes=yes,
            as_json=as_json,
        )


@command(
    name="cancel-all", example="detent cancel-all shop:app --state paused --type fulfil --reason 'sold out'"
)
@app_argument
@click.option(
    "--state",
    type=click.Choice(["active", "ready", "performing", "paused"]),
    help="Only runs in this state; active: all that have not ended.",
)
@_filter_options
@click.option("--reason", help="The reason, kept in the history of each run.")
@yes_option
@json_option
def cancel_all(
    app: str, state: str | None, reason: str | None, yes: bool, as_json: bool, **wanted: Unpack[Wanted]
) -> None:
    """Cancel all matching active runs, after confirmation."""
    with opened(app) as found:
        filters = _filters(found, **wanted)
        change_all(
            "cancel",
            lambda: bulk.canceling(found.engine, state, filters),
            lambda: found.runs.cancel(state=state, reason=reason, **filters),
            yes=yes,
            as_json=as_json,
        )


def _filters(app: App, **wanted: Unpack[Wanted]) -> Filters:
    after: datetime | None = None
    if (age := wanted["age"]) is not None:
        after = from_micros(app.engine.clock.now() - span_micros(age))
    attributes = dict(wanted["attributes"]) or None
    return {"type": wanted["type_"], "queue": wanted["queue"], "attributes": attributes, "after": after}


def change_all(
    verb: str,
    walk: Callable[[], Walk],
    change: Callable[[], bulk.Changed],
    *,
    yes: bool,
    as_json: bool,
) -> None:
    matching = bulk.count(walk())
    if not as_json:
        console().print(f"{_runs(matching)} to {verb}")
    if matching:
        _confirm(f"{verb} {_runs(matching)}?", yes=yes, as_json=as_json)
    changed = change() if matching else bulk.Changed()
    if as_json:
        write_json({"matching": matching, "changed": changed.count, "refused": changed.refused})
        return
    for id, reason in changed.refused.items():
        console().print(f"[yellow]{id}[/] refused: {reason}")
    console().print(f"[green]✓[/] {_DONE[verb]} {_runs(changed.count)}")


def _confirm(question: str, *, yes: bool, as_json: bool) -> None:
    """Ask for confirmation; --yes confirms in a script."""
    if yes:
        return
    if as_json:
        raise click.UsageError("--json cannot ask for confirmation; add --yes")
    click.confirm(question, abort=True)


def _runs(number: int) -> str:
    return f"{number} run{'' if number == 1 else 's'}"
