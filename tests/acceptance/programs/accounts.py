"""Workflows that continue as new runs, and one that maps with a limit."""

import time
from typing import Any

import detent
from detent import Context, aio, step, workflow

ROUNDS = 3  # messages that one run of a chain receives


@workflow
def account(seen: list[int]) -> list[int]:
    for _ in range(ROUNDS):
        amount: Any = detent.receive("amount")
        if amount is None:
            return seen
        seen = [*seen, amount]
    detent.continue_as_new(seen)


@workflow
async def aaccount(ctx: Context, seen: list[int]) -> list[int]:
    for _ in range(ROUNDS):
        amount: Any = await aio.receive("amount")
        if amount is None:
            return seen
        seen = [*seen, amount]
    ctx.continue_as_new(seen)


@step
def square(number: int) -> int:
    time.sleep(0.02)
    return number * number


@workflow
def squares(count: int) -> list[int]:
    return square.map(range(count), concurrency=4)
