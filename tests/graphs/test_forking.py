"""To run a subtree again: fork.  Rule 4 of semantics 5."""

from typing import Any, ClassVar

import pytest

import detent
from detent import Workflow, step, task
from detent.errors import NodeNotFound
from tests.functions.world import Apps, eventually, result, wait_for

ran: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


class Parcel(Workflow):
    number: int

    @step
    def pick(self) -> None:
        ran.append("pick")

    @task(depends_on=pick)
    def weigh(self) -> None:
        ran.append("weigh")

    @task(depends_on=pick)
    def label(self) -> None:
        ran.append("label")

    @step(depends_on=[weigh, label])
    def send(self) -> str:
        ran.append("send")
        return f"sent {self.number} to {self.hero.id if self.hero else 'nobody'}"


def test_5_4_a_fork_keeps_what_came_before_and_runs_the_rest_again(apps: Apps) -> None:
    app = apps(Parcel)
    run = app.options(hero=("user", "7")).start(Parcel, number=3)
    assert result(run) == "sent 3 to 7"
    ran.clear()
    again = app.fork(run, from_step="weigh")
    assert result(again) == "sent 3 to 7"
    assert ran == ["weigh", "send"]
    assert again.row.forked_from == run.id
    assert {node.name: node.outcome for node in again.nodes()} == dict.fromkeys(
        ["pick", "weigh", "label", "send"], "success"
    )
    assert again.verify() == run.verify() == []


@step
def listing() -> list[int]:
    ran.append("listing")
    return [1, 2, 3]


@step
def doubled(number: int) -> int:
    ran.append(f"doubled {number}")
    return 2 * number


@step
def summed(numbers: list[int]) -> int:
    ran.append("summed")
    return sum(numbers)


def books() -> detent.Graph:
    g = detent.Graph("books")
    numbers = g.node("listing", job=listing)
    parts = g.spread("doubled", over=numbers.output, job=doubled, arg="number")
    total = g.value("more", parts.output[0] + 10)
    with g.when(total.output > 5):
        g.node("sum", job=summed, args={"numbers": parts.output})
    with g.otherwise():
        pass
    return g


def test_5_4_a_fork_of_a_frozen_graph_keeps_values_and_items(apps: Apps) -> None:
    app = apps(listing, doubled, summed)
    run = app.start(books())
    wait_for(run, "finished")
    ran.clear()
    again = app.fork(run, from_step="sum", id="again")
    wait_for(again, "finished")
    assert ran == ["summed"]
    assert {node.name: node.result for node in again.nodes()}["sum"] == 12
    assert again.verify() == []
    assert again.export_graph() == run.export_graph()


def test_5_4_a_fork_from_a_spread_runs_its_items_again(apps: Apps) -> None:
    app = apps(listing, doubled, summed)
    run = app.start(books())
    wait_for(run, "finished")
    ran.clear()
    again = app.fork(run, from_step="doubled")
    wait_for(again, "finished")
    assert sorted(ran) == ["doubled 1", "doubled 2", "doubled 3", "summed"]
    assert again.verify() == []


def test_a_fork_of_a_run_that_stopped_begins_where_it_did_not_come_to(apps: Apps) -> None:
    broken = [True]

    class Fragile(Workflow):
        @step
        def first(self) -> None:
            ran.append("first")

        @step
        def second(self) -> None:
            ran.append("second")
            if broken[0]:
                raise ValueError

    app = apps(Fragile)
    run = app.start(Fragile)
    wait_for(run, "paused")
    broken[0] = False
    assert result(app.fork(run, from_step="second")) is None
    assert ran == ["first", "second", "second"]


def test_a_fork_from_nowhere_is_refused(apps: Apps) -> None:
    app: Any = apps(Parcel)
    run = app.start(Parcel, number=1)
    wait_for(run, "finished")
    with pytest.raises(NodeNotFound, match="nowhere"):
        app.fork(run, from_step="nowhere")


def test_a_fork_without_a_node_continues_a_canceled_run(apps: Apps) -> None:
    Waits.broken[0] = True
    app = apps(Waits)
    run = app.start(Waits)
    wait_for(run, "paused")
    run.cancel()
    wait_for(run, "canceled")
    Waits.broken[0] = False
    again = app.fork(run)
    assert result(again) == "done"
    assert ran == ["first", "second", "second", "third"]
    assert again.verify() == []


class Waits(Workflow):
    broken: ClassVar[list[bool]] = [True]

    @step
    def first(self) -> None:
        ran.append("first")

    @step
    def second(self) -> None:
        ran.append("second")
        if self.broken[0]:
            raise ValueError

    @step
    def third(self) -> str:
        ran.append("third")
        return "done"


def test_a_fork_without_a_node_of_a_finished_run_is_finished(apps: Apps) -> None:
    app = apps(Parcel, listing, doubled, summed)
    for definition, fields in ((Parcel, {"number": 3}), (books(), {})):
        run = app.start(definition, **fields)
        original = result(run)
        ran.clear()
        again = app.fork(run)
        assert result(again) == original
        assert ran == []
        assert again.verify() == []


def test_a_fork_keeps_the_items_of_a_spread_that_has_not_ended(apps: Apps) -> None:
    broken = [True]

    @step
    def fragile(number: int) -> int:
        ran.append(f"item {number}")
        if number == 2 and broken[0]:
            raise ValueError(number)
        return 10 * number

    g = detent.Graph("fragile-items")
    numbers = g.node("listing", job=listing)
    parts = g.spread("items", over=numbers.output, job=fragile, arg="number")
    g.node("sum", job=summed, args={"numbers": parts.output})
    app = apps(listing, fragile, summed)
    run = app.start(g)
    wait_for(run, "paused")
    eventually(lambda: len(ran) == 4, "all items have run")
    eventually(lambda: [n.state for n in run.nodes()].count("executing") == 0, "all items have ended")
    broken[0] = False
    ran.clear()
    again = app.fork(run)
    assert result(again) == 60
    assert ran == ["item 2", "summed"]
    assert again.verify() == []
