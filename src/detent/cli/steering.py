"""`detent pause`, `resume`, `cancel`, `fork`, `migrate`: what changes something and says so."""

from __future__ import annotations

import click

from ..app import App, Run
from ..stores.checkup import schema
from .command import Failure, app_argument, command, id_argument, json_option
from .documents import run_document
from .finding import find, opened, place
from .output import console, state_text, write_json


def _reason_option(function: click.decorators.FC) -> click.decorators.FC:
    return click.option("--reason", help="Why; it is kept in the run's history.")(function)


@command(example="detent pause shop:app order-42 --reason 'the warehouse is closed'")
@app_argument
@id_argument
@_reason_option
@json_option
def pause(app: str, id: str, reason: str | None, as_json: bool) -> None:
    """Stop new work of a run; what executes ends and is recorded."""
    with opened(app) as found:
        run = found.run(id)
        run.pause(reason=reason)
        report(found, run, as_json=as_json)


@command(example="detent resume shop:app order-42")
@app_argument
@id_argument
@json_option
def resume(app: str, id: str, as_json: bool) -> None:
    """Let a paused run go on, or take a failed one up again from its failure."""
    with opened(app) as found:
        run = found.run(id)
        run.resume()
        report(found, run, as_json=as_json)


@command(example="detent cancel shop:app order-42 --reason 'the customer called'")
@app_argument
@id_argument
@_reason_option
@json_option
def cancel(app: str, id: str, reason: str | None, as_json: bool) -> None:
    """End a run and its children; what can be undone is undone."""
    with opened(app) as found:
        run = found.run(id)
        run.cancel(reason=reason)
        report(found, run, as_json=as_json)


@command(example="detent fork shop:app order-42 --from-step ship")
@app_argument
@id_argument
@click.option("--from-step", required=True, metavar="STEP", help="The first step that runs anew.")
@click.option("--id", "new_id", help="The id of the new run.")
@json_option
def fork(app: str, id: str, from_step: str, new_id: str | None, as_json: bool) -> None:
    """Begin a new run that keeps everything before a step."""
    with opened(app) as found:
        known = found.engine.registry.workflows
        old = found.run(id)
        if old.type not in known:
            raise Failure(f"a fork runs code, and {app} does not include {old.type!r}; give MODULE:APP")
        report(found, found.fork(old, from_step=from_step, id=new_id), as_json=as_json)


@command(example="detent migrate postgresql://user@host/shop")
@app_argument
@json_option
def migrate(app: str, as_json: bool) -> None:
    """Bring the database's tables up to date; twice does nothing."""
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


def report(app: App, run: Run[object], *, as_json: bool) -> None:
    """What became of a run."""
    if as_json:
        write_json(run_document(app, run.row))
    else:
        console().print("run", f"[bold]{run.id}[/] of {run.type} is", state_text(run.state))
