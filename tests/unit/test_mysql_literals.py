"""Statements with their values in them: the same statement, in a form that MariaDB executes faster."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detent.stores.driver import batch, named_to_pyformat
from detent.stores.mysql.dialect import MySqlDialect
from detent.stores.mysql.driver import MySqlDriver
from detent.stores.mysql.literals import (
    MOST_CASES,
    MOST_VALUES,
    Unwritable,
    _form,
    fenced_insert,
    literal,
    write,
)
from detent.stores.sql.dialect import insert, kind_of
from detent.stores.sql.graphs import KEYS, ON_KEY

DIALECT = MySqlDialect()
INSERT = named_to_pyformat(insert(DIALECT, "detent_history", ("run_id", "happened_at", "event")))
UPDATE = named_to_pyformat(
    DIALECT.update(
        "detent_executions",
        (*KEYS, "result"),
        "state = 'done', result = x.result, worker = :worker",
        f"{ON_KEY} AND t.state = 'executing'",
    )
)


def _statements(statements: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    for name in statements.__struct_fields__:
        value = getattr(statements, name)
        if isinstance(value, str):
            yield prefix + name, value
        elif isinstance(value, tuple):
            yield from ((f"{prefix}{name}.{place}", text) for place, text in enumerate(value))
        elif not isinstance(value, int):
            yield from _statements(value, f"{prefix}{name}.")


# Each would end a text, or begin a statement, a comment or a parameter, if it were not escaped.
HOSTILE = [
    "'",
    "''",
    "\\",
    "\\'; DROP TABLE detent_runs; -- ",
    "'; DROP TABLE detent_runs; -- ",
    "'); DROP TABLE detent_runs #",
    '"; DROP TABLE detent_runs; /* `',
    "\0'\n;\r\x1a",
    "\u00bf'\u7e17'\U0001f600'",  # the last bytes of these are quotes and backslashes in other encodings
    "%(rows)s %(worker)s %% %s x.run_id t.state",
]


STATEMENTS = [
    *_statements(MySqlDriver.statements),
    *[(name, named_to_pyformat(text)) for name, text in _statements(MySqlDriver.queries)],
]


def _params(statement: str, text: str) -> dict[str, str]:
    """Parameters for a statement, in which every text is `text`."""
    params = dict.fromkeys(re.findall(r"%\((\w+)\)s", statement), text)
    for name, columns in re.findall(r"JSON_TABLE\(%\((\w+)\)s, '\$\[\*\]' COLUMNS \((.*?)\)\) AS", statement):
        fields = re.findall(r"PATH '\$\.(\w+)'", columns)
        params[name] = batch([{field: 1 if kind_of(field) == "int" else text for field in fields}])
    return params


def _key(run: str, node: str = "main", result: str | None = "1") -> dict[str, Any]:
    return {"run_id": run, "node": node, "attempt": 1, "result": result}


def _texts(sql: str) -> tuple[str, list[str]]:
    """The statement without its texts, and those, as a server reads them."""
    texts = [found[1:-1].replace("''", "'") for found in re.findall(r"'(?:[^']|'')*'", sql)]
    return re.sub(r"'(?:[^']|'')*'", "?", sql), texts


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(alphabet=st.sampled_from("'\\\"; -#%x.()\n\0é漢") | st.characters(codec="utf-8"))))
def test_no_text_ends_before_its_own_quote(values: list[str]) -> None:
    """A text that did could add a statement of its own to the packet."""
    sql = "SELECT " + ", ".join(["1", *map(literal, values)])
    assert _texts(sql) == ("SELECT " + ", ".join(["1", *"?" * len(values)]), values)


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_hostile_text_changes_no_statement(hostile: str) -> None:
    """Every statement of Detent has the same structure with it as with a harmless text."""
    for name, statement in STATEMENTS:
        harmless = _texts(write(statement, _params(statement, "text")))
        structure, texts = _texts(write(statement, _params(statement, hostile)))
        assert structure == harmless[0], name
        inside_json = json.dumps(hostile, ensure_ascii=False)[1:-1]
        for expected, text in zip(harmless[1], texts, strict=True):
            if expected.startswith("[{"):
                assert json.loads(text) == json.loads(expected.replace('"text"', f'"{inside_json}"')), name
            else:
                assert text == (hostile if expected == "text" else expected), name


def test_only_texts_and_integers_are_written() -> None:
    for value in (b"'", 1.5, ["'"], object()):
        with pytest.raises(Unwritable):
            literal(value)


def test_a_batch_is_inserted_by_its_values() -> None:
    rows = [
        {"run_id": "it's", "happened_at": 5, "event": "x.run_id %(rows)s"},
        {"run_id": "b", "event": None},
    ]
    assert write(INSERT, {"rows": batch(rows)}) == (
        "INSERT INTO detent_history (run_id, happened_at, event) VALUES"
        " ('it''s', 5, 'x.run_id %(rows)s'), ('b', NULL, NULL)"
    )


def test_one_row_is_updated_without_a_join() -> None:
    params = {"rows": batch([_key("a", result="x.node; t.state")]), "worker": "x.result"}
    assert write(UPDATE, params) == (
        "UPDATE detent_executions AS t FORCE INDEX (PRIMARY)"
        " SET t.state = 'done', t.result = 'x.node; t.state', t.worker = 'x.result'"
        " WHERE t.run_id = 'a' AND t.node = 'main' AND t.attempt = 1 AND t.state = 'executing'"
    )


def test_rows_that_differ_by_one_key_are_updated_by_cases_of_it() -> None:
    params = {"rows": batch([_key("a"), _key("b", result=None)]), "worker": "w"}
    assert write(UPDATE, params) == (
        "UPDATE detent_executions AS t FORCE INDEX (PRIMARY)"
        " SET t.state = 'done', t.result = CASE t.run_id WHEN 'a' THEN '1' WHEN 'b' THEN NULL END,"
        " t.worker = 'w'"
        " WHERE t.node = 'main' AND t.attempt = 1 AND t.run_id IN ('a', 'b') AND t.state = 'executing'"
    )


@pytest.mark.parametrize(
    "rows",
    [
        [_key("a", "one"), _key("b", "two")],
        [_key("a"), _key("a")],
        [_key(str(number)) for number in range(MOST_CASES + 1)],
        [{**_key("a"), "attempt": "1"}],
        [{**_key("a"), "run_id": 1}],
        [{**_key("a"), "result": ["a list"]}],
        [],
    ],
    ids=[
        "two keys",
        "one key twice",
        "too many",
        "a text for a number",
        "a number for a text",
        "a list",
        "none",
    ],
)
def test_any_other_batch_keeps_its_json(rows: list[dict[str, Any]]) -> None:
    text = write(UPDATE, {"rows": batch(rows), "worker": "w"})
    assert text == UPDATE % {"rows": literal(batch(rows)), "worker": "'w'"}


def test_a_statement_that_grows_too_long_keeps_its_json() -> None:
    """The caller has measured the batch: a key that is repeated for each column must not fill a packet."""
    rows = [_key("é" * 400 + str(number), result=str(number)) for number in range(50)]
    statement = UPDATE.replace("t.worker =", "t.error = x.result, t.input = x.result, t.worker =")
    assert "JSON_TABLE" not in write(UPDATE, {"rows": batch(rows), "worker": "w"})
    assert "JSON_TABLE" in write(statement, {"rows": batch(rows), "worker": "w"})


def test_only_the_tables_that_are_written_most_take_long_lists_of_values() -> None:
    steps = named_to_pyformat(insert(DIALECT, "detent_steps", ("run_id", "step_key")))
    for statement, key, is_list in [(INSERT, "event", False), (steps, "step_key", True)]:
        for number in (MOST_VALUES, MOST_VALUES + 1):
            text = write(statement, {"rows": batch([{"run_id": "a", key: str(n)} for n in range(number)])})
            assert ("JSON_TABLE" not in text) == (is_list or number <= MOST_VALUES)


def _select(fields: str = "t.state", rest: str = "") -> str:
    keys = f"{DIALECT.rows(*KEYS)} {DIALECT.join('detent_executions', 't')} ON {ON_KEY}"
    return named_to_pyformat(f"SELECT {fields} FROM {keys}{rest}")


def test_rows_are_found_by_a_list_of_their_keys() -> None:
    runs = f" {DIALECT.join('detent_runs', 'r')} ON r.id = t.run_id"
    text = write(_select("t.state, r.input", runs), {"rows": batch([_key("it's"), _key("b")])})
    assert text == (
        "SELECT t.state, r.input FROM detent_executions AS t FORCE INDEX (PRIMARY)"
        " STRAIGHT_JOIN detent_runs AS r FORCE INDEX (PRIMARY) ON r.id = t.run_id"
        " WHERE t.node = 'main' AND t.attempt = 1 AND t.run_id IN ('it''s', 'b')"
    )


def test_one_row_is_found_and_locked_by_its_key() -> None:
    text = write(_select(rest=" ORDER BY t.run_id FOR UPDATE"), {"rows": batch([_key("a")])})
    assert text == (
        "SELECT t.state FROM detent_executions AS t FORCE INDEX (PRIMARY)"
        " WHERE t.run_id = 'a' AND t.node = 'main' AND t.attempt = 1 ORDER BY t.run_id FOR UPDATE"
    )


@pytest.mark.parametrize(
    "rows",
    [[_key("a"), _key("a")], [_key("a", "one"), _key("b", "two")], [_key(str(n)) for n in range(251)], []],
    ids=["one key twice", "two keys", "too many", "none"],
)
def test_rows_of_any_other_batch_are_found_by_a_join(rows: list[dict[str, Any]]) -> None:
    assert "JSON_TABLE" in write(_select(), {"rows": batch(rows)})


@pytest.mark.parametrize(
    "statement",
    [
        _select("t.state, x.run_id"),
        _select(rest=" WHERE t.state = 'ready'"),
        _select(rest=" STRAIGHT_JOIN detent_runs AS r FORCE INDEX (PRIMARY) ON r.id = x.run_id"),
        _select().replace(" AND t.attempt = x.attempt", ""),
        _select("COUNT(*)"),
    ],
    ids=["a column of the batch", "a condition", "a join to the batch", "a part of the key", "a count"],
)
def test_a_select_of_more_than_the_rows_with_these_keys_keeps_its_join(statement: str) -> None:
    assert _form(_select()) is not None
    assert _form(statement) is None


def test_the_frequent_selects_by_key_have_a_form_of_their_own() -> None:
    statements = MySqlDriver.statements
    for text in (statements.lock_runs, statements.lock_executions, statements.claimed_runs):
        assert _form(text) is not None


def test_an_insert_that_reads_more_than_its_batch_keeps_its_json() -> None:
    assert _form(INSERT) is not None
    assert _form(INSERT + " WHERE x.event <> 'a'") is None
    assert _form(INSERT + " ON DUPLICATE KEY UPDATE event = x.event") is None
    assert _form(INSERT + " ON DUPLICATE KEY UPDATE event = VALUES(event)") is not None


def test_an_update_that_reads_what_it_has_changed_keeps_its_join() -> None:
    """Without a join, MySQL would give it the new value."""
    changes = "state = 'done', result = t.state"
    assert _form(named_to_pyformat(DIALECT.update("detent_executions", KEYS, changes, ON_KEY))) is None


def test_an_update_by_a_part_of_the_key_keeps_its_join() -> None:
    """Without a join, it would pass over a row that another transaction is about to make match."""
    part = "t.run_id = x.run_id AND t.node = x.node AND t.state IN ('parked')"
    changes = "state = 'ready'"
    assert _form(named_to_pyformat(DIALECT.update("detent_executions", KEYS, changes, part))) is None


def test_inserts_of_batches_and_frequent_updates_have_a_form_of_their_own() -> None:
    statements = [(name, text) for name, text in _statements(MySqlDriver.statements) if "JSON_TABLE" in text]
    assert [n for n, text in statements if text.split()[0] == "INSERT" and _form(text) is None] == []
    found = {name for name, text in statements if text.split()[0] == "UPDATE" and _form(text) is not None}
    assert found >= {"end_executions", "end_runs", "park_executions", "claimed", "promote", "add_readiness"}
    assert not found & {"wake", "graphs.wake_nodes", "deciders.end_timers"}


def test_no_statement_of_ours_is_several() -> None:
    """They are joined by semicolons; a comment would hide the next one."""
    assert [name for name, text in STATEMENTS if re.search(r";|--|#|/\*", text)] == []


def test_a_fenced_insert_reads_the_worker_once_under_its_lock() -> None:
    assert fenced_insert("t", ("a", "b"), "w'", [("1", 2), ("3", None)]) == (
        "INSERT INTO t (a, b) VALUES ((SELECT '1' FROM detent_workers FORCE INDEX (PRIMARY)"
        " WHERE id = 'w''' LOCK IN SHARE MODE), 2), ('3', NULL)"
    )
