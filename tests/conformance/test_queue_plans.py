"""Plans of claims on limited queues: a long backlog of one key is never read on the way to another key."""

import re
from typing import Any

import pytest

from detent import Queue
from detent.kernel.operations import Start
from detent.stores.driver import batch
from detent.stores.store import Store
from tests.conformance.builders import NOW, analyze, enlist, new_main, new_run, one

BACKLOG = 2000
QUEUE = "llm"
INDEXES = {
    "candidates": "detent_executions_ready",
    "candidates_at": "detent_executions_ready",
    "precedences": "detent_executions_ready",
    "keys": "detent_executions_keyed",
    "heads": "detent_executions_keyed",
    "heads_at": "detent_executions_keyed",
    "waiting_key": "detent_executions_keyed",
    "executing": "detent_executions_worker",
}
SORTED = re.compile(r"Sort|filesort|TEMP B-TREE")
PARAMETERS: dict[str, Any] = {
    "queue": QUEUE,
    "limit": 100,
    "precedence": 0,
    "queue_key": "big",
    "after": "big",
    "skip": 0,
    "version": "v1",
    "jobs": batch([{"job": "flow"}]),
    "now": NOW,
}


@pytest.fixture(params=[False, True], ids=["without statistics", "with statistics"])
def filled(request: pytest.FixtureRequest, store: Store) -> Store:
    """One key with a backlog, and some others behind it."""
    enlist(store, "w1")
    mains = [new_main(f"big-{n:05}", queue=QUEUE, queue_key="big") for n in range(BACKLOG)]
    mains += [new_main(f"other-{n}", queue=QUEUE, queue_key=f"other-{n}") for n in range(20)]
    one(store, Start(runs=[new_run(row.run_id, queue=QUEUE) for row in mains], executions=mains))
    if request.param:
        analyze(store, "detent_executions")
    return store


@pytest.mark.parametrize("name", list(INDEXES))
def test_a_claim_goes_through_the_index_that_serves_it(filled: Store, name: str) -> None:
    plan = explain(filled, name)
    assert INDEXES[name] in plan
    others = {index for index in INDEXES.values() if index != INDEXES[name]}
    assert not [index for index in others if re.search(rf"{index}\b(?!,)", used(filled.dialect, plan))]


@pytest.mark.parametrize("name", ["candidates", "candidates_at", "keys", "precedences"])
def test_a_claim_sorts_nothing(filled: Store, name: str) -> None:
    assert not SORTED.search(explain(filled, name))


def used(dialect: str, plan: str) -> str:
    """The indexes that a plan uses; MySQL also names those that it could use."""
    if dialect != "mysql":
        return plan
    return "\n".join(line.split(" | ")[5] for line in plan.splitlines())


def explain(store: Store, name: str) -> str:
    rows = [{"queue_key": f"other-{n}", "precedence": 0, "queue": QUEUE, "job": "flow"} for n in range(20)]
    given = {**PARAMETERS, "rows": batch(rows)}
    statement: str = getattr(store.driver.statements.queues, name)
    verb = {"sqlite": "EXPLAIN QUERY PLAN", "postgres": "EXPLAIN (COSTS OFF)", "mysql": "EXPLAIN"}
    wanted = {key: value for key, value in given.items() if re.search(rf"(:|%\(){key}\b", statement)}
    with store._writer.transaction() as tx:
        found = tx.query(f"{verb[store.dialect]} {statement}", **wanted)
    return "\n".join(" | ".join(map(str, row)) for row in found)


def test_a_claim_reaches_other_keys_behind_a_backlog(filled: Store) -> None:
    filled.declare_queues({QUEUE: Queue(QUEUE, key_concurrency=1).limits}, now=NOW)
    tokens = [f"t{n}" for n in range(30)]
    found = filled.claim_limited("w1", queues=[QUEUE], running={}, jobs=["flow"], tokens=tokens, now=NOW)
    assert len({row.queue_key for row in found.claimed}) == len(found.claimed) == 21
