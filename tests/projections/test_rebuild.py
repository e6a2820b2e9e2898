"""A rebuild goes on beside the live read model, and takes its place when it has come as far."""

import threading
from typing import Any

import pytest

from detent import Projection, Recorded, View
from detent.errors import InvalidState
from detent.execution import projection as projecting
from detent.stores.open import open_store
from tests.functions.world import Apps, Gate, eventually
from tests.projections.conftest import Timeless
from tests.projections.world import Account, Totals, add, rows, status, totals, wait


class Ledger(Projection):
    """Keeps its amounts in a table of its own."""

    name = "ledger"
    factor = 1

    def setup(self, view: View) -> None:
        view.tx.execute(
            f"CREATE TABLE IF NOT EXISTS {view.table('ledger')} (position BIGINT PRIMARY KEY, amount BIGINT)"
        )

    def apply(self, event: Recorded[Any], view: View) -> None:
        amount = event.event.amount * self.factor
        view.tx.execute(
            f"INSERT INTO {view.table('ledger')} (position, amount) VALUES ({event.position}, {amount})"
        )
        view["sum"] = view.get("sum", 0) + amount

    def teardown(self, view: View) -> None:
        view.tx.execute(f"DROP TABLE IF EXISTS {view.table('ledger')}")


def amounts(app: Any, projection: Any = Ledger) -> list[int]:
    """What the live table holds."""
    table = app.projections.view(projection).table("ledger")
    return [row[0] for row in rows(app.engine.store, f"SELECT amount FROM {table} ORDER BY position")]


def test_its_own_tables_are_written_with_the_checkpoint(timeless: Timeless) -> None:
    app = timeless(Ledger)
    add(app, 1, 2, 3)
    app.settle_down()
    assert amounts(app) == [1, 2, 3]
    assert app.projections.view(Ledger).table("ledger") == "ledger_g1"


def test_the_tables_are_there_before_the_first_event(timeless: Timeless) -> None:
    app = timeless(Ledger)
    app.settle_down()
    assert amounts(app) == []


def test_a_rebuild_takes_the_place_of_the_live_one(timeless: Timeless) -> None:
    class Fixed(Ledger):
        factor = 1

    app = timeless(Fixed)
    add(app, 1, 2)
    app.settle_down()
    Fixed.factor = 10
    assert app.projections.rebuild(Fixed) == 2
    app.settle_down()
    assert (status(app).generation, status(app).state) == (2, "live")
    assert amounts(app, Fixed) == [10, 20]
    assert app.projections.view(Fixed).table("ledger") == "ledger_g2"
    assert app.projections.view(Fixed).get("sum") == 30
    add(app, 3)
    app.settle_down()
    assert amounts(app, Fixed) == [10, 20, 30]


def test_the_old_generation_stays_for_its_last_readers_and_then_goes(timeless: Timeless) -> None:
    app = timeless(Ledger)
    add(app, 1, 2)
    app.settle_down()
    app.projections.rebuild(Ledger)
    app.settle_down()
    store = app.engine.store
    assert rows(store, "SELECT amount FROM ledger_g1 ORDER BY position") == [(1,), (2,)]
    app.clock.advance(seconds=30)
    app.settle_down()
    assert rows(store, "SELECT generation FROM detent_projections") == [(2,)]
    assert rows(store, "SELECT generation, item_key FROM detent_views") == [(2, "sum")]
    with pytest.raises(Exception, match="ledger_g1"):
        rows(store, "SELECT amount FROM ledger_g1")


# Beside each other in time: not on SQLite, where only one writes.
@pytest.mark.parametrize("module_url", ["postgres", "mysql"], indirect=True)
def test_the_live_one_goes_on_while_another_is_rebuilt(apps: Apps, monkeypatch: pytest.MonkeyPatch) -> None:
    # In its last batch it holds the live one: let it not be near in the first.
    monkeypatch.setattr(projecting, "NEAR", 0)
    gate = Gate()

    class Slow(Totals):
        batch = 1

        def apply(self, event: Recorded[Any], view: View) -> None:
            if view.generation == 2 and event.position == 1:
                gate.pass_through()
            super().apply(event, view)

    one, other = apps(Account, Slow), apps(Account, Slow)
    add(one, 1, 2, 3)
    wait(one, Slow)
    one.projections.rebuild(Slow)
    gate.wait_for_arrival()
    add(one, 4)
    wait(other, Slow)
    assert totals(one, Slow) == {"a": 10}
    assert {seen.state for seen in one.projections.status()} == {"live", "rebuilding"}
    gate.open()
    eventually(lambda: [seen.generation for seen in one.projections.status()] == [2])
    wait(one, Slow)
    assert totals(one, Slow) == {"a": 10}


def test_a_rebuild_catches_up_while_events_come_in(apps: Apps) -> None:
    class Small(Totals):
        batch = 5

    one, other = apps(Account, Small), apps(Account, Small)
    add(one, *[1] * 40)
    wait(one, Small)
    over, written = threading.Event(), [40]

    def write() -> None:
        while not over.is_set():
            add(other, 1)
            written[0] += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        one.projections.rebuild(Small)
        eventually(lambda: [seen.generation for seen in one.projections.status()] == [2])
    finally:
        over.set()
        writer.join()
    wait(one, Small)
    assert totals(one, Small) == {"a": written[0]}


def test_readers_never_see_less_than_before_the_swap(apps: Apps) -> None:
    app = apps(Account, Totals)
    add(app, *[1] * 30)
    wait(app, Totals)
    lowest = 30
    app.projections.rebuild(Totals)
    while status_generation(app) == 1:
        lowest = min(lowest, totals(app)["a"])
    assert min(lowest, totals(app)["a"]) == 30


def status_generation(app: Any) -> int:
    live = [seen.generation for seen in app.projections.status() if seen.state == "live"]
    assert len(live) == 1
    return int(live[0])


def test_a_rebuild_under_way_is_not_begun_twice(timeless: Timeless) -> None:
    app = timeless(Totals)
    add(app, 1)
    app.settle_down()
    app.close()
    client = timeless(Totals, worker=False)
    client.projections.rebuild(Totals)
    with pytest.raises(InvalidState, match="restart=True"):
        client.projections.rebuild(Totals)
    assert client.projections.rebuild(Totals, restart=True) == 3
    again = timeless(Totals)
    again.settle_down()
    assert [seen.generation for seen in again.projections.status()] == [3]
    again.clock.advance(seconds=30)
    again.settle_down()
    assert rows(again.engine.store, "SELECT generation FROM detent_projections") == [(3,)]
    assert totals(again) == {"a": 1}


def test_a_rebuild_asked_for_elsewhere_is_heard_of(apps: Apps) -> None:
    app = apps(Account, Totals)
    add(app, 1, 2)
    wait(app, Totals)
    apps(Account, Totals, worker=False).projections.rebuild(Totals)
    eventually(lambda: status_generation(app) == 2)
    assert totals(app) == {"a": 3}


def test_a_rebuild_that_is_blocked_leaves_the_live_one_alone(timeless: Timeless) -> None:
    class Broken(Totals):
        def apply(self, event: Recorded[Any], view: View) -> None:
            if view.generation == 2:
                raise ValueError("new code")
            super().apply(event, view)

    app = timeless(Broken)
    add(app, 1)
    app.settle_down()
    app.projections.rebuild(Broken)
    app.settle_down()
    add(app, 2)
    app.settle_down()
    assert totals(app, Broken) == {"a": 3}
    assert (status(app, 1).state, status(app, 1).blocked) == ("live", False)
    assert (status(app, 2).state, status(app, 2).blocked) == ("rebuilding", True)


def test_a_rebuild_by_mended_code_replaces_a_blocked_one(timeless: Timeless) -> None:
    class Mended(Totals):
        def apply(self, event: Recorded[Any], view: View) -> None:
            if view.generation == 1 and event.position == 2:
                raise ValueError("old code")
            super().apply(event, view)

    app = timeless(Mended)
    add(app, 1, 2, 3)
    app.settle_down()
    assert status(app).blocked_at == 2
    app.projections.rebuild(Mended)
    app.settle_down()
    assert (status(app).generation, status(app).blocked) == (2, False)
    assert totals(app, Mended) == {"a": 6}


def test_poison_in_the_last_stretch_of_a_rebuild_loses_nothing_before_it(timeless: Timeless) -> None:
    class Late(Totals):
        batch = 2
        broken = True

        def apply(self, event: Recorded[Any], view: View) -> None:
            if view.generation == 2 and event.position == 8 and self.broken:
                raise ValueError("in a batch that is longer than usual, to catch up with the live one")
            super().apply(event, view)

    app = timeless(Late)
    add(app, *[1] * 10)
    app.settle_down()
    app.projections.rebuild(Late)
    app.settle_down()
    assert (status(app, 2).position, status(app, 2).blocked_at) == (7, 8)
    Late.broken = False
    app.clock.advance(seconds=1)
    app.settle_down()
    assert (status(app).generation, status(app).blocked) == (2, False)
    assert totals(app, Late) == {"a": 10}


# Code of several versions


class Second(Totals):
    version = 2

    def apply(self, event: Recorded[Any], view: View) -> None:
        super().apply(event, view)
        view["newest"] = 2


def test_code_of_a_higher_version_rebuilds_by_itself(timeless: Timeless) -> None:
    old = timeless(Totals)
    add(old, 1, 2)
    old.settle_down()
    new = timeless(Second)
    new.settle_down()
    assert (status(new).generation, status(new).version) == (2, 2)
    assert new.projections.view(Second).get("newest") == 2
    assert totals(new, Second) == {"a": 3}


def test_code_of_a_lower_version_neither_rebuilds_nor_writes(timeless: Timeless) -> None:
    new = timeless(Second)
    add(new, 1)
    new.settle_down()
    new.close()
    old = timeless(Totals)
    add(old, 2)
    old.settle_down()
    assert [(seen.version, seen.position) for seen in old.projections.status()] == [(2, 1)]
    again = timeless(Second)
    again.settle_down()
    assert totals(again, Second) == {"a": 3}


def test_a_rebuild_by_code_of_a_lower_version_is_done_when_asked_for(timeless: Timeless) -> None:
    new = timeless(Second)
    add(new, 1)
    new.settle_down()
    new.close()
    old = timeless(Totals)
    old.projections.rebuild(Totals)
    old.settle_down()
    assert (status(old).generation, status(old).version) == (2, 1)


def test_two_workers_of_a_new_version_begin_one_rebuild(apps: Apps, url: str) -> None:
    first = apps(Account, Totals)
    add(first, *[1] * 5)
    wait(first, Totals)
    both = [apps(Account, Second), apps(Account, Second)]
    eventually(lambda: [seen.version for seen in both[0].projections.status()] == [2])
    store = open_store(url)
    try:
        assert rows(store, "SELECT MAX(generation) FROM detent_projections") == [(2,)]
    finally:
        store.close()
