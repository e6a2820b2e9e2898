"""The `detent` command, and all that it can do."""

from __future__ import annotations

import click

from .. import __version__
from .checking import check_command
from .command import Front
from .deciding import decider
from .demo import demo
from .doctor import doctor
from .graphing import graph, reattempt, skip, verify
from .listing import runs
from .many import cancel_all, delete, resume_all
from .reading import history, show, workers
from .serving import worker
from .starting import send, start
from .steering import cancel, fork, gc, migrate, pause, resume


@click.group(
    cls=Front, context_settings={"help_option_names": ["-h", "--help"]}, epilog="New here?  detent demo"
)
@click.version_option(__version__, prog_name="detent", message="%(prog)s %(version)s")
def detent() -> None:
    """Durable workflows for Python.

    APP is MODULE:APP, such as shop:app, or a database URL, such as sqlite:///shop.db; the environment
    variable DETENT_APP stands in where it is left out.  Every command takes --json.
    """


for _command in (
    worker,
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
    fork,
    verify,
    check_command,
    decider,
    workers,
    delete,
    resume_all,
    cancel_all,
    gc,
    migrate,
    doctor,
    demo,
):
    detent.add_command(_command)


def main() -> None:
    """The entry point of the console script."""
    detent(prog_name="detent")
