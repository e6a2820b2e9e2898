"""`detent decider observations`: the recorded inputs of a decider."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import click
from rich.text import Text

from ..app.observations import AT_ONCE, Observation
from .command import app_argument, command, json_option
from .find_app import opened
from .instances import plain_value, type_argument
from .json_documents import iso
from .output import brief, console, keep_whole, local_time, table, write_json
from .parameters import span_or_moment


@command(
    example="detent decider observations shop:app order\n"
    "detent decider observations shop:app order o-1 --after 2h --json"
)
@app_argument
@type_argument
@click.argument("id", metavar="[ID]", required=False)
@click.option(
    "--after", metavar="TIME", help="Only inputs received after this moment, or within this duration: 2h."
)
@click.option("--before", metavar="TIME", help="Only inputs received before this moment.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=AT_ONCE, show_default=True, help="The maximum number."
)
@click.option("--cursor", type=click.IntRange(min=1), help="Only inputs that arrived before this number.")
@json_option
def observations(
    app: str,
    type: str,
    id: str | None,
    after: str | None,
    before: str | None,
    limit: int,
    cursor: int | None,
    as_json: bool,
) -> None:
    """List the recorded inputs of a decider or of one instance, newest first."""
    with opened(app) as found:
        rows = found.deciders.observations(
            type, id, after=_moment(after), before=_moment(before), limit=limit, cursor=cursor
        )
        if as_json:
            write_json([_document(one) for one in rows])
            return
        if not rows:
            console().print("no recorded inputs")
            return
        shown = table("#", "received", "instance", "input", "", "state", "from", "to", right=("#",))
        for one in rows:
            cells = (
                one.instance,
                one.type,
                brief(plain_value(one.input), 60),
                one.state,
                one.from_status or "",
                one.to_status or "",
            )
            shown.add_row(str(one.seq), local_time(one.received_at), *map(Text, cells))
        console().print(keep_whole(shown))


def _moment(text: str | None) -> datetime | None:
    """A moment; a duration means that long ago."""
    if text is None:
        return None
    given = span_or_moment(text)
    return datetime.now(UTC) - given if isinstance(given, timedelta) else given.astimezone(UTC)


def _document(one: Observation) -> dict[str, Any]:
    return {
        "seq": one.seq,
        "decider": one.decider,
        "instance": one.instance,
        "type": one.type,
        "input": plain_value(one.input),
        "input_id": one.input_id,
        "state": one.state,
        "received_at": iso(one.received_at),
        "handled_at": iso(one.handled_at),
        "from_status": one.from_status,
        "to_status": one.to_status,
    }
