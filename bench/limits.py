"""What the database itself can do: the yardstick."""

from __future__ import annotations

import json
import time

from detent.stores.open import open_store

ROWS = 300
BATCH = 10_000


def one_row_commits(url: str) -> float:
    """Commits of one row per second, one connection, one after the other."""
    driver = open_store(url).driver
    connection = driver.connect()
    cursor = connection.cursor()
    cursor.execute("CREATE TABLE bench_rows (id VARCHAR(40), value VARCHAR(40))")
    begun = time.perf_counter()
    for number in range(ROWS):
        cursor.execute(f"INSERT INTO bench_rows VALUES ('{number}', 'x')")
    taken = time.perf_counter() - begun
    connection.close()
    return ROWS / taken


def batched_rows(url: str) -> float:
    """Rows per second that one JSON batch inserts in one commit."""
    store = open_store(url)
    driver = store.driver
    connection = driver.connect()
    cursor = connection.cursor()
    cursor.execute("CREATE TABLE bench_batch (id VARCHAR(40), value VARCHAR(40))")
    rows = json.dumps([{"id": str(number), "value": "x"} for number in range(BATCH)])
    source = {
        "sqlite": "(SELECT json_extract(value, '$.id') AS id, json_extract(value, '$.value') AS value"
        " FROM json_each(:rows)) AS x",
        "postgres": "json_to_recordset(CAST(%(rows)s AS json)) AS x(id text, value text)",
        "mysql": "JSON_TABLE(%(rows)s, '$[*]' COLUMNS (id VARCHAR(40) PATH '$.id',"
        " value VARCHAR(40) PATH '$.value')) AS x",
    }[store.dialect]
    begun = time.perf_counter()
    cursor.execute(f"INSERT INTO bench_batch SELECT x.id, x.value FROM {source}", {"rows": rows})
    connection.commit()
    taken = time.perf_counter() - begun
    connection.close()
    return BATCH / taken
