"""Starts many runs at once from async code, and waits for all of them: `crowd URL COUNT`."""

import asyncio
import faulthandler
import sys
from typing import Any

import detent
from detent import step, workflow


@step
def double(number: int) -> int:
    return 2 * number


@step
async def adouble(number: int) -> int:
    return 2 * number


@workflow
def one_step(number: int) -> int:
    return double(number)


@workflow
async def aone_step(number: int) -> int:
    return await adouble(number)


async def crowd(url: str, count: int) -> None:
    async with detent.AsyncApp(url, include=[one_step, aone_step], migrate=True, pool_size=10) as app:
        definitions: list[Any] = [one_step, aone_step]
        runs = await asyncio.gather(*(app.start(definitions[n % 2], n) for n in range(count)))
        results = await asyncio.gather(*(run.result() for run in runs))
        assert results == [2 * n for n in range(count)]


if __name__ == "__main__":
    faulthandler.enable()
    url, count = sys.argv[1:]
    asyncio.run(crowd(url, int(count)))
