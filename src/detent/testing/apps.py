"""An app for tests: a database in memory, a clock moved by hand."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from ..app import App, Run, Starter
from ..engine import Engine, Options, Settings
from ..engine.including import collect
from ..errors import DetentError
from ..kernel.model import RunState
from ..stores.sql import SqlStore
from .clock import ManualClock

PATIENCE = 60.0  # seconds of real time that a test's workflow may take between two steps


class TestingApp(App):
    """An app whose time passes only when a test says so.

        run = app.start(fulfil, 42)      # what is started need not be included
        app.speedrun(run)                # two days pass at once
        assert run.result() == "receipt"

    `app.clock.advance(hours=1)` moves time by hand.
    """

    __test__ = False  # not a test, whatever pytest thinks of the name

    def __init__(
        self,
        url: str = "sqlite:///:memory:",
        *,
        include: Iterable[Any] = (),
        clock: ManualClock | None = None,
        store: SqlStore | None = None,
        **settings: Any,
    ) -> None:
        self.clock = clock if clock is not None else ManualClock()
        settings.setdefault("migrate", True)
        self.engine = Engine(url, include, Settings(clock=self.clock, **settings), store)

    def include(self, *definitions: Any) -> None:
        """Serve more definitions."""
        self.engine.registry.add(collect(definitions))

    def options(self, **options: Any) -> Starter:
        """How the next run is started; the keywords are those of `App.options`."""
        return _Including(self, Options(**options))

    def speedrun(self, run: Run[Any]) -> Run[Any]:
        """Let time fly until the run is over, paused, or waits for what only the test can give."""
        while True:
            self.settle_down()
            run.refresh()
            if run.row.state != RunState.READY:
                return run
            due = self.engine.store.next_due()
            if due is None:
                return run
            self.clock.move_to(due)
            self.poke()

    def settle_down(self) -> None:
        """Wait until nothing runs that does not wait for time or for others."""
        worker = self.engine.worker
        if worker is None:
            raise DetentError("the app is not open: use `with app:`, or the fixture detent_app")
        deadline = time.monotonic() + PATIENCE
        while not worker.settled_down():
            if time.monotonic() > deadline:
                raise DetentError(f"the workflow did not come to rest within {PATIENCE:g} s of real time")
            time.sleep(0.0005)

    def poke(self) -> None:
        """Tell the worker to look for due work."""
        if self.engine.worker is not None:
            self.engine.worker.poke()


class _Including(Starter):
    """Starts whatever is given: a test need not say beforehand what it serves."""

    _app: TestingApp

    def start(self, definition: Any, *args: Any, **kwargs: Any) -> Run[Any]:
        self._include(definition)
        return super().start(definition, *args, **kwargs)

    def start_many(self, definition: Any, calls: Iterable[tuple[Any, ...]]) -> list[Run[Any]]:
        self._include(definition)
        return super().start_many(definition, calls)

    def _include(self, definition: Any) -> None:
        if not isinstance(definition, str):
            self._app.include(definition)
