"""What a workflow class declares: its graph, edge by edge, and what is refused when the class is made."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any, ClassVar, Optional, Protocol, cast

import pytest

import detent
from detent import PREVIOUS, DefinitionError, ExceptionPolicy, Retry, Workflow, step, task
from detent.definitions.blueprint import blueprint


class Maker(Protocol):
    """`step` and `task` with options that no type checker would accept."""

    def __call__(self, **options: Any) -> Callable[[Callable[..., Any]], Any]: ...


step_ = cast(Maker, step)
task_ = cast(Maker, task)


def edges(cls: Any) -> set[tuple[str, str]]:
    """Who comes before whom."""
    return {(needed, name) for name, needs in blueprint(cls).graph.needs.items() for needed in needs}


def chain(*names: str) -> set[tuple[str, str]]:
    return set(pairwise(names))


def refusal(declare: Callable[[], Any]) -> str:
    with pytest.raises(DefinitionError) as caught:
        declare()
    return str(caught.value)


def assert_names_its_line(message: str, node: str) -> None:
    """A refusal says which node, and where it stands in this file."""
    assert node in message
    place = re.search(r"\((.+):(\d+)\)", message)
    assert place, f"no source line in {message!r}"
    assert place[1] == __file__
    lines = inspect.getsource(inspect.getmodule(edges)).splitlines()  # type: ignore[arg-type]
    around = lines[int(place[2]) - 1 : int(place[2]) + 8]
    assert any(line.strip().startswith(("@step", "@task", "def", "async def")) for line in around)


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


# -- Inheritance ---------------------------------------------------------------------------------------


class Parent(Workflow):
    detent.job_options(queue="parents", priority=1)
    detent.on_exception(ValueError, action="skip")

    @step(wait=timedelta(minutes=5), retry=Retry(attempts=7), timeout=3.0)
    def first(self) -> str:
        return "the parent's"

    @step
    def second(self) -> None: ...

    @detent.cancel_if
    def closed(self) -> bool:
        return False


def test_a_subclass_goes_on_where_its_parent_ended_and_never_changes_it() -> None:
    before = edges(Parent)

    class Child(Parent):
        detent.job_options(queue="children")
        detent.on_exception(KeyError, action="cancel")

        @step
        def third(self) -> None: ...

        @step(after_step="first")
        def inserted(self) -> None: ...

        @detent.cancel_if
        def gone(self) -> bool:
            return False

    assert edges(Child) == chain("first", "inserted", "second", "third")
    child, parent = blueprint(Child), blueprint(Parent)
    assert [condition.__name__ for condition in child.cancel_conditions] == ["closed", "gone"]
    assert [policy.on for policy in child.policies] == [(KeyError,), (ValueError,)]
    assert (child.queue, child.priority) == ("children", 1)
    assert edges(Parent) == before == chain("first", "second")
    assert [condition.__name__ for condition in parent.cancel_conditions] == ["closed"]
    assert [policy.on for policy in parent.policies] == [(ValueError,)]
    assert (parent.queue, parent.priority) == ("parents", 1)


def test_a_method_that_is_overridden_plainly_keeps_the_options_of_its_node() -> None:
    class Child(Parent):
        def first(self) -> str:
            return "the child's"

    node = blueprint(Child).nodes["first"]
    assert (node.step.retry.attempts, node.step.timeout, node.options.seconds) == (7, 3.0, 300)
    assert edges(Child) == edges(Parent)
    assert (Child().first(), Parent().first()) == ("the child's", "the parent's")
    assert blueprint(Parent).nodes["first"].step.function(Parent()) == "the parent's"


def test_a_method_that_is_decorated_again_has_its_new_options_and_its_old_place() -> None:
    class Child(Parent):
        @step(wait=7)
        def first(self) -> str:
            return "the child's"

    node = blueprint(Child).nodes["first"]
    assert (node.step.retry.attempts, node.step.timeout, node.options.seconds) == (1, None, 7)
    assert edges(Child) == edges(Parent)


def test_an_overridden_method_may_call_its_parent() -> None:
    class Child(Parent):
        def first(self) -> str:
            return f"more than {super().first()}"

    assert Child().first() == "more than the parent's"


def test_a_step_may_become_a_task_in_a_subclass() -> None:
    class Child(Parent):
        @task
        def first(self) -> str:
            return ""

    assert edges(Child) == set()


def test_a_parent_without_nodes_only_serves_as_a_parent() -> None:
    class Base(Workflow):
        detent.on_exception(action="cancel")

    class Child(Base):
        @step
        def a(self) -> None: ...

    assert blueprint(Child).policies[0].action == "cancel"
    assert "has no nodes; decorate its methods" in refusal(lambda: blueprint(Base).graph)


def test_nodes_come_from_mixins_too() -> None:
    class Audited:
        @step
        def audit(self) -> None: ...

        def first(self) -> str:
            return "the mixin's"

    class Child(Audited, Parent):
        @step
        def third(self) -> None: ...

    assert edges(Child) == chain("first", "second", "audit", "third")
    assert Child().first() == "the mixin's"
    assert blueprint(Child).nodes["first"].step.function(Child()) == "the mixin's"


def test_a_subclass_of_two_workflows_has_the_nodes_of_both() -> None:
    class Left(Workflow):
        @step
        def left(self) -> None: ...

    class Right(Workflow):
        @step
        def right(self) -> None: ...

    class Both(Left, Right):
        @step
        def last(self) -> None: ...

    assert edges(Both) == chain("right", "left", "last")
    assert (edges(Left), edges(Right)) == (set(), set())


def test_a_subclass_may_name_the_nodes_of_its_parent_by_function() -> None:
    class Child(Parent):
        @task(depends_on=Parent.first)
        def aside(self) -> None: ...

    assert ("first", "aside") in edges(Child)


def test_a_subclass_may_name_a_node_by_the_function_that_it_overrides() -> None:
    class Child(Parent):
        def first(self) -> str:
            return "the child's"

        @task(depends_on=Parent.first)
        def aside(self) -> None: ...

    assert ("first", "aside") in edges(Child)


def test_an_overridden_condition_is_the_one_that_counts() -> None:
    class Child(Parent):
        def closed(self) -> bool:
            return True

    assert len(blueprint(Child).cancel_conditions) == 1


# -- Fields --------------------------------------------------------------------------------------------


@dataclass
class Address:
    street: str
    number: int


def test_fields_are_the_annotations_of_the_class_and_its_parents() -> None:
    class Base(Workflow):
        customer: str

        @step
        def a(self) -> None: ...

    class Order(Base):
        order_id: int
        address: Address
        note: str | None = None
        tags: list[str] = []  # noqa: RUF012 - stored with each run, so never shared
        limit: ClassVar[int] = 3
        plain: ClassVar = 4
        _private: int = 5

    fields = blueprint(Order).fields
    assert fields == {
        "customer": str,
        "order_id": int,
        "address": Address,
        "note": Optional[str],  # noqa: UP045 - how the annotation comes back
        "tags": list[str],
    }


def test_a_field_may_name_a_type_that_comes_later() -> None:
    assert blueprint(Early).fields == {"later": Late}


class Early(Workflow):
    later: Late

    @step
    def a(self) -> None: ...


@dataclass
class Late:
    number: int


def test_a_workflow_object_is_made_with_its_fields_by_name() -> None:
    class Order(Workflow):
        order_id: int
        note: str = "none"

        @step
        def a(self) -> None: ...

    assert (Order(order_id=1).order_id, Order(order_id=1).note) == (1, "none")
    with pytest.raises(TypeError, match=r"Order\(\) needs the field 'order_id'"):
        Order()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Order\(\) has no field 'order'; its fields are: order_id, note"):
        Order(order_id=1, order=2)  # type: ignore[call-arg]


def test_a_field_cannot_be_changed_other_attributes_can() -> None:
    class Order(Workflow):
        order_id: int

        @step
        def a(self) -> None: ...

    order = Order(order_id=1)
    with pytest.raises(AttributeError, match=r"Order.order_id is an input of the run and cannot be changed"):
        order.order_id = 2
    with pytest.raises(AttributeError, match=r"Order.order_id is an input of the run and cannot be changed"):
        del order.order_id
    order.cache = {}
    assert order.order_id == 1


@pytest.mark.parametrize("name", ["run", "ctx", "hero_", "cancel", "a"])
def test_a_field_cannot_be_called_like_a_node_or_like_what_workflow_has(name: str) -> None:
    def declare() -> Any:
        class Order(Workflow):
            __annotations__ = {name: "int"}

            @step
            def a(self) -> None: ...

        return Order

    if name == "hero_":
        assert blueprint(declare()).fields == {"hero_": int}
    else:
        message = refusal(declare)
        assert f"Order.{name}" in message
        assert "choose another" in message


def test_a_field_whose_type_cannot_be_found_is_refused_with_its_name() -> None:
    class Order(Workflow):
        order_id: Nowhere  # type: ignore[name-defined]  # noqa: F821

        @step
        def a(self) -> None: ...

    assert "Order" in (message := refusal(lambda: blueprint(Order).fields))
    assert "Nowhere" in message


# -- What is refused -----------------------------------------------------------------------------------


def test_a_clash_of_names_is_refused() -> None:
    def declare() -> None:
        class Flow(Workflow):
            @step
            def a(self) -> None: ...

            @task  # type: ignore[no-redef]
            def a(self) -> None: ...  # noqa: F811

    message = refusal(declare)
    assert_names_its_line(message, "a")
    assert "rename one of them" in message


def test_a_plain_method_over_a_node_is_refused() -> None:
    def declare() -> None:
        class Flow(Workflow):
            @step
            def a(self) -> None: ...

            def a(self) -> None: ...  # type: ignore[no-redef]  # noqa: F811

    assert_names_its_line(refusal(declare), "a")


def test_a_cycle_is_refused_with_its_nodes() -> None:
    def declare() -> None:
        class Flow(Workflow):
            @task(depends_on="c")
            def a(self) -> None: ...

            @task(depends_on="a")
            def b(self) -> None: ...

            @task(depends_on="b")
            def c(self) -> None: ...

            @task(depends_on="c")
            def outside(self) -> None: ...

    message = refusal(declare)
    assert_names_its_line(message, "Flow.")
    circle = re.search(r"depend on each other: ([a-z >-]+);", message)
    assert circle
    names = circle[1].split(" -> ")
    assert (names[0], set(names), len(names)) == (names[-1], {"a", "b", "c"}, 4)
    assert "remove one of these dependencies" in message


def test_a_step_that_depends_on_a_later_one_of_the_chain_is_a_cycle() -> None:
    def declare() -> None:
        class Flow(Workflow):
            @step(depends_on="b")
            def a(self) -> None: ...

            @step
            def b(self) -> None: ...

    assert "depend on each other" in refusal(declare)


def test_a_node_that_depends_on_itself_is_refused() -> None:
    def declare() -> None:
        class Flow(Workflow):
            @task(depends_on="a")
            def a(self) -> None: ...

    message = refusal(declare)
    assert_names_its_line(message, "Flow.a")
    assert "remove it from depends_on" in message


@pytest.mark.parametrize("option", ["depends_on", "also_depends_on", "before_step", "after_step"])
def test_an_unknown_name_is_refused_with_those_there_are(option: str) -> None:
    def declare() -> None:
        class Flow(Workflow):
            @step
            def validate(self) -> None: ...

            @step_(**{option: "valdate"})
            def a(self) -> None: ...

    message = refusal(declare)
    assert_names_its_line(message, "Flow.a")
    assert "'valdate': there is no such node; there are validate, a" in message


@pytest.mark.parametrize("option", ["depends_on", "before_step", "after_step"])
def test_what_is_no_node_is_refused(option: str) -> None:
    def declare() -> None:
        class Flow(Workflow):
            def helper(self) -> None: ...

            @step_(**{option: helper})
            def a(self) -> None: ...

    message = refusal(declare)
    assert_names_its_line(message, "Flow.a")
    assert "give the name of a node, or its function" in message


@pytest.mark.parametrize("option", ["before_step", "after_step"])
def test_a_task_with_a_place_in_the_chain_is_refused(option: str) -> None:
    def declare() -> None:
        class Flow(Workflow):
            @step
            def a(self) -> None: ...

            @task_(**{option: "a"})
            def b(self) -> None: ...

    message = refusal(declare)
    assert_names_its_line(message, "Flow.b")
    assert "make it a step, or use depends_on" in message


def test_a_task_that_depends_on_previous_is_refused() -> None:
    def declare() -> None:
        class Flow(Workflow):
            @step
            def a(self) -> None: ...

            @task(depends_on=PREVIOUS)
            def b(self) -> None: ...

    message = refusal(declare)
    assert_names_its_line(message, "Flow.b")
    assert "PREVIOUS is for steps" in message


def test_a_step_next_to_a_task_is_refused() -> None:
    def declare() -> None:
        class Flow(Workflow):
            @task
            def t(self) -> None: ...

            @step(after_step="t")
            def a(self) -> None: ...

    message = refusal(declare)
    assert_names_its_line(message, "Flow.a")
    assert "is a task and is not in the chain" in message


def test_steps_that_stand_next_to_each_other_alone_are_refused() -> None:
    def declare() -> None:
        class Flow(Workflow):
            @step(after_step="b")
            def a(self) -> None: ...

            @step(after_step="a")
            def b(self) -> None: ...

    assert_names_its_line(refusal(declare), "Flow.a")


def declare_with(decorator: Maker = step_, **options: Any) -> None:
    class Flow(Workflow):
        @step
        def before(self) -> None: ...

        @decorator(**options)
        def a(self) -> None: ...


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"wait": -1}, "a wait cannot be negative"),
        ({"wait": timedelta(seconds=-1)}, "a wait cannot be negative"),
        ({"wait": "5m"}, "timedelta(minutes=5)"),
        ({"wait": True}, "timedelta(minutes=5)"),
        ({"wait": float("nan")}, "wait=nan"),
        ({"wait": float("inf")}, "wait=inf"),
        ({"skip_if": 3}, "give a callable, a method's name, True or False"),
        ({"skip_if": "no_such_method"}, "the class has no method with that name"),
        ({"only_if": "no_such_method"}, "the class has no method with that name"),
        ({"skip_if": True, "only_if": True}, "has both skip_if and only_if; remove one of them"),
        (
            {"before_step": "before", "after_step": "before"},
            "has both before_step and after_step; remove one of them",
        ),
        ({"on_exception": "explode"}, "pause, cancel, skip, reattempt"),
        ({"on_exception": "raise"}, "pause, cancel, skip, reattempt"),
        ({"on_exception": [3]}, "pause, cancel, skip, reattempt"),
        ({"retry": 3}, "retry=detent.Retry(attempts=...)"),
        ({"timeout": 0}, "more than 0"),
        ({"timeout": -1}, "cannot be negative"),
        ({"timeout": "soon"}, "timeout='soon'"),
        ({"timeout": float("nan")}, "timeout=nan"),
        ({"priority": "high"}, "priority='high'"),
        ({"priority": 1.5}, "priority=1.5"),
        ({"queue": 5}, "queue=5"),
        ({"queue": ""}, "queue=''"),
        ({"args": {"a": 1}}, "args without a job"),
        ({"job": "charge"}, "job='charge'"),
        ({"job": print}, "job=<built-in function print>"),
        ({"executor": "process"}, "use job=a_step instead"),
        ({"executor": "gpu"}, "executor='gpu'"),
        ({"transactional": True}, "must be the transaction, tx"),
        ({"dependson": "before"}, "dependson"),
        ({"id": "another"}, "id"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else None,
)
def test_a_bad_option_is_refused_with_what_to_write(options: dict[str, Any], advice: str) -> None:
    message = refusal(lambda: declare_with(**options))
    assert_names_its_line(message, "a")
    assert advice in message


@pytest.mark.parametrize(
    "name",
    [
        "run",
        "ctx",
        "cancel",
        "pause",
        "skip",
        "reattempt",
        "finished",
        "before_step",
        "after_step",
        "around_step",
        "before_step_starts",
        "may_proceed_without_hero",
        "hero",
    ],
)
def test_a_name_that_belongs_to_workflow_is_refused(name: str) -> None:
    def body(self: Any) -> None: ...

    def declare() -> None:
        body.__name__, body.__qualname__ = name, f"Flow.{name}"
        types.new_class("Flow", (Workflow,), exec_body=fill)

    def fill(namespace: dict[str, Any]) -> None:
        namespace["__qualname__"] = "Flow"
        namespace[name] = step(body)

    message = refusal(declare)
    assert_names_its_line(message, f"Flow.{name}")
    assert "Workflow uses this name itself; choose another" in message


def test_a_node_whose_method_takes_no_self_is_refused() -> None:
    """It would be a step of its own, and silently no node of the class."""

    def declare() -> None:
        class Flow(Workflow):
            @step
            def a() -> None: ...

            @step
            def b(self) -> None: ...

    message = refusal(declare)
    assert_names_its_line(message, "a")
    assert "self" in message


def test_a_node_with_parameters_that_nobody_gives_is_refused() -> None:
    def declare() -> None:
        class Flow(Workflow):
            @step
            def a(self, order_id: int) -> None: ...

    message = refusal(declare)
    assert_names_its_line(message, "a")
    assert "order_id" in message


def test_a_generator_is_no_node() -> None:
    def declare() -> None:
        class Flow(Workflow):
            @step
            def a(self) -> Any:
                yield 1

    assert_names_its_line(refusal(declare), "a")


@step(transactional=True)
def debit(tx: Any) -> None: ...


@detent.workflow
def fulfil() -> None: ...


@pytest.mark.parametrize("job", [debit, fulfil, Parent], ids=["transactional", "workflow", "class"])
def test_a_timeout_that_a_job_cannot_have_is_refused(job: Any) -> None:
    message = refusal(lambda: declare_with(job=job, timeout=5))
    assert_names_its_line(message, "Flow.a")
    assert "timeout" in message


def test_options_of_nodes_on_a_function_are_refused() -> None:
    message = refusal(lambda: step_(wait=5)(lambda: None))
    assert "wait= is only for nodes of those" in message

    def work() -> None: ...

    message = refusal(lambda: task(work))
    assert_names_its_line(message, "work")
    assert "@task is only for nodes of those" in message


def test_a_step_without_method_and_job_is_refused() -> None:
    def declare() -> None:
        class Flow(Workflow):
            a = step(wait=5)

    message = refusal(declare)
    assert "Flow.a" in message
    assert "add job=a_step" in message


@pytest.mark.parametrize("what", ["cancel_if", "on_exception", "job_options"])
def test_what_belongs_in_the_body_of_a_class_is_refused_elsewhere(what: str) -> None:
    calls: dict[str, Callable[[], Any]] = {
        "cancel_if": lambda: detent.cancel_if(lambda self: True),
        "on_exception": lambda: detent.on_exception(action="skip"),
        "job_options": lambda: detent.job_options(queue="q"),
    }
    assert f"{what}() belongs in the body of a Workflow class" in refusal(calls[what])


def test_a_blanket_condition_that_names_no_method_is_refused() -> None:
    def declare() -> None:
        class Flow(Workflow):
            detent.cancel_if("acount_closed")

            @step
            def a(self) -> None: ...

            def account_closed(self) -> bool:
                return False

    message = refusal(declare)
    assert "Flow" in message
    assert "cancel_if='acount_closed'" in message


def test_a_blanket_condition_may_name_a_method_of_a_subclass_of_an_abstract_parent() -> None:
    class Base(Workflow):
        detent.cancel_if("closed")

    class Child(Base):
        def closed(self) -> bool:
            return False

        @step
        def a(self) -> None: ...

    assert blueprint(Child).cancel_conditions == ["closed"]


def test_a_bad_blanket_condition_is_refused() -> None:
    def declare() -> None:
        class Flow(Workflow):
            detent.cancel_if(3.5)  # type: ignore[type-var]

    assert "cancel_if=3.5: give a callable" in refusal(declare)


@pytest.mark.parametrize(
    ("policy", "advice"),
    [
        ({"action": "explode"}, "pause, cancel, skip, reattempt"),
        ({"action": "skip", "then": "reattempt"}, "pause, cancel, skip"),
        ({"action": "skip", "wait": timedelta(1)}, "wait and backoff are for reattempts"),
        (
            {"action": "reattempt", "wait": timedelta(1), "backoff": Retry()},
            "give either wait (the same each time) or backoff (growing), not both",
        ),
        ({"action": "reattempt", "wait": timedelta(-1)}, "cannot be negative"),
        ({"action": "reattempt", "max_reattempts": -1}, "cannot be negative"),
        ({"action": "reattempt", "max_reattempts": True}, "max_reattempts=True: it is a whole number"),
        ({"action": "reattempt", "max_reattempts": 2.5}, "max_reattempts=2.5: it is a whole number"),
        ({"action": "skip", "max_reattempts": 3}, "max_reattempts and then are for 'reattempt'"),
        ({"action": "skip", "max_reattempts": None}, "max_reattempts and then are for 'reattempt'"),
        ({"action": "cancel", "then": "skip"}, "max_reattempts and then are for 'reattempt'"),
        ({"action": "reattempt", "backoff": 2}, "backoff=2: write backoff=Retry"),
        ({"action": "reattempt", "wait": "5m"}, "wait='5m': write timedelta"),
        ({"action": "reattempt", "wait": True}, "wait=True: write timedelta"),
        ({"action": "reattempt", "wait": float("nan")}, "wait=nan: write timedelta"),
        ({"action": "reattempt", "wait": 1e300}, "it is too long"),
        ({"action": "reattempt", "wait": -5}, "cannot be negative"),
        ({"action": "skip", "on": (3,)}, "exception classes, their dotted names, or callables"),
        ({"action": "skip", "on": (int,)}, "exception classes, their dotted names, or callables"),
    ],
    ids=str,
)
def test_a_bad_policy_is_refused(policy: dict[str, Any], advice: str) -> None:
    assert advice in refusal(lambda: ExceptionPolicy(**policy))


@pytest.mark.parametrize("name", ["a.b", "x" * 101, "a/b", "", " a"])
def test_a_name_of_a_workflow_that_no_database_would_keep_is_refused(name: str) -> None:
    def declare() -> None:
        class Flow(Workflow, name=name):
            @step
            def a(self) -> None: ...

    assert "name=..." in refusal(declare)


def test_a_refused_class_leaves_its_parent_as_it_was() -> None:
    before = edges(Parent)

    def declare() -> None:
        class Child(Parent):
            @step(depends_on="nowhere")
            def third(self) -> None: ...

    refusal(declare)
    assert edges(Parent) == before


def test_two_decorators_on_one_function_are_refused() -> None:
    def work() -> None: ...

    async def awork() -> None: ...

    for function in (work, awork):
        with pytest.raises(DefinitionError, match="remove one of the two decorators"):
            step(detent.workflow(function))
        with pytest.raises(DefinitionError, match="remove one of the two decorators"):
            detent.workflow(step(function))
    with pytest.raises(DefinitionError, match="decorates a function"):
        step(int)


def test_a_name_in_the_place_of_depends_on_is_refused() -> None:
    with pytest.raises(DefinitionError, match="write @task\\(depends_on='a'\\)"):
        detent.task("a")  # type: ignore[call-overload]
