"""Transactional steps, and starting runs inside of one's own transaction."""

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pymysql
import pytest
import sqlalchemy
from sqlalchemy.orm import Session

import detent
from detent import Context, Retry, step, workflow
from detent.errors import (
    AlreadyRunning,
    ConfigurationError,
    RunConflict,
    RunNotFound,
    TransactionMisused,
)
from detent.worker import heartbeat
from tests.functions.world import (
    INSERT,
    SOON,
    Apps,
    Gate,
    Ledger,
    failure,
    reap,
    result,
)


@workflow
def double(number: int) -> int:
    return number * 2


@pytest.mark.parametrize("kind", ["def", "async def", "spawned def", "spawned async def"])
def test_a_transactional_step_writes_and_is_recorded_together(apps: Apps, ledger: Ledger, kind: str) -> None:
    @step(transactional=True, id="debit")
    def debit(tx: Any, account: str) -> str:
        tx.execute(INSERT.format(account))
        return account.upper()

    @step(transactional=True, id="debit")
    async def adebit(tx: Any, account: str) -> str:
        await asyncio.gather(tx.execute(INSERT.format(account)), tx.fetchall("SELECT entry FROM ledger"))
        return account.upper()

    chosen: Any = adebit if "async" in kind else debit

    @workflow
    def flow() -> str:
        value = chosen.spawn("anna").result() if "spawned" in kind else chosen.sync("anna")
        detent.sleep(SOON)
        return str(value)

    assert result(apps(flow).start(flow)) == "ANNA"
    assert ledger() == ["anna"]


def test_a_transactional_step_in_an_async_workflow(apps: Apps, ledger: Ledger) -> None:
    @step(transactional=True)
    def debit(tx: Any, account: str) -> None:
        tx.execute(INSERT.format(account))

    @step(transactional=True)
    async def adebit(ctx: Context, tx: Any, account: str) -> None:
        assert ctx.attempt == 1
        await tx.execute(INSERT.format(account))

    @workflow
    async def flow() -> None:
        await asyncio.gather(debit.aio("anna"), adebit("berta"))
        await detent.aio.sleep(SOON)

    result(apps(flow).start(flow))
    assert ledger() == ["anna", "berta"]


@pytest.mark.parametrize("spawned", [False, True], ids=["called", "spawned"])
def test_a_transactional_step_that_raises_rolls_back(apps: Apps, ledger: Ledger, spawned: bool) -> None:
    @step(transactional=True, retry=Retry(attempts=3, first=timedelta(0)))
    def debit(ctx: Context, tx: Any, account: str) -> int:
        tx.execute(INSERT.format(f"{account} {ctx.attempt}"))
        if ctx.attempt < 3:
            raise ConnectionError("once more")
        return ctx.attempt

    @workflow
    def flow() -> Any:
        return debit.spawn("anna").result() if spawned else debit("anna")

    assert result(apps(flow).start(flow)) == 3
    assert ledger() == ["anna 3"]


def test_a_result_that_cannot_be_stored_rolls_back(apps: Apps, ledger: Ledger) -> None:
    @step(transactional=True)
    def debit(tx: Any) -> Any:
        tx.execute(INSERT.format("anna"))
        return object()

    @workflow
    def flow() -> None:
        debit()

    assert "'debit'" in str(failure(apps(flow).start(flow)))
    assert ledger() == []


class Crash(BaseException):
    """The process dies here."""


@pytest.mark.parametrize("spawned", [False, True], ids=["called", "spawned"])
def test_a_crash_between_the_body_and_the_commit_leaves_one_write(
    apps: Apps, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, spawned: bool
) -> None:
    dead, attempts = threading.Event(), []

    @step(transactional=True)
    def debit(ctx: Context, tx: Any) -> str:
        attempts.append(ctx.attempt)
        tx.execute(INSERT.format(f"delivery {len(attempts)}"))
        return f"delivery {len(attempts)}"

    @workflow
    def flow() -> Any:
        return debit.spawn().result() if spawned else debit()

    def die(*_: Any) -> None:
        assert first.engine.worker is not None
        first.engine.worker.crash()
        dead.set()
        raise Crash

    first = apps(flow)
    monkeypatch.setattr(first.engine.store, "apply_within", die)
    run = first.start(flow)
    assert dead.wait(20)
    second = apps(flow)
    reap(first, reaped_by=second)
    assert result(second.run(run.id)) == "delivery 2"
    assert ledger() == ["delivery 2"]


# A transaction on SQLite keeps everybody else out: nobody could reap its worker meanwhile.
@pytest.mark.parametrize("module_url", ["postgres", "mysql"], indirect=True)
@pytest.mark.parametrize("spawned", [False, True], ids=["called", "spawned"])
def test_a_worker_thought_dead_cannot_commit_its_transaction(
    apps: Apps, ledger: Ledger, spawned: bool
) -> None:
    gate, calls = Gate(), []

    @step(transactional=True)
    def debit(tx: Any) -> int:
        calls.append(1)
        number = len(calls)
        tx.execute(INSERT.format(f"delivery {number}"))
        if number == 1:
            gate.pass_through()
        return number

    @workflow
    def flow() -> Any:
        return debit.spawn().result() if spawned else debit()

    first = apps(flow)
    run = first.start(flow)
    gate.wait_for_arrival()
    second = apps(flow)
    reap(first, reaped_by=second)
    assert result(second.run(run.id)) == 2
    gate.open()
    first.close()
    assert ledger() == ["delivery 2"]


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_a_transactional_step_must_not_end_its_transaction(
    apps: Apps, ledger: Ledger, is_async: bool
) -> None:
    refused: list[str] = []

    def try_all(tx: Any) -> None:
        for verb in (tx.commit, tx.rollback, tx.close):
            with pytest.raises(TransactionMisused, match="must not") as caught:
                verb()
            refused.append(caught.value.verb)

    @step(transactional=True, id="misuse")
    def misuse(tx: Any) -> None:
        tx.execute(INSERT.format("anna"))
        try_all(tx)

    @step(transactional=True, id="misuse")
    async def amisuse(tx: Any) -> None:
        await tx.execute(INSERT.format("anna"))
        try_all(tx)

    chosen: Any = amisuse if is_async else misuse

    @workflow
    def flow() -> None:
        chosen.sync()

    result(apps(flow).start(flow))
    assert refused == ["commit", "rollback", "close"]
    assert ledger() == ["anna"]


def test_starting_a_run_in_a_transaction_is_refused_with_a_hint(apps: Apps, ledger: Ledger) -> None:
    @step(transactional=True)
    def debit(tx: Any) -> None:
        tx.execute(INSERT.format("anna"))
        app.start(double, 1)

    @workflow
    def flow() -> None:
        debit()

    app = apps(flow, double)
    error = failure(app.start(flow))
    assert isinstance(error, TransactionMisused)
    assert "app.within(tx).start" in str(error)
    assert ledger() == []
    assert app.runs(type="double") == []


def test_a_run_started_within_the_transaction_of_a_step_commits_with_it(apps: Apps, ledger: Ledger) -> None:
    @step(transactional=True, retry=Retry(attempts=2, first=timedelta(0)))
    def debit(ctx: Context, tx: Any) -> str:
        tx.execute(INSERT.format("anna"))
        run = app.within(tx).start(double, 4)
        if ctx.attempt == 1:
            raise ConnectionError
        return run.id

    @workflow
    def flow() -> str:
        return debit()

    app = apps(flow, double)
    started = result(app.start(flow))
    assert [run.id for run in app.runs(type="double")] == [started]
    assert result(app.run(started)) == 8
    assert ledger() == ["anna"]


def test_a_run_started_within_the_transaction_of_a_step_waits_for_no_heartbeat(
    apps: Apps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "BEAT", 3600.0)

    @step(transactional=True)
    def debit(tx: Any) -> str:
        return app.within(tx).start(double, 4).id

    @workflow
    def flow() -> str:
        return debit()

    app = apps(flow, double)
    assert result(app.run(result(app.start(flow)))) == 8


def test_a_resumable_step_in_a_transaction_begins_anew_when_it_rolls_back(apps: Apps, ledger: Ledger) -> None:
    @step(transactional=True, retry=Retry(attempts=2, first=timedelta(0)))
    def debit(ctx: Context, tx: Any) -> None:
        for number in ctx.iterate(range(3)):
            tx.execute(INSERT.format(f"item {number}"))
            if number == 1 and ctx.attempt == 1:
                raise ConnectionError

    @workflow
    def flow() -> None:
        debit()

    result(apps(flow).start(flow))
    assert ledger() == ["item 0", "item 1", "item 2"]


# -- app.within ------------------------------------------------------------------------------------


def connect(url: str) -> Any:
    """A DB-API connection as users make them."""
    place = urlsplit(url)
    if place.scheme == "sqlite":
        return sqlite3.connect(place.path[1:])
    if place.scheme == "postgresql":
        return psycopg.connect(url)
    return pymysql.connect(
        host=place.hostname,
        port=place.port or 3306,
        user=place.username,
        password=place.password or "",
        database=place.path[1:],
    )


def sqlalchemy_url(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg://").replace("mysql://", "mysql+pymysql://")


@pytest.fixture
def engine(url: str) -> Iterator[sqlalchemy.Engine]:
    made = sqlalchemy.create_engine(sqlalchemy_url(url))
    yield made
    made.dispose()


def test_a_run_exists_if_and_only_if_your_transaction_commits(apps: Apps, ledger: Ledger, url: str) -> None:
    app = apps(double)
    connection = connect(url)
    cursor = connection.cursor()
    cursor.execute(INSERT.format("lost"))
    lost = app.within(connection).start(double, 1)
    connection.rollback()
    cursor.execute(INSERT.format("kept"))
    kept = app.within(connection).start(double, 2)
    many = app.within(connection).start_many(double, [(3,), (4,)])
    assert {run.id for run in app.runs()} == set()
    connection.commit()
    connection.close()
    assert result(kept) == 4
    assert [result(run) for run in many] == [6, 8]
    with pytest.raises(RunNotFound):
        lost.refresh()
    assert ledger() == ["kept"]


@pytest.mark.parametrize("what", ["connection", "session"])
def test_sqlalchemy_connections_and_sessions_carry_runs(
    apps: Apps, ledger: Ledger, engine: sqlalchemy.Engine, what: str
) -> None:
    app = apps(double)
    open_one: Any = engine.connect if what == "connection" else lambda: Session(engine)
    with open_one() as place:
        place.execute(sqlalchemy.text(INSERT.format("lost")))
        app.within(place).start(double, 1)
        place.rollback()
        place.execute(sqlalchemy.text(INSERT.format("kept")))
        kept = app.options(id="chosen").within(place).start(double, 2)
        place.commit()
    assert result(kept) == 4
    assert [run.id for run in app.runs()] == ["chosen"]
    assert ledger() == ["kept"]


def test_within_refuses_what_start_refuses(apps: Apps, url: str) -> None:
    app = apps(double, worker=False)
    app.options(id="taken").start(double, 1)
    app.options(hero=("user", 1)).start(double, 1)
    connection = connect(url)
    with pytest.raises(RunConflict):
        app.options(id="taken").within(connection).start(double, 2)
    connection.rollback()
    with pytest.raises(AlreadyRunning):
        app.options(hero=("user", 1)).within(connection).start(double, 2)
    connection.rollback()
    connection.close()
    assert len(app.runs()) == 2


def test_within_refuses_what_is_no_connection(apps: Apps) -> None:
    with pytest.raises(ConfigurationError, match="not str"):
        apps(double, worker=False).within("a url").start(double, 1)


def test_an_async_app_starts_within_a_connection_too(url: str, ledger: Ledger) -> None:
    async def program() -> Any:
        async with detent.AsyncApp(url, include=[double]) as app:
            connection = connect(url)
            started = await app.within(connection).start(double, 4)
            connection.commit()
            connection.close()
            return await started.result(timeout=20)

    assert asyncio.run(program()) == 8
