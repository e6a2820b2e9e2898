"""The projector: when it looks, when it rests, how it ends."""

import threading
from typing import Any

import pytest

from detent import Projection, Recorded, View
from detent.app.deciders import decision_of
from detent.errors import DatabaseUnavailable
from detent.stores.batch import apply as batches
from detent.stores.driver import Tx
from detent.stores.verbs import projections as stored
from tests.functions.world import Apps, Gate, eventually
from tests.projections.conftest import Timeless
from tests.projections.world import Account, Add, Totals, add, rows, status, totals, wait


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the looks at the table of generations."""
    seen: list[int] = []
    generations = stored.generations

    def counted(tx: Tx) -> Any:
        found = generations(tx)
        seen.append(found[1])
        return found

    monkeypatch.setattr(stored, "generations", counted)
    return seen


def test_an_idle_worker_does_not_look(timeless: Timeless, looks: list[int]) -> None:
    app = timeless(Totals)
    # A listener that has just begun reports news that it may have missed, on MySQL for half a second.
    app.engine._listening.stop()
    add(app, 1)
    app.settle_down()
    before = len(looks)
    assert app.engine.worker is not None
    for _ in range(5):
        app.engine.worker._heartbeat.beat()
    app.settle_down()
    assert len(looks) == before


def test_a_worker_without_projections_begins_no_projector(timeless: Timeless, looks: list[int]) -> None:
    app = timeless()
    add(app, 1)
    app.settle_down()
    assert app.engine.worker is not None
    assert app.engine.worker.projector._thread is None
    assert looks == []


def test_events_of_another_process_are_seen_at_the_next_beat(timeless: Timeless, looks: list[int]) -> None:
    app = timeless(Totals)
    add(app, 1)
    app.settle_down()
    other = timeless(worker=False)
    operation = decision_of(other.engine, Account, Add("a", 2), None)
    with other.engine.store.transaction() as tx:  # a commit of which nobody is told
        batches.apply(tx, [operation], helpers_wanted=False)
    assert app.engine.worker is not None
    app.engine.worker._heartbeat.beat()
    app.settle_down()
    assert totals(app) == {"a": 3}


def test_a_process_without_a_worker_tells_those_that_have_one(apps: Apps) -> None:
    worker, client = apps(Account, Totals), apps(Account, Totals, worker=False)
    add(client, 1, 2)
    wait(client, Totals)
    assert totals(client) == {"a": 3}
    assert status(worker).position == 2


def test_closing_commits_what_was_applied_and_leaves_the_rest(apps: Apps) -> None:
    gate = Gate()

    class Slow(Totals):
        def apply(self, event: Recorded[Any], view: View) -> None:
            super().apply(event, view)
            if event.position == 2:
                gate.pass_through()

    client = apps(Account, Slow, worker=False)
    add(client, 1, 2, 3)
    app = apps(Slow)
    gate.wait_for_arrival()
    closing = threading.Thread(target=app.close)
    closing.start()
    assert app.engine.worker is not None
    eventually(app.engine.worker.projector._runner.ending.is_set)
    gate.open()
    closing.join()
    assert status(client).position == 2
    assert totals(client, Slow) == {"a": 3}
    again = apps(Slow)
    wait(again, Slow)
    assert totals(again, Slow) == {"a": 6}


def test_a_worker_that_crashes_commits_nothing_more(apps: Apps) -> None:
    gate = Gate()

    class Slow(Totals):
        def apply(self, event: Recorded[Any], view: View) -> None:
            super().apply(event, view)
            if event.position == 2 and not gate._open.is_set():
                gate.pass_through()

    client = apps(Account, Slow, worker=False)
    add(client, 1, 2, 3)
    app = apps(Slow)
    gate.wait_for_arrival()
    worker = app.engine.worker
    assert worker is not None
    vanishing = threading.Thread(target=worker.crash)
    vanishing.start()
    eventually(worker.projector._runner.crashed.is_set)
    gate.open()
    vanishing.join()
    assert status(client).position == 0
    assert totals(client, Slow) == {}


def test_a_batch_ends_when_its_time_is_up(timeless: Timeless, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detent.execution.projection.BUDGET", 0.0)
    batches: list[int] = []
    save = stored.save

    def saved(tx: Tx, row: Any) -> None:
        batches.append(row.position)
        save(tx, row)

    writer = timeless(worker=False)
    add(writer, 1, 1, 1)
    monkeypatch.setattr(stored, "save", saved)
    app = timeless(Totals)
    app.settle_down()
    assert batches == [0, 1, 2, 3]  # its setup, and each event for itself
    assert totals(app) == {"a": 3}


def test_a_teardown_that_fails_is_tried_again(timeless: Timeless) -> None:
    class Clinging(Totals):
        refuses = True

        def teardown(self, view: View) -> None:
            if self.refuses:
                raise ValueError("not yet")

    app = timeless(Clinging)
    add(app, 1)
    app.settle_down()
    app.projections.rebuild(Clinging)
    app.settle_down()
    app.clock.advance(seconds=30)
    app.settle_down()
    assert [seen.blocked for seen in app.projections.status()] == [False]
    left = "SELECT generation, failures FROM detent_projections ORDER BY generation"
    assert rows(app.engine.store, left) == [(1, 1), (2, 0)]
    Clinging.refuses = False
    app.clock.advance(seconds=1)
    app.settle_down()
    assert rows(app.engine.store, left) == [(2, 0)]


def test_a_large_generation_is_dropped_in_pieces(timeless: Timeless, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "DROPPED_AT_ONCE", 4)

    class Many(Projection):
        name = "many"

        def apply(self, event: Recorded[Any], view: View) -> None:
            for number in range(10):
                view[f"{number}"] = number

    app = timeless(Many)
    add(app, 1)
    app.settle_down()
    app.projections.rebuild(Many)
    app.settle_down()
    app.clock.advance(seconds=30)
    app.settle_down()
    kept = "SELECT generation, COUNT(*) FROM detent_views GROUP BY generation"
    assert rows(app.engine.store, kept) == [(2, 10)]
    assert rows(app.engine.store, "SELECT generation FROM detent_projections") == [(2,)]


def test_a_database_that_is_lost_in_a_batch_is_waited_for(
    timeless: Timeless, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = timeless(Totals)
    app.settle_down()
    lost: list[int] = []
    save = stored.save

    def losing(tx: Tx, row: Any) -> None:
        if len(lost) < 3:
            lost.append(row.position)
            raise DatabaseUnavailable("it", "was cut off")
        save(tx, row)

    monkeypatch.setattr(stored, "save", losing)
    add(app, 1, 2)
    app.settle_down()
    assert len(lost) == 3
    assert (totals(app), status(app).failures) == ({"a": 3}, 0)
