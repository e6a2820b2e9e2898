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
from detent.execution.registry import Registry
from detent.replay import replayer
from detent.serialization.codec import Codec
from detent.testing import TestingApp
from detent.testing.crashes import _Trial
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


async def _raced(programs: list[Program]) -> list[Any]:
    tasks = [asyncio.create_task(perform(program)) for program in programs]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    won = [number for number, task in enumerate(tasks) if task in done]
    await double(len(won))
    return [won, *await asyncio.gather(*tasks)]


async def _completed(programs: list[Program]) -> list[Any]:
    return [await each for each in asyncio.as_completed([perform(program) for program in programs])]


async def _shared(programs: list[Program]) -> list[Any]:
    left, done = [operation for program in programs for operation in program], []

    async def take(name: str) -> None:
        while left:
            operation = left.pop(0)
            done.append([name, await perform([operation])])

    await asyncio.gather(take("a"), take("b"))
    return done


async def _limited(program: Program) -> Any:
    try:
        async with detent.aio.timeout(minutes=1):
            return await perform(program)
    except TimeoutError:
        return "late"


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
ONE: dict[str, Any] = {"caught": _caught, "background": _background, "limited": _limited}
MANY: dict[str, Any] = {
    "gathered": _gathered,
    "grouped": _grouped,
    "raced": _raced,
    "completed": _completed,
    "shared": _shared,
}
ORDERED = ("limited", "raced", "completed", "shared")
PERFORMED = LEAVES | ONE | MANY


def made(chance: random.Random, depth: int, *, plain: bool = True) -> Program:
    return [_operation(chance, depth, plain) for _ in range(chance.randint(1, 3))]


def _operation(chance: random.Random, depth: int, plain: bool) -> list[Any]:
    """Where the order of what ends matters, a timer of asyncio would make it another one every time."""
    leaves = [name for name in LEAVES if plain or name != "tick"]
    name = chance.choice([*leaves, *([*ONE, *MANY] * 3 if depth else [])])
    plain = plain and name not in ORDERED
    if name in MANY:
        return [name, [made(chance, depth - 1, plain=plain) for _ in range(chance.randint(2, 3))]]
    return [name, made(chance, depth - 1, plain=plain) if name in ONE else chance.randint(0, 3)]


@workflow
async def flow(program: Program) -> list[Any]:
    return await perform(program)


ALL: list[Any] = [flow, child, work, double, flaky, debit, broken]


def test_a_cancelled_task_does_not_drop_values_that_other_tasks_left_to_be_written() -> None:
    """The task of the timeout is cancelled when it is about to commit, and the time and the uuid with it."""
    program: Program = [["limited", [["sleep", 0]]], ["gathered", [[["work", 1]], [["moment", 0]]]]]
    store = Prefixes()
    with TestingApp(include=ALL, store=store) as app:
        app.speedrun(app.options(id="run").start(flow, program))
        recordings = store.recordings(app.clock.now())
    for recording in recordings:
        assert not replayer.replay(recording, flow, codec=Codec(), registry=Registry(ALL)).differences


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
        found = replayer.replay(recording, flow, codec=Codec(), registry=Registry(ALL))
        assert not found.differences, (program, recording.row.state, [step.key for step in recording.steps])


# What is not durable may differ from delivery to delivery, and what fails ends without a value.
DURABLE = [name for name in LEAVES if name not in ("tick", "broken", "moment")]


@workflow
async def ordered(program: Program) -> list[Any]:
    return [
        await _raced([program, program]),
        await _shared([program, program]),
        await _completed([program] * 3),
    ]


@pytest.mark.parametrize("seed", range(25))
def test_a_replay_returns_what_the_first_execution_returned_whatever_came_first(seed: int) -> None:
    chance = random.Random(seed)
    names = chance.sample([name for name in DURABLE if name not in ("sleep", "receive", "forgotten")], k=3)
    program = [[name, chance.randint(0, 3)] for name in names]
    assert _Trial(ordered, (program,), {}, None, ALL).shuffled(seed) is None
