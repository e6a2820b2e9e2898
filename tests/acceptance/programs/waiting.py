"""Workflows that wait: for time, for messages, for spawned steps and for children."""

import asyncio
import time

import detent
from detent import aio, step, workflow

from . import chains, effects


@step
def work(number: int) -> int:
    time.sleep(chains.pause())
    return number * 2


@step
async def awork(number: int) -> int:
    await asyncio.sleep(chains.pause())
    return number * 2


@workflow
def child(number: int) -> int:
    detent.sleep(0.2)
    return work(number)


@workflow
async def achild(number: int) -> int:
    await aio.sleep(0.2)
    return await awork(number)


@workflow
def waits(ctx: detent.Context, number: int) -> int:
    """Waits for everything there is to wait for; returns 10 times the number."""
    total: int = sum(work.map([number, number]))
    effects.note("listens", ctx.run.id, number)
    total += detent.receive("number", type=int)
    detent.sleep(0.3)
    first, second = child.spawn(number), achild.spawn(number)
    total += first.result() + second.result()
    return total + work(number // 2)


@workflow
async def awaits(ctx: detent.Context, number: int) -> int:
    total: int = sum(await awork.map([number, number]))
    effects.note("listens", ctx.run.id, number)
    total += await aio.receive("number", type=int)
    await aio.sleep(0.3)
    first, second = child.spawn(number), achild.spawn(number)
    total += await first + await second
    return total + await awork(number // 2)
