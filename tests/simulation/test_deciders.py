"""Random inputs, deaths, lost commits, clock steps: whatever happens, instances are what a model says."""

import logging
import random
import sys
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from detent.kernel.operations import Operation
from detent.stores.open import open_store
from detent.stores.store import Store
from tests.conformance.builders import NOW
from tests.simulation.clerk import PATIENT, Do, inputs
from tests.simulation.clerk_faults import BROKEN, BUSY, CUT, GONE, Fault
from tests.simulation.clerk_world import Held, World
from tests.simulation.living import DEEP, FEW, LIGHT, seeds

# Half of the commits go through.
faults = st.one_of(
    st.none(),
    st.none(),
    st.just(Fault(CUT)),
    st.builds(Fault, kind=st.sampled_from([BUSY, GONE, BROKEN]), statement=st.integers(1, 25)),
)
ids = st.none() | st.sampled_from(["x", "y", "z"])
several = st.lists(st.tuples(st.booleans(), inputs, ids), min_size=1, max_size=4)
snapshots = st.sampled_from([1, 2, 3, None])


class Life(RuleBasedStateMachine):
    """Two processes, two workers, two instances."""

    store: Store
    world: World

    @initialize(first=snapshots, second=snapshots)
    def begin(self, first: int | None, second: int | None) -> None:
        self.world = World(self.store, snapshots=(first, second))

    @rule(orders=several, process=st.integers(0, 1), fault=faults, room=st.integers(0, 3), seed=seeds)
    def commit(
        self,
        orders: Sequence[tuple[bool, Do, str | None]],
        process: int,
        fault: Fault | None,
        room: int,
        seed: int,
    ) -> None:
        """Inputs from outside, and what letters bring, in any order."""
        world, chance = self.world, random.Random(seed)
        of = world.processes[process]
        batch = [
            (world.enqueue if waits else world.execute)(of, input, input_id)
            for waits, input, input_id in orders
        ]
        held = [held for worker in world.workers if worker.process is of for held in worker.letters]
        some = held if chance.random() < 0.5 else chance.sample(held, chance.randint(0, len(held)))
        mixed: list[Operation | Held] = [*batch, *some]
        chance.shuffle(mixed)
        world.commit(of, mixed, fault=fault, room=room)

    @rule(worker=st.integers(0, 1), limit=st.integers(1, 6))
    def claim(self, worker: int, limit: int) -> None:
        self.world.claim(self.world.workers[worker], limit)

    @rule(worker=st.integers(0, 1), fault=faults)
    def work(self, worker: int, fault: Fault | None) -> None:
        """Claim, and commit all that is under way."""
        one = self.world.workers[worker]
        self.world.claim(one, 6)
        self.world.commit(one.process, list(one.letters), fault=fault)

    @precondition(lambda self: any(worker.letters for worker in self.world.workers))
    @rule(worker=st.integers(0, 1), suddenly=st.booleans())
    def die(self, worker: int, suddenly: bool) -> None:
        self.world.die(self.world.workers[worker], suddenly=suddenly)

    @precondition(lambda self: self.world.dead)
    @rule(number=st.integers(0, 5), discard=st.booleans())
    def mend(self, number: int, discard: bool) -> None:
        self.world.mend(*self.world.dead[number % len(self.world.dead)], discard=discard)

    @rule(seconds=st.sampled_from([1, 1, 5, 60, 3600]))
    def tick(self, seconds: int) -> None:
        self.world.clock.advance(seconds)

    @rule(process=st.integers(0, 1), again=st.booleans())
    def forget(self, process: int, again: bool) -> None:
        """A process begins anew, with nothing in memory; what was committed may come once more."""
        self.world.processes[process].forget()
        if again:
            self.world.again(self.world.committed)

    @invariant()
    def holds(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            try:
                if sys.exc_info()[0] is None:  # (else it is a deed that failed)
                    self.world.come_to_rest()
            finally:
                self.world.close()


def live(store: Store, how: settings) -> None:
    here: type[Life] = type("Life", (Life,), {"store": store})
    run_state_machine_as_test(here, settings=how)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few events are many here, and nobody waits in real time."""
    monkeypatch.setattr("detent.stores.verbs.streams.FEW", 4)
    monkeypatch.setattr("detent.stores.verbs.streams.PAGE", 3)
    monkeypatch.setattr("detent.execution.letter.DRAINED", 2)
    monkeypatch.setattr("detent.execution.letter.Letter.retry", PATIENT)
    monkeypatch.setattr("detent.commit.batch_attempts.FIRST_WAIT", 0.0)
    monkeypatch.setattr(logging.getLogger("detent.worker"), "disabled", True)  # it tells of every failure


@pytest.fixture
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    store = open_store(f"sqlite:///{tmp_path_factory.mktemp('store') / 'detent.db'}")
    store.migrate(now=NOW)
    yield store
    store.close()


def test_whatever_happens_instances_come_to_what_the_model_says(memory: Store) -> None:
    live(memory, settings(LIGHT, max_examples=60))


def test_it_is_the_same_in_a_file(file: Store) -> None:
    live(file, FEW)


def test_it_is_the_same_on_servers(server: Store) -> None:
    live(server, settings(FEW, max_examples=8))


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_whatever_happens_for_minutes(memory: Store) -> None:
    live(memory, DEEP)
