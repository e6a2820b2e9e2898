"""A worker whose clock jumps by an hour, forward and back, beside one whose clock is right."""

import signal

import pytest

from detent import App
from tests.acceptance.programs import sleeping
from tests.acceptance.support import (
    World,
    alive,
    all_finish,
    eventually,
    journals_agree,
    query,
    recorded_bodies_stay,
    settled_once,
    start_chains,
    states,
    written_once,
)

pytestmark = pytest.mark.acceptance

RUNS = 150
SLEEPERS = 50
PAUSE = 0.5
FORWARD, BACK = signal.SIGUSR1, signal.SIGUSR2


def test_a_clock_that_jumps_loses_nothing(world: World) -> None:
    app = world.chains()
    workers = [world.worker(program="jumpy", pause=PAUSE), world.worker(pause=PAUSE)]
    eventually(lambda: alive(app, *workers), "both workers have begun")
    runs = start_chains(app, RUNS)
    for number, jump in enumerate([FORWARD, BACK, BACK, FORWARD, FORWARD], start=1):
        have_finished(app, RUNS * number // 8)
        workers[0].send(jump)
    all_finish(world, app, RUNS)
    assert all(worker.alive for worker in workers)
    settled_once(app, RUNS)
    written_once(app, RUNS)
    journals_agree(world, app, runs)
    recorded_bodies_stay(world)


def have_finished(app: App, count: int) -> None:
    eventually(lambda: states(app)["finished"] >= count, f"{count} runs have finished")


def test_timers_fire_by_the_clock_that_jumped(world: World) -> None:
    """Set by a clock that was an hour late or early, they fire when that clock says so."""
    app = world.app(sleeping)
    worker = world.worker("sleeping", program="jumpy")
    eventually(lambda: alive(app, worker), "the worker has begun")
    calls = [(3000.0,)] * SLEEPERS  # most of an hour
    app.start_many(sleeping.sleeps, calls)
    eventually(lambda: asleep(world, SLEEPERS), "all of them sleep")
    worker.send(BACK)
    app.start_many(sleeping.asleeps, calls)
    eventually(lambda: asleep(world, 2 * SLEEPERS), "more of them sleep")
    assert states(app) == {"ready": 2 * SLEEPERS}
    # Now it is right again, by which the second half is due; and then all are.
    worker.send(FORWARD)
    eventually(lambda: states(app)["finished"] == SLEEPERS, "the second half has woken up")
    worker.send(FORWARD)
    all_finish(world, app, 2 * SLEEPERS)
    settled_once(app, 2 * SLEEPERS)


def asleep(world: World, count: int) -> bool:
    return bool(
        query(world.app(), "SELECT COUNT(*) FROM detent_executions WHERE state = 'timer'") == [(count,)]
    )
