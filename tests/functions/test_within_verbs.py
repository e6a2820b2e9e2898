"""Sending, cancelling and deciding in the transaction of the user, as starting does."""

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest

import detent
from detent import Decider, Decision, step, workflow
from detent.errors import DetentError, InvalidArgument, InvalidState, RunNotFound
from detent.kernel.external_changes import Change
from detent.stores import store as store_module
from detent.stores.driver import Tx
from tests.functions.test_within import ASYNC_KINDS, connect, opened
from tests.functions.world import Apps, failure, result, state, wait_for, wait_parked


@workflow
def wait() -> str:
    return str(detent.receive("go"))


@dataclass(frozen=True)
class Add:
    id: str
    amount: int


@dataclass(frozen=True)
class Added:
    amount: int


class Tally(Decider[int, Add, Added, None]):
    type = "tally"

    def initial(self) -> int:
        return 0

    def decide(self, state: int, input: Add, now: datetime) -> Decision:
        return Decision.event(Added(input.amount))

    def evolve(self, state: int, event: Added) -> int:
        return state + event.amount


def test_a_message_arrives_if_and_only_if_the_transaction_commits(apps: Apps, url: str) -> None:
    app = apps(wait)
    run = app.start(wait)
    wait_parked(run)
    connection = connect(url)
    app.within(connection).send(run, "go", "lost")
    connection.rollback()
    app.within(connection).send(run.id, "go", "kept", id="m-1")
    app.within(connection).send(run.id, "go", "kept", id="m-1")
    assert state(run) == "ready"
    connection.commit()
    assert result(run) == "kept"
    with pytest.raises(InvalidState):
        app.within(connection).send(run, "go", "late")
    with pytest.raises(RunNotFound):
        app.within(connection).send("nobody", "go")
    with pytest.raises(InvalidArgument):
        app.within(connection).send(run, "")
    app.within(connection).start(wait)  # the transaction goes on
    connection.commit()
    connection.close()
    assert len(app.runs(type=wait)) == 2


def test_a_run_is_canceled_if_and_only_if_the_transaction_commits(apps: Apps, url: str) -> None:
    app = apps(wait)
    run = app.start(wait)
    wait_parked(run)
    connection = connect(url)
    app.within(connection).cancel(run, reason="lost")
    connection.rollback()
    assert state(run) == "ready"
    app.within(connection).cancel(run, reason="sold out")
    with pytest.raises(InvalidState):
        app.within(connection).cancel(run)
    connection.commit()
    connection.close()
    wait_for(run, "canceled")
    assert {"reason": "sold out"} in [event.detail for event in run.history()]


def test_an_input_is_decided_if_and_only_if_the_transaction_commits(apps: Apps, url: str) -> None:
    app = apps(Tally)
    app.execute(Tally, Add("t", 1))
    connection = connect(url)
    assert app.within(connection).execute(Tally, Add("t", 10)) == [Added(10)]
    connection.rollback()
    here = app.within(connection)
    assert here.execute(Tally, Add("t", 100), input_id="i-1") == [Added(100)]
    assert here.execute(Tally, Add("t", 100), input_id="i-1") == []
    assert here.execute(Tally, Add("t", 1000)) == [Added(1000)]
    connection.commit()
    connection.close()
    assert app.execute(Tally, Add("t", 10_000)) == [Added(10_000)]
    assert app.state_at(Tally, "t") == 11_101


def test_a_resume_reports_the_hero_only_when_another_run_has_it(
    apps: Apps, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = apps(wait)
    run = app.options(hero=("Order", 7)).start(wait)
    run.pause()

    def violate(tx: Tx, change: Change[Any], now: int) -> None:
        for _ in range(2):
            tx.run("INSERT INTO detent_waits (target, run_id, node) VALUES ('a', 'b', 'c')")

    connection = connect(url)
    with monkeypatch.context() as patched:
        patched.setattr(store_module, "perform", violate)
        with pytest.raises(Exception) as caught:
            app.within(connection).resume(run)
    connection.rollback()
    connection.close()
    assert not isinstance(caught.value, DetentError)
    assert state(run) == "paused"


def test_operator_verbs_and_values_are_written_if_and_only_if_the_transaction_commits(
    apps: Apps, url: str
) -> None:
    app = apps(wait)
    run, other = app.start(wait), app.start(wait)
    wait_parked(run)
    wait_parked(other)
    other.pause()
    connection = connect(url)

    def write() -> None:
        here = app.within(connection)
        here.publish(run, "progress", 1)
        here.append(run.id, "log", "one")
        here.append(run, "log", "two")
        here.set_attributes(run, {"seen": 1})
        here.pause(run, reason="maintenance")
        here.resume(other)

    write()
    connection.rollback()
    assert (state(run), state(other), run.attributes) == ("ready", "paused", {})
    assert (run.published("progress"), list(run.stream("log", follow=False))) == (None, [])
    write()
    connection.commit()
    assert (state(run), state(other), run.attributes) == ("paused", "ready", {"seen": 1})
    assert (run.published("progress"), list(run.stream("log", follow=False))) == (1, ["one", "two"])
    for verb in ("pause", "resume"):
        with pytest.raises(InvalidState):
            getattr(app.within(connection), verb)(run if verb == "pause" else other)
    with pytest.raises(RunNotFound):
        app.within(connection).append("nobody", "log", 1)
    with pytest.raises(InvalidArgument):
        app.within(connection).publish(run, "", 1)
    connection.close()
    run.cancel()
    other.cancel()


def test_a_transactional_step_sends_and_cancels_with_its_own_transaction(apps: Apps) -> None:
    attempts: list[int] = []

    @step(transactional=True, retry=detent.Retry(attempts=2, first=0))
    def tell(tx: Any, waiting: str, doomed: str) -> None:
        attempts.append(1)
        app.within(tx).send(waiting, "go", len(attempts))
        app.within(tx).cancel(doomed)
        if len(attempts) == 1:
            raise ConnectionError

    @workflow
    def flow(waiting: str, doomed: str) -> None:
        tell(waiting, doomed)

    app = apps(flow, wait, tell)
    waiting, doomed = app.start(wait), app.start(wait)
    for run in (waiting, doomed):
        wait_parked(run)
    result(app.start(flow, waiting.id, doomed.id))
    assert result(waiting) == "2"
    wait_for(doomed, "canceled")


def test_the_body_of_a_workflow_has_no_transaction_to_join(apps: Apps, url: str) -> None:
    @workflow
    def flow(other: str) -> None:
        connection = connect(url)
        try:
            app.within(connection).send(other, "go")
        finally:
            connection.close()

    app = apps(flow, wait)
    error = failure(app.start(flow, app.start(wait).id))
    assert isinstance(error, InvalidState)
    assert "do it in a step" in str(error)


@pytest.mark.parametrize(("module_url", "kind"), ASYNC_KINDS, indirect=["module_url"])
def test_the_same_with_async_connections(url: str, kind: str) -> None:
    async def program() -> None:
        async with detent.AsyncApp(url, include=[wait, Tally]) as app:
            waiting, doomed = await app.start(wait), await app.start(wait)
            async with opened(url, kind) as (connection, _, rollback):
                await write(app.within(connection), waiting.id, doomed.id)
                await rollback()
            assert await app.execute(Tally, Add("t", 1)) == [Added(1)]
            async with opened(url, kind) as (connection, commit, _):
                await write(app.within(connection), waiting.id, doomed.id)
                await commit()
            assert await waiting.result(timeout=20) == "yes"
            assert await app.state_at(Tally, "t") == 6
            assert (await doomed.refresh()).state == "canceled"
            assert (doomed.attributes, await doomed.published("progress")) == ({"seen": 1}, 1)
            assert [value async for value in doomed.stream("log", follow=False)] == ["one"]

    async def write(here: Any, waiting: str, doomed: str) -> None:
        await here.publish(doomed, "progress", 1)
        await here.append(doomed, "log", "one")
        await here.set_attributes(doomed, {"seen": 1})
        await here.pause(doomed)
        await here.resume(doomed)
        await here.send(waiting, "go", "yes")
        await here.cancel(doomed, reason="sold out")
        assert await here.execute(Tally, Add("t", 5)) == [Added(5)]

    asyncio.run(program())
