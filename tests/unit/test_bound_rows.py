"""Statements over rows of bound values, as SQLite gets them."""

import sqlite3

import pytest

from detent.stores.sqlite.quick_batches import MOST_ROWS, BoundRows

ONE_PARAMETER = "INSERT INTO numbers SELECT number, name FROM {rows} WHERE number IS NOT NULL AND ? = 'w1'"


@pytest.mark.parametrize("count", [0, 1, 9, 75, 255, 256, 257, 600])
def test_each_row_is_written_once_and_no_other(count: int) -> None:
    numbers = sqlite3.connect(":memory:")
    numbers.execute("CREATE TABLE numbers (number, name)")
    values = [value for number in range(count) for value in (number, f"name {number}")]
    assert BoundRows(ONE_PARAMETER, "number", "name").run(numbers, values, "w1") == count
    rows = numbers.execute("SELECT * FROM numbers ORDER BY number").fetchall()
    assert rows == [(number, f"name {number}") for number in range(count)]


def test_few_numbers_of_rows_are_prepared() -> None:
    numbers = sqlite3.connect(":memory:")
    numbers.execute("CREATE TABLE numbers (number, name)")
    insert = BoundRows(ONE_PARAMETER, "number", "name")
    for count in range(1, MOST_ROWS + 10):
        assert insert.run(numbers, [1, "one"] * count, "w1") == count
    assert len(insert._texts) == 28
    assert max(insert._texts) == MOST_ROWS


@pytest.mark.parametrize("count", [1, 2])
def test_a_statement_of_its_own_for_one_row_does_the_same(count: int) -> None:
    numbers = sqlite3.connect(":memory:")
    numbers.execute("CREATE TABLE numbers (number, name)")
    numbers.executemany("INSERT INTO numbers VALUES (?, 'old')", [[number] for number in range(4)])
    rename = "UPDATE numbers AS t SET name = x.name"
    update = BoundRows(
        f"{rename} FROM {{rows}} WHERE t.number = x.number AND ? = 'w1'",
        *("number", "name"),
        single=f"{rename} WHERE t.number = x.number AND ? = 'w1'",
    )
    values = [value for number in range(count) for value in (number, f"name {number}")]
    assert update.run(numbers, values, "w1") == count
    assert update.run(numbers, values, "w2") == 0
    names = [row[0] for row in numbers.execute("SELECT name FROM numbers ORDER BY number")]
    assert names == ["name 0", "name 1", "old", "old"][:count] + ["old"] * (4 - count)
