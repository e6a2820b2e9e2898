"""Random graphs, random workers, random failures: whatever happens, a run comes to its right end."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from detent.kernel.graph import Document
from detent.stores.store import Store
from tests.simulation.living import DEEP, FEW, LIGHT, Life, live, play, seeds
from tests.simulation.shapes import documents
from tests.simulation.world import World


class GraphLife(Life):
    """A run of a dynamic graph."""

    @initialize(document=documents())
    def begin(self, document: Document) -> None:
        self.begun(document)


@settings(LIGHT, phases=settings().phases)
@given(document=documents())
def test_a_graph_comes_to_what_plain_python_makes_of_it(memory: Store, document: Document) -> None:
    World(memory, document).bring_to_its_end()


@settings(LIGHT)
@given(document=documents(), seed=seeds, fatal=st.booleans())
def test_whatever_happens_a_run_comes_to_its_right_end(
    memory: Store, document: Document, seed: int, fatal: bool
) -> None:
    play(memory, document, seed, fatal=fatal)


def test_a_life_of_any_deeds_comes_to_its_right_end(memory: Store) -> None:
    live(GraphLife, memory, LIGHT)


@settings(FEW)
@given(document=documents(), seed=seeds, fatal=st.booleans())
def test_it_is_the_same_on_servers(server: Store, document: Document, seed: int, fatal: bool) -> None:
    play(server, document, seed, fatal=fatal)


@pytest.mark.soak
@settings(DEEP)
@given(document=documents(), seed=seeds, fatal=st.booleans())
def test_whatever_happens_for_minutes(memory: Store, document: Document, seed: int, fatal: bool) -> None:
    play(memory, document, seed, fatal=fatal)
