"""Plans of claims on limited queues: a long backlog of one key is never read on the way to another key."""

import re
from typing import Any

import msgspec
import pytest

from detent import Queue
from detent.kernel.operations import Start
from detent.stores.driver import Tx, batch
from detent.stores.store import Store
from tests.conformance.builders import NOW, analyze, enlist, new_main, new_run, one

OWN_DATABASE = True  # with statistics of its own rows

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
    plan = explain(filled, name).splitlines()
    # MySQL groups the values of at most `values_at_once` entries of the index that it has read in order.
    assert not [line for line in plan if SORTED.search(line) and "<derived" not in line]


def used(dialect: str, plan: str) -> str:
    """The indexes that a plan uses; MySQL also names those that it could use."""
    if dialect != "mysql":
        return plan
    return "\n".join(line.split(" | ")[5] for line in plan.splitlines())


def prepared(store: Store, name: str, **more: Any) -> tuple[str, dict[str, Any]]:
    """A statement, and those of the parameters that it names."""
    rows = [{"queue_key": f"other-{n}", "precedence": 0, "queue": QUEUE, "job": "flow"} for n in range(20)]
    given = {**PARAMETERS, "rows": batch(rows), **more}
    statement: str = getattr(store.driver.statements.queues, name)
    return statement, {key: value for key, value in given.items() if re.search(rf"(:|%\(){key}\b", statement)}


def explain(store: Store, name: str) -> str:
    statement, wanted = prepared(store, name, **({"after": -1} if name == "precedences" else {}))
    verb = {"sqlite": "EXPLAIN QUERY PLAN", "postgres": "EXPLAIN (COSTS OFF)", "mysql": "EXPLAIN"}
    with store._writer.transaction() as tx:
        found = tx.query(f"{verb[store.dialect]} {statement}", **wanted)
    return "\n".join(" | ".join(map(str, row)) for row in found)


def test_a_claim_reaches_other_keys_behind_a_backlog(filled: Store) -> None:
    filled.declare_queues({QUEUE: Queue(QUEUE, key_concurrency=1).limits}, now=NOW)
    tokens = [f"t{n}" for n in range(30)]
    found = filled.claim_limited("w1", queues=[QUEUE], running={}, jobs=["flow"], tokens=tokens, now=NOW)
    assert len({row.queue_key for row in found.claimed}) == len(found.claimed) == 21


def test_a_claim_does_not_read_the_backlog_of_a_key(filled: Store) -> None:
    names = ["candidates", "precedences", "keys", "heads", "executing"]
    read = {name: entries_read(filled, name) for name in names}
    assert {name: number for name, number in read.items() if number > BACKLOG / 2} == {}


def entries_read(store: Store, name: str) -> int:
    """How many rows and entries of indexes a statement reads."""
    after: Any = -1 if name == "precedences" else ""
    statement, wanted = prepared(store, name, after=after)
    with store._writer.transaction() as tx:
        if store.dialect == "mysql":
            before = handler_reads(tx)
            tx.query(statement, **wanted)
            return handler_reads(tx) - before
        if store.dialect == "postgres":
            plan = tx.query(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", **wanted)[0][0]
            return scanned(plan[0]["Plan"])
        instructions = []
        tx.connection.set_progress_handler(lambda: instructions.append(1), 10)
        tx.query(statement, **wanted)
        tx.connection.set_progress_handler(None, 0)
        return len(instructions)  # at least one for each entry, counted in tens


def handler_reads(tx: Tx) -> int:
    return sum(int(number) for _, number in tx.query("SHOW SESSION STATUS LIKE 'Handler_read%%'"))


def scanned(node: dict[str, Any]) -> int:
    """The rows that the scans below this node of a plan have read, with those that a filter removed."""
    own = 0
    if "Relation Name" in node or "Index Name" in node:
        removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
        own = int((node["Actual Rows"] + removed) * node["Actual Loops"])
    return own + sum(scanned(child) for child in node.get("Plans", []))


def test_a_key_in_which_one_run_has_many_executions_has_one_head(store: Store) -> None:
    enlist(store, "w1")
    main = new_main("fan-out", queue=QUEUE, queue_key="big")
    steps = [msgspec.structs.replace(main, node=f"step-{n:02}") for n in range(30)]
    one(store, Start(runs=[new_run("fan-out", queue=QUEUE)], executions=steps))
    for skip in (0, 1, 29):
        statement, wanted = prepared(store, "heads", rows=batch([{"queue_key": "big"}]), skip=skip)
        with store._writer.transaction() as tx:
            assert len(tx.query(statement, **wanted)) == 1


def test_keys_take_turns_across_pages_of_the_index(store: Store) -> None:
    enlist(store, "w1")
    waiting = {f"key-{n:02}": 1 + 9 * (n % 3 == 0) for n in range(12)}  # some need several pages
    mains = [
        new_main(f"{key}-{n}", queue=QUEUE, queue_key=key)
        for key, many in waiting.items()
        for n in range(many)
    ]
    one(store, Start(runs=[new_run(row.run_id, queue=QUEUE) for row in mains], executions=mains))
    store.declare_queues({QUEUE: Queue(QUEUE, fair=True).limits}, now=NOW)
    statements = store.driver.statements
    small = msgspec.structs.replace(statements.queues, values_at_once=4)
    store.driver.statements = msgspec.structs.replace(statements, queues=small)

    def claim(first: int, number: int) -> list[str | None]:
        tokens = [f"t{first + n}" for n in range(number)]
        found = store.claim_limited("w1", queues=[QUEUE], running={}, jobs=["flow"], tokens=tokens, now=NOW)
        return [row.queue_key for row in found.claimed]

    keys = sorted(waiting)
    assert set(claim(0, 5)) == set(keys[:5])
    assert set(claim(5, 7)) == set(keys[5:])
    assert set(claim(12, 4)) == set(keys[::3])
    left = len(mains) - 16
    assert len(claim(16, left + 1)) == left
