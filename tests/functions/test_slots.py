"""Slots of a worker: the code of an execution occupies one, the commit of its end does not."""

import asyncio
import threading
import time

import pytest

from detent import step, workflow

from .test_blocked import SERVERS, lock_run, open_transaction
from .world import Apps, eventually, result, state


class Stays:
    """Runs that stay until they are let go, and the names of those that have begun."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self._let_go: set[str] = set()

        @workflow
        async def stays(name: str) -> str:
            self.begun.append(name)
            while name not in self._let_go:
                await asyncio.sleep(0.005)
            return name

        self.workflow = stays

    def let_go(self, *names: str) -> None:
        self._let_go.update(names)


class Inside:
    """How many are inside of a block at the same time, and how many were at most."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._now = 0
        self.most = 0

    def __enter__(self) -> None:
        with self._guard:
            self._now += 1
            self.most = max(self.most, self._now)

    def __exit__(self, *_: object) -> None:
        with self._guard:
            self._now -= 1


@SERVERS
def test_an_execution_begins_while_the_end_of_another_is_committed(apps: Apps, url: str) -> None:
    """The commit is held open: the row of the run that ends is locked."""
    stays = Stays()
    apps(stays.workflow, concurrency=2)
    client = apps(stays.workflow, worker=False)
    runs = [client.start(stays.workflow, name) for name in ("first", "second", "third")]
    eventually(lambda: len(stays.begun) == 2)
    with open_transaction(url) as transaction:
        ending = runs[0]
        lock_run(transaction, ending.id)
        stays.let_go("first")
        eventually(lambda: stays.begun[2:] == ["third"])
        assert state(client.run(ending.id)) == "performing"
    stays.let_go("second", "third")
    assert [result(run) for run in runs] == ["first", "second", "third"]


@SERVERS
def test_ends_that_cannot_be_committed_let_as_many_begin_as_there_are_slots(apps: Apps, url: str) -> None:
    stays = Stays()
    names = [f"{number}" for number in range(8)]
    stays.let_go(*names)
    client = apps(stays.workflow, worker=False)
    runs = [client.start(stays.workflow, name) for name in names]
    with open_transaction(url) as transaction:
        for run in runs:
            lock_run(transaction, run.id)
        worker = apps(stays.workflow, concurrency=2).engine.worker
        assert worker is not None
        eventually(lambda: len(stays.begun) == 4)
        eventually(worker.saturated, "two have ended and freed their slots, and two have ended and have not")
        assert stays.begun == names[:4]
    assert [result(run) for run in runs] == names


@SERVERS
def test_a_worker_for_one_at_a_time_commits_an_end_before_the_next_begins(apps: Apps, url: str) -> None:
    stays = Stays()
    apps(stays.workflow, concurrency=1)
    client = apps(stays.workflow, worker=False)
    runs = [client.start(stays.workflow, name) for name in ("first", "second")]
    eventually(lambda: stays.begun == ["first"])
    with open_transaction(url) as transaction:
        lock_run(transaction, runs[0].id)
        stays.let_go("first", "second")
        time.sleep(0.3)
        assert stays.begun == ["first"]
    assert [result(run) for run in runs] == ["first", "second"]


@pytest.mark.parametrize("kind", ["runs", "spawned steps", "children"])
def test_no_more_code_is_executed_at_a_time_than_the_worker_has_slots(apps: Apps, kind: str) -> None:
    inside = Inside()

    @step
    async def works(number: int) -> int:
        with inside:
            await asyncio.sleep(0.001)
        return number

    @workflow
    async def run(number: int) -> int:
        with inside:
            await asyncio.sleep(0.001)
        return number

    @workflow
    def parent() -> list[int]:
        if kind == "spawned steps":
            return works.sync.map(range(60))
        return [child.result() for child in [run.spawn(number) for number in range(60)]]

    app = apps(run, parent, works, concurrency=3)
    if kind == "runs":
        assert [result(one) for one in app.start_many(run, [(number,) for number in range(60)])] == [
            *range(60)
        ]
    else:
        assert result(app.start(parent)) == [*range(60)]
    assert inside.most <= 3
