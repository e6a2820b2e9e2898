"""Healing: what a run needs to go on by another graph than before."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.kernel.advance import Count
from detent.kernel.graph import END, RESULT, SPREAD, VERSION, Document, Graph, Node, class_graph
from detent.kernel.heal import Healing, Past, heal


def graph_of(**needs: str) -> Graph:
    """`graph_of(a="", b="a", c="a b")`."""
    return class_graph(
        "flow", {name: Node(name=name, depends_on=tuple(text.split())) for name, text in needs.items()}
    )


STATES: dict[str, tuple[str, str | None]] = {
    "done": ("completed", "success"),
    "skipped": ("skipped", "skipped_by_condition"),
    "ready": ("ready", None),
    "timer": ("timer", None),
    "held": ("held", None),
    "executing": ("executing", None),
    "failed": ("failed", "paused_by_exception"),
    "paused": ("canceled", "paused_by_flow_control"),
    "bypassed": ("canceled", "bypassed_by_deploy"),
    "reattempted": ("completed", "reattempted"),
}


def past(**nodes: str) -> dict[str, Past]:
    return {node: Past(node, 1, *STATES[state]) for node, state in nodes.items()}


def healed(graph: Graph, mine: str | None = None, **nodes: str) -> Healing:
    return heal(graph, past(**nodes), mine=mine)


def test_a_run_that_has_not_changed_needs_nothing() -> None:
    healing = healed(graph_of(a="", b="a", c="b"), a="done", b="executing")
    assert (healing.changes, healing.finished, healing.irregular) == ({}, False, False)


def test_a_node_that_was_added_behind_begins_when_it_is_ready() -> None:
    healing = healed(graph_of(a="", b="a", new="a"), a="done", b="executing")
    assert (healing.ready, healing.bypassed) == (["new"], [])


def test_a_node_that_was_added_before_what_is_done_is_bypassed() -> None:
    healing = healed(graph_of(a="", new="a", b="new", c="b"), a="done", b="done", c="ready")
    assert (healing.bypassed, healing.ready, healing.irregular) == (["new"], [], True)


def test_a_node_that_was_added_far_before_what_is_done_is_bypassed() -> None:
    healing = healed(graph_of(n="", m="n", a="m", b="a", c="b"), b="done")
    assert (healing.bypassed, healing.ready) == (["n", "m", "a"], ["c"])


def test_what_was_bypassed_once_is_not_recorded_again() -> None:
    assert healed(graph_of(a="", new="a", b="new"), a="done", b="done", new="bypassed").bypassed == []


def test_what_is_under_way_is_not_bypassed() -> None:
    healing = healed(graph_of(a="", b="a", c="b"), a="done", c="done", b="executing")
    assert (healing.bypassed, healing.finished, healing.irregular) == ([], False, True)


@pytest.mark.parametrize("state", ["done", "skipped", "bypassed"])
def test_what_is_gone_and_done_is_a_warning(state: str) -> None:
    healing = healed(graph_of(a=""), a="done", old=state)
    assert (healing.gone, healing.undefined, healing.finished) == (["old"], [], True)


@pytest.mark.parametrize("state", ["ready", "timer", "held", "executing", "failed", "paused"])
def test_what_is_gone_and_was_to_be_executed_is_no_end(state: str) -> None:
    healing = healed(graph_of(a=""), a="done", old=state)
    assert (healing.undefined, healing.finished, healing.irregular) == (["old"], False, True)


@pytest.mark.parametrize("state", ["ready", "timer", "held"])
def test_what_is_scheduled_too_early_is_withdrawn(state: str) -> None:
    healing = healed(graph_of(a="", b="a"), b=state)
    assert (healing.withdrawn, healing.ready, healing.irregular) == (["b"], ["a"], True)


def test_what_executes_too_early_is_left_alone_unless_it_is_mine() -> None:
    graph = graph_of(a="", b="a")
    assert (healed(graph, b="executing").withdrawn, healed(graph, b="executing").irregular) == ([], True)
    assert healed(graph, mine="b", b="executing").withdrawn == ["b"]


@pytest.mark.parametrize("state", ["failed", "paused"])
def test_what_stopped_is_for_a_resume_to_begin(state: str) -> None:
    healing = healed(graph_of(a="", b="a"), a=state)
    assert (healing.ready, healing.finished) == ([], False)


def test_an_inline_node_that_is_resumed_begins_when_it_is_ready() -> None:
    """In any case it gets another attempt: left as failed, it would wait for another resume."""
    again = {"b": Past("b", 2, "canceled", "reattempted", "inline")}
    early = heal(graph_of(a="", b="a"), {**past(a="executing"), **again})
    assert (early.resumed, early.ready, early.bypassed) == (["b"], [], [])
    ready = heal(graph_of(a="", b="a"), {**past(a="done"), **again})
    assert (ready.resumed, ready.ready) == (["b"], ["b"])
    gone = heal(graph_of(a=""), {**past(a="done"), **again})
    assert (gone.resumed, gone.undefined, gone.finished) == (["b"], [], True)


def test_what_was_withdrawn_comes_back_when_it_is_ready() -> None:
    assert healed(graph_of(a="", b="a"), a="done", b="bypassed").ready == ["b"]


def test_readiness_is_recounted() -> None:
    healing = healed(graph_of(a="", b="", c="", d="a b c", e="a b"), a="done", b="done", c="executing")
    assert (healing.counts["d"], healing.counts["e"]) == (Count(2, 3), Count(2, 2))
    assert (healing.counts[END], healing.ready) == (Count(0, 2), ["e"])


def test_a_run_is_finished_when_all_of_the_new_graph_is_done() -> None:
    assert healed(graph_of(a="", b="a"), a="done", b="done", c="done").finished
    assert not healed(graph_of(a="", b="a", c="b"), a="done", b="done").finished
    assert not healed(graph_of(a="", b="a"), a="done", b="reattempted").finished


def dynamic(**nodes: Node) -> Graph:
    return Graph(Document(version=VERSION, nodes=nodes), "signature")


def spreading(*needs: str) -> Graph:
    before = {need: Node(name=need, job="x") for need in needs}
    return dynamic(**before, s=Node(name="s", kind=SPREAD, job="x", arg="i", value=[1, 2], depends_on=needs))


def items(*states: str) -> dict[str, str]:
    return {f"s[{index}]": state for index, state in enumerate(states)}


def test_a_spread_whose_items_are_under_way_is_not_begun_again() -> None:
    healing = healed(spreading(), **items("done", "executing"))
    assert (healing.ready, healing.counts["s[]"], healing.irregular) == ([], Count(1, 2), False)


def test_a_spread_whose_items_are_done_is_collected() -> None:
    assert healed(spreading(), **items("done", "skipped")).ready == ["s[]"]


def test_an_item_that_outlives_its_spread_does_not_collect_it_again() -> None:
    """A graph in between had a node of that name which was no spread."""
    assert healed(spreading(), s="done", **items("executing")).irregular


def test_a_spread_that_is_under_way_as_a_job_is_not_collected_by_its_items() -> None:
    """A graph in between had a job of that name, which will settle the node itself."""
    healing = healed(spreading(), s="executing", **items("done", "done"))
    assert (healing.ready, healing.counts, healing.irregular) == ([], {}, True)


@pytest.mark.parametrize("state", ["ready", "timer", "held"])
def test_a_spread_that_is_scheduled_as_a_job_is_withdrawn_and_expanded(state: str) -> None:
    healing = healed(spreading(), s=state)
    assert (healing.withdrawn, healing.ready, healing.irregular) == (["s"], ["s"], True)
    healing = healed(spreading(), s=state, **items("done", "executing"))
    assert (healing.withdrawn, healing.ready, healing.counts["s[]"]) == (["s"], [], Count(1, 2))


def test_a_node_before_a_spread_that_is_under_way_does_not_begin_it_again() -> None:
    """Counting alone would: so whoever settles has to recount."""
    healing = healed(spreading("new"), **items("done", "executing"))
    assert (healing.ready, healing.expanded, healing.irregular) == (["new"], {"s"}, True)


def test_a_result_that_was_reached_ends_the_run_whatever_is_under_way() -> None:
    graph = dynamic(a=Node(name="a", job="x"), r=Node(name="r", kind=RESULT))
    assert healed(graph, a="executing", r="done").finished
    assert not healed(graph, a="executing", r="skipped").finished


@st.composite
def changes(draw: st.DrawFn) -> tuple[Graph, dict[str, Past], str | None]:
    names = draw(st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=6, unique=True))
    needs: dict[str, str] = {}
    for name in names:
        needs[name] = " ".join(
            draw(st.lists(st.sampled_from(list(needs)), max_size=3, unique=True)) if needs else []
        )
    nodes: Any = draw(
        st.dictionaries(st.sampled_from("abcdefghi"), st.sampled_from(sorted(STATES)), max_size=7)
    )
    active = [node for node, state in nodes.items() if state == "executing" and node in names]
    mine = draw(st.sampled_from([None, *active]))
    return graph_of(**needs), past(**nodes), mine


@given(changes())
def test_whatever_was_before_a_run_is_left_with_a_way_on(
    case: tuple[Graph, dict[str, Past], str | None],
) -> None:
    graph, seen, mine = case
    healing = heal(graph, seen, mine=mine)
    done = {node for node, latest in seen.items() if latest.done}
    counted = (
        done
        | set(healing.bypassed)
        | {node for node, latest in seen.items() if latest.outcome == "bypassed_by_deploy"}
    )
    assert not set(healing.ready) & done, "what is done does not begin again"
    assert not set(healing.bypassed) & done
    for node in healing.bypassed:
        assert graph.descendants(node) & done, "only before what is done"
    for node in healing.ready:
        assert set(graph.needs[node]) <= counted, "only what is ready begins"
    for node in healing.withdrawn:
        assert seen[node].active
    active = {node for node, latest in seen.items() if latest.active} - set(healing.withdrawn)
    stopped = {node for node, latest in seen.items() if latest.stopped}
    assert healing.finished or healing.ready or active or stopped, "somebody has something to do"
    if healing.finished:
        assert set(graph.nodes) <= counted
        assert not active
        assert not healing.undefined
