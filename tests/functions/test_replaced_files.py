"""SQLite: the file was deleted, moved or replaced while an app had it open."""

import logging
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import detent
from detent import step, workflow
from detent.errors import DatabaseReplaced, DatabaseUnavailable
from tests.functions.world import Gate, eventually, result

PATIENCE = timedelta(seconds=0.5)


@step
def twice(number: int) -> int:
    return number * 2


@workflow
def doubled(number: int) -> int:
    return twice(number)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data" / "shop.db"


def opened(path: Path, *include: Any, worker: bool = True, **settings: Any) -> detent.App:
    settings.setdefault("grace", timedelta(seconds=1))
    return detent.App(f"sqlite:///{path}", include=include, patience=PATIENCE, **settings).open(worker=worker)


def deleted(path: Path) -> None:
    for file in path.parent.glob("shop.db*"):
        if file.is_file():
            file.unlink()


def moved(path: Path) -> None:
    path.rename(path.parent / "elsewhere.db")


def replaced(path: Path) -> None:
    fresh = path.parent / "fresh.db"
    detent.App(f"sqlite:///{fresh}", include=[doubled]).open().close()
    deleted(path)  # also the journal, which SQLite would apply to the new file
    fresh.rename(path)


def without_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


WAYS = [deleted, moved, replaced, without_folder]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("worker", [True, False], ids=["worker", "client"])
def test_no_success_is_reported_for_a_file_that_the_path_does_not_name(
    path: Path, way: Callable[[Path], None], worker: bool, caplog: pytest.LogCaptureFixture
) -> None:
    app = opened(path, doubled, worker=worker)
    run = app.start(doubled, 1)
    way(path)
    for use in (
        lambda: app.start(doubled, 2),
        lambda: app.run(run.id),
        app.runs,
        run.cancel,
        lambda: run.send("news"),
    ):
        with pytest.raises(DatabaseReplaced, match="deleted, moved or replaced") as caught:
            use()
        assert caught.value.path == str(path)
    app.close()
    said = [record for record in caplog.records if "deleted, moved or replaced" in record.getMessage()]
    assert len([record for record in said if record.levelno == logging.ERROR]) == 1


def test_a_worker_stops_claiming_and_what_it_executes_is_not_recorded(path: Path) -> None:
    gate = Gate()

    @step
    def held() -> str:
        gate.pass_through()
        return "held"

    @workflow
    def flow() -> str:
        return held()

    app = opened(path, flow, doubled)
    app.start(flow)
    gate.wait_for_arrival()
    replaced(path)
    other = opened(path, doubled, worker=False)  # the file that the path names now
    late = other.start(doubled, 5)
    gate.open()
    time.sleep(1.5)
    assert late.refresh().state == "ready"  # the worker claims nothing
    assert [run.type for run in other.runs()] == ["doubled"]
    began = time.monotonic()
    app.close()
    assert time.monotonic() - began < 10
    app.open(worker=True)  # works on the file that is there now
    assert result(late) == 10
    app.close()
    other.close()


def test_a_file_that_is_put_back_is_used_again(path: Path) -> None:
    gate = Gate()

    @step
    def held() -> str:
        gate.pass_through()
        return "held"

    @workflow
    def flow() -> str:
        return held()

    app = opened(path, flow, doubled)
    run = app.start(flow)
    gate.wait_for_arrival()
    away = path.with_name("away.db")
    path.rename(away)
    gate.open()
    with pytest.raises(DatabaseReplaced):
        app.start(doubled, 1)
    away.rename(path)
    assert result(run) == "held"
    last = app.start(doubled, 2)
    assert result(last) == 4
    app.close()
    # A connection that was asked while the file was away is given up, not closed, and may leave its -wal.
    again = opened(path, flow, doubled)
    assert {one.id for one in again.runs.finished()} == {run.id, last.id}
    again.close()


def test_a_start_that_waits_is_committed_when_the_file_is_back(path: Path) -> None:
    app = detent.App(f"sqlite:///{path}", include=[doubled], patience=timedelta(seconds=20)).open(worker=True)
    assert result(app.start(doubled, 1)) == 2
    away = path.with_name("away.db")
    path.rename(away)
    threading.Timer(1.0, lambda: away.rename(path)).start()
    assert result(app.start(doubled, 2)) == 4
    app.close()


@pytest.mark.parametrize("sidecar", ["shop.db-wal", "shop.db-shm"])
def test_a_journal_that_was_deleted_is_noticed_and_nothing_is_lost_by_closing(
    path: Path, sidecar: str
) -> None:
    app = opened(path, doubled)
    runs = [app.start(doubled, n) for n in range(5)]
    for run in runs:
        result(run)
    path.with_name(sidecar).unlink()
    time.sleep(0.2)
    with pytest.raises(DatabaseReplaced) as caught:
        app.start(doubled, 1)
    assert caught.value.path == str(path.with_name(sidecar))
    app.close()
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)
    with opened(path, doubled) as again:
        assert [again.run(run.id).result(timeout=20) for run in runs] == [0, 2, 4, 6, 8]


def test_the_journal_of_the_new_file_survives_the_closing_of_the_old_one(path: Path) -> None:
    """SQLite deletes the journal by its name, which is that of the new file by then."""
    old = opened(path, doubled, worker=False)
    old.start(doubled, 1)
    deleted(path)
    new = opened(path, doubled, worker=False)
    runs = {new.start(doubled, n).id for n in range(3)}
    journal = os.stat(path.with_name("shop.db-wal")).st_ino
    old.close()
    assert os.stat(path.with_name("shop.db-wal")).st_ino == journal
    runs.add(new.start(doubled, 4).id)
    new.close()
    with opened(path, doubled, worker=False) as again:
        assert {run.id for run in again.runs()} == runs


def test_the_folder_of_locks_and_sockets_may_be_deleted(path: Path) -> None:
    """It is made again, and no living worker is thought dead."""
    app, client = opened(path, doubled), opened(path, doubled, worker=False)
    assert result(client.start(doubled, 1)) == 2
    assert app.engine.worker is not None
    worker = app.engine.worker.id
    folder = path.with_name("shop.db-detent")
    shutil.rmtree(folder)
    eventually(lambda: list(folder.glob("*.lock")) and list(folder.glob("*.sock")), "the folder is back")
    assert result(client.start(doubled, 2)) == 4
    time.sleep(3)
    assert app.engine.worker.id == worker
    client.close()
    app.close()


def test_the_error_is_one_of_a_database_that_is_away() -> None:
    assert issubclass(DatabaseReplaced, DatabaseUnavailable)
