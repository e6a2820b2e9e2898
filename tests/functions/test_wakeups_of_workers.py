"""A worker that is told of work looks for it, whatever it does at that moment."""

from __future__ import annotations

import threading
from typing import Any
from unittest import mock

import pytest

from detent import step, workflow
from detent.stores.claim_cursor import MOST
from detent.stores.store import Store
from detent.testing import TestingApp
from detent.worker.limits import LimitedQueues
from detent.worker.worker import Worker
from tests.functions.test_blocked import SERVERS, open_transaction
from tests.functions.world import Apps, eventually, result


@step
def one(number: int) -> int:
    return number + 1


@workflow
def counts(number: int) -> int:
    return one(number)


def test_work_that_is_announced_while_a_claim_ends_is_claimed(
    apps: Apps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread announces it between a read and a write of what the dispatcher knows."""
    looks: list[int] = []
    announced: list[int] = []
    values: dict[int, bool] = {}
    real = LimitedQueues.claim

    def counted(self: LimitedQueues, *args: Any) -> Any:
        try:
            return real(self, *args)
        finally:
            looks.append(1)

    def read(self: Worker) -> bool:
        value = values[id(self)]
        if looks and not announced and not value:
            announced.append(len(looks))
            self.poke()
        return value

    def write(self: Worker, value: bool) -> None:
        values[id(self)] = value

    with mock.patch.object(Worker, "_backlog", property(read, write), create=True):
        monkeypatch.setattr(LimitedQueues, "claim", counted)
        monkeypatch.setattr("detent.worker.heartbeat.Heartbeat.start", lambda self: None)  # it looks, too
        apps(counts)
        eventually(lambda: announced and len(looks) > announced[0], "it looked again")


@step
async def awaited(number: int) -> int:
    return number + 1


@workflow
async def awaits(number: int) -> int:
    return await awaited(number)


def test_what_other_code_cancels_before_it_begins_is_handed_back(
    apps: Apps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may cancel all tasks of its loop."""
    real = Worker._begin
    cancelled: list[int] = []

    def begin(self: Worker, work: list[Any]) -> None:
        real(self, work)
        if not cancelled:
            cancelled.append(sum(task.cancel() for task in self._tasks))

    monkeypatch.setattr(Worker, "_begin", begin)
    app = apps(awaits)
    run = app.start(awaits, 1)
    eventually(lambda: cancelled, "it was cancelled")
    assert cancelled == [1]
    assert result(run) == 2


@SERVERS
def test_what_was_locked_when_its_worker_claimed_is_claimed_when_it_is_free(
    apps: Apps, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On MariaDB, the claim of a worker that does not serve it locks it for a moment."""
    monkeypatch.setattr("detent.worker.heartbeat.Heartbeat.start", lambda self: None)  # it looks, too
    real = Store.claim
    locked = threading.Event()
    taken: list[int] = []

    with open_transaction(url) as other:

        def claim(self: Store, *args: Any, **given: Any) -> Any:
            found = real(self, *args, **given) if locked.is_set() else []
            if locked.is_set():
                taken.append(len(found))
                other.rollback()
            return found

        monkeypatch.setattr(Store, "claim", claim)
        app = apps(counts)
        with mock.patch.object(Worker, "serves", return_value=False):  # so that it must be claimed
            run = app.start(counts, 1)
        with other.cursor() as cursor:
            cursor.execute("SELECT node FROM detent_executions WHERE run_id = %s FOR UPDATE", (run.id,))
            assert cursor.fetchall()
        locked.set()
        assert result(run) == 2
    assert taken[0] == 0


def test_speedrun_does_not_end_before_the_worker_has_looked_everywhere(testing: TestingApp) -> None:
    """Looking over everything took so long that there is no time for another look for a while."""
    worker = testing.engine.worker
    assert worker is not None
    testing.settle_down()
    with mock.patch.object(worker, "reserve", return_value=None):  # so that it must be claimed
        for _ in range(2):
            worker._claim_cursor.looked(MOST + 0.02)
        run = testing.start(counts, 1)
        testing.speedrun(run)
    assert run.result(timeout=0) == 2
