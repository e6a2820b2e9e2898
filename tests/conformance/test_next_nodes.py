"""Nodes whose end alone makes their followers ready: settled in one statement where the database can.

The rules are those of every other settle, so that these tests hold on all databases.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from detent.kernel.expressions import output_of, recorded
from detent.kernel.external_changes import Cancel, Pause
from detent.kernel.graph import SPREAD, VALUE, Graph, Node
from detent.kernel.operations import Settle, Verdict
from detent.kernel.rows import ExecutionKey, NewExecution
from detent.kernel.settle import Outcome
from detent.stores.batch import next_nodes
from detent.stores.sql.dialect import columns_of
from detent.stores.store import PartlyApplied, Store
from tests.conformance.builders import (
    NOW,
    SECOND,
    enlist,
    everything,
    one,
)
from tests.conformance.graph_builders import (
    FAILURE,
    Taker,
    begin,
    class_of,
    ending,
    finish,
    grab,
    graph_of,
    inline,
    intact,
    job,
    meddle,
    outcomes,
    states,
    take,
    verdicts,
)


def chain() -> Graph:
    return graph_of(a=job(), b=job("a"), c=job("b"))


def forked() -> Graph:
    return graph_of(a=job(), b=job("a"), c=job("a"), d=job("b"))


@pytest.fixture
def long_way(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many operations went the long way, batch by batch."""
    batches: list[int] = []
    slowly = Store._slowly

    def counted(self: Store, operations: Any, *given: Any) -> Any:
        batches.append(len(operations))
        return slowly(self, operations, *given)

    monkeypatch.setattr(Store, "_slowly", counted)
    return batches


def expected(store: Store, *batches: int) -> list[int]:
    """What goes the long way on this database: all of it where there is no statement for it."""
    return list(batches) if store.driver.settle_nodes else [1]


def test_a_link_of_a_chain_is_settled_in_one_statement(store: Store, long_way: list[int]) -> None:
    graph = chain()
    begin(store, graph)
    [a] = take(store, "a")
    long_way.clear()
    assert one(store, ending(a, graph)).verdict is Verdict.APPLIED
    assert long_way == expected(store)
    assert states(store) == {"a": "completed", "b": "scheduled"}
    assert outcomes(store)["a"] == Outcome.SUCCESS
    [row] = [row for row in store.executions("run") if row.node == "a"]
    assert (row.result, row.error, row.finished_at) == ("1", None, NOW + SECOND)


def test_the_hashes_of_a_chain_are_those_of_the_long_way(store: Store) -> None:
    graph = graph_of(a=job(), x=job(), b=job("a", "x"), c=job("b"), d=job("c"))
    begin(store, graph)
    finish(store, graph, "a", "x", result='"ü \\u2028 \\" \\\\ \U0001f600"')
    finish(store, graph, "b", result='{"text":"ä\\n"}')  # two parents, one follower
    finish(store, graph, "c", result=None)
    finish(store, graph, "d")
    assert store.run("run").state == "finished"
    assert intact(store, graph)


def test_the_latest_attempt_of_a_parent_is_hashed(store: Store) -> None:
    graph = chain()
    begin(store, graph)
    [a] = take(store, "a")
    one(store, ending(a, graph, Outcome.REATTEMPTED))
    finish(store, graph, "a")
    finish(store, graph, "b")
    assert intact(store, graph)


@pytest.mark.parametrize("outcome", [Outcome.SKIPPED_BY_EXCEPTION, Outcome.SKIPPED_BY_FLOW_CONTROL])
def test_a_skipped_link_leads_on(store: Store, outcome: Outcome) -> None:
    graph = chain()
    begin(store, graph)
    [a] = take(store, "a")
    one(store, ending(a, graph, outcome, error=FAILURE))
    assert outcomes(store) == {"a": outcome, "b": None}
    finish(store, graph, "b")
    assert intact(store, graph)


def test_the_rows_are_those_of_the_long_way(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    given = recorded({"given": output_of("a")})
    late = Node(name="", job="do", depends_on=("a",), args=given, priority=7, wait=5.0, key="tenant")
    graph = graph_of(a=job(), b=job("a"), c=late)
    begin(store, graph, "quick")
    begin(store, graph, "slow", worker="w2")
    quick, slow = sorted(grab(store), key=lambda item: item.run_id)
    assert one(store, ending(quick, graph, result='{"n":1}')).verdict is Verdict.APPLIED
    monkeypatch.setattr(store.driver, "settle_nodes", None)
    assert one(store, ending(slow, graph, result='{"n":1}')).verdict is Verdict.APPLIED
    assert rows(store, "quick") == rows(store, "slow")
    assert len(rows(store, "slow")) == 3


def rows(store: Store, run_id: str) -> list[tuple[Any, ...]]:
    """The executions of a run, without what differs from run to run."""
    columns = [name for name in columns_of(NewExecution) if name not in ("run_id", "token")]
    ends = "outcome, result, error, finished_at"
    with store._reading() as tx:
        return tx.query(
            f"SELECT {', '.join(columns)}, {ends} FROM detent_executions"
            f" WHERE run_id = '{run_id}' ORDER BY node"
        )


def test_our_worker_holds_what_follows_from_the_beginning(store: Store, long_way: list[int]) -> None:
    graph = forked()
    begin(store, graph)
    [a] = take(store, "a")
    taker = Taker(room=5)
    long_way.clear()
    applied = store.apply([ending(a, graph)], slots=taker)
    assert (long_way, applied.made_ready) == (expected(store), False)
    assert [(row.node, row.token, run) for row, run in applied.leased] == [
        ("b", taker.tokens[0], a),
        ("c", taker.tokens[1], a),
    ]
    held = {row.node: (row.state, row.worker, row.started_at) for row in store.executions("run")}
    assert held["b"] == held["c"] == ("executing", "w1", NOW + SECOND)
    assert (taker.room, taker.lost) == (3, [])
    # And it can settle them.
    settle = ending(a, graph)
    settle.key, settle.token = ExecutionKey(run_id="run", node="b", attempt=1), taker.tokens[0]
    assert one(store, settle).verdict is Verdict.APPLIED


def test_what_finds_no_slot_waits_for_a_claim(store: Store) -> None:
    graph = forked()
    begin(store, graph)
    [a] = take(store, "a")
    applied = store.apply([ending(a, graph)], slots=Taker(room=1))
    assert ([row.node for row, _ in applied.leased], applied.made_ready) == (["b"], True)
    take(store, "c")


def test_another_workers_node_is_not_ours_to_hold(store: Store) -> None:
    graph = chain()
    begin(store, graph)
    enlist(store, "w2")
    [a] = take(store, "a")
    applied = store.apply([ending(a, graph)], slots=Taker("w2"))
    assert (applied.leased, applied.made_ready) == ([], True)
    take(store, "b")


def test_links_of_many_runs_are_settled_together(store: Store, long_way: list[int]) -> None:
    graph = chain()
    for number in range(20):
        begin(store, graph, f"run{number:02}", worker="w1" if not number else f"other{number}")
    claimed = grab(store)
    long_way.clear()
    answers = store.apply([ending(item, graph) for item in reversed(claimed)]).answers
    assert verdicts(answers) == [Verdict.APPLIED] * 20
    assert long_way == ([] if store.driver.settle_nodes else [20])
    assert [item.node for item in grab(store)] == ["b"] * 20


def test_a_stale_link_is_told_so_and_its_slot_is_free_again(store: Store) -> None:
    graph = chain()
    for name in ("one", "two", "three"):
        begin(store, graph, name, worker="w1" if name == "one" else name)
    first, second, third = sorted(grab(store), key=lambda item: item.run_id)
    forged = ending(second, graph)
    forged.token = "another"
    taker = Taker(room=5)
    applied = store.apply([ending(first, graph), forged, ending(third, graph)], slots=taker)
    assert verdicts(applied.answers) == [Verdict.APPLIED, Verdict.STALE, Verdict.APPLIED]
    assert sorted(row.run_id for row, _ in applied.leased) == sorted([first.run_id, third.run_id])
    assert states(store, second.run_id) == {"a": "executing"}
    assert (taker.room, taker.lost) == (3, [])


def test_a_link_that_is_settled_twice_changes_nothing(store: Store) -> None:
    graph = chain()
    begin(store, graph)
    [a] = take(store, "a")
    answers = store.apply([ending(a, graph), ending(a, graph, result="2")]).answers
    assert verdicts(answers) == [Verdict.APPLIED, Verdict.STALE]
    before = everything(store)
    assert one(store, ending(a, graph, result="2")).verdict is Verdict.STALE
    assert everything(store) == before


def test_a_worker_thought_dead_cannot_settle_a_link(store: Store) -> None:
    graph = chain()
    begin(store, graph)
    [a] = take(store, "a")
    store.reap("w1", max_recoveries=5, now=NOW)
    before = everything(store)
    taker = Taker(room=5)
    applied = store.apply([ending(a, graph)], slots=taker)
    assert (verdicts(applied.answers), applied.leased) == ([Verdict.STALE], [])
    assert (everything(store) == before, taker.room) == (True, 5)


def _paused(store: Store) -> None:
    store.change(Pause("run", reason=None), now=NOW)


def _canceled(store: Store) -> None:
    store.change(Cancel("run", reason=None), now=NOW)


def _irregular(store: Store) -> None:
    meddle(store, "UPDATE detent_runs SET irregular = 1 WHERE id = 'run'")


def _under_another_graph(store: Store) -> None:
    meddle(store, "UPDATE detent_runs SET signature = 'former', frozen_at = NULL WHERE id = 'run'")


CHANGED: Mapping[str, tuple[Callable[[Store], None], str]] = {
    "paused": (_paused, "held"),
    "canceled": (_canceled, ""),
    "irregular": (_irregular, "scheduled"),
    "under another graph": (_under_another_graph, "scheduled"),
}


@pytest.mark.parametrize("change", CHANGED)
def test_a_link_of_a_run_that_was_changed_goes_the_long_way(
    store: Store, long_way: list[int], change: str
) -> None:
    graph = class_of(a="", b="a", c="b")
    begin(store, graph)
    [a] = take(store, "a")
    happen, follower = CHANGED[change]
    happen(store)
    long_way.clear()
    assert one(store, ending(a, graph)).verdict is Verdict.APPLIED
    assert long_way == [1]
    assert states(store).get("b", "") == follower


NOT_ALONE: Mapping[str, Graph] = {
    "a join": graph_of(a=job(), x=job(), b=job("a", "x")),
    "a value": graph_of(a=job(), v=inline(VALUE, "a", value=output_of("a")), b=job("v")),
    "a spread": graph_of(
        a=job(), b=inline(SPREAD, "a", value=output_of("a"), job="do", arg="item"), c=job("b")
    ),
    "an error branch": graph_of(a=job(on_error=True), h=job("a", branch=("a", False)), b=job("a")),
    "the end": graph_of(a=job()),
}


@pytest.mark.parametrize("what", NOT_ALONE)
def test_a_node_whose_followers_need_more_does_not_lead_on(what: str) -> None:
    assert not NOT_ALONE[what].leads_on("a")
    assert [chain().leads_on(node) for node in "abc"] == [True, True, False]


def test_what_is_large_goes_in_several_statements(store: Store, long_way: list[int]) -> None:
    graph = chain()
    begin(store, graph)
    [a] = take(store, "a")
    long_way.clear()
    text = json.dumps("x" * next_nodes.LARGEST)
    assert one(store, ending(a, graph, result=text)).verdict is Verdict.APPLIED
    assert long_way == [1]
    assert next(row.result for row in store.executions("run") if row.node == "a") == text


def test_a_follower_whose_arguments_cannot_be_evaluated_pauses_the_run(store: Store) -> None:
    args = recorded({"given": output_of("a")["none"]})
    graph = graph_of(a=job(), b=Node(name="b", job="do", depends_on=("a",), args=args))
    begin(store, graph)
    finish(store, graph, "a", result="{}")
    assert store.run("run").state == "paused"
    assert states(store)["b"] == "failed"


def test_leases_of_a_statement_that_failed_are_looked_for(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it was committed is not known; the worker finds out by its tokens."""
    if not store.driver.settle_nodes:
        return
    graph = chain()
    begin(store, graph)
    [a] = take(store, "a")
    taker = Taker(room=5)

    def broken(verb: Any, **given: Any) -> Any:
        raise RuntimeError("the connection is gone")

    monkeypatch.setattr(store._writer, "perform", broken)
    with pytest.raises(RuntimeError):
        store.apply([ending(a, graph)], slots=taker)
    assert (taker.lost, taker.room) == (taker.tokens, 5)


def test_leases_of_links_are_looked_for_when_the_rest_of_the_batch_failed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not store.driver.settle_nodes:
        return
    graph = chain()
    begin(store, graph, "one")
    begin(store, graph, "two", worker="w2")
    first, second = sorted(grab(store), key=lambda item: item.run_id)
    forged = ending(second, graph)
    forged.token = "another"
    taker = Taker(room=5)

    def broken(*given: Any) -> Any:
        raise RuntimeError("the rest is refused")

    monkeypatch.setattr(store, "_slowly", broken)
    with pytest.raises(PartlyApplied) as partly:
        store.apply([ending(first, graph), forged], slots=taker)
    assert [answer is not None for answer in partly.value.answers] == [True, False]
    assert taker.lost == taker.tokens[:1]  # that of the link which was committed
    assert states(store, "one")["b"] == "executing"


def test_operations_of_other_kinds_in_a_batch_take_the_links_along(store: Store, long_way: list[int]) -> None:
    """One transaction is better than two."""
    graph = chain()
    begin(store, graph)
    begin(store, graph_of(a=job()), "short", worker="w2")
    items = {item.run_id: item for item in grab(store)}
    long_way.clear()
    settles: list[Settle] = [ending(items["run"], graph), ending(items["short"], graph_of(a=job()))]
    assert set(verdicts(store.apply(settles).answers)) == {Verdict.APPLIED}
    assert long_way == [2]


def test_a_batch_of_nothing_changes_nothing(store: Store) -> None:
    assert store.apply([], slots=Taker()).answers == []
