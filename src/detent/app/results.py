"""The results of many runs at once, for `app.results()`.

One caller waits for all of the runs.  A task, a future and a timer for each run would cost more than
the runs themselves.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from ..arguments import refuse
from ..clock import to_micros
from ..errors import ResultTimeout, RunNotFound
from ..kernel.rows import RunEnd, RunRow, RunState
from .outcomes import end_for_body
from .views import RunFacts, shown_state
from .waiters import Waiter, found

if TYPE_CHECKING:
    from .engine import Engine

RESULTS = "app.results()"
F = TypeVar("F", bound=RunFacts)


class Crowd:
    """The ends of many runs.  Calls `wake` once: when all ends are known, or one of them is an error.

    With `keep_errors` it waits for all ends.
    """

    def __init__(
        self,
        engine: Engine,
        runs: Sequence[RunFacts],
        wake: Callable[[], None],
        *,
        wait_paused: bool,
        keep_errors: bool,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.ends: dict[str, RunEnd | Exception] = {}
        self._engine = engine
        self._wake = wake
        self._keep_errors = keep_errors
        self._mutex = threading.Lock()  # runs end in several threads
        self._woken = False
        self._gave_up = False
        rows: dict[str, tuple[RunRow, bool]] = {}
        for run in runs:
            rows.setdefault(run.row.id, (run.row, run._fresh))
            run._fresh = False
        self._wanted = len(rows)
        waiters = engine.wait_for_all(rows.values(), self._told, wants_pauses=not wait_paused, loop=loop)
        self._waiters: dict[str, Waiter] = dict(zip(rows, waiters, strict=True))

    def close(self) -> None:
        """Wait no longer."""
        if self._gave_up or len(self.ends) < self._wanted:  # a waiter that was told waits no more
            self._engine.waiters.remove(*self._waiters.values())
        self._waiters.clear()  # they refer to us: without them, no cycle is left for the collector

    def give_up(self) -> None:
        """The time is over: look again, and note a ResultTimeout for runs that have not ended.

        Where it is raised, the first of them is enough.
        """
        self._gave_up = True
        late = [run_id for run_id in self._waiters if run_id not in self.ends]
        for run_id, end in self._engine.store.ends(late):  # (waiters have followed chains before)
            if RunState(end.state).final and end.continued_as is None:
                self.ends.setdefault(run_id, end)
        unserved: dict[tuple[str, str, str], str] = {}
        for run_id in late:
            if run_id not in self.ends:
                self.ends.setdefault(run_id, self._timeout(self._waiters[run_id], unserved))
                if not self._keep_errors:
                    return

    def _timeout(self, waiter: Waiter, unserved: dict[tuple[str, str, str], str]) -> Exception:
        try:
            row = self._engine.row(waiter.run_id)  # of a chain: the current run
        except RunNotFound as error:
            return error
        served = (row.kind, row.type, row.queue)
        if served not in unserved:
            unserved[served] = self._engine.waiters.why_unserved(waiter)
        return ResultTimeout(row.id, shown_state(row), unserved[served])

    def _told(self, waiter: Waiter, end: RunEnd) -> None:
        with self._mutex:
            self.ends[waiter.row.id] = end
            is_error = end.state != RunState.FINISHED and not self._keep_errors
            wakes = not self._woken and (is_error or len(self.ends) == self._wanted)
            self._woken = self._woken or wakes
        if wakes:
            self._wake()


def checked_runs(engine: Engine, runs: Any, kind: type[F]) -> list[F]:
    """The runs that are given to `app.results()`."""
    advice = "give the runs that app.start_many() or app.runs() returns"
    if isinstance(runs, str) or not isinstance(runs, Iterable):
        refuse(RESULTS, "runs", runs, advice)
    checked: list[F] = []
    for number, run in enumerate(runs):
        if not isinstance(run, kind):
            refuse(RESULTS, f"runs[{number}]", run, advice)
        if run._engine is not engine:
            refuse(RESULTS, f"runs[{number}]", run, "it belongs to another app; ask that app for its result")
        checked.append(run)
    return checked


def ends_for_body(engine: Engine, runs: Sequence[RunFacts], *, wait_paused: bool) -> dict[str, Any]:
    """The ends of runs that are over, in a transactional step, which must not wait for others."""
    return {run.id: end_for_body(engine.store, run.id, wants_pauses=not wait_paused) for run in runs}


def left_of(engine: Engine, seconds: float | None, begun: datetime | None) -> float | None:
    """How many of these seconds are left; None is without limit."""
    if seconds is None or begun is None:
        return None
    return max(0.0, seconds - (engine.clock.now() - to_micros(begun)) / 1e6)


def outcomes(
    runs: Sequence[RunFacts], ends: dict[str, RunEnd | Exception], *, return_exceptions: bool
) -> list[Any]:
    """The value of each run, in order.  Raises the first error that is known, or returns it in its place."""
    values: list[Any] = []
    for run in runs:
        run_id = run.id
        end = ends.get(run_id)
        if end is None:
            continue  # another run has failed, and its error is raised
        try:
            if isinstance(end, Exception):
                raise end
            values.append(run._ended(found(run_id, end)))
        except Exception as error:
            if not return_exceptions:
                raise
            values.append(error)
    return values
