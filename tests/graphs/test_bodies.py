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
from detent.errors import PayloadError, UnknownDefinition
from detent.testing import TestingApp
from tests.functions.world import Apps, Gate, result, state, wait_for
from tests.graphs.bodies import QUEUES, Small, acharge, places
from tests.graphs.world import assert_error, attempts, both_kinds, last, one_node

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
