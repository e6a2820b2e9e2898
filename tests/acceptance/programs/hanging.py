"""A step that hangs until a file lets it go."""

import asyncio
import os
import time
from pathlib import Path

import detent
from detent import step, workflow

from . import effects


def released() -> bool:
    return Path(f"{os.environ[effects.VARIABLE]}.release").exists()


@step
def hang(ctx: detent.Context) -> int:
    effects.note("begin", ctx.run.id, "hang")
    while not released():
        time.sleep(0.01)
    effects.note("end", ctx.run.id, "hang")
    return os.getpid()


@step
async def ahang(ctx: detent.Context) -> int:
    effects.note("begin", ctx.run.id, "hang")
    while not released():
        await asyncio.sleep(0.01)
    effects.note("end", ctx.run.id, "hang")
    return os.getpid()


@workflow
def hangs(ctx: detent.Context) -> int:
    return hang(ctx)


@workflow
async def ahangs(ctx: detent.Context) -> int:
    return await ahang(ctx)
