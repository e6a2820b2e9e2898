"""`detent decider dead-letters`: lists, replays and discards dead letters."""

from __future__ import annotations

from typing import Any

import click
from rich.text import Text

from ..app.app import App
from ..app.dead_letters import DeadLetter, ReplayReport
from .command import app_argument, command, json_option
from .find_app import opened
from .json_documents import error_document, iso, payload
from .output import ago, brief, console, error_title, keep_whole, table, write_json


@command(
    name="dead-letters",
    example="detent decider dead-letters shop:app --decider order\n"
    "detent decider dead-letters shop:app --replay order:o-1/effect:3.0\n"
    "detent decider dead-letters shop:app --decider order --replay-all",
)
@app_argument
@click.option("--decider", metavar="TYPE", help="Only letters of this decider.")
@click.option("--instance", metavar="ID", help="Only letters of this instance of the decider.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=50, show_default=True, help="The maximum number."
)
@click.option("--count", "counting", is_flag=True, help="Print only the number.")
@click.option(
    "--replay",
    "replayed",
    metavar="LETTER",
    multiple=True,
    help="Try this letter again, with a new retry budget.",
)
@click.option("--replay-all", "everything", is_flag=True, help="Try all dead letters again.")
@click.option(
    "--discard",
    "discarded",
    metavar="LETTER",
    multiple=True,
    help="Remove this letter; an inbox continues after the input that blocks it.",
)
@json_option
def dead_letters(
    app: str,
    decider: str | None,
    instance: str | None,
    limit: int,
    counting: bool,
    replayed: tuple[str, ...],
    everything: bool,
    discarded: tuple[str, ...],
    as_json: bool,
) -> None:
    """List, replay or discard dead letters: effects, timers and inboxes that were given up."""
    if instance is not None and decider is None:
        raise click.UsageError("--instance needs --decider")
    with opened(app) as found:
        if replayed or discarded or everything:
            for letter in replayed:
                found.dead_letters.replay(letter)
            for letter in discarded:
                found.dead_letters.discard(letter)
            report = ReplayReport(0)
            if everything:
                report = found.dead_letters.replay_all(decider, instance)
            _said(len(replayed), len(discarded), report, as_json=as_json)
        elif counting:
            count = found.dead_letters.count(decider)
            if as_json:
                write_json({"count": count})
            else:
                console().print(count)
        else:
            _listed(found, found.dead_letters(decider, instance, limit=limit), as_json=as_json)


def _said(replayed: int, discarded: int, report: ReplayReport, *, as_json: bool) -> None:
    done = {"replayed": replayed + report.replayed, "discarded": discarded}
    if as_json:
        skipped = [{"letter": one.letter, "reason": one.reason} for one in report.skipped]
        write_json({**done, "skipped": skipped})
        return
    counts = {**done, "skipped": len(report.skipped)}
    said = ", ".join(f"{verb} {count}" for verb, count in counts.items() if count)
    console().print(said or "no dead letters matched")
    for one in report.skipped:
        console().print(Text(f"  skipped {one.letter}: {one.reason}"), soft_wrap=True)


def _listed(app: App, letters: list[DeadLetter], *, as_json: bool) -> None:
    if as_json:
        write_json([letter_document(app, letter) for letter in letters])
        return
    if not letters:
        console().print("no dead letters")
        return
    shown = table("letter", "what", "payload", "attempts", "given up", "error", right=("attempts",))
    for letter in letters:
        shown.add_row(
            letter.id,
            letter.type,
            brief(payload(app, letter.payload)),
            str(letter.attempts),
            ago(letter.at),
            "" if letter.error is None else error_title(letter.error),
        )
    console().print(keep_whole(shown))


def letter_document(app: App, letter: DeadLetter) -> dict[str, Any]:
    return {
        "id": letter.id,
        "decider": letter.decider,
        "instance": letter.instance,
        "kind": letter.kind,
        "type": letter.type,
        "payload": payload(app, letter.payload),
        "attempts": letter.attempts,
        "at": iso(letter.at),
        "error": None if letter.error is None else error_document(letter.error),
    }
