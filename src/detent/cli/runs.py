"""`detent runs`: lists runs, newest first, and explains overdue work."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from ..app.app import App
from ..app.listing import STATES
from ..app.run import Run
from ..clock import from_micros, span_micros
from ..kernel.rows import Attribute
from ..stores.verbs.listing import Overdue
from .command import Loose, app_argument, command, json_option
from .find_app import opened
from .json_documents import iso, payload, reason_document, run_document
from .liveness import Workforce
from .output import ago, brief_call, console, keep_whole, seconds, span, state_text, table, write_json
from .parameters import ANYTHING, attribute, message_name
from .parameters import span as span_value


@command(
    example="detent runs shop:app --state failed --limit 5\n"
    "detent runs shop:app --attribute customer=acme\n"
    "detent runs shop:app --overdue 5m\n"
    "detent runs shop:app --drifted\n"
    "detent runs shop:app --waiting approval"
)
@app_argument
@click.option(
    "--state", type=click.Choice(STATES), help="Only runs in this state; active: all that have not ended."
)
@click.option("--type", "type_", metavar="WORKFLOW", help="Only runs of this workflow.")
@click.option("--queue", help="Only runs on this queue.")
@click.option(
    "--attribute",
    "attributes",
    type=attribute,
    metavar="NAME=VALUE",
    multiple=True,
    help="Only runs with this attribute; repeat to require several.",
)
@click.option(
    "--overdue",
    cls=Loose,
    otherwise="1m",
    type=span_value,
    metavar="[AGE]",
    help="Only runs with work that has been due for this long: 90s, 5m.  [default: 1m]",
)
@click.option("--drifted", is_flag=True, help="Only runs whose code differed from the record.")
@click.option("--cursor", metavar="ID", help="Continue after this run, the last one of a page.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="The maximum number."
)
@click.option(
    "--waiting",
    cls=Loose,
    otherwise=ANYTHING,
    type=message_name,
    metavar="[MESSAGE]",
    help="Only runs that wait, and for what; with a name, those that wait for that message.",
)
@json_option
def runs(
    app: str,
    state: str | None,
    type_: str | None,
    queue: str | None,
    attributes: tuple[tuple[str, Attribute], ...],
    overdue: timedelta | None,
    drifted: bool,
    waiting: str | None,
    cursor: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """List the newest runs."""
    with opened(app) as found:
        listed = found.runs(
            state=state,
            type=type_,
            queue=queue,
            attributes=dict(attributes),
            overdue=overdue,
            drifted=drifted or None,
            waiting=True if waiting is not None else None,
            on=None if waiting in (None, ANYTHING) else waiting,
            cursor=cursor,
            limit=limit,
        )
        late = {} if overdue is None else _late(found, listed, overdue)
        if as_json:
            documents = [run_document(found, run.row) for run in listed]
            if overdue is not None:
                _add_overdue(found, documents, late)
            if waiting is not None:
                for document, run in zip(documents, listed, strict=True):
                    document["waiting_for"] = [reason_document(one) for one in run.waiting_for]
            write_json(documents)
            return
        if not listed:
            asked = state or type_ or queue or attributes or overdue or drifted or waiting or cursor
            console().print("no runs match" if asked else "no runs", style="dim")
            return
        if overdue is not None:
            rows = _overdue(found, listed, late)
        else:
            rows = _table(found, listed) if waiting is None else _waiting(listed)
        console().print(keep_whole(rows))


def _table(app: App, listed: list[Run[Any]]) -> Table:
    rows = table("id", "workflow", "state", "queue", "started", "took", "input", right=("took",))
    waits = app.engine.store.waiting([run.id for run in listed if run.state == "ready"])
    for run in listed:
        rows.add_row(
            run.id,
            run.type,
            state_text("waiting" if run.id in waits else run.state),
            run.row.queue,
            ago(run.created_at),
            span(seconds(run)),
            Text(brief_call(payload(app, run.row.input), 40), style="dim"),
        )
    return rows


def _waiting(listed: list[Run[Any]]) -> Table:
    rows = table("id", "workflow", "queue", "started", "waits for")
    for run in listed:
        reasons = "; ".join(map(str, run.waiting_for))
        rows.add_row(run.id, run.type, run.row.queue, ago(run.created_at), Text(reasons))
    return rows


def _late(app: App, listed: list[Run[Any]], age: timedelta) -> dict[str, Overdue]:
    """The longest overdue execution of each run; none if a worker has just taken it."""
    due = app.engine.clock.now() - span_micros(age)
    found = app.engine.store.overdue([run.id for run in listed], due=due) if listed else []
    return {item.run_id: item for item in reversed(found)}


def _overdue(app: App, listed: list[Run[Any]], late: dict[str, Overdue]) -> Table:
    workforce = Workforce(app.engine.store)
    rows = table("id", "workflow", "state", "job", "queue", "due", "reason")
    for run in listed:
        item = late.get(run.id)
        if item is not None:
            taker, found = workforce.taker(item)
            style = "yellow" if taker == "busy" else "bold red"
            due = ago(from_micros(item.since))
            rows.add_row(
                run.id, run.type, state_text(run.state), item.job, item.queue, due, Text(found, style=style)
            )
    return rows


def _add_overdue(app: App, documents: list[dict[str, Any]], late: dict[str, Overdue]) -> None:
    workforce = Workforce(app.engine.store)
    for document in documents:
        item = late.get(document["id"])
        document["overdue"] = None
        if item is not None:
            taker, found = workforce.taker(item)
            document["overdue"] = {
                "since": iso(from_micros(item.since)),
                "node": item.node,
                "job": item.job,
                "queue": item.queue,
                "taker": taker,
                "found": found,
            }
