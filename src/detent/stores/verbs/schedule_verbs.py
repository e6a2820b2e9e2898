"""The verbs of schedules, each one transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ...kernel.schedules import ScheduleRow
from ..base_store import BaseStore
from . import schedules
from .schedules import Declared, Fired, Starter


class ScheduleVerbs(BaseStore):
    """What a store does for schedules."""

    def schedules(self, *, after: str = "", limit: int) -> list[ScheduleRow]:
        """Schedules in the order of their names, beyond a name."""
        with self._reading() as tx:
            return schedules.page(tx, after, limit)

    def schedule(self, name: str) -> ScheduleRow | None:
        with self._reading() as tx:
            return schedules.read(tx, name)

    def run_states(self, runs: Collection[str]) -> dict[str, str]:
        """The states of those of the runs that exist."""
        with self._reading() as tx:
            return schedules.run_states(tx, runs)

    def next_schedule(self, keys: Collection[str]) -> int | None:
        """When the next schedule is due that these keys serve."""
        with self._reading() as tx:
            return schedules.next_due(tx, keys)

    def change_schedule(
        self, name: str, changed: Callable[[ScheduleRow], ScheduleRow], *, now: int
    ) -> ScheduleRow:
        """Replace what a schedule was asked for; `changed` makes the new row from the stored one."""
        return self.write(lambda tx: schedules.change(tx, name, changed, now=now))

    def declare_schedules(
        self,
        rows: Sequence[ScheduleRow],
        *,
        now: int,
        rolled_back: Collection[str] = (),
        only_new: bool = False,
    ) -> Declared:
        """Store what the code declares; twice changes nothing."""
        return self.write(
            lambda tx: schedules.declare(tx, rows, now=now, rolled_back=rolled_back, only_new=only_new)
        )

    def see_schedules(self, declared: Collection[tuple[str, str]], *, now: int) -> None:
        """Note that a worker with these declarations is at work; twice does the same."""
        self.write(lambda tx: schedules.seen(tx, declared, now))

    def code_schedules(self, jobs: Collection[str]) -> dict[str, tuple[str, int]]:
        """The schedules of the code that start these jobs: fingerprints, and when each was last declared."""
        with self._reading() as tx:
            return schedules.code_schedules(tx, jobs)

    def remove_schedules(self, names: Collection[str], *, now: int) -> None:
        """Mark schedules that the code no longer declares as removed; twice does nothing."""
        self.write(lambda tx: schedules.remove(tx, names, now=now))

    def fire_schedules(self, keys: Collection[str], *, start: Starter, now: int) -> Fired:
        """Start what is due, and move the schedules on; twice starts nothing more."""
        return self._changing(lambda tx: schedules.fire(tx, keys, start=start, now=now))

    def begin_extra(
        self, row: ScheduleRow, times: Sequence[int], *, start: Starter, verb: str, now: int
    ) -> list[str]:
        """Start runs for these times, unless they exist; returns the ids of those that were started."""
        return self.write(lambda tx: schedules.begin_extra(tx, row, times, start, verb, now))
