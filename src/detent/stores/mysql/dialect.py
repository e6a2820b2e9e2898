"""How MySQL and MariaDB unfold a batch, join it, and write from it."""

from __future__ import annotations

from ...kernel.rows import Step
from ..driver import named_to_pyformat
from ..sql.dialect import columns_of, first_by_key, kind_of
from ..sql.statements import FINAL_STEP

# Spelled out, because a batch would otherwise have the character set of the user's database.
_UNICODE = "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
_TYPES = {"int": "BIGINT", "long": f"LONGTEXT {_UNICODE}", "text": f"VARCHAR(500) {_UNICODE}"}


class MySqlDialect:
    """InnoDB locks what it reads on the way to a row, and the optimiser likes to read small tables
    whole.  So whatever locks says which table comes first and which index it uses: two
    transactions that want different rows must never meet.
    """

    server_now = "CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)"
    skip_locked = "SKIP LOCKED"
    bytewise = ""  # our columns are, always
    fence = "LOCK IN SHARE MODE"  # MariaDB does not know FOR SHARE
    hurry = ""
    dead = "AND e.dead_since > 0"
    died = "e.dead_since"
    update_returns_joined = False
    values_at_once = 1000
    # The expression of the generated column (see the migration), for the values asked for.
    hero = (
        "hero_slot = SHA2(CONCAT_WS(':', LENGTH(:type), :type,"
        " LENGTH(:hero_type), :hero_type, :hero_id), 256)"
    )

    def held(self, lock_no: str) -> str:
        return f"COALESCE(IS_USED_LOCK(CONCAT('detent.', {lock_no})), 0) <> 0"

    def lock(self, alias: str) -> str:
        return "FOR UPDATE"  # a JSON_TABLE has no rows to lock

    def by(self, index: str) -> str:
        return f"FORCE INDEX ({index})"

    def rows(self, *columns: str, batch: str = "rows") -> str:
        types = ", ".join(f"{c} {_TYPES[kind_of(c)]} PATH '$.{c}'" for c in columns)
        return f"JSON_TABLE(:{batch}, '$[*]' COLUMNS ({types})) AS x"

    def join(self, table: str, alias: str, index: str = "PRIMARY") -> str:
        return f"STRAIGHT_JOIN {table} AS {alias} FORCE INDEX ({index})"

    def one_of(self, column: str, field: str, *, batch: str = "rows") -> str:
        # IS TRUE keeps it a filter: as a semi-join it would be reordered, and the backlog sorted.
        return f"({column} IN (SELECT x.{field} FROM {self.rows(field, batch=batch)})) IS TRUE"

    def update(self, table: str, columns: tuple[str, ...], assignments: str, where: str) -> str:
        # Assignments are made from left to right, each seeing those before it.
        changes = ", ".join(f"t.{part.strip()}" for part in split_assignments(assignments))
        return f"UPDATE {self.rows(*columns)} {self.join(table, 't')} ON {where} SET {changes}"

    def upsert_unless(
        self,
        table: str,
        columns: tuple[str, ...],
        key: tuple[str, ...],
        updated: tuple[str, ...],
        unless: str,
    ) -> str:
        names = ", ".join(columns)
        fields = ", ".join(f"x.{c}" for c in columns)
        return (
            f"INSERT INTO {table} ({names}) SELECT {fields} FROM {self.rows(*columns)}"
            f" ON DUPLICATE KEY UPDATE {self.unless(table, updated, unless)}"
        )

    def unless(self, table: str, updated: tuple[str, ...], condition: str) -> str:
        """What an upsert changes, where the condition does not hold."""
        # The condition reads the old row, so the column it asks for is changed last.
        decisive = condition.split(maxsplit=1)[0]
        ordered = [c for c in updated if c != decisive] + [decisive]
        return ", ".join(f"{c} = IF({table}.{condition}, {table}.{c}, VALUES({c}))" for c in ordered)

    def upsert_or_fail(self, table: str, columns: tuple[str, ...], key: tuple[str, ...], states: str) -> str:
        names = ", ".join(columns)
        fields = ", ".join(f"x.{c}" for c in columns)
        changes = [f"{c} = VALUES({c})" for c in columns if c not in key and c != "state"]
        # The column is NOT NULL, and the mode of our sessions is strict.
        changes.append(f"state = IF({table}.state IN {states}, NULL, VALUES(state))")
        return (
            f"INSERT INTO {table} ({names}) SELECT {fields} FROM {self.rows(*columns)}"
            f" ON DUPLICATE KEY UPDATE {', '.join(changes)}"
        )

    def insert_new(self, table: str, columns: tuple[str, ...], key: tuple[str, ...]) -> str:
        names = ", ".join(columns)
        fields = ", ".join(f"x.{c}" for c in columns)
        return (
            f"INSERT INTO {table} ({names}) SELECT {fields} FROM {self.rows(*columns)}"
            f" ON DUPLICATE KEY UPDATE {key[0]} = {table}.{key[0]}"
        )

    def delete(self, table: str, columns: tuple[str, ...], index: str = "PRIMARY") -> str:
        same = " AND ".join(f"t.{c} = x.{c}" for c in columns)
        return f"DELETE t FROM {self.rows(*columns)} {self.join(table, 't', index)} ON {same}"

    def keyed(self, alias: str) -> str:
        return f"{alias}.keyed_queue = :queue"

    def next_values(self, column: str, source: str) -> str:
        # A comparison with a column of another table is no range here: a recursive query that descends the
        # index for each value reads all entries before it.  So this reads entries up to the limit.  A value
        # with more entries costs one statement more, however many they are.
        return f"""
SELECT p.value, COUNT(*)
  FROM (SELECT {column} AS value {source} AND {column} > :after ORDER BY {column} LIMIT :limit) AS p
 GROUP BY p.value
 ORDER BY p.value"""

    def first_of_each(self, columns: str, rows: str, found: str) -> str:
        return first_by_key(columns, rows, found, self.join("detent_executions", "e"))

    def same_key(self, one: str, other: str) -> str:
        return f"{one}.queue_key = {other}.queue_key"

    def beyond(self, at: str, id: str, sign: str) -> str:
        # A comparison of rows is no range here; this is one, of an index that ends with the key.
        return f"({at} {sign} :at OR ({at} = :at AND {id} {sign} :id))"

    def gathered(self, name: str, *values: str) -> str:
        return f"JSON_OBJECTAGG({name}, JSON_ARRAY({', '.join(values)}))"


def split_assignments(assignments: str) -> list[str]:
    """Split at the commas outside of parentheses."""
    parts, depth = [""], 0
    for char in assignments:
        depth += (char == "(") - (char == ")")
        if char == "," and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def record(dialect: MySqlDialect) -> str:
    """Journal entries of one worker, fenced, in one statement and so in one round trip."""
    columns = columns_of(Step)
    fields = ", ".join(f"x.{c}" for c in columns)
    return named_to_pyformat(f"""
INSERT INTO detent_steps ({", ".join(columns)})
SELECT {fields} FROM detent_workers AS w FORCE INDEX (PRIMARY) STRAIGHT_JOIN {dialect.rows(*columns)}
 WHERE w.id = :worker
  LOCK IN SHARE MODE
   {record_again(dialect)}""")


def record_again(dialect: MySqlDialect) -> str:
    """Behind an INSERT of journal entries: what becomes of an entry that is there already."""
    changes = dialect.unless("detent_steps", columns_of(Step)[2:], f"state IN {FINAL_STEP}")
    return f" ON DUPLICATE KEY UPDATE {changes}"
