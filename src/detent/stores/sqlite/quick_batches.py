"""Quick batches on SQLite: starts, records and ends of functions (batch/fast_paths.py), with bound values.

Other statements get their rows as one JSON text.  SQLite takes about as long to extract one value from that
text as to insert a row of ten values that are bound.  The statements of the commonest batches are worth one
text for each number of rows: a start takes a tenth of the time, a record or an end a third.

Not `executemany`: it waits for Python's lock after each row, and a busy event loop is slow to release that.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from ...kernel.rows import Step
from ..batch.fast_paths import Beginning, End, Quick, Unexpected
from ..driver import Tx, Way, news
from ..driver import batch as as_json
from ..sql.dialect import columns_of
from ..sql.statements import FINAL_STEP

MOST_ROWS = 256  # in one statement


class BoundRows:
    """A statement over rows `x` of bound values; `{rows}` in its text stands for them.

    It is prepared for a few numbers of rows.  NULLs fill up the rest, so the statement must pass over rows
    whose first column is NULL.  Parameters of its own come after the rows.

    `single` is the statement for one row, where `x.name` stands for a bound value: an UPDATE with FROM makes
    a table of what it will change first, which takes as long as the change of one row.
    """

    def __init__(self, text: str, *columns: str, single: str = "") -> None:
        self._text = text
        self._single = single
        self._columns = columns
        self._texts: dict[int, str] = {}  # the same text each time: its hash is known

    def run(self, connection: sqlite3.Connection, values: list[Any], *params: Any) -> int:
        """Execute it for these values, row after row; return how many rows it has changed."""
        width = MOST_ROWS * len(self._columns)
        if len(values) <= width:
            return connection.execute(*self._bound(values, params)).rowcount if values else 0
        parts = (values[first : first + width] for first in range(0, len(values), width))
        return sum(connection.execute(*self._bound(part, params)).rowcount for part in parts)

    def query(self, connection: sqlite3.Connection, values: list[Any], *params: Any) -> list[tuple[Any, ...]]:
        """Execute it for these values, row after row; return what it selects."""
        width = MOST_ROWS * len(self._columns)
        parts = (values[first : first + width] for first in range(0, len(values), width))
        return [row for part in parts for row in connection.execute(*self._bound(part, params))]

    def _bound(self, values: list[Any], params: tuple[Any, ...]) -> tuple[str, list[Any]]:
        """The statement for at most MOST_ROWS rows, and what to bind."""
        width = len(self._columns)
        rows = _rounded_up(len(values) // width)
        return self.text(rows), [*values, *[None] * (rows * width - len(values)), *params]

    def text(self, rows: int) -> str:
        """The statement for so many rows."""
        if rows not in self._texts and rows == 1 and self._single:
            numbers = {name: f"?{place}" for place, name in enumerate(self._columns, 1)}
            self._texts[1] = re.sub(r"\bx\.(\w+)", lambda found: numbers[found[1]], self._single)
        elif rows not in self._texts:
            names = ", ".join(f"column{place} AS {name}" for place, name in enumerate(self._columns, 1))
            row = f"({', '.join('?' * len(self._columns))})"
            found = f"(SELECT {names} FROM (VALUES {', '.join([row] * rows)})) AS x"
            self._texts[rows] = self._text.replace("{rows}", found)
        return self._texts[rows]


def _rounded_up(rows: int) -> int:
    """The next number with at most three significant bits: 1 to 8, 10, 12, 14, 16, 20 ... 224, 256.

    A row of NULLs takes up to as long as another row.  A statement for each number would take much memory:
    these 28 take about 2 MB for each of the statements, if all of them occur.
    """
    step = 1 << max(0, (rows - 1).bit_length() - 3)
    return -(-rows // step) * step


_STEP = columns_of(Step)
_ALIVE = "EXISTS (SELECT 1 FROM detent_workers WHERE id = ?)"

RECORD = BoundRows(
    f"""
INSERT INTO detent_steps ({", ".join(_STEP)})
SELECT {", ".join(_STEP)} FROM {{rows}}
 WHERE x.run_id IS NOT NULL AND {_ALIVE}
    ON CONFLICT (run_id, step_key) DO UPDATE SET {", ".join(f"{c} = excluded.{c}" for c in _STEP[2:])}
 WHERE detent_steps.state NOT IN {FINAL_STEP}""",
    *_STEP,
)

# Columns that are not named here get their defaults.
START_RUNS = BoundRows(
    """
INSERT INTO detent_runs (id, type, kind, queue, priority, input, created_at, versions)
SELECT id, type, 'function', queue, priority, input, created_at, versions FROM {rows}
 WHERE x.id IS NOT NULL""",
    *("id", "type", "queue", "priority", "input", "created_at", "versions"),
)

START_EXECUTIONS = BoundRows(
    """
INSERT INTO detent_executions (run_id, node, attempt, kind, job, queue, precedence, state, created_at,
                               scheduled_for, worker, token, deliveries, started_at)
SELECT id, 'main', 1, 'main', type, queue, -priority, iif(token IS NULL, 'ready', 'executing'), created_at,
       created_at, worker, token, token IS NOT NULL, iif(token IS NULL, NULL, created_at)
  FROM {rows}
 WHERE x.id IS NOT NULL AND (x.token IS NULL OR EXISTS (SELECT 1 FROM detent_workers WHERE id = x.worker))""",
    *("id", "type", "queue", "priority", "created_at", "worker", "token"),
)

_END_EXECUTION = """
UPDATE detent_executions AS t
   SET state = x.state, outcome = x.outcome, result = x.result, error = x.error,
       finished_at = x.finished_at, ancestry_hash = NULL"""
_EXECUTING = """t.run_id = x.run_id AND t.node = x.node AND t.attempt = x.attempt
   AND t.token = x.token AND +t.state = 'executing'"""
# Only of runs that are ready, and whose end no node of another run waits for.  (`+`: by the primary key.)
_MAY_END = "+r.state = 'ready' AND r.watched < 2"

END_EXECUTIONS = BoundRows(
    f"""{_END_EXECUTION}
  FROM {{rows}} CROSS JOIN detent_runs AS r ON r.id = x.run_id
 WHERE {_EXECUTING} AND {_MAY_END} AND {_ALIVE}""",
    *("run_id", "node", "attempt", "token", "state", "outcome", "finished_at", "result", "error"),
    single=f"""{_END_EXECUTION}
 WHERE {_EXECUTING} AND EXISTS (SELECT 1 FROM detent_runs AS r WHERE r.id = x.run_id AND {_MAY_END})
   AND {_ALIVE}""",
)

_END_RUN = """
UPDATE detent_runs AS t
   SET state = x.state, result = x.result, error = x.error, finished_at = x.finished_at"""

END_RUNS = BoundRows(
    f"{_END_RUN} FROM {{rows}} WHERE t.id = x.run_id AND t.watched = ?",
    *("run_id", "state", "finished_at", "result", "error"),
    single=f"{_END_RUN} WHERE t.id = x.run_id AND t.watched = ?",
)

WATCHED = """
SELECT r.id FROM json_each(?) AS x CROSS JOIN detent_runs AS r ON r.id = x.value WHERE r.watched = 1"""


def is_one_statement(batch: Quick) -> bool:
    """Whether a single statement applies it: that takes the lock, and commits by itself."""
    return not (batch.starts or batch.ends) and len(batch.steps) <= MOST_ROWS


def way_of(batch: Quick, *, helpers_wanted: bool) -> Way:
    """Apply it in a transaction."""

    def ask(tx: Tx) -> Callable[[], list[Any]]:
        _apply(tx, batch)
        if batch.wants_help or (batch.makes_ready and helpers_wanted):
            tx.driver.notify(tx, news(work=True))
        answers = batch.answers(started=True, recorded=True, ended={end.run_id for end in batch.ends})
        return lambda: answers

    return Way(ask, alone=False, made_ready=batch.makes_ready)


def record(connection: sqlite3.Connection, worker: str, steps: Sequence[Step]) -> int:
    """Write entries of journals; return how many.  Those that are final stay as they are."""
    values: list[Any] = []
    for s in steps:
        # (`str`: a member of an enumeration takes five times as long to bind.)
        values += (s.run_id, s.key, s.seq, str(s.kind), s.name, str(s.state), s.written_by, s.attempt)
        values += (s.input, s.result, s.error, s.wake_at, s.undo, s.progress, s.started_at, s.finished_at)
    return RECORD.run(connection, values, worker)


def _apply(tx: Tx, batch: Quick) -> None:
    connection, worker = tx.connection, batch.worker
    if batch.starts:
        _start(connection, worker, batch.starts)
    if batch.steps and record(connection, worker, batch.steps) != len(batch.steps):
        raise Unexpected
    if batch.ends:
        _end(tx, worker, batch.ends)


def _start(connection: sqlite3.Connection, worker: str, starts: Sequence[Beginning]) -> None:
    values: list[Any] = []
    for s in starts:
        values += (s.id, s.type, s.queue, s.priority, s.input, s.created_at, s.versions)
    START_RUNS.run(connection, values)
    values = []
    for s in starts:
        values += (s.id, s.type, s.queue, s.priority, s.created_at, worker if s.token else None, s.token)
    if START_EXECUTIONS.run(connection, values) != len(starts):
        raise Unexpected


def _end(tx: Tx, worker: str, ends: Sequence[End]) -> None:
    values: list[Any] = []
    for e in ends:
        values += (e.run_id, e.node, e.attempt, e.token, str(e.state), str(e.outcome), e.finished_at)
        values += (e.result, e.error)
    if END_EXECUTIONS.run(tx.connection, values, worker) != len(ends):
        raise Unexpected
    values = []
    for e in ends:
        values += (e.run_id, str(e.run_state), e.finished_at, e.result, e.error)
    if END_RUNS.run(tx.connection, values, 0) != len(ends):
        watched = tx.connection.execute(WATCHED, [as_json([e.run_id for e in ends])])
        tx.driver.notify(tx, news(work=False, runs=[row[0] for row in watched]))
        END_RUNS.run(tx.connection, values, 1)
