"""What the body of a transactional step may ask of its app: reads yes, writes no."""

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import detent
from detent import Context, Retry, step, workflow
from detent.errors import DefinitionError, TransactionMisused
from detent.stores.mysql.driver import MySqlDriver
from tests.functions.world import INSERT, Apps, Gate, Ledger, failure, result, wait_for


@workflow
def double(number: int) -> int:
    return number * 2


@workflow
def idle() -> None:
    detent.sleep(timedelta(hours=1))


# Writes

WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "pause": lambda app, run: run.pause(),
    "resume": lambda app, run: run.resume(),
    "cancel": lambda app, run: run.cancel(),
    "send": lambda app, run: run.send("news", 1),
    "delete": lambda app, run: run.delete(),
    "result": lambda app, run: run.result(),
    "start": lambda app, run: app.start(double, 1),
    "start_many": lambda app, run: app.start_many(double, [(1,), (2,)]),
    "fork": lambda app, run: app.fork(run),
    "gc": lambda app, run: app.gc(older_than=timedelta(days=1)),
}


@pytest.mark.parametrize("verb", WRITES)
def test_a_write_inside_a_transactional_step_is_refused_and_leaves_its_transaction_alone(
    apps: Apps, ledger: Ledger, verb: str
) -> None:
    refused: list[Exception] = []

    @step(transactional=True, retry=Retry(attempts=2, first=timedelta(0)))
    def debit(ctx: Context, tx: Any, other: str) -> int:
        tx.execute(INSERT.format(f"before {ctx.attempt}"))
        try:
            WRITES[verb](app, app.run(other))
        except TransactionMisused as error:
            refused.append(error)
        tx.execute(INSERT.format(f"after {ctx.attempt}"))
        if ctx.attempt == 1:
            raise ConnectionError  # all of this attempt is rolled back
        return ctx.attempt

    @workflow
    def flow(other: str) -> int:
        return debit(other)

    app = apps(flow, double, idle)
    other = app.start(idle)
    wait_for(other, "ready")
    assert result(app.start(flow, other.id)) == 2
    assert ledger() == ["after 2", "before 2"]
    assert len(refused) == 2
    assert "inside a transactional step" in str(refused[0])
    assert other.refresh().state == "ready"
    assert len(app.runs()) == 2


@pytest.mark.parametrize("verb", ["pause", "cancel", "send", "start", "result"])
def test_the_same_in_async_code(url: str, apps: Apps, ledger: Ledger, verb: str) -> None:
    apps(worker=False).close()  # (an empty database)
    refused: list[Exception] = []

    @step(transactional=True)
    async def debit(tx: detent.AsyncTransaction, other: str) -> None:
        await tx.execute(INSERT.format("before"))
        try:
            await WRITES[verb](app, await app.run(other))
        except TransactionMisused as error:
            refused.append(error)
        await tx.execute(INSERT.format("after"))

    @workflow
    async def flow(other: str) -> None:
        await debit(other)

    async def program() -> str:
        async with app:
            other = await app.start(idle)
            await (await app.start(flow, other.id)).result(timeout=20)
            return (await other.refresh()).state

    app = detent.AsyncApp(url, include=[flow, double, idle])
    assert asyncio.run(program()) in ("ready", "performing")
    assert ledger() == ["after", "before"]
    assert len(refused) == 1


def test_a_step_may_write_through_an_app_of_another_database(apps: Apps) -> None:
    with detent.App("sqlite:///:memory:", include=[double]) as other:

        @step(transactional=True)
        def debit(tx: Any) -> int:
            return int(other.start(double, 4).result(timeout=20))

        @workflow
        def flow() -> int:
            return debit()

        assert result(apps(flow).start(flow)) == 8


def test_a_task_that_outlives_its_step_may_write_again(apps: Apps) -> None:
    left: list[Any] = []

    @step(transactional=True)
    async def debit(tx: Any) -> None:
        async def later() -> str:
            await asyncio.sleep(0.2)
            return str((await asyncio.to_thread(app.start, double, 4)).id)

        left.append(asyncio.ensure_future(later()))

    @step
    async def wait() -> str:
        return str(await left[0])

    @workflow
    async def flow() -> str:
        await debit()
        return await wait()

    app = apps(flow, double)
    assert result(app.run(result(app.start(flow)))) == 8


# Reads

STEPS, POOL = 8, 2


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_reads_in_more_transactional_steps_than_there_are_connections_do_not_wait_for_each_other(
    apps: Apps, url: str, ledger: Ledger, is_async: bool
) -> None:
    together = threading.Barrier(1 if url.startswith("sqlite") else POOL)  # SQLite: one at a time

    def reads(number: int) -> int:
        together.wait(10)
        overdue = app.runs(overdue=timedelta(hours=1))
        listed = app.runs(limit=50)
        known = app.run(ended)
        assert known.state == "finished"
        assert known.result() == 8
        assert app.executions(limit=1)
        assert known.history()
        return number if len(listed) > len(overdue) else -1

    @step(transactional=True, id="debit")
    def debit(tx: Any, number: int) -> int:
        tx.execute(INSERT.format(number))
        return reads(number)

    @step(transactional=True, id="debit")
    async def adebit(tx: Any, number: int) -> int:
        await tx.execute(INSERT.format(number))
        return await asyncio.to_thread(reads, number)

    chosen: Any = adebit if is_async else debit

    @workflow
    def flow() -> list[int]:
        return [handle.result() for handle in [chosen.spawn(number) for number in range(STEPS)]]

    app = apps(flow, double, pool_size=POOL, concurrency=STEPS)
    ended = app.start(double, 4).id
    app.run(ended).result(timeout=20)
    assert result(app.start(flow)) == list(range(STEPS))
    assert ledger() == [str(number) for number in range(STEPS)]


def test_an_async_app_reads_inside_transactional_steps() -> None:
    """In memory: one connection is the whole database, and the step holds it."""

    @step(transactional=True)
    async def debit(tx: detent.AsyncTransaction) -> int:
        await tx.execute("CREATE TABLE mine (entry INTEGER)")
        overdue = await app.runs(overdue=timedelta(hours=1))
        return len(await app.runs()) - len(overdue)

    @workflow
    async def flow() -> int:
        return await debit()

    async def program() -> int:
        async with app:
            return int(await (await app.start(flow)).result(timeout=20))

    app = detent.AsyncApp("sqlite:///:memory:", include=[flow])
    assert asyncio.run(program()) == 1


def test_a_read_that_fails_in_memory_leaves_the_transaction_of_the_step_alone() -> None:
    @step(transactional=True)
    def debit(tx: Any) -> None:
        tx.execute("CREATE TABLE mine (entry INTEGER)")
        with pytest.raises(Exception, match="no such table"):
            app.engine.store.read(lambda tx: tx.query("SELECT * FROM nowhere"))

    @workflow
    def flow() -> None:
        debit()

    with detent.App("sqlite:///:memory:", include=[flow]) as app:
        app.start(flow).result(timeout=20)


# Isolation


def seen_by(apps: Apps, ledger: Ledger, url: str, isolation: Any) -> tuple[int, int]:
    """How many entries a step counts before and after another transaction adds one."""
    gate = Gate()

    @step(transactional=True, isolation=isolation)
    def count(tx: Any) -> list[int]:
        def entries() -> int:
            return int(tx.execute("SELECT COUNT(*) FROM ledger").fetchone()[0])

        before = entries()
        gate.pass_through()
        return [before, entries()]

    @workflow
    def flow() -> list[int]:
        return count()

    app = apps(flow)
    run = app.start(flow)
    gate.wait_for_arrival()
    if not url.startswith("sqlite"):  # where nobody else can write meanwhile
        with app.engine.store._pool.connection() as connection, connection.transaction() as tx:
            tx.run(INSERT.format("added"))
    gate.open()
    before, after = result(run)
    app.close()  # its worker would take the next run, which has the same name and another gate
    return before, after


def test_the_isolation_of_a_step_is_what_it_asks_for(apps: Apps, ledger: Ledger, url: str) -> None:
    added = 0 if url.startswith("sqlite") else 1  # SQLite is always serializable
    assert seen_by(apps, ledger, url, "read committed") == (0, added)
    assert seen_by(apps, ledger, url, "repeatable read") == (added, added)


@pytest.mark.parametrize("module_url", ["postgres", "mysql"], indirect=True)
def test_a_step_has_the_isolation_of_its_database_by_default(apps: Apps, ledger: Ledger, url: str) -> None:
    """PostgreSQL: read committed; MySQL and MariaDB: repeatable read."""
    assert seen_by(apps, ledger, url, None) == (0, 1 if url.startswith("postgresql") else 0)


@pytest.mark.parametrize("module_url", ["postgres", "mysql"], indirect=True)
def test_serializable_steps_that_conflict_are_tried_again(apps: Apps, ledger: Ledger) -> None:
    """Two doctors are on call, and each may leave only if the other stays."""
    met = threading.Barrier(2)
    calls: list[str] = []

    @step(transactional=True, isolation="serializable")
    def leave(tx: Any, doctor: str) -> bool:
        calls.append(doctor)
        on_call = tx.execute("SELECT COUNT(*) FROM ledger").fetchone()[0]
        if len(calls) <= 2:
            met.wait(10)
        if on_call < 2:
            return False
        tx.execute(f"DELETE FROM ledger WHERE entry = '{doctor}'")
        return True

    @workflow
    def flow(doctor: str) -> bool:
        return leave(doctor)

    app = apps(flow)
    with app.engine.store._pool.connection() as connection, connection.transaction() as tx:
        for doctor in ("anna", "berta"):
            tx.run(INSERT.format(doctor))
    runs = [app.start(flow, doctor) for doctor in ("anna", "berta")]
    assert sorted(result(run) for run in runs) == [False, True]
    assert len(calls) > 2
    assert len(ledger()) == 1


@pytest.mark.parametrize("module_url", ["postgres", "mysql"], indirect=True)
@pytest.mark.parametrize("strict", [False, True], ids=["", "snapshot isolation of MariaDB"])
def test_heartbeats_do_not_conflict_with_a_step_that_has_a_snapshot(
    apps: Apps, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, strict: bool
) -> None:
    tuned = MySqlDriver.tune_for_users

    def tune(driver: MySqlDriver, connection: Any) -> None:
        tuned(driver, connection)
        connection.strict_snapshots = strict

    monkeypatch.setattr(MySqlDriver, "tune_for_users", tune)
    gate, calls = Gate(), []

    @step(transactional=True, isolation="repeatable read")
    def debit(tx: Any) -> int:
        calls.append(1)
        tx.execute("SELECT COUNT(*) FROM ledger")
        tx.execute(INSERT.format("anna"))
        gate.pass_through()
        return len(calls)

    @workflow
    def flow() -> int:
        return debit()

    app = apps(flow)
    run = app.start(flow)
    gate.wait_for_arrival()
    worker = app.engine.worker
    assert worker is not None
    assert app.engine.store.renew(worker.id, lease=30_000_000, now=time.time_ns() // 1000)
    gate.open()
    assert result(run) == 1
    assert ledger() == ["anna"]


def test_an_isolation_is_checked_where_the_step_is_defined() -> None:
    with pytest.raises(DefinitionError, match="'snapshot'; it is one of 'read committed'"):
        step(transactional=True, isolation="snapshot")(lambda tx: None)  # type: ignore[call-overload]
    with pytest.raises(DefinitionError, match="add transactional=True"):
        step(isolation="serializable")(lambda: None)  # type: ignore[call-overload]
    with pytest.raises(DefinitionError, match="node of a graph"):

        class Order(detent.Workflow):
            @step(transactional=True, isolation="serializable")
            def debit(self, tx: Any) -> None: ...


def test_a_spawned_step_takes_no_isolation(apps: Apps) -> None:
    @step(transactional=True, isolation="serializable")
    def debit(tx: Any) -> None: ...

    @workflow
    def flow() -> None:
        debit.spawn().result()

    assert "is spawned" in str(failure(apps(flow).start(flow)))
