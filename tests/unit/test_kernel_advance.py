"""Advancing: what follows in a graph when nodes settle, without any database."""

from collections.abc import Collection
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.errors import ReadinessOverflow
from detent.execution.run_graphs import Values
from detent.kernel.advance import Advance, Count, End, RunFacts, job_of
from detent.kernel.ancestry import ancestry_hash
from detent.kernel.expressions import output_of, recorded
from detent.kernel.graph import (
    AWAIT_JOB,
    END,
    RESULT,
    RUN,
    SPREAD,
    VALUE,
    VERSION,
    WHEN,
    Document,
    Graph,
    Node,
)
from detent.serialization.codec import Codec

NOW = 1_000_000
SECOND = 1_000_000


class Memory:
    """An inbox that counts how often it is asked."""

    def __init__(self, **results: Any) -> None:
        self.results = {node: (json(value), f"hash of {node}", None) for node, value in results.items()}
        self.asked: list[set[str]] = []

    def settled(self, nodes: Collection[str]) -> dict[str, tuple[str | None, str | None, str | None]]:
        self.asked.append(set(nodes))
        return {node: self.results[node] for node in nodes if node in self.results}

    def items(self, spread: str, number: int) -> list[tuple[str, str | None, str | None]]:
        self.asked.append({f"{spread}[]"})
        names = [f"{spread}[{index}]" for index in range(number)]
        return [(name, *self.results[name][:2]) for name in names if name in self.results]


def json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def graph_of(**nodes: Node) -> Graph:
    return Graph(Document(version=VERSION, nodes=nodes), "signature")


def job(name: str, *needs: str, **given: Any) -> Node:
    return Node(name=name, job=f"do_{name}", depends_on=needs, **given)


def inline(kind: str, name: str, *needs: str, value: Any = None, **given: Any) -> Node:
    return Node(name=name, kind=kind, depends_on=needs, value=recorded(value), **given)


def advance(graph: Graph, inbox: Memory | None = None, **given: Any) -> Advance:
    fields: dict[str, Any] = {"counts": {}, **given}
    facts: dict[str, Any] = {
        "id": "run",
        "type": "flow",
        "queue": "default",
        "precedence": 0,
        "now": NOW,
        "methods": False,
    }
    held = {name: fields.pop(name) for name in list(fields) if name in RunFacts.__struct_fields__}
    values = fields.pop("values", None) or Values(Codec())
    return Advance(graph, RunFacts(**(facts | held)), values, inbox or Memory(), **fields)


def ended(result: str | None) -> End:
    return End("do", "success", result)


def ready(plan: Advance) -> list[str]:
    return [row.node for row in plan.executions]


def ends(plan: Advance) -> dict[str, tuple[str, str | None]]:
    return {row.node: (row.outcome, row.result) for row in plan.ended}


# -- Joins -----------------------------------------------------------------------------------------


DIAMOND = graph_of(a=job("a"), b=job("b", "a"), c=job("c", "a"), d=job("d", "b", "c"))


def test_the_roots_begin() -> None:
    plan = advance(graph_of(a=job("a"), b=job("b"), c=job("c", "a")))
    plan.begin(plan.graph.roots)
    assert (ready(plan), plan.end) == (["a", "b"], None)


def test_a_node_readies_all_that_needs_nothing_else() -> None:
    plan = advance(DIAMOND)
    plan.settle("a", 1, ended("1"))
    assert (ready(plan), plan.counted, plan.end) == (["b", "c"], set(), None)


def test_a_join_waits_for_its_last_parent() -> None:
    half = advance(DIAMOND)
    half.settle("b", 1, ended("1"))
    assert (ready(half), half.counts["d"]) == ([], Count(1, 2))
    whole = advance(DIAMOND, counts={"d": Count(1, 2)})
    whole.settle("c", 1, ended("1"))
    assert (ready(whole), whole.counts["d"]) == (["d"], Count(2, 2))


def test_both_parents_in_one_batch_ready_a_join_once() -> None:
    plan = advance(DIAMOND)
    plan.settle("b", 1, ended("1"))
    plan.settle("c", 1, ended("1"))
    assert (ready(plan), plan.counts["d"]) == (["d"], Count(2, 2))


def test_more_settles_than_parents_are_a_bug_and_say_so() -> None:
    plan = advance(DIAMOND, counts={"d": Count(2, 2)})
    with pytest.raises(ReadinessOverflow) as caught:
        plan.settle("c", 1, ended("1"))
    assert (caught.value.run_id, caught.value.node) == ("run", "d")
    assert (caught.value.settled, caught.value.required) == (3, 2)


def test_two_settles_that_disagree_on_what_is_required_are_a_bug_and_say_so() -> None:
    plan = advance(DIAMOND, counts={"d": Count(0, 3)})
    with pytest.raises(ReadinessOverflow):
        plan.settle("c", 1, ended("1"))


@given(st.permutations(range(5)), st.integers(1, 5))
def test_in_whatever_order_and_batches_a_join_is_readied_once(order: list[int], size: int) -> None:
    nodes = {f"p{number}": job(f"p{number}") for number in range(5)}
    graph = graph_of(**nodes, join=job("join", *nodes))
    counts: dict[str, Count] = {}
    readied = []
    for start in range(0, 5, size):
        plan = advance(graph, counts=counts)
        for number in order[start : start + size]:
            plan.settle(f"p{number}", 1, ended("1"))
        readied += ready(plan)
    assert readied == ["join"]


# -- The end ---------------------------------------------------------------------------------------


def test_the_last_sink_ends_the_run() -> None:
    graph = graph_of(a=job("a"), b=job("b"))
    plan = advance(graph)
    plan.settle("a", 1, ended("1"))
    assert plan.end is None
    plan = advance(graph, counts={END: Count(1, 2)})
    plan.settle("b", 1, ended("2"))
    assert plan.end is not None
    assert (plan.end.state, plan.end.result) == ("finished", None)


def test_the_value_of_a_run_is_that_of_its_only_sink() -> None:
    plan = advance(graph_of(a=job("a"), b=job("b", "a")))
    plan.settle("b", 1, ended('"the end"'))
    assert plan.end is not None
    assert plan.end.result == '"the end"'


def test_a_result_ends_the_run_at_once_with_its_value() -> None:
    graph = graph_of(
        a=job("a"), b=job("b"), r=inline(RESULT, "r", "a", value=output_of("a") + 1), c=job("c", "a", "r")
    )
    plan = advance(graph)
    plan.settle("a", 1, ended("1"))
    assert plan.end is not None
    assert (plan.end.state, plan.end.result, plan.concluded, ready(plan)) == ("finished", "2", True, [])


# -- Inline ----------------------------------------------------------------------------------------


def test_what_is_inline_settles_at_once_up_to_the_frontier() -> None:
    graph = graph_of(
        a=job("a"),
        v=inline(VALUE, "v", "a", value=output_of("a") * 2),
        w=inline(VALUE, "w", "v", value=[output_of("v"), 1]),
        b=job("b", "w", args=recorded({"x": output_of("w")})),
        c=job("c", "b"),
    )
    plan = advance(graph)
    plan.settle("a", 1, ended("21"))
    assert ends(plan) == {"v": ("success", "42"), "w": ("success", "[42,1]")}
    assert [(row.node, row.input) for row in plan.executions] == [("b", '{"kwargs":{"x":[42,1]}}')]


def test_a_value_that_cannot_be_computed_fails_its_node_and_pauses_the_run() -> None:
    graph = graph_of(a=job("a"), v=inline(VALUE, "v", "a", value=output_of("a") / 0), b=job("b", "v"))
    plan = advance(graph)
    plan.settle("a", 1, ended("1"))
    [row] = plan.ended
    assert (row.node, row.state, row.outcome, row.ancestry_hash) == (
        "v",
        "failed",
        "paused_by_exception",
        None,
    )
    assert plan.end is not None
    assert (plan.end.state, ready(plan)) == ("paused", [])
    assert "ZeroDivisionError" in (plan.end.error or "")


@pytest.mark.parametrize("output", ["9" * 4000, "1e200"], ids=["endless", "infinite"])
def test_a_value_that_cannot_be_stored_fails_its_node(output: str) -> None:
    plan = advance(graph_of(a=job("a"), v=inline(VALUE, "v", "a", value=output_of("a") * output_of("a"))))
    plan.settle("a", 1, ended(output))
    assert [(row.state, row.result) for row in plan.ended] == [("failed", None)]
    assert plan.end is not None
    assert plan.end.state == "paused"


def test_nodes_beside_one_that_failed_go_on() -> None:
    graph = graph_of(a=job("a"), v=inline(VALUE, "v", "a", value=output_of("a") / 0), b=job("b", "a"))
    plan = advance(graph)
    plan.settle("a", 1, ended("1"))
    assert ready(plan) == ["b"]


def test_all_values_of_a_wave_are_read_in_one_query() -> None:
    values = {f"v{n}": inline(VALUE, f"v{n}", "a", f"x{n}", value=output_of(f"x{n}") + 1) for n in range(5)}
    others = {f"x{n}": job(f"x{n}") for n in range(5)}
    graph = graph_of(a=job("a"), **others, **values)
    inbox = Memory(**dict.fromkeys(others, 1))
    plan = advance(graph, inbox, counts={f"v{n}": Count(1, 2) for n in range(5)})
    plan.settle("a", 1, ended("1"))
    assert [outcome for outcome, _ in ends(plan).values()] == ["success"] * 5
    assert len(inbox.asked) == 1


# -- Branches --------------------------------------------------------------------------------------


def forked(*, otherwise: bool = True) -> Graph:
    return graph_of(
        a=job("a"),
        w=inline(WHEN, "w", "a", value=output_of("a") > 1, otherwise=otherwise),
        yes=job("yes", "w", branch=("w", True)),
        no=job("no", "w", branch=("w", False)),
        after=job("after", "no"),
        join=job("join", "yes", "no"),
    )


def test_a_branch_that_is_not_taken_is_skipped_and_settles() -> None:
    plan = advance(forked())
    plan.settle("a", 1, ended("2"))
    assert ends(plan) == {"w": ("success", "true"), "no": ("skipped_by_condition", None)}
    assert ready(plan) == ["yes", "after"]  # what follows both sides is no part of the branch
    assert plan.counts["join"] == Count(1, 2)


def test_a_join_of_two_branches_runs_when_one_was_taken() -> None:
    plan = advance(forked(), counts={"join": Count(1, 2), END: Count(0, 2)})
    plan.settle("yes", 1, ended("1"))
    assert ready(plan) == ["join"]


def test_a_condition_with_nowhere_to_go_is_a_dead_end_and_no_hang() -> None:
    plan = advance(forked(otherwise=False))
    plan.settle("a", 1, ended("0"))
    assert plan.end is not None
    assert plan.end.state == "paused"
    assert "DeadEnd" in (plan.end.error or "")
    assert "is a dead end" in (plan.end.error or "")
    assert ready(plan) == []


# -- Spreads ---------------------------------------------------------------------------------------


SPREADING = graph_of(
    a=job("a"),
    s=inline(SPREAD, "s", "a", value=output_of("a"), job="ship", arg="item", args={"by": "air"}),
    v=inline(VALUE, "v", "s", value=output_of("s")),
)


def test_a_spread_makes_a_node_for_each_item() -> None:
    plan = advance(SPREADING)
    plan.settle("a", 1, ended('["x","y"]'))
    assert [(row.node, row.job, row.input) for row in plan.executions] == [
        ("s[0]", "ship", '{"kwargs":{"by":"air","item":"x"}}'),
        ("s[1]", "ship", '{"kwargs":{"by":"air","item":"y"}}'),
    ]
    assert (plan.counts["s[]"], plan.ended) == (Count(0, 2), [])


def test_a_spread_over_nothing_is_collected_at_once() -> None:
    plan = advance(SPREADING)
    plan.settle("a", 1, ended("[]"))
    assert ends(plan) == {"s": ("success", "[]"), "v": ("success", "[]")}
    assert plan.end is not None


def test_results_are_collected_in_the_order_of_the_items() -> None:
    number = 12  # s[10] comes after s[9], whatever texts say
    others = {f"s[{index}]": index for index in range(number) if index != 3}
    inbox = Memory(a=list(range(number)), **others)
    plan = advance(SPREADING, inbox, counts={"s[]": Count(number - 1, number)})
    plan.settle("s[3]", 1, ended('"the last"'))
    expected = [*range(3), "the last", *range(4, number)]
    assert msgspec.json.decode(ends(plan)["s"][1] or "") == expected
    assert msgspec.json.decode(ends(plan)["v"][1] or "") == expected


def test_an_item_that_was_skipped_is_none_in_the_list() -> None:
    plan = advance(SPREADING, Memory(a=[1, 2], **{"s[0]": 1}), counts={"s[]": Count(1, 2)})
    plan.settle("s[1]", 1, ended(None))
    assert ends(plan)["s"] == ("success", "[1,null]")


@pytest.mark.parametrize("value", ['"text"', "5", "null", "{}"])
def test_a_spread_goes_over_a_list_and_nothing_else(value: str) -> None:
    plan = advance(SPREADING)
    plan.settle("a", 1, ended(value))
    assert plan.end is not None
    assert plan.end.state == "paused"
    assert "a spread needs a list" in (plan.end.error or "")


def test_a_spread_begins_all_of_its_items_or_none() -> None:
    """With some of them, a resume would collect those, and never begin the others."""
    plan = advance(SPREADING, values=Values(Codec(max_payload=50)))
    plan.settle("a", 1, ended(json(["x", "y" * 50])))
    assert (ready(plan), plan.counts) == ([], {})
    assert ends(plan) == {"s": ("paused_by_exception", None)}
    assert plan.end is not None
    assert (plan.end.state, "PayloadTooLarge" in (plan.end.error or "")) == ("paused", True)


# -- Rows ------------------------------------------------------------------------------------------


def test_an_execution_takes_its_options_from_the_node_then_from_the_run() -> None:
    graph = graph_of(a=job("a"), b=job("b", queue="slow", priority=3, wait=2.0))
    plan = advance(graph, queue="quick", precedence=-1)
    plan.begin(["a", "b"])
    first, second = plan.executions
    assert (first.queue, first.precedence, first.state, first.scheduled_for) == ("quick", -1, "ready", NOW)
    assert (second.queue, second.precedence, second.state) == ("slow", -3, "timer")
    assert second.scheduled_for == NOW + 2 * SECOND


def test_nothing_waits_beyond_the_deadline() -> None:
    plan = advance(graph_of(a=job("a", wait=60.0)), deadline=NOW + SECOND)
    plan.begin(["a"])
    assert plan.executions[0].scheduled_for == NOW + SECOND


def test_in_a_paused_run_what_is_ready_is_held() -> None:
    plan = advance(graph_of(a=job("a"), b=job("b", "a")), held=True)
    plan.settle("a", 1, ended("1"))
    assert [row.state for row in plan.executions] == ["held"]


def test_workers_know_a_node_by_its_job() -> None:
    facts = advance(DIAMOND).facts
    methods = advance(DIAMOND, methods=True).facts
    assert job_of(facts, "a", job("a")) == "do_a"
    assert job_of(facts, "a", Node(name="a")) == "flow.a"
    assert job_of(methods, "a", Node(name="a")) == "flow.a"
    assert job_of(facts, "a", Node(name="a", kind=RUN, run="other")) == AWAIT_JOB


# -- Hashes ----------------------------------------------------------------------------------------


def test_a_hash_is_made_of_the_parents_hashes() -> None:
    plan = advance(DIAMOND, hashes={"b": "B", "c": "C"})
    facts: Any = {"job": "do", "outcome": "success", "result": "1", "error": None}
    assert plan.settle("d", 2, ended("1")) == ancestry_hash("run", "d", 2, ["C", "B"], **facts)


def test_what_settles_inline_continues_the_chain() -> None:
    graph = graph_of(a=job("a"), v=inline(VALUE, "v", "a", value=1))
    plan = advance(graph)
    digest = plan.settle("a", 1, ended("1"))
    facts: Any = {"job": "flow.v", "outcome": "success", "result": "1", "error": None}
    assert plan.ended[0].ancestry_hash == ancestry_hash("run", "v", 1, [digest], **facts)


# -- Healed runs -----------------------------------------------------------------------------------


def test_what_is_done_or_under_way_is_not_begun_again() -> None:
    plan = advance(DIAMOND, past={"b": (1, True), "c": (2, False)})
    plan.settle("a", 1, ended("1"))
    assert [(row.node, row.attempt) for row in plan.executions] == [("c", 3)]


def test_what_settles_in_this_very_transaction_has_its_value() -> None:
    """It stands in no record yet."""
    graph = graph_of(a=job("a"), v=inline(VALUE, "v", "a", value=output_of("a")))
    plan = advance(graph, results={"a": "7"})
    plan.begin(["v"])
    assert ends(plan) == {"v": ("success", "7")}
