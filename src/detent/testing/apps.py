"""An app for tests: an in-memory database and virtual time."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, TypeVar, Unpack, overload

from ..app.app import App, Starter
from ..app.engine import Engine
from ..app.includes import collect
from ..app.run import Run
from ..app.settings import (
    SCHEDULE_DEFAULTS,
    START_DEFAULTS,
    CommonSettings,
    ScheduleKeywords,
    StartOptions,
    checked_options,
    checked_settings,
    checked_url,
)
from ..definitions.blueprint import Blueprint
from ..definitions.deciders import Decider, is_decider
from ..errors import DetentError, UnknownDefinition
from ..execution.registry import Registry
from ..kernel.decide import DECIDER
from ..kernel.rows import RunState
from ..keywords import shows
from ..stores.store import Store
from .clock import ManualClock, span_of_parts

PATIENCE = 60.0  # seconds of real time that a test's workflow may take between two steps
MOST_MOVES = 10_000  # moments to which a speedrun moves: timers and reattempts may be endless

In = TypeVar("In")
E = TypeVar("E")
R = TypeVar("R")


class TestingApp(App):
    """An app with virtual time, which passes only when a test moves the clock.

        run = app.start(fulfil, 42)      # it does not have to be included
        app.speedrun(run)                # two days pass at once
        assert run.result() == "receipt"

    `app.advance(hours=1)` moves the clock by an hour and runs everything that becomes due.  Deciders do
    not have to be included either: `app.execute(Order, Create(id="o-1"))`, then
    `app.speedrun(Order, "o-1")`.
    """

    __test__ = False  # not a test, whatever pytest thinks of the name

    def __init__(
        self,
        url: str = "sqlite:///:memory:",
        *,
        include: Any = (),
        clock: ManualClock | None = None,
        store: Store | None = None,
        **settings: Unpack[CommonSettings],
    ) -> None:
        self.clock = clock if clock is not None else ManualClock()
        settings.setdefault("migrate", True)
        checked = checked_settings({"clock": self.clock, **settings})
        self.engine = Engine(checked_url(url), Registry(collect(include)), checked, store)

    def include(self, *definitions: Any) -> None:
        """Serve more definitions."""
        served = collect(one for one in definitions if not self._serves(one))
        fresh = [one for one in served if isinstance(one, Blueprint) and one not in self.engine.registry]
        self.engine.registry.add(served)
        if fresh and self.engine.is_open:
            self.engine.save_graphs()
        if self.engine.worker is not None:
            self.engine.worker.projector.poke()

    def _serves(self, definition: Any) -> bool:
        """Whether it is a decider's class that is served already, perhaps as an object with arguments."""
        if not is_decider(definition):
            return False
        try:
            self.engine.registry.decider(definition)
        except UnknownDefinition:
            return False
        return True

    @shows(StartOptions, defaults=START_DEFAULTS)
    def options(self, **options: Unpack[StartOptions]) -> Starter:
        """How the next run is started; see `App.options`."""
        return _Including(self, checked_options(options))

    @shows(ScheduleKeywords, defaults=SCHEDULE_DEFAULTS)
    def schedule(self, name: str, definition: Any, **terms: Unpack[ScheduleKeywords]) -> None:
        """Declare a schedule; see `App.schedule`."""
        self._include(definition)
        super().schedule(name, definition, **terms)

    def execute(
        self, decider: type[Decider[Any, In, E, Any]], input: In, *, input_id: str | None = None
    ) -> list[E]:
        """Give an input to its instance; see `App.execute`."""
        self._include(decider)
        return super().execute(decider, input, input_id=input_id)

    def enqueue_input(
        self, decider: type[Decider[Any, In, Any, Any]], input: In, *, input_id: str | None = None
    ) -> bool:
        """Put an input into its instance's inbox; see `App.enqueue_input`."""
        self._include(decider)
        return super().enqueue_input(decider, input, input_id=input_id)

    def _include(self, definition: Any) -> None:
        if not isinstance(definition, str):
            self.include(definition)

    @overload
    def speedrun(self, run: Run[R]) -> Run[R]: ...
    @overload
    def speedrun(self, run: type[Decider[Any, Any, Any, Any]], instance: str) -> Run[Any]: ...
    def speedrun(self, run: Any, instance: str | None = None) -> Run[Any]:
        """Move the clock until the run has ended, is paused, or waits for input from the test.

        Takes a run, or a decider and its instance.  If it keeps waiting without an end, speedrun raises an
        error after 10,000 waits, which names the node.
        """
        found: Run[Any] = run if instance is None else self._run_of(run, instance)
        moves = 0
        while True:
            self._settle_down(found)
            found.refresh()
            current = found if found.continued_as is None else found.current()
            waits = current.row.state == RunState.READY and self._next_due() is not None
            due = self._next_moment() if waits else None
            if due is None:
                self.engine.sweep()
                return found
            moves += 1
            if moves > MOST_MOVES:
                raise DetentError(f"the run has not ended after {MOST_MOVES} waits{_by(found)}")
            self._move(due)

    def _run_of(self, decider: Any, instance: str) -> Run[Any]:
        return self.run(self.engine.registry.decider(decider).run_id(instance))

    def advance(self, span: timedelta | float = 0, **parts: float) -> None:
        """Move the clock, `advance(hours=2)`, and run everything that becomes due, in its order."""
        goal = self.clock.now() + span_of_parts("app.advance()", span, parts)
        self.settle_down()
        due = self._next_moment()
        while due is not None and self.clock.now() < due <= goal:
            self._move(due)
            self.settle_down()
            due = self._next_moment()
        self._move(goal)
        self.settle_down()
        self.engine.sweep()

    def _next_due(self) -> int | None:
        """When something happens by itself: a timer is due, or a deadline passes."""
        moments = (self.engine.store.next_due(), self.engine.store.next_deadline())
        return min((moment for moment in moments if moment is not None), default=None)

    def _next_moment(self) -> int | None:
        """The same, and when a schedule fires."""
        worker = self.engine.worker
        fires = None if worker is None else self.engine.store.next_schedule(worker.scheduler.served())
        moments = (self._next_due(), fires)
        return min((moment for moment in moments if moment is not None), default=None)

    def _move(self, moment: int) -> None:
        self.clock.move_to(moment)
        self.poke()

    def settle_down(self) -> None:
        """Wait until everything that can run has run."""
        self._settle_down(None)

    def _settle_down(self, run: Run[Any] | None) -> None:
        worker = self.engine.worker
        if worker is None:
            raise DetentError("the app is not open: use `with app:`, or the fixture detent_app")
        deadline = time.monotonic() + PATIENCE
        while not worker.settled_down():
            if time.monotonic() > deadline:
                raise DetentError(f"the app did not become idle within {PATIENCE:g} s of real time{_by(run)}")
            time.sleep(0.0005)
        self.engine.observer.flush(PATIENCE)  # so that a test may look at what subscribers received

    def poke(self) -> None:
        """Make the worker check for due work."""
        if self.engine.worker is not None:
            self.engine.worker.poke()


def _by(run: Run[Any] | None) -> str:
    """What a run that never comes to rest is doing, for the end of a message."""
    if run is None:
        return ""
    if run.row.kind == DECIDER:
        return f": {run.id} keeps setting timers; use app.advance(hours=1)"
    latest = max(run.executions(), key=lambda item: item.attempt, default=None)
    what = f"{latest.node!r} is at attempt {latest.attempt}" if latest is not None else "it waits"
    return f": in run {run.id} of {run.type}, {what}"


class _Including(Starter):
    """Starts whatever is given: a test need not say beforehand what it serves."""

    _app: TestingApp

    def _start_one(self, definition: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Run[Any]:
        self._app._include(definition)
        return super()._start_one(definition, args, kwargs)

    def _start_each(self, definition: Any, calls: Iterable[tuple[Any, ...]]) -> list[Run[Any]]:
        self._app._include(definition)
        return super()._start_each(definition, calls)
