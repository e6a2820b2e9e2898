"""Single nodes of graphs: handed over in a commit, waiting for other runs, skipped, tried again."""

from typing import Any

import pytest

from detent.errors import CannotReattempt, InvalidState, NodeNotFound
from detent.execution.rows import claimed_of
from detent.kernel.expressions import output_of
from detent.kernel.external_changes import Cancel, Pause, Reattempt, Resume, Skip
from detent.kernel.graph import RUN, VALUE, Graph, Node
from detent.kernel.operations import Verdict
from detent.kernel.settle import Outcome
from detent.stores.store import Store
from detent.stores.verbs import claims, nodes
from tests.conformance.builders import (
    NOW,
    SECOND,
    Attempt,
    claim,
    enlist,
    events,
    everything,
    execution,
    held_open,
    is_seen_waiting,
    one,
    parking,
    settling,
    start,
)
from tests.conformance.graph_builders import (
    BROKEN,
    FAILURE,
    Taker,
    begin,
    class_of,
    diamond,
    ending,
    fan,
    finish,
    for_run,
    grab,
    graph_of,
    inline,
    intact,
    job,
    operators,
    outcomes,
    states,
    take,
)

# -- Leases in the same commit ----------------------------------------------------------------------


def test_what_becomes_ready_is_handed_to_the_worker_that_settles(store: Store) -> None:
    graph = diamond()
    begin(store, graph)
    [a] = take(store, "a")
    taker = Taker(room=1)
    [(row, parent)] = store.apply([ending(a, graph)], slots=taker).leased
    claimed = claimed_of(row, parent)
    assert (claimed.node, claimed.token, claimed.worker) == ("b", taker.tokens[0], "w1")
    assert states(store) == {"a": "completed", "b": "executing", "c": "scheduled"}
    assert one(store, ending(claimed, graph)).verdict is Verdict.APPLIED


def test_the_settle_of_a_node_takes_two_round_trips(store: Store) -> None:
    """One for the locks, with the counts and hashes that they guard; one for the writes and the commit."""
    graph = diamond()
    begin(store, graph)
    [a] = take(store, "a")
    one(store, ending(a, graph))
    b, c = take(store, "b", "c")
    session: Any = store.driver.deferring(store._writer._connection)
    assert (session is not None) == (store.dialect != "sqlite")
    before = 0 if session is None else session.asked
    one(store, ending(b, graph))
    assert session is None or session.asked - before == 2
    one(store, ending(c, graph))
    assert states(store)["d"] == "scheduled"


def test_a_worker_that_is_no_longer_alive_is_handed_nothing(store: Store) -> None:
    graph = diamond()
    begin(store, graph)
    [a] = take(store, "a")
    assert store.apply([ending(a, graph)], slots=Taker("nobody")).leased == []
    assert states(store)["b"] == "scheduled"


def test_in_a_run_that_pauses_nothing_is_handed_over(store: Store) -> None:
    graph = graph_of(a=job(), b=job(), c=job("a"))
    begin(store, graph)
    a, b = take(store, "a", "b")
    applied = store.apply([ending(a, graph), ending(b, graph, BROKEN, error=FAILURE)], slots=Taker())
    assert (applied.leased, states(store)["c"]) == ([], "held")


def test_another_attempt_keeps_its_budget_and_is_never_leased_to_nobody(store: Store) -> None:
    """The commit fails because of a neighbour, and is repeated alone, as the committer does it."""
    graph = graph_of(a=job())
    begin(store, graph)
    [a] = take(store, "a")
    again = ending(a, graph, Outcome.REATTEMPTED_BY_EXCEPTION, error=FAILURE)
    taker = Taker()
    with pytest.raises(Exception, match=r"(?i)unique|duplicate"):
        store.apply([again, start("run")], slots=taker)
    applied = store.apply([again], slots=taker)
    row = execution(store, node="a")
    leased = {item.token for item, _ in applied.leased}
    assert (row.attempt, row.failures) == (2, 1)
    assert row.state == ("executing" if leased else "ready")
    for item, parent in applied.leased:
        assert claimed_of(item, parent).failures == 1


# -- Waits for other runs ---------------------------------------------------------------------------


def waiting() -> Graph:
    return graph_of(w=Node(name="", kind=RUN, run="target"), other=job(), end=job("w", "other"))


def test_a_node_waits_for_another_run_while_its_neighbours_go_on(store: Store) -> None:
    graph = waiting()
    enlist(store, "w1")
    one(store, start("target"))
    [target] = claim(store)
    begin(store, graph)
    w, other = take(store, "w", "other")
    one(store, parking(w, for_run("target")))
    assert execution(store, node="w").state == "parked"
    one(store, ending(other, graph))
    one(store, settling(target))
    assert execution(store, node="w").state == "ready"
    assert [item.node for item in grab(store)] == ["w"]


def test_a_wait_for_a_run_that_is_over_is_due_at_once(store: Store) -> None:
    graph = waiting()
    enlist(store, "w1")
    one(store, start("target"))
    one(store, settling(claim(store)[0]))
    begin(store, graph)
    w, _ = take(store, "w", "other")
    one(store, parking(w, for_run("target")))
    assert execution(store, node="w").state == "ready"


@pytest.mark.parametrize("end", ["finished", "failed", "canceled", "canceled from outside"])
def test_every_end_of_a_run_wakes_who_waits_for_it(store: Store, end: str) -> None:
    graph = waiting()
    enlist(store, "w1")
    one(store, start("target"))
    [target] = claim(store)
    begin(store, graph)
    w, _ = take(store, "w", "other")
    one(store, parking(w, for_run("target")))
    if end == "canceled from outside":
        store.change(Cancel("target", reason=None), now=NOW)
    else:
        outcome = {
            "finished": Outcome.SUCCESS,
            "failed": Outcome.FAILED,
            "canceled": Outcome.CANCELED_BY_FLOW_CONTROL,
        }[end]
        one(store, settling(target, outcome, error=FAILURE if end == "failed" else None))
    assert execution(store, node="w").state == "ready"


def test_a_graph_that_ends_by_an_operators_skip_wakes_who_waits_for_it(store: Store) -> None:
    graph, target = waiting(), graph_of(a=job())
    begin(store, target, "target")
    begin(store, graph)
    found = {item.node: item for item in grab(store)}
    one(store, parking(found["w"], for_run("target")))
    one(store, ending(found["a"], target, BROKEN, error=FAILURE))
    store.change(Skip("target", "a", run_graph=operators(store, target, "target")), now=NOW)
    assert (store.run("target").state, execution(store, node="w").state) == ("finished", "ready")


def test_a_run_that_is_paused_is_woken_when_it_is_resumed(store: Store) -> None:
    graph = waiting()
    enlist(store, "w1")
    one(store, start("target"))
    [target] = claim(store)
    begin(store, graph)
    w, _ = take(store, "w", "other")
    one(store, parking(w, for_run("target")))
    store.change(Pause("run", reason=None), now=NOW)
    one(store, settling(target))
    assert execution(store, node="w").state == "held"
    store.change(Resume("run", run_graph=operators(store, graph)), now=NOW + 2 * SECOND)
    assert execution(store, node="w").state == "ready"


@pytest.mark.parametrize("first", ["the wait", "the end"])
def test_a_wait_and_the_end_at_the_same_moment_never_miss_each_other(
    store: Store, rival: Store, first: str
) -> None:
    graph = waiting()
    enlist(store, "w1")
    one(store, start("target"))
    [target] = claim(store)
    begin(store, graph)
    w, _ = take(store, "w", "other")
    wait, end = parking(w, for_run("target")), settling(target)
    before, after = (wait, end) if first == "the wait" else (end, wait)
    with held_open(store, before):
        attempt = Attempt(lambda: one(rival, after))
        is_seen_waiting(attempt, store)
    attempt.result()
    assert execution(store, node="w").state == "ready"


@pytest.mark.parametrize("first", ["the wait", "the end"])
def test_a_wait_and_the_end_in_one_commit_never_miss_each_other(store: Store, first: str) -> None:
    graph = waiting()
    enlist(store, "w1")
    one(store, start("target"))
    [target] = claim(store)
    begin(store, graph)
    w, _ = take(store, "w", "other")
    wait, end = parking(w, for_run("target")), settling(target)
    store.apply([wait, end] if first == "the wait" else [end, wait])
    assert execution(store, node="w").state == "ready"


def test_two_nodes_wait_for_one_run_and_one_node_of_two_runs(store: Store) -> None:
    graph = graph_of(w=Node(name="", kind=RUN, run="target"), x=Node(name="", kind=RUN, run="target"))
    enlist(store, "w1")
    one(store, start("target"))
    [target] = claim(store)
    begin(store, graph, "one")
    begin(store, graph, "two")
    for item in grab(store):
        one(store, parking(item, for_run("target", item.run_id)))
    one(store, settling(target))
    assert sorted((item.run_id, item.node) for item in grab(store)) == [
        ("one", "w"),
        ("one", "x"),
        ("two", "w"),
        ("two", "x"),
    ]


# -- Skip and reattempt -----------------------------------------------------------------------------


def test_skipping_what_failed_goes_on_as_if_it_had_completed(store: Store) -> None:
    graph = graph_of(a=job(), b=job("a"))
    begin(store, graph)
    [a] = take(store, "a")
    one(store, ending(a, graph, BROKEN, error=FAILURE))
    store.change(Skip("run", "a", run_graph=operators(store, graph)), now=NOW)
    assert (store.run("run").state, outcomes(store)["a"], states(store)["b"]) == (
        "ready",
        "skipped_by_operator",
        "scheduled",
    )
    assert (execution(store, node="a").attempt, "skipped" in events(store)) == (2, True)
    assert intact(store, graph)


def test_skipping_what_is_scheduled_takes_it_from_the_queue(store: Store) -> None:
    graph = graph_of(a=job(), b=job("a"))
    begin(store, graph)
    store.change(Skip("run", "a", run_graph=operators(store, graph)), now=NOW)
    assert (execution(store, node="a").attempt, execution(store, node="a").state) == (1, "skipped")
    assert [item.node for item in grab(store)] == ["b"]


def test_what_executes_or_is_done_or_is_not_there_cannot_be_skipped(store: Store) -> None:
    graph = graph_of(a=job(), b=job("a"), c=job("b"))
    begin(store, graph)
    finish(store, graph, "a")
    take(store, "b")
    before = everything(store)
    for node in ("a", "b", "c"):
        with pytest.raises(InvalidState, match="skip node"):
            store.change(Skip("run", node, run_graph=operators(store, graph)), now=NOW)
    with pytest.raises(NodeNotFound):
        store.change(Skip("run", "nobody", run_graph=operators(store, graph)), now=NOW)
    assert everything(store) == before


def test_a_skip_beside_a_claim_is_refused_or_takes_it_away(store: Store, rival: Store) -> None:
    """Claiming takes no lock on the run: the skip must see that somebody has begun."""
    graph = graph_of(a=job(), b=job("a"))
    begin(store, graph)
    with store._claims.transaction() as tx:
        found = claims.claim(tx, "w1", queues=["default"], jobs=["do"], tokens=["t"], now=NOW)()
        attempt = Attempt(lambda: rival.change(Skip("run", "a", run_graph=operators(rival, graph)), now=NOW))
        is_seen_waiting(attempt, store)
    with pytest.raises(InvalidState):
        attempt.result()
    assert one(store, ending(found[0], graph)).verdict is Verdict.APPLIED


def test_a_paused_run_stays_paused_when_somebody_skips_a_node(store: Store) -> None:
    graph = graph_of(a=job(), b=job("a"))
    begin(store, graph)
    store.change(Pause("run", reason=None), now=NOW)
    store.change(Skip("run", "a", run_graph=operators(store, graph)), now=NOW)
    assert (store.run("run").state, states(store)["b"]) == ("paused", "held")


def test_a_reattempt_is_a_new_attempt_with_a_fresh_budget(store: Store) -> None:
    graph = graph_of(a=job(), b=job("a"))
    begin(store, graph)
    [a] = take(store, "a")
    a.failures = 4
    one(store, ending(a, graph, BROKEN, error=FAILURE))
    store.change(Reattempt("run", "a", run_graph=operators(store, graph)), now=NOW)
    row = execution(store, node="a")
    assert (row.attempt, row.state, row.failures, store.run("run").state) == (2, "ready", 0, "ready")
    with pytest.raises(CannotReattempt):
        store.change(Reattempt("run", "a", run_graph=operators(store, graph)), now=NOW)


def test_of_two_reattempts_at_once_one_wins(store: Store, rival: Store) -> None:
    graph = graph_of(a=job(), b=job())
    begin(store, graph)
    a, b = take(store, "a", "b")
    store.apply([ending(item, graph, BROKEN, error=FAILURE) for item in (a, b)])
    with store._writer.transaction() as tx:
        nodes.reattempt(tx, "run", "a", run_graph=operators(store, graph), now=NOW)
        attempt = Attempt(
            lambda: rival.change(Reattempt("run", "a", run_graph=operators(rival, graph)), now=NOW)
        )
        is_seen_waiting(attempt, store)
    with pytest.raises(InvalidState):
        attempt.result()
    assert execution(store, node="a").attempt == 2


def test_what_has_a_completed_descendant_is_not_reattempted(store: Store) -> None:
    graph = class_of(a="", b="a")
    begin(store, class_of(a="", b=""))
    a, b = take(store, "a", "b")
    other = class_of(a="", b="")
    store.apply([ending(b, other)])
    one(store, ending(a, other, BROKEN, error=FAILURE))
    with pytest.raises(CannotReattempt, match="'b' has completed after it"):
        store.change(Reattempt("run", "a", run_graph=operators(store, graph)), now=NOW)


def test_a_failed_node_is_not_begun_by_its_siblings(store: Store) -> None:
    graph = fan(3)
    begin(store, graph)
    first, second, third = take(store, "p0", "p1", "p2")
    one(store, ending(first, graph, BROKEN, error=FAILURE))
    store.apply([ending(second, graph), ending(third, graph)])
    assert [row.attempt for row in store.executions("run") if row.node == "p0"] == [1]
    assert "join" not in states(store)


def test_after_an_operators_hand_values_are_what_they_would_have_been(store: Store) -> None:
    """Readiness is recounted then; what settles at that moment stands in no record yet."""
    graph = graph_of(
        a=job(), b=job(), c=job(), v=inline(VALUE, "c", value=output_of("c")), z=job("a", "b", "v")
    )
    begin(store, graph)
    a, b, c = take(store, "a", "b", "c")
    store.apply([ending(a, graph, BROKEN, error=FAILURE), ending(b, graph, BROKEN, error=FAILURE)])
    store.change(Skip("run", "a", run_graph=operators(store, graph)), now=NOW)
    one(store, ending(c, graph, result='"mine"'))
    assert execution(store, node="v").result == '"mine"'
    assert intact(store, graph)
