"""`detent graph`, `verify`, `skip`, `reattempt`: commands for runs with a graph."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..app.app import App
from ..app.graphs import NodeState, drawn_of
from ..app.run import Run
from ..kernel.drawing import Drawn, counted, layers
from .command import Failure, app_argument, command, id_argument, json_option
from .control import report
from .find_app import opened
from .json_documents import error_document, iso, payload
from .output import STYLES, console, error_title, span, state_text, write_json

_SIGNS = {
    "completed": "✔",
    "skipped": "↷",
    "executing": "▶",
    "scheduled": "◷",
    "failed": "✘",
    "canceled": "⊘",
    "pending": "·",
}


def _node_argument(function: click.decorators.FC) -> click.decorators.FC:
    return click.argument("node", metavar="NODE")(function)


@command(example="detent graph shop:app order-42\ndetent graph shop:app order-42 --mermaid > order.mmd")
@app_argument
@id_argument
@click.option("--mermaid", "form", flag_value="mermaid", help="Print it as a Mermaid chart, for Markdown.")
@click.option("--dot", "form", flag_value="dot", help="Print it for Graphviz.")
@click.option("--all", "whole", is_flag=True, help="Draw every node of a fan-out.")
@click.option(
    "--export",
    "file",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write the graph to a file, as JSON.",
)
@click.option(
    "--import",
    "source",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help="Give a paused run the graph of a file: the last resort.",
)
@json_option
def graph(
    app: str, id: str, form: str | None, whole: bool, file: Path | None, source: Path | None, as_json: bool
) -> None:
    """Draw the graph of a run with the states of its nodes."""
    with opened(app) as found:
        run = found.run(id)
        if source is not None:
            run.import_graph(source.read_text())
        if file is not None:
            file.write_text(run.export_graph() + "\n")
        if as_json:
            write_json([_node_document(found, node) for node in run.nodes()])
        elif form == "mermaid":
            click.echo(run.to_mermaid(fold=not whole), nl=False)
        elif form == "dot":
            click.echo(run.to_dot(fold=not whole), nl=False)
        else:
            _draw(console(), found, run, whole=whole)


def _draw(out: Console, app: App, run: Run[object], *, whole: bool) -> None:
    nodes = {node.id: node for node in run.nodes()}
    out.print(Text.assemble((run.id, "bold"), f"  {run.type}  ", state_text(run.state)))
    grid = Table.grid(padding=(0, 2))
    for style in ("dim", "", "", "dim", "dim"):
        grid.add_column(style=style, no_wrap=True)
    names = {}
    rows = layers(drawn_of(app.engine, run.row, fold=not whole))
    for layer in rows:
        names.update({drawn.id: drawn.label for drawn in layer})
    for number, layer in enumerate(rows, start=1):
        for place, drawn in enumerate(layer):
            grid.add_row(str(number) if place == 0 else "", *_line(drawn, nodes.get(drawn.id), names))
    out.print(grid)


def _line(drawn: Drawn, node: NodeState | None, names: dict[str, str]) -> tuple[Text, Text, Text, Text]:
    style = STYLES.get(drawn.state, "dim")
    label = Text.assemble((_SIGNS.get(drawn.state, "?"), style), " ", drawn.label)
    state = Text(counted(drawn.states) if drawn.states is not None else drawn.state, style=style)
    notes = []
    if node is not None and drawn.states is None:
        if node.attempts > 1:
            notes.append(f"try {node.attempts}")
        if node.started_at is not None and node.finished_at is not None:
            notes.append(span((node.finished_at - node.started_at).total_seconds()))
        if node.error is not None:
            notes.append(error_title(node.error).splitlines()[0][:60])
    after = ", ".join(
        f"{names.get(needed, needed)}{' (error)' if needed == drawn.handles else ''}"
        for needed in drawn.needs
    )
    return label, state, Text("  ".join(notes)), Text(f"← {after}" if after else "")


def _node_document(app: App, node: NodeState) -> dict[str, object]:
    return {
        "id": node.id,
        "name": node.name,
        "kind": node.kind,
        "job": node.job,
        "depends_on": list(node.depends_on),
        "state": node.state,
        "outcome": node.outcome,
        "attempts": node.attempts,
        "scheduled_for": iso(node.scheduled_for),
        "started_at": iso(node.started_at),
        "finished_at": iso(node.finished_at),
        "result": payload(app, node.stored_result),
        "error": None if node.error is None else error_document(node.error),
        "ancestry_hash": node.ancestry_hash,
        "handles": node.handles,
    }


@command(example="detent verify shop:app order-42")
@app_argument
@id_argument
@json_option
def verify(app: str, id: str, as_json: bool) -> None:
    """Recompute the hashes of a run's nodes; exit code 1 if stored data was changed."""
    with opened(app) as found:
        run = found.run(id)
        broken = run.verify()
        settled = sum(node.ancestry_hash is not None for node in run.nodes())
        if as_json:
            document = {"run": run.id, "intact": not broken, "settled": settled, "broken": broken}
            write_json(document)
        elif not broken:
            console().print(f"[green]✓[/] {settled} settled nodes of run [bold]{run.id}[/]: all hashes match")
        for one in broken if not as_json else ():
            console().print(
                Text(f"✘ {one.node}, attempt {one.attempt}", style="bold red"),
                Text(f"stored hash {(one.stored or 'none')[:16]}…, expected {one.expected[:16]}…"),
            )
        if broken:
            raise Failure(f"run {run.id}: {len(broken)} of {settled} hashes do not match")


@command(example="detent skip shop:app order-42 check_fraud")
@app_argument
@id_argument
@_node_argument
@json_option
def skip(app: str, id: str, node: str, as_json: bool) -> None:
    """Continue as if a waiting or failed node were done."""
    with opened(app) as found:
        run = found.run(id)
        run.skip(node)
        report(found, run, as_json=as_json)


@command(example="detent reattempt shop:app order-42 charge")
@app_argument
@id_argument
@_node_argument
@json_option
def reattempt(app: str, id: str, node: str, as_json: bool) -> None:
    """Retry a failed or canceled node, with a new retry budget."""
    with opened(app) as found:
        run = found.run(id)
        run.reattempt(node)
        report(found, run, as_json=as_json)
