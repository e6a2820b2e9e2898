"""Draining a worker: it claims nothing more, what it executes ends, and it can claim again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

import detent
from detent import step, workflow
from detent.stores.verbs import drains

GATE = threading.Event()


@step
def hold(name: str) -> str:
    GATE.wait(20)
    return name


@workflow
def holding(name: str) -> str:
    first = hold(name)
    return hold(f"{first} again")


@workflow
def quick(name: str) -> str:
    return name


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until, "it did not happen within 20 s"
        time.sleep(0.02)


def change(app: detent.App, verb: Callable[..., bool], worker: str) -> bool:
    engine = app.engine
    return engine.store.write(lambda tx: verb(tx, worker, now=engine.clock.now()))


def drained(app: detent.App, yes: bool = True) -> Callable[[], bool]:
    return lambda: app.engine.worker is not None and app.engine.worker.drained is yes


def worker_id(app: detent.App) -> str:
    assert app.engine.worker is not None
    return app.engine.worker.id


@pytest.fixture
def app(url: str) -> detent.App:
    GATE.clear()
    return detent.App(url, include=[holding, quick, hold])


def test_a_drained_worker_ends_what_it_executes_and_claims_nothing_more(app: detent.App) -> None:
    with app:
        begun = app.start(holding, "a")
        wait_until(lambda: begun.refresh().state == "performing")
        assert change(app, drains.drain, worker_id(app))
        wait_until(drained(app))
        waits = app.start(quick, "b")
        GATE.set()
        assert begun.result(timeout=20) == "a again"
        time.sleep(0.2)
        assert waits.refresh().state == "ready"
        assert waits.waiting_for is not None
        assert change(app, drains.undrain, worker_id(app))
        assert waits.result(timeout=20) == "b"


def test_another_worker_takes_what_a_drained_one_leaves(app: detent.App, url: str) -> None:
    with app:
        change(app, drains.drain, worker_id(app))
        wait_until(drained(app))
        run = app.start(quick, "x")
        with detent.App(url, include=[holding, quick, hold]):
            assert run.result(timeout=20) == "x"


def test_a_drained_worker_that_is_registered_anew_stays_drained(app: detent.App) -> None:
    """Its lease ran out while it was cut off from the database, and others have removed its row."""
    with app:
        former = worker_id(app)
        change(app, drains.drain, former)
        wait_until(drained(app))
        app.engine.store.reap(former, counted=False, max_recoveries=3, now=app.engine.clock.now())
        wait_until(lambda: [row.id for row in app.engine.store.workers()] not in ([], [former]))
        run = app.start(quick, "x")
        [row] = app.engine.store.workers()
        assert row.drain_at is not None
        time.sleep(0.2)
        assert run.refresh().state == "ready"


def test_a_worker_that_is_gone_is_not_drained(app: detent.App) -> None:
    with app:
        assert not change(app, drains.drain, "nobody")
        worker = worker_id(app)
        for _ in range(2):
            assert change(app, drains.drain, worker)
        lines = app.engine.store.history(drains.history_of(worker))
        assert [event for _, event, _ in lines] == ["drained"]
