"""Graphs in the database: from node to node, once, whoever settles what at the same moment."""

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from detent.errors import ReadinessOverflow
from detent.kernel.expressions import output_of
from detent.kernel.external_changes import Cancel, Resume, Skip
from detent.kernel.graph import RESULT, SPREAD, VALUE, WHEN, Graph
from detent.kernel.operations import Settle, Start, Verdict
from detent.kernel.rows import ExecutionKey
from detent.kernel.settle import Outcome
from detent.stores.batch import apply as batches
from detent.stores.store import Store
from detent.stores.verbs import control
from tests.conformance.builders import (
    NOW,
    SECOND,
    Attempt,
    claim,
    detail,
    enlist,
    events,
    everything,
    execution,
    held_open,
    is_seen_waiting,
    new_main,
    new_run,
    one,
    parking,
    recording,
    settling,
)
from tests.conformance.graph_builders import (
    BROKEN,
    FAILURE,
    LATER,
    begin,
    beginning,
    counts,
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
    meddle,
    operators,
    outcomes,
    states,
    take,
    verdicts,
)

# -- From node to node (3.1, 3.2, 3.3, 3.7) ---------------------------------------------------------


def test_a_run_goes_from_node_to_node_to_its_end(store: Store) -> None:
    graph = diamond()
    begin(store, graph)
    finish(store, graph, "a")
    assert states(store) == {"a": "completed", "b": "scheduled", "c": "scheduled"}
    finish(store, graph, "b", "c")
    finish(store, graph, "d", result='"the end"')
    run = store.run("run")
    assert (run.state, run.result, run.finished_at) == ("finished", '"the end"', NOW + SECOND)
    assert intact(store, graph)


def test_a_join_waits_for_its_last_parent(store: Store) -> None:
    graph = diamond()
    begin(store, graph)
    finish(store, graph, "a")
    b, c = take(store, "b", "c")
    one(store, ending(b, graph))
    assert ("d" in states(store), counts(store)["d"]) == (False, (1, 2))
    one(store, ending(c, graph))
    assert (states(store)["d"], counts(store)["d"]) == ("scheduled", (2, 2))


@pytest.mark.parametrize(
    "outcome", [Outcome.SUCCESS, Outcome.SKIPPED_BY_FLOW_CONTROL, Outcome.SKIPPED_BY_EXCEPTION]
)
def test_what_completed_and_what_was_skipped_both_count(store: Store, outcome: Outcome) -> None:
    graph = fan(2)
    begin(store, graph)
    first, second = take(store, "p0", "p1")
    store.apply([ending(first, graph, outcome), ending(second, graph)])
    assert states(store)["join"] == "scheduled"


@pytest.mark.parametrize("outcome", [BROKEN, Outcome.PAUSED_BY_FLOW_CONTROL, Outcome.REATTEMPTED])
def test_what_failed_or_comes_again_does_not_count(store: Store, outcome: Outcome) -> None:
    graph = fan(2)
    begin(store, graph)
    first, second = take(store, "p0", "p1")
    store.apply([ending(first, graph, outcome), ending(second, graph)])
    assert "join" not in states(store)
    assert counts(store)["join"] == (1, 2)


def test_increments_of_one_batch_are_summed(store: Store) -> None:
    graph = fan(20)
    begin(store, graph)
    parents = grab(store)
    store.apply([ending(parent, graph) for parent in parents[:19]])
    assert (counts(store)["join"], "join" in states(store)) == ((19, 20), False)
    store.apply([ending(parents[19], graph)])
    assert (counts(store)["join"], states(store)["join"]) == ((20, 20), "scheduled")


def test_a_stale_settle_is_told_so_while_its_neighbours_commit(store: Store) -> None:
    graph = fan(3)
    begin(store, graph)
    first, second, third = take(store, "p0", "p1", "p2")
    one(store, ending(first, graph))
    forged = ending(second, graph)
    forged.token = "another"
    answers = store.apply([ending(first, graph), forged, ending(third, graph), ending(third, graph)]).answers
    assert verdicts(answers) == [Verdict.STALE, Verdict.STALE, Verdict.APPLIED, Verdict.STALE]
    assert counts(store)["join"] == (2, 3)
    assert states(store)["p1"] == "executing"


def test_a_settle_that_comes_twice_changes_nothing(store: Store) -> None:
    graph = diamond()
    begin(store, graph)
    [a] = take(store, "a")
    one(store, ending(a, graph))
    before = everything(store)
    assert one(store, ending(a, graph, result="2")).verdict is Verdict.STALE
    assert everything(store) == before


def test_runs_of_one_batch_do_not_mix(store: Store) -> None:
    graph = diamond()
    begin(store, graph, "one")
    begin(store, graph, "two")
    store.apply([ending(item, graph) for item in grab(store)])
    b1, c2 = (item for item in grab(store) if (item.run_id, item.node) in (("one", "b"), ("two", "c")))
    store.apply([ending(b1, graph), ending(c2, graph)])
    assert (counts(store, "one")["d"], counts(store, "two")["d"]) == ((1, 2), (1, 2))
    assert "d" not in {**states(store, "one"), **states(store, "two")}


# -- At the same moment (3.8) -----------------------------------------------------------------------


def test_the_last_two_parents_at_the_same_moment_ready_the_join_once(store: Store, rival: Store) -> None:
    graph = fan(2)
    begin(store, graph)
    first, second = take(store, "p0", "p1")
    with held_open(store, ending(first, graph)):
        attempt = Attempt(lambda: one(rival, ending(second, graph)))
        is_seen_waiting(attempt, store)
    assert attempt.result().verdict is Verdict.APPLIED
    assert (states(store)["join"], counts(store)["join"]) == ("scheduled", (2, 2))
    assert Counter(row.node for row in store.executions("run"))["join"] == 1
    assert intact(store, graph)


def test_the_last_two_sinks_at_the_same_moment_end_the_run_once(store: Store, rival: Store) -> None:
    graph = graph_of(a=job(), b=job())
    begin(store, graph)
    first, second = take(store, "a", "b")
    with held_open(store, ending(first, graph)):
        attempt = Attempt(lambda: one(rival, ending(second, graph)))
        is_seen_waiting(attempt, store)
    assert attempt.result().ended.state == "finished"
    assert store.run("run").state == "finished"


def test_many_who_settle_parents_at_once_ready_a_join_once(
    store: Store, another: Callable[[], Store]
) -> None:
    graph = fan(24)
    begin(store, graph)
    parents = grab(store)
    together = threading.Barrier(8)

    def settle_three(own: Store, number: int) -> list[Verdict]:
        together.wait()
        return verdicts([one(own, ending(parent, graph)) for parent in parents[number::8]])

    attempts = [
        Attempt(partial(settle_three, own, number))
        for number, own in enumerate([another() for _ in range(8)])
    ]
    assert [verdict for attempt in attempts for verdict in attempt.result()] == [Verdict.APPLIED] * 24
    assert Counter(row.node for row in store.executions("run"))["join"] == 1
    assert (states(store)["join"], counts(store)["join"]) == ("scheduled", (24, 24))
    finish(store, graph, "join")
    assert (store.run("run").state, intact(store, graph)) == ("finished", True)


def test_a_settle_beside_a_pause_leaves_nothing_to_claim(store: Store, rival: Store) -> None:
    graph = diamond()
    begin(store, graph)
    [a] = take(store, "a")
    with store._writer.transaction() as tx:
        control.pause(tx, "run", reason=None, now=NOW)
        attempt = Attempt(lambda: one(rival, ending(a, graph)))
        is_seen_waiting(attempt, store)
    assert attempt.result().verdict is Verdict.APPLIED
    assert states(store) == {"a": "completed", "b": "held", "c": "held"}


def test_a_settle_beside_a_cancel_readies_nothing(store: Store, rival: Store) -> None:
    graph = diamond()
    begin(store, graph)
    [a] = take(store, "a")
    with store._writer.transaction() as tx:
        control.cancel(tx, "run", reason=None, now=NOW)
        attempt = Attempt(lambda: one(rival, ending(a, graph)))
        is_seen_waiting(attempt, store)
    attempt.result()
    assert (store.run("run").state, states(store)) == ("canceled", {"a": "canceled"})


# -- Overflow (3.1) ---------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["settled = 2", "required = 3"])
def test_a_count_that_cannot_be_is_an_error_and_nothing_is_stored(store: Store, change: str) -> None:
    graph = diamond()
    begin(store, graph)
    finish(store, graph, "a")
    b, c = take(store, "b", "c")
    one(store, ending(b, graph))
    meddle(store, f"UPDATE detent_readiness SET {change} WHERE run_id = 'run' AND node = 'd'")
    before = everything(store)
    with pytest.raises(ReadinessOverflow) as caught:
        one(store, ending(c, graph))
    assert (caught.value.run_id, caught.value.node) == ("run", "d")
    assert everything(store) == before


def test_a_run_whose_count_cannot_be_is_paused_with_that_error(store: Store) -> None:
    """What a worker settles instead knows nothing of graphs, and so cannot stumble over this one."""
    graph = diamond()
    begin(store, graph)
    finish(store, graph, "a")
    b, c = take(store, "b", "c")
    one(store, ending(b, graph))
    meddle(store, "UPDATE detent_readiness SET settled = 2 WHERE run_id = 'run' AND node = 'd'")
    instead = settling(c, BROKEN, error='{"type":"ReadinessOverflow"}')
    assert one(store, instead).verdict is Verdict.APPLIED
    run = store.run("run")
    assert (run.state, run.error, states(store)["c"]) == ("paused", '{"type":"ReadinessOverflow"}', "failed")
    store.change(Resume("run", run_graph=operators(store, graph)), now=NOW)  # which recounts
    finish(store, graph, "c")
    finish(store, graph, "d")
    assert store.run("run").state == "finished"


# -- Inline, branches, spreads, results (3.4, 3.5, 3.6, 3.9) ----------------------------------------


def test_values_are_computed_within_the_settle(store: Store) -> None:
    graph = graph_of(
        a=job(),
        v=inline(VALUE, "a", value=output_of("a") * 2),
        b=job("v", args={"x": {"$expr": ["output", "v"]}}),
    )
    begin(store, graph)
    finish(store, graph, "a", result="21")
    assert (execution(store, node="v").result, execution(store, node="v").kind) == ("42", "inline")
    [b] = take(store, "b")
    assert b.input == '{"kwargs":{"x":42}}'


def test_values_come_from_nodes_that_settled_long_ago(store: Store) -> None:
    graph = graph_of(a=job(), b=job("a"), v=inline(VALUE, "a", "b", value=output_of("a") + output_of("b")))
    begin(store, graph)
    finish(store, graph, "a", result="40")
    finish(store, graph, "b", result="2")
    assert (store.run("run").state, store.run("run").result) == ("finished", "42")


def test_a_branch_that_is_not_taken_is_skipped_without_a_worker(store: Store) -> None:
    graph = graph_of(
        a=job(),
        w=inline(WHEN, "a", value=output_of("a") > 1, otherwise=True),
        yes=job("w", branch=("w", True)),
        no=job("w", branch=("w", False)),
        join=job("yes", "no"),
    )
    begin(store, graph)
    finish(store, graph, "a", result="2")
    assert (outcomes(store)["no"], states(store)["no"]) == ("skipped_by_condition", "skipped")
    finish(store, graph, "yes")
    finish(store, graph, "join")
    assert (store.run("run").state, intact(store, graph)) == ("finished", True)


def test_a_dead_end_pauses_the_run_with_that_error(store: Store) -> None:
    graph = graph_of(a=job(), w=inline(WHEN, "a", value=output_of("a") > 1), b=job("w", branch=("w", True)))
    begin(store, graph)
    finish(store, graph, "a", result="0")
    run = store.run("run")
    assert (run.state, states(store)["w"]) == ("paused", "failed")
    assert "is a dead end" in (run.error or "")
    assert events(store).count("paused") == 1


def test_a_dead_end_is_tried_again_by_a_resume_and_left_by_a_skip(store: Store) -> None:
    graph = graph_of(a=job(), w=inline(WHEN, "a", value=output_of("a") > 1), b=job("w", branch=("w", True)))
    begin(store, graph)
    finish(store, graph, "a", result="0")
    store.change(Resume("run", run_graph=operators(store, graph)), now=LATER)
    assert (store.run("run").state, execution(store, node="w").attempt) == ("paused", 2)
    store.change(Skip("run", "w", run_graph=operators(store, graph)), now=LATER)
    assert (store.run("run").state, outcomes(store)) == (
        "finished",
        {"a": "success", "w": "skipped_by_operator", "b": "skipped_by_condition"},
    )
    assert intact(store, graph)


def spreading() -> Graph:
    spread = inline(SPREAD, "a", value=output_of("a"), job="do", arg="item")
    return graph_of(a=job(), s=spread, z=job("s", args={"all": {"$expr": ["output", "s"]}}))


def test_a_spread_collects_its_results_in_the_order_of_the_items(store: Store) -> None:
    graph = spreading()
    begin(store, graph)
    finish(store, graph, "a", result=f"{list(range(12))}")
    items = take(store, *[f"s[{index}]" for index in range(12)])
    for item in reversed(items):
        assert "s" not in states(store)
        one(store, ending(item, graph, result=f'"of {item.node}"'))
    [z] = take(store, "z")
    assert detail(z.input or "")["kwargs"]["all"] == [f"of s[{index}]" for index in range(12)]
    assert intact(store, graph)


def test_a_spread_over_nothing_is_collected_at_once(store: Store) -> None:
    graph = spreading()
    begin(store, graph)
    finish(store, graph, "a", result="[]")
    [z] = take(store, "z")
    assert (z.input, intact(store, graph)) == ('{"kwargs":{"all":[]}}', True)


def test_the_last_two_items_at_the_same_moment_are_collected_once(store: Store, rival: Store) -> None:
    graph = spreading()
    begin(store, graph)
    finish(store, graph, "a", result="[1,2]")
    first, second = take(store, "s[0]", "s[1]")
    with held_open(store, ending(second, graph, result='"second"')):
        attempt = Attempt(lambda: one(rival, ending(first, graph, result='"first"')))
        is_seen_waiting(attempt, store)
    attempt.result()
    assert execution(store, node="s").result == '["first","second"]'
    assert states(store)["z"] == "scheduled"


def test_a_result_ends_the_run_and_what_was_scheduled(store: Store) -> None:
    graph = graph_of(a=job(), b=job(), c=job("b"), r=inline(RESULT, "a", value=output_of("a") + 1))
    begin(store, graph)
    a, b = take(store, "a", "b")
    one(store, ending(b, graph))
    one(store, ending(a, graph, result="41"))
    run = store.run("run")
    assert (run.state, run.result, outcomes(store)["c"]) == ("finished", "42", "canceled_by_finish")


def test_what_executes_when_a_run_ends_is_recorded_and_nothing_follows(store: Store) -> None:
    graph = graph_of(a=job(), b=job(), c=job("b"), r=inline(RESULT, "a", value=1))
    begin(store, graph)
    a, b = take(store, "a", "b")
    one(store, ending(a, graph))
    assert one(store, ending(b, graph)).verdict is Verdict.APPLIED
    assert (states(store), store.run("run").result) == (
        {"a": "completed", "b": "completed", "r": "completed"},
        "1",
    )
    assert intact(store, graph)


@pytest.mark.parametrize(
    "end", ["reattempted", "failed again", "skipped", "its worker died", "put down", "handed back"]
)
def test_nothing_begins_in_a_graph_that_is_over(store: Store, end: str) -> None:
    graph = graph_of(a=job(), b=job(), r=inline(RESULT, "a", value=1))
    begin(store, graph)
    a, b = take(store, "a", "b")
    one(store, ending(a, graph))
    ways: dict[str, Callable[[], object]] = {
        "reattempted": lambda: one(store, ending(b, graph, Outcome.REATTEMPTED)),
        "failed again": lambda: one(store, ending(b, graph, Outcome.REATTEMPTED_BY_EXCEPTION, error=FAILURE)),
        "skipped": lambda: one(store, ending(b, graph, Outcome.SKIPPED_BY_EXCEPTION, error=FAILURE)),
        "its worker died": lambda: store.reap("w1", max_recoveries=5, now=NOW),
        "put down": lambda: one(store, parking(b, wake_at=NOW)),
        "handed back": lambda: store.release([b]),
    }
    ways[end]()
    assert len(store.executions("run")) == 3
    enlist(store, "w2")
    assert grab(store, worker="w2", now=NOW + 100 * SECOND) == []
    assert (store.run("run").state, intact(store, graph)) == ("finished", True)


@pytest.mark.parametrize("end", ["put down", "handed back"])
def test_what_comes_back_to_a_canceled_graph_is_canceled_too(store: Store, end: str) -> None:
    graph = graph_of(a=job())
    begin(store, graph)
    [a] = take(store, "a")
    store.change(Cancel("run", reason=None), now=NOW)
    if end == "put down":
        one(store, parking(a, wake_at=NOW))
    else:
        store.release([a])
    assert states(store) == {"a": "canceled"}


def test_a_pause_that_was_asked_for_comes_before_the_end(store: Store) -> None:
    graph = graph_of(a=job(), b=job(), r=inline(RESULT, "a", value=output_of("a")))
    begin(store, graph)
    a, _ = take(store, "a", "b")
    one(store, ending(a, graph, Outcome.PAUSED_AFTER, result="42"))
    assert (store.run("run").state, states(store)["r"]) == ("paused", "completed")
    store.change(Resume("run", run_graph=operators(store, graph)), now=NOW)
    assert (store.run("run").state, store.run("run").result) == ("finished", "42")


# -- The rest ---------------------------------------------------------------------------------------


def test_a_graph_that_nobody_has_to_execute_is_over_at_once(store: Store) -> None:
    graph = graph_of(v=inline(VALUE, value=41), r=inline(RESULT, "v", value=output_of("v") + 1))
    begin(store, graph)
    assert (store.run("run").state, store.run("run").result, intact(store, graph)) == ("finished", "42", True)


def test_the_same_start_twice_begins_one_graph(store: Store) -> None:
    graph = diamond()
    begin(store, graph)
    again = beginning(graph)
    again.chosen = True
    before = everything(store)
    assert [item.created for item in one(store, again)] == [False]
    assert everything(store) == before


def test_a_dead_workers_node_is_tried_again_and_its_result_comes_too_late(store: Store) -> None:
    graph = diamond()
    begin(store, graph)
    [late] = take(store, "a")
    store.reap("w1", max_recoveries=5, now=NOW)
    enlist(store, "w2")
    [ours] = grab(store, worker="w2")
    assert (ours.attempt, ours.recoveries) == (2, 1)
    assert one(store, ending(late, graph)).verdict is Verdict.STALE
    assert one(store, ending(ours, graph)).verdict is Verdict.APPLIED
    assert intact(store, graph)


def test_a_node_that_kills_its_workers_pauses_its_run(store: Store) -> None:
    graph = graph_of(a=job(), b=job())
    begin(store, graph)
    now = NOW
    for number in range(3):
        enlist(store, f"v{number}")
        now += 60 * SECOND
        claim(store, f"v{number}", jobs=["do"], now=now)
        store.reap(f"v{number}", max_recoveries=1, now=now)
    run = store.run("run")
    assert (run.state, "TooManyRecoveries" in (run.error or "")) == ("paused", True)


def test_an_answer_that_was_lost_is_found_again(store: Store) -> None:
    graph = diamond()
    begin(store, graph)
    [a] = take(store, "a")
    settle = ending(a, graph)
    assert store.already_applied(settle) is None
    one(store, settle)
    assert store.already_applied(settle).verdict is Verdict.APPLIED


def test_a_settle_of_a_run_that_is_not_there_is_stale(store: Store) -> None:
    graph = diamond()
    begin(store, graph)
    [a] = take(store, "a")
    lost: Settle = ending(a, graph)
    lost.key = ExecutionKey(run_id="nowhere", node="a", attempt=1)
    assert verdicts(store.apply([lost, ending(a, graph)]).answers) == [Verdict.STALE, Verdict.APPLIED]


def test_a_child_run_wakes_the_node_of_its_parent(store: Store) -> None:
    graph = diamond()
    begin(store, graph)
    [a] = take(store, "a")
    child = new_run("run/a", parent="run", parent_key="a", watched=2)
    one(store, recording(a, children=Start(runs=[child], executions=[new_main("run/a")])))
    one(store, parking(a, for_run("run/a")))
    [main] = claim(store)
    one(store, settling(main, result="7"))
    assert execution(store, node="a").state == "ready"


def test_within_a_users_transaction_a_settle_happens_with_it_or_not_at_all(store: Store) -> None:
    graph = diamond()
    begin(store, graph)
    [a] = take(store, "a")
    with pytest.raises(ZeroDivisionError), store.transaction() as tx:
        store.apply_within(tx, ending(a, graph))
        raise ZeroDivisionError
    assert states(store) == {"a": "executing"}
    with store.transaction() as tx:
        store.apply_within(tx, ending(a, graph))
    assert states(store)["b"] == "scheduled"


def test_planning_twice_does_not_change_the_plan(store: Store) -> None:
    """A transaction that has to be repeated asks the same operations again."""
    graph = fan(2)
    begin(store, graph)
    settles = [ending(item, graph) for item in take(store, "p0", "p1")]
    with pytest.raises(ZeroDivisionError), store._writer.transaction() as tx:
        batches.apply(tx, settles, helpers_wanted=False)
        raise ZeroDivisionError
    assert verdicts(store.apply(settles).answers) == [Verdict.APPLIED] * 2
    assert counts(store)["join"] == (2, 2)
