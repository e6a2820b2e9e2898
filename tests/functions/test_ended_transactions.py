"""A transactional step that ends its transaction by itself is not recorded, and is not retried."""

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

import detent
from detent import Context, Retry, step, workflow
from detent.errors import TransactionEnded, TransactionMisused
from tests.functions.world import INSERT, Apps, Ledger, failure, recorded, result

THREE = Retry(attempts=3, first=timedelta(0))


def through_a_cursor(statement: str) -> Callable[[Any], None]:
    """Execute it on the driver's own cursor, where Detent does not see it."""

    def way(tx: Any) -> None:
        tx.cursor().execute(statement)

    return way


def in_turn(*statements: str) -> Callable[[Any], None]:
    def way(tx: Any) -> None:
        for statement in statements:
            through_a_cursor(statement)(tx)

    return way


# What ends a transaction: the databases, whether it commits, and how to do it.
WAYS: dict[str, tuple[str, bool, Callable[[Any], Any]]] = {
    "execute commit": ("all", True, lambda tx: tx.execute("COMMIT")),
    "execute rollback": ("all", False, lambda tx: tx.execute("ROLLBACK")),
    "cursor commit": ("all", True, through_a_cursor("COMMIT")),
    "cursor rollback": ("all", False, through_a_cursor("ROLLBACK")),
    "driver commit": ("all", True, lambda tx: tx.connection.commit()),
    "driver rollback": ("all", False, lambda tx: tx.connection.rollback()),
    "commit and begin": ("all", True, in_turn("COMMIT", "BEGIN")),
    "commit and chain": ("postgresql mysql", True, through_a_cursor("COMMIT AND CHAIN")),
    "both in one message": ("postgresql", True, through_a_cursor("COMMIT; BEGIN")),
    "a script": ("sqlite", True, lambda tx: tx.connection.executescript("SELECT 1; BEGIN;")),
    "begin": ("mysql", True, lambda tx: tx.execute("BEGIN")),
    "autocommit": ("mysql", True, in_turn("SET autocommit = 1", "SET autocommit = 0")),
    "create table": ("mysql", True, lambda tx: tx.execute("CREATE TABLE ledger_made (entry INTEGER)")),
    "alter table": ("mysql", True, through_a_cursor("ALTER TABLE ledger COMMENT 'altered'")),
    "truncate": ("mysql", True, in_turn("CREATE TEMPORARY TABLE made (entry INTEGER)", "TRUNCATE made")),
    "lock tables": ("mysql", True, in_turn("LOCK TABLES ledger WRITE", "UNLOCK TABLES")),
}


def skip_unless(url: str, databases: str) -> None:
    if databases != "all" and url.split(":", maxsplit=1)[0] not in databases.split():
        pytest.skip("another database")


@pytest.mark.parametrize("way", WAYS)
def test_a_step_that_ends_its_transaction_is_not_recorded_and_not_retried(
    apps: Apps, ledger: Ledger, url: str, way: str
) -> None:
    databases, commits, end = WAYS[way]
    skip_unless(url, databases)
    attempts: list[int] = []

    @step(transactional=True, retry=THREE)
    def debit(ctx: Context, tx: Any) -> str:
        attempts.append(ctx.attempt)
        tx.execute(INSERT.format("before"))
        if len(attempts) == 1:
            with suppress(TransactionEnded):
                end(tx)
            with suppress(TransactionEnded):
                tx.cursor().execute(INSERT.format("after"))
        return "done"

    @workflow
    def flow() -> str:
        return debit()

    run = apps(flow).start(flow)
    error = failure(run)
    assert isinstance(error, TransactionEnded)
    assert "'debit'" in str(error)
    assert len(attempts) == 1
    # With autocommit on, a write after the end would have stayed.
    assert ledger() == (["before"] if commits else [])
    run.resume()
    assert result(run) == "done"
    assert len(ledger()) == (2 if commits else 1)


@pytest.mark.parametrize("way", ["execute commit", "driver commit", "commit and begin", "create table"])
@pytest.mark.parametrize("kind", ["called", "spawned", "async"])
def test_an_exception_after_the_end_of_the_transaction_is_not_retried(
    apps: Apps, ledger: Ledger, url: str, kind: str, way: str
) -> None:
    """Another try would write a second time what is committed."""
    databases, _, end = WAYS[way]
    skip_unless(url, databases)

    def body(tx: Any) -> None:
        tx.execute(INSERT.format("before"))
        with suppress(TransactionEnded):
            end(tx)
        raise ConnectionError("the mail server is away")

    @step(transactional=True, retry=THREE, id="debit")
    def debit(tx: Any) -> None:
        body(tx)

    @step(transactional=True, retry=THREE, id="debit")
    async def adebit(tx: Any) -> None:
        body(tx._sync)

    chosen: Any = adebit if kind == "async" else debit

    @workflow
    def flow() -> None:
        if kind == "spawned":
            chosen.spawn().result()
        else:
            chosen.sync()

    error = failure(apps(flow).start(flow))
    assert isinstance(error, TransactionEnded)
    assert ledger() == ["before"]


def test_a_statement_that_ends_the_transaction_raises_at_once(apps: Apps, ledger: Ledger, url: str) -> None:
    statement = "CREATE TABLE ledger_made (entry INTEGER)" if url.startswith("mysql") else "COMMIT"
    reached: list[str] = []

    @step(transactional=True)
    async def debit(tx: detent.AsyncTransaction) -> None:
        await tx.execute(INSERT.format("before"))
        await tx.execute(statement)
        reached.append("the line after it")

    @workflow
    def flow() -> None:
        debit.sync()

    assert isinstance(failure(apps(flow).start(flow)), TransactionEnded)
    assert reached == []


def test_the_savepoints_of_a_step_are_its_own(apps: Apps, ledger: Ledger) -> None:
    @step(transactional=True)
    def debit(tx: Any) -> None:
        tx.execute(INSERT.format("kept"))
        tx.execute("SAVEPOINT mine")
        tx.execute(INSERT.format("undone"))
        tx.execute("ROLLBACK TO SAVEPOINT mine")
        tx.execute("RELEASE SAVEPOINT mine")
        tx.execute(INSERT.format("kept, too"))

    @workflow
    def flow() -> None:
        debit()

    run = apps(flow).start(flow)
    result(run)
    assert ledger() == ["kept", "kept, too"]
    assert recorded(run, "step") == ["debit"]


@pytest.mark.parametrize("module_url", ["postgres", "sqlite"], indirect=True)
def test_tables_may_be_created_where_that_does_not_commit(apps: Apps, ledger: Ledger) -> None:
    @step(transactional=True, retry=THREE)
    def debit(ctx: Context, tx: Any) -> int:
        tx.execute("CREATE TABLE ledger_made (entry INTEGER)")
        tx.execute(INSERT.format("before"))
        if ctx.attempt < 3:
            raise ConnectionError
        return ctx.attempt

    @workflow
    def flow() -> int:
        return debit()

    assert result(apps(flow).start(flow)) == 3
    assert ledger() == ["before"]


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_the_tx_of_a_step_that_has_ended_is_refused(apps: Apps, ledger: Ledger, is_async: bool) -> None:
    kept: list[Any] = []

    @step(transactional=True, id="debit")
    def debit(tx: Any) -> None:
        kept.append(tx)

    @step(transactional=True, id="debit")
    async def adebit(tx: Any) -> None:
        kept.append(tx._sync)

    chosen: Any = adebit if is_async else debit

    @workflow
    def flow() -> None:
        chosen.sync()

    result(apps(flow).start(flow))
    with pytest.raises(TransactionMisused, match="the step and its transaction have ended"):
        kept[0].execute(INSERT.format("late"))
    assert ledger() == []


def test_a_node_that_ends_its_transaction_pauses_its_run(apps: Apps, ledger: Ledger) -> None:
    calls: list[int] = []

    class Order(detent.Workflow):
        @step(transactional=True, retry=THREE)
        def debit(self, tx: Any) -> None:
            calls.append(1)
            tx.execute(INSERT.format("before"))
            tx.cursor().execute("COMMIT")

    run = apps(Order).start(Order)
    with pytest.raises(detent.errors.RunPaused) as caught:
        result(run)
    assert isinstance(caught.value.__cause__, TransactionEnded)
    assert len(calls) == 1
    assert ledger() == ["before"]


def test_a_connection_in_memory_is_usable_after_a_step_that_ended_its_transaction() -> None:
    @step(transactional=True)
    def debit(tx: Any) -> None:
        tx.execute("CREATE TABLE IF NOT EXISTS ledger (entry TEXT)")
        tx.connection.commit()

    @workflow
    def flow() -> None:
        debit()

    with detent.App("sqlite:///:memory:", include=[flow]) as app:
        for _ in range(3):
            with pytest.raises(TransactionEnded):
                app.start(flow).result(timeout=20)
        with app.engine.store._writer.transaction() as tx, pytest.raises(sqlite3.OperationalError):
            tx.run("SELECT * FROM missing")
