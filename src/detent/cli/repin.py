"""`detent repin` and `repin-all`: pin runs to another version of the code."""

from __future__ import annotations

import click

from ..app import bulk
from ..app.app import App
from .bulk import change_all, yes_option
from .command import Failure, app_argument, command, id_argument, json_option
from .control import report
from .find_app import opened


def _version_option(function: click.decorators.FC) -> click.decorators.FC:
    return click.option(
        "--version", help="The version whose workers continue it.  [default: that of the app]"
    )(function)


@command(example="detent repin shop:app order-42")
@app_argument
@id_argument
@_version_option
@json_option
def repin(app: str, id: str, version: str | None, as_json: bool) -> None:
    """Let only workers of another version continue a run."""
    with opened(app) as found:
        run = found.run(id)
        run.repin(_wanted(found, app, version))
        report(found, run, as_json=as_json)


@command(name="repin-all", example="detent repin-all shop:app --from 2026-11-01")
@app_argument
@click.option("--from", "former", required=True, help="The version that the runs are pinned to now.")
@_version_option
@yes_option
@json_option
def repin_all(app: str, former: str, version: str | None, yes: bool, as_json: bool) -> None:
    """Let only workers of another version continue all runs of a version, after confirmation."""
    with opened(app) as found:
        wanted = _wanted(found, app, version)
        change_all(
            "repin",
            lambda: bulk.pinned(found.engine, former),
            lambda: bulk.repin_all(found.engine, former, wanted),
            yes=yes,
            as_json=as_json,
        )


def _wanted(found: App, app: str, version: str | None) -> str:
    """The version to pin to; a database alone has no code, and so no version."""
    if version is None and not found.engine.registry.workflows:
        raise Failure(f"{app} includes no code; give a version: --version 2026-11-16, or MODULE:APP")
    return found.engine.version if version is None else version
