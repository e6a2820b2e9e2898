"""A commit that reaches the server after the client has given it up.

A frozen server, or a slow network, executes what the lost connection has sent.  The next
try of the transactional step has begun by then: one of the two must write nothing.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import Queue
from typing import Any

import pytest

import detent
from detent import App, step, workflow
from detent.errors import DatabaseUnavailable
from tests.functions.world import INSERT, PATIENCE, Apps, Ledger, result

# SQLite has no server that could commit later.
pytestmark = pytest.mark.parametrize("module_url", ["postgres", "mysql"], indirect=True)


class LateCommit:
    """The first transaction of an app is lost to it, and committed when `release` is called."""

    def __init__(self, app: App, monkeypatch: pytest.MonkeyPatch, *, sent: bool) -> None:
        self._release = threading.Event()
        self._thread: threading.Thread | None = None
        self._sent = sent  # whether the server has executed everything but the commit
        self._store: Any = app.engine.store
        self._transaction = self._store.transaction
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(self._store, "transaction", self._lost)

    @contextmanager
    def _lost(self, *args: Any, **options: Any) -> Iterator[Any]:
        self._monkeypatch.setattr(self._store, "transaction", self._transaction)
        begun: Queue[Any] = Queue()
        # In a thread of its own: the one that holds a connection has to give it back.
        self._thread = threading.Thread(target=self._hold, args=(begun, args, options))
        self._thread.start()
        tx = begun.get()
        yield tx
        if self._sent:
            tx.query("SELECT 1")
        raise DatabaseUnavailable("the database", "the connection was cut")

    def _hold(self, begun: Queue[Any], args: Any, options: Any) -> None:
        with suppress(Exception), self._transaction(*args, **options) as tx:
            begun.put(tx)
            assert self._release.wait(PATIENCE)

    def release(self) -> None:
        self._release.set()

    def join(self) -> None:
        assert self._thread is not None
        self._thread.join()


@pytest.mark.parametrize("sent", [True, False], ids=["sent", "on its way"])
def test_a_commit_that_arrives_during_the_next_try_writes_once(
    apps: Apps, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, sent: bool
) -> None:
    calls: list[int] = []
    seen: list[int] = []

    @step(transactional=True)
    def pay(tx: detent.Transaction) -> int:
        calls.append(len(calls) + 1)
        tx.execute(INSERT.format(calls[-1]))
        if len(calls) == 2:
            late.release()
        return calls[-1]

    @workflow
    def flow() -> int:
        seen.append(pay())
        return seen[-1]

    app = apps(flow)
    late = LateCommit(app, monkeypatch, sent=sent)
    run = app.start(flow)
    value = result(run)
    late.join()
    assert ledger() == [str(value)]
    [entry] = [item for item in run.executions() if item.node == "pay"]
    assert (seen, entry.result) == ([value], value)


def test_a_commit_that_arrives_after_the_next_try_writes_nothing(
    url: str, apps: Apps, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    if url.startswith("mysql"):
        pytest.skip("only PostgreSQL gets the record and the commit in one packet")
    calls: list[int] = []

    @step(transactional=True)
    def pay(tx: detent.Transaction) -> int:
        calls.append(len(calls) + 1)
        tx.execute(INSERT.format(calls[-1]))
        return calls[-1]

    @workflow
    def flow() -> int:
        return pay()

    app = apps(flow)
    late = LateCommit(app, monkeypatch, sent=False)
    value = result(app.start(flow))
    late.release()
    late.join()
    assert ledger() == [str(value)]


def test_a_spawned_step_whose_commit_arrives_late_writes_once(
    apps: Apps, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    @step(transactional=True)
    def pay(tx: detent.Transaction) -> int:
        calls.append(len(calls) + 1)
        tx.execute(INSERT.format(calls[-1]))
        if len(calls) == 2:
            late.release()
        return calls[-1]

    @workflow
    def flow() -> int:
        return pay.spawn().result()

    app = apps(flow)
    late = LateCommit(app, monkeypatch, sent=True)
    value = result(app.start(flow))
    late.join()
    assert ledger() == [str(value)]


@pytest.mark.parametrize("failing", [True, False], ids=["the next try fails", "the next try is lost"])
def test_the_value_of_a_late_commit_is_what_the_workflow_sees(
    apps: Apps, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, failing: bool
) -> None:
    calls: list[int] = []

    @step(transactional=True)
    def pay(tx: detent.Transaction) -> int:
        calls.append(len(calls) + 1)
        if len(calls) == 2:
            late.release()
            late.join()
            if failing:
                raise ValueError("paid already")
            raise DatabaseUnavailable("the database", "the connection was cut again")
        tx.execute(INSERT.format(calls[-1]))
        return calls[-1]

    @workflow
    def flow() -> int:
        return pay()

    app = apps(flow)
    late = LateCommit(app, monkeypatch, sent=True)
    assert (result(app.start(flow)), ledger()) == (1, ["1"])
