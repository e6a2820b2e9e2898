"""`detent decider projections`: the status of read models, and operations on them."""

from __future__ import annotations

from typing import Any

import click
from rich.text import Text

from ..app.projections import ProjectionStatus
from .command import app_argument, command, json_option
from .find_app import opened
from .output import console, keep_whole, span, table, write_json


@command(
    example="detent decider projections shop:app\n"
    "detent decider projections shop:app --rebuild totals\n"
    "detent decider projections shop:app --skip totals"
)
@app_argument
@click.option("--rebuild", metavar="NAME", help="Rebuild it from the first event, next to the live one.")
@click.option("--restart", is_flag=True, help="With --rebuild: give up a running rebuild, and start again.")
@click.option("--skip", metavar="NAME", help="Continue after the event that blocks it.")
@click.option("--position", type=click.IntRange(min=1), help="With --skip: only if this event blocks it.")
@json_option
def projections(
    app: str, rebuild: str | None, restart: bool, skip: str | None, position: int | None, as_json: bool
) -> None:
    """Show the status of projections; rebuild one, or skip the event that blocks it.

    Workers of the app do the work.  A projection that the app does not include is shown once it has started.
    """
    with opened(app) as found:
        if rebuild is not None:
            generation = found.projections.rebuild(rebuild, restart=restart)
            _said({"rebuilding": rebuild, "generation": generation}, as_json=as_json)
        elif skip is not None:
            skipped = found.projections.skip(skip, position=position)
            _said({"skipped": skip, "position": skipped}, as_json=as_json)
        else:
            _listed(found.projections.status(), as_json=as_json)


def _said(done: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        write_json(done)
    else:
        console().print(", ".join(f"{name} {value}" for name, value in done.items()))


def _listed(found: list[ProjectionStatus], *, as_json: bool) -> None:
    if as_json:
        write_json([status_document(one) for one in found])
        return
    if not found:
        console().print("no projections")
        return
    shown = table(
        "projection", "state", "position", "lag", "behind by", "error", right=("position", "lag", "behind by")
    )
    for one in found:
        state = Text("blocked", style="bold red") if one.blocked else Text(one.state, style="green")
        name = one.name if one.state == "live" else f"{one.name} (generation {one.generation})"
        error = "" if one.error is None else f"at {one.blocked_at}, {one.failures} ×: {one.error}"
        age = None if one.age is None else one.age.total_seconds()
        shown.add_row(name, state, f"{one.position:,}", f"{one.lag:,}", span(age), error)
    console().print(keep_whole(shown))


def status_document(one: ProjectionStatus) -> dict[str, Any]:
    return {
        "name": one.name,
        "generation": one.generation,
        "version": one.version,
        "state": "blocked" if one.blocked else one.state,
        "position": one.position,
        "head": one.head,
        "lag": one.lag,
        "behind_by_seconds": None if one.age is None else one.age.total_seconds(),
        "blocked_at": one.blocked_at,
        "failures": one.failures,
        "error": one.error,
    }
