"""What a workflow class declares: its graph, edge by edge, and what is refused when the class is made."""

from __future__ import annotations

from typing import Any

import pytest

from detent import PREVIOUS, Workflow, step, task
from detent.definitions.blueprint import blueprint
from tests.graphs.declaring import assert_names_its_line, chain, edges, refusal, step_

# -- The chain -----------------------------------------------------------------------------------------


def test_steps_follow_each_other_as_they_are_written() -> None:
    class Flow(Workflow):
        @step
        def validate(self) -> None: ...

        @step
        def process(self) -> None: ...

        @step
        def complete(self) -> None: ...

    assert edges(Flow) == chain("validate", "process", "complete")
    assert blueprint(Flow).graph.roots == ("validate",)
    assert blueprint(Flow).graph.sinks == ("complete",)


def test_the_unified_namespace_of_the_design_edge_by_edge() -> None:
    class Order(Workflow):
        @step
        def validate(self) -> None: ...

        @step
        def enrich_data(self) -> None: ...

        @task(depends_on="validate")
        def check_inventory(self) -> None: ...

        @task(depends_on="validate")
        def check_fraud(self) -> None: ...

        @step(depends_on=[check_inventory, check_fraud])
        def ready_to_charge(self) -> None: ...

        @step
        def charge_card(self) -> None: ...

        @task(depends_on=charge_card)
        def send_receipt(self) -> None: ...

        @task(depends_on=charge_card)
        def update_analytics(self) -> None: ...

        @step(depends_on=["charge_card", "send_receipt", "update_analytics"])
        def complete(self) -> None: ...

    assert edges(Order) == {
        ("validate", "enrich_data"),
        ("validate", "check_inventory"),
        ("validate", "check_fraud"),
        ("check_inventory", "ready_to_charge"),
        ("check_fraud", "ready_to_charge"),
        ("ready_to_charge", "charge_card"),
        ("charge_card", "send_receipt"),
        ("charge_card", "update_analytics"),
        ("charge_card", "complete"),
        ("send_receipt", "complete"),
        ("update_analytics", "complete"),
    }


def test_the_previous_of_a_step_is_bound_after_all_insertions() -> None:
    class Flow(Workflow):
        @step
        def validate(self) -> None: ...

        @step
        def process(self) -> None: ...

        @step(after_step="validate")
        def audit(self) -> None: ...

    assert edges(Flow) == chain("validate", "audit", "process")


def test_the_reference_of_the_design_edge_by_edge() -> None:
    class Order(Workflow):
        @step
        def validate(self) -> None: ...

        @step
        def enrich(self) -> None: ...

        @step(after_step="validate")
        def audit(self) -> None: ...

        @task(depends_on="enrich")
        def check_inventory(self) -> None: ...

        @task(depends_on="enrich")
        def check_fraud(self) -> None: ...

        @task
        def external_validation(self) -> None: ...

        @step(depends_on=["check_inventory", "check_fraud"])
        def charge(self) -> None: ...

        @step(also_depends_on="external_validation")
        def ship(self) -> None: ...

    assert edges(Order) == {
        ("validate", "audit"),
        ("audit", "enrich"),
        ("enrich", "check_inventory"),
        ("enrich", "check_fraud"),
        ("check_inventory", "charge"),
        ("check_fraud", "charge"),
        ("charge", "ship"),
        ("external_validation", "ship"),
    }
    assert set(blueprint(Order).graph.roots) == {"validate", "external_validation"}


def test_previous_is_whatever_comes_before_in_the_chain_when_all_is_declared() -> None:
    class Flow(Workflow):
        @step
        def first(self) -> None: ...

        @task(depends_on=None)
        def fraud(self) -> None: ...

        @step(depends_on=[PREVIOUS, "fraud"])
        def last(self) -> None: ...

        @step(before_step="last")
        def inserted(self) -> None: ...

    assert edges(Flow) == {("first", "inserted"), ("inserted", "last"), ("fraud", "last")}


def test_also_depends_on_is_the_chain_and_one_more() -> None:
    def declared(**options: Any) -> Any:
        class Flow(Workflow):
            @step
            def charge_card(self) -> None: ...

            @task
            def fraud_final_check(self) -> None: ...

            @step_(**options)
            def ship_order(self) -> None: ...

        return Flow

    short = declared(also_depends_on="fraud_final_check")
    long = declared(depends_on=[PREVIOUS, "fraud_final_check"])
    assert edges(short) == edges(long)
    assert set(blueprint(short).graph.needs["ship_order"]) == {"charge_card", "fraud_final_check"}


def test_previous_of_the_first_step_is_nothing() -> None:
    class Flow(Workflow):
        @task
        def aside(self) -> None: ...

        @step(depends_on=[PREVIOUS, aside])
        def first(self) -> None: ...

    assert edges(Flow) == {("aside", "first")}


@pytest.mark.parametrize(
    ("option", "order"),
    [
        ({"after_step": "b"}, ["a", "b", "x", "c"]),
        ({"before_step": "b"}, ["a", "x", "b", "c"]),
        ({"before_step": "a"}, ["x", "a", "b", "c"]),
        ({"after_step": "c"}, ["a", "b", "c", "x"]),
        ({"after_step": "a"}, ["a", "x", "b", "c"]),
    ],
    ids=str,
)
def test_a_step_is_inserted_where_it_says(option: dict[str, str], order: list[str]) -> None:
    class Flow(Workflow):
        @step
        def a(self) -> None: ...

        @step
        def b(self) -> None: ...

        @step_(**option)
        def x(self) -> None: ...

        @step
        def c(self) -> None: ...

    assert edges(Flow) == chain(*order)


def test_a_step_may_stand_next_to_one_that_is_declared_later() -> None:
    class Flow(Workflow):
        @step(before_step="last")
        def inserted(self) -> None: ...

        @step
        def first(self) -> None: ...

        @step
        def last(self) -> None: ...

    assert edges(Flow) == chain("first", "inserted", "last")


def test_a_step_may_stand_next_to_one_that_was_inserted_itself() -> None:
    class Flow(Workflow):
        @step(after_step="y")
        def x(self) -> None: ...

        @step(after_step="a")
        def y(self) -> None: ...

        @step
        def a(self) -> None: ...

        @step
        def b(self) -> None: ...

    assert edges(Flow) == chain("a", "y", "x", "b")


def test_of_two_after_the_same_step_the_one_declared_last_stands_next_to_it() -> None:
    """As two insertions by hand would come out: each goes right behind."""

    class Flow(Workflow):
        @step
        def a(self) -> None: ...

        @step
        def b(self) -> None: ...

        @step(after_step="a")
        def x(self) -> None: ...

        @step(after_step="a")
        def y(self) -> None: ...

    assert edges(Flow) == chain("a", "y", "x", "b")


def test_of_two_before_the_same_step_the_one_declared_last_stands_next_to_it() -> None:
    class Flow(Workflow):
        @step
        def a(self) -> None: ...

        @step(before_step="a")
        def x(self) -> None: ...

        @step(before_step="a")
        def y(self) -> None: ...

    assert edges(Flow) == chain("x", "y", "a")


def test_an_inserted_step_can_be_named_by_its_function() -> None:
    class Flow(Workflow):
        @step
        def a(self) -> None: ...

        @step
        def b(self) -> None: ...

        @step(after_step=a)
        def x(self) -> None: ...

    assert edges(Flow) == chain("a", "x", "b")


def test_an_inserted_step_with_dependencies_of_its_own_still_has_its_place_in_the_chain() -> None:
    class Flow(Workflow):
        @step
        def a(self) -> None: ...

        @task
        def t(self) -> None: ...

        @step(after_step="a", depends_on="t")
        def x(self) -> None: ...

        @step
        def b(self) -> None: ...

    assert edges(Flow) == {("t", "x"), ("x", "b")}


@pytest.mark.parametrize("how", ["name", "function", "list", "tuple", "set", "twice"])
def test_depends_on_takes_names_functions_and_several_of_them(how: str) -> None:
    class Flow(Workflow):
        @step
        def a(self) -> None: ...

        @task(
            depends_on={
                "name": "a",
                "function": a,
                "list": [a],
                "tuple": ("a",),
                "set": {"a"},
                "twice": [a, "a"],
            }[how]
        )
        def b(self) -> None: ...

    assert blueprint(Flow).graph.needs["b"] == ("a",)


@pytest.mark.parametrize("nothing", [None, [], ()])
def test_a_step_that_depends_on_nothing_is_a_root_of_the_graph(nothing: Any) -> None:
    class Flow(Workflow):
        @step
        def a(self) -> None: ...

        @step(depends_on=nothing)
        def b(self) -> None: ...

        @step
        def c(self) -> None: ...

    assert edges(Flow) == {("b", "c")}
    assert blueprint(Flow).graph.roots == ("a", "b")


def test_a_task_may_name_one_that_is_declared_later() -> None:
    class Flow(Workflow):
        @task(depends_on="late")
        def early(self) -> None: ...

        @task
        def late(self) -> None: ...

    assert edges(Flow) == {("late", "early")}


def test_a_task_has_no_place_in_the_chain() -> None:
    class Flow(Workflow):
        @step
        def a(self) -> None: ...

        @task
        def aside(self) -> None: ...

        @step
        def b(self) -> None: ...

    assert edges(Flow) == {("a", "b")}


def test_a_step_called_on_an_object_of_the_class_is_just_the_method() -> None:
    class Flow(Workflow):
        number: int

        @step
        def double(self) -> int:
            return 2 * self.number

    assert Flow(number=21).double() == 42


# -- Anonymous steps, names ----------------------------------------------------------------------------


def test_anonymous_steps_are_numbered_in_the_order_of_the_class() -> None:
    class Flow(Workflow):
        @step
        def _(self) -> None: ...

        @step
        def named(self) -> None: ...

        @step(wait=1)
        def _(self) -> None: ...

    assert edges(Flow) == chain("step_1", "named", "step_2")
    assert blueprint(Flow).graph.nodes["step_2"].wait == 1


def test_a_subclass_numbers_on_so_that_the_names_of_its_parent_stay() -> None:
    class Parent(Workflow):
        @step
        def _(self) -> None: ...

        @step
        def _(self) -> None: ...

    class Child(Parent):
        @step
        def _(self) -> None: ...

    assert list(blueprint(Parent).nodes) == ["step_1", "step_2"]
    assert edges(Child) == chain("step_1", "step_2", "step_3")


def test_an_anonymous_step_does_not_take_the_place_of_one_that_is_named_like_it() -> None:
    def declare() -> None:
        class Flow(Workflow):
            @step
            def step_1(self) -> None: ...

            @step
            def _(self) -> None: ...

    assert_names_its_line(refusal(declare), "step_1")


def test_a_workflow_is_called_like_its_class_unless_it_is_given_a_name() -> None:
    class Order(Workflow):
        @step
        def a(self) -> None: ...

    class Renamed(Order, name="order"): ...

    class Again(Renamed): ...

    assert [blueprint(cls).name for cls in (Order, Renamed, Again)] == ["Order", "order", "Again"]
