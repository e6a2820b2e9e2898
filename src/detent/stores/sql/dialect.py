"""Where databases differ: how a batch is unfolded, joined, written from; how rows are locked."""

from __future__ import annotations

from typing import Protocol

_INTEGERS = frozenset(
    "priority exclusive deadline created_at finished_at attempt precedence scheduled_for deliveries "
    "recoveries failures started_at seq written_by wake_at required settled increment happened_at"
    " sent_at frozen_at watched part irregular mine sequence position handled_at received_at taken_at"
    " generation version begun_at retry_at updated_at parent_seq"
    " next_for due_at queued_for last_for fired skipped seen_at begins limited paused_at appended_at"
    " first_at until consumed number".split()
)
_LONG = frozenset(
    "input result error value detail progress body data timing terms former declared changes reason"
    " versions".split()
)


def columns_of(struct: type) -> tuple[str, ...]:
    """The columns of a row struct, as the database names them."""
    return tuple(struct.__struct_encode_fields__)  # type: ignore[attr-defined]


def kind_of(column: str) -> str:
    """`int`, `long` or `text`: how a column of a batch is typed."""
    return "int" if column in _INTEGERS else "long" if column in _LONG else "text"


class Dialect(Protocol):
    """Where databases differ."""

    skip_locked: str
    bytewise: str  # behind a column to sort by: by code point
    server_now: str  # microseconds by the database's clock, or `:now`
    fence: str  # a shared lock that a heartbeat does not wait for
    hurry: str  # a column by which the server ends this transaction, should we be stopped in its middle
    dead: str  # beside the condition that a letter is dead: what lets the index of those be used
    died: str  # when a dead letter was given up, as that index holds it
    values_at_once: int  # a good `:limit` for `next_values`
    update_returns_joined: bool  # whether an UPDATE can return columns of what it was joined with
    hero: str  # the condition by which the index finds the active run of a hero

    def held(self, lock_no: str) -> str:
        """1 where a session surely holds that lock, by which a worker shows that it lives."""
        ...

    def lock(self, alias: str) -> str:
        """Behind a SELECT: lock the rows of that table for writing."""
        ...

    def by(self, index: str) -> str:
        """Behind a table: read it through that index, in its order."""
        ...

    def rows(self, *columns: str, batch: str = "rows") -> str:
        """The batch `:rows`, or another parameter, as a table `x` of these columns."""
        ...

    def join(self, table: str, alias: str, index: str = "PRIMARY") -> str:
        """Behind `rows`: for each row of the batch, in its order, look into `table` through that index."""
        ...

    def one_of(self, column: str, field: str, *, batch: str = "rows") -> str:
        """The condition that `column` is among the batch's `field`, without a join that loses the order."""
        ...

    def update(self, table: str, columns: tuple[str, ...], assignments: str, where: str) -> str:
        """UPDATE `table` (as `t`) from the batch."""
        ...

    def upsert_unless(
        self,
        table: str,
        columns: tuple[str, ...],
        key: tuple[str, ...],
        updated: tuple[str, ...],
        unless: str,
    ) -> str:
        """INSERT the batch; where the key exists, update it unless the condition on the old row holds."""
        ...

    def upsert_or_fail(self, table: str, columns: tuple[str, ...], key: tuple[str, ...], states: str) -> str:
        """INSERT the batch; where the key exists, update it, or fail if the old row is in one of the states.

        The server itself has to fail: the commit may travel in the same packet.
        """
        ...

    def insert_new(self, table: str, columns: tuple[str, ...], key: tuple[str, ...]) -> str:
        """INSERT the batch; leave what exists as it is."""
        ...

    def delete(self, table: str, columns: tuple[str, ...], index: str = "PRIMARY") -> str:
        """DELETE what has the same values in these columns as a row of the batch, found by that index."""
        ...

    def keyed(self, alias: str) -> str:
        """The condition that an execution of `:queue` may be claimed and has a key, by the index of those."""
        ...

    def same_key(self, one: str, other: str) -> str:
        """The condition that both have the same key, in a query that is sorted by the key of `one` first."""
        ...

    def next_values(self, column: str, source: str) -> str:
        """The next values behind `:after`, in the order of an index, each with the entries read for it.

        At most `:limit` entries are read.
        """
        ...

    def first_of_each(self, columns: str, rows: str, found: str) -> str:
        """For each row `x` of a batch, these columns of the execution that `found` finds for it, as `e`.

        `found` is a query of one execution `h`, without its list of columns.
        """
        ...

    def beyond(self, at: str, id: str, sign: str) -> str:
        """The condition that a row lies beyond (:at, :id), in the order of an index on both."""
        ...

    def gathered(self, name: str, *values: str) -> str:
        """All rows of a group as one JSON text: an object of names, and of lists of values."""
        ...


def first_by_key(columns: str, rows: str, found: str, join: str) -> str:
    """`first_of_each` without LATERAL: its key by the index alone, its other columns by that key."""
    return f"""
SELECT {columns}
  FROM (SELECT (SELECT h.run_id {found}) AS run_id, (SELECT h.node {found}) AS node,
               (SELECT h.attempt {found}) AS attempt
          FROM {rows}) AS k
  {join} ON e.run_id = k.run_id AND e.node = k.node AND e.attempt = k.attempt"""


class OnConflict:
    """What PostgreSQL and SQLite have in common."""

    values_at_once = 200

    def rows(self, *columns: str, batch: str = "rows") -> str:
        raise NotImplementedError

    def keyed(self, alias: str) -> str:
        return f"{alias}.state = 'ready' AND {alias}.queue = :queue AND {alias}.queue_key IS NOT NULL"

    def by(self, index: str) -> str:
        return ""

    def update(self, table: str, columns: tuple[str, ...], assignments: str, where: str) -> str:
        return f"UPDATE {table} AS t SET {assignments} FROM {self.rows(*columns)} WHERE {where}"

    def upsert_unless(
        self,
        table: str,
        columns: tuple[str, ...],
        key: tuple[str, ...],
        updated: tuple[str, ...],
        unless: str,
    ) -> str:
        changes = ", ".join(f"{c} = excluded.{c}" for c in updated)
        return (
            f"{self._insert(table, columns)} ON CONFLICT ({', '.join(key)})"
            f" DO UPDATE SET {changes} WHERE NOT ({table}.{unless})"
        )

    def upsert_or_fail(self, table: str, columns: tuple[str, ...], key: tuple[str, ...], states: str) -> str:
        # The column is NOT NULL.
        state = f"CASE WHEN {table}.state IN {states} THEN NULL ELSE excluded.state END"
        changes = ", ".join(
            f"{c} = {state if c == 'state' else f'excluded.{c}'}" for c in columns if c not in key
        )
        return f"{self._insert(table, columns)} ON CONFLICT ({', '.join(key)}) DO UPDATE SET {changes}"

    def insert_new(self, table: str, columns: tuple[str, ...], key: tuple[str, ...]) -> str:
        return f"{self._insert(table, columns)} ON CONFLICT ({', '.join(key)}) DO NOTHING"

    def _insert(self, table: str, columns: tuple[str, ...]) -> str:
        names = ", ".join(columns)
        # SQLite would take the ON of the conflict for that of a join.
        return f"INSERT INTO {table} ({names}) SELECT {names} FROM {self.rows(*columns)} WHERE true"

    def next_values(self, column: str, source: str) -> str:
        # One descent of the index for each value: a million entries with one value cost as much as one.
        return f"""
WITH RECURSIVE found (value, number) AS (
SELECT (SELECT {column} {source} AND {column} > :after ORDER BY {column} LIMIT 1), 1
 UNION ALL
SELECT (SELECT {column} {source} AND {column} > found.value ORDER BY {column} LIMIT 1), found.number + 1
  FROM found
 WHERE found.value IS NOT NULL AND found.number < :limit)
SELECT value, 1 FROM found WHERE value IS NOT NULL"""

    def same_key(self, one: str, other: str) -> str:
        return f"{one}.queue_key = {other}.queue_key"

    def beyond(self, at: str, id: str, sign: str) -> str:
        return f"({at}, {id}) {sign} (:at, :id)"


def served(alias: str) -> str:
    """Whether workers of `:version` may execute it: it is pinned to no version, or to that one."""
    return f"({alias}.pin IS NULL OR {alias}.pin = :version)"


def insert(d: Dialect, table: str, columns: tuple[str, ...]) -> str:
    """INSERT the batch."""
    names = ", ".join(columns)
    return f"INSERT INTO {table} ({names}) SELECT {names} FROM {d.rows(*columns)}"
