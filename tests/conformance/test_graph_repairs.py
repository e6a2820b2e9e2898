"""Repairs: a paused run gets another graph, and inline nodes of it are evaluated while the run is resumed."""

from typing import Any

import pytest

from detent.errors import InvalidState
from detent.kernel.expressions import output_of, recorded
from detent.kernel.external_changes import Pause, Reattempt, ReplaceGraph, Resume, Skip
from detent.kernel.graph import SPREAD, VALUE, WHEN, Graph, Node, freeze
from detent.kernel.operations import Verdict
from detent.kernel.settle import Outcome
from detent.stores.store import Store
from detent.stores.verbs import claims
from tests.conformance.builders import NOW, Attempt, claim, execution, is_seen_waiting, one
from tests.conformance.graph_builders import (
    BROKEN,
    FAILURE,
    LATER,
    begin,
    ending,
    finish,
    graph_of,
    inline,
    intact,
    job,
    operators,
    outcomes,
    states,
    take,
)


def spread(*needs: str, over: Any = (1, 2)) -> Node:
    value = list(over) if isinstance(over, tuple) else over
    return Node(name="", kind=SPREAD, job="do", arg="x", args={}, depends_on=needs, value=recorded(value))


def give(store: Store, graph: Graph) -> None:
    """Give the run another graph."""
    text = freeze(graph.document)[0]
    store.change(ReplaceGraph("run", text, run_graph=operators(store, graph)), now=NOW)


def repair(store: Store, graph: Graph) -> None:
    """Give the paused run another graph, and resume it."""
    assert store.run("run").state == "paused"
    give(store, graph)
    store.change(Resume("run", run_graph=operators(store, graph)), now=LATER)


def attempts(store: Store, node: str) -> list[str | None]:
    rows = sorted(store.executions("run"), key=lambda row: row.attempt)
    return [row.outcome for row in rows if row.node == node]


def test_a_failed_inline_node_that_another_one_makes_ready_is_begun_once(store: Store) -> None:
    old = graph_of(v=inline(WHEN, value=False), b=inline(WHEN, value=False), c=inline(WHEN, value=False))
    new = graph_of(v=inline(VALUE, value=1), b=job("v"), c=inline(VALUE, "v", value=output_of("v") + 1))
    begin(store, old)
    repair(store, new)
    assert (store.run("run").state, states(store)) == (
        "ready",
        {"v": "completed", "b": "scheduled", "c": "completed"},
    )
    assert attempts(store, "b") == ["paused_by_exception", None]
    finish(store, new, "b", now=LATER)
    assert (store.run("run").state, intact(store, old, new)) == ("finished", True)


def test_a_failed_inline_node_behind_an_empty_spread_is_begun_once(store: Store) -> None:
    old = graph_of(a=inline(WHEN, value=False), b=inline(WHEN, value=False))
    new = graph_of(a=spread(over=()), b=job("a"))
    begin(store, old)
    repair(store, new)
    assert (states(store), attempts(store, "b")) == (
        {"a": "completed", "b": "scheduled"},
        ["paused_by_exception", None],
    )
    finish(store, new, "b", now=LATER)
    assert (store.run("run").state, intact(store, old, new)) == ("finished", True)


def test_a_failed_inline_node_that_the_new_graph_does_not_have_never_stops_the_run_again(
    store: Store,
) -> None:
    old = graph_of(a=job(), v=inline(VALUE, "a", value=output_of("a") + 1))
    new = graph_of(n=job(), a=job("n"), b=job("a"), c=job("b"))  # with a node before `a`: it is recounted
    begin(store, old)
    finish(store, old, "a", result='"no number"')
    repair(store, new)
    assert outcomes(store)["v"] == "bypassed_by_deploy"
    finish(store, new, "b", now=LATER)
    finish(store, new, "c", now=LATER)
    assert (store.run("run").state, intact(store, old, new)) == ("finished", True)


def test_a_spread_with_items_under_way_is_collected_when_all_of_them_have_settled(store: Store) -> None:
    """An inline node before it makes it ready during the resume; it is not expanded again."""
    old = graph_of(s=spread(), z=job("s"))
    new = graph_of(v=inline(VALUE, value=1), s=spread("v"), z=job("s"))
    begin(store, old)
    first, second = take(store, "s[0]", "s[1]")
    one(store, ending(first, old, result="10"))
    one(store, ending(second, old, BROKEN, error=FAILURE))
    repair(store, new)
    assert states(store) == {"s[0]": "completed", "s[1]": "scheduled", "v": "completed"}
    finish(store, new, "s[1]", result="20", now=LATER)
    assert execution(store, node="s").result == "[10,20]"
    finish(store, new, "z", now=LATER)
    assert (store.run("run").state, intact(store, old, new)) == ("finished", True)


def test_a_spread_that_was_scheduled_as_a_job_is_collected_once(store: Store) -> None:
    """The graph in between had a job of that name: it is withdrawn, and the items are collected."""
    old = graph_of(s=spread(), z=job("s"))
    between = graph_of(s=job(), z=job("s"))
    new = graph_of(v=inline(VALUE, value=1), s=spread("v"), z=job("s"))
    begin(store, old)
    first, second = take(store, "s[0]", "s[1]")
    one(store, ending(first, old, result="10"))
    one(store, ending(second, old, BROKEN, error=FAILURE))
    repair(store, between)
    assert (store.run("run").state, states(store)["s"]) == ("paused", "held")  # s[1] is not defined
    store.change(Skip("run", "s[1]", run_graph=operators(store, between)), now=LATER)
    store.change(Pause("run", reason=None), now=LATER)
    repair(store, new)
    assert attempts(store, "s") == ["bypassed_by_deploy", "success"]
    assert sorted(states(store)) == ["s", "s[0]", "s[1]", "v", "z"]
    finish(store, new, "z", now=LATER)
    assert (store.run("run").state, intact(store, old, between, new)) == ("finished", True)


def test_a_spread_that_failed_and_is_expanded_by_a_resume_no_longer_holds_up_the_run(store: Store) -> None:
    old = graph_of(a=job(), s=spread("a", over=output_of("a")))
    new = graph_of(a=job(), s=spread("a"))
    begin(store, old)
    finish(store, old, "a", result="1")  # no list
    repair(store, new)
    first, second = take(store, "s[0]", "s[1]")
    one(store, ending(first, new, now=LATER))
    one(store, ending(second, new, BROKEN, error=FAILURE, now=LATER))
    assert store.run("run").state == "paused"
    store.change(Reattempt("run", "s[1]", run_graph=operators(store, new)), now=LATER)
    assert store.run("run").state == "ready"
    finish(store, new, "s[1]", now=LATER)
    assert (store.run("run").state, store.run("run").result) == ("finished", "[1,1]")
    assert intact(store, old, new)


def test_a_spread_with_items_under_way_is_neither_skipped_nor_reattempted(store: Store) -> None:
    """Its items are; it has an attempt of its own from the graph before, which is withdrawn."""
    old, new = graph_of(a=job(), s=job()), graph_of(a=job(), s=spread("a"))
    begin(store, old)
    [a] = claim(store, jobs=["do"], now=LATER)
    assert a.node == "a"
    one(store, ending(a, old))
    store.change(Pause("run", reason=None), now=NOW)
    repair(store, new)
    assert outcomes(store) == {"a": "success", "s": "bypassed_by_deploy", "s[0]": None, "s[1]": None}
    for verb in (Skip, Reattempt):
        with pytest.raises(InvalidState, match="its items instead"):
            store.change(verb("run", "s", run_graph=operators(store, new)), now=LATER)
    store.change(Skip("run", "s[0]", run_graph=operators(store, new)), now=LATER)
    finish(store, new, "s[1]", now=LATER)
    assert (store.run("run").result, intact(store, old, new)) == ("[null,1]", True)


def test_an_inline_end_waits_for_a_failed_node_that_is_gone(store: Store) -> None:
    """Like any other end: a run is never finished with nodes that were not run."""
    old = graph_of(x=job(), a=job())
    new = graph_of(a=job(), v=inline(VALUE, "a", value=1))
    begin(store, old)
    x, a = take(store, "x", "a")
    one(store, ending(x, old, BROKEN, error=FAILURE))
    give(store, new)
    one(store, ending(a, new))
    assert (store.run("run").state, states(store)) == (
        "paused",
        {"x": "failed", "a": "completed", "v": "completed"},
    )
    store.change(Skip("run", "x", run_graph=operators(store, new)), now=LATER)
    assert (store.run("run").state, store.run("run").result) == ("finished", "1")


def test_what_is_claimed_while_it_is_withdrawn_and_begun_again_is_left_to_who_claimed_it(
    store: Store, rival: Store
) -> None:
    old = graph_of(b=job(), e=job())
    new = graph_of(b=job(), v=inline(VALUE, "b", value=1), e=job("v"))
    begin(store, old)
    b, e = take(store, "b", "e")
    store.change(Pause("run", reason=None), now=NOW)
    repair(store, new)
    one(store, ending(e, new, Outcome.REATTEMPTED))  # scheduled again, although `b` has not settled
    with store._claims.transaction() as tx:
        [again] = claims.claim(tx, "w1", queues=["default"], jobs=["do"], tokens=["t"], now=LATER)()
        attempt = Attempt(lambda: one(rival, ending(b, new)))
        is_seen_waiting(attempt, store)
    assert attempt.result().verdict is Verdict.APPLIED
    assert states(store) == {"b": "completed", "v": "completed", "e": "executing"}
    assert one(store, ending(again, new)).verdict is Verdict.APPLIED
    assert (store.run("run").state, intact(store, old, new)) == ("finished", True)


def test_a_job_that_has_not_begun_and_is_inline_in_the_new_graph_is_evaluated(store: Store) -> None:
    old = graph_of(a=job(), b=job("a"), c=job("a"), z=job("b", "c"))
    new = graph_of(
        a=job(),
        b=inline(VALUE, "a", value=output_of("a") + 1),
        c=spread("a", over=(3,)),
        z=job("b", "c"),
    )
    begin(store, old)
    finish(store, old, "a", result="41")
    [b] = claim(store, jobs=["do"], now=LATER)
    one(store, ending(b, old, BROKEN, error=FAILURE))
    other = "c" if b.node == "b" else "b"
    assert states(store) == {"a": "completed", b.node: "failed", other: "held"}
    repair(store, new)
    assert (execution(store, node="b").result, states(store)["c[0]"]) == ("42", "scheduled")
    finish(store, new, "c[0]", now=LATER)
    finish(store, new, "z", now=LATER)
    assert (store.run("run").state, intact(store, old, new)) == ("finished", True)


def test_what_was_bypassed_is_not_begun_by_a_node_that_is_evaluated_before_it(store: Store) -> None:
    old = graph_of(a=job(wait=60.0), d=job())
    new = graph_of(a=inline(VALUE, value=1), n=job("a"), d=job("n"), e=job("d"))
    begin(store, old)
    finish(store, old, "d")
    store.change(Pause("run", reason=None), now=NOW)
    repair(store, new)
    assert attempts(store, "a") == ["bypassed_by_deploy", "success"]
    assert attempts(store, "n") == ["bypassed_by_deploy"]
    finish(store, new, "e", now=LATER)
    assert (store.run("run").state, intact(store, old, new)) == ("finished", True)
