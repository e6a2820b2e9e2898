"""Waiting and recorded values: sleep, receive, send, publish, now, patched, step_guard."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import detent
from detent import step, workflow
from detent.errors import InvalidState, ReceiveTimeout, RunNotFound
from tests.functions.world import SOON, Apps, Gate, crash, eventually, failure, recorded, result, wait_parked

PAST = datetime(2001, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_a_sleeping_run_frees_its_worker(apps: Apps, is_async: bool) -> None:
    @workflow(id="sleeper")
    def sleeper() -> str:
        detent.sleep(hours=1)
        return "woke up"

    @workflow(id="sleeper")
    async def asleeper() -> str:
        await detent.aio.sleep(hours=1)
        return "woke up"

    @workflow
    def other() -> str:
        return "ran meanwhile"

    chosen: Any = asleeper if is_async else sleeper
    app = apps(chosen, other, concurrency=1)
    run = app.start(chosen)
    assert result(app.start(other)) == "ran meanwhile"
    wait_parked(run)


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_a_moment_that_has_passed_is_not_waited_for(apps: Apps, is_async: bool) -> None:
    deliveries: list[int] = []

    @workflow(id="flow")
    def flow() -> str:
        deliveries.append(1)
        detent.sleep_until(PAST)
        detent.sleep(0)
        return "on"

    @workflow(id="flow")
    async def aflow() -> str:
        deliveries.append(1)
        await detent.aio.sleep_until(PAST)
        await detent.aio.sleep(0)
        return "on"

    chosen: Any = aflow if is_async else flow
    assert result(apps(chosen).start(chosen)) == "on"
    assert deliveries == [1]


def test_a_sleep_goes_on_where_it_was_after_a_crash(apps: Apps) -> None:
    @workflow
    def flow() -> datetime:
        detent.sleep(timedelta(seconds=1))
        return detent.now()

    first = apps(flow)
    run = first.start(flow)
    wait_parked(run)
    due = [item.scheduled_for for item in run.executions() if item.kind == "sleep"]
    second = apps(flow)
    crash(first, reaped_by=second)
    woken = result(second.run(run.id))
    assert [item.scheduled_for for item in run.executions() if item.kind == "sleep"] == due
    assert woken >= due[0]


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_time_and_chance_are_the_same_on_replay(apps: Apps, is_async: bool) -> None:
    seen: list[tuple[Any, ...]] = []

    @workflow(id="flow")
    def flow() -> None:
        values = (detent.now(), detent.uuid(), detent.random(), detent.now(), detent.uuid())
        detent.sleep(SOON)
        seen.append((*values, detent.now()))
        detent.sleep(SOON)
        seen.append((*values, seen[0][-1]))

    @workflow(id="flow")
    async def aflow() -> None:
        aio = detent.aio
        values = (await aio.now(), await aio.uuid(), await aio.random(), await aio.now(), await aio.uuid())
        await aio.sleep(SOON)
        seen.append((*values, await aio.now()))
        await aio.sleep(SOON)
        seen.append((*values, seen[0][-1]))

    chosen: Any = aflow if is_async else flow
    result(apps(chosen).start(chosen))
    assert len(seen) == 3
    assert len(set(seen)) == 1
    assert len(set(seen[0])) == 6


def test_a_message_sent_before_the_receiver_waits_arrives(apps: Apps) -> None:
    @workflow
    def flow() -> Any:
        return detent.receive("approval")

    starter = apps(flow, worker=False)
    run = starter.start(flow)
    run.send("approval", {"by": "Ann"})
    apps(flow)
    assert result(run) == {"by": "Ann"}


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_a_message_wakes_the_receiver_that_waits(apps: Apps, is_async: bool) -> None:
    @workflow(id="flow")
    def flow() -> Any:
        return detent.receive("approval", timeout=timedelta(hours=1), type=tuple[int, datetime])

    @workflow(id="flow")
    async def aflow() -> Any:
        return await detent.aio.receive("approval", timeout=timedelta(hours=1), type=tuple[int, datetime])

    chosen: Any = aflow if is_async else flow
    run = apps(chosen).start(chosen)
    wait_parked(run)
    run.send("other", "not this one")
    run.send("approval", (1, PAST))
    result(run)
    assert run.row.result == '[1,"2001-01-01T00:00:00Z"]'


def test_a_message_from_another_process_wakes_the_receiver(apps: Apps) -> None:
    @workflow
    def flow() -> Any:
        return detent.receive("approval")

    run = apps(flow).start(flow)
    wait_parked(run)
    apps(flow, worker=False).run(run.id).send("approval", 5)
    assert result(run) == 5


def test_messages_arrive_in_order_each_once(apps: Apps) -> None:
    @workflow
    def flow() -> list[Any]:
        got = [detent.receive("item") for _ in range(3)]
        detent.sleep(SOON)
        return [*got, detent.receive("item", timeout=SOON, default="nothing more")]

    app = apps(flow)
    run = app.start(flow)
    for number in range(3):
        run.send("item", number)
    assert result(run) == [0, 1, 2, "nothing more"]


def test_the_same_message_id_twice_is_one_message(apps: Apps) -> None:
    @workflow
    def flow() -> list[Any]:
        return [detent.receive("item"), detent.receive("item", timeout=SOON, default=None)]

    run = apps(flow).start(flow)
    run.send("item", 1, id="webhook-1")
    run.send("item", 1, id="webhook-1")
    assert result(run) == [1, None]


def test_receives_of_one_name_side_by_side_get_different_messages(apps: Apps) -> None:
    @workflow
    async def flow() -> list[Any]:
        got = await asyncio.gather(*(detent.aio.receive("item") for _ in range(3)))
        await detent.aio.sleep(SOON)
        return sorted(got)

    run = apps(flow).start(flow)
    for number in range(3):
        run.send("item", number)
    assert result(run) == [0, 1, 2]


def test_a_receive_that_timed_out_stays_so(apps: Apps) -> None:
    seen: list[Any] = []

    @workflow
    def flow() -> None:
        try:
            detent.receive("approval", timeout=SOON)
        except ReceiveTimeout as error:
            seen.append(str(error))
        seen.append(detent.receive("approval", timeout=SOON, default="default"))
        assert detent.receive("ready") is None
        seen.append("end")

    run = apps(flow).start(flow)
    eventually(lambda: len(recorded(run, "receive")) == 2, "both have timed out")
    wait_parked(run)
    run.send("approval", "too late")
    run.send("ready")
    result(run)
    assert "no message 'approval' arrived in time" in seen[0]
    assert {value for value in seen if value != "end"} == {seen[0], "default"}
    assert recorded(run, "receive") == ["receive/approval", "receive/approval#2", "receive/ready"]


def test_a_timed_out_receive_fails_a_run_that_does_not_catch_it(apps: Apps) -> None:
    @workflow
    def flow() -> Any:
        return detent.receive("approval", timeout=SOON)

    assert isinstance(failure(apps(flow).start(flow)), ReceiveTimeout)


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_a_workflow_sends_exactly_once(apps: Apps, is_async: bool) -> None:
    @workflow
    def receiver() -> list[Any]:
        return [detent.receive("news"), detent.receive("news", timeout=0.5, default="no second")]

    @workflow(id="sender")
    def sender(to: str) -> None:
        detent.send(to, "news", 1)
        detent.sleep(SOON)  # a replay sends nothing

    @workflow(id="sender")
    async def asender(to: str) -> None:
        await detent.aio.send(to, "news", 1)
        await detent.aio.sleep(SOON)

    chosen: Any = asender if is_async else sender
    app = apps(receiver, chosen)
    run = app.start(receiver)
    result(app.start(chosen, run.id))
    assert result(run) == [1, "no second"]


def test_a_step_sends_once_over_its_attempts(apps: Apps) -> None:
    @workflow
    def receiver() -> list[Any]:
        return [detent.receive("news"), detent.receive("news", timeout=0.5, default="no second")]

    @step(retry=detent.Retry(attempts=2, first=timedelta(0)))
    def tell(ctx: detent.Context, to: str) -> None:
        app.run(to).send("news", 1)
        if ctx.attempt == 1:
            raise ConnectionError

    @workflow
    def sender(to: str) -> None:
        tell(to)

    app = apps(receiver, sender)
    run = app.start(receiver)
    result(app.start(sender, run.id))
    assert result(run) == [1, "no second"]


def test_sending_to_nobody_or_to_a_run_that_is_over_is_refused(apps: Apps) -> None:
    @workflow
    def flow() -> None: ...

    app = apps(flow)
    run = app.start(flow)
    result(run)
    with pytest.raises(InvalidState, match=r"cannot send to run .*: it is finished"):
        run.send("x", 1)

    @workflow
    def sender() -> None:
        detent.send("nobody", "x")

    assert isinstance(failure(apps(sender).start(sender)), RunNotFound)


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_anyone_reads_the_latest_published_value(apps: Apps, is_async: bool) -> None:
    @workflow(id="flow")
    def flow() -> None:
        detent.publish("progress", 0.4)
        detent.receive("on")
        detent.publish("progress", {"done": 1.0})

    @workflow(id="flow")
    async def aflow() -> None:
        await detent.aio.publish("progress", 0.4)
        await detent.aio.receive("on")
        await detent.aio.publish("progress", {"done": 1.0})

    chosen: Any = aflow if is_async else flow
    app = apps(chosen)
    run = app.start(chosen)
    assert run.published("other", default="none") == "none"
    eventually(lambda: run.published("progress") == 0.4, "the first value")
    run.send("on")
    result(run)
    assert apps(chosen, worker=False).run(run.id).published("progress") == {"done": 1.0}


def test_a_patch_is_for_runs_that_come_to_it_with_the_new_code(apps: Apps) -> None:
    seen: list[tuple[str, bool]] = []

    @step
    def before() -> None: ...

    @step
    def after() -> None: ...

    @workflow(id="flow")
    def old(name: str) -> None:
        before()
        after()
        detent.receive("deployed")

    @workflow(id="flow")
    def new(name: str) -> bool:
        before()
        patched = detent.patched("faster")
        seen.append((name, patched))
        after()
        detent.receive("deployed")
        detent.sleep(SOON)
        return patched

    yesterday = apps(old)
    started_before = yesterday.start(old, "old")
    wait_parked(started_before)
    yesterday.close()
    today = apps(new)
    started_after = today.start(new, "new")
    for run in (started_before, started_after):
        today.run(run.id).send("deployed")
        result(today.run(run.id))
    assert set(seen) == {("old", False), ("new", True)}
    assert len(seen) >= 5


def test_a_step_by_hand_is_recorded_once(apps: Apps) -> None:
    calls: list[str] = []

    @workflow
    def flow() -> Any:
        with detent.step_guard("fetch") as guard:
            if guard.pending:
                calls.append("fetch")
                guard.success([1, 2])
        detent.sleep(SOON)
        return guard.result

    run = apps(flow).start(flow)
    assert result(run) == [1, 2]
    assert calls == ["fetch"]
    assert recorded(run, "step") == ["fetch"]


def test_a_step_by_hand_that_raises_is_recorded_as_failed(apps: Apps) -> None:
    calls: list[str] = []

    @workflow
    def flow() -> str:
        try:
            with detent.step_guard("fetch") as guard:
                if guard.pending:
                    calls.append("fetch")
                    raise ValueError("no luck")
                return str(guard.result)
        except ValueError as error:
            detent.sleep(SOON)
            return str(error)

    assert result(apps(flow).start(flow)) == "no luck"
    assert calls == ["fetch"]


def test_a_heartbeat_shows_a_step_that_executes(apps: Apps) -> None:
    gate = Gate()

    @step
    def slow(ctx: detent.Context) -> None:
        ctx.heartbeat()
        ctx.logger.info("at work")
        gate.pass_through()

    @workflow
    def flow() -> None:
        slow()

    run = apps(flow).start(flow)
    gate.wait_for_arrival()
    eventually(lambda: ("slow", "executing") in [(s.node, s.state) for s in run.executions()])
    gate.open()
    result(run)
    assert ("slow", "completed") in [(s.node, s.state) for s in run.executions()]


def test_lines_of_a_contexts_logger_carry_run_step_and_attempt(
    apps: Apps, caplog: pytest.LogCaptureFixture
) -> None:
    @step
    def work(ctx: detent.Context) -> None:
        ctx.logger.warning("careful")

    @workflow
    def flow() -> None:
        work()

    run = apps(flow).start(flow)
    result(run)
    [line] = [record for record in caplog.records if record.message == "careful"]
    assert (vars(line)["run"], vars(line)["step"], vars(line)["attempt"]) == (run.id, "work", 1)


def test_outside_of_a_run_waiting_and_chance_just_happen() -> None:
    detent.sleep(0)
    detent.sleep_until(PAST)
    detent.publish("progress", 1)
    assert detent.now() <= datetime.now(UTC)
    assert 0 <= detent.random() < 1
    assert detent.uuid() != detent.uuid()
    assert detent.patched("anything")

    async def program() -> None:
        await detent.aio.sleep(0)
        assert await detent.aio.patched("anything")
        assert await detent.aio.random() < 1

    asyncio.run(program())


@pytest.mark.parametrize("transactional", [False, True], ids=["plain", "transactional"])
def test_a_value_that_another_branch_writes_down_is_durable_before_a_step_begins(
    apps: Apps, transactional: bool
) -> None:
    happened: list[str] = []

    def note_use(key: str) -> str:
        happened.append("used")
        return key

    @step(id="use", transactional=True)
    def use_tx(tx: Any, key: str) -> str:
        return note_use(key)

    @step(id="use")
    def use(key: str) -> str:
        return note_use(key)

    @step
    async def other() -> None: ...

    chosen: Any = use_tx if transactional else use

    @workflow
    async def flow() -> str:
        key = str(await detent.aio.uuid())
        # The first branch takes the value along to the database; the second one uses it.
        return (await asyncio.gather(other(), chosen.aio(key)))[1]  # type: ignore[no-any-return]

    app = apps(flow, use_tx if transactional else use, other)
    store, loop = app.engine.store, app.engine.services.loop.get()
    apply = store.apply

    def slow_apply(operations: Any, **options: Any) -> Any:
        if any(entry.kind == "value" for item in operations for entry in getattr(item, "steps", ())):
            for _ in range(50):  # the loop goes on as far as it can
                asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(20)
            eventually(lambda: app.engine.services.threads._idle == app.engine.services.threads._count)
            happened.append("durable")
        return apply(operations, **options)

    store.apply = slow_apply  # type: ignore[method-assign]
    result(app.start(flow))
    assert happened == ["durable", "used"]
