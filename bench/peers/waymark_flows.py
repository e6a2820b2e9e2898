"""The workflows of the adapter for waymark: its workers know actions by their module, not by __main__."""

from __future__ import annotations

import asyncio
import time

from waymark import Workflow, action, workflow


@action
async def noop(number: int) -> int:
    return number


@action
async def stamp(sent: float) -> float:
    return time.time() - sent


@workflow
class Steps(Workflow):
    async def run(self, count: int) -> int:
        done = 0
        for number in range(count):
            done = await noop(number=number)
        return done


@workflow
class FanOut(Workflow):
    async def run(self, numbers: list[int]) -> list[int]:
        done = await asyncio.gather(*[noop(number=number) for number in numbers], return_exceptions=True)
        return done  # its compiler takes no other form


@workflow
class Latency(Workflow):
    async def run(self, sent: float) -> float:
        return await stamp(sent=sent)
