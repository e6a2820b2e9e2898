"""Processes that are forked while an app is open: gunicorn --preload, Celery, multiprocessing, os.fork()."""

import asyncio
import atexit
import gc
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import detent
from detent import step, workflow
from detent.errors import ForkedProcess, StepOutsideRun
from detent.ids import uuid7
from tests.functions import crunching
from tests.functions.children import Child, in_child
from tests.functions.world import PATIENCE, Apps, eventually, recorded, result

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True, scope="module")
def _only_new_garbage() -> Iterator[None]:
    """Children collect only what the tests of this module have made.

    A child collects garbage before it ends.  It would look at all objects of pytest too, and copy all their
    pages: that took more time than everything else that a child does.
    """
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@step
def twice(number: int) -> int:
    return number * 2


@workflow
def doubled(number: int) -> int:
    return twice(number)


@workflow
async def adoubled(number: int) -> int:
    return await twice.aio(number)


def session(app: detent.App) -> Any:
    """What identifies the parent's session of writes at the server."""
    statements = {
        "postgres": "SELECT pg_backend_pid()",
        "mysql": "SELECT CONNECTION_ID()",
        "sqlite": "SELECT 1",
    }
    return app.engine.store._writer.perform(lambda tx: tx.query(statements[app.engine.store.dialect]))


def worker_id(app: detent.App) -> str:
    assert app.engine.worker is not None
    return app.engine.worker.id


@pytest.mark.parametrize("worker", [True, False], ids=["worker", "client"])
def test_a_child_opens_its_own_connections_and_the_parent_keeps_its_own(apps: Apps, worker: bool) -> None:
    app = apps(doubled, worker=worker)
    apps(doubled)  # executes what the others start
    before = app.start(doubled, 1)
    assert result(before) == 2
    mine, runs = session(app), []

    def use() -> Any:
        assert app.run(before.id).result(timeout=PATIENCE) == 2
        run = app.start(doubled, 21)
        return run.id, result(run), session(app)

    for _ in range(3):
        id, value, theirs = in_child(use)
        runs.append(id)
        assert value == 42
        assert session(app) == mine
        if app.engine.store.dialect != "sqlite":
            assert theirs != mine
        assert result(app.start(doubled, 4)) == 8
    assert {run.id for run in app.runs(type=doubled)} >= {*runs, before.id}
    assert len(set(runs)) == 3


def test_a_child_is_a_client_and_works_when_it_opens_the_app_itself(apps: Apps) -> None:
    app = apps(doubled)
    theirs = worker_id(app)

    def client() -> Any:
        app.start(doubled, 1)
        return app.engine.worker

    def works() -> Any:
        with app:
            return worker_id(app), result(app.start(doubled, 2))

    assert in_child(client) is None
    own, value = in_child(works)
    assert (own != theirs, value) == (True, 4)
    assert worker_id(app) == theirs


def test_a_block_that_the_parent_entered_is_not_closed_by_the_child(url: str) -> None:
    with detent.App(url, include=[doubled]) as app:
        assert result(app.start(doubled, 1)) == 2
        theirs = worker_id(app)
        in_child(lambda: app.__exit__(None, None, None))
        in_child(app.close)
        assert result(app.start(doubled, 2)) == 4
        assert worker_id(app) == theirs


@pytest.mark.parametrize("forks", [15, pytest.param(50, marks=pytest.mark.soak)])
def test_many_forks_beside_threads_that_commit(apps: Apps, forks: int) -> None:
    app = apps(doubled, worker=False)
    apps(doubled)
    stop, ids, errors = threading.Event(), [], []

    def commit() -> None:
        while not stop.is_set():
            try:
                ids.append(app.start(doubled, 1).id)
            except Exception as error:
                errors.append(error)
            stop.wait(0.005)  # what they commit is executed too: without a pause that is most of the work

    threads = [threading.Thread(target=commit) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        children = [in_child(lambda: app.start(doubled, 5).id) for _ in range(forks)]
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
    assert not errors
    assert len(set(ids + children)) == len(ids) + forks
    found = {run.id for run in app.runs.each(type=doubled)}
    assert found == {*ids, *children}
    assert result(app.run(children[-1])) == 10


def test_children_that_live_at_the_same_time_have_their_own_ids_and_sessions(apps: Apps) -> None:
    app = apps(doubled)
    assert result(app.start(doubled, 1)) == 2
    children = [Child(lambda: (uuid7(), [app.start(doubled, n).id for n in range(10)])) for _ in range(4)]
    answers = [child.result() for child in children]
    assert len({id for id, _ in answers}) == 4
    runs = [run for _, runs in answers for run in runs]
    assert len(set(runs)) == 40
    for run in runs:
        result(app.run(run))


def test_an_async_app_is_used_on_a_loop_of_the_child(url: str) -> None:
    async def parent() -> None:
        async with detent.AsyncApp(url, include=[adoubled]) as app:
            assert await (await app.start(adoubled, 1)).result(timeout=PATIENCE) == 2

            async def use() -> Any:
                run = await app.start(adoubled, 4)
                return run.id, await run.result(timeout=PATIENCE)

            child = Child(lambda: asyncio.run(use()))
            id, value = await asyncio.to_thread(child.result)
            assert value == 8
            assert await (await app.run(id)).result(timeout=PATIENCE) == 8
            assert await (await app.start(adoubled, 3)).result(timeout=PATIENCE) == 6

    asyncio.run(parent())


def _start_one(number: int) -> str:
    assert _used is not None
    return _used[0].start(doubled, number).id


_used: list[detent.App] = []


def test_multiprocessing_by_fork_works_inside_a_step(apps: Apps) -> None:
    """Each child starts runs of its own: the idempotency key of the step is the parent's."""

    @step
    def fan_out() -> list[str]:
        with multiprocessing.get_context("fork").Pool(3) as pool:
            return pool.map(_start_one, range(6), chunksize=1)

    @workflow
    def flow() -> list[str]:
        return fan_out()

    _used[:] = [app := apps(flow, doubled)]
    run = app.start(flow)
    started = result(run)
    assert len(set(started)) == 6
    assert recorded(run) == ["fan_out"]
    assert sorted(result(app.run(id)) for id in started) == [0, 2, 4, 6, 8, 10]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("way", ["return", "raise", "exit", "_exit"])
def test_a_child_forked_in_a_step_never_records_for_the_parent(
    apps: Apps, way: str, asynchronous: bool, capfd: Any
) -> None:
    codes: list[int] = []

    def body() -> str:
        pid = os.fork()
        if pid:
            codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            return "parent"
        if way == "raise":
            raise ValueError("in the child")
        if way == "exit":
            sys.exit(7)
        if way == "_exit":
            os._exit(7)
        return "child"

    @step
    def forks() -> str:
        return body()

    @workflow
    def flow() -> str:
        return forks() + forks()

    @step
    async def aforks() -> str:
        return body()

    @workflow
    async def aflow() -> str:
        return await aforks() + await aforks()

    app = apps(flow, aflow, doubled)
    run = app.start(aflow) if asynchronous else app.start(flow)
    assert result(run) == "parentparent"
    assert codes == [{"return": 0, "raise": 1, "exit": 7, "_exit": 7}[way]] * 2
    assert len(recorded(run)) == 2
    assert ("ValueError: in the child" in capfd.readouterr().err) == (way == "raise")
    assert result(app.start(doubled, 3)) == 6


def test_a_step_in_a_child_of_a_workflow_is_refused(apps: Apps) -> None:
    """It could not be recorded."""
    refused: list[Any] = []

    @workflow
    def flow() -> str:
        try:
            in_child(lambda: twice(2))
        except StepOutsideRun as error:
            refused.append(error)
        return "done"

    app = apps(flow, twice)
    assert result(app.start(flow)) == "done"
    assert refused


def test_a_child_forked_in_a_transaction_does_not_touch_it(apps: Apps) -> None:
    """SQLite allows no other connection in that child, which is refused; elsewhere it opens its own."""
    seen: list[Any] = []

    @step(transactional=True)
    def writes(tx: Any) -> str:
        tx.execute("CREATE TABLE IF NOT EXISTS forked_writes (n INTEGER)") if kind == "sqlite" else None
        for use in (lambda: app.start(doubled, 5).id, lambda: tx.execute("SELECT 1").fetchall()):
            try:
                seen.append(in_child(use))
            except Exception as error:
                seen.append(error)
        return "written"

    @workflow
    def flow() -> str:
        return writes()

    app = apps(flow, doubled)
    kind = app.engine.store.dialect
    run = app.start(flow)
    assert result(run) == "written"
    if kind == "sqlite":
        assert isinstance(seen[0], ForkedProcess)
        assert "transaction" in str(seen[0])
    else:
        assert result(app.run(seen[0])) == 10
    assert isinstance(seen[1], Exception)
    assert recorded(run) == ["writes"]
    assert result(app.start(doubled, 3)) == 6


def test_a_child_does_not_end_the_processes_of_the_parent(apps: Apps, tmp_path: Path) -> None:
    """Also not when it ends normally, which calls what was registered with atexit."""

    @workflow
    def flow() -> int:
        return crunching.wait_for_release(str(tmp_path))

    app = apps(flow, crunching)
    run = app.start(flow)
    eventually(lambda: crunching.begun(tmp_path), "the step has begun")
    in_child(atexit._run_exitfuncs)
    (tmp_path / "release").touch()
    assert result(run) == 1  # it began once, and was not ended


def test_a_database_in_memory_is_refused_in_a_child() -> None:
    with detent.App("sqlite://", include=[doubled]) as app:
        run = app.start(doubled, 2)
        assert result(run) == 4
        for use in (lambda: app.start(doubled, 1), app.runs, lambda: app.run(run.id), app.migrate):
            with pytest.raises(ForkedProcess, match="in memory"):
                in_child(use)
        in_child(app.close)
        assert result(app.start(doubled, 3)) == 6


def test_a_database_in_memory_that_nobody_opened_before_the_fork_is_the_childs_own() -> None:
    app = detent.App("sqlite://", include=[doubled])

    def use() -> Any:
        with app:
            return result(app.start(doubled, 2))

    assert in_child(use) == 4


def test_a_fork_leaves_no_threads_and_the_parents_work_goes_on(apps: Apps) -> None:
    app = apps(doubled)
    assert result(app.start(doubled, 1)) == 2
    theirs = worker_id(app)
    before = threading.active_count()
    for _ in range(10):
        # Its own: the main one, the committer, and on servers the watch over connections.
        assert in_child(lambda: (app.start(doubled, 1).id, threading.active_count()))[1] <= 3
    assert threading.active_count() <= before + 1
    time.sleep(3)  # two heartbeats
    assert worker_id(app) == theirs
    assert result(app.start(doubled, 2)) == 4


@pytest.mark.parametrize("way", ["return", "exit", "raise", "_exit"])
def test_however_a_child_ends_the_parent_goes_on(url: str, way: str) -> None:
    told = program(url, way)
    assert told["session"][0] == told["session"][1]
    assert told["worker"][0] == told["worker"][1]
    assert told["results"] == [2, 4, 6]
    assert told["code"] == {"return": 0, "exit": 3, "raise": 1, "_exit": 5}[way]


def test_a_child_that_outlives_its_parent_does_not_keep_it_alive(apps: Apps, url: str) -> None:
    """Its sockets and its lock file are the parent's sign of life: the kernel must drop them with it."""
    command = [sys.executable, "-m", "tests.functions.forking_program", url, "orphan"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        told = json.loads(parent.stdout.readline())
        parent.kill()
        killed = time.monotonic()
        try:
            app = apps(doubled)

            def gone() -> bool:
                return told["worker"] not in {
                    row[0]
                    for row in app.engine.store.read(lambda tx: tx.query("SELECT id FROM detent_workers"))
                }

            eventually(gone, "the parent was found dead")
            assert time.monotonic() - killed < 10  # its lease runs for a minute
            os.kill(told["child"], 0)  # the child still lives
        finally:
            os.kill(told["child"], 9)


def program(url: str, way: str) -> Any:
    command = [sys.executable, "-m", "tests.functions.forking_program", url, way]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
