"""`app.schedules`, for asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, Self, Unpack

from ..app import schedule_control as verbs
from ..app.engine import Engine
from ..app.schedule_control import ScheduleFacts
from ..app.settings import ScheduleKeywords
from ..app.views import HistoryEvent
from ..kernel.schedules import ScheduleRow
from .run import AsyncRun
from .threads import in_thread


class AsyncSchedule(ScheduleFacts):
    """One schedule; see `detent.Schedule`.

    schedule = await app.schedules.get("nightly-report")
    print(await schedule.next(3))
    """

    def __init__(self, engine: Engine, row: ScheduleRow) -> None:
        self._engine = engine
        self._row = row

    async def refresh(self) -> Self:
        """See `Schedule.refresh`."""
        self._row = await in_thread(lambda: verbs.find(self._engine, self.name))
        return self

    async def pause(self, *, reason: str | None = None) -> None:
        """See `Schedule.pause`."""
        self._row = await in_thread(lambda: verbs.pause(self._engine, self.name, reason))

    async def resume(self) -> None:
        """See `Schedule.resume`."""
        self._row = await in_thread(lambda: verbs.resume(self._engine, self.name))

    async def change(self, **terms: Unpack[ScheduleKeywords]) -> None:
        """See `Schedule.change`."""
        self._row = await in_thread(lambda: verbs.change(self._engine, self.name, terms))

    async def trigger(self) -> AsyncRun[Any]:
        """See `Schedule.trigger`."""
        return AsyncRun(self._engine, await in_thread(lambda: verbs.trigger(self._engine, self.name)))

    async def backfill(self, start: datetime, end: datetime) -> list[AsyncRun[Any]]:
        """See `Schedule.backfill`."""
        rows = await in_thread(lambda: verbs.backfill(self._engine, self.name, start, end))
        return [AsyncRun(self._engine, row) for row in rows]

    async def next(self, count: int = 1) -> list[datetime]:
        """See `Schedule.next`."""
        return (await self.refresh()).upcoming(count)

    async def delete(self) -> None:
        """See `Schedule.delete`."""
        await in_thread(lambda: verbs.delete(self._engine, self.name))

    async def last_run(self) -> AsyncRun[Any] | None:
        """See `Schedule.last_run`."""
        run = (await self.refresh()).last_run_id
        if run is None:
            return None
        row = await in_thread(lambda: self._engine.store.find_current(run))
        return None if row is None else AsyncRun(self._engine, row)

    async def history(self) -> list[HistoryEvent]:
        """See `Schedule.history`."""
        return await in_thread(self._history)


class AsyncSchedules:
    """`app.schedules` for asyncio; see `App.schedules`.

    schedule = await app.schedules.get("nightly-report")
    await schedule.pause()
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def get(self, name: str) -> AsyncSchedule:
        """The schedule of that name."""
        return AsyncSchedule(self._engine, await in_thread(lambda: verbs.find(self._engine, name)))

    def __getitem__(self, name: str) -> AsyncScheduleVerbs:
        """The verbs of a schedule, without reading it first: `await app.schedules["poll"].pause()`."""
        return AsyncScheduleVerbs(self, name)

    async def __aiter__(self) -> AsyncIterator[AsyncSchedule]:
        for row in await in_thread(lambda: list(verbs.walk(self._engine))):
            yield AsyncSchedule(self._engine, row)

    async def create(self, name: str, definition: Any, **terms: Unpack[ScheduleKeywords]) -> AsyncSchedule:
        """Make a schedule at run time; see `detent.schedules.Schedules.create`."""
        one = verbs.declaration("app.schedules.create()", self._engine, name, definition, **terms)
        return AsyncSchedule(self._engine, await in_thread(lambda: verbs.create(self._engine, one)))


class AsyncScheduleVerbs:
    """What can be done with a schedule that was not read yet."""

    def __init__(self, schedules: AsyncSchedules, name: str) -> None:
        self._schedules = schedules
        self._name = name

    async def pause(self, *, reason: str | None = None) -> None:
        await (await self._schedules.get(self._name)).pause(reason=reason)

    async def resume(self) -> None:
        await (await self._schedules.get(self._name)).resume()

    async def change(self, **terms: Unpack[ScheduleKeywords]) -> None:
        await (await self._schedules.get(self._name)).change(**terms)

    async def trigger(self) -> AsyncRun[Any]:
        return await (await self._schedules.get(self._name)).trigger()

    async def backfill(self, start: datetime, end: datetime) -> list[AsyncRun[Any]]:
        return await (await self._schedules.get(self._name)).backfill(start, end)

    async def next(self, count: int = 1) -> list[datetime]:
        return await (await self._schedules.get(self._name)).next(count)

    async def delete(self) -> None:
        await (await self._schedules.get(self._name)).delete()
