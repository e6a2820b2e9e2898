"""Settings of an app, and options of a run and of a schedule."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict

import msgspec
from msgspec.structs import force_setattr

from ..arguments import (
    check_age,
    check_choice,
    check_count,
    check_deadline,
    check_duration,
    check_flag,
    check_function,
    check_positive_duration,
    check_priority,
    check_queue,
    check_queues,
    check_run_id,
    refuse,
    refuse_unknown,
)
from ..clock import Clock, SystemClock
from ..definitions.context import Context
from ..errors import ConfigurationError
from ..kernel.policies import DEFAULT_MAX_RECOVERIES
from ..kernel.queues import NO_LIMITS, Limits, Queue, check_queue_key
from ..kernel.rows import Attribute
from ..kernel.start_keys import Debounce, check_start_key
from ..kernel.versions import check_version
from ..keywords import defaults_of_fields
from ..serialization.codec import DEFAULT_MAX_PAYLOAD, Transform
from .attributes import checked_attributes

DEFAULT_QUEUE = "default"
SHORTEST_LEASE = timedelta(seconds=2)
APP = "App()"
OPTIONS = "app.options()"
# Names of fields, or a function of a path and a value that returns what is shown.
PayloadMask = Collection[str] | Callable[[tuple[str | int, ...], Any], Any]


class CommonSettings(TypedDict, total=False):
    """The keywords of `App(...)`, `AsyncApp(...)` and `TestingApp(...)`."""

    queues: Sequence[str | Queue]
    concurrency: int
    migrate: bool | None
    lease: timedelta | float
    grace: timedelta | float
    patience: timedelta | float
    max_recoveries: int
    max_payload: int
    pool_size: int
    transform: Transform | None
    on_drift: Literal["pause", "warn"]
    on_error: Callable[[BaseException, Context], None] | None
    missing_after: timedelta | float
    retention: timedelta | None
    version: str | None
    mask: PayloadMask | None


class AppSettings(CommonSettings, total=False):
    """The keywords of `App(...)` and `AsyncApp(...)`; a test moves the clock of a TestingApp."""

    clock: Clock


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an app; every field is a keyword of `App(...)`.

    A duration may be given as a number of seconds; it is kept as a timedelta.
    """

    queues: Sequence[str | Queue] = (DEFAULT_QUEUE,)
    concurrency: int = 100
    migrate: bool | None = None  # None: SQLite creates its tables, servers do not
    lease: timedelta = timedelta(seconds=30)
    grace: timedelta = timedelta(seconds=10)
    patience: timedelta = timedelta(seconds=30)
    max_recoveries: int = DEFAULT_MAX_RECOVERIES
    max_payload: int = DEFAULT_MAX_PAYLOAD
    pool_size: int = 10
    transform: Transform | None = None
    on_drift: Literal["pause", "warn"] = "pause"  # a replay that asks for other arguments than recorded
    on_error: Callable[[BaseException, Context], None] | None = None
    missing_after: timedelta = timedelta(minutes=1)
    retention: timedelta | None = None  # None: what is over stays
    version: str | None = None  # of the code; None: a hash of what the app includes
    mask: PayloadMask | None = None  # payload fields that no dashboard of the app shows
    clock: Clock = msgspec.field(default_factory=SystemClock)

    def __post_init__(self) -> None:
        changed: dict[str, Any] = {"queues": _checked_queues(self.queues)}
        for name in ("concurrency", "pool_size", "max_payload"):
            check_count(APP, name, getattr(self, name))
        check_count(APP, "max_recoveries", self.max_recoveries, least=0, example=5)
        check_choice(APP, "on_drift", self.on_drift, ("pause", "warn"))
        changed["lease"] = check_duration(APP, "lease", self.lease, least=SHORTEST_LEASE)
        for name in ("grace", "patience", "missing_after"):
            changed[name] = check_duration(APP, name, getattr(self, name))
        if self.retention is not None:
            check_age(APP, "retention", self.retention)
        if self.version is not None:
            check_version(APP, "version", self.version)
        if self.mask is not None:
            check_mask(APP, self.mask)
        if self.migrate is not None:
            check_flag(APP, "migrate", self.migrate)
        if self.on_error is not None:
            check_function(APP, "on_error", self.on_error, takes="the exception and the Context")
        for name, parts in (("transform", ("encode", "decode")), ("clock", ("now", "wait"))):
            value = getattr(self, name)
            if value is not None and not all(callable(getattr(value, part, None)) for part in parts):
                refuse(APP, name, value, f"give an object with the methods {' and '.join(parts)}")
        for name, value in changed.items():
            force_setattr(self, name, value)

    @property
    def queue_names(self) -> tuple[str, ...]:
        """The names of the queues, in order; the first one is the default."""
        return tuple(queue.name if isinstance(queue, Queue) else queue for queue in self.queues)

    @property
    def limits(self) -> dict[str, Limits]:
        """The limits that the code declares, by queue."""
        return {
            name: queue.limits if isinstance(queue, Queue) else NO_LIMITS
            for name, queue in zip(self.queue_names, self.queues, strict=True)
        }


def check_mask(where: str, value: Any) -> None:
    """Names of fields that are hidden, or a function that says what is shown."""
    if callable(value):
        return
    names = list(value) if isinstance(value, Collection) and not isinstance(value, str) else [None]
    if not all(isinstance(name, str) and name for name in names):
        refuse(where, "mask", value, 'give names of fields, for example mask=["card_number"], or a function')


def _checked_queues(value: Any) -> tuple[str | Queue, ...]:
    """The queues of an app: names, or `Queue` objects with limits."""
    if isinstance(value, str | Queue) or not isinstance(value, Collection):
        return check_queues(APP, value)  # which refuses it
    names = [queue.name if isinstance(queue, Queue) else queue for queue in value]
    check_queues(APP, names)
    twice = [name for name in names if names.count(name) > 1]
    if twice and any(isinstance(queue, Queue) for queue in value):
        refuse(APP, "queues", value, f"{twice[0]!r} is in it more than once; declare each queue once")
    return tuple(value)


def checked_url(url: Any) -> str:
    """The address of a database, as a text; the store looks at the rest."""
    example = "for example App('sqlite:///shop.db')"
    if url is None:
        refuse(APP, "url", url, f"is its environment variable set? Give a URL, {example}")
    if not isinstance(url, str) or not url.strip():
        refuse(APP, "url", url, f"give the URL of a database, {example}")
    return url


APP_DEFAULTS = {**defaults_of_fields(Settings), "clock": ...}  # each app makes its own clock


def checked_settings(given: Mapping[str, Any]) -> Settings:
    """The settings of an app, from its keywords."""
    refuse_unknown(APP, given, ["include", *APP_DEFAULTS], kind="setting")
    return Settings(**given)


class StartOptions(TypedDict, total=False):
    """The keywords of `app.options(...)`."""

    id: str | None
    delay: timedelta | float | None
    queue: str | None
    key: str | None
    priority: int | None
    hero: Any
    allow_multiple: bool
    deadline: timedelta | datetime | float | None
    attributes: Mapping[str, Attribute] | None
    debounce: Debounce | None
    dedup_key: str | None
    within: timedelta | float | None


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a run; see `app.options`."""

    id: str | None = None
    delay: timedelta | float | None = None
    queue: str | None = None
    key: str | None = None
    priority: int | None = None
    hero: Any = None
    allow_multiple: bool = False
    deadline: timedelta | datetime | float | None = None
    attributes: Mapping[str, Attribute] | None = None
    debounce: Debounce | None = None
    dedup_key: str | None = None
    within: timedelta | float | None = None

    def __post_init__(self) -> None:
        if self.id is not None:
            check_run_id(OPTIONS, "id", self.id)
        if self.delay is not None:
            check_duration(OPTIONS, "delay", self.delay)
        if self.queue is not None:
            check_queue(OPTIONS, "queue", self.queue)
        if self.key is not None:
            check_queue_key(OPTIONS, self.key)
        if self.priority is not None:
            check_priority(OPTIONS, self.priority)
        if self.deadline is not None:
            check_deadline(OPTIONS, "deadline", self.deadline)
        if self.attributes is not None:
            force_setattr(self, "attributes", checked_attributes(OPTIONS, self.attributes))
        if not isinstance(self.allow_multiple, bool):
            check_flag(OPTIONS, "allow_multiple", self.allow_multiple)
        if self.debounce is not None or self.dedup_key is not None or self.within is not None:
            self._check_keys()

    def _check_keys(self) -> None:
        """Check `debounce`, or `dedup_key` with `within`."""
        if self.debounce is not None and not isinstance(self.debounce, Debounce):
            refuse(OPTIONS, "debounce", self.debounce, "give detent.Debounce('user-7', wait=5)")
        if self.dedup_key is not None:
            check_start_key(OPTIONS, "dedup_key", self.dedup_key)
        if self.within is not None:
            check_positive_duration(OPTIONS, "within", self.within)
        if (self.dedup_key is None) != (self.within is None):
            hint = "dedup_key and within belong together: dedup_key='user-7', within=timedelta(hours=1)"
            refuse(OPTIONS, "within", self.within, hint)
        excluded = ("id", "delay", "dedup_key") if self.debounce is not None else ("id",)
        for name in excluded:
            if getattr(self, name) is not None:
                what = "debounce" if self.debounce is not None else "dedup_key"
                refuse(OPTIONS, name, getattr(self, name), f"it cannot be combined with {what}")

    @property
    def keyed(self) -> bool:
        """Whether a start with these options may belong to a run that exists."""
        return self.debounce is not None or self.dedup_key is not None

    def refuse_many(self) -> None:
        """Raise where several runs are to be started with a key that names one."""
        if self.keyed:
            what = "debounce" if self.debounce is not None else "dedup_key"
            raise ConfigurationError(f"{what} is for one run; start_many() starts several")

    @property
    def given(self) -> dict[str, Any]:
        """The options that differ from their defaults, by name."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: value for name, value in values.items() if value is not START_DEFAULTS[name]}


START_DEFAULTS = defaults_of_fields(Options)
NO_OPTIONS = Options()


def checked_options(given: Mapping[str, Any]) -> Options:
    """The options of a start, from its keywords."""
    if not given:
        return NO_OPTIONS
    refuse_unknown(OPTIONS, given, START_DEFAULTS, kind="option", instead=_INSTEAD)
    return Options(**given)


_INSTEAD = {
    "timeout": "use deadline=timedelta(hours=1) to limit the whole run, or @step(timeout=30) for one step",
}


Overlap = Literal["allow", "skip", "queue", "cancel"]
CatchUp = Literal["latest", "all", "none"]


class ScheduleKeywords(TypedDict, total=False):
    """The keywords of `app.schedule` and `app.schedules.create`."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any] | None
    cron: str | None
    every: timedelta | float | None
    tz: str
    jitter: timedelta | float
    overlap: Overlap
    catch_up: CatchUp
    queue: str | None
    priority: int | None
    deadline: timedelta | float | None
    attributes: Mapping[str, Attribute] | None


SCHEDULE_DEFAULTS: ScheduleKeywords = {
    "args": (),
    "kwargs": None,
    "cron": None,
    "every": None,
    "tz": "UTC",
    "jitter": 0,
    "overlap": "allow",
    "catch_up": "latest",
    "queue": None,
    "priority": None,
    "deadline": None,
    "attributes": None,
}
