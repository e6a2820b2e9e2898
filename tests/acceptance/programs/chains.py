"""Workflows of five steps, two of them transactional; `def` and `async def`."""

import asyncio
import os
import random
import time
from typing import Any

import detent
from detent import step, workflow

from . import effects

TABLE = "CREATE TABLE chain_writes (run_id VARCHAR(64) NOT NULL, place INTEGER NOT NULL)"
PLACES = 5
WRITING = (1, 3)  # the places of the transactional steps


def pause() -> float:
    """How long a body takes: mostly nothing, sometimes enough to be killed in the middle."""
    longest = float(os.environ.get("DETENT_ACCEPTANCE_PAUSE", "0.02"))
    return random.random() * longest


def fresh() -> str:
    """A result that no second call of the body would return."""
    return f"{os.getpid()}.{time.monotonic_ns()}"


@step
def plain(ctx: detent.Context, place: int) -> str:
    effects.note("begin", ctx.run.id, place)
    time.sleep(pause())
    value = fresh()
    effects.note("end", ctx.run.id, place, value)
    return value


@step
async def aplain(ctx: detent.Context, place: int) -> str:
    effects.note("begin", ctx.run.id, place)
    await asyncio.sleep(pause())
    value = fresh()
    effects.note("end", ctx.run.id, place, value)
    return value


@step(transactional=True)
def writing(ctx: detent.Context, tx: Any, place: int) -> str:
    effects.note("begin", ctx.run.id, place)
    tx.execute(f"INSERT INTO chain_writes (run_id, place) VALUES ('{ctx.run.id}', {place})")
    value = fresh()
    effects.note("end", ctx.run.id, place, value)
    return value


@step(transactional=True)
async def awriting(ctx: detent.Context, tx: Any, place: int) -> str:
    effects.note("begin", ctx.run.id, place)
    await tx.execute(f"INSERT INTO chain_writes (run_id, place) VALUES ('{ctx.run.id}', {place})")
    value = fresh()
    effects.note("end", ctx.run.id, place, value)
    return value


@workflow
def chain(ctx: detent.Context) -> list[str]:
    values = []
    for place in range(PLACES):
        value = writing(ctx, place) if place in WRITING else plain(ctx, place)
        effects.note("returned", ctx.run.id, place, value)
        values.append(value)
    return values


@workflow
async def achain(ctx: detent.Context) -> list[str]:
    values = []
    for place in range(PLACES):
        value = await (awriting(ctx, place) if place in WRITING else aplain(ctx, place))
        effects.note("returned", ctx.run.id, place, value)
        values.append(value)
    return values
