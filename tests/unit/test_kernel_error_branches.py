"""Error branches, without any database: which way a run takes when nodes fail."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from detent.kernel.advance import Advance, Count, End
from detent.kernel.graph import VERSION, Document, Graph, Node, freeze, thaw, validated
from detent.kernel.heal import Past, heal
from detent.kernel.policies import Retry
from detent.kernel.retries import stored_retry
from tests.unit.test_kernel_advance import Memory, advance

ERROR = '{"type":"builtins.ValueError","message":"no"}'


def job(name: str, *needs: str, **given: object) -> Node:
    return Node(name=name, job="work", depends_on=needs, **given)  # type: ignore[arg-type]


def graph_of(**nodes: Node) -> Graph:
    document = validated(Document(version=VERSION, nodes=nodes), "the graph")
    return Graph(document, "signature")


SHOP = graph_of(
    charge=job("charge", on_error=True),
    ship=job("ship", "charge"),
    refund=job("refund", "charge", branch=("charge", False)),
    mail=job("mail", "ship", "refund"),
)

END = End("job", "success", "1")


def test_what_comes_after_a_node_depends_on_its_success_except_its_error_branch() -> None:
    wanted = {id: set(SHOP.unless(id)) for id in SHOP.nodes}
    assert wanted == {"charge": set(), "ship": {"charge"}, "refund": set(), "mail": set()}


def test_a_failure_skips_what_follows_and_begins_the_error_branch() -> None:
    plan = advance(SHOP)
    plan.settle("charge", 1, End("charge", "branched_by_exception", None, ERROR))
    assert [row.node for row in plan.executions] == ["refund"]
    assert [(row.node, row.outcome) for row in plan.ended] == [("ship", "skipped_by_condition")]
    assert plan.counts["mail"] == Count(1, 2)


def test_a_success_skips_the_error_branch() -> None:
    plan = advance(SHOP)
    plan.settle("charge", 1, End("charge", "success", '"paid"'))
    assert [row.node for row in plan.executions] == ["ship"]
    assert [(row.node, row.outcome) for row in plan.ended] == [("refund", "skipped_by_condition")]


def test_a_graph_without_error_branches_is_stored_as_before() -> None:
    text, signature = freeze(Document(version=VERSION, nodes={"a": Node(name="a", job="work")}))
    assert text == '{"version":1,"nodes":{"a":{"name":"a","job":"work"}}}'
    assert not thaw(text, signature, "it").handled


def test_a_retry_comes_back_from_the_stored_text() -> None:
    retry = stored_retry(Retry(attempts=5, on=(KeyError, OSError), never_on=(TimeoutError,), jitter=0.5))
    text, signature = freeze(Document(version=VERSION, nodes={"a": Node(name="a", job="work", retry=retry)}))
    again = thaw(text, signature, "it").nodes["a"].retry
    assert again == retry
    assert again is not None
    assert again.wait_after(1, ConnectionError()) is not None  # an OSError
    assert again.wait_after(1, TimeoutError()) is None
    assert again.wait_after(1, ValueError()) is None
    assert again.wait_after(5, KeyError()) is None


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Jobs, some with an error branch, whose handlers come later."""
    nodes: dict[str, Node] = {}
    waiting: list[str] = []  # nodes that want a handler
    for id in "abcdefgh"[: draw(st.integers(1, 8))]:
        some = st.lists(st.sampled_from(list(nodes) or [""]), max_size=3 if nodes else 0, unique=True)
        needs: list[str] = draw(some)
        branch = None
        handles: bool = draw(st.booleans())
        if waiting and handles:
            branch = (draw(st.sampled_from(waiting)), False)
            needs = list(dict.fromkeys([*needs, branch[0]]))
        nodes[id] = job(id, *needs, branch=branch, on_error=draw(st.booleans()))
        if nodes[id].on_error:
            waiting.append(id)
    handled = {node.branch[0] for node in nodes.values() if node.branch is not None}
    for id in [id for id, node in nodes.items() if node.on_error and id not in handled]:
        nodes[f"{id}x"] = job(f"{id}x", id, branch=(id, False))
    return graph_of(**nodes)


def plainly(graph: Graph, failing: set[str]) -> dict[str, str]:
    """What becomes of each node, by the rule as it is documented."""

    def after(id: str) -> set[str]:
        return {other for other, node in graph.nodes.items() if id in node.depends_on or after_of(node, id)}

    def after_of(node: Node, id: str) -> bool:
        return any(need == id or after_of(graph.nodes[need], id) for need in node.depends_on)

    fate: dict[str, str] = {}
    for id, node in graph.nodes.items():
        fate[id] = "completed"
        for one, handled in graph.nodes.items():
            if not handled.on_error or one not in fate or id not in after(one):
                continue
            branch = {other for other, it in graph.nodes.items() if it.branch == (one, False)}
            beyond = branch.union(*(after(other) for other in branch))
            if fate[one] == "failed" and id not in beyond:
                fate[id] = "skipped"
        if node.branch is not None and fate[node.branch[0]] != "failed":
            fate[id] = "skipped"
        if fate[id] == "completed" and node.on_error and id in failing:
            fate[id] = "failed"
    return fate


class Recording(Memory):
    """An inbox that is filled while the run goes on."""

    def __init__(self) -> None:
        super().__init__()

    def note(self, node: str, error: str | None = None) -> None:
        self.results[node] = ("1" if error is None else None, f"hash of {node}", error)  # type: ignore[assignment]


def walk(graph: Graph, failing: set[str], order: st.DataObject) -> dict[str, str]:
    """Run it, a transaction for each settle, in any order."""
    counts: dict[str, Count] = {}
    inbox = Recording()
    fate: dict[str, str] = {}
    ready: list[str] = []
    ended = 0

    def take(plan: Advance) -> None:
        nonlocal ended
        for row in plan.ended:
            assert row.node not in fate
            fate[row.node] = "skipped"
            inbox.note(row.node)
        for new in plan.executions:
            assert new.node not in ready
            assert new.node not in fate
            ready.append(new.node)
        ended += plan.end is not None

    plan = advance(graph, inbox, counts=counts)
    plan.begin(graph.roots)
    take(plan)
    while ready:
        node = ready.pop(order.draw(st.integers(0, len(ready) - 1)))
        error = ERROR if graph.nodes[node].on_error and node in failing else None
        fate[node] = "completed" if error is None else "failed"
        plan = advance(graph, inbox, counts=counts)
        plan.settle(node, 1, END if error is None else End("job", "branched_by_exception", None, error))
        inbox.note(node, error)
        take(plan)
    assert ended == 1
    return fate


@given(graphs(), st.sets(st.sampled_from("abcdefgh")), st.data())
def test_a_run_takes_the_way_that_the_rule_says(graph: Graph, failing: set[str], data: st.DataObject) -> None:
    assert walk(graph, failing, data) == plainly(graph, failing)


@given(graphs(), st.sets(st.sampled_from("abcdefgh")), st.data())
def test_a_recount_at_any_moment_comes_to_the_same(
    graph: Graph, failing: set[str], data: st.DataObject
) -> None:
    """Healing counts a failure with an error branch as done, and nothing else that failed."""
    fate = plainly(graph, failing)
    cut = data.draw(st.integers(0, len(graph.nodes)))
    done = list(graph.nodes)[:cut]  # in the order of adding: what a node needs comes before it
    past: Mapping[str, Past] = {id: _past(id, fate[id]) for id in done}
    healing = heal(graph, past)
    assert not healing.bypassed
    ready = {id for id, node in graph.nodes.items() if id not in done and set(node.depends_on) <= set(done)}
    assert set(healing.ready) == ready


def _past(id: str, fate: str) -> Past:
    outcome = {
        "completed": "success",
        "skipped": "skipped_by_condition",
        "failed": "branched_by_exception",
    }
    return Past(id, 1, fate, outcome[fate])
