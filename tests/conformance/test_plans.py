"""Plans: however long the backlog, what is hot goes through an index, and nothing sorts the backlog.

Asked on small tables and on large ones: a planner likes to read a small table whole, which on MySQL means to
wait for strangers' locks, and a plan made on an empty table may stay in use while it fills.
"""

import re

import pytest

from detent.kernel.model import Start
from detent.stores.base import batch
from detent.stores.sql import SqlStore
from tests.conformance.builders import NOW, enlist, new_main, new_run, new_step, one, recording

HOT = """
    fence known_runs lock_runs lock_executions delivered end_executions end_runs park_executions pending_steps
    pending_children pending_messages add_readiness full_readiness clear_readiness wake consume_messages
    claim claimed claimed_runs due_timers promote next_due held_by progressed release lock_run
    hold unhold cancel_executions children delete_steps latest hero_run run executions
    journal history unread_messages
""".split()
BACKLOG = 2000


@pytest.fixture(params=[1, BACKLOG], ids=["small tables", "large tables"])
def filled(request: pytest.FixtureRequest, store: SqlStore) -> SqlStore:
    """As many runs ready as waiting for their time as finished, each with a record."""
    enlist(store, "w1")
    for state in ("ready", "timer", "completed"):
        runs = [f"{state}-{number:05}" for number in range(request.param)]
        one(
            store,
            Start(
                runs=[new_run(run, hero_type="Order", hero_id=run, exclusive=1) for run in runs],
                executions=[
                    new_main(run, state=state, scheduled_for=NOW + number, job=f"job{number % 20}")
                    for number, run in enumerate(runs)
                ],
                steps=[new_step(run) for run in runs],
            ),
        )
    with store._writer.autocommit() as tx:
        for table in ("runs", "executions", "steps"):
            if store.dialect == "mysql":
                tx.query(f"ANALYZE TABLE detent_{table}")
            elif store.dialect == "postgres":  # nobody does it on SQLite, which is the better for it
                tx.run(f"ANALYZE detent_{table}")
    return store


def test_what_is_hot_goes_through_an_index(filled: SqlStore) -> None:
    plans = {name: explain(filled, name) for name in HOT}
    assert not {name: plan for name, plan in plans.items() if whole_tables(filled.dialect, plan)}


def test_claiming_sorts_nothing(filled: SqlStore) -> None:
    plans = {name: explain(filled, name) for name in ("claim", "due_timers")}
    assert not {name: plan for name, plan in plans.items() if re.search(r"Sort|filesort|TEMP B-TREE", plan)}


def explain(store: SqlStore, name: str) -> str:
    statement: str = getattr(store.driver.statements, name)
    given = {key: value for key, value in PARAMETERS.items() if re.search(rf"(:|%\(){key}\b", statement)}
    verb = {"sqlite": "EXPLAIN QUERY PLAN", "postgres": "EXPLAIN (COSTS OFF)", "mysql": "EXPLAIN"}[
        store.dialect
    ]
    with store._writer.transaction() as tx:
        return "\n".join(" | ".join(map(str, row)) for row in tx.query(f"{verb} {statement}", **given))


PARAMETERS = {
    "rows": batch(
        [
            {
                "run_id": f"ready-{number:05}",
                "id": f"ready-{number:05}",
                "node": "main",
                "attempt": 1,
                "token": "t",
                "state": "ready",
                "job": "job1",
                "name": "paid",
                "seq": number,
                "increment": 1,
                "step_key": "charge",
            }
            for number in range(0, BACKLOG, BACKLOG // 20)
        ]
    ),
    "run_id": "ready-00001",
    "id": "ready-00001",
    "node": "main",
    "attempt": 1,
    "token": "t",
    "now": NOW + BACKLOG,
    "queue": "default",
    "limit": 10,
    "worker": "w1",
    "keep": "",
    "type": "flow",
    "hero_type": "Order",
    "hero_id": "ready-00001",
    "name": "paid",
}


def whole_tables(dialect: str, plan: str) -> list[str]:
    """The lines of a plan that read all of a table of ours."""
    if dialect == "postgres":
        return re.findall(r"Seq Scan on detent_\w+", plan)
    if dialect == "sqlite":
        # `SCAN t USING INDEX` goes through an index in its order; a batch is a virtual table.
        return re.findall(r"SCAN (?:detent_\w+|[a-z])(?:$|\n)", plan)
    rows = [line.split(" | ") for line in plan.splitlines()]
    return [
        table for _, _, table, kind, *_ in rows if kind in ("ALL", "index") and table not in ("x", "None")
    ]


def test_a_whole_table_is_seen(filled: SqlStore) -> None:
    """The check itself: it must see what it is looking for."""
    verb = {"sqlite": "EXPLAIN QUERY PLAN", "postgres": "EXPLAIN", "mysql": "EXPLAIN"}[filled.dialect]
    with filled._guests.lane() as lane, lane.autocommit() as tx:
        rows = tx.query(f"{verb} SELECT COUNT(*) FROM detent_steps WHERE kind = 'step'")
    assert whole_tables(filled.dialect, "\n".join(" | ".join(map(str, row)) for row in rows))


def test_recording_is_one_statement_where_it_can_be(filled: SqlStore) -> None:
    [claimed] = filled.claim("w1", queues=["default"], jobs=["job0"], tokens=["t"], now=NOW)
    quick = filled.driver.quick([recording(claimed, new_step(claimed.run_id, "fresh"))])
    assert (quick is not None) == (filled.dialect == "postgres")
