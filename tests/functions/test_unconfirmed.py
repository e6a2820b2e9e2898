"""What the database says a worker holds is what runs there; the rest is handed back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pytest

from detent import App, Run, step, workflow
from detent.execution.services import Loop, Threads
from detent.kernel.rows import Claimed
from detent.worker import upkeep
from detent.worker.worker import Worker
from tests.functions.world import Apps, eventually

PATIENCE = 30.0


@step
def one(number: int) -> int:
    return number + 1


@workflow
def counts(number: int) -> int:
    return one(number)


@step
async def aone(number: int) -> int:
    return number + 1


@workflow
async def acounts(number: int) -> int:
    return await aone(number)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "EVERY", 0.2)


@pytest.fixture(params=[counts, acounts], ids=["sync", "async"])
def definition(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_a_lease_that_nobody_here_knows_is_handed_back(apps: Apps, definition: Any) -> None:
    """It was committed, and lost before it was delivered: no other way leads out of that."""
    app, lost = apps(definition), list[Any]()
    real = Worker.deliver

    def lose_once(self: Worker, claimed: Sequence[Claimed], *args: Any) -> None:
        if claimed and not lost:
            lost.extend(claimed)
        else:
            real(self, claimed, *args)

    with mock.patch.object(Worker, "deliver", lose_once):
        run = app.start(definition, 1)
        eventually(lambda: bool(lost), "it was delivered, and lost")
        worker = app.engine.worker
        assert worker is not None
        worker._slots.promised.clear()  # as if it had been forgotten altogether
        assert run.result(timeout=PATIENCE) == 2
    assert deliveries(app, run) == 2


def test_what_cannot_begin_is_handed_back(apps: Apps, definition: Any) -> None:
    """No more threads; a loop that takes nothing more."""
    app, failed = apps(definition), list[int]()
    place: tuple[Any, str] = (Threads, "submit") if definition is counts else (Loop, "get")
    real = getattr(*place)

    def refuse_once(*args: Any) -> Any:
        if not failed:
            failed.append(1)
            raise RuntimeError("can't start new thread")
        return real(*args)

    with mock.patch.object(*place, refuse_once):
        assert app.start(definition, 1).result(timeout=PATIENCE) == 2
    assert failed
    worker = app.engine.worker
    assert worker is not None
    _wait(lambda: worker._slots.free == worker._slots.number)


def test_a_lease_on_its_way_is_not_handed_back(apps: Apps) -> None:
    """Committed, and not yet delivered: the audit looks at it again and again, and lets it be."""
    app = apps(counts)
    worker = app.engine.worker
    assert worker is not None
    real, seen = Worker.deliver, list[int]()

    def slowly(self: Worker, *args: Any) -> None:
        for _ in range(5):
            seen.append(self.audit())
        real(self, *args)

    with mock.patch.object(Worker, "deliver", slowly):
        run = app.start(counts, 1)
        assert run.result(timeout=PATIENCE) == 2
    assert (deliveries(app, run), set(seen)) == (1, {0})


def test_what_runs_is_not_handed_back(apps: Apps) -> None:
    began, gate = threading.Event(), threading.Event()

    @step
    def waits() -> int:
        began.set()
        assert gate.wait(PATIENCE)
        return 1

    @workflow
    def slow() -> int:
        return waits()

    app = apps(slow)
    run = app.start(slow)
    assert began.wait(PATIENCE)
    worker = app.engine.worker
    assert worker is not None
    assert [worker.audit() for _ in range(5)] == [0] * 5
    gate.set()
    assert run.result(timeout=PATIENCE) == 1


def test_a_job_that_no_thread_could_take_is_not_done_later() -> None:
    threads, done = Threads("test"), list[str]()
    with (
        mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")),
        pytest.raises(RuntimeError),
    ):
        threads.submit(lambda: done.append("refused"))
    threads.submit(lambda: done.append("taken")).result(PATIENCE)
    threads.close()
    assert done == ["taken"]


def deliveries(app: App, run: Run[Any]) -> int:
    """How often its function was given to a worker."""
    asked = f"SELECT deliveries FROM detent_executions WHERE run_id = '{run.id}' AND node = 'main'"
    [(count,)] = app.engine.store.read(lambda tx: tx.query(asked))
    return int(count)


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
