"""Random workflows: whatever they ask for, and wherever they are cut off, unchanged code follows the record.

What is recorded of a run after each of its commits is what a crash there would leave behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import pytest

import detent
from detent import Context, Retry, step, workflow
from detent.runtime import replaying
from detent.runtime.registry import Registry
from detent.serialization import Codec
from detent.testing import TestingApp
from tests.kit.recording import Prefixes, broken, child, double, work

Program = list[Any]


@step(retry=Retry(attempts=2))
async def flaky(ctx: Context, number: int) -> int:
    if ctx.attempt == 1:
        raise ConnectionError("again")
    return number


@step(transactional=True)
def debit(tx: detent.Transaction, amount: int) -> int:
    return amount


async def perform(program: Program) -> list[Any]:
    done: list[Any] = []
    for name, rest in program:
        done.append(await PERFORMED[name](rest))
    return done


async def _background(program: Program) -> None:
    task = asyncio.create_task(perform(program))
    await asyncio.sleep(0)
    assert task is not None


async def _grouped(programs: list[Program]) -> list[Any]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(perform(program)) for program in programs]
    return [task.result() for task in tasks]


async def _gathered(programs: list[Program]) -> list[Any]:
    return list(await asyncio.gather(*(perform(program) for program in programs)))


async def _caught(program: Program) -> Any:
    try:
        return await perform(program)
    except (ValueError, ExceptionGroup) as error:
        return type(error).__name__


async def _spawned(number: int) -> int:
    return await work.spawn(number)


async def _forgotten(number: int) -> None:
    work.spawn(number)


async def _moment(number: int) -> str:
    return f"{await detent.aio.now()} {await detent.aio.uuid()}"


LEAVES: dict[str, Any] = {
    "double": double,
    "work": work.aio,
    "flaky": flaky,
    "debit": debit.aio,
    "child": child.aio,
    "map": lambda number: work.aio.map(range(number)),
    "spawned": _spawned,
    "forgotten": _forgotten,
    "moment": _moment,
    "publish": lambda number: detent.aio.publish("half:way", number),
    "sleep": lambda number: detent.aio.sleep(minutes=number),
    "receive": lambda number: detent.aio.receive("go", timeout=number, default=None),
    "tick": lambda number: asyncio.sleep(number / 1000),
    "broken": lambda number: broken.aio(f"number {number}"),
}
ONE: dict[str, Any] = {"caught": _caught, "background": _background}
MANY: dict[str, Any] = {"gathered": _gathered, "grouped": _grouped}
PERFORMED = LEAVES | ONE | MANY


def made(chance: random.Random, depth: int) -> Program:
    return [_operation(chance, depth) for _ in range(chance.randint(1, 3))]


def _operation(chance: random.Random, depth: int) -> list[Any]:
    name = chance.choice([*LEAVES, *([*ONE, *MANY] * 3 if depth else [])])
    if name in MANY:
        return [name, [made(chance, depth - 1) for _ in range(chance.randint(2, 3))]]
    return [name, made(chance, depth - 1) if name in ONE else chance.randint(0, 3)]


@workflow
async def flow(program: Program) -> list[Any]:
    return await perform(program)


ALL: list[Any] = [flow, child, work, double, flaky, debit, broken]


@pytest.mark.parametrize("seed", range(60))
def test_an_unchanged_random_workflow_follows_every_prefix_of_its_run(seed: int) -> None:
    chance = random.Random(seed)
    program = made(chance, depth=2)
    store = Prefixes()
    with TestingApp(include=ALL, store=store) as app:
        run = app.options(id="run").start(flow, program)
        with contextlib.suppress(detent.InvalidState):  # it may be over already
            if chance.random() < 0.5:
                run.send("go", 1)
            if chance.random() < 0.2:
                run.cancel()
        app.speedrun(run)
        with contextlib.suppress(detent.InvalidState):
            run.resume()
            app.speedrun(run)
        recordings = store.recordings(app.clock.now())
    for recording in recordings:
        found = replaying.replay(recording, flow, codec=Codec(), registry=Registry(ALL))
        assert not found.differences, (program, recording.row.state, [step.key for step in recording.steps])
