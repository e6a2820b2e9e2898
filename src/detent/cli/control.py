"""`detent pause`, `resume`, `cancel`, `fork`, `gc`, `migrate`: commands that change something."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import click

from ..app.app import App
from ..app.retention import count_expired
from ..app.run import Run
from ..clock import from_micros, span_micros
from ..stores.verbs.checkup import schema
from .command import Failure, app_argument, command, id_argument, json_option
from .find_app import find, opened, place
from .json_documents import iso, run_document
from .output import console, local_time, state_text, write_json
from .parameters import span


def _reason_option(function: click.decorators.FC) -> click.decorators.FC:
    return click.option("--reason", help="The reason, kept in the history of the run.")(function)


@command(example="detent pause shop:app order-42 --reason 'the warehouse is closed'")
@app_argument
@id_argument
@_reason_option
@json_option
def pause(app: str, id: str, reason: str | None, as_json: bool) -> None:
    """Stop new work of a run; executing steps end and are recorded."""
    _control(app, id, lambda run: run.pause(reason=reason), as_json=as_json)


@command(example="detent resume shop:app order-42")
@app_argument
@id_argument
@click.option("--accept-drift", is_flag=True, help="Continue although the code differs from the record.")
@json_option
def resume(app: str, id: str, accept_drift: bool, as_json: bool) -> None:
    """Continue a paused run, or a failed one from its failure."""
    _control(app, id, lambda run: run.resume(accept_drift=accept_drift), as_json=as_json)


@command(example="detent cancel shop:app order-42 --reason 'the customer called'")
@app_argument
@id_argument
@_reason_option
@json_option
def cancel(app: str, id: str, reason: str | None, as_json: bool) -> None:
    """End a run and its children; compensations run."""
    _control(app, id, lambda run: run.cancel(reason=reason), as_json=as_json)


@command(example="detent fork shop:app order-42 --from-step ship")
@app_argument
@id_argument
@click.option("--from-step", metavar="STEP", help="The first step that runs again.")
@click.option("--id", "new_id", help="The id of the new run.")
@json_option
def fork(app: str, id: str, from_step: str | None, new_id: str | None, as_json: bool) -> None:
    """Start a new run that keeps the records before a step; by default, all valid records."""
    with opened(app) as found:
        known = found.engine.registry.workflows
        old = found.run(id)
        if old.type not in known:
            raise Failure(f"a fork runs code, and {app} does not include {old.type!r}; give MODULE:APP")
        report(found, found.fork(old, from_step=from_step, id=new_id), as_json=as_json)


@command(example="detent gc shop:app --older-than 30d --dry-run")
@app_argument
@click.option(
    "--older-than",
    type=span,
    metavar="DURATION",
    help="Runs that ended longer ago than this.  [default: the app's retention]",
)
@click.option("--limit", type=click.IntRange(min=1), help="The maximum number.")
@click.option("--dry-run", is_flag=True, help="Only print how many would be removed.")
@json_option
def gc(app: str, older_than: timedelta | None, limit: int | None, dry_run: bool, as_json: bool) -> None:
    """Remove runs that ended long ago, with all their data.

    Active and paused runs stay, and so does a child as long as its parent.
    """
    with opened(app) as found:
        engine = found.engine
        age = older_than if older_than is not None else engine.settings.retention
        if age is None:
            raise click.UsageError("the app has no retention; give an age: --older-than 30d")
        before = engine.clock.now() - span_micros(age)
        if dry_run:
            number = count_expired(engine.store, before)
            number = number if limit is None else min(number, limit)
        else:
            number = found.gc(older_than=age, limit=limit)
        if as_json:
            write_json({"removed": number, "dry_run": dry_run, "ended_before": iso(from_micros(before))})
            return
        runs = f"{number} run{'' if number == 1 else 's'}"
        what = f"{runs} would be removed" if dry_run else f"[green]✓[/] removed {runs}"
        console().print(f"{what}, ended before {local_time(from_micros(before))}")


@command(example="detent migrate postgresql://user@host/shop")
@app_argument
@json_option
def migrate(app: str, as_json: bool) -> None:
    """Create or update the tables of the database."""
    target = find(app)
    applied = target.app.migrate()
    version = schema(target.app.engine.store)
    target.app.close()
    if as_json:
        write_json({"applied": applied, "schema": version})
        return
    out = console()
    for name in applied:
        out.print(f"applied {name}")
    out.print(f"[green]✓[/] {place(target.app.engine.url)} has schema {version}")


def _control(app: str, id: str, verb: Callable[[Run[object]], object], *, as_json: bool) -> None:
    """Change the state of a run, and print the new one."""
    with opened(app) as found:
        run = found.run(id)
        verb(run)
        report(found, run, as_json=as_json)


def report(app: App, run: Run[object], *, as_json: bool) -> None:
    """Print the new state of a run."""
    if as_json:
        write_json(run_document(app, run.row))
    else:
        console().print("run", f"[bold]{run.id}[/] of {run.type} is", state_text(run.state))
