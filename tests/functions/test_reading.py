"""What people read from runs and contexts: facts, decoded values, errors."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import detent
from detent import Workflow, step, workflow
from detent.errors import CannotDecode, ConfigurationError
from tests.functions.world import Apps, failure, result, wait_for


@dataclass
class Item:
    name: str
    count: int


@step
def pack(item: Item, *, gift: bool = False) -> Item:
    return Item(item.name.upper(), item.count + 1)


@workflow
def order(item: Item, note: str = "") -> Item:
    return pack(item, gift=True)


@workflow
def parent() -> str:
    order(Item("x", 1))
    return "done"


def test_a_run_tells_what_it_was_started_with(apps: Apps) -> None:
    app = apps(order, parent, queues=["default", "slow"])
    until = datetime(2100, 1, 1, tzinfo=UTC)
    options = app.options(hero=("customer", 7), queue="slow", priority=3, deadline=until, allow_multiple=True)
    run = options.start(order, Item("pen", 1), note="soon")
    result(run)
    for seen in (run, app.run(run.id)):
        assert (seen.queue, seen.priority, seen.hero, seen.deadline) == ("slow", 3, ("customer", "7"), until)
        assert (seen.parent, seen.forked_from, seen.error) == (None, None, None)
        assert seen.input.args == (Item("pen", 1),)
        assert seen.input.kwargs == {"note": "soon"}
    assert app.fork(run).forked_from == run.id
    outer = app.start(parent)
    result(outer)
    [child] = app.runs(parent=outer)
    assert child.parent == outer.id


def test_executions_have_decoded_values(apps: Apps) -> None:
    run = apps(order).start(order, Item("pen", 1))
    result(run)
    [main, packed] = run.executions()
    assert main.result == packed.result == Item("PEN", 2)
    assert packed.input == ((Item("pen", 1),), {"gift": True})
    assert (packed.run_id, packed.job, packed.stored_result) == (run.id, "pack", '{"name":"PEN","count":2}')


def test_values_of_code_that_is_not_here_are_plain(apps: Apps) -> None:
    run = apps(order).start(order, Item("pen", 1))
    result(run)
    elsewhere = apps(worker=False).run(run.id)
    assert elsewhere.input.args == ({"name": "pen", "count": 1},)
    assert elsewhere.executions()[-1].result == {"name": "PEN", "count": 2}


def test_a_value_that_cannot_be_read_is_an_error_only_when_it_is_read(apps: Apps) -> None:
    class Reversed:
        def encode(self, text: str) -> str:
            return text[::-1]

        def decode(self, text: str) -> str:
            return text[::-1]

    run = apps(order, transform=Reversed()).start(order, Item("pen", 1))
    result(run)
    item = apps(order, worker=False).run(run.id).executions()[-1]
    assert item.stored_result == '{"name":"PEN","count":2}'[::-1]
    with pytest.raises(CannotDecode):
        _ = item.result


def test_a_failed_run_tells_its_error(apps: Apps) -> None:
    @step
    def fail() -> None:
        raise LookupError("no such item")

    @workflow
    def flow() -> None:
        fail()

    run = apps(flow).start(flow)
    failure(run)
    error = run.refresh().error
    assert error is not None
    assert (error.type, error.message) == ("builtins.LookupError", "no such item")
    assert "no such item" in error.traceback
    last = run.executions()[-1].error
    assert last is not None
    assert last.message == "no such item"


class Parcel(Workflow):
    number: int

    @step
    def send(self) -> dict[str, Any]:
        ctx = self.ctx
        return {"node": ctx.node, "hero": ctx.hero.id, "attributes": ctx.attributes}


def test_a_class_tells_its_fields_and_its_nodes_their_context(apps: Apps) -> None:
    app = apps(Parcel)
    run = app.options(hero=("user", 9), attributes={"city": "Bern"}).start(Parcel, number=4)
    assert result(run) == {"node": "send", "hero": "9", "attributes": {"city": "Bern"}}
    assert run.input.kwargs == {"number": 4}
    assert run.nodes()[0].result == run.executions()[0].result == result(run)


@step
def where(ctx: detent.Context) -> list[Any]:
    hero = None if ctx.hero is None else ctx.hero.id
    return [ctx.node, hero, ctx.attributes]


def test_contexts_tell_node_hero_and_attributes(apps: Apps) -> None:
    asked: Any = where

    @workflow
    def flow(ctx: detent.Context) -> list[Any]:
        here = [ctx.node, ctx.hero.id, ctx.attributes]
        return [here, asked(), asked(), asked.spawn().result()]

    app = apps(flow, where)
    run = app.options(hero=("user", 9), attributes={"vip": True}).start(flow)
    facts = ["9", {"vip": True}]
    assert result(run) == [["main", *facts], ["where", *facts], ["where#2", *facts], ["where#3", *facts]]


def test_the_node_of_a_graph_has_the_name_that_people_gave_it(apps: Apps) -> None:
    g = detent.Graph("named")
    g.node("find out", job=where)
    app = apps(where)
    run = app.start(g)
    assert result(run) == ["find out", None, {}]
    wait_for(run, "finished")
    assert [item.node for item in run.executions()] == ["find out"]


def test_async_runs_tell_the_same(url: str) -> None:
    async def program() -> None:
        async with detent.AsyncApp(url, include=[order]) as app:
            run = await app.options(deadline=timedelta(hours=1)).start(order, Item("pen", 1))
            await run.result(timeout=20)
            assert run.input.args == (Item("pen", 1),)
            assert run.deadline is not None
            assert run.error is None
            assert (await run.executions())[-1].result == Item("PEN", 2)

    asyncio.run(program())


@step
def odd(number: int) -> int:
    if number % 2:
        raise ValueError(number)
    return number


@workflow
def counts(number: int) -> int:
    return odd.spawn(number).result()


def test_executions_are_found_over_all_runs(apps: Apps) -> None:
    app = apps(counts, odd, order)
    runs = [app.start(counts, number) for number in range(4)]
    for run in runs:
        wait_for(run, "finished", "failed")
    failed = app.executions(state="failed", type=counts)
    assert [(item.run_id, item.node) for item in failed] == [
        (runs[number].id, node) for number in (3, 1) for node in ("main", "odd")
    ]
    assert failed[1].input == ((3,), {})
    assert failed[1].error is not None
    assert len(app.executions()) == 8
    assert app.executions(state="scheduled") == app.executions(queue="mail") == []
    assert app.executions(type=order) == app.executions(after=datetime(2100, 1, 1, tzinfo=UTC)) == []
    # Page by page, also in the middle of a run.
    seen, page = [], app.executions(limit=3)
    while page:
        seen += page
        page = app.executions(limit=3, cursor=page[-1])
    assert seen == app.executions()
    wrong: list[dict[str, Any]] = [{"state": "ready"}, {"limit": 0}, {"cursor": "x"}]
    for filters in wrong:
        with pytest.raises(ConfigurationError):
            app.executions(**filters)
