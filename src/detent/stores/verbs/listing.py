"""Listing runs: newest first, page by page, by whatever is known of them.

The order is (created_at, id), the same on every page, so a page that begins beyond
the last run of the one before it leaves nothing out and shows nothing twice.

One of these leads, the first that is asked for, by an index that has this order:

    attributes            detent_attributes_value: the first of those given
    parent                detent_runs_parent
    hero                  detent_runs_heroes
    overdue, performing   what is due, what executes: sorted, as it is little
    state                 detent_runs_state; but not `finished`
    type                  detent_runs_type
    nothing of these      detent_runs_created

The rest are conditions on the runs that it meets, until there are `limit` of them.
`queue` and `finished` never lead: nearly all runs are finished, on one of few queues.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import field

from ...arguments import RESERVED
from ...kernel.rows import (
    DRIFTED,
    Attribute,
    ExecutionRow,
    ExecutionState,
    NewRun,
    RunRow,
    attribute_text,
    topic_of,
)
from ..driver import Tx, batch, rows_to, send
from ..sql.queries import HAS_ATTRIBUTE, HAS_OVERDUE, PARTS_OF_ACTIVE, STATES, Queries
from ..sql.statements import RUN_FIELDS
from .waiting import WAITING, WAITING_ON

_KINDS: dict[str, type[Attribute]] = {"text": str, "number": int, "flag": bool}
_COLUMNS = ("type", "queue", "parent", "hero_type", "hero_id")


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a listing asks for; None does not matter.  Times are microseconds."""

    limit: int
    state: str | None = None  # one of queries.STATES
    type: str | None = None
    queue: str | None = None
    parent: str | None = None
    hero_type: str | None = None
    hero_id: str | None = None
    after: int | None = None  # created then or later
    before: int | None = None  # created earlier
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    overdue: int | None = None  # an execution of it has been due since then or longer, and was not claimed
    waiting: bool = False  # it is neither executed nor ready to be
    on: str | None = None  # it waits for a message of that name
    beyond: tuple[int, str] | None = None  # created_at and id of the run where the page before ended

    @property
    def sorts(self) -> bool:
        """Whether no index has the order of this listing."""
        if self.attributes or self.parent is not None or self.hero_id is not None:
            return False
        return self.overdue is not None or self.state == "performing"


class Overdue(msgspec.Struct, frozen=True):
    """An execution that is due, and was not claimed."""

    run_id: str
    node: str
    job: str
    queue: str
    since: int


def runs(tx: Tx, wanted: Wanted) -> list[RunRow]:
    """The newest runs that fit, at most `limit`."""
    statement, params = listing(tx.driver.queries, wanted)
    return to_runs(tx.query(tx.driver.adapt(statement), **params))


def to_runs(rows: list[tuple[Any, ...]]) -> list[RunRow]:
    """Runs as they are read; their attributes come as one JSON text, with those of Detent itself."""
    found = []
    for row in rows:
        run = RunRow(**dict(zip(RUN_FIELDS, row, strict=True)))
        stored = _attributes(row[-1])
        run.attributes = {name: value for name, value in stored.items() if not name.startswith(RESERVED)}
        run.drifted = DRIFTED in stored
        found.append(run)
    return found


def _attributes(text: str | None) -> dict[str, Attribute]:
    if not text:
        return {}
    stored: dict[str, tuple[str, str]] = msgspec.json.decode(text)
    return {
        name: value == "true" if kind == "flag" else _KINDS[kind](value)
        for name, (kind, value) in sorted(stored.items())
    }


def attribute_rows(runs: Sequence[NewRun]) -> list[dict[str, Any]]:
    """The rows of what these runs are to be found by, in the order of their keys."""
    return [
        row
        for run in sorted((run for run in runs if run.attributes), key=lambda run: run.id)
        for row in attributes_of(run.id, run.attributes, run.created_at)
    ]


def attributes_of(run_id: str, attributes: Mapping[str, Attribute], created_at: int) -> list[dict[str, Any]]:
    """The rows of one run's attributes, in the order of their keys."""
    return [
        {
            "run_id": run_id,
            "name": name,
            "value": attribute_text(value),
            "kind": next(kind for kind, type in _KINDS.items() if type is _plain(value)),
            "created_at": created_at,
        }
        for name, value in sorted(attributes.items())
    ]


def mark_drifted(tx: Tx, runs: Iterable[str]) -> None:
    """Give these runs the attribute DRIFTED; a run that is marked already, or is removed, stays as it is."""
    ids = [{"id": run} for run in sorted(runs)]
    found = {row[0]: row[3] for row in tx.query(tx.sql.created_runs, rows=batch(ids))}
    marks = [
        row for run in sorted(found) for row in attributes_of(run, {DRIFTED: True}, created_at=found[run])
    ]
    if marks:
        send(tx, tx.driver.adapt(tx.driver.queries.insert_new_attributes), marks)


def _plain(value: Attribute) -> type:
    return bool if isinstance(value, bool) else int if isinstance(value, int) else str


def overdue(tx: Tx, runs: Sequence[str], *, due: int) -> list[Overdue]:
    """What of these runs has been due since then or longer, longest first."""
    asked = batch([{"run_id": run} for run in runs])
    statement = tx.driver.adapt(tx.driver.queries.overdue)
    return [Overdue(*row) for row in tx.query(statement, rows=asked, overdue=due)]


def executions(
    tx: Tx, runs: Sequence[str], *, states: Sequence[ExecutionState], queue: str | None
) -> list[ExecutionRow]:
    """The executions of these runs in these states, and on this queue, in no order."""
    named = ", ".join(f"'{ExecutionState(state).value}'" for state in states)
    statement = f"{tx.driver.queries.executions_of} WHERE e.state IN ({named})"
    params: dict[str, Any] = {"rows": batch([{"id": run} for run in runs])}
    if queue is not None:
        statement, params["queue"] = f"{statement} AND e.queue = :queue", queue
    return rows_to(ExecutionRow, tx.query(tx.driver.adapt(statement), **params))


def executing(tx: Tx) -> dict[str, int]:
    """How much each worker executes at this moment."""
    statement = tx.driver.adapt(tx.driver.queries.executing)
    return {row[0]: int(row[1]) for row in tx.query(statement)}


# -- Putting a listing together ----------------------------------------------------------------------


def listing(queries: Queries, wanted: Wanted) -> tuple[str, dict[str, Any]]:
    """The statement, and its parameters."""
    lead, order = _lead(queries, wanted)
    asked = list(_conditions(queries, wanted, lead))
    end = f"ORDER BY {order[0]} DESC, {order[1]} DESC LIMIT :limit"
    if wanted.state == "active" and lead == queries.by_state:
        parts = [_select(queries, lead, [state, *asked], end) for state in PARTS_OF_ACTIVE]
        both = " UNION ALL ".join(f"SELECT * FROM ({part}) AS p{n}" for n, part in enumerate(parts))
        statement = f"SELECT * FROM ({both}) AS r ORDER BY r.created_at DESC, r.id DESC LIMIT :limit"
    else:
        state = [STATES[wanted.state]] if wanted.state is not None else []
        select = _sorted if wanted.sorts else _select
        statement = select(queries, lead, [*state, *asked], end)
    return statement, _params(wanted)


def _lead(queries: Queries, wanted: Wanted) -> tuple[str, tuple[str, str]]:
    """Where a listing begins, and the columns of its order."""
    if wanted.attributes:
        return queries.by_attribute, ("a.created_at", "a.run_id")
    for asked, lead in (
        (wanted.parent is not None, queries.by_parent),
        (wanted.hero_id is not None, queries.by_hero),
        (wanted.overdue is not None, queries.by_overdue),
        (wanted.state == "performing", queries.by_executing),
        (wanted.state not in (None, "finished"), queries.by_state),
        (wanted.type is not None, queries.by_type),
    ):
        if asked:
            return lead, ("r.created_at", "r.id")
    return queries.by_created, ("r.created_at", "r.id")


def _select(queries: Queries, lead: str, conditions: list[str], end: str) -> str:
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"{queries.whole_run} {lead} {where} {end}"


def _sorted(queries: Queries, lead: str, conditions: list[str], end: str) -> str:
    """First the ids, then what belongs to those: only few of the runs that are sorted are wanted.

    The order is an expression, so that no planner prefers the index that has the order: it would compare
    each run of that index with all that is due.
    """
    end = end.replace("r.created_at", "r.created_at + 0")
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    inner = f"SELECT r.id {lead} {where} {end}"
    return f"{queries.whole_run} FROM ({inner}) AS picked {queries.picked} {end}"


def _conditions(queries: Queries, wanted: Wanted, lead: str) -> Iterator[str]:
    by_attribute = lead == queries.by_attribute
    created = "a.created_at" if by_attribute else "r.created_at"
    for number in range(len(wanted.attributes)):
        if number == 0:
            yield "a.name = :name0 AND a.value = :value0"
        else:
            yield HAS_ATTRIBUTE.format(n=number)
    for column in _COLUMNS:
        if getattr(wanted, column) is not None:
            yield f"r.{column} = :{column}"
    if wanted.after is not None:
        yield f"{created} >= :after"
    if wanted.before is not None:
        yield f"{created} < :before"
    if wanted.overdue is not None:
        yield STATES["active"]
        if lead != queries.by_overdue:
            yield HAS_OVERDUE
    if wanted.waiting:
        yield WAITING
    if wanted.on is not None:
        yield WAITING_ON
    if wanted.beyond is not None:
        yield queries.beyond_attribute if by_attribute else queries.beyond


def _params(wanted: Wanted) -> dict[str, Any]:
    given = {column: getattr(wanted, column) for column in (*_COLUMNS, "after", "before", "overdue")}
    params = {name: value for name, value in given.items() if value is not None}
    for number, (name, value) in enumerate(wanted.attributes.items()):
        params |= {f"name{number}": name, f"value{number}": attribute_text(value)}
    if wanted.on is not None:
        params |= {"topic": topic_of("message", wanted.on), "on_message": wanted.on}
    if wanted.beyond is not None:
        params["at"], params["id"] = wanted.beyond
    return params | {"limit": wanted.limit}
