"""What can be wrong with a schedule."""

from __future__ import annotations

from .facts import facts
from .roots import DetentError


class ScheduleError(DetentError):
    """Something about one schedule."""


@facts
class UnknownSchedule(ScheduleError):
    name: str

    def __str__(self) -> str:
        return f"there is no schedule {self.name!r} in this database; `detent schedules list` shows them"


@facts
class ScheduleConflict(ScheduleError):
    name: str
    source: str  # "code" or "run time"

    def __str__(self) -> str:
        if self.source == "code":
            return f"schedule {self.name!r} is declared in the code; change it there"
        return (
            f"there is another schedule {self.name!r} with other times or arguments; "
            f"delete it first, or choose another name"
        )


@facts
class InvalidScheduleState(ScheduleError):
    verb: str
    name: str
    state: str
    hint: str = ""

    def __str__(self) -> str:
        hint = f"; {self.hint}" if self.hint else ""
        return f"cannot {self.verb} schedule {self.name!r}: it is {self.state}{hint}"


@facts
class TooManyFirings(ScheduleError):
    name: str
    most: int

    def __str__(self) -> str:
        return f"schedule {self.name!r} fires more than {self.most} times in that time; backfill less at once"
