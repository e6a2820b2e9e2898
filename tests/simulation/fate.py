"""What may befall a run: each deed is drawn from a random source, so a seed tells the whole story."""

import random
from collections.abc import Callable, Sequence

from detent.kernel.graph import Document, Graph
from detent.kernel.settle import Outcome
from tests.conformance.builders import SECOND
from tests.simulation.world import FATAL, GENTLE, LIKELY, World

OUTCOMES = [*LIKELY, *GENTLE]


class Fate:
    """Lets things happen to a world."""

    def __init__(self, world: World, chance: random.Random, *, news: Sequence[Document | Graph] = ()) -> None:
        self.world = world
        self.chance = chance
        self.news = list(news)  # graphs to come: versions of a class, or replacements

    def let(self, steps: int, *, fatal: bool = False) -> None:
        """Let so many things happen, and look after each of them."""
        deeds: list[tuple[Callable[[], None], int]] = [
            (self.work, 12),
            (self.claim, 4),
            (self.settle, 8),
            (self.give_up, 1),
            (self.die, 2),
            (self.pause, 1),
            (self.resume, 3),
            (self.operate, 2),
            (self.tick, 2),
            (self.change, 2 if self.news else 0),
            (self.look_after, 2 if self.world.methods else 0),
            (self.end, 1 if fatal else 0),
        ]
        names, weights = zip(*deeds, strict=True)
        self.world.check()
        for deed in self.chance.choices(names, weights, k=steps):
            deed()
            self.world.check()

    # -- Workers -----------------------------------------------------------------------------------

    def work(self) -> None:
        """Claim, and settle some of what is held."""
        self.claim()
        self.settle()

    def claim(self) -> None:
        self.world.claim(self.chance.choice(self.world.workers), self.chance.randint(1, 4))

    def settle(self, outcomes: Sequence[Outcome] = OUTCOMES) -> None:
        """Several of what is under way, of several workers, in any order; one of them perhaps twice."""
        world, chance = self.world, self.chance
        held = world.all_held
        if not held:
            return
        chosen = [chance.choice(held) for _ in range(chance.randint(1, 4))]
        ends = [(*one, chance.choice(outcomes), chance.choice([0, 0, 5 * SECOND])) for one in chosen]
        slots = chance.choice([None, *world.workers])
        if slots is not None:
            slots.room = chance.randint(0, 3)
        operations = world.settle(ends, slots)
        if chance.random() < 0.2:
            world.again(operations)

    def give_up(self) -> None:
        """A worker leaves in good order, or hands back what it has not begun."""
        if self.world.all_held:
            worker, claimed = self.chance.choice(self.world.all_held)
            (self.world.put_down if self.chance.random() < 0.5 else self.world.hand_back)(worker, claimed)

    def die(self) -> None:
        late = self.world.die(self.chance.choice(self.world.workers))
        self.world.hire()
        self.world.again(late)

    def end(self) -> None:
        """The run ends before its time."""
        if self.chance.random() < 0.2:
            self.world.cancel()
        else:
            self.settle([*FATAL, Outcome.SUCCESS, Outcome.REATTEMPTED, Outcome.SKIPPED_BY_EXCEPTION])

    # -- The operator, the time, deploys -----------------------------------------------------------

    def pause(self) -> None:
        self.world.pause()

    def resume(self) -> None:
        self.world.resume()

    def operate(self) -> None:
        known = sorted({*self.world.graph.nodes, *self.world.latest(), "nobody"})
        (self.world.skip if self.chance.random() < 0.5 else self.world.reattempt)(self.chance.choice(known))

    def tick(self) -> None:
        self.world.tick()

    def change(self) -> None:
        """New code, and a worker that has it; or another graph for a run that is paused for that."""
        if not self.news:
            return
        graph = self.news.pop(0)
        if isinstance(graph, Graph):
            self.world.deploy(graph)
            self.world.hire()
        else:
            self.world.pause()
            self.world.replace(graph)

    def look_after(self) -> None:
        self.world.look_after()
