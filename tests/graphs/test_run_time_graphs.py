"""Graphs built at run time: data that flows, branches, spreads, templates, other runs."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

import detent
from detent import DefinitionError, RunPaused, step, workflow
from detent.errors import DeadEnd, ExpressionError, UnknownDefinition
from detent.testing import TestingApp
from tests.functions.world import Apps, eventually, result, wait_for

ran: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


@step
def give(value: Any) -> Any:
    ran.append(value)
    return value


@step
async def agive(value: Any) -> Any:
    ran.append(value)
    return value


@step
def summed(numbers: list[int]) -> int:
    return sum(numbers)


@step
def doubled(number: int) -> int:
    ran.append(number)
    return 2 * number


@workflow
def fulfil(number: int) -> int:
    return doubled(number) + 1


class Order(detent.Workflow):
    number: int

    @step
    def take(self) -> int:
        ran.append(f"order {self.number}")
        return self.number


@step
def failing(number: int) -> int:
    raise ValueError(f"number {number}")


ALL = (give, agive, summed, doubled, fulfil, Order, failing)


def states(run: detent.Run[Any]) -> dict[str, str]:
    return {node.name: node.outcome or node.state for node in run.nodes()}


# Order and structure


def test_a_node_without_depends_on_follows_the_one_before_it(apps: Apps) -> None:
    g = detent.Graph("chain")
    for number in range(5):
        g.node(f"n{number}", job=give, args={"value": number})
    assert result(apps(*ALL).start(g)) == 4
    assert ran == [0, 1, 2, 3, 4]


def test_what_depends_on_nothing_begins_at_once_and_a_join_waits_for_all(apps: Apps) -> None:
    g = detent.Graph("join")
    parts = g.fan_out(
        range(20), name=lambda i: f"p{i}", job=agive, args=lambda i: {"value": i}, depends_on=None
    )
    g.node("sum", job=summed, args={"numbers": parts.outputs})
    g.node("after", job=give, args={"value": "after"})
    run = apps(*ALL).start(g)
    assert result(run) == "after"
    assert sorted(ran[:-1]) == list(range(20))
    assert ran[-1] == "after"
    assert run.nodes()[20].result == 190


def test_airflow_users_may_write_arrows(apps: Apps) -> None:
    g = detent.Graph("arrows")
    a, b, c, d = (g.node(name, job=give, args={"value": name}) for name in "abcd")
    a >> [b, c] >> d
    run = apps(*ALL).start(g)
    assert result(run) == "d"
    needs = {node.name: set(node.depends_on) for node in run.nodes()}
    assert needs == {"a": set(), "b": {"a"}, "c": {"a"}, "d": {"b", "c"}}


def test_the_json_is_the_one_of_the_design(apps: Apps) -> None:
    g = detent.Graph("design")
    g.node("validate", job=give, args={"value": 123})
    g.node("ship", job=give, args={"value": 1})
    document = json.loads(apps(*ALL, worker=False).start(g).export_graph())
    assert document["version"] == 1
    assert len(document["signature"]) == 64
    assert document["frozen_at"].endswith("Z")
    first, second = document["nodes"].items()
    assert first[0].startswith("n_")
    assert first[1] == {"name": "validate", "job": "give", "args": {"value": 123}}
    assert second[1]["depends_on"] == [first[0]]


def test_the_same_start_twice_is_one_run_and_another_graph_under_its_id_is_refused(apps: Apps) -> None:
    app = apps(*ALL, worker=False)

    def graph(value: int) -> detent.Graph:
        g = detent.Graph("same")
        g.node("only", job=give, args={"value": value})
        return g

    first = app.options(id="books").start(graph(1))
    assert app.options(id="books").start(graph(1)).id == first.id
    with pytest.raises(detent.RunConflict):
        app.options(id="books").start(graph(2))


def test_what_is_not_included_cannot_be_a_job(apps: Apps) -> None:
    g = detent.Graph("stranger")
    g.node("only", job=give, args={"value": 1})
    with pytest.raises(UnknownDefinition, match="give"):
        apps(doubled, worker=False).start(g)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda g: g.node("a", job=print), "job=<built-in function print>"),
        (lambda g: g.node("a", job=give), "missing a required argument: 'value'"),
        (lambda g: [g.node("a", job=give, args={"value": 1}) for _ in "12"], "two nodes called 'a'"),
        (lambda g: g.node("a", job=give, args={"value": 1}, depends_on="b"), "has no such node yet"),
        (lambda g: g.node("a/b", job=give, args={"value": 1}), "its name"),
        (lambda g: g.node("a", job=give, args={"value": 1}, on_exception="ignore"), "on_exception='ignore'"),
        (lambda g: g.otherwise().__enter__(), "follows"),
    ],
)
def test_what_is_wrong_with_a_graph_is_said_when_it_is_written(build: Any, message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        build(detent.Graph("wrong"))


def test_a_cycle_is_refused_before_anything_is_stored(apps: Apps) -> None:
    app = apps(*ALL, worker=False)
    g = detent.Graph("circle")
    a = g.node("a", job=give, args={"value": 1})
    b = g.node("b", job=give, args={"value": 1})
    a >> b >> a
    with pytest.raises(DefinitionError, match="depend on each other"):
        app.start(g)
    assert app.runs() == []


# Data


def test_outputs_travel_and_expressions_are_computed_without_a_worker(apps: Apps) -> None:
    g = detent.Graph("data")
    first = g.node("first", job=give, args={"value": {"sum": 20, "items": [1, 2]}})
    total = g.value("total", first.output["sum"] + 1)
    g.node("last", job=give, args={"value": [total.output, first.output["items"][1], {"all": first.output}]})
    run = apps(*ALL).start(g)
    assert result(run) == [21, 2, {"all": {"sum": 20, "items": [1, 2]}}]
    assert [one.kind for one in run.executions()] == ["node", "inline", "node"]


def test_a_dict_that_looks_like_an_expression_stays_one(apps: Apps) -> None:
    g = detent.Graph("literal")
    g.node("only", job=give, args={"value": {"$expr": ["output", "x"], "$literal": 1}})
    assert result(apps(*ALL).start(g)) == {"$expr": ["output", "x"], "$literal": 1}


def test_3_9_an_expression_without_a_value_fails_its_node_and_a_repaired_run_goes_on(apps: Apps) -> None:
    g = detent.Graph("broken")
    first = g.node("first", job=give, args={"value": {"a": 1}})
    g.value("second", first.output["b"])
    run = apps(*ALL).start(g)
    wait_for(run, "paused")
    with pytest.raises(RunPaused) as caught:
        run.result()
    assert isinstance(caught.value.__cause__, ExpressionError)
    run.skip("second")
    assert result(run) is None


@pytest.mark.parametrize("items", [[], [3], [3, 1, 2], list(range(50))])
def test_3_6_a_spread_gives_its_results_in_the_order_of_the_items(apps: Apps, items: list[int]) -> None:
    g = detent.Graph("spread")
    listing = g.node("list", job=give, args={"value": items})
    parts = g.spread("double", over=listing.output, job=doubled, arg="number")
    g.node("sum", job=summed, args={"numbers": parts.output})
    g.result(parts.output)
    run = apps(*ALL).start(g)
    assert result(run) == [2 * item for item in items]
    assert [node.name for node in run.nodes()][2 : 2 + len(items)] == [
        f"double[{n}]" for n in range(len(items))
    ]


def test_an_item_that_failed_can_be_skipped_or_tried_again_alone(apps: Apps) -> None:
    g = detent.Graph("items")
    parts = g.spread("part", over=[1, 2], job=failing, arg="number")
    g.result(parts.output)
    run = apps(*ALL).start(g)
    eventually(lambda: states(run).get("part[1]") == "paused_by_exception", "both have failed")
    eventually(lambda: states(run).get("part[0]") == "paused_by_exception", "both have failed")
    run.skip("part[0]")
    assert run.refresh().state == "paused", "the other one still holds it up"
    run.skip("part[1]")
    assert result(run) == [None, None]


def test_a_spread_over_something_else_than_a_list_fails(apps: Apps) -> None:
    g = detent.Graph("no list")
    listing = g.node("list", job=give, args={"value": 7})
    g.spread("part", over=listing.output, job=doubled, arg="number")
    run = apps(*ALL).start(g)
    wait_for(run, "paused")
    with pytest.raises(RunPaused, match="a spread needs a list, not a value of type int"):
        run.result()


# Branches


def branched(amount: int, *, otherwise: bool = True) -> detent.Graph:
    g = detent.Graph("branches")
    total = g.node("total", job=give, args={"value": amount})
    with g.when(total.output > 100):
        g.node("ask", job=give, args={"value": "asked"})
        large = g.node("large", job=give, args={"value": "large"})
    if otherwise:
        with g.otherwise():
            g.node("small", job=give, args={"value": "small"})
    g.node("join", job=give, args={"value": [large.output]})
    return g


def test_3_5_a_branch_not_taken_is_skipped_and_the_join_runs(apps: Apps) -> None:
    app = apps(*ALL)
    assert result(app.start(branched(500))) == ["large"]
    assert ran == [500, "asked", "large", ["large"]]
    ran.clear()
    run = app.start(branched(5))
    assert result(run) == [None]
    assert ran == [5, "small", [None]]
    assert states(run)["large"] == states(run)["ask"] == "skipped_by_condition"


def test_3_9_no_branch_and_no_otherwise_is_a_dead_end_that_says_so(apps: Apps) -> None:
    run = apps(*ALL).start(branched(5, otherwise=False))
    wait_for(run, "paused")
    with pytest.raises(RunPaused) as caught:
        run.result()
    assert isinstance(caught.value.__cause__, DeadEnd)
    assert ran == [5]


def test_branches_may_be_nested(apps: Apps) -> None:
    g = detent.Graph("nested")
    number = g.node("number", job=give, args={"value": 7})
    with g.when(number.output > 5):
        with g.when(number.output > 10):
            g.result("more than ten")
        with g.otherwise():
            g.result("six to ten")
    with g.otherwise():
        g.result("five or less")
    assert result(apps(*ALL).start(g)) == "six to ten"


def test_a_result_ends_the_run_and_cancels_what_is_scheduled(apps: Apps) -> None:
    g = detent.Graph("early")
    g.node("slow", job=give, args={"value": "slow"}, wait=timedelta(days=1), depends_on=None)
    fast = g.node("fast", job=give, args={"value": "fast"}, depends_on=None)
    g.result(fast.output, depends_on=fast)
    run = apps(*ALL).start(g)
    assert result(run) == "fast"
    assert states(run)["slow"] == "canceled_by_finish"


def test_a_graph_that_nobody_has_to_execute_is_finished_when_it_is_started(apps: Apps) -> None:
    g = detent.Graph("nothing to do")
    g.value("one", [1, 2])
    g.result({"answer": 42})
    run = apps(*ALL).start(g)
    assert run.state == "finished"
    assert result(run) == {"answer": 42}


# Templates, workflows as nodes, other runs


@detent.template
def month_end(g: detent.Graph, users: list[int], bonus: int = 0) -> None:
    parts = g.fan_out(
        users, name=lambda i: f"user_{i}", job=doubled, args=lambda i: {"number": i}, depends_on=None
    )
    total = g.node("total", job=summed, args={"numbers": parts.outputs})
    g.result(total.output + bonus)


def test_a_template_is_expanded_and_frozen_when_it_is_started(apps: Apps) -> None:
    app = apps(month_end)
    run = app.start(month_end, users=[1, 2, 3], bonus=5)
    assert (result(run), run.type) == (17, "month_end")
    assert [r.result(timeout=20) for r in app.start_many(month_end, [([1],), ([2], 1)])] == [2, 5]
    with pytest.raises(TypeError, match="month_end"):
        app.start(month_end)  # type: ignore[call-overload]


def test_a_node_may_be_a_whole_workflow_of_any_kind(apps: Apps) -> None:
    g = detent.Graph("parents")
    function = g.node("function", job=fulfil, args={"number": 4}, depends_on=None)
    order = g.node("class", job=Order, args={"number": 9}, depends_on=None)
    books = g.node("template", job=month_end, args={"users": [5]}, depends_on=None)
    g.result([function.output, order.output, books.output])
    app = apps(*ALL, month_end)
    run = app.start(g)
    assert result(run) == [9, 9, 10]
    assert {child.type for child in app.runs(parent=run.id)} == {"fulfil", "Order", "month_end"}


def test_a_child_that_fails_pauses_its_parent_and_another_attempt_begins_another_child(apps: Apps) -> None:
    broken = [True]

    @workflow(id="fragile")
    def fragile() -> str:
        if broken[0]:
            raise ValueError("broken")
        return "whole"

    g = detent.Graph("parent")
    g.node("child", job=fragile)
    app = apps(fragile)
    run = app.start(g)
    wait_for(run, "paused")
    with pytest.raises(RunPaused, match="broken"):
        run.result()
    broken[0] = False
    run.reattempt("child")
    assert result(run) == "whole"
    assert sorted(child.state for child in app.runs(parent=run.id)) == ["failed", "finished"]


def test_canceling_a_graph_cancels_its_children(apps: Apps) -> None:
    @workflow(id="patient")
    def patient() -> None:
        detent.receive("never")

    g = detent.Graph("parent")
    g.node("child", job=patient)
    app = apps(patient)
    run = app.start(g)
    [child] = eventually_some(lambda: app.runs(parent=run.id))
    run.cancel()
    wait_for(child, "canceled")


def eventually_some(look: Any) -> Any:
    eventually(look, "there is something")
    return look()


def test_a_run_may_wait_for_other_runs(apps: Apps) -> None:
    @workflow(id="asked")
    def asked() -> str:
        answer: str = detent.receive("answer")
        return answer

    app = apps(asked, give)
    other = app.start(asked)
    over = app.start(asked)
    over.send("answer", "early")
    assert result(over) == "early"
    g = detent.Graph("waits")
    g.node("after", job=give, args={"value": "after"}, depends_on=[other, over])
    run = app.start(g)
    eventually(
        lambda: sorted(states(run).values()) == ["pending", "scheduled", "success"], "it waits for one"
    )
    other.send("answer", "late")
    assert result(run) == "after"


def test_waiting_for_a_run_that_was_canceled_pauses(apps: Apps) -> None:
    @workflow(id="asked")
    def asked() -> str:
        answer: str = detent.receive("answer")
        return answer

    app = apps(asked, give)
    other = app.start(asked)
    g = detent.Graph("waits")
    g.node("after", job=give, args={"value": 1}, depends_on=[other])
    run = app.start(g)
    eventually(lambda: "scheduled" in states(run).values(), "it waits")
    other.cancel()
    wait_for(run, "paused")
    assert ran == []


# Elsewhere


def test_policies_of_a_node_and_of_its_job(apps: Apps) -> None:
    g = detent.Graph("policies")
    g.node("skipped", job=failing, args={"number": 1}, on_exception="skip")
    g.node("after", job=give, args={"value": "after"})
    run = apps(*ALL).start(g)
    assert result(run) == "after"
    assert states(run)["skipped"] == "skipped_by_exception"


def test_a_graph_runs_on_an_async_app(url: str) -> None:
    async def main() -> Any:
        async with detent.AsyncApp(url, include=ALL) as app:
            g = detent.Graph("async")
            first = g.node("first", job=agive, args={"value": 20})
            g.node("second", job=doubled, args={"number": first.output + 1})
            run = await app.start(g)
            assert await run.result(timeout=20) == 42
            assert [node.state for node in await run.nodes()] == ["completed", "completed"]
            assert "graph TD" in await run.to_mermaid()
            assert await run.verify() == []
            return json.loads(await run.export_graph())["name"]

    assert asyncio.run(main()) == "async"


def test_a_graph_starts_with_the_users_transaction(apps: Apps) -> None:
    app = apps(*ALL)
    g = detent.Graph("within")
    g.node("only", job=give, args={"value": 1})
    with apps(
        *ALL, worker=False
    ).engine.store.transaction() as tx:  # no session that our worker is stopped to
        run = app.within(tx.connection).start(g)
    assert result(run) == 1


def test_waits_pass_in_virtual_time() -> None:
    g = detent.Graph("waits")
    g.node("one", job=give, args={"value": 1}, wait=timedelta(days=2))
    g.node("two", job=give, args={"value": 2}, wait=timedelta(days=5))
    with TestingApp(include=[give]) as app:
        begun = app.clock.now()
        run = app.speedrun(app.start(g))
        assert run.result() == 2
        assert app.clock.now() - begun == timedelta(days=7) // timedelta(microseconds=1)


def test_payloads_of_a_graph_are_encrypted_like_all_others(apps: Apps) -> None:
    class Reversed:
        def encode(self, text: str) -> str:
            return text[::-1]

        def decode(self, text: str) -> str:
            return text[::-1]

    g = detent.Graph("secret")
    first = g.node("first", job=give, args={"value": "the password"})
    with g.when(first.output == "the password"):
        g.node("second", job=give, args={"value": [first.output, "another"]})
    with g.otherwise():
        pass
    app = apps(*ALL, transform=Reversed())
    run = app.start(g)
    wait_for(run, "finished")
    assert ran == ["the password", ["the password", "another"]]
    stored = app.engine.store.graph(run.id) or ""
    assert '"value":"the password"' not in stored
    assert "drowssap eht" in stored
