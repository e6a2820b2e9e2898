"""`detent decider`: commands for event-sourced workflows."""

from __future__ import annotations

import click

from .command import Front
from .dead_letters import dead_letters
from .instances import events, show, state
from .observations import observations
from .projections import projections


@click.group(cls=Front, context_settings={"help_option_names": ["-h", "--help"]})
def decider() -> None:
    """Inspect deciders: states, events, inputs, dead letters, projections."""


for _command in (show, events, state, observations, dead_letters, projections):
    decider.add_command(_command)
