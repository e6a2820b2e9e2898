"""Workflows that sleep."""

import detent
from detent import aio, workflow


@workflow
def sleeps(seconds: float) -> str:
    detent.sleep(seconds)
    return "awake"


@workflow
async def asleeps(seconds: float) -> str:
    await aio.sleep(seconds)
    return "awake"
