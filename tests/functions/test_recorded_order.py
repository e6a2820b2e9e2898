"""Recorded order: whatever an async workflow did concurrently, a replay does in the same order."""

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import detent
from detent import step, workflow
from tests.functions.world import SOON, Apps, Gate, crash, eventually, recorded, result, wait_parked


class Deliveries:
    """What each delivery of a workflow to a worker came to, just before it was put down."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def put_down(self, value: Any) -> Any:
        """Note the value, and let the workflow leave memory; the next delivery replays it."""
        self.seen.append(value)
        await detent.aio.sleep(SOON)
        return value

    @property
    def agree(self) -> bool:
        return len(self.seen) >= 2 and all(value == self.seen[0] for value in self.seen)


@step
async def fetch(number: int, delay: float = 0.0) -> int:
    await asyncio.sleep(delay)
    return number * 10


@step
def shuffled(number: int) -> int:
    """In a thread, and as long as chance has it."""
    threading.Event().wait(random.random() / 100)
    return number * 10


def test_tasks_that_share_a_list_replay_alike(apps: Apps) -> None:
    deliveries = Deliveries()

    @workflow
    async def flow() -> dict[str, int]:
        todo, out = list(range(8)), {}

        async def work() -> None:
            while todo:
                number = todo.pop(0)
                out[str(number)] = await shuffled.aio(number)

        await asyncio.gather(work(), work(), work())
        return dict(await deliveries.put_down(out))

    assert result(apps(flow, shuffled).start(flow)) == {str(n): n * 10 for n in range(8)}
    assert deliveries.agree


def test_as_completed_gives_the_same_order_in_a_replay(apps: Apps) -> None:
    deliveries = Deliveries()

    @workflow
    async def flow() -> list[int]:
        calls = [fetch(number, (5 - number) / 100) for number in range(5)]
        values = [await each for each in asyncio.as_completed(calls)]
        return list(await deliveries.put_down(values))

    assert result(apps(flow, fetch).start(flow)) == [40, 30, 20, 10, 0]
    assert deliveries.agree


@pytest.mark.parametrize("winner", ["first", "second"])
def test_the_winner_of_a_race_wins_every_replay(apps: Apps, winner: str) -> None:
    deliveries = Deliveries()
    delays = {"first": 0.0, "second": 0.05} if winner == "first" else {"first": 0.05, "second": 0.0}
    branches: list[str] = []

    @step
    async def wait_for(name: str) -> str:
        await asyncio.sleep(delays[name])
        return name

    @step
    def take(name: str) -> None:
        branches.append(name)

    @workflow
    async def flow() -> str:
        tasks = [asyncio.create_task(wait_for(name)) for name in ("first", "second")]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        names = sorted(task.result() for task in done)
        await take.aio(names[0])
        await asyncio.gather(*tasks)
        return str(await deliveries.put_down(",".join(names)))

    assert result(apps(flow).start(flow)) == winner
    assert deliveries.agree
    assert branches == [winner]


def test_a_timer_that_won_against_a_message_wins_every_replay(apps: Apps) -> None:
    deliveries = Deliveries()

    @workflow
    async def flow() -> str:
        timer = asyncio.create_task(detent.aio.sleep(SOON))
        message = asyncio.create_task(detent.aio.receive("go"))
        await asyncio.wait([timer, message], return_when=asyncio.FIRST_COMPLETED)
        won = "message" if message.done() else "timer"
        await message
        await timer
        return str(await deliveries.put_down(won))

    app = apps(flow)
    run = app.start(flow)
    eventually(lambda: any(item.node == "receive/go" for item in run.executions()), "it waits")
    wait_parked(run)
    eventually(lambda: order_of(app, run, "sleep") is not None or len(deliveries.seen) > 0, "the timer ends")
    run.send("go", 1)
    assert result(run) == "timer"
    assert deliveries.agree


def order_of(app: detent.App, run: detent.Run[Any], key: str) -> int | None:
    """The place of a call's answer, where a mark gives it."""
    steps = app.engine.store.journal([run.id])[run.id]
    return next((entry.seq for entry in steps if entry.kind == "order" and entry.key.endswith(key)), None)


@pytest.mark.parametrize("kind", ["spawn", "child"])
def test_spawned_work_ends_in_the_same_order_in_a_replay(apps: Apps, kind: str) -> None:
    deliveries = Deliveries()
    gates = [Gate() for _ in range(4)]

    @step
    def slow(number: int) -> int:
        gates[number].pass_through()
        return number

    @workflow
    def child(number: int) -> int:
        return slow(number)

    @workflow
    async def flow() -> list[int]:
        order: list[int] = []

        async def wait(number: int) -> None:
            handle = slow.spawn(number) if kind == "spawn" else child.spawn(number)
            order.append(await handle)

        async def tick() -> None:
            for _ in range(3):  # keeps the workflow here, so that it sees one end after the other
                await fetch(1, 0.01)

        await asyncio.gather(*(wait(number) for number in range(4)), tick())
        return list(await deliveries.put_down(order))

    run = apps(flow, child, slow, fetch).start(flow)
    for number in (2, 0, 3, 1):
        gates[number].wait_for_arrival()
        gates[number].open()
        done = f"wait{'' if number == 0 else f'#{number + 1}'}:{(kind == 'child' and 'child') or 'slow'}"
        eventually(lambda done=done: done in recorded(run), f"{done} has ended")  # type: ignore[misc]
    result(run)
    assert deliveries.agree


def test_new_work_waits_until_the_record_was_replayed(apps: Apps) -> None:
    """A crash in the middle: what was in flight runs again behind all that was recorded."""
    first = Deliveries()
    gate = Gate()
    held: list[int] = []

    @step
    def slow() -> str:
        held.append(1)
        if len(held) == 1:
            gate.pass_through()
        return "slow"

    @workflow
    async def flow() -> list[Any]:
        order: list[Any] = []

        async def slowly() -> None:
            order.append(await slow.aio())

        async def quickly() -> None:
            for number in range(3):
                order.append(await fetch(number))

        await asyncio.gather(slowly(), quickly())
        return list(await first.put_down(order))

    app, other = apps(flow, slow, fetch), apps(flow, slow, fetch, worker=False)
    run = app.start(flow)
    gate.wait_for_arrival()
    eventually(lambda: len(recorded(run, "step")) == 3, "the quick ones are recorded")
    other.open(worker=True)
    crash(app, reaped_by=other)
    gate.open()
    assert result(other.run(run.id)) == [0, 10, 20, "slow"]
    assert first.agree


@pytest.mark.parametrize("then", ["another step in the handler", "the only line of calls"])
def test_a_step_cancelled_by_a_timeout_is_not_executed_again(apps: Apps, then: str) -> None:
    deliveries = Deliveries()
    calls: list[str] = []

    @step
    async def charge() -> str:
        calls.append("charge")
        await asyncio.sleep(3600 if len(calls) == 1 else 0)
        return "charged"

    @step
    async def give_up() -> str:
        calls.append("give up")
        return "gave up"

    @workflow
    async def flow() -> str:
        value = "gave up"
        if then == "another step in the handler":
            try:
                value = await asyncio.wait_for(charge(), timeout=0.05)
            except TimeoutError:
                value = await give_up()
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    value = await charge()
            await give_up()
        return str(await deliveries.put_down(value))

    assert result(apps(flow).start(flow)) == "gave up"
    assert calls == ["charge", "give up"]
    assert deliveries.agree


async def endless(kind: str) -> None:
    match kind:
        case "sleep":
            await detent.aio.sleep(3600)
        case "receive":
            await detent.aio.receive("never")
        case _:
            await fetch(1, 3600)


def test_a_wait_cancelled_by_the_code_is_cancelled_in_every_replay(apps: Apps) -> None:
    deliveries = Deliveries()

    @workflow
    async def flow() -> list[str]:
        seen = []
        for wait in (
            lambda: detent.aio.sleep(3600),
            lambda: detent.aio.receive("never"),
            lambda: fetch(1, 3600),
        ):
            try:
                async with asyncio.timeout(0.03):
                    await wait()
            except TimeoutError:
                seen.append("timeout")
            await fetch(2)
        return list(await deliveries.put_down(seen))

    assert result(apps(flow, fetch).start(flow)) == ["timeout"] * 3
    assert deliveries.agree


def test_losers_of_a_race_that_are_cancelled_stay_cancelled(apps: Apps) -> None:
    deliveries = Deliveries()
    begun: list[str] = []

    @step
    async def slow(name: str) -> str:
        begun.append(name)
        await asyncio.sleep(3600)
        return name

    @workflow
    async def flow() -> list[str]:
        tasks = [
            asyncio.create_task(slow("a")),
            asyncio.create_task(fetch(1)),
            asyncio.create_task(slow("b")),
        ]
        done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        ends = await asyncio.gather(*rest, return_exceptions=True)
        await fetch(2)
        return list(await deliveries.put_down([str(len(done)), *(type(end).__name__ for end in ends)]))

    assert result(apps(flow, fetch).start(flow)) == ["1", "CancelledError", "CancelledError"]
    assert sorted(begun) == ["a", "b"]
    assert deliveries.agree


def test_an_answer_that_was_recorded_and_not_delivered_when_its_call_was_cancelled(apps: Apps) -> None:
    """The cancellation comes while the record of the step is committed."""
    deliveries = Deliveries()
    committing, go_on = threading.Event(), threading.Event()

    @step
    async def charge() -> str:
        return "charged"

    @workflow
    async def flow() -> str:
        task = asyncio.create_task(charge())
        while not committing.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        go_on.set()
        try:
            value = await task
        except asyncio.CancelledError:
            value = "cancelled"
        await fetch(1)
        return str(await deliveries.put_down(value))

    app = apps(flow, fetch)
    store: Any = app.engine.store
    apply: Callable[..., Any] = store.apply

    def slow_apply(operations: Any, **options: Any) -> Any:
        if any(
            getattr(step, "name", "") == "charge" for op in operations for step in getattr(op, "steps", ())
        ):
            committing.set()
            assert go_on.wait(10)
        return apply(operations, **options)

    store.apply = slow_apply
    value = result(app.start(flow))
    assert value == "cancelled"
    assert deliveries.agree


def test_threads_of_an_async_workflow_replay_alike(apps: Apps) -> None:
    deliveries = Deliveries()

    @workflow
    async def flow() -> list[int]:
        order: list[int] = []

        async def in_thread(number: int) -> None:
            order.append(await asyncio.to_thread(shuffled, number))

        await asyncio.gather(*(in_thread(number) for number in range(5)))
        return list(await deliveries.put_down(order))

    assert sorted(result(apps(flow, shuffled).start(flow))) == [0, 10, 20, 30, 40]
    assert deliveries.agree


def test_an_answer_waits_for_the_thread_that_got_the_one_before(apps: Apps) -> None:
    """The second thread calls its step while the first one, with its answer, is still on its way back."""
    deliveries = Deliveries()
    second_body = threading.Event()

    @step
    def numbered(number: int) -> int:
        if number == 2:
            second_body.set()
        return number

    @workflow
    async def flow() -> list[int]:
        first_answered = threading.Event()
        order: list[int] = []

        def first() -> int:
            value = numbered(1)
            first_answered.set()
            second_body.wait(10)
            time.sleep(0.2)  # the record of the second step is committed meanwhile
            return value

        def second() -> int:
            first_answered.wait(10)
            return numbered(2)

        async def in_thread(function: Callable[[], int]) -> None:
            order.append(await asyncio.to_thread(function))

        await asyncio.gather(in_thread(first), in_thread(second))
        return list(await deliveries.put_down(order))

    assert result(apps(flow, numbered).start(flow)) == [1, 2]
    assert deliveries.agree


def test_code_that_polls_gets_its_answers(apps: Apps) -> None:
    @workflow
    async def flow() -> int:
        task = asyncio.create_task(fetch(4))
        while not task.done():
            await asyncio.sleep(0)
        return task.result()

    assert result(apps(flow, fetch).start(flow)) == 40


def test_code_that_does_not_cancel_any_more_pauses_the_run(apps: Apps, monkeypatch: Any) -> None:
    monkeypatch.setattr("detent.execution.order.SPARE", 0.2)
    patient = threading.Event()

    @workflow
    async def flow() -> int:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if patient.is_set() else 0.05):
                await fetch(1, 3600)
        value = await fetch(2)
        await detent.aio.receive("go")
        return value

    run = apps(flow, fetch).start(flow)
    eventually(lambda: any(item.node == "receive/go" for item in run.executions()), "it waits")
    wait_parked(run)
    patient.set()
    run.send("go", 1)
    with pytest.raises(detent.errors.RunPaused) as paused:
        result(run)
    assert "cancel" in str(paused.value)


def test_runs_that_are_started_concurrently_have_their_place_in_the_order(apps: Apps) -> None:
    deliveries = Deliveries()

    @workflow
    def other(number: int) -> int:
        return number

    @workflow
    async def flow() -> list[str]:
        order: list[str] = []

        async def begin(number: int) -> None:
            await async_app.start(other, number)
            order.append(f"started {number}")

        async def work(number: int) -> None:
            order.append(f"worked {await shuffled.aio(number)}")

        await asyncio.gather(*(begin(number) for number in range(3)), *(work(number) for number in range(3)))
        return list(await deliveries.put_down(order))

    app = apps(flow, other, shuffled)
    async_app = detent.AsyncApp(app.engine.url, include=[other])
    result(app.start(flow))
    assert deliveries.agree
    async_app.engine.close()


def test_other_threads_may_use_the_loop_while_answers_are_ordered(apps: Apps) -> None:
    """The queue of the loop changes while it is looked at."""

    @workflow
    async def flow() -> int:
        return sum(await asyncio.gather(*(fetch(number) for number in range(200))))

    app = apps(flow, fetch)
    loop = app.engine.services.loop.get()
    done = threading.Event()

    def disturb() -> None:
        while not done.is_set():
            for _ in range(50):
                loop.call_soon_threadsafe(lambda: None)

    threads = [threading.Thread(target=disturb, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        assert result(app.start(flow)) == sum(number * 10 for number in range(200))
    finally:
        done.set()
        for thread in threads:
            thread.join()
