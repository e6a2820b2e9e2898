"""Compensation: what was done is undone in reverse order, durably."""

import asyncio
import contextlib
import threading
from datetime import timedelta
from typing import Any

import pytest

import detent
from detent import Context, Retry, step, workflow
from detent.errors import CompensationFailed, DeadlineExceeded, InvalidState, RunCanceled, RunPaused
from detent.execution import undo
from tests.functions.world import (
    AMPLE,
    SOON,
    Apps,
    Gate,
    crash,
    eventually,
    failure,
    result,
    wait_for,
    wait_parked,
)


class Shop:
    """Steps with compensations, and a log of what they did."""

    def __init__(self) -> None:
        log = self.log = []  # type: list[str]

        @step
        def charge(order: int) -> str:
            log.append(f"charge {order}")
            return f"receipt-{order}"

        @step
        def refund(order: int, result: str) -> None:
            log.append(f"refund {order} {result}")

        @step
        def reserve(item: str) -> None:
            log.append(f"reserve {item}")

        @step
        async def release(item: str) -> None:
            log.append(f"release {item}")

        self.charge = charge.compensate_with(refund)
        self.reserve = reserve.compensate_with(release)

    @property
    def undone(self) -> list[str]:
        return [line for line in self.log if line.startswith(("refund", "release"))]


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_a_failed_run_is_undone_in_reverse_order(apps: Apps, shop: Shop, is_async: bool) -> None:
    charge, reserve = shop.charge, shop.reserve

    @workflow(id="flow")
    def flow() -> None:
        charge(1)
        reserve("tea")
        charge(2)
        raise ValueError("out of stock")

    @workflow(id="flow")
    async def aflow() -> None:
        await charge.aio(1)
        await reserve.aio("tea")
        await charge.aio(2)
        raise ValueError("out of stock")

    chosen: Any = aflow if is_async else flow
    run = apps(chosen).start(chosen)
    assert str(failure(run)) == "out of stock"
    assert shop.log == [
        "charge 1",
        "reserve tea",
        "charge 2",
        "refund 2 receipt-2",
        "release tea",
        "refund 1 receipt-1",
    ]


def test_a_finished_run_is_not_undone(apps: Apps, shop: Shop) -> None:
    charge = shop.charge

    @workflow
    def flow() -> str:
        detent.sleep(SOON)
        return charge(1)

    assert result(apps(flow).start(flow)) == "receipt-1"
    assert shop.undone == []


def test_a_step_that_failed_or_was_skipped_is_not_undone(apps: Apps) -> None:
    undone: list[str] = []

    @step
    def undo(name: str) -> None:
        undone.append(name)

    @step
    def fails(name: str) -> None:
        raise ValueError(name)

    @step(on_exception="skip")
    def skipped(name: str) -> None:
        raise ValueError(name)

    fails.compensate_with(undo)
    skipped.compensate_with(undo)

    @workflow
    def flow() -> None:
        skipped("skipped")
        fails("failed")

    assert str(failure(apps(flow).start(flow))) == "failed"
    assert undone == []


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_canceling_a_run_that_sleeps_undoes_it(apps: Apps, shop: Shop, is_async: bool) -> None:
    charge = shop.charge

    @workflow(id="flow")
    def flow() -> None:
        charge(1)
        detent.sleep(hours=1)

    @workflow(id="flow")
    async def aflow() -> None:
        await charge.aio(1)
        await detent.aio.sleep(hours=1)

    chosen: Any = aflow if is_async else flow
    run = apps(chosen).start(chosen)
    wait_parked(run)
    run.cancel()
    assert isinstance(failure(run), RunCanceled)
    eventually(lambda: shop.undone == ["refund 1 receipt-1"], "it is undone")


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_a_compensation_that_fails_in_a_canceled_run_is_tried_until_it_succeeds(
    apps: Apps, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    monkeypatch.setattr(undo, "PATIENCE", 100_000)
    tries: list[int] = []

    @step(retry=Retry(attempts=1))
    def refund(order: int) -> None:
        tries.append(order)
        if len(tries) < 4:
            raise ConnectionError("the bank is away")

    @step
    def charge(order: int) -> int:
        return order

    charge = charge.compensate_with(refund)

    @workflow(id="flow")
    def flow() -> None:
        charge(1)
        detent.sleep(hours=1)

    @workflow(id="flow")
    async def aflow() -> None:
        await charge.aio(1)
        await detent.aio.sleep(hours=1)

    chosen: Any = aflow if is_async else flow
    app = apps(chosen)
    run = app.start(chosen)
    wait_parked(run)
    run.cancel()
    eventually(lambda: len(tries) == 4, "it is tried until it succeeds")
    executions = "SELECT COUNT(*) FROM detent_executions WHERE state NOT IN ('completed', 'canceled')"
    eventually(lambda: app.engine.store.read(lambda tx: tx.query(executions)) == [(0,)], "it is over")
    assert len(tries) == 4


def test_canceling_a_run_that_executes_undoes_what_it_did(apps: Apps, shop: Shop) -> None:
    charge, gate = shop.charge, Gate()

    @step
    def slow() -> None:
        gate.pass_through()

    @workflow
    def flow() -> None:
        charge(1)
        slow()
        charge(2)

    run = apps(flow).start(flow)
    gate.wait_for_arrival()
    run.cancel()
    gate.open()
    eventually(lambda: shop.undone == ["refund 1 receipt-1"], "it is undone")
    assert "charge 2" not in shop.log


def test_a_cancel_during_the_last_step_undoes_it_too(apps: Apps, shop: Shop) -> None:
    charge, gate = shop.charge, Gate()

    @workflow
    def flow() -> None:
        charge(1)
        gate.pass_through()  # not a step: the function ends without another look at the database

    first = apps(flow)
    run = first.start(flow)
    gate.wait_for_arrival()
    apps(flow, worker=False).run(run.id).cancel()  # from another process, which tells us later
    gate.open()
    eventually(lambda: shop.undone == ["refund 1 receipt-1"], "it is undone")
    assert isinstance(failure(run), RunCanceled)


def test_a_step_that_swallows_everything_cannot_prevent_the_undoing(apps: Apps, shop: Shop) -> None:
    charge, gate = shop.charge, Gate()

    @step
    def slow() -> None:
        gate.pass_through()

    @workflow
    def flow() -> str:
        charge(1)
        slow()
        with contextlib.suppress(BaseException):
            charge(2)
        return "done"

    run = apps(flow).start(flow)
    gate.wait_for_arrival()
    run.cancel()
    gate.open()
    eventually(lambda: shop.undone == ["refund 1 receipt-1"], "it is undone")


def test_a_deadline_undoes_what_was_done(apps: Apps, shop: Shop) -> None:
    charge = shop.charge

    @workflow
    def flow() -> None:
        charge(1)
        detent.sleep(hours=1)

    run = apps(flow).options(deadline=AMPLE).start(flow)
    assert isinstance(failure(run), DeadlineExceeded)
    assert shop.undone == ["refund 1 receipt-1"]


def test_a_step_whose_policy_cancels_the_run_undoes_it_and_ends_canceled(apps: Apps, shop: Shop) -> None:
    charge = shop.charge
    gate = Gate()

    @step
    def slow_undo(item: str) -> None:
        gate.pass_through()

    @step
    def book(item: str) -> None: ...

    book.compensate_with(slow_undo)

    @step(on_exception="cancel")
    def fatal() -> None:
        raise ValueError("no use")

    @workflow
    def flow() -> None:
        charge(1)
        book("x")
        fatal()

    first = apps(flow)
    run = first.start(flow)
    gate.wait_for_arrival()
    second = apps(flow)
    crash(first, reaped_by=second)  # in the middle of undoing
    gate.open()
    wait_for(second.run(run.id), "canceled")
    assert shop.undone == ["refund 1 receipt-1"]


def test_a_crash_in_the_middle_of_undoing_goes_on_and_undoes_nothing_twice(apps: Apps, shop: Shop) -> None:
    charge, gate = shop.charge, Gate()

    @step
    def book(item: str) -> None: ...

    @step
    def unbook(item: str) -> None:
        shop.log.append("unbook")
        if shop.log.count("unbook") == 1:
            gate.pass_through()

    book.compensate_with(unbook)
    runs_of_main: list[int] = []

    @workflow
    def flow() -> None:
        runs_of_main.append(1)
        charge(1)
        book("x")
        charge(2)
        raise ValueError("stop")

    first = apps(flow)
    run = first.start(flow)
    gate.wait_for_arrival()
    second = apps(flow)
    crash(first, reaped_by=second)
    assert str(failure(second.run(run.id))) == "stop"
    gate.open()
    assert shop.log[2:] == ["refund 2 receipt-2", "unbook", "unbook", "refund 1 receipt-1"]
    assert runs_of_main == [1]  # only its undoing went on


@pytest.mark.parametrize("on_exception", ["raise", "pause"])
def test_a_compensation_that_fails_pauses_the_run_and_resuming_finishes_it(
    apps: Apps, shop: Shop, on_exception: Any
) -> None:
    charge = shop.charge
    healthy = threading.Event()

    @step
    def book(item: str) -> None: ...

    @step(on_exception=on_exception)
    def unbook(item: str) -> None:
        if not healthy.is_set():
            raise ConnectionError("the hotel does not answer")
        shop.log.append("unbook")

    book.compensate_with(unbook)

    @workflow
    def flow() -> None:
        charge(1)
        book("x")
        charge(2)
        raise ValueError("stop")

    run = apps(flow).start(flow)
    error = failure(run)
    assert isinstance(error, RunPaused)
    assert isinstance(error.__cause__, CompensationFailed)
    assert "the hotel does not answer" in str(error)
    healthy.set()
    run.resume()
    assert str(failure(run)) == "stop"
    assert shop.log[2:] == ["refund 2 receipt-2", "unbook", "refund 1 receipt-1"]


def test_a_compensation_is_tried_again_by_its_own_policy(apps: Apps) -> None:
    attempts: list[int] = []

    @step
    def book() -> None: ...

    @step(retry=Retry(attempts=3, first=timedelta(0)))
    def unbook(ctx: Context) -> None:
        attempts.append(ctx.attempt)
        if ctx.attempt < 3:
            raise ConnectionError

    book.compensate_with(unbook)

    @workflow
    def flow() -> None:
        book()
        raise ValueError("stop")

    assert str(failure(apps(flow).start(flow))) == "stop"
    assert attempts == [1, 2, 3]


def test_spawned_steps_are_undone_in_the_order_in_which_they_were_spawned(apps: Apps, shop: Shop) -> None:
    charge, reserve = shop.charge, shop.reserve

    @workflow
    def flow() -> None:
        charge.spawn(1).result()
        reserve("tea")
        charge.map([2, 3])
        raise ValueError("stop")

    assert str(failure(apps(flow).start(flow))) == "stop"
    assert shop.undone == ["refund 3 receipt-3", "refund 2 receipt-2", "release tea", "refund 1 receipt-1"]


def test_a_spawned_step_that_nobody_waited_for_is_undone(apps: Apps, shop: Shop) -> None:
    charge = shop.charge

    @workflow
    def flow() -> None:
        charge.spawn(1)
        raise ValueError("stop")

    assert str(failure(apps(flow).start(flow))) == "stop"
    assert shop.log == ["charge 1", "refund 1 receipt-1"]


def test_a_spawned_step_that_executes_while_the_run_is_canceled_is_undone(apps: Apps) -> None:
    gate, log = Gate(), []

    @step
    def charge() -> str:
        log.append("charge")
        gate.pass_through()
        return "receipt"

    @step
    def refund(result: str) -> None:
        log.append(f"refund {result}")

    charge.compensate_with(refund)

    @workflow
    def flow() -> None:
        charge.spawn().result()

    run = apps(flow).start(flow)
    gate.wait_for_arrival()
    run.cancel()
    gate.open()
    eventually(lambda: log == ["charge", "refund receipt"], "it is undone")


def test_concurrent_branches_are_undone(apps: Apps, shop: Shop) -> None:
    charge, reserve = shop.charge, shop.reserve

    @workflow
    async def flow() -> None:
        await asyncio.gather(charge.aio(1), reserve.aio("tea"))
        raise ValueError("stop")

    assert str(failure(apps(flow).start(flow))) == "stop"
    assert sorted(shop.undone) == ["refund 1 receipt-1", "release tea"]


def test_a_run_that_was_undone_cannot_be_resumed(apps: Apps, shop: Shop) -> None:
    charge = shop.charge

    @workflow
    def flow() -> None:
        charge(1)
        raise ValueError("stop")

    run = apps(flow).start(flow)
    failure(run)
    with pytest.raises(InvalidState, match="failed and undone"):
        run.resume()


def test_a_run_paused_by_its_failure_is_not_undone_until_it_is_canceled(apps: Apps, shop: Shop) -> None:
    charge = shop.charge

    @workflow(on_exception="pause")
    def flow() -> None:
        charge(1)
        raise ValueError("stop")

    run = apps(flow).start(flow)
    assert isinstance(failure(run), RunPaused)
    assert shop.undone == []
    run.cancel()
    eventually(lambda: shop.undone == ["refund 1 receipt-1"], "it is undone")
