"""The `detent` command: its subcommands, each loaded when it is called."""

from __future__ import annotations

from importlib import import_module

import click

from .. import __version__
from .command import Front

# By name, in the order of the help: the module, and what the help says in one line.
COMMANDS = {
    "worker": ("worker", "Run a worker of an app until it is stopped."),
    "dashboard": ("dashboard", "Serve the dashboard: see every run, act safely."),
    "start": ("start", "Start a workflow; the run is durable when this returns."),
    "runs": ("runs", "List the newest runs."),
    "show": ("show", "Show a run: steps, attempts, errors, children."),
    "graph": ("graphs", "Draw the graph of a run with the states of its nodes."),
    "history": ("show", "List everything that happened to a run, in order."),
    "pause": ("control", "Stop new work of a run; executing steps end and are recorded."),
    "resume": ("control", "Continue a paused run, or a failed one from its failure."),
    "cancel": ("control", "End a run and its children; compensations run."),
    "skip": ("graphs", "Continue as if a waiting or failed node were done."),
    "reattempt": ("graphs", "Retry a failed or canceled node, with a new retry budget."),
    "send": ("start", "Send a run a message, for detent.receive(NAME)."),
    "stream": ("run_streams", "Print a stream of a run; without NAME, list its streams."),
    "publish": ("run_streams", "Publish a value of an active run, or print the latest one."),
    "fork": ("control", "Start a new run that keeps the records before a step."),
    "verify": ("graphs", "Recompute the hashes of a run's nodes."),
    "check": ("check", "Predict what this code does to the runs in flight."),
    "repin": ("repin", "Let only workers of another version continue a run."),
    "decider": ("deciders", "Inspect deciders: states, events, inputs, dead letters."),
    "schedules": ("schedules", "Schedules: what starts runs at given times."),
    "workers": ("show", "List the workers, and whether they are alive."),
    "queues": ("queues", "Show queues and their limits; pause, resume and change them."),
    "delete": ("bulk", "Remove an ended run, its children and all their data."),
    "resume-all": ("bulk", "Resume all matching runs, after confirmation."),
    "cancel-all": ("bulk", "Cancel all matching active runs, after confirmation."),
    "repin-all": ("repin", "Let only workers of another version continue all these runs."),
    "gc": ("control", "Remove runs that ended long ago, with all their data."),
    "migrate": ("control", "Create or update the tables of the database."),
    "doctor": ("doctor", "Check the database, the workers and the waiting work."),
    "demo": ("demo", "Watch a workflow survive a kill -9."),
}


class Commands(Front):
    """Loads one command, not all of them: that would take three times as long as Python's own start."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f".{COMMANDS[cmd_name][0]}", __package__)
        commands = [value for value in vars(module).values() if isinstance(value, click.Command)]
        return next(command for command in commands if command.name == cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="First time?  Run detent demo",
)
@click.version_option(__version__, prog_name="detent", message="%(prog)s %(version)s")
def detent() -> None:
    """Durable workflows for Python.

    APP is MODULE:APP, such as shop:app, or a database URL, such as sqlite:///shop.db.  The default is
    the environment variable DETENT_APP.  Every command takes --json.
    """


def main() -> None:
    """The entry point of the console script."""
    detent(prog_name="detent")
