"""The workflows that the benchmarks run."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime

import detent
from detent import step, workflow


@step
async def anoop(number: int) -> int:
    return number


@step
def noop(number: int) -> int:
    return number


@workflow
async def five_async(number: int) -> int:
    for i in range(5):
        await anoop(i)
    return number


@workflow
def five_sync(number: int) -> int:
    for i in range(5):
        noop(i)
    return number


@workflow
def hundred_sync(steps: int) -> int:
    for i in range(steps):
        noop(i)
    return steps


@workflow
async def one_step(number: int) -> int:
    return await anoop(number)


@step
async def burn(number: int) -> int:
    """Three milliseconds of a core, whatever else there is to do."""
    begun = time.thread_time()
    while time.thread_time() - begun < 0.003:
        pass
    return number


@workflow
async def heavy(number: int) -> int:
    return await burn(number)


@workflow
def fan_out(width: int) -> int:
    return len(anoop.sync.map(range(width)))


@step
async def stamp(sent: float) -> float:
    return time.time() - sent


@workflow
async def latency(sent: float) -> float:
    return await stamp(sent)


@workflow
async def sleeper(until: datetime) -> None:
    await detent.aio.sleep_until(until)


# In a worker that is to be killed there is something in it: its runs then stay in their second step.
VICTIM: list[bool] = []


@step
async def hold(number: int) -> int:
    if VICTIM:
        print("held", flush=True)
        await asyncio.sleep(3600)
    return number


@workflow
async def held(number: int) -> int:
    await anoop(number)
    return await hold(number)


ALL = [five_async, five_sync, hundred_sync, one_step, heavy, fan_out, latency, sleeper, held]
