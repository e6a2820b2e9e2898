"""Hooks around the nodes of a class: which are called, with what, and what they may do."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from detent import DefinitionError, Retry, Workflow, step
from detent.testing import TestingApp
from tests.functions.world import state
from tests.graphs.world import assert_error, attempts, both_kinds, last, one_node

HOOKS = ["before_step_starts", "before_step", "around_step", "after_step"]


def hooked(flow: Any, seen: list[str], asynchronous: bool = False, **more: Any) -> Any:
    """The workflow with all its hooks, that write down what they see."""

    class Hooks:
        def before_step_starts(self, name: str) -> None:
            seen.append(f"starts {name}")

        def before_step(self, name: str) -> None:
            seen.append(f"before {name}")

        @contextlib.contextmanager
        def around_step(self, name: str) -> Iterator[None]:
            seen.append(f"into {name}")
            try:
                yield
            finally:
                seen.append(f"out of {name}")

        def after_step(self, name: str) -> None:
            seen.append(f"after {name}")

    class AsyncHooks:
        async def before_step_starts(self, name: str) -> None:
            await asyncio.sleep(0)
            seen.append(f"starts {name}")

        async def before_step(self, name: str) -> None:
            await asyncio.sleep(0)
            seen.append(f"before {name}")

        @contextlib.asynccontextmanager
        async def around_step(self, name: str) -> AsyncIterator[None]:
            await asyncio.sleep(0)
            seen.append(f"into {name}")
            try:
                yield
            finally:
                seen.append(f"out of {name}")

        async def after_step(self, name: str) -> None:
            await asyncio.sleep(0)
            seen.append(f"after {name}")

    class Hooked(AsyncHooks if asynchronous else Hooks, flow, name="hooked"):  # type: ignore[misc,call-arg]
        pass

    for name, value in more.items():
        setattr(Hooked, name, value)
    return Hooked


def around(name: str, *body: str) -> list[str]:
    return [f"starts {name}", f"before {name}", f"into {name}", *body, f"out of {name}", f"after {name}"]


@both_kinds
@pytest.mark.parametrize("asynchronous", [False, True], ids=["hooks are def", "hooks are async def"])
def test_hooks_are_called_around_every_node_in_their_order(
    testing: TestingApp, is_async: bool, asynchronous: bool
) -> None:
    seen: list[str] = []
    flow = hooked(one_node(lambda self: seen.append("body"), is_async), seen, asynchronous)
    run = testing.start(flow)
    testing.speedrun(run)
    assert state(run) == "finished"
    assert seen == [*around("work", "body"), *around("after")]


def test_hooks_know_a_node_without_a_name_by_the_name_it_got(testing: TestingApp) -> None:
    seen: list[str] = []

    class Flow(Workflow):
        @step
        def _(self) -> None:
            seen.append(f"body of {self.ctx.name}")

    run = testing.start(hooked(Flow, seen))
    testing.speedrun(run)
    assert seen == around("step_1", "body of step_1")


@both_kinds
@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_that_raises_counts_as_the_body_raising(
    testing: TestingApp, is_async: bool, hook: str
) -> None:
    def broken(self: Any, name: str) -> None:
        raise LookupError(f"{hook} is broken")

    flow = hooked(one_node(lambda self: None, is_async), [], False, **{hook: broken})
    run = testing.start(flow)
    testing.speedrun(run)
    assert (state(run), attempts(run)) == ("paused", [("failed", "paused_by_exception")])
    assert_error(run, LookupError, f"{hook} is broken")


@both_kinds
@pytest.mark.parametrize("hook", ["before_step_starts", "before_step", "after_step"])
def test_a_hook_may_say_what_becomes_of_the_node(testing: TestingApp, is_async: bool, hook: str) -> None:
    def skips(self: Any, name: str) -> None:
        if name == "work":
            self.skip()

    run = testing.start(hooked(one_node(lambda self: None, is_async), [], False, **{hook: skips}))
    testing.speedrun(run)
    assert (state(run), attempts(run)) == ("finished", [("skipped", "skipped_by_flow_control")])


@both_kinds
def test_an_error_in_the_body_passes_through_around_and_not_by_after(
    testing: TestingApp, is_async: bool
) -> None:
    seen: list[str] = []

    def body(self: Any) -> None:
        raise LookupError("in the body")

    run = testing.start(hooked(one_node(body, is_async), seen))
    testing.speedrun(run)
    assert seen == ["starts work", "before work", "into work", "out of work"]
    assert_error(run, LookupError, "in the body")


@both_kinds
def test_a_signal_in_the_body_passes_through_around(testing: TestingApp, is_async: bool) -> None:
    seen: list[str] = []
    run = testing.start(hooked(one_node(lambda self: self.skip(), is_async), seen))
    testing.speedrun(run)
    assert seen[:4] == ["starts work", "before work", "into work", "out of work"]
    assert attempts(run) == [("skipped", "skipped_by_flow_control")]


@both_kinds
def test_hooks_are_called_again_for_every_attempt(testing: TestingApp, is_async: bool) -> None:
    seen: list[str] = []

    def body(self: Any) -> None:
        if self.ctx.attempt == 1:
            raise LookupError

    run = testing.start(hooked(one_node(body, is_async, retry=Retry(attempts=2)), seen))
    testing.speedrun(run)
    assert seen.count("starts work") == 2
    assert seen.count("after work") == 1


def test_around_a_def_node_is_in_the_thread_of_its_body(testing: TestingApp) -> None:
    """So that what a context manager holds for a thread, a span or a session, it holds for the body."""
    threads: list[int] = []

    def note(self: Any, name: str) -> None:
        threads.append(threading.get_ident())

    @contextlib.contextmanager
    def around_step(self: Any, name: str) -> Iterator[None]:
        note(self, name)
        yield
        note(self, name)

    class Flow(Workflow):
        @step
        def only(self) -> None:
            note(self, "only")

    flow = hooked(Flow, [], before_step=note, around_step=around_step, after_step=note)
    run = testing.start(flow)
    testing.speedrun(run)
    assert (state(run), len(threads), len(set(threads))) == ("finished", 5, 1)


def test_a_subclass_may_go_on_with_the_hook_of_its_parent(testing: TestingApp) -> None:
    seen: list[str] = []
    parent = hooked(one_node(lambda self: None), seen)

    class Child(parent, name="child"):  # type: ignore[misc,call-arg,valid-type]
        def before_step(self, name: str) -> None:
            seen.append(f"the child's {name}")
            super().before_step(name)

    run = testing.start(Child)
    testing.speedrun(run)
    assert seen[1:3] == ["the child's work", "before work"]


@both_kinds
def test_hooks_are_called_around_a_job_too(testing: TestingApp, is_async: bool) -> None:
    seen: list[str] = []

    @step(id="job")
    def job() -> None:
        seen.append("job")

    @step(id="job")
    async def ajob() -> None:
        seen.append("job")

    class Flow(Workflow):
        work = step(job=ajob if is_async else job)

    run = testing.start(hooked(Flow, seen))
    testing.speedrun(run)
    assert seen == around("work", "job")


def test_a_hook_reads_the_fields_the_hero_and_the_run(testing: TestingApp) -> None:
    seen: list[Any] = []

    class Flow(Workflow):
        order_id: int

        def before_step_starts(self, name: str) -> None:
            seen.append((self.order_id, self.hero.id, self.run.id, self.ctx.attempt))

        @step
        def work(self) -> None: ...

    testing.include(Flow)
    run = testing.options(hero=("User", 9)).start(Flow, order_id=3)
    testing.speedrun(run)
    assert seen == [(3, "9", run.id, 1)]


# -- Suppressing -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def suppressing(self: Any, name: str) -> Iterator[None]:
    with contextlib.suppress(BaseException):
        yield


@contextlib.asynccontextmanager
async def asuppressing(self: Any, name: str) -> AsyncIterator[None]:
    with contextlib.suppress(BaseException):
        yield


both_managers = pytest.mark.parametrize(
    "around_step", [suppressing, asuppressing], ids=["around is def", "around is async def"]
)


@both_kinds
@both_managers
def test_a_node_whose_exception_is_suppressed_completes_with_none(
    testing: TestingApp, is_async: bool, around_step: Any
) -> None:
    seen: list[str] = []

    def body(self: Any) -> None:
        raise LookupError("in the body")

    run = testing.start(hooked(one_node(body, is_async), seen, around_step=around_step))
    testing.speedrun(run)
    assert (state(run), attempts(run)) == ("finished", [("completed", "success")])
    assert last(run).stored_result == "null"
    assert "after work" not in seen  # its body has not returned
    assert "after after" in seen


@both_kinds
@both_managers
def test_a_signal_cannot_be_suppressed(testing: TestingApp, is_async: bool, around_step: Any) -> None:
    flow = hooked(one_node(lambda self: self.skip(), is_async), [], around_step=around_step)
    run = testing.start(flow)
    testing.speedrun(run)
    assert attempts(run) == [("skipped", "skipped_by_flow_control")]


@both_kinds
def test_around_step_must_return_a_context_manager(testing: TestingApp, is_async: bool) -> None:
    flow = hooked(one_node(lambda self: None, is_async), [], around_step=lambda self, name: None)
    run = testing.start(flow)
    testing.speedrun(run)
    assert state(run) == "paused"
    assert_error(run, TypeError, "around_step returned NoneType, not a context manager")


@both_kinds
def test_around_step_that_does_not_yield_fails_the_node(testing: TestingApp, is_async: bool) -> None:
    @contextlib.contextmanager
    def around_step(self: Any, name: str) -> Iterator[None]:
        if name == "":
            yield

    seen: list[str] = []
    flow = hooked(one_node(lambda self: seen.append("body"), is_async), [], around_step=around_step)
    run = testing.start(flow)
    testing.speedrun(run)
    assert (state(run), seen) == ("paused", [])
    assert_error(run, RuntimeError, "generator didn't yield")


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_that_is_a_generator_is_refused_when_the_class_is_made(hook: str) -> None:
    def forgotten(self: Any, name: str) -> Iterator[None]:
        yield

    async def aforgotten(self: Any, name: str) -> AsyncIterator[None]:
        yield

    for function in (forgotten, aforgotten):
        with pytest.raises(DefinitionError, match=f"Flow.{hook} is a generator function"):

            class Flow(Workflow):
                locals()[hook] = function

                @step
                def work(self) -> None: ...


def test_around_step_that_is_a_coroutine_function_is_refused_when_the_class_is_made() -> None:
    with pytest.raises(DefinitionError, match="around_step is a coroutine function"):

        class Flow(Workflow):
            async def around_step(self, name: str) -> None: ...  # type: ignore[override]

            @step
            def work(self) -> None: ...
