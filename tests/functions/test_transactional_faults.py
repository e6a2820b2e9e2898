"""Transactional steps whose commit is lost, conflicts, or is canceled."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import psycopg
import pymysql
import pytest

import detent
from detent import Retry, step, workflow
from detent.errors import (
    DatabaseUnavailable,
)
from detent.execution import bodies
from detent.execution.workflow_frames import Frame
from tests.functions.world import (
    INSERT,
    Apps,
    Ledger,
    eventually,
    failure,
    is_over,
    reap,
    recorded,
    result,
)


@pytest.mark.parametrize("module_url", ["mysql"], indirect=True)
def test_a_transaction_that_loses_a_conflict_is_tried_again(apps: Apps, ledger: Ledger) -> None:
    calls: list[int] = []

    @step(transactional=True)
    def debit(tx: Any) -> int:
        calls.append(1)
        tx.execute(INSERT.format("anna"))
        if len(calls) == 1:
            raise pymysql.err.OperationalError(1213, "Deadlock found when trying to get lock")
        return len(calls)

    @workflow
    def flow() -> int:
        return debit()

    run = apps(flow).start(flow)
    assert result(run) == 2
    eventually(lambda: is_over(run))
    assert ledger() == ["anna"]


def test_a_commit_that_was_cut_off_does_not_take_anothers_record_for_its_own(
    apps: Apps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was thought dead meanwhile, and the worker that took over has recorded the same step."""
    drawn: list[int] = []
    seen: list[int] = []

    @step(transactional=True)
    def draw(tx: detent.Transaction) -> int:
        drawn.append(len(drawn) + 1)
        return drawn[-1]

    @workflow
    def lottery() -> int:
        number = draw()
        seen.append(number)
        return number

    first, second = apps(lottery), apps(lottery, worker=False)
    commit = first.engine.store.transaction

    @contextmanager
    def cut_off(*args: Any, **options: Any) -> Iterator[Any]:
        monkeypatch.setattr(first.engine.store, "transaction", commit)
        with suppress(ZeroDivisionError), commit(*args, **options) as tx:
            yield tx
            raise ZeroDivisionError  # rolled back, as a server does with a session that it ends
        reap(first, reaped_by=second)
        second.open(worker=True)
        eventually(lambda: second.run("draw").state == "finished", "the other worker has finished it")
        raise DatabaseUnavailable("the database", "the connection was cut")

    monkeypatch.setattr(first.engine.store, "transaction", cut_off)
    run = first.options(id="draw").start(lottery)
    assert result(run) == 2
    first.close()
    assert (drawn, seen) == ([1, 2], [2])


def test_a_transaction_whose_answer_was_lost_is_not_repeated(
    apps: Apps, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit went through, and the connection was lost before its answer came."""
    calls: list[str] = []

    @step(transactional=True)
    def pay(tx: detent.Transaction) -> str:
        calls.append("pay")
        tx.execute(INSERT.format("anna"))
        return "paid"

    @workflow
    def flow() -> str:
        return pay()

    app = apps(flow)
    transaction = app.engine.store.transaction

    @contextmanager
    def answer_lost(*args: Any, **options: Any) -> Iterator[Any]:
        monkeypatch.setattr(app.engine.store, "transaction", transaction)
        with transaction(*args, **options) as tx:
            yield tx
        raise DatabaseUnavailable("the database", "the connection was cut")

    monkeypatch.setattr(app.engine.store, "transaction", answer_lost)
    assert result(app.start(flow)) == "paid"
    assert (calls, ledger()) == (["pay"], ["anna"])


def lost_elsewhere(url: str) -> Exception:
    """What the driver of this database raises when another server, or another file, is away."""
    if url.startswith("postgresql"):
        return psycopg.OperationalError("server closed the connection unexpectedly")
    if url.startswith("mysql"):
        return pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query")
    try:
        sqlite3.connect("/nowhere/at/all.db").close()
    except sqlite3.OperationalError as error:
        return error
    raise AssertionError("it exists")


def test_a_lost_connection_to_another_database_is_an_error_of_the_step(apps: Apps, url: str) -> None:
    """Our own connection is well: the step failed, and its policy says how often it is tried again."""
    calls: list[int] = []

    @step(transactional=True, retry=Retry(attempts=2, first=timedelta(0)))
    def debit(tx: Any) -> None:
        calls.append(1)
        raise lost_elsewhere(url)

    @workflow
    def flow() -> None:
        debit()

    run = apps(flow).start(flow)
    failure(run)
    eventually(lambda: is_over(run))
    assert len(calls) == 2


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_connection_that_is_lost_each_time_ends_the_step(
    apps: Apps, url: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(bodies, "_LONGEST_WAIT", 0.01)
    calls: list[int] = []

    def lose(tx: Any) -> None:
        calls.append(1)
        tx.execute(INSERT.format("anna"))
        if url.startswith("sqlite"):
            tx.connection.rollback()
        else:
            tx.connection.close()
        raise lost_elsewhere(url)

    @step(transactional=True)
    def debit(tx: Any) -> None:
        lose(tx)

    @step(transactional=True)
    async def adebit(tx: Any) -> None:
        lose(tx._sync)

    @workflow
    def flow() -> None:
        debit()

    @workflow
    async def aflow() -> None:
        await adebit()

    chosen: Any = flow if kind == "def" else aflow
    run = apps(chosen).start(chosen)
    failure(run)
    eventually(lambda: is_over(run))
    assert len(calls) == bodies.MOST_CONFLICTS + 1
    assert ledger() == []


def test_a_canceled_run_is_not_tried_again(
    apps: Apps, url: str, monkeypatch: pytest.MonkeyPatch, ledger: Ledger
) -> None:
    monkeypatch.setattr(bodies, "_LONGEST_WAIT", 0.01)
    monkeypatch.setattr(bodies, "MOST_CONFLICTS", 1_000_000)
    calls: list[int] = []

    @step(transactional=True)
    def debit(tx: Any) -> None:
        calls.append(1)
        if url.startswith("sqlite"):
            tx.connection.rollback()
        else:
            tx.connection.close()
        raise lost_elsewhere(url)

    @workflow
    def flow() -> None:
        debit()

    app = apps(flow)
    run = app.start(flow)
    eventually(lambda: len(calls) > 2, "it is tried again")
    run.cancel()
    worker = app.engine.worker
    assert worker is not None
    eventually(lambda: run.id not in worker.held_runs(), "it has ended")
    count = len(calls)
    time.sleep(0.1)
    assert len(calls) == count


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_an_async_transactional_step_is_not_a_task_of_its_workflow(
    apps: Apps, is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    @step(transactional=True)
    async def debit(tx: detent.AsyncTransaction, amount: int) -> int:
        await tx.execute("SELECT 1")
        return amount

    @step
    async def plain(number: int) -> int:
        return number

    @workflow(id="flow")
    def flow() -> list[int]:
        return [f for n in range(3) for f in (debit.sync(n), plain.sync(n))]

    @workflow(id="flow")
    async def aflow() -> list[int]:
        return [f for n in range(3) for f in (await debit(n), await plain(n))]

    chosen: Any = aflow if is_async else flow
    made: list[Any] = []
    app = apps(chosen)
    monkeypatch.setattr(Frame, "branched", lambda frame, task, scope: made.append(task))
    run = app.start(chosen)
    assert result(run) == [0, 0, 1, 1, 2, 2]
    assert made == []
    assert recorded(run, "step") == [name for n in ("", "#2", "#3") for name in (f"debit{n}", f"plain{n}")]
