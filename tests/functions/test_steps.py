"""Steps: keys, results, nesting, and where they may be called from."""

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec
import pytest

import detent
from detent import Context, step, workflow
from detent.errors import BlockingCall, NotInRun, NotSerializable, StepOutsideRun
from tests.functions.world import SOON, Apps, failure, recorded, result


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Receipt:
    number: int
    at: datetime
    lines: list[tuple[str, Decimal]]


class Box(msgspec.Struct):
    colour: Colour
    inner: Receipt | None = None


def test_steps_are_keyed_by_name_and_occurrence(apps: Apps) -> None:
    calls: list[int] = []

    @step
    def charge(order: int) -> int:
        calls.append(order)
        return order * 10

    @step(id="fetch")
    def renamed_since() -> str:
        return "data"

    @workflow
    def flow() -> list[Any]:
        results: list[Any] = [charge(number) for number in range(3)]
        results.append(renamed_since())
        detent.sleep(SOON)
        results.append(charge(7))
        return results

    run = apps(flow).start(flow)
    assert result(run) == [0, 10, 20, "data", 70]
    assert calls == [0, 1, 2, 7]
    assert recorded(run, "step") == ["charge", "charge#2", "charge#3", "fetch", "charge#4"]


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_a_recorded_step_is_not_called_again(apps: Apps, is_async: bool) -> None:
    calls: list[str] = []

    @step
    def work() -> str:
        calls.append("sync")
        return "done"

    @step
    async def awork() -> str:
        calls.append("async")
        return "done"

    @workflow(id="flow")
    def flow() -> str:
        value = work() + awork.sync()
        detent.sleep(SOON)
        return value

    @workflow(id="flow")
    async def aflow() -> str:
        value = await work.aio() + await awork()
        await detent.aio.sleep(SOON)
        return value

    chosen: Any = aflow if is_async else flow
    run = apps(chosen).start(chosen)
    assert result(run) == "donedone"
    assert calls == ["sync", "async"]


def test_results_have_their_annotated_type_on_the_first_run_and_on_replay(apps: Apps) -> None:
    moment = datetime(2024, 5, 17, 12, 30, tzinfo=UTC)
    seen: list[list[Any]] = []

    @step
    def receipt() -> Receipt:
        return Receipt(1, moment, [("tea", Decimal("2.50"))])

    @step
    def box() -> Box:
        return Box(Colour.RED, Receipt(2, moment, []))

    @step
    def pair() -> tuple[int, date]:
        return (1, moment.date())

    @step
    def colours() -> dict[str, set[Colour]]:
        return {"a": {Colour.BLUE}}

    @step
    def untyped():  # type: ignore[no-untyped-def]
        return (1, 2)

    @step
    def spans() -> list[timedelta | UUID]:
        return [timedelta(hours=1)]

    @workflow
    def flow() -> None:
        seen.append([receipt(), box(), pair(), colours(), untyped(), spans()])
        detent.sleep(SOON)

    result(apps(flow).start(flow))
    first, replay = seen
    assert first == replay
    assert first[0] == Receipt(1, moment, [("tea", Decimal("2.50"))])
    assert first[1].inner.at == moment
    assert first[2] == (1, date(2024, 5, 17))
    assert first[3] == {"a": {Colour.BLUE}}
    assert first[4] == [1, 2]  # nothing says that it is a tuple: a list both times


def test_a_result_that_has_no_json_form_is_an_error_that_names_step_and_type(apps: Apps) -> None:
    calls: list[int] = []

    @step(retry=detent.Retry(attempts=5))
    def odd() -> Any:
        calls.append(1)
        return {"lock": threading.Lock()}

    @workflow
    def flow() -> Any:
        return odd()

    error = failure(apps(flow).start(flow))
    assert isinstance(error, NotSerializable)
    assert "'odd'" in str(error)
    assert "lock" in str(error)
    assert calls == [1]  # the same value will not serialise the next time either


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800", [1, {"deep": float("nan")}]])
def test_values_that_json_would_spoil_are_refused(apps: Apps, value: Any) -> None:
    @step
    def odd() -> Any:
        return value

    @workflow
    def flow() -> Any:
        return odd()

    assert isinstance(failure(apps(flow).start(flow)), NotSerializable)


def test_text_with_nul_survives(apps: Apps) -> None:
    @step
    def odd(text: str) -> str:
        return text + "\x00b"

    @workflow
    def flow() -> str:
        value = odd("a")
        detent.sleep(SOON)
        return value

    assert result(apps(flow).start(flow)) == "a\x00b"


def test_a_workflow_whose_result_has_no_json_form_fails(apps: Apps) -> None:
    @workflow
    def flow() -> Any:
        return threading.Lock()

    assert isinstance(failure(apps(flow).start(flow)), NotSerializable)


def test_a_step_takes_arguments_without_json_form(apps: Apps) -> None:
    @step
    def use(lock: Any) -> bool:
        with lock:
            return True

    @workflow
    def flow() -> bool:
        return use(threading.Lock())

    assert result(apps(flow).start(flow)) is True


def test_a_step_inside_of_a_step_is_part_of_it(apps: Apps) -> None:
    @step
    def inner(number: int) -> int:
        return number + 1

    @step
    def outer(number: int) -> int:
        return inner(number) * 2

    @workflow
    def flow() -> int:
        return outer(1)

    run = apps(flow).start(flow)
    assert result(run) == 4
    assert recorded(run) == ["outer"]


def test_a_step_called_from_a_thread_of_the_workflow_is_refused(apps: Apps) -> None:
    calls: list[int] = []

    @step
    def work(number: int) -> int:
        calls.append(number)
        return number

    @workflow
    def flow() -> int:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(work, 1).result()

    error = failure(apps(flow).start(flow))
    assert isinstance(error, StepOutsideRun)
    assert "copy_context().run(work" in str(error)
    assert calls == []


def test_a_pool_of_threads_that_outlives_its_workflow_is_refused_all_the_same(apps: Apps) -> None:
    @step
    def work(number: int) -> int:
        return number

    with ThreadPoolExecutor(1) as pool:

        @workflow
        def flow() -> int:
            return pool.submit(work, 1).result()

        app = apps(flow)
        for _ in range(2):
            assert isinstance(failure(app.start(flow)), StepOutsideRun)


def test_a_step_called_from_a_thread_with_the_context_is_recorded(apps: Apps) -> None:
    calls: list[int] = []

    @step
    def work(number: int) -> int:
        calls.append(number)
        return number

    @workflow
    def flow() -> int:
        with ThreadPoolExecutor(1) as pool:
            context = contextvars.copy_context()
            value = pool.submit(lambda: context.run(work, 1)).result()
        detent.sleep(SOON)
        return value

    run = apps(flow).start(flow)
    assert result(run) == 1
    assert calls == [1]
    assert recorded(run, "step") == ["work"]


def test_threads_of_a_step_are_its_own_business(apps: Apps) -> None:
    @step
    def inner(number: int) -> int:
        return number

    @step
    def outer() -> int:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(inner, 5).result()

    @workflow
    def flow() -> int:
        return outer()

    assert result(apps(flow).start(flow)) == 5


def test_a_blocking_step_in_async_code_says_what_to_write(apps: Apps) -> None:
    @step
    def charge(number: int) -> int:
        return number

    @workflow
    async def flow() -> int:
        return charge(1)

    error = failure(apps(flow).start(flow))
    assert isinstance(error, BlockingCall)
    assert "await charge.aio(...)" in str(error)


def test_blocking_waits_in_async_code_say_what_to_write(apps: Apps) -> None:
    @workflow
    async def flow(what: str) -> None:
        {"sleep": lambda: detent.sleep(1), "receive": lambda: detent.receive("x"), "now": detent.now}[what]()

    app = apps(flow)
    for what in ("sleep", "receive", "now"):
        error = failure(app.start(flow, what))
        assert isinstance(error, BlockingCall)
        assert f"await detent.aio.{what}(...)" in str(error)


def test_to_thread_carries_the_run_along(apps: Apps) -> None:
    calls: list[int] = []

    @step
    def charge(number: int) -> int:
        calls.append(number)
        return number

    @workflow
    async def flow() -> int:
        value = await asyncio.to_thread(charge, 3)
        await detent.aio.sleep(SOON)
        return value

    assert result(apps(flow).start(flow)) == 3
    assert calls == [3]


def test_asyncio_run_inside_of_a_sync_workflow_is_recorded(apps: Apps) -> None:
    calls: list[int] = []

    @step
    async def fetch(number: int) -> int:
        calls.append(number)
        return number

    @workflow
    def flow() -> list[int]:
        async def both() -> list[int]:
            return list(await asyncio.gather(fetch(1), fetch(2)))

        values = asyncio.run(both())
        detent.sleep(SOON)
        return values

    run = apps(flow).start(flow)
    assert result(run) == [1, 2]
    assert sorted(calls) == [1, 2]
    assert sorted(recorded(run, "step")) == ["fetch", "fetch#2"]


def test_waiting_in_asyncio_run_frees_the_worker_too(apps: Apps) -> None:
    @workflow
    def flow() -> str:
        async def both() -> str:
            message, _ = await asyncio.gather(detent.aio.receive("x"), detent.aio.sleep(SOON))
            return str(message)

        return asyncio.run(both())

    @workflow
    def other() -> str:
        return "ran meanwhile"

    app = apps(flow, other, concurrency=1)
    run = app.start(flow)
    assert result(app.start(other)) == "ran meanwhile"
    run.send("x", "hello")
    assert result(run) == "hello"


def test_the_context_comes_by_name_and_by_annotation_and_is_never_recorded(apps: Apps) -> None:
    seen: list[Any] = []

    @step
    def by_name(ctx, number: int) -> int:  # type: ignore[no-untyped-def]
        seen.append((ctx.key, ctx.attempt, ctx.run.type))
        return number

    @step
    def by_annotation(context: Context, number: int) -> int:
        seen.append((context.key, context.attempt, context.run.type))
        return number

    @workflow
    def flow(ctx: Context, number: int) -> int:
        assert ctx.run.id
        total = by_name(number) + by_annotation(number)
        # Passing it on is allowed, also by keyword.
        return total + by_name(ctx, number) + by_annotation(context=ctx, number=number)

    run = apps(flow).start(flow, 2)
    assert result(run) == 8
    assert seen == [
        ("by_name", 1, "flow"),
        ("by_annotation", 1, "flow"),
        ("by_name#2", 1, "flow"),
        ("by_annotation#2", 1, "flow"),
    ]
    inputs = [item.input for item in run.executions() if item.kind == "step"]
    assert inputs[:3] == [((2,), {})] * 3


def test_what_only_a_run_can_do_is_refused_outside() -> None:
    @step
    def work() -> None: ...

    with pytest.raises(NotInRun, match=r"work\.spawn"):
        work.spawn()
    with pytest.raises(NotInRun, match="receive"):
        detent.receive("x")
    with pytest.raises(NotInRun, match="step_guard"), detent.step_guard("x"):
        pass


def test_the_loops_default_executor_stays_the_users(url: str) -> None:
    class Refusing(ThreadPoolExecutor):
        def submit(self, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError("Detent used the loop's default executor")

    @step
    def work() -> int:
        return 1

    @workflow
    async def flow() -> int:
        return int(await work.aio())

    async def program() -> Any:
        asyncio.get_running_loop().set_default_executor(Refusing())
        async with detent.AsyncApp(url, include=[flow]) as app:
            run = await app.start(flow)
            return await run.result(timeout=20)

    assert asyncio.run(program()) == 1


def test_any_number_of_event_loops_may_follow_each_other(url: str) -> None:
    @step
    async def work(number: int) -> int:
        return number

    @workflow
    async def flow(number: int) -> int:
        return await work(number)

    app = detent.AsyncApp(url, include=[flow])

    async def program(number: int) -> Any:
        async with app:
            run = await app.start(flow, number)
            return await run.result(timeout=20)

    assert [asyncio.run(program(number)) for number in range(3)] == [0, 1, 2]
