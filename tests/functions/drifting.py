"""Workflows whose code asks for something else than what was recorded."""

from typing import Any

import pytest

import detent
from detent import step, workflow

numbers: list[int] = []


@pytest.fixture(autouse=True)
def no_numbers() -> None:
    numbers.clear()


@step
def work(number: int) -> int:
    return number


@step
def pay(amount: int) -> str:
    return f"paid {amount}"


@step
def take_payment(amount: int) -> str:
    return f"took {amount}"


@workflow(id="changing")
def changing() -> int:
    """Every delivery asks for another number."""
    numbers.append(len(numbers))
    value = work(numbers[-1])
    detent.receive("go")
    return value


@workflow(id="changing")
async def achanging() -> int:
    numbers.append(len(numbers))
    value = await work.aio(numbers[-1])
    await detent.aio.receive("go")
    return value


def charging(kind: str, *, new: bool, strict: bool = False) -> Any:
    """The same workflow before and after a deploy that renamed its step."""
    charge = take_payment if new else pay

    @workflow(id="charging", strict=strict)
    def flow() -> str:
        value = charge(5)
        detent.receive("deployed")
        return value

    @workflow(id="charging", strict=strict)
    async def aflow() -> str:
        value = await charge.aio(5)
        await detent.aio.receive("deployed")
        return value

    return flow if kind == "def" else aflow
