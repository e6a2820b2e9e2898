"""`detent decider show`, `events`, `state`: event-sourced workflows and their instances."""

from __future__ import annotations

from typing import Any, cast

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..app.app import App
from ..app.machine import HISTORY, INSTANCES, OBSERVATIONS, InstanceView
from ..definitions.decisions import Recorded
from ..errors import PayloadError
from ..kernel.machine import StateMachineView
from ..serialization.codec import Codec
from .command import app_argument, command, id_argument, json_option
from .find_app import opened
from .json_documents import error_document, iso
from .output import ago, brief, console, error_title, keep_whole, local_time, state_text, table, write_json


def type_argument(function: click.decorators.FC) -> click.decorators.FC:
    return click.argument("type", metavar="TYPE")(function)


@command(example="detent decider show shop:app order\ndetent decider show shop:app order o-1")
@app_argument
@type_argument
@click.argument("id", metavar="[ID]", required=False)
@click.option("--mermaid", "form", flag_value="mermaid", help="Print it as a Mermaid chart, for Markdown.")
@click.option("--dot", "form", flag_value="dot", help="Print it for Graphviz.")
@click.option(
    "--source",
    type=click.Choice([HISTORY, OBSERVATIONS]),
    default=HISTORY,
    help="Where to read transitions from: the events, or the recorded inputs.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=INSTANCES,
    show_default=True,
    help="Read at most this many instances, the newest ones.",
)
@json_option
def show(
    app: str, type: str, id: str | None, form: str | None, source: str, limit: int, as_json: bool
) -> None:
    """Show the state machine of a decider, declared and seen; or one instance."""
    if id is not None and form is not None:
        raise click.UsageError(f"--{form} draws the decider; remove the instance")
    with opened(app) as found:
        if id is not None:
            view = found.deciders.instance(cast(Any, type), id)
            if as_json:
                write_json(_instance_document(view))
            else:
                _print_instance(console(), view)
            return
        machine = found.deciders.machine(type, source=source, limit=limit)
        if as_json:
            write_json(_machine_document(machine))
        elif form is not None:
            click.echo(machine.to_mermaid() if form == "mermaid" else machine.to_dot(), nl=False)
        else:
            _print_machine(console(), machine)


@command(example="detent decider events shop:app order o-1")
@app_argument
@type_argument
@id_argument
@click.option("--after", type=click.IntRange(min=0), default=0, help="Only events after this number.")
@click.option("--limit", type=click.IntRange(min=1), help="The maximum number.")
@json_option
def events(app: str, type: str, id: str, after: int, limit: int | None, as_json: bool) -> None:
    """List the events of an instance, in order."""
    with opened(app) as found:
        recorded = _events(found, type, id, after, limit)
        if as_json:
            write_json([_event_document(one) for one in recorded])
            return
        rows = table("#", "at", "cause", "event", "", right=("#",))
        for one in recorded:
            cells = (one.cause, one.type, brief(plain_value(one.event), 80))
            rows.add_row(str(one.sequence), local_time(one.at), *map(Text, cells))
        console().print(rows)


@command(example="detent decider state shop:app order o-1 --at 3")
@app_argument
@type_argument
@id_argument
@click.option("--at", type=click.IntRange(min=0), help="The state after the event with this number.")
@json_option
def state(app: str, type: str, id: str, at: int | None, as_json: bool) -> None:
    """Print the current or a former state of an instance."""
    with opened(app) as found:
        value = found.state_at(cast(Any, type), id, sequence=at)
        plan = found.engine.registry.decider(type)
        document = {
            "decider": type,
            "instance": id,
            "sequence": at,
            "status": plan.decider.status(value),
            "terminal": bool(plan.decider.is_terminal(value)),
            "state": plain_value(value),
        }
        if as_json:
            write_json(document)
        else:
            console(stderr=True).print(Text.assemble((id, "bold"), f"  {type}  ", str(document["status"])))
            write_json(document["state"])


def _events(app: App, type: str, id: str, after: int, limit: int | None) -> list[Recorded[Any]]:
    run_id = app.engine.registry.decider(type).run_id(id)
    app.run(run_id)  # raises where there is none
    return app.events(cast(Any, type), id, after=after, limit=limit)


# -- For people ---------------------------------------------------------------------------------------


def _print_machine(out: Console, view: StateMachineView) -> None:
    ends = [state.status for state in view.states if state.terminal]
    begin = next(state.status for state in view.states if state.initial)
    out.print(Text.assemble((view.decider, "bold"), f"  starts as {begin}", _ending(ends)))
    rows = table("from", "input", "to", "seen", "", right=("seen",))
    wrong = {edge.key for edge in view.undeclared}
    for edge in view.transitions:
        notes = [*(f"effect {name}" for name in edge.effects), *(f"timer {name}" for name in edge.timers)]
        style = "red" if edge.key in wrong else "" if edge.count else "dim"
        if edge.key in wrong:
            notes.insert(0, "not declared")
        elif not edge.count:
            notes.insert(0, "never seen")
        cells = (edge.source, edge.input, edge.target, str(edge.count or "–"), ", ".join(notes))
        rows.add_row(*(Text(cell, style=style) for cell in cells))
    out.print(keep_whole(rows) if view.transitions else Text("no transitions, neither declared nor seen"))
    for instance, error in view.unreadable.items():
        out.print(Text(f"{instance} could not be read: {error}", style="red"))


def _ending(ends: list[str]) -> str:
    return f", ends as {' or '.join(ends)}" if ends else ""


def _print_instance(out: Console, view: InstanceView[Any]) -> None:
    out.print(Text.assemble((view.run_id, "bold"), f"  {view.status}  ", state_text(view.run_state)))
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    facts.add_column(overflow="fold")
    facts.add_row("  state", Text(f"{view.state.__class__.__name__} {brief(plain_value(view.state), 400)}"))
    facts.add_row("  events", str(view.sequence))
    if view.inbox:
        facts.add_row("  inbox", f"{view.inbox} waiting")
    for timer in view.timers:
        tries = f", failed {timer.failures} times" if timer.failures else ""
        text = f"{timer.type} {brief(plain_value(timer.input), 80)}  {ago(timer.due)}{tries}"
        facts.add_row("  timer", Text(f"{timer.key}: {text}" if timer.key is not None else text))
    for effect in view.effects:
        why = "" if effect.error is None else f": {error_title(effect.error).splitlines()[0][:80]}"
        facts.add_row("  effect", Text(f"{effect.type}, {effect.state}, try {effect.attempt}{why}"))
    out.print(facts)
    rows = table("#", "at", "input", "from", "to", "events", right=("#",))
    for past in view.history:
        rows.add_row(
            str(past.sequence),
            local_time(past.at),
            *(Text(cell) for cell in (past.cause, past.from_status, past.to_status, ", ".join(past.events))),
        )
    out.print()
    out.print(rows)


# -- For scripts --------------------------------------------------------------------------------------


def plain_value(value: Any) -> Any:
    """A value as it would be stored; if that fails, its repr."""
    try:
        return msgspec.json.decode(Codec().encode(value, "a value"))
    except PayloadError:
        return repr(value)


def _machine_document(view: StateMachineView) -> dict[str, Any]:
    return {
        "decider": view.decider,
        "states": list(view.states),
        "transitions": list(view.transitions),
        "unreadable": {instance: str(error) for instance, error in view.unreadable.items()},
    }


def _instance_document(view: InstanceView[Any]) -> dict[str, Any]:
    return {
        "decider": view.decider,
        "instance": view.instance,
        "run": view.run_id,
        "run_state": view.run_state,
        "status": view.status,
        "state": plain_value(view.state),
        "terminal": view.terminal,
        "sequence": view.sequence,
        "inbox": view.inbox,
        "timers": [
            {
                "key": timer.key,
                "type": timer.type,
                "input": plain_value(timer.input),
                "due": iso(timer.due),
                "attempt": timer.attempt,
                "failures": timer.failures,
            }
            for timer in view.timers
        ],
        "effects": [
            {
                "node": effect.node,
                "type": effect.type,
                "state": effect.state,
                "attempt": effect.attempt,
                "error": None if effect.error is None else error_document(effect.error),
            }
            for effect in view.effects
        ],
        "history": [
            {
                "sequence": past.sequence,
                "cause": past.cause,
                "from_status": past.from_status,
                "to_status": past.to_status,
                "events": list(past.events),
                "at": iso(past.at),
            }
            for past in view.history
        ],
    }


def _event_document(one: Recorded[Any]) -> dict[str, Any]:
    return {
        "sequence": one.sequence,
        "position": one.position,
        "type": one.type,
        "event": plain_value(one.event),
        "cause": one.cause,
        "at": iso(one.at),
    }
