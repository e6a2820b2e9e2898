"""Classes of workflows that inherit nodes, and the fields of a class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Optional

import pytest

import detent
from detent import Workflow, step, task
from detent.definitions.blueprint import blueprint
from tests.graphs.declaring import Parent, chain, edges, refusal


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
