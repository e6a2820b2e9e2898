"""A step that kills its process, every time."""

import os

import detent
from detent import step, workflow

from . import effects


@step
def die(ctx: detent.Context) -> None:
    effects.note("begin", ctx.run.id, "die")
    os._exit(1)


@workflow
def poison(ctx: detent.Context) -> None:
    die(ctx)
