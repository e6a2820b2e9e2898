"""Transactional nodes: their writes and their record are one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import detent
from detent import Retry, Workflow, step
from detent.worker import heartbeat
from tests.functions.world import Apps, Gate, crash, eventually, result, state, wait_for
from tests.graphs.world import attempts, both_kinds, last, one_node


@pytest.fixture
def ledger(apps: Apps) -> Any:
    """A table of the user's own, beside Detent's."""
    store = apps(worker=False).engine.store
    with store._writer.transaction() as tx:
        tx.run("DROP TABLE IF EXISTS ledger")
        tx.run("CREATE TABLE ledger (line VARCHAR(50))")

    def lines() -> list[str]:
        with store._reading() as tx:
            return sorted(row[0] for row in tx.query("SELECT line FROM ledger"))

    return lines


def write(tx: Any, line: str) -> None:
    tx.execute(f"INSERT INTO ledger VALUES ('{line}')")


def transactional(body: Any, is_async: bool = False, **options: Any) -> Any:
    maker: Any = step
    flow: Any

    if is_async:

        class AsyncFlow(Workflow, name="books"):
            @maker(transactional=True, **options)  # type: ignore[untyped-decorator]
            async def book(self, tx: detent.AsyncTransaction) -> Any:
                await tx.execute(f"INSERT INTO ledger VALUES ('attempt {self.ctx.attempt}')")
                return body(self)

            @step
            def after(self) -> str:
                return "after"

        flow = AsyncFlow
    else:

        class Flow(Workflow, name="books"):
            @maker(transactional=True, **options)  # type: ignore[untyped-decorator]
            def book(self, tx: detent.Transaction) -> Any:
                write(tx, f"attempt {self.ctx.attempt}")
                return body(self)

            @step
            def after(self) -> str:
                return "after"

        flow = Flow
    return flow


@both_kinds
def test_the_writes_of_a_transactional_node_and_its_record_are_one(
    apps: Apps, ledger: Any, is_async: bool
) -> None:
    flow = transactional(lambda self: 7, is_async)
    run = apps(flow).start(flow)
    assert result(run) == "after"
    assert (ledger(), attempts(run, "book")) == (["attempt 1"], [("completed", "success")])
    assert last(run, "book").result == 7


@both_kinds
def test_what_follows_a_transactional_node_waits_for_no_heartbeat(
    apps: Apps, ledger: Any, is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "BEAT", 3600.0)
    flow = transactional(lambda self: 7, is_async)
    assert result(apps(flow).start(flow)) == "after"


@both_kinds
def test_a_transactional_node_that_raises_writes_nothing(apps: Apps, ledger: Any, is_async: bool) -> None:
    def body(self: Any) -> None:
        if self.ctx.attempt == 1:
            raise LookupError

    flow = transactional(body, is_async, retry=Retry(attempts=2, first=timedelta(0)))
    run = apps(flow).start(flow)
    assert result(run) == "after"
    assert ledger() == ["attempt 2"]


def test_a_transactional_node_whose_worker_dies_in_it_is_done_once(apps: Apps, ledger: Any) -> None:
    gate = Gate()

    def body(self: Any) -> None:
        if self.ctx.attempt == 1:
            gate.pass_through()

    flow = transactional(body)
    first, second = apps(flow), apps(flow)
    run = first.start(flow)
    gate.wait_for_arrival()
    gate.open()  # a worker thought dead comes to its commit
    crash(first, reaped_by=second)
    run = second.run(run.id)
    assert result(run) == "after"
    eventually(lambda: len(ledger()) == 1, "one of them has committed")
    [line] = ledger()
    assert last(run, "book").state == "completed"
    assert line == f"attempt {last(run, 'book').attempt}"


@pytest.mark.parametrize("verb", ["skip", "cancel", "pause", "reattempt"])
@both_kinds
def test_a_signal_that_does_not_complete_a_transactional_node_undoes_its_writes(
    apps: Apps, ledger: Any, is_async: bool, verb: str
) -> None:
    def body(self: Any) -> None:
        if self.ctx.attempt == 1:
            getattr(self, verb)()

    flow = transactional(body, is_async)
    run = apps(flow).start(flow)
    wait_for(run, {"skip": "finished", "cancel": "canceled", "pause": "paused"}.get(verb, "finished"))
    assert ledger() == (["attempt 2"] if verb == "reattempt" else [])


@pytest.mark.parametrize("verb", ["finished", "pause after"])
@both_kinds
def test_a_signal_that_completes_a_transactional_node_commits_its_writes(
    apps: Apps, ledger: Any, is_async: bool, verb: str
) -> None:
    """It is recorded as completed, so what it wrote is there."""

    def body(self: Any) -> None:
        if verb == "finished":
            self.finished("early")
        self.pause(after=True)

    flow = transactional(body, is_async)
    run = apps(flow).start(flow)
    wait_for(run, "finished" if verb == "finished" else "paused")
    assert attempts(run, "book") == [("completed", "success")]
    assert ledger() == ["attempt 1"]
    if verb == "finished":
        assert result(run) == "early"
    else:
        run.resume()
        assert result(run) == "after"
        assert ledger() == ["attempt 1"]


def waiting_at(gate: Gate) -> Any:
    """A condition that keeps a node waiting before its transaction begins: SQLite has one writer."""

    def condition(self: Any) -> bool:
        gate.pass_through()
        return False

    return condition


@both_kinds
def test_a_transactional_node_of_a_canceled_run_writes_nothing(
    apps: Apps, ledger: Any, is_async: bool
) -> None:
    """It is recorded as canceled, so nothing that it wrote is there."""
    gate = Gate()
    flow = transactional(lambda self: None, is_async, skip_if=waiting_at(gate))
    app = apps(flow)
    run = app.start(flow)
    gate.wait_for_arrival()
    apps(flow, worker=False).run(run.id).cancel()
    gate.open()
    eventually(lambda: last(run, "book").state == "canceled", "it has ended")
    assert (attempts(run, "book"), ledger()) == ([("canceled", "canceled_by_operator")], [])
    assert (state(run), attempts(run, "after")) == ("canceled", [])


@both_kinds
def test_a_transactional_node_survives_that_its_run_is_given_a_graph_meanwhile(
    apps: Apps, ledger: Any, is_async: bool
) -> None:
    gate = Gate()
    flow = transactional(lambda self: None, is_async, skip_if=waiting_at(gate))
    run = apps(flow).start(flow)
    gate.wait_for_arrival()
    run.pause()
    run.import_graph(run.export_graph())
    gate.open()
    eventually(lambda: last(run, "book").state == "completed", "it has ended")
    run.resume()
    assert result(run) == "after"
    assert (attempts(run, "book"), ledger()) == ([("completed", "success")], ["attempt 1"])


@pytest.mark.parametrize("how", ["freeze", "import"])
def test_a_node_survives_that_its_run_is_given_a_graph_meanwhile(apps: Apps, how: str) -> None:
    gate = Gate()
    flow = one_node(lambda self: gate.pass_through())
    run = apps(flow).start(flow)
    gate.wait_for_arrival()
    if how == "freeze":
        run.freeze()
    else:
        run.pause()
        run.import_graph(run.export_graph())
    gate.open()
    if how == "import":
        eventually(lambda: last(run).state == "completed", "it has ended")
        run.resume()
    assert result(run) == "after"
    assert attempts(run) == [("completed", "success")]
