"""Deploys in the midst of runs: random versions of a class over the same names, workers of old and new code.

No completed node runs again, no run hangs, none is finished with nodes unrun; a node that was added before
what is done is bypassed; one that is gone pauses the run, unless somebody still knows it.
"""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from detent.kernel.graph import SPREAD, VALUE, VERSION, WHEN, Document, Graph, Node
from detent.stores.store import Store
from tests.simulation.living import DEEP, FEW, LIGHT, Life, live, play, seeds
from tests.simulation.shapes import COUNT, classes, documents

versions = st.lists(classes(), min_size=1, max_size=4)
repairs = st.lists(documents(), min_size=1, max_size=3)


def document(**nodes: Node) -> Document:
    return Document(version=VERSION, name="flow", nodes=nodes)


def job(*needs: str) -> Node:
    return Node(name="", job=COUNT, args={"x": 1}, depends_on=needs)


def spread(*needs: str, over: Any) -> Node:
    value = {"$expr": ["list", *over]}
    return Node(name="", kind=SPREAD, job=COUNT, arg="item", args={"x": 1}, depends_on=needs, value=value)


DEAD_END = Node(name="", kind=WHEN, value={"$expr": ["gt", 0, 1]}, otherwise=False)


class ClassLife(Life):
    """A run of a class, whose code changes under it."""

    @initialize(graph=classes())
    def begin(self, graph: Graph) -> None:
        self.begun(graph)

    @rule(graph=classes())
    def deploy(self, graph: Graph) -> None:
        self.fate.news = [graph]
        self.fate.change()

    @rule()
    def look_after(self) -> None:
        self.fate.look_after()


@settings(LIGHT)
@given(graph=classes(), news=versions, seed=seeds, fatal=st.booleans())
def test_a_run_comes_to_its_end_by_the_code_of_today(
    memory: Store, graph: Graph, news: list[Graph], seed: int, fatal: bool
) -> None:
    play(memory, graph, seed, news=news, fatal=fatal)


def test_a_life_of_any_deploys_comes_to_its_end(memory: Store) -> None:
    live(ClassLife, memory, LIGHT)


@settings(LIGHT)
@given(document=documents(), news=repairs, seed=seeds)
@example(  # a node that failed inline becomes ready by one that is evaluated in the same resume
    document=document(a=DEAD_END, b=DEAD_END), news=[document(a=spread(over=()), b=job("a"))], seed=0
)
@example(  # so does a spread whose items are under way
    document=document(s=spread(over=(1, 2)), z=job("s")),
    news=[document(v=Node(name="", kind=VALUE, value=1), s=spread("v", over=(1, 2)), z=job("s"))],
    seed=2,
)
def test_a_run_comes_to_its_end_by_a_graph_that_was_replaced(
    memory: Store, document: Document, news: list[Document], seed: int
) -> None:
    play(memory, document, seed, news=news)


@settings(FEW)
@given(graph=classes(), news=versions, seed=seeds)
def test_it_is_the_same_on_servers(server: Store, graph: Graph, news: list[Graph], seed: int) -> None:
    play(server, graph, seed, news=news)


@pytest.mark.soak
@settings(DEEP)
@given(graph=classes(), news=versions, seed=seeds, fatal=st.booleans())
def test_deploys_for_minutes(memory: Store, graph: Graph, news: list[Graph], seed: int, fatal: bool) -> None:
    play(memory, graph, seed, news=news, fatal=fatal)


@pytest.mark.soak
@settings(DEEP)
@given(document=documents(), news=repairs, seed=seeds)
def test_repairs_for_minutes(memory: Store, document: Document, news: list[Document], seed: int) -> None:
    play(memory, document, seed, news=news)
