"""Our statements with all values in their text, in the form that the server executes fastest.

A batch of rows is a JSON parameter, which a statement unfolds with JSON_TABLE.  MariaDB takes 10 to 30
microseconds for each row of it, and an UPDATE that joins a JSON_TABLE also fills a temporary table.  So an
INSERT of a batch becomes an INSERT of VALUES.  An UPDATE of one table by a batch, and a SELECT of the rows
whose primary keys are the batch, get a list of keys instead of a join, where the batch allows it.  Any other
statement keeps its JSON_TABLE.

Values are escaped for a session with sql_mode NO_BACKSLASH_ESCAPES and the character set utf8mb4: in such a
session a quote is the only character that can end a text, and it is doubled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import inf
from typing import Any

import msgspec

from ..sql.dialect import kind_of
from .dialect import split_assignments

# An UPDATE of one table does not wait for a row that another transaction has locked, if the row as it was
# committed last does not match: InnoDB reads it "semi-consistently", but not where the whole primary key is
# given.  With a join it always waits.  So only whole keys are taken out of a join, of the tables that are
# written most.
PRIMARY = {
    "detent_executions": {"run_id", "node", "attempt"},
    "detent_runs": {"id"},
    "detent_steps": {"run_id", "step_key"},
    "detent_readiness": {"run_id", "node"},
}
MOST_CASES = 250  # rows of an UPDATE: each row is compared with each value
# Rows of an INSERT into any other table: a row of few columns costs the server as much from JSON_TABLE, and
# the client several microseconds less.  JSON_TABLE itself takes the server 0.3 milliseconds.
MOST_VALUES = 20
LARGEST_GROWTH = 2  # characters of a statement for each character of its batch: see largest_batch
_DECODER = msgspec.json.Decoder()
_PARAMETER = re.compile(r"%\((\w+)\)s")
_BATCH = r"JSON_TABLE\(%\(rows\)s, '\$\[\*\]' COLUMNS \((?:[^']|'\$\.\w+')*\)\) AS x"
_INSERT = re.compile(
    r"\s*(?P<head>INSERT INTO (?P<table>\w+) \((?P<columns>[\w, ]+)\)) SELECT (?P<fields>[\w., ]+)"
    rf" FROM {_BATCH}(?P<tail>|\s+ON DUPLICATE KEY UPDATE (?:(?!\bx\.).)*)",
    re.DOTALL,
)
_UPDATE = re.compile(
    rf"\s*UPDATE {_BATCH} STRAIGHT_JOIN (?P<table>\w+) AS t FORCE INDEX \((?P<index>\w+)\)"
    r" ON (?P<where>.*?) SET (?P<changes>.*)",
    re.DOTALL,
)
# It may join rows of other tables to those that it finds.
_SELECT = re.compile(
    rf"\s*SELECT (?P<fields>(?:\w+\.\w+(?:, )?)+)\s+FROM {_BATCH}"
    r"\s+STRAIGHT_JOIN (?P<table>\w+) AS (?P<alias>\w+) FORCE INDEX \(PRIMARY\)"
    r"\s+ON (?P<where>\w+\.\w+ = x\.\w+(?: AND \w+\.\w+ = x\.\w+)*)"
    r"(?P<joins>(?:\s+STRAIGHT_JOIN \w+ AS \w+ FORCE INDEX \(\w+\) ON \w+\.\w+ = \w+\.\w+)*)"
    r"(?P<tail>\s+ORDER BY [\w., ]+\s+FOR UPDATE|)\s*",
)
_KEY = re.compile(r"\w+\.(\w+) = x\.(\w+)(?: AND |$)")
_OF_BATCH = re.compile(r"\bx\.")
_VALUE = re.compile(r"%\((\w+)\)s|\bx\.(\w+)\b")

Row = Mapping[str, Any]


class Unwritable(Exception):
    """A value, or a batch, has no form without JSON_TABLE."""


def literal(value: Any) -> str:
    """A value as SQL."""
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, int):
        return str(int(value))
    raise Unwritable(type(value).__name__)


def write(statement: str, params: Mapping[str, Any]) -> str:
    """The statement with its parameters in it."""
    form = _form(statement) if "rows" in params else None
    rows = params.get("rows", "")
    if form is not None and form.fits(rows):
        try:
            text = form.write(_DECODER.decode(rows), params)
        except Unwritable:
            return _fill(statement, params)
        if len(text) <= len(statement) + LARGEST_GROWTH * len(rows):
            return text
    return _fill(statement, params)


def fenced_insert(table: str, columns: Sequence[str], worker: str, rows: Sequence[Sequence[Any]]) -> str:
    """INSERT rows if a worker is alive, under a shared lock on its row; else fail with 'cannot be null'.

    The first column must be NOT NULL, and the session strict.
    """
    (first, *others), *rest = rows
    alive = f"SELECT {literal(first)} FROM detent_workers FORCE INDEX (PRIMARY) WHERE id = {literal(worker)}"
    cells = ", ".join([f"({alive} LOCK IN SHARE MODE)", *map(literal, others)])
    more = "".join([", (" + ", ".join(map(literal, row)) + ")" for row in rest])
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({cells}){more}"


def _fill(statement: str, params: Mapping[str, Any]) -> str:
    texts, names = _pieces(statement)
    parts = [texts[0]]
    for name, text in zip(names, texts[1:], strict=True):
        parts += literal(params[name]), text
    return "".join(parts)


@lru_cache(maxsize=1024)
def _pieces(statement: str) -> tuple[list[str], list[str]]:
    """The texts between the parameters, and the names of those."""
    pieces = _PARAMETER.split(statement)
    return [text.replace("%%", "%") for text in pieces[::2]], pieces[1::2]


class Insert(msgspec.Struct, frozen=True):
    """INSERT INTO ... SELECT the batch, perhaps with what happens to keys that exist."""

    head: str
    columns: tuple[str, ...]
    tail: str
    most: float  # rows

    def fits(self, rows: str) -> bool:
        """Whether it is worth decoding a batch; a text in it may count as another row."""
        return rows.count("},{") < self.most

    def write(self, rows: Sequence[Row], params: Mapping[str, Any]) -> str:
        columns = self.columns
        if not rows:
            raise Unwritable("an empty batch")
        values = ", ".join(["(" + ", ".join(map(literal, map(row.get, columns))) + ")" for row in rows])
        return f"{self.head} VALUES {values}{_fill(self.tail, params)}"


class Update(msgspec.Struct, frozen=True):
    """UPDATE one table by the batch; `keys` pairs its columns with those of the batch."""

    table: str
    index: str
    keys: tuple[tuple[str, str], ...]
    rest: str  # further conditions
    changes: str

    def fits(self, rows: str) -> bool:
        return rows.count("},{") < MOST_CASES

    def write(self, rows: Sequence[Row], params: Mapping[str, Any]) -> str:
        key = _differing(self.keys, rows)
        place = next((t for t, x in self.keys if x == key), "")
        found: dict[str, str] = {}

        def value(match: re.Match[str]) -> str:
            if match[1]:
                return literal(params[match[1]])
            if match[2] not in found:
                found[match[2]] = _by_key(match[2], rows, key, place)
            return found[match[2]]

        changes, rest = (_VALUE.sub(value, text.replace("%%", "%")) for text in (self.changes, self.rest))
        where = _where("t", self.keys, rows) + (f" AND {rest}" if rest else "")
        return f"UPDATE {self.table} AS t FORCE INDEX ({self.index}) SET {changes} WHERE {where}"


class Select(msgspec.Struct, frozen=True):
    """SELECT the rows of a table whose primary keys are the batch, perhaps with rows of other tables."""

    head: str
    alias: str
    keys: tuple[tuple[str, str], ...]
    tail: str

    def fits(self, rows: str) -> bool:
        return rows.count("},{") < MOST_CASES

    def write(self, rows: Sequence[Row], params: Mapping[str, Any]) -> str:
        return f"{self.head} WHERE {_where(self.alias, self.keys, rows)}{self.tail}"


def _where(alias: str, keys: Sequence[tuple[str, str]], rows: Sequence[Row]) -> str:
    """The condition that finds the rows of a table by the keys of the batch."""
    key = _differing(keys, rows)
    same = [f"{alias}.{t} = {_typed(x, rows[0].get(x))}" for t, x in keys if x != key]
    if key is not None:
        place = next(t for t, x in keys if x == key)
        same.append(f"{alias}.{place} IN ({', '.join([_typed(key, row[key]) for row in rows])})")
    return " AND ".join(same)


def _differing(keys: Sequence[tuple[str, str]], rows: Sequence[Row]) -> str | None:
    """The one key by which the rows differ; None for a single row."""
    if len(rows) == 1:
        return None
    if not rows or len(rows) > MOST_CASES:
        raise Unwritable("too many rows, or none")
    distinct = {x: len({row.get(x) for row in rows}) for _, x in keys}
    differing = [x for x, number in distinct.items() if number > 1]
    if len(differing) != 1 or distinct[differing[0]] != len(rows):
        raise Unwritable("rows that differ by several keys")
    return differing[0]


def _by_key(column: str, rows: Sequence[Row], key: str | None, place: str) -> str:
    """A column of the batch, as an expression of the key of the row that is updated."""
    values = [_typed(column, row.get(column)) for row in rows]
    if key is None or all(value == values[0] for value in values):
        return values[0]
    cases = [f"WHEN {_typed(key, row[key])} THEN {value}" for row, value in zip(rows, values, strict=True)]
    return f"CASE t.{place} {' '.join(cases)} END"


def _typed(column: str, value: Any) -> str:
    """A value that is compared: a number with a text would compare as numbers."""
    wanted = int if kind_of(column) == "int" else str
    if value is not None and not isinstance(value, wanted):
        raise Unwritable(column)
    return literal(value)


@lru_cache(maxsize=1024)
def _form(statement: str) -> Insert | Update | Select | None:
    """What the statement becomes; None if it stays as it is."""
    if statement.count("%(rows)s") != 1:
        return None
    if (found := _INSERT.fullmatch(statement)) is not None:
        columns = tuple(found["columns"].split(", "))
        fields = tuple(field.removeprefix("x.") for field in found["fields"].split(", "))
        most = inf if found["table"] in PRIMARY else MOST_VALUES
        return Insert(found["head"], columns, found["tail"], most) if fields == columns else None
    if (found := _UPDATE.fullmatch(statement)) is not None:
        changes = found["changes"].strip()
        keys, rest = _keys(found["where"])
        if _is_whole(found["table"], keys) and _independent(changes):
            return Update(found["table"], found["index"], keys, rest, changes)
    if (found := _SELECT.fullmatch(statement)) is not None:
        keys, _ = _keys(found["where"])
        table = f"{found['table']} AS {found['alias']} FORCE INDEX (PRIMARY){found['joins']}"
        if _is_whole(found["table"], keys) and not _OF_BATCH.search(found["fields"] + found["joins"]):
            return Select(f"SELECT {found['fields']} FROM {table}", found["alias"], keys, found["tail"])
    return None


def _keys(where: str) -> tuple[tuple[tuple[str, str], ...], str]:
    """The columns that are equal to columns of the batch, each with that, and the conditions after them."""
    keys, end = [], 0
    while (key := _KEY.match(where, end)) is not None:
        keys.append((key[1], key[2]))
        end = key.end()
    return tuple(keys), where[end:].strip()


def _is_whole(table: str, keys: Sequence[tuple[str, str]]) -> bool:
    """Whether these are at least the primary key."""
    return table in PRIMARY and PRIMARY[table] <= {column for column, _ in keys}


def _independent(changes: str) -> bool:
    """Whether no assignment reads a column that one before it has changed.

    In an UPDATE of one table it would see the new value, and with a join the old one.
    """
    changed: set[str] = set()
    for assignment in split_assignments(changes):
        column, _, value = assignment.strip().removeprefix("t.").partition(" = ")
        if changed & set(re.findall(r"\bt\.(\w+)", value)):
            return False
        changed.add(column)
    return True
