"""Schedules, from outside: how they are declared, what is known of each, and an operator's verbs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Unpack, cast

from ..arguments import (
    check_attributes,
    check_choice,
    check_count,
    check_duration,
    check_moment,
    check_positive_duration,
    check_priority,
    check_queue,
    check_reason,
    check_text,
    refuse,
    refuse_unknown,
)
from ..clock import from_micros, span_micros, to_micros
from ..definitions.graphs import Graph
from ..errors import DefinitionError, TooManyFirings, UnknownSchedule
from ..execution.new_runs import Terms, begin
from ..kernel import schedules as rules
from ..kernel.external_changes import CreateSchedule, DeleteSchedule, PauseSchedule, ResumeSchedule
from ..kernel.rows import RunRow
from ..kernel.schedules import CODE, RUN_TIME, ScheduleRow, Timing
from ..serialization.codec import Codec
from ..serialization.decoders import decode
from ..stores.verbs.schedules import history_of
from .engine import Engine
from .firing import Declaration, RunTerms, start_of
from .settings import SCHEDULE_DEFAULTS, CatchUp, Overlap, ScheduleKeywords
from .starting import declared_queue, included
from .views import HistoryEvent, history_events

LONGEST_SCHEDULE_NAME = 170  # with the time behind it, it is the id of a run
MOST_BACKFILLED = 10_000
AT_ONCE = 100  # runs that one transaction of a backfill starts
PAGE = 500
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:\-]*")


def declaration(
    where: str, engine: Engine, name: str, definition: Any, **given: Unpack[ScheduleKeywords]
) -> Declaration:
    """Check what a schedule is asked to do."""
    check_schedule_name(where, name)
    refuse_unknown(where, given, SCHEDULE_DEFAULTS, kind="option")
    asked: dict[str, Any] = {**SCHEDULE_DEFAULTS, **given}
    timing = timing_of(where, engine.clock.now(), asked)
    args, kwargs = asked["args"], asked["kwargs"]
    if not isinstance(args, tuple | list):
        refuse(where, "args", args, "give the arguments of the run as a tuple, for example args=('eu',)")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        refuse(where, "kwargs", kwargs, "give a dict of arguments by name")
    queues = engine.settings.queue_names
    terms = _run_terms(where, queues, asked)
    if isinstance(definition, Graph):
        raise DefinitionError(
            f"{where} takes a workflow, a Workflow class or a template; a graph that is built in the code "
            f"cannot be found again by its name: make it a template"
        )
    startable = included(engine.registry, definition)

    def stored(codec: Codec) -> str:
        how = Terms(id="", queue=queues[0], priority=0, now=0, declared=queues)
        return begin(codec, startable, tuple(args), dict(kwargs or {}), how).runs[0].input

    text = stored(engine.codec)
    encrypted = engine.settings.transform is not None
    plain = stored(Codec(max_payload=engine.settings.max_payload)) if encrypted else text
    return Declaration(
        name=name, job=startable.name, input=text, plain_input=plain, timing=timing, terms=terms
    )


def _run_terms(where: str, queues: tuple[str, ...], asked: Mapping[str, Any]) -> RunTerms:
    """The options of the runs that the schedule starts."""
    terms = RunTerms()
    if asked["queue"] is not None:
        terms.queue = declared_queue(check_queue(where, "queue", asked["queue"]), queues)
    if asked["priority"] is not None:
        terms.priority = check_priority(where, asked["priority"])
    if asked["deadline"] is not None:
        terms.deadline = span_micros(check_positive_duration(where, "deadline", asked["deadline"]))
    if asked["attributes"] is not None:
        terms.attributes = check_attributes(where, asked["attributes"])
    return terms


def check_schedule_name(where: str, name: Any) -> str:
    check_text(where, "name", name, example="nightly-report", longest=LONGEST_SCHEDULE_NAME)
    if not _NAME.fullmatch(name):
        refuse(where, "name", name, "use letters, digits and any of -_.: as in 'nightly-report'")
    return str(name)


def timing_of(where: str, now: int, asked: Mapping[str, Any]) -> Timing:
    """Check when a schedule is to fire."""
    cron, every, tz, jitter = asked["cron"], asked["every"], asked["tz"], asked["jitter"]
    if (cron is None) == (every is None):
        refuse(where, "cron", cron, "give either cron='0 3 * * *' or every=timedelta(minutes=5)")
    micros = None
    if every is not None:
        micros = span_micros(check_positive_duration(where, "every", every))
        if micros % rules.SECOND:
            refuse(where, "every", every, "give whole seconds, at least one")
        if tz != "UTC":
            refuse(where, "tz", tz, "`every` means the same in every time zone; use cron for local times")
    else:
        check_text(where, "cron", cron, example="0 3 * * *")
    timing = Timing(
        cron=cron,
        every=micros,
        tz=check_text(where, "tz", tz, example="Europe/Paris"),
        jitter=span_micros(check_duration(where, "jitter", jitter)),
        overlap=check_choice(where, "overlap", asked["overlap"], rules.OVERLAPS),
        catch_up=check_choice(where, "catch_up", asked["catch_up"], rules.CATCH_UPS),
    )
    try:
        rules.check_timing(timing, now)
    except rules.BadTiming as error:
        value = {"cron": cron, "tz": tz}.get(error.argument, jitter)
        refuse(where, error.argument, value, str(error))
    return timing


# Verbs


def declare(engine: Engine, one: Declaration) -> None:
    """Add a declaration of the code; it is stored when a worker starts, or at once where one runs."""
    engine.declarations[one.name] = one
    if engine.worker is not None:
        engine.worker.scheduler.poke()


def store_new(engine: Engine) -> None:
    """Store declarations that no worker has stored yet, so that they can be listed and paused."""
    if engine.declarations:
        engine.control(
            lambda now: engine.store.declare_schedules(
                [one.row(CODE, now) for one in engine.declarations.values()],
                now=now,
                only_new=True,
            )
        )


def create(engine: Engine, one: Declaration) -> ScheduleRow:
    """Store a schedule that is made at run time."""
    engine.store.refuse_inside("app.schedules.create()")
    engine.control(lambda now: engine.store.change(CreateSchedule(one.row(RUN_TIME, now)), now=now))
    poke(engine)
    return find(engine, one.name)


def change(engine: Engine, name: str, given: ScheduleKeywords) -> ScheduleRow:
    """Change what a schedule that was made at run time is asked to do; what is not given stays."""
    where = "schedule.change()"
    engine.store.refuse_inside(where)
    refuse_unknown(where, given, ScheduleKeywords.__annotations__)
    if not given:
        refuse(where, "cron", None, "give what is to change, for example cron='0 4 * * *'")

    def changed(row: ScheduleRow, now: int) -> ScheduleRow:
        terms = _keywords(engine, row, given)
        terms.update(given)
        return declaration(where, engine, name, row.job, **terms).row(RUN_TIME, now)

    row: ScheduleRow = engine.control(
        lambda now: engine.store.change_schedule(name, lambda stored: changed(stored, now), now=now)
    )
    poke(engine)
    return row


def _keywords(engine: Engine, row: ScheduleRow, given: ScheduleKeywords) -> ScheduleKeywords:
    """The keywords that made a schedule, without those that `given` replaces."""
    when, terms = row.when, decode(row.terms, RunTerms)
    kept: ScheduleKeywords = {
        "jitter": timedelta(microseconds=when.jitter),
        "overlap": cast(Overlap, when.overlap),
        "catch_up": cast(CatchUp, when.catch_up),
        "queue": terms.queue,
        "priority": terms.priority,
        "deadline": None if terms.deadline is None else timedelta(microseconds=terms.deadline),
        "attributes": terms.attributes,
    }
    if given.get("every") is None and when.cron is not None:
        kept |= {"cron": when.cron, "tz": when.tz}
    if given.get("cron") is None and when.every is not None:
        kept["every"] = timedelta(microseconds=when.every)
    if "args" not in given and "kwargs" not in given:
        call = engine.codec.decode(row.input)
        kept |= {"args": call.get("args", ()), "kwargs": call.get("kwargs")}
    return kept


def poke(engine: Engine) -> None:
    if engine.worker is not None:
        engine.worker.scheduler.poke()


def find(engine: Engine, name: Any) -> ScheduleRow:
    """The schedule of that name."""
    check_text("app.schedules[]", "name", name, example="nightly-report")
    _ = engine.services
    row = engine.store.schedule(name)
    if row is None and name in engine.declarations:
        store_new(engine)
        row = engine.store.schedule(name)
    if row is None:
        raise UnknownSchedule(name)
    return row


def walk(engine: Engine) -> Iterator[ScheduleRow]:
    """All schedules in the order of their names."""
    _ = engine.services
    store_new(engine)
    after = ""
    while True:
        rows = engine.store.schedules(after=after, limit=PAGE)
        yield from rows
        if len(rows) < PAGE:
            return
        after = rows[-1].name


def pause(engine: Engine, name: str, reason: str | None) -> ScheduleRow:
    engine.store.refuse_inside("schedule.pause()")
    check_reason("schedule.pause()", reason)
    return engine.change(PauseSchedule(name, reason))


def resume(engine: Engine, name: str) -> ScheduleRow:
    engine.store.refuse_inside("schedule.resume()")
    row = engine.change(ResumeSchedule(name))
    poke(engine)
    return row


def delete(engine: Engine, name: str) -> None:
    engine.store.refuse_inside("schedule.delete()")
    engine.change(DeleteSchedule(name))


def trigger(engine: Engine, name: str) -> RunRow:
    """Start a run of the schedule now, beside its own firings."""
    engine.store.refuse_inside("schedule.trigger()")
    row = find(engine, name)
    nominal = engine.clock.now()
    if nominal % rules.SECOND == 0:
        nominal += 1  # the ids of whole seconds belong to the schedule's own firings
    while True:
        made = _begin(engine, row, [nominal], "triggered")
        if made:
            return engine.row(made[0])
        nominal += 1  # it was triggered twice in the same microsecond


def backfill(engine: Engine, name: str, start: Any, end: Any) -> list[RunRow]:
    """Start the runs of all firings from `start` up to but without `end` that do not exist yet."""
    engine.store.refuse_inside("schedule.backfill()")
    row = find(engine, name)
    times = _times(row, start, end)
    made: list[str] = []
    for place in range(0, len(times), AT_ONCE):
        made += _begin(engine, row, times[place : place + AT_ONCE], "backfilled")
    return [engine.row(id) for id in made]


def missing(engine: Engine, name: str, start: Any, end: Any) -> list[str]:
    """The ids of the runs that a backfill would start."""
    ids = [rules.run_id(name, time) for time in _times(find(engine, name), start, end)]
    known = engine.store.run_states(ids)
    return [id for id in ids if id not in known]


def _times(row: ScheduleRow, start: Any, end: Any) -> list[int]:
    where = "schedule.backfill()"
    begin, until = (to_micros(check_moment(where, *one)) for one in (("start", start), ("end", end)))
    times = list(islice(rules.times_between(row.when, begin, until), MOST_BACKFILLED + 1))
    if len(times) > MOST_BACKFILLED:
        raise TooManyFirings(row.name, MOST_BACKFILLED)
    return times


def _begin(engine: Engine, row: ScheduleRow, times: Sequence[int], verb: str) -> list[str]:
    services = engine.services
    made: list[str] = engine.control(
        lambda now: engine.store.begin_extra(
            row, times, start=lambda one, nominal: start_of(services, one, nominal), verb=verb, now=now
        )
    )
    if engine.worker is not None:
        engine.worker.poke()
    return made


def next_times(row: ScheduleRow, count: Any, now: int) -> list[datetime]:
    """When the schedule fires next, without its jitter."""
    check_count("schedule.next()", "count", count)
    if row.state == rules.REMOVED:
        return []
    first = row.next_for if row.state == rules.ACTIVE and row.next_for is not None else None
    after = now if first is None else first - 1
    return [from_micros(time) for time in islice(rules.upcoming(row.when, after), count)]


class ScheduleFacts:
    """What is known of a schedule without asking again; `Schedule` and `AsyncSchedule` share it."""

    _engine: Engine
    _row: ScheduleRow

    def __repr__(self) -> str:
        return f"<schedule {self.name} of {self.type}, {self.state}>"

    @property
    def name(self) -> str:
        """The name under which it is stored."""
        return self._row.name

    @property
    def type(self) -> str:
        """The name of the definition that it starts."""
        return self._row.job

    @property
    def source(self) -> str:
        """`code` if the code declares it, `run time` if it was made by `app.schedules.create`."""
        return self._row.source

    @property
    def state(self) -> str:
        """`active`, `paused`, or `removed`: the code no longer declares it."""
        return self._row.state

    @property
    def reason(self) -> str | None:
        """Why it was paused or removed."""
        return self._row.reason

    @property
    def cron(self) -> str | None:
        """The cron expression, if it has one."""
        return self._row.when.cron

    @property
    def every(self) -> timedelta | None:
        """The interval, if it has one."""
        micros = self._row.when.every
        return None if micros is None else timedelta(microseconds=micros)

    @property
    def tz(self) -> str:
        """The time zone of the cron expression."""
        return self._row.when.tz

    @property
    def jitter(self) -> timedelta:
        """The longest random delay of a firing."""
        return timedelta(microseconds=self._row.when.jitter)

    @property
    def overlap(self) -> str:
        """What happens if the last run has not ended: `allow`, `skip`, `queue` or `cancel`."""
        return self._row.when.overlap

    @property
    def catch_up(self) -> str:
        """What happens to firings that were missed: `latest`, `all` or `none`."""
        return self._row.when.catch_up

    @property
    def args(self) -> Any:
        """The arguments of its runs, as plain JSON values: {"args": [...], "kwargs": {...}}."""
        return self._engine.codec.decode(self._row.input)

    @property
    def fired(self) -> int:
        """How many runs it has started."""
        return self._row.fired

    @property
    def skipped(self) -> int:
        """How many firings did not happen because of `overlap`."""
        return self._row.skipped

    @property
    def waiting_for(self) -> datetime | None:
        """The time of a firing that waits for the end of the last run (overlap="queue")."""
        return None if self._row.queued_for is None else from_micros(self._row.queued_for)

    @property
    def last_run_id(self) -> str | None:
        """The id of the run that it started last."""
        return self._row.last_run

    @property
    def last_scheduled_for(self) -> datetime | None:
        """The time for which it fired last."""
        return None if self._row.last_for is None else from_micros(self._row.last_for)

    @property
    def error(self) -> str | None:
        """Why the latest firing could not start its run; it is tried again every minute."""
        return self._row.error

    def upcoming(self, count: int) -> list[datetime]:
        """The times of the next firings, as of the last `refresh()`."""
        return next_times(self._row, count, self._engine.clock.now())

    def _history(self) -> list[HistoryEvent]:
        return history_events(self._engine.store.history(history_of(self.name)))


def last_states(engine: Engine, rows: Sequence[ScheduleRow]) -> dict[str, str]:
    """The states of the last runs of schedules, by run id."""
    return engine.store.run_states([row.last_run for row in rows if row.last_run is not None])
