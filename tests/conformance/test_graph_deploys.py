"""Graphs that change: runs that are healed by other code, frozen, or given another graph."""

import pytest

from detent.errors import InvalidState, StepNotDefined
from detent.kernel.expressions import output_of
from detent.kernel.external_changes import Freeze, Pause, PauseWith, Reconcile, ReplaceGraph, Resume, Skip
from detent.kernel.graph import VALUE, Graph, freeze, structure_text
from detent.kernel.operations import Verdict
from detent.stores.batch.graphs import MustGoAlone
from detent.stores.store import Store
from detent.stores.verbs import claims, graphs, nodes
from tests.conformance.builders import (
    NOW,
    SECOND,
    Attempt,
    events,
    everything,
    execution,
    held_open,
    is_seen_waiting,
    one,
    worker_row,
)
from tests.conformance.graph_builders import (
    BROKEN,
    FAILURE,
    LATER,
    begin,
    class_of,
    diamond,
    ending,
    finish,
    grab,
    graph_of,
    inline,
    intact,
    job,
    meddle,
    operators,
    outcomes,
    states,
    take,
    verdicts,
)

# -- Deploys (6) ------------------------------------------------------------------------------------


def reconcile(store: Store, graph: Graph, mine: str | None = None) -> bool:
    return store.change(Reconcile("run", run_graph=operators(store, graph), mine=mine), now=NOW + SECOND)


def test_a_run_is_healed_by_the_graph_of_today(store: Store) -> None:
    old, new = class_of(a="", b="a"), class_of(a="", b="a", extra="a")
    begin(store, old)
    finish(store, old, "a")
    assert reconcile(store, new)
    assert states(store) == {"a": "completed", "b": "scheduled", "extra": "scheduled"}
    assert (store.run("run").signature, events(store)) == (new.signature, ["healed"])
    before = everything(store)
    assert reconcile(store, new)
    assert everything(store) == before


def test_a_node_before_what_is_done_is_recorded_as_bypassed(store: Store) -> None:
    old, new = class_of(a="", b="a", c="b"), class_of(a="", n="a", b="n", c="b")
    begin(store, old)
    finish(store, old, "a")
    finish(store, old, "b")
    reconcile(store, new)
    assert (outcomes(store)["n"], states(store)["c"]) == ("bypassed_by_deploy", "scheduled")
    finish(store, new, "c")
    assert (store.run("run").state, intact(store, old, new)) == ("finished", True)


def test_what_was_claimed_too_early_is_withdrawn(store: Store) -> None:
    old, new = class_of(a=""), class_of(b="", a="b")
    begin(store, old)
    [a] = take(store, "a")
    assert not reconcile(store, new, mine="a")
    assert (outcomes(store)["a"], states(store)) == (
        "bypassed_by_deploy",
        {"a": "canceled", "b": "scheduled"},
    )
    assert one(store, ending(a, new)).verdict is Verdict.STALE
    finish(store, new, "b")
    finish(store, new, "a")
    assert (store.run("run").state, execution(store, node="a").attempt) == ("finished", 2)


def test_a_withdrawal_beside_a_claim_leaves_it_to_who_claimed(store: Store, rival: Store) -> None:
    old, new = class_of(a=""), class_of(b="", a="b")
    begin(store, old)
    with store._claims.transaction() as tx:
        [a] = claims.claim(tx, "w1", queues=["default"], jobs=["Flow.a"], tokens=["t"], now=NOW)()
        attempt = Attempt(lambda: reconcile(rival, new))
        is_seen_waiting(attempt, store)
    attempt.result()
    assert one(store, ending(a, new)).verdict is Verdict.APPLIED
    finish(store, new, "b")
    assert (store.run("run").state, states(store)) == ("finished", {"a": "completed", "b": "completed"})


def test_what_is_gone_pauses_the_run_unless_somebody_knows_it(store: Store) -> None:
    old, new = class_of(a="", b="a"), class_of(a="")
    begin(store, old)
    finish(store, old, "a")
    store.register(worker_row("old", jobs='["Flow.a","Flow.b"]'))
    reconcile(store, new)
    assert store.run("run").state == "ready"
    store.reap("old", max_recoveries=5, now=NOW)
    meddle(store, f"UPDATE detent_runs SET signature = '{old.signature}' WHERE id = 'run'")
    reconcile(store, new)
    run = store.run("run")
    assert (run.state, states(store)["b"]) == ("paused", "held")
    assert StepNotDefined.__name__ in (run.error or "")
    store.change(Skip("run", "b", run_graph=operators(store, new)), now=NOW)
    assert (store.run("run").state, intact(store, old, new)) == ("finished", True)


def test_what_is_gone_and_is_resumed_is_tried_and_pauses_again(store: Store) -> None:
    old, new = class_of(a="", b="a"), class_of(a="")
    begin(store, old)
    finish(store, old, "a")
    reconcile(store, new)
    assert store.run("run").state == "paused"
    store.change(Resume("run", run_graph=operators(store, new)), now=NOW)
    assert (store.run("run").state, states(store)["b"]) == ("paused", "held")
    store.change(Resume("run", run_graph=operators(store, old)), now=NOW)  # the node is back
    finish(store, old, "b")
    assert store.run("run").state == "finished"


def test_of_two_reconciliations_at_once_the_second_finds_nothing_to_do(store: Store, rival: Store) -> None:
    old, new = class_of(a=""), class_of(a="", b="")
    begin(store, old)
    with store._writer.transaction() as tx:
        nodes.reconcile(tx, "run", run_graph=operators(store, new), now=NOW)
        attempt = Attempt(lambda: reconcile(rival, new))
        is_seen_waiting(attempt, store)
    assert attempt.result()
    assert (events(store), sorted(states(store))) == (["healed"], ["a", "b"])


def test_a_settle_under_other_code_heals_on_its_way(store: Store) -> None:
    old, new = class_of(a="", b="a"), class_of(a="", n="a", b="n")
    begin(store, old)
    [a] = take(store, "a")
    assert one(store, ending(a, new)).verdict is Verdict.APPLIED
    assert (states(store), store.run("run").signature) == (
        {"a": "completed", "n": "scheduled"},
        new.signature,
    )


def test_two_settles_of_a_run_that_must_be_healed_go_alone(store: Store) -> None:
    old, new = class_of(a="", b=""), class_of(a="", b="", c="a b")
    begin(store, old)
    a, b = take(store, "a", "b")
    with pytest.raises(MustGoAlone):
        store.apply([ending(a, new), ending(b, new)])
    assert states(store) == {"a": "executing", "b": "executing"}
    for item in (a, b):
        assert one(store, ending(item, new)).verdict is Verdict.APPLIED
    assert states(store)["c"] == "scheduled"


def test_outdated_runs_are_found_page_by_page(store: Store) -> None:
    old, new = class_of(a=""), class_of(a="", b="")
    for run_id in ("r1", "r2", "r3"):
        begin(store, old, run_id)
    begin(store, new, "r4")
    store.change(Pause("r3", reason=None), now=NOW)
    assert store.outdated("Flow", new.signature) == ["r1", "r2"]
    assert store.outdated("Flow", new.signature, behind="r1") == ["r2"]
    assert store.outdated("Flow", new.signature, limit=1) == ["r1"]
    assert store.outdated("Other", new.signature) == []


def test_jobs_that_nobody_knows_are_found(store: Store) -> None:
    begin(store, class_of(a="", b="", c="a"))
    assert [row[:2] for row in store.unknown_jobs(before=NOW)] == [("run", "a"), ("run", "b")]
    store.register(worker_row("w2", jobs='["Flow.b"]'))
    assert [row[1] for row in store.unknown_jobs(before=NOW)] == ["a"]
    assert store.unknown_jobs(before=NOW - 1) == []
    assert store.change(PauseWith("run", FAILURE), now=NOW)
    assert not store.change(PauseWith("run", FAILURE), now=NOW)
    assert (store.run("run").state, store.run("run").error) == ("paused", FAILURE)


# -- Frozen and replaced graphs (6.1, 6.6) ----------------------------------------------------------


def test_a_frozen_run_is_not_healed(store: Store) -> None:
    old, new = class_of(a="", b="a"), class_of(a="", n="a", b="n")
    begin(store, old)
    [a] = take(store, "a")
    store.change(Freeze("run", structure_text(old.document), old.signature), now=NOW)
    assert reconcile(store, new)
    assert store.run("run").signature == old.signature
    assert one(store, ending(a, new)).verdict is Verdict.OUTDATED
    assert states(store) == {"a": "executing"}
    assert one(store, ending(a, old)).verdict is Verdict.APPLIED
    assert states(store)["b"] == "scheduled"
    with pytest.raises(InvalidState, match="frozen already"):
        store.change(Freeze("run", structure_text(old.document), old.signature), now=NOW)


@pytest.mark.parametrize("first", ["the freeze", "the settle"])
def test_a_freeze_and_a_settle_at_the_same_moment_know_of_each_other(
    store: Store, rival: Store, first: str
) -> None:
    old, new = class_of(a="", b="a"), class_of(a="", n="a")
    begin(store, old)
    [a] = take(store, "a")
    text = structure_text(new.document)
    if first == "the freeze":
        with store._writer.transaction() as tx:
            graphs.freeze(tx, "run", text, new.signature, NOW)
            settled = Attempt(lambda: one(rival, ending(a, old)))
            is_seen_waiting(settled, store)
        assert settled.result().verdict is Verdict.OUTDATED
        assert one(store, ending(a, new)).verdict is Verdict.APPLIED
    else:
        with held_open(store, ending(a, old)):
            frozen = Attempt(lambda: rival.change(Freeze("run", text, new.signature), now=NOW))
            is_seen_waiting(frozen, store)
        frozen.result()
        assert states(store)["b"] == "scheduled"
    assert store.run("run").signature == new.signature


def give(store: Store, graph: Graph, run_id: str = "run") -> None:
    """Give a run another graph."""
    run_graph = operators(store, graph, run_id)
    store.change(ReplaceGraph(run_id, freeze(graph.document)[0], run_graph=run_graph), now=NOW)


def test_only_a_paused_run_is_given_another_graph(store: Store) -> None:
    old, new = diamond(), graph_of(a=job(), z=job("a"))
    begin(store, old)
    text, signature = freeze(new.document)
    with pytest.raises(InvalidState, match="pause it first"):
        give(store, new)
    store.change(Pause("run", reason=None), now=NOW)
    give(store, new)
    assert (store.graph("run"), store.run("run").signature) == (text, signature)
    assert "graph imported" in events(store)


def test_a_settle_under_a_graph_that_was_replaced_is_outdated(store: Store) -> None:
    old, new = diamond(), graph_of(a=job(), z=job("a"))
    begin(store, old)
    [a] = take(store, "a")
    store.change(Pause("run", reason=None), now=NOW)
    give(store, new)
    before = everything(store)
    assert one(store, ending(a, old)).verdict is Verdict.OUTDATED
    assert everything(store) == before
    assert one(store, ending(a, new)).verdict is Verdict.APPLIED
    store.change(Resume("run", run_graph=operators(store, new)), now=NOW)
    finish(store, new, "z")
    assert store.run("run").state == "finished"


def test_an_outdated_settle_is_told_so_while_its_neighbours_commit(store: Store) -> None:
    old, new = graph_of(a=job(), b=job("a")), graph_of(a=job(), z=job("a"))
    begin(store, old)
    begin(store, old, "other")
    ours = {item.run_id: item for item in grab(store)}
    store.change(Pause("run", reason=None), now=NOW)
    give(store, new)
    answers = store.apply([ending(ours["run"], old), ending(ours["other"], old)]).answers
    assert verdicts(answers) == [Verdict.OUTDATED, Verdict.APPLIED]


def test_what_failed_inline_is_evaluated_when_the_new_graph_comes_there(store: Store) -> None:
    old = graph_of(a=job(), v=inline(VALUE, "a", value=output_of("a") + 1))
    new = graph_of(a=job(), b=job("a"), v=inline(VALUE, "b", value=output_of("b") + 1))
    begin(store, old)
    finish(store, old, "a", result='"no number"')
    assert store.run("run").state == "paused"
    give(store, new)
    store.change(Resume("run", run_graph=operators(store, new)), now=LATER)
    assert (store.run("run").state, states(store)["b"]) == ("ready", "scheduled")
    finish(store, new, "b", result="41", now=LATER)
    assert (store.run("run").state, store.run("run").result, intact(store, old, new)) == (
        "finished",
        "42",
        True,
    )


def test_a_graph_that_was_replaced_can_still_be_read_by_its_signature(store: Store) -> None:
    """What was settled under it is verified by it."""
    old, new = graph_of(a=job(), b=job("a")), graph_of(b=job())
    begin(store, old)
    finish(store, old, "a")
    finish(store, old, "b")
    begin(store, old, "run2")
    found = grab(store)
    one(store, ending(found[0], old))
    [b] = grab(store)
    one(store, ending(b, old, BROKEN, error=FAILURE))
    give(store, new, "run2")
    assert store.graph(old.signature) == freeze(old.document)[0]


def test_the_longest_graph_is_stored_in_pieces_and_read_whole(store: Store) -> None:
    text = "".join(f"{number:06}ü" for number in range(600_000))  # 4.2 million characters, 4.8 MB
    store.save_graphs({"x" * 64: text, "y" * 64: "short"})
    assert store.graph("x" * 64) == text
    store.save_graphs({"x" * 64: text, "z" * 64: "new"})  # twice does nothing
    assert (store.graph("x" * 64), store.graph("z" * 64)) == (text, "new")
    assert store.graph("nobody") is None


def test_a_large_graph_begins_in_one_transaction(store: Store) -> None:
    names = [f"p{index:05}" for index in range(1000)]
    graph = graph_of(**{name: job() for name in names}, join=job(*names))
    begin(store, graph)
    found = grab(store, limit=1000)
    assert len(found) == 1000
    store.apply([ending(item, graph) for item in found])
    assert states(store)["join"] == "scheduled"
