"""A worker that is stopped past its lease, and then goes on as if nothing had happened."""

import signal
import sqlite3
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from detent import App
from detent.stores.driver import Trouble
from tests.acceptance.support import (
    Process,
    World,
    alive,
    all_finish,
    eventually,
    journals_agree,
    query,
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
    eventually(lambda: alive(app, first), "the first worker has begun")
    runs = start_chains(app, RUNS)
    eventually(lambda: states(app)["finished"] > RUNS // 10, "some of it is done")

    stop(world, app, first)
    while not held(app, first):  # it was done sooner than we could stop it
        first.send(signal.SIGCONT)
        runs += start_chains(app, RUNS)
        eventually(lambda: held(app, first), "it is at work again")
        stop(world, app, first)
    second = world.worker(pause=PAUSE, lease=LEASE)
    all_finish(world, app, len(runs))
    assert not alive(app, first)
    by_others = {effect.pid for effect in world.effects()} - {first.pid}
    assert by_others == {second.pid}

    # It comes back, is told that all of that is somebody else's now, and begins anew.
    first.send(signal.SIGCONT)
    eventually(lambda: alive(app, first), "the first worker is back alive")
    second.kill()
    runs += start_chains(app, MORE_RUNS)
    all_finish(world, app, len(runs))
    assert first.alive
    settled_once(app, len(runs))
    written_once(app, len(runs))
    journals_agree(world, app, runs)


def test_a_worker_may_be_stopped_again_and_again(world: World) -> None:
    """Two workers, one of them always stopped for longer than its lease."""
    app = world.chains()
    workers = [world.worker(pause=PAUSE, lease=LEASE) for _ in range(2)]
    eventually(lambda: alive(app, *workers), "both workers have begun")
    runs = start_chains(app, RUNS)
    for number in (0, 1):
        stop(world, app, workers[number])
        eventually(lambda: len(app.engine.store.workers()) == 1, "it is declared dead")
        workers[number].send(signal.SIGCONT)
        eventually(lambda: alive(app, *workers), "it is back")
    all_finish(world, app, RUNS)
    settled_once(app, RUNS)
    written_once(app, RUNS)
    journals_agree(world, app, runs)


def held(app: App, worker: Process) -> int:
    """How many executions it has: while it is stopped, they wait for the end of its lease."""
    rows = query(
        app,
        "SELECT COUNT(*) FROM detent_executions e JOIN detent_workers w ON w.id = e.worker"
        f" WHERE e.state = 'executing' AND w.pid = {worker.pid}",
    )
    return int(rows[0][0])


def stop(world: World, app: App, worker: Process) -> None:
    """Stop a worker, wherever it is; but not in the middle of a transaction that nobody could end for it.

    PostgreSQL ends the transactions of a process that is stopped, MariaDB those that are not a user's.
    The lock of a SQLite file is the kernel's, and lasts as long as the process.
    """
    while True:
        worker.send(signal.SIGSTOP)
        eventually(worker.is_stopped, "it is stopped")
        if nobody_held_up(world, app, worker):
            return
        worker.send(signal.SIGCONT)


def nobody_held_up(world: World, app: App, worker: Process) -> bool:
    store = app.engine.store
    try:
        if store.dialect == "sqlite":
            with closing(sqlite3.connect(urlsplit(world.url).path[1:], timeout=0.1)) as connection:
                connection.execute("BEGIN IMMEDIATE")
        elif store.dialect == "mysql":
            query(app, f"SELECT id FROM detent_workers WHERE pid = {worker.pid} FOR UPDATE NOWAIT")
    except Exception as error:
        if store.driver.trouble(error) is not Trouble.RETRY:
            raise
        return False
    return True
