"""Quick batches on MariaDB: starts, records and ends of functions (batch/fast_paths.py), in one packet.

The server stops a packet at its first error.  So each check is a statement that fails if it does not hold:
`~0 + 1` is out of the range of numbers.  Nothing is committed then, and the long way tells why.

The order of locks is that of every batch: the worker (shared), runs by their ids, executions, other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec

from ...kernel.rows import Step
from ..batch.fast_paths import Beginning, End, Quick, Unexpected
from ..driver import Tx, Way, largest_batch, news
from ..sql.dialect import columns_of
from .connection import DUPLICATE, OUT_OF_RANGE, code_of
from .literals import MOST_CASES, literal
from .session import MOST_TEXT, Session

MOST_ROWS = 1000  # in one INSERT
_STEPS = f"INSERT INTO detent_steps ({', '.join(columns_of(Step))}) VALUES "

# Columns that are not named here get their defaults.
_RUNS = "INSERT INTO detent_runs (id, type, kind, queue, priority, input, created_at, versions) VALUES "
_EXECUTIONS = (
    "INSERT INTO detent_executions (run_id, node, attempt, kind, job, queue, precedence, created_at,"
    " scheduled_for, state, worker, token, deliveries, started_at) VALUES "
)


class TooLong(Exception):
    """A row does not surely fit into one statement: the long way measures it."""


def way_of(batch: Quick, again: str, *, helpers_wanted: bool) -> Way:
    """Apply it in a transaction; `again` is what an INSERT of steps does with those that exist."""

    def ask(tx: Tx) -> Callable[[], list[Any]]:
        session = tx.driver.deferring(tx.connection)
        if not isinstance(session, Session):  # a server that takes one statement at a time
            return batch.answers
        try:
            statements = _statements(batch, again, min(largest_batch(tx.driver), MOST_TEXT))
        except TooLong:
            return batch.answers
        watched = _execute(session, statements)
        if batch.wants_help or (batch.makes_ready and helpers_wanted) or watched:
            tx.driver.notify(tx, news(work=batch.makes_ready or batch.wants_help))
        answers = batch.answers(started=True, recorded=True, ended={end.run_id for end in batch.ends})
        return lambda: answers

    return Way(ask, alone=False, made_ready=batch.makes_ready)


def _execute(session: Session, statements: Iterable[str]) -> bool:
    """Execute and commit them; return whether another process waits for one of the runs that end."""
    try:
        calls = [session.later(text) for text in statements]
        session.commit()
    except Exception as error:
        # A step or a run that is there already is no error yet: the long way decides.
        if code_of(error) in (OUT_OF_RANGE, DUPLICATE):
            raise Unexpected from error
        raise
    # Only `_lock_runs` answers with a second column.
    return any(watched for call in calls for _, *rest in call.rows or () for watched in rest)


def _statements(batch: Quick, again: str, most: int) -> list[str]:
    """Statements of at most so many characters, in the order of their locks."""
    texts: list[str] = []
    if batch.worker:
        texts.append(_fence(batch.worker))
    if batch.ends:
        texts += _lock_runs(batch.ends, most)
        texts += _end_executions(batch.ends, most)
    if batch.starts:
        texts += _inserts(_RUNS, map(_run, batch.starts), most)
        texts += _inserts(_EXECUTIONS, (_main(start, batch.worker) for start in batch.starts), most)
    if batch.steps:
        # (An upsert names each column once more, which takes the server a fifth longer.)
        new = all(step.attempt == 1 and step.progress is None for step in batch.steps)
        rows = ("(" + ", ".join(map(literal, msgspec.structs.astuple(step))) + ")" for step in batch.steps)
        texts += _inserts(_STEPS, rows, most, "" if new else again)
    if batch.ends:
        texts += _end_runs(batch.ends, most)
    return texts


def _fails_if(condition: str) -> str:
    """A column of a SELECT that fails if the condition is true; it must not be NULL."""
    return f"~0 + ({condition})"


def _fence(worker: str) -> str:
    return (
        f"SELECT {_fails_if('COUNT(*) = 0')} FROM detent_workers FORCE INDEX (PRIMARY)"
        f" WHERE id = {literal(worker)} LOCK IN SHARE MODE"
    )


def _lock_runs(ends: Sequence[End], most: int) -> Iterator[str]:
    """Only runs that are ready, and whose end no node of another run waits for.

    The condition is not in the WHERE: InnoDB would give back the lock of a row that does not match.
    """
    # (A list of a thousand keys would become a join.)
    for keys in _pieces((literal(end.run_id) for end in ends), MOST_CASES, most):
        wrong = f"COUNT(IF(state = 'ready' AND watched < 2, 1, NULL)) <> {len(keys)}"
        yield (
            f"SELECT {_fails_if(wrong)}, SUM(watched) FROM detent_runs FORCE INDEX (PRIMARY)"
            f" WHERE id IN ({', '.join(keys)}) FOR UPDATE"
        )


def _end_executions(ends: Sequence[End], most: int) -> Iterator[str]:
    """Those that still execute under the token of their delivery."""
    # (Sorting is stable: within a place the ids stay in their order.)
    for (node, attempt), group in groupby(sorted(ends, key=_place), key=_place):
        for part in _parts(list(group), most):
            value = _Cases("t.run_id", part)
            yield (
                f"UPDATE detent_executions AS t FORCE INDEX (PRIMARY) SET t.state = {value('state')},"
                f" t.outcome = {value('outcome')}, t.result = {value('result')}, t.error = {value('error')},"
                f" t.finished_at = {value('finished_at')}, t.ancestry_hash = NULL"
                f" WHERE t.node = {literal(node)} AND t.attempt = {literal(attempt)}"
                f" AND t.run_id IN ({', '.join(value.keys)})"
                f" AND t.state = 'executing' AND t.token = {value('token')}"
            )
            yield f"SELECT {_fails_if(f'ROW_COUNT() <> {len(part)}')}"


def _end_runs(ends: Sequence[End], most: int) -> Iterator[str]:
    for part in _parts(ends, most):
        value = _Cases("t.id", part)
        yield (
            f"UPDATE detent_runs AS t FORCE INDEX (PRIMARY) SET t.state = {value('run_state')},"
            f" t.result = {value('result')}, t.error = {value('error')},"
            f" t.finished_at = {value('finished_at')} WHERE t.id IN ({', '.join(value.keys)})"
        )


def _place(end: End) -> tuple[str, int]:
    return end.node, end.attempt


class _Cases:
    """The fields of ends, as expressions of the key of the row that is updated."""

    def __init__(self, key: str, ends: Sequence[End]) -> None:
        self._key = key
        self._ends = ends
        self.keys = [literal(end.run_id) for end in ends]

    def __call__(self, field: str) -> str:
        values = [getattr(end, field) for end in self._ends]
        first = values[0]
        if all(value == first for value in values):
            return literal(first)
        cases = [f" WHEN {key} THEN {literal(value)}" for key, value in zip(self.keys, values, strict=True)]
        return f"CASE {self._key}{''.join(cases)} END"


def _run(start: Beginning) -> str:
    return (
        f"({literal(start.id)}, {literal(start.type)}, 'function', {literal(start.queue)},"
        f" {start.priority:d}, {literal(start.input)}, {start.created_at:d}, {literal(start.versions)})"
    )


def _main(start: Beginning, worker: str) -> str:
    now = f"{start.created_at:d}"
    held = "'ready', NULL, NULL, 0, NULL"
    if start.token is not None:
        held = f"'executing', {literal(worker)}, {literal(start.token)}, 1, {now}"
    return (
        f"({literal(start.id)}, 'main', 1, 'main', {literal(start.type)}, {literal(start.queue)},"
        f" {-start.priority:d}, {now}, {now}, {held})"
    )


def _inserts(head: str, rows: Iterable[str], most: int, tail: str = "") -> Iterator[str]:
    for piece in _pieces(rows, MOST_ROWS, most):
        yield f"{head}{', '.join(piece)}{tail}"


def _pieces(texts: Iterable[str], most_rows: int, most: int) -> Iterator[list[str]]:
    """Lists of at most so many texts, and characters together."""
    piece: list[str] = []
    length = 0
    for text in texts:
        if len(text) > most:
            raise TooLong
        if length + len(text) > most or len(piece) == most_rows:
            yield piece
            piece, length = [], 0
        piece.append(text)
        length += len(text)
    if piece:
        yield piece


def _parts(ends: Sequence[End], most: int) -> Iterator[list[End]]:
    """Ends whose UPDATE has at most so many characters."""
    part: list[End] = []
    length = 0
    for end in ends:
        # Each key is written once in the condition, and once for each of up to six fields.
        size = 2 * (len(end.result or "") + len(end.error or "")) + 14 * len(end.run_id) + 500
        if size > most:
            raise TooLong
        if length + size > most or len(part) == MOST_CASES:
            yield part
            part, length = [], 0
        part.append(end)
        length += size
    if part:
        yield part
