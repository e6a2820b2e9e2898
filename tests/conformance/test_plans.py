"""Plans: however long the backlog, what is hot goes through an index, and nothing sorts the backlog.

Asked on small tables and on large ones: a planner likes to read a small table whole, which on MySQL means to
wait for strangers' locks, and a plan made on an empty table may stay in use while it fills.
"""

import re

import pytest

from detent.kernel.operations import Start
from detent.kernel.rows import GraphPart, Readiness
from detent.stores.driver import batch, write
from detent.stores.sql.graphs import GraphStatements
from detent.stores.sqlite import next_nodes, quick_batches, quick_claims
from detent.stores.store import Store
from tests.conformance.builders import NOW, analyze, enlist, new_main, new_run, new_step, one, recording

OWN_DATABASE = True  # with statistics of its own rows

HOT = """
    fence known_runs lock_runs lock_executions delivered end_executions end_runs park_executions pending_steps
    pending_children pending_messages add_readiness full_readiness clear_readiness wake consume_messages
    claim claim_on claim_at_once lease claimed claimed_runs due_timers promote next_due next_work
    held_by progressed release lock_run hold unhold cancel_executions children delete_steps latest
    hero_run run executions
    journal history unread_messages
""".split()
# Of graphs.  (What only inserts, and what changes one run by its key, has nothing to plan.)
HOT_GRAPHS = """
    counts put_counts hashes outputs past last_reattempt finish_rest withdraw graph delete_graph set_graph
    set_frozen
    waits delete_waits await_runs wake_nodes outdated_runs unknown_jobs skip_execution renew
""".split()
BACKLOG = 2000


@pytest.fixture(params=[1, BACKLOG], ids=["small tables", "large tables"])
def filled(request: pytest.FixtureRequest, store: Store) -> Store:
    """As many runs ready as waiting for their time as finished, each with a record."""
    enlist(store, "w1")
    for state in ("ready", "timer", "completed"):
        runs = [f"{state}-{number:05}" for number in range(request.param)]
        one(
            store,
            Start(
                runs=[
                    new_run(
                        run,
                        hero_type="Order",
                        hero_id=run,
                        exclusive=1,
                        kind="class",
                        signature=f"{number % 7}",
                    )
                    for number, run in enumerate(runs)
                ],
                executions=[
                    new_main(run, state=state, scheduled_for=NOW + number, job=f"job{number % 20}")
                    for number, run in enumerate(runs)
                ],
                steps=[new_step(run) for run in runs],
                graphs=[GraphPart(run_id=run, part=0, body="{}") for run in runs],
                readiness=[Readiness(run_id=run, node="join", required=2, settled=1) for run in runs],
            ),
        )
    with store._writer.transaction() as tx:
        targets = [f"ready-{number:05}" for number in range(request.param)]
        waits = [{"target": target, "run_id": target, "node": "main"} for target in targets]
        write(tx, tx.sql.graphs.insert_waits, waits)
    tables = ("runs", "executions", "steps", "graphs", "readiness", "waits")
    analyze(store, *(f"detent_{table}" for table in tables))
    return store


def test_what_is_hot_goes_through_an_index(filled: Store) -> None:
    plans = {name: explain(filled, name) for name in [*HOT, *HOT_GRAPHS]}
    assert not {name: plan for name, plan in plans.items() if whole_tables(filled.dialect, plan)}


def test_every_statement_of_graphs_is_planned_or_only_inserts(store: Store) -> None:
    known = set(GraphStatements.__struct_fields__)
    assert known - set(HOT_GRAPHS) == {"insert_ended", "insert_graphs", "insert_waits"}


def test_claiming_sorts_nothing(filled: Store) -> None:
    plans = {name: explain(filled, name) for name in ("claim", "claim_on", "due_timers")}
    assert not {name: plan for name, plan in plans.items() if re.search(r"Sort|filesort|TEMP B-TREE", plan)}


def explain(store: Store, name: str) -> str:
    statements = store.driver.statements
    statement: str = getattr(statements.graphs if name in HOT_GRAPHS else statements, name)
    if not statement:  # this database takes two others for it
        return ""
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
                "required": 2,
                "settled": 1,
                "finished_at": NOW,
                "mine": 0,
                "target": f"ready-{number:05}",
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
    "floor": NOW,
    "precedence": 0,
    "queue": "default",
    "limit": 10,
    "version": "v1",
    "tokens": "{t}",
    "worker": "w1",
    "keep": "",
    "type": "flow",
    "hero_type": "Order",
    "hero_id": "ready-00001",
    "name": "paid",
    "signature": "3",
    "irregular": 0,
    "frozen_at": NOW,
    "behind": "",
    "before": NOW,
    "result": None,
    "digest": None,
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


def test_a_whole_table_is_seen(filled: Store) -> None:
    """The check itself: it must see what it is looking for."""
    verb = {"sqlite": "EXPLAIN QUERY PLAN", "postgres": "EXPLAIN", "mysql": "EXPLAIN"}[filled.dialect]
    with filled._user_connections.connection() as connection, connection.autocommit() as tx:
        rows = tx.query(f"{verb} SELECT COUNT(*) FROM detent_steps WHERE kind = 'step'")
    assert whole_tables(filled.dialect, "\n".join(" | ".join(map(str, row)) for row in rows))


def test_recording_is_one_statement(filled: Store) -> None:
    [claimed] = filled.claim("w1", queues=["default"], jobs=["job0"], tokens=["t"], now=NOW)
    quick = filled.driver.quick([recording(claimed, new_step(claimed.run_id, "fresh"))], helpers_wanted=False)
    assert quick is not None


@pytest.mark.parametrize("verb", ["_quick_start", "_quick_end", "_settle_nodes"])
def test_quick_starts_and_ends_go_through_indexes(filled: Store, verb: str) -> None:
    statement = getattr(filled.driver, verb, "")
    if not statement:
        assert filled.dialect != "postgres"
        return
    facts = {"worker": "w1", "channel": "detent", "payload": ""}
    given = {name: value for name, value in facts.items() if f"%({name})s" in statement}
    with filled._writer.transaction() as tx:
        rows = tx.query(f"EXPLAIN {statement}", rows=PARAMETERS["rows"], **given)
    assert not whole_tables(filled.dialect, "\n".join(row[0] for row in rows))


def test_a_quick_claim_goes_through_the_index_of_what_is_ready(filled: Store) -> None:
    if filled.dialect != "sqlite":
        return
    given = {"worker": "w1", "queue": "default", "limit": 5, "jobs": "[]", "now": NOW, "version": ""}
    with filled._writer.transaction() as tx:
        rows = tx.query(f"EXPLAIN QUERY PLAN {quick_claims.SEARCH}", **given)
    plan = "\n".join(row[3] for row in rows)
    assert "SEARCH e USING INDEX detent_executions_ready (queue=?)" in plan
    assert "SEARCH r USING PRIMARY KEY" in plan
    assert "TEMP B-TREE" not in plan


@pytest.mark.parametrize("rows", [1, 2, 256])
def test_statements_over_bound_rows_go_through_indexes(filled: Store, rows: int) -> None:
    if filled.dialect != "sqlite":
        return
    named = {**vars(quick_batches), **vars(quick_claims), **vars(next_nodes)}
    statements = [one for one in named.values() if isinstance(one, quick_batches.BoundRows)]
    assert len(statements) == 9
    for text in (*(statement.text(rows) for statement in statements), quick_batches.WATCHED):
        with filled._writer.transaction() as tx:
            values = ["[]"] * len({found[1] or found.start() for found in re.finditer(r"\?(\d*)", text)})
            plan = tx.connection.execute(f"EXPLAIN QUERY PLAN {text}", values).fetchall()
        assert not whole_tables("sqlite", "\n".join(row[3] for row in plan)), text
        assert "detent_executions_" not in str(plan)  # by the primary key
