"""How the lives of runs are played, and how many of them.

`play` draws a graph and a seed; everything else follows from those two, so they are all that a failing
test has to tell.  `Life` is the same as a state machine, where hypothesis chooses each deed by itself.
"""

import random
from collections.abc import Sequence

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from detent.kernel.graph import Document, Graph
from detent.stores.store import Store
from tests.simulation.fate import Fate
from tests.simulation.world import World

# A life is not made smaller when it fails: that would take longer than any test may.
LIGHT = settings(
    max_examples=80,
    stateful_step_count=30,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)
FEW = settings(LIGHT, max_examples=10)
DEEP = settings(LIGHT, max_examples=3000, stateful_step_count=50)
STEPS = 30

seeds = st.integers(0, 2**32)


def play(
    store: Store,
    graph: Document | Graph,
    seed: int,
    *,
    news: Sequence[Document | Graph] = (),
    fatal: bool = False,
) -> None:
    """One life, from its beginning to its end."""
    world = World(store, graph)
    Fate(world, random.Random(seed), news=news).let(STEPS, fatal=fatal)
    world.bring_to_its_end()


class Life(RuleBasedStateMachine):
    """The life of a run: whatever happened, at last it is brought to its end."""

    store: Store
    fate: Fate

    def begun(self, graph: Document | Graph) -> None:
        self.fate = Fate(World(self.store, graph), random.Random(0))

    @property
    def world(self) -> World:
        return self.fate.world

    @rule(seed=seeds)
    def work(self, seed: int) -> None:
        self.fate.chance = random.Random(seed)
        self.fate.work()

    @precondition(lambda self: self.world.all_held)
    @rule(seed=seeds)
    def settle(self, seed: int) -> None:
        self.fate.chance = random.Random(seed)
        self.fate.settle()

    @precondition(lambda self: self.world.all_held)
    @rule(seed=seeds)
    def stop(self, seed: int) -> None:
        self.fate.chance = random.Random(seed)
        self.fate.chance.choice([self.fate.give_up, self.fate.die])()

    @precondition(lambda self: self.world.run.state == "ready")
    @rule()
    def pause(self) -> None:
        self.fate.pause()

    @precondition(lambda self: self.world.run.state == "paused")
    @rule()
    def resume(self) -> None:
        self.fate.resume()

    @rule(seed=seeds)
    def operate(self, seed: int) -> None:
        self.fate.chance = random.Random(seed)
        self.fate.operate()

    @rule()
    def tick(self) -> None:
        self.fate.tick()

    @invariant()
    def holds(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "fate"):
            self.world.bring_to_its_end()


def live(life: type[Life], store: Store, how: settings) -> None:
    """Play that life many times over."""
    here: type[Life] = type(life.__name__, (life,), {"store": store})
    run_state_machine_as_test(here, settings=how)
