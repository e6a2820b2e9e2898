"""Servers that are stopped while work is under way, and come back."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest

from detent import App, Run
from detent.errors import DatabaseUnavailable
from tests.acceptance.private_server import PrivateServer
from tests.acceptance.programs import chains, waiting
from tests.acceptance.support import (
    World,
    begin,
    eventually,
    finish_exactly_once,
    start_chains,
    states,
)

pytestmark = pytest.mark.acceptance

RUNS = 300
WAITING_RUNS = 40
PAUSE = 0.5  # seconds that a step takes at most
AWAY = 10.0  # seconds


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "crashed"])
def test_work_goes_on_where_the_database_went_away(
    server: PrivateServer, world_on_server: World, crash: bool
) -> None:
    world = world_on_server
    app = world.chains()
    workers = begin(world, app, 2, pause=PAUSE)
    runs = start_chains(app, RUNS)
    eventually(lambda: states(app)["finished"] > RUNS // 10, "some of it is done")

    server.away(AWAY, crash=crash)

    finish_exactly_once(world, app, runs)
    assert all(worker.alive for worker in workers)


def test_what_waits_goes_on_where_the_database_went_away(
    server: PrivateServer, world_on_server: World
) -> None:
    """Sleeps, messages, spawned steps and children: none is lost, none fails for the outage."""
    world = world_on_server
    app = world.app(waiting)
    begin(world, app, 1, module="waiting", pause=PAUSE)
    numbers = [2 * n for n in range(WAITING_RUNS // 2)]
    calls = [(number,) for number in numbers]
    runs: list[Run[Any]] = [*app.start_many(waiting.waits, calls), *app.start_many(waiting.awaits, calls)]
    numbers *= 2
    eventually(lambda: len(world.effects()) > len(runs) // 4, "some of them listen")

    server.stop()
    with ThreadPoolExecutor(len(runs)) as pool:
        sent = [pool.submit(run.send, "number", number) for run, number in zip(runs, numbers, strict=True)]
        time.sleep(AWAY / 2)
        server.start()
        for sending in sent:
            sending.result()

    assert [run.result(timeout=60) for run in runs] == [10 * number for number in numbers]


def test_a_start_waits_for_the_database(server: PrivateServer, world_on_server: World) -> None:
    world = world_on_server
    app = world.chains()
    impatient = world.app(chains, patience=timedelta(seconds=0.5))
    server.stop()
    with pytest.raises(DatabaseUnavailable):
        impatient.start(chains.chain)
    with pytest.raises(DatabaseUnavailable):
        App(world.url, include=[chains], patience=timedelta(seconds=0.5)).open()
    with ThreadPoolExecutor() as pool:
        starting = pool.submit(app.start, chains.chain)
        opening = pool.submit(App(world.url, include=[chains]).open, worker=True)
        assert not starting.done()
        server.start()
        run = starting.result()
        with closing(opening.result()):
            assert run.result(timeout=60)
    assert states(app) == {"finished": 1}
