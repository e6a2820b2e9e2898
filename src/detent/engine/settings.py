"""How an app is set up, and how a run is started."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any

from ..clock import Clock, SystemClock
from ..context import Context
from ..errors import ConfigurationError
from ..kernel.model import Attribute
from ..kernel.policies import DEFAULT_MAX_RECOVERIES
from ..serialization import DEFAULT_MAX_PAYLOAD, Transform

DEFAULT_QUEUE = "default"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How an app is set up; every field is a keyword of `App(...)`."""

    queues: Sequence[str] = (DEFAULT_QUEUE,)
    concurrency: int = 100
    migrate: bool | None = None  # None: SQLite creates its tables, servers do not
    lease: timedelta = timedelta(seconds=30)
    grace: timedelta = timedelta(seconds=10)
    patience: timedelta = timedelta(seconds=30)
    max_recoveries: int = DEFAULT_MAX_RECOVERIES
    max_payload: int = DEFAULT_MAX_PAYLOAD
    pool_size: int = 10
    transform: Transform | None = None
    on_error: Callable[[BaseException, Context], None] | None = None
    missing_after: timedelta = timedelta(minutes=1)
    retention: timedelta | None = None  # None: what is over stays
    clock: Clock = field(default_factory=SystemClock)

    def __post_init__(self) -> None:
        if isinstance(self.queues, str):
            raise ConfigurationError(
                f"queues={self.queues!r}: give a list of names; for a single queue write [{self.queues!r}]"
            )
        if not self.queues or any(not name or not isinstance(name, str) for name in self.queues):
            raise ConfigurationError(f"queues={self.queues!r}: give at least one name")
        for name in ("concurrency", "pool_size", "max_payload"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name}={getattr(self, name)}: must be at least 1")
        if self.lease < timedelta(seconds=2):
            raise ConfigurationError(f"lease={self.lease}: must be at least 2 seconds")
        if self.retention is not None:
            check_age("retention", self.retention)


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a run is started; see `app.options`."""

    id: str | None = None
    delay: timedelta | float | None = None
    queue: str | None = None
    priority: int | None = None
    hero: Any = None
    allow_multiple: bool = False
    deadline: timedelta | datetime | None = None
    attributes: Mapping[str, Attribute] | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The options that differ from their defaults, by name."""
        return {one.name: getattr(self, one.name) for one in fields(self) if self._is_given(one)}

    def _is_given(self, one: Field[Any]) -> bool:
        return getattr(self, one.name) is not one.default


def check_age(name: str, age: Any) -> timedelta:
    """How long ago a run must have ended to be removed."""
    if not isinstance(age, timedelta) or age < timedelta(0):
        raise ConfigurationError(f"{name}={age!r}: give a timedelta, how long runs are kept after their end")
    return age
