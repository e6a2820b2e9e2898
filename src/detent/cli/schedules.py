"""`detent schedules`: list them, and operate on them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import click
from rich.text import Text

from ..app import schedule_control as verbs
from ..app.schedules import Schedule
from ..app.settings import CatchUp, Overlap
from ..kernel.schedules import CATCH_UPS, OVERLAPS
from .command import Front, app_argument, command, json_option
from .find_app import opened
from .output import ago, brief_call, console, keep_whole, local_time, span, state_text, table, write_json
from .parameters import call_of, moment
from .parameters import span as span_type
from .start import definition_of


@click.group(cls=Front, context_settings={"help_option_names": ["-h", "--help"]})
def schedules() -> None:
    """Schedules: what starts runs at given times."""


def name_argument(function: click.decorators.FC) -> click.decorators.FC:
    return click.argument("name", metavar="NAME")(function)


@command(name="list", example="detent schedules list shop:app")
@app_argument
@json_option
def list_command(app: str, as_json: bool) -> None:
    """List all schedules: when they fire next, and what became of the last run."""
    with opened(app) as found:
        rows = list(verbs.walk(found.engine))
        states = verbs.last_states(found.engine, rows)
        listed = [Schedule(found.engine, row) for row in rows]
        if as_json:
            write_json([document(one, states) for one in listed])
        elif not listed:
            console().print("no schedules")
        else:
            _print(listed, states)


def _print(listed: list[Schedule], states: dict[str, str]) -> None:
    shown = table("schedule", "starts", "when", "source", "state", "next", "last run", "problem")
    for one in listed:
        ahead = one.upcoming(1)
        outcome = states.get(one.last_run_id or "")
        last = Text("–") if one.last_scheduled_for is None else Text(f"{ago(one.last_scheduled_for)} ")
        if outcome is not None:
            last += state_text(outcome)
        shown.add_row(
            one.name,
            one.type,
            when(one),
            one.source,
            state_text(one.state),
            ago(ahead[0]) if ahead and one.state == "active" else "–",
            last,
            one.error or one.reason or "",
        )
    console().print(keep_whole(shown))


def when(one: Schedule) -> str:
    """Its times in words: `0 3 * * * Europe/Paris`, `every 5 min`."""
    if one.every is not None:
        return f"every {span(one.every.total_seconds())}"
    return f"{one.cron} {one.tz}"


def document(one: Schedule, states: dict[str, str]) -> dict[str, Any]:
    return {
        "name": one.name,
        "type": one.type,
        "source": one.source,
        "state": one.state,
        "reason": one.reason,
        "error": one.error,
        "cron": one.cron,
        "every_seconds": None if one.every is None else one.every.total_seconds(),
        "tz": one.tz,
        "jitter_seconds": one.jitter.total_seconds(),
        "overlap": one.overlap,
        "catch_up": one.catch_up,
        "next": one.upcoming(3),
        "waiting_for": one.waiting_for,
        "last_run": one.last_run_id,
        "last_scheduled_for": one.last_scheduled_for,
        "last_state": states.get(one.last_run_id or ""),
        "fired": one.fired,
        "skipped": one.skipped,
    }


@command(
    example="detent schedules create shop:app nightly-eu report eu --cron '0 3 * * *' --tz Europe/Paris\n"
    "detent schedules create shop:app poll poll --every 5m --jitter 30s --overlap skip"
)
@app_argument
@name_argument
@click.argument("workflow", metavar="WORKFLOW")
@click.argument("args", metavar="[ARG]...", nargs=-1)
@click.option("--cron", help="Five fields: minute, hour, day, month, day of the week.")
@click.option("--every", type=span_type, metavar="SPAN", help="So often, counted from 1970 in UTC: 30s, 5m.")
@click.option("--tz", default="UTC", help="The time zone of --cron, such as Europe/Paris.")
@click.option("--jitter", type=span_type, metavar="SPAN", default="0s", help="Fire up to so much later.")
@click.option("--overlap", type=click.Choice(OVERLAPS), default="allow", help="While a run is still active.")
@click.option("--catch-up", type=click.Choice(CATCH_UPS), default="latest", help="After downtime.")
@click.option("--queue", help="Another queue than the workflow's own.")
@click.option("--priority", type=int, help="A higher one runs sooner.")
@json_option
def create(
    app: str,
    name: str,
    workflow: str,
    args: tuple[str, ...],
    cron: str | None,
    every: timedelta | None,
    tz: str,
    jitter: timedelta,
    overlap: Overlap,
    catch_up: CatchUp,
    queue: str | None,
    priority: int | None,
    as_json: bool,
) -> None:
    """Make a schedule at run time.

    Arguments are JSON, or else plain text; name=value gives one by its name.
    """
    with opened(app) as found:
        values, named = call_of(definition_of(found, workflow), found.engine.services.codec, args)
        made = found.schedules.create(
            name,
            workflow,
            args=values,
            kwargs=named,
            cron=cron,
            every=every,
            tz=tz,
            jitter=jitter,
            overlap=overlap,
            catch_up=catch_up,
            queue=queue,
            priority=priority,
        )
        _said(made, f"{brief_call(made.args)} {when(made)}".strip(), as_json=as_json)


@command(example="detent schedules change shop:app poll --every 10m --overlap skip")
@app_argument
@name_argument
@click.argument("args", metavar="[ARG]...", nargs=-1)
@click.option("--cron", help="Five fields; replaces --every.")
@click.option("--every", type=span_type, metavar="SPAN", help="So often: 30s, 5m; replaces --cron.")
@click.option("--tz", help="The time zone of --cron.")
@click.option("--jitter", type=span_type, metavar="SPAN", help="Fire up to so much later.")
@click.option("--overlap", type=click.Choice(OVERLAPS), help="While a run is still active.")
@click.option("--catch-up", type=click.Choice(CATCH_UPS), help="After downtime.")
@click.option("--queue", help="Another queue than the workflow's own.")
@click.option("--priority", type=int, help="A higher one runs sooner.")
@json_option
def change(app: str, name: str, args: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Change a schedule that was made at run time; what is not given stays.

    Arguments are JSON, or else plain text; they replace all present ones.
    """
    with opened(app) as found:
        schedule = found.schedules[name]
        terms = {option: value for option, value in given.items() if value is not None}
        if args:
            codec = found.engine.services.codec
            terms["args"], terms["kwargs"] = call_of(definition_of(found, schedule.type), codec, args)
        if not terms:
            raise click.UsageError("give what is to change, such as --every 10m")
        schedule.change(**terms)
        _said(schedule, f"{brief_call(schedule.args)} {when(schedule)}".strip(), as_json=as_json)


@command(example="detent schedules pause shop:app nightly-report --reason 'the bank is closed'")
@app_argument
@name_argument
@click.option("--reason", help="Why; it is shown in the list.")
@json_option
def pause(app: str, name: str, reason: str | None, as_json: bool) -> None:
    """Stop firing; runs that were started continue."""
    with opened(app) as found:
        schedule = found.schedules[name]
        schedule.pause(reason=reason)
        _said(schedule, "paused", as_json=as_json)


@command(example="detent schedules resume shop:app nightly-report")
@app_argument
@name_argument
@json_option
def resume(app: str, name: str, as_json: bool) -> None:
    """Fire again, from now on; firings that fell into the pause do not happen."""
    with opened(app) as found:
        schedule = found.schedules[name]
        schedule.resume()
        _said(schedule, "active", as_json=as_json)


@command(example="detent schedules trigger shop:app nightly-report")
@app_argument
@name_argument
@json_option
def trigger(app: str, name: str, as_json: bool) -> None:
    """Start a run now, beside the firings of the schedule."""
    with opened(app) as found:
        run = found.schedules[name].trigger()
        if as_json:
            write_json({"run": run.id})
        else:
            console().print(f"[green]✓[/] started {run.id}")


@command(example="detent schedules backfill shop:app nightly-report 2026-03-01 2026-04-01 --yes")
@app_argument
@name_argument
@click.argument("start", type=moment, metavar="START")
@click.argument("end", type=moment, metavar="END")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def backfill(app: str, name: str, start: datetime, end: datetime, yes: bool, as_json: bool) -> None:
    """Start the runs of all firings from START up to but without END that do not exist yet."""
    with opened(app) as found:
        schedule = found.schedules[name]
        missing = verbs.missing(found.engine, name, start, end)
        if not yes:
            if as_json:
                raise click.UsageError("--json does not ask; add --yes")
            click.confirm(f"start {len(missing)} runs of {schedule.type}?", abort=True)
        made = schedule.backfill(start, end)
        if as_json:
            write_json({"runs": [run.id for run in made]})
        else:
            console().print(f"[green]✓[/] started {len(made)} runs")


@command(name="next", example="detent schedules next shop:app nightly-report --count 5")
@app_argument
@name_argument
@click.option(
    "--count", type=click.IntRange(min=1, max=1000), default=5, help="How many times; 5 if not given."
)
@json_option
def next_command(app: str, name: str, count: int, as_json: bool) -> None:
    """Show when a schedule fires next."""
    with opened(app) as found:
        times = found.schedules[name].next(count)
        if as_json:
            write_json(times)
        for time in () if as_json else times:
            console().print(f"{time:%Y-%m-%dT%H:%M:%SZ}  {local_time(time)} here, {ago(time)}")


@command(example="detent schedules delete shop:app poll --yes")
@app_argument
@name_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def delete(app: str, name: str, yes: bool, as_json: bool) -> None:
    """Forget a schedule that was made at run time, or that the code no longer declares; its runs stay."""
    with opened(app) as found:
        schedule = found.schedules[name]
        if not yes:
            if as_json:
                raise click.UsageError("--json does not ask; add --yes")
            click.confirm(f"delete schedule {name}?", abort=True)
        schedule.delete()
        if as_json:
            write_json({"deleted": name})
        else:
            console().print(f"[green]✓[/] deleted {name}")


def _said(schedule: Schedule, what: str, *, as_json: bool) -> None:
    if as_json:
        write_json(document(schedule, verbs.last_states(schedule._engine, [schedule._row])))
    else:
        console().print(f"[green]✓[/] {schedule.name}: {what}")


for _command in (list_command, create, change, pause, resume, trigger, backfill, next_command, delete):
    schedules.add_command(_command)
