"""What is asked before a body runs: in which order, when, and what follows."""

from datetime import timedelta
from typing import Any

import pytest

import detent
from detent import Retry, Workflow, step
from detent.testing import TestingApp
from tests.functions.world import Apps, Gate, failure, result, state, wait_for
from tests.graphs.world import assert_error, attempts, both_kinds, one_node


class User:
    def __init__(self, id: int) -> None:
        self.id = id


@both_kinds
def test_the_order_is_hero_cancel_if_skip_if_hooks_body(testing: TestingApp, is_async: bool) -> None:
    seen: list[str] = []

    def load(id: str) -> User:
        seen.append("hero")
        return User(int(id))

    def note(what: str, value: Any = None) -> Any:
        seen.append(what)
        return value

    flow: Any = one_node(
        lambda self: note("body"), is_async, skip_if=lambda self: note(f"skip_if of {self.hero.id}", False)
    )

    class Flow(flow, name="ordered"):  # type: ignore[misc,call-arg]
        detent.cancel_if(lambda self: note(f"cancel_if of {self.hero.id}", False))

        def before_step_starts(self, name: str) -> None:
            note(f"before_step_starts {name}")

        def before_step(self, name: str) -> None:
            note(f"before_step {name}")

    testing.include(Flow)
    testing.hero(User, key=lambda user: user.id, load=load)
    run = testing.options(hero=User(7)).start(Flow)
    testing.speedrun(run)
    assert seen[:6] == [
        "hero",
        "cancel_if of 7",
        "skip_if of 7",
        "before_step_starts work",
        "before_step work",
        "body",
    ]


def test_a_missing_hero_comes_before_all_conditions(testing: TestingApp) -> None:
    asked: list[str] = []

    class Flow(Workflow):
        detent.cancel_if(lambda self: asked.append("cancel_if"))

        @step(skip_if=lambda self: asked.append("skip_if"))
        def work(self) -> None: ...

    testing.include(Flow)
    testing.hero(User, key=lambda user: user.id, load=lambda id: None)
    run = testing.options(hero=User(7)).start(Flow)
    testing.speedrun(run)
    assert (attempts(run), asked) == ([("canceled", "canceled_by_missing_hero")], [])


def test_cancel_if_comes_before_skip_if(testing: TestingApp) -> None:
    class Flow(Workflow):
        detent.cancel_if(lambda self: True)

        @step(skip_if=True)
        def work(self) -> None: ...

    run = testing.start(Flow)
    testing.speedrun(run)
    assert attempts(run) == [("canceled", "canceled_by_condition")]


def test_conditions_of_parents_come_first_and_the_first_that_holds_is_enough(testing: TestingApp) -> None:
    asked: list[str] = []

    def asks(name: str, value: bool) -> Any:
        def condition(self: Any) -> bool:
            asked.append(name)
            return value

        return condition

    class Base(Workflow):
        detent.cancel_if(asks("parent", False))

    class Flow(Base):
        detent.cancel_if(asks("first", False))
        detent.cancel_if(asks("second", True))
        detent.cancel_if(asks("third", True))

        @step
        def work(self) -> None: ...

    run = testing.start(Flow)
    testing.speedrun(run)
    assert (state(run), asked) == ("canceled", ["parent", "first", "second"])


def test_a_hook_is_not_called_for_a_node_that_is_skipped(testing: TestingApp) -> None:
    called: list[str] = []

    class Flow(Workflow):
        @step(skip_if=True)
        def work(self) -> None: ...

        def before_step_starts(self, name: str) -> None:
            called.append(name)

    run = testing.start(Flow)
    testing.speedrun(run)
    assert called == []


@both_kinds
def test_a_condition_is_evaluated_when_the_node_runs_not_when_it_is_scheduled(
    testing: TestingApp, is_async: bool
) -> None:
    asked: list[Any] = []
    began = testing.clock()

    def condition(self: Any) -> bool:
        asked.append(testing.clock() - began)
        return True

    run = testing.start(one_node(lambda self: None, is_async, wait=timedelta(days=1), skip_if=condition))
    testing.settle_down()
    assert asked == []
    testing.speedrun(run)
    assert (asked, attempts(run)) == ([timedelta(days=1)], [("skipped", "skipped_by_condition")])


@pytest.mark.parametrize(
    ("option", "skipped"),
    [
        ({"skip_if": "yes"}, True),
        ({"skip_if": "no"}, False),
        ({"skip_if": "ayes"}, True),
        ({"skip_if": "ano"}, False),
        ({"skip_if": lambda self: self.yes()}, True),
        ({"skip_if": lambda self: 0}, False),
        ({"skip_if": lambda self: [1]}, True),
        ({"skip_if": True}, True),
        ({"skip_if": False}, False),
        ({"only_if": "yes"}, False),
        ({"only_if": "no"}, True),
        ({"only_if": "ano"}, True),
        ({"only_if": lambda self: None}, True),
        ({"only_if": True}, False),
        ({"only_if": False}, True),
        ({}, False),
    ],
    ids=[
        "skip_if a method that says yes",
        "skip_if a method that says no",
        "skip_if an async method that says yes",
        "skip_if an async method that says no",
        "skip_if a callable",
        "skip_if a false value",
        "skip_if a true value",
        "skip_if True",
        "skip_if False",
        "only_if a method that says yes",
        "only_if a method that says no",
        "only_if an async method that says no",
        "only_if a false value",
        "only_if True",
        "only_if False",
        "neither",
    ],
)
def test_a_condition_is_a_callable_a_method_or_a_bool(
    testing: TestingApp, option: dict[str, Any], skipped: bool
) -> None:
    maker: Any = step

    class Flow(Workflow):
        @maker(**option)  # type: ignore[untyped-decorator]
        def work(self) -> None: ...

        def yes(self) -> bool:
            return True

        def no(self) -> bool:
            return False

        async def ayes(self) -> bool:
            return True

        async def ano(self) -> bool:
            return False

    run = testing.start(Flow)
    testing.speedrun(run)
    assert attempts(run) == [("skipped", "skipped_by_condition") if skipped else ("completed", "success")]


@both_kinds
@pytest.mark.parametrize("what", ["cancel_if", "skip_if", "only_if", "hero", "before_step_starts"])
@pytest.mark.parametrize(
    ("action", "outcome"),
    [
        (None, ("failed", "paused_by_exception")),
        ("skip", ("skipped", "skipped_by_exception")),
        ("cancel", ("failed", "canceled_by_exception")),
    ],
)
def test_what_raises_before_the_body_counts_as_the_body_raising(
    testing: TestingApp, is_async: bool, what: str, action: str | None, outcome: tuple[str, str]
) -> None:
    def broken(*args: Any) -> bool:
        raise LookupError(f"{what} is broken")

    calls: list[str] = []
    options = {what: broken} if what in ("skip_if", "only_if") else {}
    flow: Any = one_node(lambda self: calls.append("body"), is_async, on_exception=action, **options)

    class Flow(flow, name="broken"):  # type: ignore[misc,call-arg]
        if what == "cancel_if":
            detent.cancel_if(broken)
        if what == "before_step_starts":
            before_step_starts = broken

    testing.include(Flow)
    testing.hero(User, key=lambda user: user.id, load=broken if what == "hero" else lambda id: User(int(id)))
    run = testing.options(hero=User(7)).start(Flow)
    testing.speedrun(run)
    assert (attempts(run), calls) == ([outcome], [])
    assert_error(run, LookupError, f"{what} is broken")


def test_a_condition_that_raises_is_retried_like_the_body(testing: TestingApp) -> None:
    asked: list[int] = []

    def fragile(self: Any) -> bool:
        asked.append(self.ctx.attempt)
        if self.ctx.attempt < 3:
            raise ConnectionError
        return False

    run = testing.start(one_node(lambda self: None, skip_if=fragile, retry=Retry(attempts=3)))
    testing.speedrun(run)
    assert (state(run), asked) == ("finished", [1, 2, 3])


@pytest.mark.parametrize(
    ("verb", "outcome"),
    [
        ("skip", ("skipped", "skipped_by_flow_control")),
        ("cancel", ("canceled", "canceled_by_flow_control")),
        ("pause", ("canceled", "paused_by_flow_control")),
        ("finished", ("completed", "success")),
    ],
)
@pytest.mark.parametrize("where", ["before_step_starts", "cancel_if", "skip_if"])
def test_a_signal_before_the_body_holds_like_one_in_it(
    testing: TestingApp, where: str, verb: str, outcome: tuple[str, str]
) -> None:
    calls: list[str] = []

    def signal(self: Any, *args: Any) -> None:
        if not calls:
            getattr(self, verb)()

    class Flow(Workflow):
        if where == "cancel_if":
            detent.cancel_if(signal)

        if where == "before_step_starts":
            before_step_starts = signal  # type: ignore[assignment]

        @step(skip_if=signal if where == "skip_if" else None)
        def work(self) -> None:
            calls.append("body")

    run = testing.start(Flow)
    testing.speedrun(run)
    assert (attempts(run), calls) == ([outcome], [])


def test_an_overridden_condition_is_the_one_that_is_asked(testing: TestingApp) -> None:
    class Base(Workflow):
        @detent.cancel_if
        def closed(self) -> bool:
            return False

        @step
        def work(self) -> None: ...

    class Child(Base):
        def closed(self) -> bool:
            return True

    run = testing.start(Child)
    testing.speedrun(run)
    assert attempts(run) == [("canceled", "canceled_by_condition")]
    run = testing.start(Base)
    testing.speedrun(run)
    assert state(run) == "finished"


def test_cancel_if_is_asked_before_every_node(testing: TestingApp) -> None:
    class Flow(Workflow):
        @step
        def first(self) -> None: ...

        @step(wait=timedelta(days=1))
        def second(self) -> None: ...

        @detent.cancel_if
        async def late(self) -> bool:
            return testing.clock() > began

    began = testing.clock()
    run = testing.start(Flow)
    testing.speedrun(run)
    assert (attempts(run, "first"), attempts(run, "second")) == (
        [("completed", "success")],
        [("canceled", "canceled_by_condition")],
    )


def test_a_condition_holds_no_lock_and_no_transaction(apps: Apps) -> None:
    gate = Gate()

    def slow(self: Any) -> bool:
        gate.pass_through()
        return False

    flow = one_node(lambda self: None, skip_if=slow)
    app = apps(flow)
    run = app.start(flow)
    gate.wait_for_arrival()
    run.pause(reason="while a condition is being asked")
    assert state(run) == "paused"
    gate.open()
    wait_for(run, "paused")
    run.resume()
    assert result(run) == "after"


def test_a_node_that_the_code_no_longer_has_pauses_its_run(testing: TestingApp) -> None:
    class Before(Workflow, name="shrinking"):
        @step
        def a(self) -> None: ...

        @step(wait=timedelta(days=1))
        def gone(self) -> None: ...

    class After(Workflow, name="shrinking"):
        @step
        def a(self) -> None: ...

    run = testing.start(Before)
    testing.settle_down()
    testing.include(After)
    run.pause()
    run.resume()
    testing.speedrun(run)
    assert state(run) == "paused"
    assert isinstance(failure(run).__cause__, detent.StepNotDefined)
