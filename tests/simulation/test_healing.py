"""Deploys in the midst of runs: random versions of a class over the same names, workers of old and new code.

No completed node runs again, no run hangs, none is finished with nodes unrun; a node that was added before
what is done is bypassed; one that is gone pauses the run, unless somebody still knows it.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from detent.kernel.graph import Document, Graph
from detent.stores.store import Store
from tests.simulation.living import DEEP, FEW, LIGHT, Life, live, play, seeds
from tests.simulation.shapes import classes, documents

versions = st.lists(classes(), min_size=1, max_size=4)
repairs = st.lists(documents(), min_size=1, max_size=3)


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
