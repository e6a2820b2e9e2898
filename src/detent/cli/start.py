"""`detent start` and `detent send`: start runs and send messages."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import click

from ..app.app import App
from ..app.run import Run
from ..definitions.blueprint import Blueprint
from ..definitions.functions import Definition
from ..errors import DetentError
from ..kernel.rows import Attribute
from .command import Failure, app_argument, command, id_argument, json_option
from .find_app import opened
from .json_documents import payload, run_document
from .output import brief, console, state_text, write_json
from .parameters import attribute, call_of, hero, span, span_or_moment, value_of


@command(
    example="detent start shop:app fulfil 42 --id order-42 --wait\n"
    "detent start shop:app report month=2030-01 --delay 2h -- -5"
)
@app_argument
@click.argument("workflow", metavar="WORKFLOW")
@click.argument("args", metavar="[ARG]...", nargs=-1)
@click.option("--id", help="The same id twice is the same run.")
@click.option("--queue", help="Another queue than the workflow's own.")
@click.option("--priority", type=int, help="A higher priority runs first.")
@click.option("--delay", type=span, metavar="DURATION", help="Start after this duration: 90s, 5m, 2h, 1d.")
@click.option(
    "--deadline",
    type=span_or_moment,
    metavar="WHEN",
    help="Fail the run if it has not ended by then: 2h, or an ISO time.",
)
@click.option(
    "--attribute",
    "attributes",
    type=attribute,
    metavar="NAME=VALUE",
    multiple=True,
    help="An attribute to find the run by; repeat for several.",
)
@click.option(
    "--hero",
    type=hero,
    metavar="TYPE:ID",
    help="The subject of the run; it can have one active run of the workflow.",
)
@click.option("--allow-multiple", is_flag=True, help="With --hero: allow another active run.")
@click.option("--wait", is_flag=True, help="Wait for the result, and print it.")
@click.option("--timeout", type=span, metavar="DURATION", help="With --wait: the longest time to wait.")
@json_option
def start(
    app: str,
    workflow: str,
    args: tuple[str, ...],
    id: str | None,
    queue: str | None,
    priority: int | None,
    delay: timedelta | None,
    deadline: timedelta | datetime | None,
    attributes: tuple[tuple[str, Attribute], ...],
    hero: tuple[str, str] | None,
    allow_multiple: bool,
    wait: bool,
    timeout: timedelta | None,
    as_json: bool,
) -> None:
    """Start a workflow; the run is durable when this returns.

    Arguments are JSON or plain text; name=value passes one by its name.  Write -- before an argument that
    begins with a dash.
    """
    with opened(app) as found:
        served = definition_of(found, workflow)
        values, named = call_of(served, found.engine.services.codec, args)
        options = found.options(
            id=id,
            queue=queue,
            priority=priority,
            delay=delay,
            deadline=deadline,
            attributes=dict(attributes),
            hero=hero,
            allow_multiple=allow_multiple,
        )
        definition: Any = served.cls if isinstance(served, Blueprint) else served
        run = options.start(definition, *values, **named)
        if not as_json:
            out = console(stderr=wait)
            out.print("started", workflow, f"[bold]{run.id}[/]", state_text(run.state))
        if wait:
            _wait(run, timeout)
        if as_json:
            write_json(run_document(found, run.row))
        elif wait:
            console().print_json(data=payload(found, run.row.result))


def definition_of(app: App, name: str) -> Definition[Any, Any] | Blueprint:
    """The workflow of that name; a failure if the app does not include it."""
    known = app.engine.registry.workflows
    if name not in known:
        have = f"it has {', '.join(known)}" if known else "it includes none (a plain URL never does)"
        raise Failure(f"the app has no workflow {name!r}; {have}")
    found = app.engine.registry.find(name)
    assert isinstance(found, Definition | Blueprint)
    return found


def _wait(run: Run[Any], timeout: timedelta | None) -> None:
    try:
        run.result(timeout=timeout)
    except DetentError:
        raise
    except Exception as error:  # the run's own
        raise Failure(f"run {run.id} failed: {type(error).__name__}: {error}") from error


@command(example="""detent send shop:app order-42 approval '{"by": "Ada"}'""")
@app_argument
@id_argument
@click.argument("name", metavar="NAME")
@click.argument("value", metavar="[VALUE]", default="null")
@click.option("--message-id", help="Two messages with the same id are one message.")
@json_option
def send(app: str, id: str, name: str, value: str, message_id: str | None, as_json: bool) -> None:
    """Send a run a message, for detent.receive(NAME).

    VALUE is JSON or plain text; the default is null.
    """
    message = value_of(value)
    with opened(app) as found:
        run = found.run(id)
        run.send(name, message, id=message_id)
        if as_json:
            write_json({"run": id, "name": name, "value": message})
        else:
            console().print(f"sent {name} to {id}:", brief(message), markup=False)
