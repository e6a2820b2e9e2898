"""A worker that is stopped past its lease, and then goes on as if nothing had happened."""

import signal

import pytest

from detent import App
from tests.acceptance.support import (
    Process,
    World,
    all_finish,
    eventually,
    in_office,
    journals_agree,
    settled_once,
    start_chains,
    states,
    written_once,
)

pytestmark = pytest.mark.acceptance

RUNS = 100
MORE_RUNS = 50
LEASE = 3  # seconds
PAUSE = 0.5


def test_a_worker_that_was_stopped_settles_nothing_twice(world: World) -> None:
    app = world.chains()
    first = world.worker(pause=PAUSE, lease=LEASE)
    eventually(lambda: in_office(app, first), "the first worker has begun")
    runs = start_chains(app, RUNS)
    eventually(lambda: states(app)["finished"] > RUNS // 10, "some of it is done")

    first.send(signal.SIGSTOP)
    second = world.worker(pause=PAUSE, lease=LEASE)
    all_finish(world, app, RUNS)
    assert not in_office(app, first)
    by_others = {effect.pid for effect in world.effects()} - {first.pid}
    assert by_others == {second.pid}

    # It comes back, is told that all of that is somebody else's now, and begins anew.
    first.send(signal.SIGCONT)
    eventually(lambda: in_office(app, first), "the first worker is back in office")
    second.kill()
    runs += start_chains(app, MORE_RUNS)
    all_finish(world, app, RUNS + MORE_RUNS)
    assert first.alive
    settled_once(app, RUNS + MORE_RUNS)
    written_once(app, RUNS + MORE_RUNS)
    journals_agree(world, app, runs)


def test_a_worker_may_be_stopped_again_and_again(world: World) -> None:
    """Two workers, one of them always stopped for longer than its lease."""
    app = world.chains()
    workers = [world.worker(pause=PAUSE, lease=LEASE) for _ in range(2)]
    eventually(lambda: in_office(app, *workers), "both workers have begun")
    runs = start_chains(app, RUNS)
    for number in (0, 1, 0):
        stop_past_the_lease(app, workers[number])
    all_finish(world, app, RUNS)
    settled_once(app, RUNS)
    written_once(app, RUNS)
    journals_agree(world, app, runs)


def stop_past_the_lease(app: App, worker: Process) -> None:
    worker.send(signal.SIGSTOP)
    eventually(lambda: not in_office(app, worker), "it is taken out of office")
    worker.send(signal.SIGCONT)
    eventually(lambda: in_office(app, worker), "it is back")
