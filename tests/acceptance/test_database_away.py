"""Servers that are stopped while work is under way, and come back.

These tests come after all others, and one by one: while a server is away, nobody else can test on it.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from detent import App, Run
from detent.errors import DatabaseUnavailable
from tests.acceptance.programs import chains, waiting
from tests.acceptance.support import (
    World,
    alive,
    all_finish,
    eventually,
    journals_agree,
    recorded_bodies_stay,
    settled_once,
    start_chains,
    states,
    written_once,
)
from tools import servers

pytestmark = pytest.mark.acceptance

RUNS = 300
WAITING_RUNS = 40
PAUSE = 0.5  # seconds that a step takes at most
AWAY = 10.0  # seconds


class Server:
    """One of the two servers, and the world on it."""

    def __init__(self, world: World, control: str) -> None:
        self.world = world
        self.control = control

    def away(self, seconds: float, *, crash: bool) -> None:
        servers.stop(self.control, crash=crash)
        time.sleep(seconds)
        servers.start(self.control)


@pytest.fixture(params=["postgres", "mysql"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    control: str = request.getfixturevalue(f"{request.param}_control")
    world = World(request.getfixturevalue(f"{request.param}_database"), tmp_path)
    yield Server(world, control)
    servers.start(control)
    world.close()


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "crashed"])
def test_work_goes_on_where_the_database_went_away(server: Server, crash: bool) -> None:
    world = server.world
    app = world.chains()
    workers = [world.worker(pause=PAUSE), world.worker(pause=PAUSE)]
    eventually(lambda: alive(app, *workers), "both workers have begun")
    runs = start_chains(app, RUNS)
    eventually(lambda: states(app)["finished"] > RUNS // 10, "some of it is done")

    server.away(AWAY, crash=crash)

    all_finish(world, app, RUNS)
    assert all(worker.alive for worker in workers)
    settled_once(app, RUNS)
    written_once(app, RUNS)
    journals_agree(world, app, runs)
    recorded_bodies_stay(world)


def test_what_waits_goes_on_where_the_database_went_away(server: Server) -> None:
    """Sleeps, messages, spawned steps and children: none is lost, none fails for the outage."""
    world = server.world
    app = world.app(waiting)
    worker = world.worker("waiting", pause=PAUSE)
    eventually(lambda: alive(app, worker), "the worker has begun")
    numbers = [2 * n for n in range(WAITING_RUNS // 2)]
    calls = [(number,) for number in numbers]
    runs: list[Run[Any]] = [*app.start_many(waiting.waits, calls), *app.start_many(waiting.awaits, calls)]
    numbers *= 2
    eventually(lambda: len(world.effects()) > len(runs) // 4, "some of them listen")

    servers.stop(server.control)
    with ThreadPoolExecutor(len(runs)) as pool:
        sent = [pool.submit(run.send, "number", number) for run, number in zip(runs, numbers, strict=True)]
        time.sleep(AWAY / 2)
        servers.start(server.control)
        for sending in sent:
            sending.result()

    assert [run.result(timeout=60) for run in runs] == [10 * number for number in numbers]


def test_a_start_waits_for_the_database(server: Server) -> None:
    app = server.world.chains()
    impatient = server.world.app(chains, patience=timedelta(seconds=0.5))
    servers.stop(server.control)
    with pytest.raises(DatabaseUnavailable):
        impatient.start(chains.chain)
    with pytest.raises(DatabaseUnavailable):
        App(server.world.url, include=[chains], patience=timedelta(seconds=0.5)).open()
    with ThreadPoolExecutor() as pool:
        starting = pool.submit(app.start, chains.chain)
        opening = pool.submit(App(server.world.url, include=[chains]).open, worker=True)
        assert not starting.done()
        servers.start(server.control)
        run = starting.result()
        with closing(opening.result()):
            assert run.result(timeout=30)
    assert states(app) == {"finished": 1}
