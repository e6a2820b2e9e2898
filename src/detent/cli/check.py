"""`detent check`: predicts, before a deploy, what the new code does to the runs in flight."""

from __future__ import annotations

from collections import Counter

import click
from rich.text import Text

from ..app.check import Verdict, check
from .command import Failure, app_argument, command, json_option, one_line
from .find_app import opened
from .output import console, write_json

_STYLES = {
    Verdict.UNCHANGED: "green",
    Verdict.CONTINUES: "yellow",
    Verdict.HEALS: "cyan",
    Verdict.CANNOT_CONTINUE: "bold red",
}
_NO_CODE = "check compares runs with code: give MODULE:APP, not a database URL"


@command(name="check", example="detent check shop:app")
@app_argument
@click.option("--all", "everything", is_flag=True, help="Also list unchanged runs.")
@click.option("--strict", is_flag=True, help="Exit with code 1 if any run is not unchanged.")
@json_option
def check_command(app: str, everything: bool, strict: bool, as_json: bool) -> None:
    """Predict what this code does to the runs in flight; exit code 1 if one cannot continue.

    Reads the database and compares it with the code.  Replays durable functions against their records:
    executes no step, and writes nothing.
    """
    with opened(app) as found:
        if not (found.engine.registry.workflows or found.engine.registry.deciders):
            raise Failure(_NO_CODE)
        checked = list(check(found.engine))
    counts = Counter(one.verdict for one in checked)
    refused = {*Verdict} - {Verdict.UNCHANGED} if strict else {Verdict.CANNOT_CONTINUE}
    failed = any(counts[verdict] for verdict in refused)
    shown = [one for one in checked if everything or one.verdict is not Verdict.UNCHANGED]
    if as_json:
        write_json(
            {
                "runs": [
                    {
                        "id": one.run_id,
                        "type": one.type,
                        "state": one.state,
                        "verdict": one.verdict,
                        "reasons": one.reasons,
                    }
                    for one in shown
                ],
                "counts": {str(verdict): counts[verdict] for verdict in Verdict},
            }
        )
    else:
        out = console()
        for one in shown:
            out.print(
                Text.assemble((one.run_id, "bold"), f"  {one.type}  ", (one.verdict, _STYLES[one.verdict]))
            )
            for reason in one.reasons:
                out.print(Text(f"    {one_line(reason)}"))
        words = ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])
        sign = "[bold red]✘[/]" if failed else "[green]✓[/]"
        out.print(f"{sign} {len(checked)} runs in flight" + (f": {words}" if words else ""))
    if failed:
        raise click.exceptions.Exit(1)
