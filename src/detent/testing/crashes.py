"""crash_everywhere: crash a workflow at every commit, and check that the outcome is the same."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ..app.run import Run
from ..definitions.deciders import is_decider
from ..definitions.graphs import job_name
from ..execution.failures import describe
from ..stores.driver import Driver
from ..stores.sqlite.driver import SqliteDriver
from .apps import TestingApp
from .clock import ManualClock
from .crashing_store import END, CrashingStore, Point, crashing, points_of
from .decider_crashes import DeciderTrial


class WorkflowNotCrashSafe(AssertionError):
    """The outcome of a workflow changes with a crash; the message lists the points.

    with pytest.raises(WorkflowNotCrashSafe):
        crash_everywhere(writes_outside_of_steps, 42)
    """


def crash_everywhere(
    workflow: Any,
    *args: Any,
    with_: Callable[[Run[Any]], None] | None = None,
    include: Sequence[Any] = (),
    orders: int = 5,
    **kwargs: Any,
) -> int:
    """Run a workflow again for each commit, crash there, recover, and compare the outcome.

        crash_everywhere(fulfil, 42)
        crash_everywhere(approve, 7, with_=lambda run: run.send("approval", True))
        crash_everywhere(OrderWorkflow, order_id=7)     # also classes, graphs, templates
        crash_everywhere(Order, Create(id="o-1"), Pay(id="o-1"))    # a decider, and its inputs

    An async workflow runs `orders` more times, with its concurrent steps ending in other
    orders; each time it crashes at its end, and the replay must return what the first
    execution returned.

    Fails with the list of points where the result differs from a run without crashes, a
    recorded step ran again, or a transactional step committed twice.  For a decider, it
    compares the events of each instance and their order.  Returns the number of points.
    """
    trial: _Trial | DeciderTrial
    if is_decider(workflow):
        trial = DeciderTrial(workflow, args, include)
    else:
        trial = _Trial(workflow, args, kwargs, with_, include)
    expected, points = trial.undisturbed()
    wrong = []
    for point in points:
        outcome, twice = trial.crashing_at(point)
        if outcome != expected:
            wrong.append(f"{point}: the run ended with {outcome}, not with {expected}")
        wrong += [f"{point}: step {key!r} was recorded twice" for key in twice]
    if isinstance(trial, _Trial) and getattr(workflow, "is_async", False):
        wrong += [line for seed in range(orders) if (line := trial.shuffled(seed))]
    if wrong:
        lines = "\n  ".join(wrong)
        raise WorkflowNotCrashSafe(
            f"{_name(workflow)} is not safe at {len(wrong)} of {len(points)} points:\n  {lines}"
        )
    return len(points)


def _name(workflow: Any) -> str:
    return str(workflow.type) if is_decider(workflow) else job_name(workflow)


class _Trial:
    def __init__(
        self,
        workflow: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        with_: Callable[[Run[Any]], None] | None,
        include: Sequence[Any],
    ) -> None:
        self._workflow = workflow
        self._args = args
        self._kwargs = kwargs
        self._with = with_
        self._include = [workflow, *include]

    def undisturbed(self) -> tuple[str, list[Point]]:
        driver = SqliteDriver(":memory:")
        app = self._app(driver, ManualClock(), None)
        with app:
            run = self._begin(app)
            app.speedrun(run)
            outcome = _outcome(run)
            seen = list(crashing(app).seen)
        return outcome, points_of(seen)

    def crashing_at(self, point: Point) -> tuple[str, list[str]]:
        driver, clock = SqliteDriver(":memory:"), ManualClock()
        first = self._app(driver, clock, point)
        first.open(worker=True)
        return self._recovered(first, driver, clock)

    def _recovered(self, first: TestingApp, driver: Driver, clock: ManualClock) -> tuple[str, list[str]]:
        """Run until the crash, take over with another app, and return how the run ends."""
        run = self._begin(first)
        store = crashing(first)
        worker = first.engine.worker
        assert worker is not None
        self._run_until_dead(first, store)
        worker.crash()
        store.dead = True
        second = self._app(driver, clock, None)
        crashing(second).recorded = store.recorded
        with second:
            second.engine.store.reap(worker.id, max_recoveries=10, now=clock.now())
            second.poke()
            again = second.run(run.id)
            second.speedrun(again)
            return _outcome(again), crashing(second).twice

    def shuffled(self, seed: int) -> str | None:
        """Run with steps that end in another order, crash at the end, replay: what went wrong."""
        driver, clock = SqliteDriver(":memory:"), ManualClock()
        store = CrashingStore(driver, dialect="sqlite", point=END)
        app = TestingApp(clock=clock, include=self._include, store=store)
        app.open(worker=True)
        app.engine.services.shuffle = _shuffle(random.Random(seed))
        outcome, _ = self._recovered(app, driver, clock)
        if store.returned is None or outcome == f"the value {store.returned}":
            return None
        return f"steps in the order of seed {seed}: first the value {store.returned}, in a replay {outcome}"

    def _run_until_dead(self, app: TestingApp, store: CrashingStore) -> None:
        """Let time fly until the crash, or until the run is over without having met it."""
        worker = app.engine.worker
        while worker is not None and not store.crashed.wait(0.0005):
            if worker.settled_down():
                due = store.next_due()
                if due is None:
                    return
                app.clock.move_to(due)
                app.poke()

    def _app(self, driver: Driver, clock: ManualClock, point: Point | None) -> TestingApp:
        store = CrashingStore(driver, dialect="sqlite", point=point)
        return TestingApp(clock=clock, include=self._include, store=store)

    def _begin(self, app: TestingApp) -> Run[Any]:
        run = app.options(id="crash-everywhere").start(self._workflow, *self._args, **self._kwargs)
        if self._with is not None:
            # The outside world does not crash with the worker: it has a store of its own.
            outside = self._app(app.engine.store.driver, app.clock, None)
            self._with(outside.run(run.id))
            app.poke()
        return run


def _shuffle(chance: random.Random) -> Callable[[], Awaitable[None]]:
    async def wait() -> None:
        for _ in range(chance.randrange(20)):
            await asyncio.sleep(0)

    return wait


def _outcome(run: Run[Any]) -> str:
    """How a run ended, comparable."""
    row = run.current().row
    if row.state == "finished":
        return f"the value {row.result}"
    try:
        run.result(timeout=0)
    except Exception as error:
        stored = describe(error)
        return f"{row.state} ({stored.type}: {stored.message})"
    return str(row.state)
