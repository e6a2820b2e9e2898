"""Plans of listings: every filter goes through an index that has the order of pages, and nothing is sorted.

Asked on small tables and on large ones, like all plans (see test_plans.py).
"""

import re
from typing import Any

import pytest

from detent.kernel.operations import Start
from detent.stores.driver import batch
from detent.stores.sql.queries import TABLES_OF_A_RUN
from detent.stores.store import Store
from detent.stores.verbs.listing import Wanted, listing
from tests.conformance.builders import NOW, analyze, enlist, new_main, new_run, new_step, one

OWN_DATABASE = True  # with statistics of its own rows

BACKLOG, EXECUTING = 600, 5
STATES = "ready performing paused finished failed canceled".split()
ORDERED: dict[str, dict[str, Any]] = {
    "all": {},
    "type": {"type": "type3"},
    "type and finished": {"type": "type3", "state": "finished"},
    "type and paused": {"type": "type3", "state": "paused"},
    "queue": {"queue": "default"},
    "hero": {"hero_type": "Order", "hero_id": "7"},
    "parent": {"parent": "finished-00001"},
    "attribute": {"attributes": {"customer": "c7"}},
    "attributes": {"attributes": {"customer": "c7", "express": True, "amount": 7}},
    "span": {"after": NOW, "before": NOW + BACKLOG},
    **{state: {"state": state} for state in STATES if state != "performing"},
}
MERGED: dict[str, dict[str, Any]] = {"active": {"state": "active"}}  # of two ordered pages
SORTED: dict[str, dict[str, Any]] = {"performing": {"state": "performing"}, "overdue": {"overdue": NOW + 5}}


@pytest.fixture(params=[1, BACKLOG], ids=["small tables", "large tables"])
def filled(request: pytest.FixtureRequest, store: Store) -> Store:
    """As many runs in each state, most of them with all that they can be found by."""
    enlist(store, "w1")
    for state in STATES:
        some = min(request.param, EXECUTING) if state == "performing" else request.param
        runs = [f"{state}-{number:05}" for number in range(some)]
        one(
            store,
            Start(
                runs=[
                    new_run(
                        run,
                        type=f"type{number % 20}",
                        hero_type="Order",
                        hero_id=str(number),
                        parent=f"finished-{number % 100:05}" if state != "finished" else None,
                        created_at=NOW + number,
                        attributes={"customer": f"c{number % 50}", "amount": number, "express": True},
                    )
                    for number, run in enumerate(runs)
                ],
                executions=[
                    new_main(
                        run,
                        state={"performing": "executing", "ready": "ready", "paused": "held"}.get(
                            state, "completed"
                        ),
                        scheduled_for=NOW + number,
                        worker="w1" if state == "performing" else None,
                        token=run if state == "performing" else None,
                    )
                    for number, run in enumerate(runs)
                ],
                steps=[new_step(run) for run in runs],
            ),
        )
    with store._writer.autocommit() as tx:
        for state in ("paused", "finished", "failed", "canceled"):
            ended = "NULL" if state == "paused" else "created_at + 1"
            tx.run(
                f"UPDATE detent_runs SET state = '{state}', finished_at = {ended}"
                f" WHERE SUBSTR(id, 1, {len(state)}) = '{state}'"
            )
    analyze(store, "detent_runs", *TABLES_OF_A_RUN)
    return store


def test_every_filter_goes_through_an_index(filled: Store) -> None:
    plans = explain(filled, ORDERED | MERGED)
    assert not {name: plan for name, plan in plans.items() if whole_tables(filled.dialect, plan)}


def test_a_page_is_not_sorted(filled: Store) -> None:
    plans = explain(filled, ORDERED)
    assert not {name: plan for name, plan in plans.items() if sorts(plan)}


@pytest.mark.parametrize("filled", [BACKLOG], indirect=True, ids=["large tables"])
def test_what_is_sorted_is_found_by_an_index_first(filled: Store) -> None:
    """On small tables a planner that may sort may as well read them whole."""
    plans = explain(filled, SORTED)
    assert not {name: plan for name, plan in plans.items() if whole_tables(filled.dialect, plan)}


def test_retention_goes_through_an_index(filled: Store) -> None:
    queries = filled.driver.queries
    rows = batch([{"id": f"finished-{n:05}", "run_id": f"finished-{n:05}"} for n in range(20)])
    params = {"rows": rows, "before": NOW + BACKLOG, "at": NOW, "id": "finished", "limit": 100}
    statements = [queries.expired, queries.ancestors, queries.removable, *queries.remove, queries.overdue]
    plans = {statement: _plan(filled, statement, params | {"overdue": NOW}) for statement in statements}
    assert not {name: plan for name, plan in plans.items() if whole_tables(filled.dialect, plan)}
    assert not sorts(plans[queries.expired])


def explain(store: Store, listings: dict[str, dict[str, Any]]) -> dict[str, str]:
    """The plans of the first page and of one further on."""
    plans: dict[str, str] = {}
    for name, filters in listings.items():
        for page, beyond in (("first", None), ("next", (NOW + 50, "ready-00050"))):
            wanted = Wanted(limit=20, **filters, beyond=beyond)
            statement, params = listing(store.driver.queries, wanted)
            plans[f"{page} page by {name}"] = _plan(store, statement, params, user_tx=wanted.sorts)
    return plans


def _plan(store: Store, statement: str, params: dict[str, Any], *, user_tx: bool = False) -> str:
    verb = {"sqlite": "EXPLAIN QUERY PLAN", "postgres": "EXPLAIN (COSTS OFF)", "mysql": "EXPLAIN"}[
        store.dialect
    ]
    pool = store._user_connections if user_tx else store._pool
    with pool.connection() as connection, connection.transaction() as tx:
        rows = tx.query(f"{verb} {store.driver.adapt(statement)}", **params)
        return "\n".join(" | ".join(map(str, row)) for row in rows)


def whole_tables(dialect: str, plan: str) -> list[str]:
    """The lines of a plan that read all of a table of ours, and not in the order of an index."""
    if dialect == "postgres":
        return re.findall(r"Seq Scan on detent_\w+", plan)
    if dialect == "sqlite":
        return re.findall(r"SCAN (?:detent_\w+|[arefop])(?:$|\n)", plan)
    rows = [line.split(" | ") for line in plan.splitlines()]
    return [table for _, _, table, kind, *_ in rows if kind == "ALL" and not re.match("x$|<", table)]


def sorts(plan: str) -> list[str]:
    return re.findall(r"Sort|filesort|TEMP B-TREE", plan)
