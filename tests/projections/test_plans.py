"""Plans: however many events and items there are, what is asked of them goes through an index."""

import re
from collections.abc import Iterator

import pytest

from detent.kernel.decide import EventRow
from detent.stores.driver import batch, write
from detent.stores.open import open_store
from detent.stores.sql.projections import ProjectionStatements
from detent.stores.store import Store
from detent.stores.verbs import projections as stored
from tests.conformance.builders import analyze
from tests.conformance.test_plans import whole_tables

OWN_DATABASE = True  # with statistics of its own rows

MANY = 20_000
# All rows of a small table: there are as many as there are projections.
SMALL = {"generations", "overview"}
ONE_ROW = {"insert", "take", "lock", "save", "delete", "reached"}
ITEMS = {"live_item", "items", "item", "first_items", "put_items", "delete_items", "some_keys"}
PARAMETERS = {
    "name": "totals",
    "generation": 2,
    "key": "key-00100",
    "low": "key-001",
    "high": "key-002",
    "after": "",
    "limit": 10,
    "rows": batch(
        [
            {"projection": "totals", "generation": 2, "item_key": f"key-{number:05}", "value": "1"}
            for number in range(100)
        ]
    ),
}


@pytest.fixture
def filled(url: str) -> Iterator[Store]:
    store = open_store(url)
    with store._writer.transaction() as tx:
        stored.begin_generations(tx, {"totals": 1, "others": 1}, 1)
        for generation in (1, 2):
            items = [(f"key-{number:05}", "1") for number in range(MANY)]
            stored.write_items(tx, "totals", generation, items)
        events = [
            EventRow(
                run_id=f"account:{number}",
                sequence=1,
                position=number,
                decider="account",
                type="Added",
                version=1,
                data="{}",
                cause="Add",
                turn="t",
                happened_at=1,
            )
            for number in range(1, MANY)
        ]
        write(tx, tx.sql.deciders.insert_events, events)
    analyze(store, "detent_views", "detent_events", "detent_projections")
    yield store
    store.close()


def explain(store: Store, statement: str, **given: object) -> str:
    verbs = {"sqlite": "EXPLAIN QUERY PLAN", "postgres": "EXPLAIN (COSTS OFF)", "mysql": "EXPLAIN"}
    # As a user_tx: where users' statements run too, and the planner is as the server has it.
    with store._user_connections.connection() as connection, connection.transaction() as tx:
        rows = tx.query(f"{verbs[store.dialect]} {statement}", **given)
    return "\n".join(" | ".join(map(str, row)) for row in rows)


def test_items_are_found_by_their_key(filled: Store) -> None:
    plans = {}
    for name in sorted(ITEMS):
        statement = getattr(filled.driver.statements.projections, name)
        given = {key: value for key, value in PARAMETERS.items() if re.search(rf"(:|%\(){key}\b", statement)}
        plans[name] = explain(filled, statement, **given)
    whole = {name: whole_tables(filled.dialect, plan) for name, plan in plans.items()}
    # The few generations may be read whole.
    assert not {n: plans[n] for n, found in whole.items() if [t for t in found if not few(t)]}


def few(line: str) -> bool:
    return "detent_projections" in line or line.strip() in ("p", "SCAN p")


def test_events_behind_a_position_are_found_by_it(filled: Store) -> None:
    plan = explain(filled, filled.driver.statements.deciders.events_since, after=MANY - 20, limit=10)
    assert not whole_tables(filled.dialect, plan), plan
    assert not re.search(r"Sort|filesort|TEMP B-TREE", plan), plan


def test_every_statement_of_projections_is_looked_at(filled: Store) -> None:
    known = set(ProjectionStatements.__struct_fields__)
    assert known == SMALL | ONE_ROW | ITEMS
