"""Servers that take connections and answer nobody: a stopped process, a network that drops packets."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

import detent
from detent import App, AsyncApp
from detent.errors import DatabaseUnavailable
from detent.stores.open import open_store
from tests.acceptance.private_server import PrivateServer
from tests.acceptance.programs import chains
from tests.acceptance.proxy import Proxy
from tests.acceptance.support import (
    World,
    alive,
    begin,
    eventually,
    finish_exactly_once,
    start_chains,
    states,
)

pytestmark = pytest.mark.acceptance

PATIENCE = timedelta(seconds=3)
AT_MOST = 20.0  # seconds; generous, the machine may be busy with something else
FROZEN = 25.0  # seconds
SILENT = 8.0  # seconds
RUNS = 150
SLEEP = {"postgres": "SELECT pg_sleep(5)", "mysql": "SELECT SLEEP(5)"}


@pytest.fixture(params=["postgres", "mysql"])
def proxy(request: pytest.FixtureRequest) -> Iterator[Proxy]:
    with closing(Proxy(request.getfixturevalue(f"{request.param}_database"))) as proxy:
        yield proxy


@detent.workflow
def ten() -> int:
    return 10


def _waited(begun: float) -> None:
    assert time.monotonic() - begun < AT_MOST


def test_patience_ends_where_the_server_does_not_answer(proxy: Proxy) -> None:
    with App(proxy.url, include=[ten], migrate=True, patience=PATIENCE).open() as app:
        app.start(ten)  # its connections are open
        proxy.silence()
        begun = time.monotonic()
        with pytest.raises(DatabaseUnavailable):
            app.start(ten)
        _waited(begun)
        begun = time.monotonic()
        with pytest.raises(DatabaseUnavailable):
            App(proxy.url, include=[ten], patience=PATIENCE).open()
        _waited(begun)
        with pytest.raises(DatabaseUnavailable, match=r"does not answer|time"):
            app.run("nobody")
        proxy.resume()
        assert app.start(ten).state == "ready"


def test_patience_ends_in_threads_too(proxy: Proxy) -> None:
    """A caller in another thread than the main one commits by itself."""
    with App(proxy.url, include=[ten], migrate=True, patience=PATIENCE).open() as app:
        app.start(ten)
        proxy.silence()
        errors: list[BaseException] = []

        def start() -> None:
            try:
                app.start(ten)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=start) for _ in range(5)]
        begun = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        _waited(begun)
        assert [type(error) for error in errors] == [DatabaseUnavailable] * 5
        proxy.resume()


async def _start_while_silent(proxy: Proxy) -> None:
    async with AsyncApp(proxy.url, include=[ten], migrate=True, patience=PATIENCE) as app:
        await (await app.start(ten)).result()
        proxy.silence()
        begun = time.monotonic()
        with pytest.raises(DatabaseUnavailable):
            await app.start(ten)
        _waited(begun)
        proxy.resume()
        assert await (await app.start(ten)).result() == 10


def test_patience_ends_in_async_code(proxy: Proxy) -> None:
    asyncio.run(_start_while_silent(proxy))


def test_work_goes_on_where_the_server_fell_silent(proxy: Proxy, tmp_path: Path) -> None:
    world = World(proxy.url, tmp_path)
    with closing(world):
        app = world.chains()
        [worker] = begin(world, app, 1, pause=0.3, patience=3)
        runs = start_chains(app, RUNS)
        proxy.silence()
        time.sleep(SILENT)
        proxy.resume()
        finish_exactly_once(world, app, runs)
        assert worker.alive


def test_another_host_of_an_address_takes_over_from_a_silent_one(postgres_database: str) -> None:
    """The other host answers: that says nothing about the one that the connections are made to."""
    with closing(Proxy(postgres_database)) as first, closing(Proxy(postgres_database)) as second:
        account, _, place = first.url.rpartition("@")
        host, _, name = place.partition("/")
        other = second.url.rpartition("@")[2].partition("/")[0]
        url = f"{account}@{host},{other}/{name}"
        with App(url, include=[ten], migrate=True, patience=60) as app:
            assert app.start(ten).result(timeout=60) == 10
            first.silence()
            assert app.start(ten).result(timeout=60) == 10
        first.resume()


@pytest.mark.parametrize("database", ["postgres", "mysql"])
def test_long_statements_are_not_cut_while_the_server_answers(
    database: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    bodies: list[int] = []

    @detent.step(transactional=True)
    def slow(tx: detent.Transaction) -> int:
        bodies.append(1)
        tx.execute(SLEEP[database])
        return 1

    @detent.workflow
    def patient() -> int:
        return slow()

    url: str = request.getfixturevalue(f"{database}_database")
    with App(url, include=[patient], migrate=True, patience=0.5) as app:
        assert app.start(patient).result(timeout=60) == 1
        app.engine.store.read(lambda tx: tx.query(SLEEP[database]))  # as a listing or a removal may
    assert bodies == [1]
    assert "does not answer" not in caplog.text


def test_work_goes_on_where_the_server_was_frozen(server: PrivateServer, world_on_server: World) -> None:
    world = world_on_server
    app = world.chains(patience=PATIENCE)
    workers = [world.worker(pause=0.3), world.worker(pause=0.3, patience=3)]
    eventually(lambda: alive(app, *workers), "both workers have begun")
    start_chains(app, RUNS)
    eventually(lambda: states(app)["finished"] > RUNS // 10, "some of it is done")

    server.freeze()
    begun = time.monotonic()
    with pytest.raises(DatabaseUnavailable):
        app.start(chains.chain)
    _waited(begun)
    time.sleep(max(0.0, begun + FROZEN - time.monotonic()))
    server.thaw()

    # The start that was given up may have been committed when the server went on.
    eventually(lambda: states(app)["finished"] >= RUNS, "all have finished")
    assert all(worker.alive for worker in workers)
    total = sum(states(app).values())
    assert total in (RUNS, RUNS + 1)
    finish_exactly_once(world, app, list(app.runs(limit=total)))


def test_a_server_that_was_frozen_while_an_app_opens_is_waited_for(server: PrivateServer) -> None:
    with server.database() as url:
        with closing(open_store(url)) as store:
            store.migrate(now=1)
        server.freeze()
        timer = threading.Timer(SILENT, server.thaw)
        timer.start()
        with App(url, include=[ten], patience=60) as app:
            assert app.start(ten).result(timeout=60) == 10
        timer.join()
