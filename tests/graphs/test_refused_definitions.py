"""What the class of a workflow refuses, and the advice that it gives."""

from __future__ import annotations

import re
import types
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import pytest

import detent
from detent import PREVIOUS, DefinitionError, ExceptionPolicy, Retry, Workflow, step, task
from detent.definitions.blueprint import blueprint
from tests.graphs.declaring import Maker, Parent, assert_names_its_line, edges, refusal, step_

task_ = cast(Maker, task)


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
