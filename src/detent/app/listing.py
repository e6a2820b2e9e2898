"""Finding runs: checks filters, translates them for the store, and reads page by page.

    app.runs(type=fulfil, attributes={"customer": "acme"})
    app.runs.failed(after=yesterday, limit=10)
    for run in app.runs.each(state="paused"): ...

The order is newest first.  `cursor=` continues exactly after a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Generic, TypedDict, TypeVar, Unpack

import msgspec

from ..arguments import (
    check_choice,
    check_count,
    check_duration,
    check_moment,
    check_stored_id,
    check_text,
    refuse,
    refuse_unknown,
)
from ..clock import span_micros, to_micros
from ..definitions.deciders import is_decider
from ..definitions.graphs import plan_of
from ..errors import RunNotFound
from ..kernel.rows import DRIFTED, Attribute, RunRow, RunState
from ..stores.verbs.listing import Wanted
from .attributes import checked_attributes
from .engine import Engine
from .views import RunFacts, cursor_of, id_of, place_of

DEFAULT_LIMIT = 50
PAGE = 200  # runs that are read at a time when all of them are walked over
ACTIVE = "active"  # not final: ready, performing or paused
STATES = (*map(str, RunState), ACTIVE)
RUNS = "app.runs()"

Answer = TypeVar("Answer")


class Filters(TypedDict, total=False):
    """The filters of a query; a run must match all of them."""

    type: Any  # a workflow's name, or the workflow
    hero: Any  # whatever app.options(hero=) takes
    queue: str | None
    parent: RunFacts | str | None
    after: datetime | None  # created then or later
    since: datetime | None  # the same as `after`
    before: datetime | None  # created earlier
    attributes: Mapping[str, Attribute] | None
    overdue: timedelta | float | None  # part of it has been due for longer, and no worker took it
    drifted: bool | None  # True: its code asked for other steps or arguments than recorded
    waiting: bool | None  # True: neither executed nor ready to be; it waits for something else
    on: str | None  # it waits for a message of that name
    cursor: RunFacts | str | None  # the run behind which to continue
    limit: int | None


class RunQueries(Generic[Answer]):
    """The queries of `app.runs`; with AsyncApp they are awaited."""

    def _answer(self, state: str | None, filters: Filters) -> Answer:
        raise NotImplementedError

    def __call__(self, *, state: str | None = None, **filters: Unpack[Filters]) -> Answer:
        """The newest runs that fit, at most `limit` (50)."""
        return self._answer(state, filters)

    def active(self, **filters: Unpack[Filters]) -> Answer:
        """Runs that have not ended."""
        return self._answer(ACTIVE, filters)

    def ready(self, **filters: Unpack[Filters]) -> Answer:
        """Active runs that execute nothing now."""
        return self._answer(RunState.READY, filters)

    def performing(self, **filters: Unpack[Filters]) -> Answer:
        """Active runs that execute something now."""
        return self._answer(RunState.PERFORMING, filters)

    def paused(self, **filters: Unpack[Filters]) -> Answer:
        """Paused runs."""
        return self._answer(RunState.PAUSED, filters)

    def finished(self, **filters: Unpack[Filters]) -> Answer:
        """Runs that ended with a result."""
        return self._answer(RunState.FINISHED, filters)

    def failed(self, **filters: Unpack[Filters]) -> Answer:
        """Failed runs."""
        return self._answer(RunState.FAILED, filters)

    def canceled(self, **filters: Unpack[Filters]) -> Answer:
        """Canceled runs."""
        return self._answer(RunState.CANCELED, filters)

    def waiting(self, **filters: Unpack[Filters]) -> Answer:
        """Those that wait for a message, a time, children or another run; with `on=`, for that message."""
        return self._answer(RunState.READY, {**filters, "waiting": True})

    def drifted(self, *, state: str | None = None, **filters: Unpack[Filters]) -> Answer:
        """Runs whose code requested other steps or arguments than recorded, in any state or in this one."""
        return self._answer(state, {**filters, "drifted": True})


def find_runs(engine: Engine, state: str | None, filters: Filters) -> list[RunRow]:
    """One page."""
    limit = filters.get("limit")
    wanted = checked(engine, state, filters, DEFAULT_LIMIT if limit is None else limit)
    return _listed(engine, wanted, filters.get("cursor"))


class Walk:
    """All pages, one at a time; what begins meanwhile does not disturb it."""

    def __init__(self, engine: Engine, state: str | None, filters: Filters) -> None:
        self._engine = engine
        self._left = filters.get("limit")
        self._cursor = filters.get("cursor")
        self._wanted = checked(engine, state, filters, PAGE if self._left is None else self._left)
        self.over = False

    def next_page(self) -> list[RunRow]:
        """The next runs; `over` says whether these were the last."""
        size = PAGE if self._left is None else min(PAGE, self._left)
        rows = _listed(self._engine, msgspec.structs.replace(self._wanted, limit=size), self._cursor)
        if self._left is not None:
            self._left -= len(rows)
        self.over = len(rows) < size or self._left == 0
        if rows:
            self._cursor = cursor_of(rows[-1])
        return rows


def _listed(engine: Engine, wanted: Wanted, cursor: RunFacts | str | None) -> list[RunRow]:
    _ = engine.services  # open
    wanted = msgspec.structs.replace(wanted, beyond=_place(engine, cursor))
    return engine.store.runs(**{name: getattr(wanted, name) for name in Wanted.__struct_fields__})


def _place(engine: Engine, cursor: RunFacts | str | None) -> tuple[int, str] | None:
    """Where a page begins: behind a run, or behind where one was that is gone."""
    if cursor is None:
        return None
    if isinstance(cursor, RunFacts):
        return cursor.row.created_at, cursor.id
    try:
        row = engine.store.run(check_stored_id(RUNS, "cursor", cursor))
    except RunNotFound:
        place = place_of(cursor)
    else:
        return row.created_at, row.id
    if place is None:
        refuse(RUNS, "cursor", cursor, "it is neither a run's id nor its cursor; give the last run of a page")
    return place


# -- Checking what was asked -------------------------------------------------------------------------


def checked(engine: Engine, state: str | None, filters: Filters, limit: Any) -> Wanted:
    """What the store is asked; ConfigurationError where it makes no sense."""
    refuse_unknown(RUNS, filters, ["state", *Filters.__annotations__], kind="filter")
    if state is not None:
        check_choice(RUNS, "state", state, STATES)
    check_count(RUNS, "limit", limit)
    cursor = filters.get("cursor")
    if not isinstance(cursor, RunFacts | str | None):
        refuse(RUNS, "cursor", cursor, "pass a run, its id, or its cursor: cursor=runs[-1]")
    hero = engine.heroes.name(filters.get("hero")) or (None, None)
    return Wanted(
        limit=limit,
        state=None if state is None else str(state),
        type=_type(filters.get("type")),
        hero_type=_hero(hero[0]),
        hero_id=_hero(hero[1]),
        queue=_text("queue", filters.get("queue")),
        parent=_parent(filters.get("parent")),
        after=_moment("after", _after(filters)),
        before=_moment("before", filters.get("before")),
        attributes=_drifted(filters.get("drifted")) | checked_attributes(RUNS, filters.get("attributes")),
        overdue=_overdue(engine, state, filters.get("overdue")),
        waiting=_waiting(filters.get("waiting")) or filters.get("on") is not None,
        on=_text("on", filters.get("on")),
    )


def _hero(given: str | None) -> str | None:
    """A part of a hero's name; unlike other names, it may end with a space."""
    if given is not None:
        check_text(RUNS, "hero", given.rstrip(" "), example="User")
    return given


def _type(given: Any) -> str | None:
    if given is None:
        return None
    if isinstance(given, str):
        name: Any = given
    elif is_decider(given):
        name = getattr(given, "type", None)
    else:
        name = getattr(plan_of(given) or given, "name", None)
    if not isinstance(name, str):
        refuse(RUNS, "type", given, "give a workflow, a decider, or its name, for example type='fulfil'")
    return check_text(RUNS, "type", name, example="fulfil")


def _text(name: str, given: Any) -> str | None:
    return None if given is None else check_text(RUNS, name, given, example="mail")


def _parent(given: Any) -> str | None:
    return None if given is None else id_of(RUNS, "parent", given)


def _after(filters: Filters) -> Any:
    after, since = filters.get("after"), filters.get("since")
    if after is not None and since is not None:
        refuse(RUNS, "since", since, "it means the same as `after`; give one of them")
    return since if after is None else after


def _moment(name: str, given: Any) -> int | None:
    return None if given is None else to_micros(check_moment(RUNS, name, given))


def _drifted(given: Any) -> dict[str, Attribute]:
    """The attribute of drifted runs; it comes first, so that its index leads: such runs are rare."""
    if given is not None and given is not True:
        refuse(RUNS, "drifted", given, "drifted=True finds the runs that drifted; omit it to find all")
    return {DRIFTED: True} if given else {}


def _waiting(given: Any) -> bool:
    if given is not None and given is not True:
        refuse(RUNS, "waiting", given, "waiting=True finds the runs that wait; leave it out to find all")
    return bool(given)


def _overdue(engine: Engine, state: str | None, given: Any) -> int | None:
    if given is None:
        return None
    span = check_duration(RUNS, "overdue", given)
    if state not in (None, ACTIVE, RunState.READY, RunState.PERFORMING):
        refuse(
            RUNS, "overdue", given, f"a run that is {state} is never overdue; omit state={str(state)!r} out"
        )
    return engine.clock.now() - span_micros(span)
