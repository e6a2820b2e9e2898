"""A small world of graphs for the stores: runs that go on from node to node."""

from collections.abc import Iterable
from typing import Any

from detent.execution.new_runs import Terms, _opened
from detent.execution.rows import claimed_of_run
from detent.execution.run_graphs import Values
from detent.kernel.advance import RunGraph
from detent.kernel.ancestry import verify
from detent.kernel.expressions import recorded
from detent.kernel.graph import AWAIT_JOB, VERSION, Document, Graph, Node, class_graph, freeze
from detent.kernel.operations import Settle, Start, Verdict
from detent.kernel.rows import Await, Claimed, Lease, NewRun
from detent.kernel.settle import Ending, Outcome, settle
from detent.serialization.codec import Codec
from detent.stores.store import Store
from detent.stores.verbs.graphs import parts
from tests.conformance.builders import NOW, SECOND, claim, enlist, key_of, new_run, one

CODEC = Codec()
FAILURE = '{"type":"E","message":"broken"}'
BROKEN = Outcome.PAUSED_BY_EXCEPTION
LATER = NOW + 10 * SECOND  # than all that settles here


def job(*needs: str, **given: Any) -> Node:
    return Node(name="", job="do", depends_on=needs, **given)


def inline(kind: str, *needs: str, value: Any = None, **given: Any) -> Node:
    return Node(name="", kind=kind, depends_on=needs, value=recorded(value), **given)


def graph_of(**nodes: Node) -> Graph:
    """A graph that was built at run time; a node is called by its id."""
    document = Document(
        version=VERSION, name="flow", nodes={id: _named(id, node) for id, node in nodes.items()}
    )
    return Graph(document, freeze(document)[1])


def class_of(**needs: str) -> Graph:
    """The graph of a class: `class_of(a="", b="a")`."""
    return class_graph(
        "Flow", {name: Node(name=name, depends_on=tuple(before.split())) for name, before in needs.items()}
    )


def _named(id: str, node: Node) -> Node:
    return Node(**{field: getattr(node, field) for field in node.__struct_fields__} | {"name": id})


def diamond() -> Graph:
    return graph_of(a=job(), b=job("a"), c=job("a"), d=job("b", "c"))


def fan(number: int) -> Graph:
    """So many side by side, and a join."""
    names = [f"p{index}" for index in range(number)]
    return graph_of(**{name: job() for name in names}, join=job(*names))


# -- Beginning -------------------------------------------------------------------------------------


def begin(store: Store, graph: Graph, run_id: str = "run", *, worker: str = "w1", **of_run: Any) -> None:
    """Begin a run of a graph, and put a worker into liveness."""
    enlist(store, worker)
    assert one(store, beginning(graph, run_id, **of_run))[0].created


def beginning(graph: Graph, run_id: str = "run", **of_run: Any) -> Start:
    of_class = all(node.job is None and not node.inline and node.run is None for node in graph.nodes.values())
    fields: dict[str, Any] = {
        "type": "Flow",
        "kind": "class" if of_class else "graph",
        "signature": graph.signature,
    }
    run: NewRun = new_run(run_id, **(fields | {"frozen_at": None if of_class else NOW} | of_run))
    terms = Terms(id=run_id, queue="default", priority=0, now=NOW, declared=("default",))
    start = _opened(CODEC, graph, run, terms, methods=of_class)
    if not of_class:
        start.graphs = parts(run_id, freeze(graph.document)[0])
    return start


# -- Work ------------------------------------------------------------------------------------------


def take(store: Store, *nodes: str, worker: str = "w1", now: int = LATER) -> list[Claimed]:
    """Claim all that is due, which must be these nodes; in their order."""
    found = {item.node: item for item in grab(store, worker=worker, now=now)}
    assert sorted(found) == sorted(nodes)
    return [found[node] for node in nodes]


def grab(store: Store, *, worker: str = "w1", limit: int = 50, now: int = LATER) -> list[Claimed]:
    methods = [f"Flow.{letter}" for letter in "abcdefghijklmnop"]
    return claim(store, worker, limit=limit, now=now, jobs=["do", AWAIT_JOB, *methods])


def run_graph(graph: Graph, claimed: Claimed) -> RunGraph:
    return RunGraph(graph=graph, values=Values(CODEC), claimed=claimed, methods=claimed.run_kind == "class")


def operators(store: Store, graph: Graph, run_id: str = "run") -> RunGraph:
    return run_graph(graph, claimed_of_run(store.run(run_id)))


def ending(
    claimed: Claimed, graph: Graph, outcome: Outcome = Outcome.SUCCESS, result: str | None = "1", **given: Any
) -> Settle:
    """The settle of a node."""
    fields: dict[str, Any] = {"now": NOW + SECOND}
    if outcome is not Outcome.SUCCESS and outcome is not Outcome.PAUSED_AFTER:
        result = None
    end = Ending(outcome=outcome, result=result, **(fields | given))
    return Settle(
        worker=claimed.worker,
        key=key_of(claimed),
        token=claimed.token,
        now=end.now,
        plan=settle(claimed, end),
        parent=claimed.parent,
        run_graph=run_graph(graph, claimed),
    )


def finish(store: Store, graph: Graph, *nodes: str, **given: Any) -> None:
    """These nodes are due: they succeed."""
    store.apply([ending(item, graph, **given) for item in take(store, *nodes)])


def verdicts(answers: list[Any]) -> list[Verdict]:
    return [answer.verdict for answer in answers]


def intact(store: Store, *known: Graph, run_id: str = "run") -> bool:
    """Whether the chain of hashes holds."""
    return verify(run_id, known, store.executions(run_id)) == []


def meddle(store: Store, statement: str) -> None:
    with store._writer.transaction() as tx:
        assert tx.run(statement) == 1


def for_run(target: str, run_id: str = "run") -> Await:
    return Await(run_id=run_id, kind="run", name=target)


# -- Looks -----------------------------------------------------------------------------------------


def states(store: Store, run_id: str = "run") -> dict[str, str]:
    """The state of the latest attempt at each node, as people see it."""
    rows = sorted(store.executions(run_id), key=lambda row: row.attempt)
    waiting = ("ready", "timer", "parked")
    return {row.node: "scheduled" if row.state in waiting else row.state for row in rows}


def outcomes(store: Store, run_id: str = "run") -> dict[str, str | None]:
    return {row.node: row.outcome for row in sorted(store.executions(run_id), key=lambda row: row.attempt)}


def counts(store: Store, run_id: str = "run") -> dict[str, tuple[int, int]]:
    with store._reading() as tx:
        rows = tx.query(f"SELECT node, settled, required FROM detent_readiness WHERE run_id = '{run_id}'")
    return {node: (settled, required) for node, settled, required in rows}


class Taker:
    """A worker that takes over what becomes ready, as far as it has room."""

    def __init__(self, worker: str = "w1", room: int = 10) -> None:
        self.id = worker
        self.room = room
        self.tokens: list[str] = []
        self.lost: list[str] = []

    def reserve(self, job: str, queue: str, *, handed_on: bool = False) -> Lease | None:
        if not self.room:
            return None
        self.room -= 1
        self.tokens.append(f"{self.id}-lease-{len(self.tokens)}-{id(self)}")
        return Lease(worker=self.id, token=self.tokens[-1])

    def give_back(self, tokens: Iterable[str]) -> None:
        self.room += len(list(tokens))

    def unconfirmed(self, tokens: Iterable[str]) -> None:
        lost = list(tokens)
        self.give_back(lost)
        self.lost += lost
