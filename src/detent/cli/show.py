"""`detent show`, `history`, `workers`: commands that read the database."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..app.app import App
from ..app.exports import export
from ..app.liveness import living
from ..app.run import Run
from ..app.views import Execution, HistoryEvent
from ..clock import from_micros
from ..kernel.rows import attribute_text
from .command import app_argument, command, id_argument, json_option
from .drift import drift_lines
from .find_app import opened
from .follow import followed
from .json_documents import (
    execution_document,
    history_document,
    payload,
    reason_document,
    run_document,
    worker_document,
)
from .output import (
    STYLES,
    ago,
    brief,
    brief_call,
    console,
    error_title,
    folded,
    keep_whole,
    local_time,
    seconds,
    span,
    state_text,
    table,
    write_json,
)

_BAR = 24  # characters of a timeline


@command(example="detent show shop:app order-42\ndetent show shop:app order-42 --export order-42.json")
@app_argument
@id_argument
@click.option(
    "--export",
    "file",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write the run, its journal and its history to a file, as JSON.",
)
@json_option
def show(app: str, id: str, file: Path | None, as_json: bool) -> None:
    """Show a run: its steps on a timeline, every attempt, errors, history."""
    with opened(app) as found:
        run = found.run(id)
        if file is not None:
            document = msgspec.json.format(msgspec.json.encode(export(found.engine, run.row)), indent=2)
            file.write_bytes(document + b"\n")
        executions = run.executions()
        if as_json:
            document_of = run_document(found, run.row)
            document_of["waiting_for"] = [reason_document(one) for one in run.waiting_for]
            document_of["executions"] = [execution_document(found, item) for item in executions]
            document_of["history"] = history_document(run.history())
            write_json(document_of)
            return
        out = console()
        _print_head(out, found, run)
        _print_timeline(out, found, run, executions)
        _print_errors(out, executions)
        out.print()
        _print_history(out, run, _noted(run))
        if file is not None:
            out.print(f"written to {file}", style="dim")


@command(example="detent history shop:app order-42\ndetent history shop:app order-42 --follow")
@app_argument
@id_argument
@click.option("--follow", "-f", is_flag=True, help="Print new events as they come, until the run is over.")
@json_option
def history(app: str, id: str, follow: bool, as_json: bool) -> None:
    """List everything that happened to a run, in order.

    With --follow and --json, one document per line.
    """
    with opened(app) as found:
        run = found.run(id)
        if follow:
            for event in followed(run):
                if as_json:
                    click.echo(msgspec.json.encode(history_document([event])[0]).decode())
                else:
                    _print_history(console(), run, [event])
            return
        happenings = run.history()
        if as_json:
            write_json(history_document(happenings))
        else:
            console().print()
            _print_history(console(), run, happenings)


@command(example="detent workers shop:app")
@app_argument
@json_option
def workers(app: str, as_json: bool) -> None:
    """List the workers, and whether they are alive."""
    with opened(app) as found:
        listed = living(found.engine.store)
        if as_json:
            write_json([worker_document(row, alive=alive) for row, alive in listed])
            return
        if not listed:
            console().print(f"no workers; start one: detent worker {app}", style="dim", markup=False)
            return
        rows = table(
            "worker", "host", "pid", "", "version", "queues", "concurrency", "started", "last heartbeat"
        )
        for row, alive in listed:
            rows.add_row(
                row.id,
                row.name,
                str(row.pid),
                Text("alive", style="green") if alive else Text("dead", style="bold red"),
                row.version,
                row.queues.replace(",", ", "),
                str(row.concurrency),
                ago(from_micros(row.started_at)),
                ago(from_micros(row.beat_at)),
            )
        console().print(keep_whole(rows))


def _print_head(out: Console, app: App, run: Run[Any]) -> None:
    row = run.row
    title = Text.assemble((run.id, "bold"), f"  {run.type}  ", state_text(run.state))
    out.print(title)
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    facts.add_column(overflow="fold")

    def fact(name: str, value: str | None) -> None:
        if value:
            facts.add_row(f"  {name}", Text(value))

    fact("queue", row.queue + (f", priority {row.priority}" if row.priority else ""))
    fact("started", f"{local_time(run.created_at)}, {ago(run.created_at)}")
    fact("took", span(seconds(run)) if run.finished_at is not None else None)
    fact("deadline", None if row.deadline is None else local_time(from_micros(row.deadline)))
    fact("versions", ", ".join(run.versions))
    fact("pinned to", run.pinned_to)
    fact("waits for", "\n".join(map(str, run.waiting_for)))
    fact("hero", None if row.hero_type is None else f"{row.hero_type} {row.hero_id}")
    fact("attributes", ", ".join(f"{name}={attribute_text(fact)}" for name, fact in run.attributes.items()))
    fact("parent", row.parent)
    fact("forked from", row.forked_from)
    fact("continues", row.continues)
    fact("continued as", row.continued_as)
    fact("input", brief_call(payload(app, row.input), 400))
    fact("result", None if row.result is None else brief(payload(app, row.result), 400))
    fact("drifted", "\n".join(drift_lines(app, run)) if run.drifted else None)
    out.print(facts)


def _print_timeline(out: Console, app: App, run: Run[Any], executions: list[Execution]) -> None:
    begin = run.created_at
    ends = [moment for item in executions for moment in (item.started_at, item.finished_at) if moment]
    end = max([run.finished_at or datetime.now(UTC), *ends])
    rows = table(
        "step", "try", "state", "after", "took", "timeline", "result", right=("try", "after", "took")
    )
    for item in executions:
        rows.add_row(
            _named(item),
            str(item.attempt),
            state_text(item.state),
            span((item.started_at - begin).total_seconds()) if item.started_at else "–",
            span(item.duration),
            _bar(item, begin, end),
            _brief_outcome(app, item),
        )
    out.print()
    out.print(keep_whole(rows))


def _named(item: Execution) -> Text:
    if item.kind in ("main", "step", "child"):
        return Text(item.node, style="dim" if item.kind == "main" else "")
    return Text(item.node, style="italic")


def _bar(item: Execution, begin: datetime, end: datetime) -> Text:
    """The bar of an execution on the timeline of the run."""
    whole = (end - begin).total_seconds() or 1e-6
    start = item.started_at or item.finished_at
    if start is None or (item.finished_at is None and item.state == "scheduled"):
        return Text()
    stop = item.finished_at or end
    left = min(_BAR - 1, int((start - begin).total_seconds() / whole * _BAR))
    long = max(1, min(_BAR - left, round((stop - start).total_seconds() / whole * _BAR)))
    line = "·" if item.kind == "main" else "┄" if item.kind in ("sleep", "receive") else "━"
    return Text.assemble(" " * left, (line * long, STYLES.get(item.state, "")))


def _brief_outcome(app: App, item: Execution) -> Text:
    if item.error is not None:
        return Text(error_title(item.error).splitlines()[0][:60], style="red")
    if item.kind == "main":
        return Text(item.outcome or "", style="dim")
    if item.scheduled_for is not None and item.finished_at is None and item.state in ("waiting", "retrying"):
        return Text(f"until {local_time(item.scheduled_for)}", style="dim")
    return Text(
        "" if item.stored_result in (None, "null") else brief(payload(app, item.stored_result), 40),
        style="dim",
    )


def _print_errors(out: Console, executions: list[Execution]) -> None:
    told: set[str] = set()
    for item in sorted(executions, key=lambda item: item.kind == "main"):  # a step's error is its run's, too
        if item.error is None or error_title(item.error) in told:
            continue
        told.add(error_title(item.error))
        out.print()
        out.print(Text.assemble((item.node, "bold"), f", try {item.attempt}: "), end="")
        out.print(Text(error_title(item.error), style="red"))
        hidden, lines = folded(item.error.traceback)
        if hidden:
            out.print(f"    … {hidden} more lines in --json", style="dim")
        for line in lines:
            out.print(Text(f"    {line}", style="dim"))


def _noted(run: Run[Any]) -> list[HistoryEvent]:
    """The history without the events that the timeline shows."""
    return [item for item in run.history() if not (isinstance(item.detail, dict) and "node" in item.detail)]


def _print_history(out: Console, run: Run[Any], happenings: list[HistoryEvent]) -> None:
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(no_wrap=True)
    rows.add_column(overflow="fold", style="dim")
    for item in happenings:
        after = span((item.at - run.created_at).total_seconds())
        detail = item.detail if isinstance(item.detail, dict) else {}
        facts = "  ".join(f"{name} {_word(value)}" for name, value in detail.items() if value is not None)
        rows.add_row(f"{local_time(item.at)}  +{after}", item.event, Text(facts))
    out.print(rows)


def _word(value: Any) -> str:
    return value if isinstance(value, str) else brief(value, 120)
