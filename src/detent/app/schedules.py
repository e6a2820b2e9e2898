"""`app.schedules`: schedules as operators see them, for sync code."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Self, Unpack

from ..kernel.schedules import ScheduleRow
from . import schedule_control as verbs
from .engine import Engine
from .run import Run
from .schedule_control import ScheduleFacts
from .settings import ScheduleKeywords
from .views import HistoryEvent


class Schedule(ScheduleFacts):
    """One schedule; its attributes are those of the last `refresh()`, and its verbs refresh it.

    schedule = app.schedules["nightly-report"]
    print(schedule.state, schedule.next(3))
    """

    def __init__(self, engine: Engine, row: ScheduleRow) -> None:
        self._engine = engine
        self._row = row

    def refresh(self) -> Self:
        """Read it again."""
        self._row = verbs.find(self._engine, self.name)
        return self

    def pause(self, *, reason: str | None = None) -> None:
        """Stop firing until `resume()`.  Runs that were started continue."""
        self._row = verbs.pause(self._engine, self.name, reason)

    def resume(self) -> None:
        """Fire again, from now on.  Firings that fell into the pause do not happen."""
        self._row = verbs.resume(self._engine, self.name)

    def change(self, **terms: Unpack[ScheduleKeywords]) -> None:
        """Change a schedule that was made at run time; what is not given stays as it is.

            app.schedules["poll"].change(every=timedelta(minutes=10))

        `cron` replaces `every`, and the other way round.  Its counts, its history and its last run stay.  A
        schedule that the code declares is only changed there: `InvalidScheduleState`.
        """
        self._row = verbs.change(self._engine, self.name, terms)

    def trigger(self) -> Run[Any]:
        """Start a run now, beside the firings of the schedule; also while it is paused."""
        return Run(self._engine, verbs.trigger(self._engine, self.name))

    def backfill(self, start: datetime, end: datetime) -> list[Run[Any]]:
        """Start the runs of all firings from `start` up to but without `end` that do not exist yet.

        They begin at once and beside each other; `overlap` does not apply.  Returns the runs that it started.
        """
        return [Run(self._engine, row) for row in verbs.backfill(self._engine, self.name, start, end)]

    def next(self, count: int = 1) -> list[datetime]:
        """The times of the next firings in UTC, without their jitter.

        Of a paused schedule: when it would fire if it were resumed now.
        """
        return self.refresh().upcoming(count)

    def delete(self) -> None:
        """Forget the schedule.  Its runs stay.  One that the code declares can only be removed there."""
        verbs.delete(self._engine, self.name)

    @property
    def last_run(self) -> Run[Any] | None:
        """The run that it started last, or the one that continues it; None if there is none any more."""
        run = self.refresh().last_run_id
        row = None if run is None else self._engine.store.find_current(run)
        return None if row is None else Run(self._engine, row)

    def history(self) -> list[HistoryEvent]:
        """What happened to the schedule: created, declared, paused, missed firings, removed."""
        return self._history()


class Schedules:
    """`app.schedules`: all schedules of the database, by name.

    app.schedules["nightly-report"].pause()
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getitem__(self, name: str) -> Schedule:
        return Schedule(self._engine, verbs.find(self._engine, name))

    def __iter__(self) -> Iterator[Schedule]:
        """All schedules in the order of their names, those of the code and those made at run time."""
        for row in verbs.walk(self._engine):
            yield Schedule(self._engine, row)

    def create(self, name: str, definition: Any, **terms: Unpack[ScheduleKeywords]) -> Schedule:
        """Make a schedule at run time; the keywords are those of `app.schedule`.

        The same schedule twice is one.  Another one of that name is `ScheduleConflict`.
        """
        one = verbs.declaration("app.schedules.create()", self._engine, name, definition, **terms)
        return Schedule(self._engine, verbs.create(self._engine, one))
