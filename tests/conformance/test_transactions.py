"""Transactions: what is sent now, later or with the commit is one whole, in the main thread and in others."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from detent.stores.driver import Trouble, Tx
from detent.stores.store import Store
from tests.conformance.builders import NOW, worker_row

Run = Callable[[Callable[[], Any]], Any]


@pytest.fixture(params=["main thread", "another thread"])
def run(request: pytest.FixtureRequest) -> Run:
    """Call something where a user would, or where a worker does."""
    if request.param == "main thread":
        return lambda function: function()
    return _in_thread


def _in_thread(function: Callable[[], Any]) -> Any:
    found: list[Any] = []

    def call() -> None:
        try:
            found.append(function())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def worker(id: str, name: str = "") -> dict[str, Any]:
    row = worker_row(id)
    facts = {field: getattr(row, field) for field in row.__struct_fields__}
    facts |= {"now": NOW, "name": name or id}
    return {key: facts[key] for key in facts if key not in ("started_at", "beat_at")}


def names(store: Store) -> list[str]:
    return sorted(row.name for row in store.workers())


def test_what_is_sent_is_there_for_the_next_query_and_after_the_commit(store: Store, run: Run) -> None:
    def verb() -> list[Any]:
        with store._writer.transaction() as tx:
            tx.send(tx.sql.insert_worker, **worker("a"))
            tx.send(tx.sql.insert_worker, **worker("b"))
            seen = tx.query(tx.sql.workers)
            tx.send(tx.sql.insert_worker, **worker("c"))
            return seen

    assert len(run(verb)) == 2
    assert names(store) == ["a", "b", "c"]


def test_what_was_asked_is_answered_as_of_its_place_in_the_order(store: Store, run: Run) -> None:
    def verb() -> list[int]:
        with store._writer.transaction() as tx:
            before = tx.ask(tx.sql.workers)
            tx.send(tx.sql.insert_worker, **worker("a"))
            after = tx.ask(tx.sql.workers)
            tx.send(tx.sql.insert_worker, **worker("b"))
        return [len(before()), len(after())]  # also when the commit has carried the question

    assert run(verb) == [0, 1]


def test_an_error_in_what_was_sent_undoes_everything_at_the_latest_with_the_commit(
    store: Store, run: Run
) -> None:
    def verb() -> None:
        with store._writer.transaction() as tx:
            tx.send(tx.sql.insert_worker, **worker("a"))
            tx.send(tx.sql.insert_worker, **worker("a"))
            tx.send(tx.sql.insert_worker, **worker("b"))

    for _ in range(3):  # prepared or not
        with pytest.raises(Exception) as caught:
            run(verb)
        assert store.driver.trouble(caught.value) is Trouble.UNIQUE
        assert names(store) == []


def test_what_was_sent_before_an_error_of_the_caller_is_forgotten(store: Store, run: Run) -> None:
    def verb() -> None:
        with store._writer.transaction() as tx:
            tx.send(tx.sql.insert_worker, **worker("a"))
            raise KeyError("the caller's own")

    with pytest.raises(KeyError):
        run(verb)
    with store._writer.autocommit() as tx:
        assert tx.query(tx.sql.workers) == []
    with store._writer.transaction() as tx:
        tx.send(tx.sql.insert_worker, **worker("b"))
    assert names(store) == ["b"]


def test_much_that_is_sent_at_once_comes_back_whole(store: Store, run: Run) -> None:
    """More than the network takes at once, in both directions."""
    long = "x" * 200_000

    def verb() -> int:
        with store._writer.transaction() as tx:
            asked = [tx.ask("SELECT " + _text(tx), text=f"{long}{number}") for number in range(40)]
            return sum(len(rows()[0][0]) for rows in asked)

    assert run(verb) > 40 * len(long)


def _text(tx: Tx) -> str:
    return tx.driver.adapt("CAST(:text AS CHAR)" if tx.driver.name == "MySQL" else "CAST(:text AS TEXT)")


def test_a_connection_that_is_cut_in_the_middle_is_replaced(store: Store, run: Run) -> None:
    cut = {
        "postgres": "SELECT pg_terminate_backend(pg_backend_pid())",
        "mysql": "KILL CONNECTION_ID()",
        "sqlite": "SELECT 1",
    }[store.dialect]

    def verb() -> None:
        with store._writer.transaction() as tx:
            tx.send(tx.sql.insert_worker, **worker("a"))
            tx.query(cut)
            if store.dialect == "sqlite":  # nobody can cut it
                raise KeyError
            tx.query(tx.sql.workers)

    with pytest.raises(Exception) as caught:
        run(verb)
    assert store.dialect == "sqlite" or store.driver.trouble(caught.value) is Trouble.GONE
    assert names(store) == []


def test_no_text_ends_at_a_nul(store: Store, run: Run) -> None:
    def verb() -> None:
        with store._writer.transaction() as tx:
            tx.run(tx.sql.insert_worker, **worker("a", name="b\x00c"))

    if store.dialect == "postgres":
        with pytest.raises(Exception, match="NUL"):
            run(verb)
        assert names(store) == []
    else:
        run(verb)
        assert names(store) == ["b\x00c"]


@pytest.fixture
def _hears_ctrl_c() -> Iterator[None]:
    """Whoever starts the tests in the background has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_hears_ctrl_c")
def test_ctrl_c_ends_a_wait_for_a_server_in_the_main_thread(store: Store, rival: Store) -> None:
    if store.dialect == "sqlite":
        return  # it has no server, and waits for its file inside of itself
    with rival._writer.transaction() as tx:
        tx.run(tx.sql.insert_worker, **worker("a"))
    locked, done = threading.Event(), threading.Event()

    def hold() -> None:
        with rival._beats.transaction() as tx:
            tx.query(tx.sql.lock_worker, id="a")
            locked.set()
            done.wait(20)

    holder = threading.Thread(target=hold)
    holder.start()
    locked.wait(20)
    pressing = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    pressing.start()
    begun = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt), store._beats.transaction() as tx:
            tx.query(tx.sql.lock_worker, id="a")
    finally:
        done.set()
        holder.join()
    assert time.monotonic() - begun < 15
    assert names(store) == ["a"]  # and the connection, or the next, works
