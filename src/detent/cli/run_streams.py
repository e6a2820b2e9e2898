"""`detent stream` and `detent publish`: what runs show while they run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import msgspec

from ..app.app import App
from ..app.run import Run
from ..app.run_streams import StreamEntry
from .command import Failure, app_argument, command, id_argument, json_option
from .find_app import opened
from .json_documents import iso
from .output import brief, console, write_json
from .parameters import value_of


@command(example="detent stream shop:app chat-42 tokens --follow --raw\ndetent stream shop:app chat-42")
@app_argument
@id_argument
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--follow", "-f", is_flag=True, help="Print new entries as they come, until the run is over.")
@click.option(
    "--after", type=click.IntRange(min=0), default=0, metavar="POSITION", help="Only entries behind this one."
)
@click.option("--raw", is_flag=True, help="Print texts as they are, without line breaks between them.")
@json_option
def stream(app: str, id: str, name: str | None, follow: bool, after: int, raw: bool, as_json: bool) -> None:
    """Print a stream of a run; without NAME, list its streams.

    With --json, one document per line.
    """
    with opened(app) as found:
        run = found.run(id)
        if name is None:
            _list(found, run, as_json=as_json)
            return
        for entry in run.stream(name, after=after, follow=follow).entries():
            if as_json:
                _write_line(_document(entry))
            else:
                click.echo(_text(entry.value), nl=not raw)


@command(
    example="detent publish shop:app order-42 progress 40\n"
    "detent publish shop:app order-42 log 'page 7' --append\n"
    "detent publish shop:app order-42 progress --follow"
)
@app_argument
@id_argument
@click.argument("name", metavar="NAME")
@click.argument("value", metavar="[VALUE]", required=False)
@click.option("--append", "-a", is_flag=True, help="Append the value to the stream NAME instead.")
@click.option("--follow", "-f", is_flag=True, help="Without VALUE: print new values until the run is over.")
@json_option
def publish(
    app: str, id: str, name: str, value: str | None, append: bool, follow: bool, as_json: bool
) -> None:
    """Publish a value of an active run; without VALUE, print the latest one.

    VALUE is JSON or plain text.  run.published(NAME) and run.watch(NAME) read it.
    """
    if value is not None and follow:
        raise click.UsageError("--follow prints values: leave VALUE out")
    if value is None and append:
        raise click.UsageError("--append needs a VALUE; detent stream prints a stream")
    with opened(app) as found:
        run = found.run(id)
        if value is None:
            for latest in _values(run, name, follow=follow):
                _write_line(latest) if as_json else click.echo(_text(latest))
            return
        given = value_of(value)
        (run.append if append else run.publish)(name, given)
        if as_json:
            write_json({"run": id, "name": name, "value": given, "appended": append})
        else:
            done = "appended to" if append else "published"
            console().print(f"{done} {name} of {id}:", brief(given), markup=False)


def _values(run: Run[Any], name: str, *, follow: bool) -> Iterator[Any]:
    if follow:
        yield from run.watch(name)
        return
    missing = object()
    latest = run.published(name, missing)
    if latest is missing:
        raise Failure(f"run {run.id} has not published {name!r}")
    yield latest


def _list(app: App, run: Run[Any], *, as_json: bool) -> None:
    listed = app.engine.store.streams(run.id)
    if as_json:
        write_json([{"name": name, "first": first, "last": last} for name, first, last in listed])
    elif not listed:
        console().print(f"run {run.id} has no streams", style="dim", markup=False)
    else:
        for name, first, last in listed:
            console().print(f"{name}: entries {first} to {last}", markup=False)


def _document(entry: StreamEntry) -> dict[str, Any]:
    return {
        "position": entry.position,
        "value": entry.value,
        "step": entry.step,
        "attempt": entry.attempt,
        "at": iso(entry.at),
    }


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _write_line(document: Any) -> None:
    click.echo(msgspec.json.encode(document).decode())
