"""The `detent` command and its subcommands."""

from __future__ import annotations

import click

from .. import __version__
from .bulk import cancel_all, delete, resume_all
from .check import check_command
from .command import Front
from .control import cancel, fork, gc, migrate, pause, resume
from .dashboard import dashboard
from .deciders import decider
from .demo import demo
from .doctor import doctor
from .graphs import graph, reattempt, skip, verify
from .queues import queues
from .repin import repin, repin_all
from .run_streams import publish, stream
from .runs import runs
from .schedules import schedules
from .show import history, show, workers
from .start import send, start
from .worker import worker


@click.group(
    cls=Front, context_settings={"help_option_names": ["-h", "--help"]}, epilog="First time?  Run detent demo"
)
@click.version_option(__version__, prog_name="detent", message="%(prog)s %(version)s")
def detent() -> None:
    """Durable workflows for Python.

    APP is MODULE:APP, such as shop:app, or a database URL, such as sqlite:///shop.db.  The default is
    the environment variable DETENT_APP.  Every command takes --json.
    """


for _command in (
    worker,
    dashboard,
    start,
    runs,
    show,
    graph,
    history,
    pause,
    resume,
    cancel,
    skip,
    reattempt,
    send,
    stream,
    publish,
    fork,
    verify,
    check_command,
    repin,
    decider,
    schedules,
    workers,
    queues,
    delete,
    resume_all,
    cancel_all,
    repin_all,
    gc,
    migrate,
    doctor,
    demo,
):
    detent.add_command(_command)


def main() -> None:
    """The entry point of the console script."""
    detent(prog_name="detent")
