"""Bodies of nodes: fields and heroes, jobs, transactions, queues, and where they run."""

from __future__ import annotations

import asyncio
import threading
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import detent
from detent import Retry, Workflow, step, task, workflow
from detent.errors import PayloadError, UnknownDefinition, UnknownQueue
from detent.testing import TestingApp
from detent.worker import heartbeat
from tests.functions.world import Apps, Gate, crash, eventually, failure, result, state, wait_for
from tests.graphs.world import assert_error, attempts, both_kinds, last, one_node, states

# -- Fields --------------------------------------------------------------------------------------------


@dataclass
class Address:
    street: str
    number: int


class Typed(Workflow):
    order_id: int
    address: Address
    at: datetime
    key: uuid.UUID
    tags: list[str] = []  # noqa: RUF012 - stored with each run, so never shared
    note: str | None = None

    @step
    def first(self) -> None:
        SEEN.append((self.order_id, self.address, self.at, self.key, self.tags, self.note))
        self.tags.append("changed")

    @step
    async def second(self) -> None:
        SEEN.append((self.order_id, self.address, self.at, self.key, self.tags, self.note))


SEEN: list[Any] = []


def test_every_node_reads_the_fields_as_their_types_say(testing: TestingApp) -> None:
    SEEN.clear()
    at, key = datetime(2030, 5, 6, tzinfo=UTC), uuid.uuid4()
    run = testing.start(Typed, order_id=7, address=Address("High St", 3), at=at, key=key)
    testing.speedrun(run)
    assert state(run) == "finished"
    given = (7, Address("High St", 3), at, key)
    assert [(*given, ["changed"], None), (*given, [], None)] == SEEN


def test_fields_may_be_given_in_their_order(testing: TestingApp) -> None:
    SEEN.clear()
    run = testing.start(Typed, 7, Address("A", 1), datetime(2030, 1, 1, tzinfo=UTC), uuid.uuid4(), note="hi")
    testing.speedrun(run)
    assert SEEN[0][0] == 7
    assert SEEN[0][5] == "hi"


class Small(Workflow):
    order_id: int

    @step
    def work(self) -> None: ...


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "needs the field 'order_id'"),
        ((), {"order_id": 1, "x": 2}, "has no field 'x'; its fields are: order_id"),
        ((1, 2), {}, "has 1 fields, 2 values were given"),
        ((1,), {"order_id": 1}, "got a field more than once"),
    ],
)
def test_fields_that_are_missing_unknown_or_twice_start_nothing(
    testing: TestingApp, args: tuple[Any, ...], kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        testing.start(Small, *args, **kwargs)
    assert testing.runs() == []


@pytest.mark.parametrize(
    "value", ["seven", None, [1], threading.Lock()], ids=["text", "nothing", "list", "lock"]
)
def test_a_field_of_another_type_starts_nothing(testing: TestingApp, value: Any) -> None:
    with pytest.raises(PayloadError):
        testing.start(Small, order_id=value)
    assert testing.runs() == []


@both_kinds
def test_a_node_cannot_change_a_field(testing: TestingApp, is_async: bool) -> None:
    def body(self: Any) -> None:
        self.order_id = 8

    flow = one_node(body, is_async)

    class Flow(flow, name="stubborn"):  # type: ignore[misc,call-arg,valid-type]
        order_id: int

    run = testing.start(Flow, order_id=7)
    testing.speedrun(run)
    assert_error(run, AttributeError, "order_id is an input of the run and cannot be changed")


def test_what_a_node_keeps_in_self_is_gone_in_the_next(testing: TestingApp) -> None:
    """Another machine runs that one: what they share is elsewhere."""

    class Flow(Workflow):
        @step
        def first(self) -> None:
            self.cache = 1

        @step
        def second(self) -> bool:
            return hasattr(self, "cache")

    run = testing.start(Flow)
    testing.speedrun(run)
    assert result(run) is False


# -- Heroes --------------------------------------------------------------------------------------------


@dataclass
class User:
    id: int
    vip: bool = False


@both_kinds
def test_the_hero_is_loaded_anew_for_every_node(testing: TestingApp, is_async: bool) -> None:
    loads: list[str] = []

    def load(id: str) -> User:
        loads.append(id)
        return User(int(id), vip=len(loads) > 1)

    seen: list[Any] = []
    flow = one_node(lambda self: seen.append(self.hero), is_async)

    class Flow(flow, name="heroic"):  # type: ignore[misc,call-arg,valid-type]
        @step
        def third(self) -> None:
            seen.append(self.hero)

    testing.include(Flow)
    testing.hero(User, key=lambda user: user.id, load=load)
    run = testing.options(hero=User(5)).start(Flow)
    testing.speedrun(run)
    assert seen == [User(5), User(5, vip=True)]
    assert loads == ["5", "5", "5"]


def test_a_hero_is_loaded_by_an_async_function_too(testing: TestingApp) -> None:
    async def load(id: str) -> User:
        await asyncio.sleep(0)
        return User(int(id))

    seen: list[Any] = []
    flow = one_node(lambda self: seen.append(self.hero))
    testing.include(flow)
    testing.hero(User, key=lambda user: user.id, load=load)
    testing.speedrun(testing.options(hero=User(5)).start(flow))
    assert seen == [User(5)]


def test_a_hero_that_only_has_a_name_is_that_name(testing: TestingApp) -> None:
    seen: list[Any] = []
    flow = one_node(lambda self: seen.append((self.hero.type, self.hero.id)))
    testing.include(flow)
    testing.speedrun(testing.options(hero=("User", 12)).start(flow))
    assert seen == [("User", "12")]


def test_without_a_hero_self_hero_is_none(testing: TestingApp) -> None:
    seen: list[Any] = []
    testing.speedrun(testing.start(one_node(lambda self: seen.append(self.hero))))
    assert seen == [None]


def test_a_hero_that_goes_away_during_the_run_cancels_it(testing: TestingApp) -> None:
    users = {"5": User(5)}

    class Flow(Workflow):
        @step
        def first(self) -> None: ...

        @step(wait=timedelta(days=1))
        def second(self) -> None: ...

    testing.include(Flow)
    testing.hero(User, key=lambda user: user.id, load=users.get)
    run = testing.options(hero=User(5)).start(Flow)
    testing.settle_down()
    users.clear()
    testing.speedrun(run)
    assert (state(run), attempts(run, "second")) == ("canceled", [("canceled", "canceled_by_missing_hero")])


# -- Jobs ----------------------------------------------------------------------------------------------


@step
def charge(ctx: detent.Context, order_id: int, amount: float = 1.5) -> str:
    return f"{order_id} {amount} {ctx.key} {ctx.attempt}"


@step
async def acharge(order_id: int) -> str:
    return f"async {order_id}"


def test_a_job_gets_the_fields_that_it_has_parameters_for(testing: TestingApp) -> None:
    class Flow(Workflow):
        order_id: int
        unrelated: str = ""

        work = step(job=charge)

    run = testing.start(Flow, order_id=7)
    testing.speedrun(run)
    assert result(run) == "7 1.5 work 1"


def test_a_job_may_be_async_and_stand_over_a_method(testing: TestingApp) -> None:
    class Flow(Workflow):
        order_id: int

        @task(job=acharge)
        def work(self) -> None:
            raise AssertionError("its job is called instead")

    run = testing.start(Flow, order_id=7)
    testing.speedrun(run)
    assert result(run) == "async 7"


@pytest.mark.parametrize("how", ["mapping", "callable", "async callable"])
def test_a_job_gets_the_args_it_is_given(testing: TestingApp, how: str) -> None:
    async def later(self: Any) -> dict[str, Any]:
        return {"order_id": self.order_id + 1, "amount": 2.5}

    given: Any = {
        "mapping": {"order_id": 8, "amount": 2.5},
        "callable": lambda self: {"order_id": self.order_id + 1, "amount": 2.5},
        "async callable": later,
    }[how]

    class Flow(Workflow):
        order_id: int

        work = step(job=charge, args=given)

    run = testing.start(Flow, order_id=7)
    testing.speedrun(run)
    assert result(run) == "8 2.5 work 1"


def test_args_that_a_job_does_not_take_are_the_nodes_error(testing: TestingApp) -> None:
    class Flow(Workflow):
        work = step(job=acharge, args={"order": 8})

    run = testing.start(Flow)
    testing.speedrun(run)
    assert (state(run), attempts(run)) == ("paused", [("failed", "paused_by_exception")])
    assert "order" in last(run).error.message


@pytest.mark.parametrize(("own", "expected"), [(None, 3), (Retry(attempts=2), 2)], ids=["job's", "node's"])
def test_a_job_keeps_its_retries_unless_the_node_has_its_own(
    testing: TestingApp, own: Retry | None, expected: int
) -> None:
    @step(retry=Retry(attempts=3))
    def fragile() -> None:
        raise LookupError

    class Flow(Workflow):
        work = step(job=fragile, retry=own)

    run = testing.start(Flow)
    testing.speedrun(run)
    assert len(attempts(run)) == expected


def test_a_job_keeps_its_timeout(apps: Apps) -> None:
    gate = Gate()

    @step(timeout=0.05)
    def slow() -> None:
        gate.pass_through()

    class Flow(Workflow):
        work = step(job=slow, on_exception="skip")

    run = apps(Flow).start(Flow)
    wait_for(run, "finished")
    gate.open()
    assert_error(run, detent.StepTimeout, "'slow' took longer than its timeout of 0.05 s")


def test_the_timeout_of_a_node_holds_for_its_job(apps: Apps) -> None:
    gate = Gate()

    @step(timeout=600)
    def slow() -> None:
        gate.pass_through()

    class Flow(Workflow):
        work = step(job=slow, on_exception="skip", timeout=0.05)

    run = apps(Flow).start(Flow)
    wait_for(run, "finished")
    gate.open()
    assert attempts(run) == [("skipped", "skipped_by_exception")]


def test_a_job_goes_to_its_own_queue_unless_the_node_names_one(apps: Apps) -> None:
    @step(queue="slow", priority=4)
    def heavy() -> None: ...

    class Flow(Workflow):
        its = task(job=heavy)
        own = task(job=heavy, queue="fast", priority=1)

    app = apps(Flow, queues=QUEUES, worker=False)
    assert places(app, app.start(Flow)) == {"its": ("slow", 4), "own": ("fast", 1)}


def test_a_whole_workflow_may_be_a_node(testing: TestingApp) -> None:
    @workflow
    def fulfil(order_id: int) -> str:
        return charge(order_id)

    class Inner(Workflow):
        order_id: int

        @step(wait=timedelta(days=2))
        def only(self) -> int:
            return self.order_id * 2

    class Outer(Workflow):
        order_id: int

        function = task(job=fulfil)
        inner = task(job=Inner)

        @task(depends_on=[function, inner])
        def last(self) -> str:
            return "both"

    run = testing.start(Outer, order_id=7)
    testing.speedrun(run)
    assert result(run) == "both"
    assert (last(run, "function").result, last(run, "inner").result) == ("7 1.5 charge 1", 14)
    assert {other.type: state(other) for other in testing.runs()} == {
        "Outer": "finished",
        "Inner": "finished",
        "fulfil": "finished",
    }


def test_jobs_are_included_with_their_class(apps: Apps) -> None:
    class Flow(Workflow):
        order_id: int

        work = step(job=acharge)

    assert result(apps(Flow).start(Flow, order_id=1)) == "async 1"


def test_a_class_that_is_not_included_is_refused(apps: Apps) -> None:
    app = apps(Small)
    with pytest.raises(UnknownDefinition, match="Typed"):
        app.start(Typed, order_id=1)
    assert app.runs() == []


# -- Transactional nodes -------------------------------------------------------------------------------


@pytest.fixture
def ledger(apps: Apps) -> Any:
    """A table of the user's own, beside Detent's."""
    store = apps(worker=False).engine.store
    with store._writer.transaction() as tx:
        tx.run("DROP TABLE IF EXISTS ledger")
        tx.run("CREATE TABLE ledger (line VARCHAR(50))")

    def lines() -> list[str]:
        with store._reading() as tx:
            return sorted(row[0] for row in tx.query("SELECT line FROM ledger"))

    return lines


def write(tx: Any, line: str) -> None:
    tx.execute(f"INSERT INTO ledger VALUES ('{line}')")


def transactional(body: Any, is_async: bool = False, **options: Any) -> Any:
    maker: Any = step
    flow: Any

    if is_async:

        class AsyncFlow(Workflow, name="books"):
            @maker(transactional=True, **options)  # type: ignore[untyped-decorator]
            async def book(self, tx: detent.AsyncTransaction) -> Any:
                await tx.execute(f"INSERT INTO ledger VALUES ('attempt {self.ctx.attempt}')")
                return body(self)

            @step
            def after(self) -> str:
                return "after"

        flow = AsyncFlow
    else:

        class Flow(Workflow, name="books"):
            @maker(transactional=True, **options)  # type: ignore[untyped-decorator]
            def book(self, tx: detent.Transaction) -> Any:
                write(tx, f"attempt {self.ctx.attempt}")
                return body(self)

            @step
            def after(self) -> str:
                return "after"

        flow = Flow
    return flow


@both_kinds
def test_the_writes_of_a_transactional_node_and_its_record_are_one(
    apps: Apps, ledger: Any, is_async: bool
) -> None:
    flow = transactional(lambda self: 7, is_async)
    run = apps(flow).start(flow)
    assert result(run) == "after"
    assert (ledger(), attempts(run, "book")) == (["attempt 1"], [("completed", "success")])
    assert last(run, "book").result == 7


@both_kinds
def test_what_follows_a_transactional_node_waits_for_no_heartbeat(
    apps: Apps, ledger: Any, is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "BEAT", 3600.0)
    flow = transactional(lambda self: 7, is_async)
    assert result(apps(flow).start(flow)) == "after"


@both_kinds
def test_a_transactional_node_that_raises_writes_nothing(apps: Apps, ledger: Any, is_async: bool) -> None:
    def body(self: Any) -> None:
        if self.ctx.attempt == 1:
            raise LookupError

    flow = transactional(body, is_async, retry=Retry(attempts=2, first=timedelta(0)))
    run = apps(flow).start(flow)
    assert result(run) == "after"
    assert ledger() == ["attempt 2"]


def test_a_transactional_node_whose_worker_dies_in_it_is_done_once(apps: Apps, ledger: Any) -> None:
    gate = Gate()

    def body(self: Any) -> None:
        if self.ctx.attempt == 1:
            gate.pass_through()

    flow = transactional(body)
    first, second = apps(flow), apps(flow)
    run = first.start(flow)
    gate.wait_for_arrival()
    gate.open()  # a worker thought dead comes to its commit
    crash(first, reaped_by=second)
    run = second.run(run.id)
    assert result(run) == "after"
    eventually(lambda: len(ledger()) == 1, "one of them has committed")
    [line] = ledger()
    assert last(run, "book").state == "completed"
    assert line == f"attempt {last(run, 'book').attempt}"


@pytest.mark.parametrize("verb", ["skip", "cancel", "pause", "reattempt"])
@both_kinds
def test_a_signal_that_does_not_complete_a_transactional_node_undoes_its_writes(
    apps: Apps, ledger: Any, is_async: bool, verb: str
) -> None:
    def body(self: Any) -> None:
        if self.ctx.attempt == 1:
            getattr(self, verb)()

    flow = transactional(body, is_async)
    run = apps(flow).start(flow)
    wait_for(run, {"skip": "finished", "cancel": "canceled", "pause": "paused"}.get(verb, "finished"))
    assert ledger() == (["attempt 2"] if verb == "reattempt" else [])


@pytest.mark.parametrize("verb", ["finished", "pause after"])
@both_kinds
def test_a_signal_that_completes_a_transactional_node_commits_its_writes(
    apps: Apps, ledger: Any, is_async: bool, verb: str
) -> None:
    """It is recorded as completed, so what it wrote is there."""

    def body(self: Any) -> None:
        if verb == "finished":
            self.finished("early")
        self.pause(after=True)

    flow = transactional(body, is_async)
    run = apps(flow).start(flow)
    wait_for(run, "finished" if verb == "finished" else "paused")
    assert attempts(run, "book") == [("completed", "success")]
    assert ledger() == ["attempt 1"]
    if verb == "finished":
        assert result(run) == "early"
    else:
        run.resume()
        assert result(run) == "after"
        assert ledger() == ["attempt 1"]


def waiting_at(gate: Gate) -> Any:
    """A condition that keeps a node waiting before its transaction begins: SQLite has one writer."""

    def condition(self: Any) -> bool:
        gate.pass_through()
        return False

    return condition


@both_kinds
def test_a_transactional_node_of_a_canceled_run_writes_nothing(
    apps: Apps, ledger: Any, is_async: bool
) -> None:
    """It is recorded as canceled, so nothing that it wrote is there."""
    gate = Gate()
    flow = transactional(lambda self: None, is_async, skip_if=waiting_at(gate))
    app = apps(flow)
    run = app.start(flow)
    gate.wait_for_arrival()
    apps(flow, worker=False).run(run.id).cancel()
    gate.open()
    eventually(lambda: last(run, "book").state == "canceled", "it has ended")
    assert (attempts(run, "book"), ledger()) == ([("canceled", "canceled_by_operator")], [])
    assert (state(run), attempts(run, "after")) == ("canceled", [])


@both_kinds
def test_a_transactional_node_survives_that_its_run_is_given_a_graph_meanwhile(
    apps: Apps, ledger: Any, is_async: bool
) -> None:
    gate = Gate()
    flow = transactional(lambda self: None, is_async, skip_if=waiting_at(gate))
    run = apps(flow).start(flow)
    gate.wait_for_arrival()
    run.pause()
    run.import_graph(run.export_graph())
    gate.open()
    eventually(lambda: last(run, "book").state == "completed", "it has ended")
    run.resume()
    assert result(run) == "after"
    assert (attempts(run, "book"), ledger()) == ([("completed", "success")], ["attempt 1"])


@pytest.mark.parametrize("how", ["freeze", "import"])
def test_a_node_survives_that_its_run_is_given_a_graph_meanwhile(apps: Apps, how: str) -> None:
    gate = Gate()
    flow = one_node(lambda self: gate.pass_through())
    run = apps(flow).start(flow)
    gate.wait_for_arrival()
    if how == "freeze":
        run.freeze()
    else:
        run.pause()
        run.import_graph(run.export_graph())
    gate.open()
    if how == "import":
        eventually(lambda: last(run).state == "completed", "it has ended")
        run.resume()
    assert result(run) == "after"
    assert attempts(run) == [("completed", "success")]


# -- When and where ------------------------------------------------------------------------------------


def test_a_wait_is_from_ready_to_due(testing: TestingApp) -> None:
    seen: list[timedelta] = []
    began = testing.clock()

    class Flow(Workflow):
        @step(wait=timedelta(hours=1))
        def first(self) -> None:
            seen.append(testing.clock() - began)

        @step(wait=90)
        def second(self) -> None:
            seen.append(testing.clock() - began)

    run = testing.start(Flow)
    testing.settle_down()
    assert last(run, "first").scheduled_for == began + timedelta(hours=1)
    testing.speedrun(run)
    assert seen == [timedelta(hours=1), timedelta(hours=1, seconds=90)]


def test_a_delayed_start_and_a_wait_add_up(testing: TestingApp) -> None:
    flow = one_node(lambda self: None, wait=timedelta(hours=1))
    testing.include(flow)
    run = testing.options(delay=timedelta(hours=2)).start(flow)
    assert last(run).scheduled_for == testing.clock() + timedelta(hours=3)


def test_a_reattempt_does_not_wait_the_nodes_wait_again(testing: TestingApp) -> None:
    def body(self: Any) -> None:
        if self.ctx.attempt == 1:
            self.reattempt()

    began = testing.clock()
    run = testing.start(one_node(body, wait=timedelta(days=1)))
    testing.speedrun(run)
    assert testing.clock() == began + timedelta(days=1)


class Queued(Workflow):
    detent.job_options(queue="slow", priority=3)

    @task
    def usual(self) -> None: ...

    @task(queue="fast", priority=0)
    def urgent(self) -> None: ...


def places(app: detent.App, run: detent.Run[Any]) -> dict[str, tuple[str, int]]:
    with app.engine.store._reading() as tx:
        rows = tx.query(f"SELECT node, queue, precedence FROM detent_executions WHERE run_id = '{run.id}'")
    return {node: (queue, -precedence) for node, queue, precedence in rows}


QUEUES = ["default", "slow", "fast", "night"]


def test_a_node_goes_to_its_own_queue_else_to_that_of_its_class(apps: Apps) -> None:
    app = apps(Queued, queues=QUEUES, worker=False)
    assert places(app, app.start(Queued)) == {"usual": ("slow", 3), "urgent": ("fast", 0)}


def test_the_options_of_a_start_come_before_those_of_the_class(apps: Apps) -> None:
    app = apps(Queued, queues=QUEUES, worker=False)
    run = app.options(queue="night", priority=9).start(Queued)
    assert places(app, run) == {"usual": ("night", 9), "urgent": ("fast", 0)}


def test_a_child_goes_to_the_queue_of_its_class(apps: Apps) -> None:
    class Parent(Workflow):
        inner = step(job=Queued)

    app = apps(Parent, queues=QUEUES)
    run = app.start(Parent)
    assert result(run) is None
    [child] = app.runs(type="Queued")
    assert places(app, child) == {"usual": ("slow", 3), "urgent": ("fast", 0)}


def test_a_queue_that_the_app_does_not_declare_is_refused(apps: Apps) -> None:
    class Second(Workflow):
        @step
        def first(self) -> None: ...

        @step(queue="nowhere")
        def second(self) -> None: ...

    with pytest.raises(UnknownQueue, match="nowhere"):
        app = apps(Second)
        app.start(Second)
    with pytest.raises(UnknownQueue, match="slow"):
        app = apps(Queued)
        app.start(Queued)


def test_the_higher_priority_runs_first(apps: Apps) -> None:
    order: list[str] = []

    class Flow(Workflow):
        @task(priority=1)
        def low(self) -> None:
            order.append("low")

        @task(priority=5)
        def high(self) -> None:
            order.append("high")

        @task
        def none(self) -> None:
            order.append("none")

    run = apps(Flow, worker=False).start(Flow)
    worker = apps(Flow, concurrency=1)
    result(worker.run(run.id))
    assert order == ["high", "low", "none"]


def test_independent_nodes_run_at_the_same_time_on_two_workers(apps: Apps) -> None:
    both = threading.Barrier(2, timeout=20)

    class Flow(Workflow):
        @task
        def left(self) -> None:
            both.wait()  # only two workers with one slot each can be here at the same time

        @task
        def right(self) -> None:
            both.wait()

        @task(depends_on=[left, right])
        def join(self) -> str:
            return "joined"

    first = apps(Flow, concurrency=1)
    apps(Flow, concurrency=1)
    run = first.start(Flow)
    assert result(run) == "joined"
    assert last(run, "left").worker != last(run, "right").worker
    assert attempts(run, "join") == [("completed", "success")]


def test_independent_async_nodes_run_at_the_same_time_on_one_loop(apps: Apps) -> None:
    events: dict[str, asyncio.Event] = {}

    async def meet(mine: str, other: str) -> None:
        for name in (mine, other):
            events.setdefault(name, asyncio.Event())
        events[mine].set()
        await asyncio.wait_for(events[other].wait(), 20)

    class Flow(Workflow):
        @task
        async def left(self) -> None:
            await meet("left", "right")

        @task
        async def right(self) -> None:
            await meet("right", "left")

    run = apps(Flow).start(Flow)
    result(run)
    assert states(run) == {"left": "completed", "right": "completed"}


def test_on_an_async_app_async_nodes_run_on_its_loop_and_others_in_threads(url: str) -> None:
    seen: dict[str, Any] = {}

    class Flow(Workflow):
        @step
        async def on_loop(self) -> None:
            seen["on_loop"] = (asyncio.get_running_loop(), threading.get_ident())

        @step
        def in_thread(self) -> str:
            seen["in_thread"] = threading.get_ident()
            return "done"

    async def program() -> Any:
        async with detent.AsyncApp(url, include=[Flow]) as app:
            run = await app.start(Flow)
            value = await run.result(timeout=20)
        return value, asyncio.get_running_loop(), threading.get_ident()

    value, loop, thread = asyncio.run(program())
    assert value == "done"
    assert seen["on_loop"] == (loop, thread)
    assert seen["in_thread"] != thread


def test_on_an_async_app_conditions_and_hooks_may_await(url: str) -> None:
    seen: list[str] = []

    class Flow(Workflow):
        @detent.cancel_if
        async def closed(self) -> bool:
            await asyncio.sleep(0)
            seen.append("asked")
            return False

        async def before_step(self, name: str) -> None:
            await asyncio.sleep(0)
            seen.append(f"before {name}")

        @step
        async def first(self) -> None: ...

        @step
        def second(self) -> str:
            return "done"

    async def program() -> Any:
        async with detent.AsyncApp(url, include=[Flow]) as app:
            return await (await app.start(Flow)).result(timeout=20)

    assert asyncio.run(program()) == "done"
    assert seen == ["asked", "before first", "asked", "before second"]


def test_a_step_called_in_a_node_is_just_a_function(testing: TestingApp) -> None:
    class Flow(Workflow):
        @step
        async def work(self) -> str:
            return await acharge(5)

    run = testing.start(Flow)
    testing.speedrun(run)
    assert result(run) == "async 5"
    assert states(run) == {"work": "completed"}


def test_a_run_that_a_node_starts_is_started_once_over_its_attempts(testing: TestingApp) -> None:
    def body(self: Any) -> None:
        testing.options().start(Small, order_id=1)
        if self.ctx.attempt == 1:
            raise LookupError

    testing.include(Small)
    run = testing.start(one_node(body, retry=Retry(attempts=2)))
    testing.speedrun(run)
    assert (state(run), len(testing.runs(type="Small"))) == ("finished", 1)


def test_the_idempotency_key_of_a_node_is_the_same_for_every_attempt(testing: TestingApp) -> None:
    keys: list[str] = []

    def body(self: Any) -> None:
        keys.append(self.ctx.idempotency_key)
        if self.ctx.attempt == 1:
            self.reattempt()

    run = testing.start(one_node(body))
    testing.speedrun(run)
    assert keys == [f"{run.id}:work"] * 2


def test_a_run_that_no_node_can_fail_has_the_value_of_its_only_end(testing: TestingApp) -> None:
    class Two(Workflow):
        @task
        def left(self) -> int:
            return 1

        @task
        def right(self) -> int:
            return 2

    run = testing.start(Two)
    testing.speedrun(run)
    assert result(run) is None  # two ends: which would it be
    run = testing.start(one_node(lambda self: None))
    testing.speedrun(run)
    assert result(run) == "after"


def test_waiting_for_a_run_that_cancels_itself_ends_the_wait(apps: Apps) -> None:
    flow = one_node(lambda self: self.cancel())
    assert isinstance(failure(apps(flow).start(flow)), detent.RunCanceled)
