"""Workers that are killed again and again, without warning."""

import random
import time
from collections.abc import Iterator

import pytest

from tests.acceptance.programs import hanging
from tests.acceptance.support import (
    World,
    all_finish,
    begin,
    eventually,
    finish_exactly_once,
    start_chains,
    states,
)

pytestmark = pytest.mark.acceptance

RUNS = 500
PAUSE = 0.3  # seconds that a step takes at most
KILLS = 10
SHORTEST_LIFE, LONGEST_LIFE = 0.1, 2.0  # seconds between two kills
SOAK_RUNS = 5000
SOAK_KILLS = 100
TAKEN_OVER_WITHIN = 5.0  # seconds


def test_everything_finishes_however_often_its_workers_are_killed(world: World) -> None:
    killed_again_and_again(world, runs=RUNS, kills=KILLS, seed=9)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_everything_finishes_after_a_hundred_kills(world: World, seed: int) -> None:
    killed_again_and_again(world, runs=SOAK_RUNS, kills=SOAK_KILLS, seed=seed)


def killed_again_and_again(world: World, *, runs: int, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    app = world.chains()
    started = start_chains(app, runs)
    workers = begin(world, app, 2, pause=PAUSE)
    killed = 0
    for _ in moments(chance, kills):
        victim = chance.randrange(2)
        workers[victim].kill()
        workers[victim] = world.worker(pause=PAUSE)
        killed += 1
        if states(app)["finished"] == runs:
            break
    print(f"{killed} workers were killed")
    finish_exactly_once(world, app, started, within=300)


def moments(chance: random.Random, count: int) -> Iterator[int]:
    """Random moments, one after the other."""
    for number in range(count):
        time.sleep(chance.uniform(SHORTEST_LIFE, LONGEST_LIFE))
        yield number


def test_another_worker_takes_over_within_seconds(world: World) -> None:
    app = world.app(hanging)
    [first] = begin(world, app, 1, module="hanging")
    runs = [*app.start_many(hanging.hangs, [()] * 5), *app.start_many(hanging.ahangs, [()] * 5)]
    eventually(lambda: len(world.effects()) == len(runs), "all of them hang in the first worker")
    [second] = begin(world, app, 1, module="hanging")

    first.kill()
    died = time.monotonic_ns()
    world.release()
    all_finish(world, app, len(runs))

    begun = [effect.at for effect in world.effects() if effect.kind == "begin" and effect.pid == second.pid]
    assert len(begun) == len(runs)
    took = (max(begun) - died) / 1e9
    print(f"taken over within {took:.2f} s")
    assert took < TAKEN_OVER_WITHIN
