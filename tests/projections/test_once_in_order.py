"""A projection sees every event once and in order, whoever writes and whoever runs it."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

import detent
from detent import Projection, Recorded, View
from detent.app.deciders import decision_of
from detent.execution.projection import Progress, Runner
from detent.stores.batch import apply as batches
from tests.functions.world import Apps, Gate
from tests.projections.conftest import Timeless
from tests.projections.world import (
    PATIENCE,
    Account,
    Add,
    Say,
    Talk,
    Totals,
    add,
    rows,
    status,
    totals,
    wait,
)


def test_a_projection_keeps_up_with_events(apps: Apps) -> None:
    app = apps(Account, Totals)
    add(app, 1, 2, 3)
    add(app, 10, id="b")
    wait(app, Totals)
    assert totals(app) == {"a": 6, "b": 10}


def test_events_that_were_there_before_are_seen_too(apps: Apps) -> None:
    add(apps(Account), 1, 2, 3)
    app = apps(Totals)
    wait(app, Totals)
    assert totals(app) == {"a": 6}


def at_once(*jobs: Callable[[], Any]) -> None:
    """Do all of it at the same time; raise what one of them raises."""
    errors: list[BaseException] = []

    def guarded(job: Callable[[], Any]) -> None:
        try:
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_two_workers_never_run_one_projection_at_the_same_time_or_miss_an_event(apps: Apps) -> None:
    turn, overlaps = threading.Lock(), []

    class Guarded(Totals):
        batch = 7

        def apply(self, event: Recorded[Any], view: View) -> None:
            if not turn.acquire(blocking=False):
                overlaps.append(event.position)
                return
            try:
                super().apply(event, view)
                view.tx.execute(f"INSERT INTO {view.table('seen')} (position) VALUES ({event.position})")
            finally:
                turn.release()

        def setup(self, view: View) -> None:
            view.tx.execute(f"CREATE TABLE IF NOT EXISTS {view.table('seen')} (position BIGINT PRIMARY KEY)")

    both = [apps(Account, Guarded), apps(Account, Guarded)]

    def writer(app: detent.App, account: str) -> None:
        add(app, *[1] * 25, id=account)

    at_once(*(lambda a=app, n=n: writer(a, f"{n}") for n in range(3) for app in both))
    for app in both:
        wait(app, Guarded)
    assert overlaps == []
    assert totals(both[0], Guarded) == {"0": 50, "1": 50, "2": 50}
    seen = rows(both[0].engine.store, "SELECT position FROM seen_g1 ORDER BY position")
    assert [row[0] for row in seen] == list(range(1, 151))


def test_an_event_whose_transaction_commits_late_is_not_missed(apps: Apps) -> None:
    app, late = apps(Account, Totals), apps(Account, worker=False)
    add(app, 1)
    wait(app, Totals)
    done = threading.Event()

    def overtake() -> None:
        add(app, 100, id="b")
        done.set()

    early = decision_of(late.engine, Account, Add("a", 10), None)
    with late.engine.store.transaction() as tx:
        batches.apply(tx, [early], helpers_wanted=False)  # it has taken position 2, and commits later
        overtaker = threading.Thread(target=overtake)
        overtaker.start()
        assert not done.wait(0.3)  # who comes later cannot commit before it
        assert app.projections.view(Totals).get("last") == 1
    overtaker.join(PATIENCE)
    wait(app, Totals)
    assert totals(app) == {"a": 11, "b": 100}
    assert [e.position for e in app.events(Account, "a")] == [1, 2]
    assert [e.position for e in app.events(Account, "b")] == [3]


def test_a_transaction_that_rolls_back_leaves_no_gap(apps: Apps) -> None:
    app, other = apps(Account, Totals), apps(Account, worker=False)
    add(app, 1)
    try:
        with other.engine.store.transaction() as tx:
            lost = decision_of(other.engine, Account, Add("a", 10), None)
            batches.apply(tx, [lost], helpers_wanted=False)
            raise KeyError
    except KeyError:
        pass
    add(app, 2)
    wait(app, Totals)
    assert totals(app) == {"a": 3}
    assert status(app).position == 2


# A transaction on SQLite keeps everybody else out: there is nothing to see of the row's own lock.
@pytest.mark.parametrize("module_url", ["postgres", "mysql"], indirect=True)
def test_a_batch_in_hand_keeps_the_other_worker_out(apps: Apps) -> None:
    gate, applied = Gate(), []

    class Slow(Projection):
        name = "slow"

        def apply(self, event: Recorded[Any], view: View) -> None:
            applied.append(event.position)
            if len(applied) == 1:
                gate.pass_through()

    first, second = apps(Account, Slow), apps(Account, Slow, worker=False)
    add(second, 1, 2)
    gate.wait_for_arrival()
    runner = Runner(second.engine.services)
    assert runner.advance(second.engine.registry.projection(Slow), 1, 2) is Progress.BUSY
    assert applied == [1]
    gate.open()
    wait(first, Slow)
    assert applied == [1, 2]


def test_a_restart_goes_on_at_the_checkpoint(timeless: Timeless) -> None:
    applied: list[int] = []

    class Listed(Projection):
        name = "listed"

        def apply(self, event: Recorded[Any], view: View) -> None:
            applied.append(event.position)
            view["count"] = view.get("count", 0) + 1

    first = timeless(Listed)
    add(first, 1, 1, 1)
    first.settle_down()
    first.close()
    second = timeless(Listed)
    second.settle_down()
    assert applied == [1, 2, 3]
    add(second, 1)
    second.settle_down()
    assert applied == [1, 2, 3, 4]
    assert second.projections.view(Listed).get("count") == 4


def test_only_events_of_its_deciders_come_and_the_checkpoint_passes_the_others(timeless: Timeless) -> None:
    heard: list[str] = []

    class Words(Projection):
        name = "words"
        deciders = (Talk,)

        def apply(self, event: Recorded[Any], view: View) -> None:
            heard.append(event.event.word)

    app = timeless(Words)
    add(app, 1, 2)
    app.execute(Talk, Say("t", "hello"))
    add(app, 3)
    app.settle_down()
    assert heard == ["hello"]
    assert (status(app).position, status(app).lag) == (4, 0)


def test_a_long_backlog_is_taken_in_batches(timeless: Timeless) -> None:
    class Small(Totals):
        batch = 2

    app = timeless(Small)
    add(app, *[1] * 9)
    app.settle_down()
    assert totals(app, Small) == {"a": 9}


def test_removed_events_do_not_stop_a_projection(timeless: Timeless) -> None:
    class Counted(Projection):
        name = "counted"

        def apply(self, event: Recorded[Any], view: View) -> None:
            view["count"] = view.get("count", 0) + 1

    writer = timeless(worker=False)
    add(writer, 1, 1, 1)
    store = writer.engine.store
    with store._writer.transaction() as tx:
        tx.run("DELETE FROM detent_events WHERE position IN (1, 3)")
    app = timeless(Counted)
    app.settle_down()
    assert app.projections.view(Counted).get("count") == 1
    assert status(app).position == 3


def test_the_lag_is_seen_in_events_and_in_time(timeless: Timeless) -> None:
    app = timeless(Totals, worker=False)
    add(app, 1, 1)
    app.clock.advance(minutes=5)
    add(app, 1)
    seen = status(app)
    assert (seen.position, seen.head, seen.lag) == (0, 3, 3)
    app.open(worker=True)
    app.settle_down()
    seen = status(app)
    assert (seen.position, seen.lag, seen.age) == (3, 0, None)
    app.close()
    app.open(worker=False)
    add(app, 1, 1)
    app.clock.advance(minutes=7)
    seen = status(app)
    assert (seen.lag, seen.age and seen.age.total_seconds()) == (2, 420)
