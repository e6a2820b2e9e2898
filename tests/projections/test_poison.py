"""An event that cannot be applied blocks its projection: visibly, until it is fixed or skipped."""

from datetime import timedelta
from typing import Any

import pytest

from detent import AsyncView, Projection, Recorded, Retry, View
from detent.errors import DatabaseUnavailable, ProjectionBehind, ProjectionBlocked, ProjectionNotBlocked
from detent.execution.transactions import Transaction
from detent.stores.driver import Trouble
from tests.functions.world import eventually
from tests.projections.conftest import Timeless
from tests.projections.world import Say, Talk, Totals, add, rows, status, totals


class Picky(Totals):
    """Refuses certain amounts."""

    def __init__(self, *refused: int, error: Exception | None = None) -> None:
        self.refused = set(refused)
        self.error = error or ValueError("no such amount")
        self.tries: list[int] = []

    def apply(self, event: Recorded[Any], view: View) -> None:
        self.tries.append(event.position)
        super().apply(event, view)
        if event.event.amount in self.refused:
            raise self.error


def test_a_poison_event_blocks_and_all_before_it_is_done(timeless: Timeless) -> None:
    app = timeless(Picky(13))
    add(app, 1, 2, 13, 4)
    app.settle_down()
    seen = status(app)
    assert (seen.blocked, seen.position, seen.blocked_at, seen.failures) == (True, 2, 3, 1)
    assert seen.error == "ValueError: no such amount"
    assert seen.lag == 2
    assert totals(app, Picky) == {"a": 3}


def test_waiting_for_a_blocked_projection_says_why(timeless: Timeless) -> None:
    app = timeless(Picky(13))
    add(app, 1, 13)
    app.settle_down()
    with pytest.raises(ProjectionBlocked, match=r"position 2 \(ValueError: no such amount\)"):
        app.projections.wait(Picky)
    app.projections.wait(Picky, position=1)


def test_waiting_ends_after_a_timeout(timeless: Timeless) -> None:
    app = timeless(Totals, worker=False)
    add(app, 1)
    with pytest.raises(ProjectionBehind, match="has reached position 0, not 1;"):
        app.projections.wait(Totals, timeout=0)


def test_a_poison_event_is_tried_again_ever_more_patiently(timeless: Timeless) -> None:
    picky = Picky(13)
    app = timeless(picky)
    add(app, 13)
    app.settle_down()
    assert picky.tries == [1]
    for seconds, failures in ((1, 2), (2, 3), (4, 4)):
        app.clock.advance(seconds=seconds - 0.001)
        app.settle_down()
        assert status(app).failures == failures - 1
        app.clock.advance(seconds=0.001)
        app.settle_down()
        assert status(app).failures == failures
    assert picky.tries == [1] * 4


def test_a_class_says_how_patiently(timeless: Timeless) -> None:
    class Eager(Picky):
        retry = Retry(first=timedelta(milliseconds=10), factor=1, attempts=2)

    app = timeless(Eager(13))
    add(app, 13)
    app.settle_down()
    app.clock.advance(seconds=0.01)
    app.settle_down()
    assert status(app).failures == 2


def test_it_goes_on_by_itself_once_it_is_fixed(timeless: Timeless) -> None:
    picky = Picky(13)
    app = timeless(picky)
    add(app, 1, 13, 4)
    app.settle_down()
    picky.refused.clear()
    app.clock.advance(seconds=1)
    app.settle_down()
    seen = status(app)
    assert (seen.blocked, seen.failures, seen.error, seen.position) == (False, 0, None, 3)
    assert totals(app, Picky) == {"a": 18}


def test_failures_are_counted_for_each_event(timeless: Timeless) -> None:
    picky = Picky(13, 14)
    app = timeless(picky)
    add(app, 13, 1, 14)
    app.settle_down()
    app.clock.advance(seconds=1)
    app.settle_down()
    assert (status(app).blocked_at, status(app).failures) == (1, 2)
    picky.refused.discard(13)
    app.clock.advance(seconds=2)
    app.settle_down()
    assert (status(app).blocked_at, status(app).failures) == (3, 1)


class Tolerant(Picky):
    """Does not insist on seeing everything."""

    def apply(self, event: Recorded[Any], view: View) -> None:
        view["last"] = event.position - 1
        super().apply(event, view)


def test_an_operator_skips_exactly_the_event_that_blocks(timeless: Timeless) -> None:
    app = timeless(Tolerant(13))
    add(app, 1, 13, 4)
    app.settle_down()
    assert app.projections.skip(Tolerant) == 2
    app.settle_down()
    assert totals(app, Tolerant) == {"a": 5}
    assert (status(app).blocked, status(app).position) == (False, 3)
    history = rows(
        app.engine.store, "SELECT event, detail FROM detent_history WHERE run_id = 'projection:totals'"
    )
    [(event, detail)] = history
    assert event == "skipped"
    assert '"position":2' in detail


def test_what_is_not_blocked_cannot_be_skipped(timeless: Timeless) -> None:
    app = timeless(Tolerant(13))
    add(app, 1)
    app.settle_down()
    with pytest.raises(ProjectionNotBlocked, match="nothing to skip"):
        app.projections.skip(Tolerant)
    assert status(app).position == 1


def test_only_the_event_that_was_meant_is_skipped(timeless: Timeless) -> None:
    app = timeless(Tolerant(13))
    add(app, 1, 13)
    app.settle_down()
    with pytest.raises(ProjectionNotBlocked):
        app.projections.skip(Tolerant, position=1)
    assert app.projections.skip(Tolerant, position=2) == 2


def test_an_event_that_cannot_be_read_is_poison(timeless: Timeless) -> None:
    writer = timeless(worker=False)
    add(writer, 1, 2, 3)
    with writer.engine.store._writer.transaction() as tx:
        tx.run("UPDATE detent_events SET type = 'Gone' WHERE position = 2")
    app = timeless(Tolerant())
    app.settle_down()
    assert status(app).blocked_at == 2
    assert "UnreadableEvent: event 2 of account:a (Gone, position 2)" in (status(app).error or "")
    app.projections.skip(Tolerant)
    app.settle_down()
    assert totals(app, Tolerant) == {"a": 4}


def test_an_event_whose_sql_fails_is_poison_and_leaves_nothing(timeless: Timeless) -> None:
    class Ledger(Projection):
        name = "ledger"

        def setup(self, view: View) -> None:
            table = view.table("ledger")
            view.tx.execute(f"CREATE TABLE IF NOT EXISTS {table} (amount INTEGER PRIMARY KEY)")

        def apply(self, event: Recorded[Any], view: View) -> None:
            table = view.table("ledger")
            view.tx.execute(f"INSERT INTO {table} (amount) VALUES ({event.event.amount})")

    app = timeless(Ledger)
    add(app, 1, 2, 1, 4)
    app.settle_down()
    assert status(app).blocked_at == 3
    ledger = "SELECT amount FROM ledger_g1 ORDER BY amount"
    assert rows(app.engine.store, ledger) == [(1,), (2,)]
    app.projections.skip(Ledger)
    app.settle_down()
    assert rows(app.engine.store, ledger) == [(1,), (2,), (4,)]


@pytest.mark.parametrize("module_url", ["postgres"], indirect=True)
def test_a_transaction_that_was_broken_in_silence_is_traced_to_its_event(timeless: Timeless) -> None:
    class Silent(Projection):
        name = "silent"

        def apply(self, event: Recorded[Any], view: View) -> None:
            view["seen"] = event.position
            if event.event.amount == 13:
                try:
                    view.tx.execute("SELECT * FROM nowhere")
                except Exception:
                    return

    app = timeless(Silent)
    add(app, 1, 2, 13)
    app.settle_down()
    assert (status(app).position, status(app).blocked_at) == (2, 3)
    assert app.projections.view(Silent).get("seen") == 2


def test_another_database_that_is_away_is_poison_too(timeless: Timeless) -> None:
    app = timeless(Picky(13, error=DatabaseUnavailable("Redis", "not here")))
    add(app, 1, 13)
    app.settle_down()
    assert (status(app).blocked_at, status(app).failures) == (2, 1)


def test_our_own_database_that_is_away_is_not(timeless: Timeless, monkeypatch: pytest.MonkeyPatch) -> None:
    picky = Picky(13, error=DatabaseUnavailable("ours", "not here"))
    app = timeless(picky)
    monkeypatch.setattr("detent.execution.projection._Each._answers", lambda self: not picky.refused)
    add(app, 13)
    eventually(lambda: len(picky.tries) > 1)
    seen = status(app).failures
    picky.refused.clear()
    app.settle_down()
    assert seen == 0
    assert totals(app, Picky) == {"a": 13}


def test_a_database_that_refuses_writes_is_not_poison(
    timeless: Timeless, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, a server that became read-only: it answers what only reads."""

    class Refused(Exception):
        pass

    class Writing(Totals):
        tries = 0

        def apply(self, event: Recorded[Any], view: View) -> None:
            type(self).tries += 1
            super().apply(event, view)
            view.tx.execute("SELECT 1")

    app = timeless(Writing)
    driver: Any = app.engine.store.driver
    trouble = driver.trouble
    monkeypatch.setattr(
        driver, "trouble", lambda error: Trouble.GONE if isinstance(error, Refused) else trouble(error)
    )
    cursor = Transaction.cursor

    def refuse(self: Transaction) -> Any:
        if Writing.tries < 3:
            raise Refused
        return cursor(self)

    monkeypatch.setattr(Transaction, "cursor", refuse)
    add(app, 1)
    eventually(lambda: totals(app, Writing) == {"a": 1})
    assert Writing.tries == 3
    assert status(app).failures == 0


def test_a_deadlock_is_not_poison(timeless: Timeless, monkeypatch: pytest.MonkeyPatch) -> None:
    class Deadlock(Exception):
        pass

    class Unlucky(Totals):
        tries = 0

        def apply(self, event: Recorded[Any], view: View) -> None:
            super().apply(event, view)
            type(self).tries += 1
            if self.tries < 4:
                raise Deadlock

    app = timeless(Unlucky, worker=False)
    driver: Any = app.engine.store.driver
    trouble = driver.trouble
    monkeypatch.setattr(
        driver, "trouble", lambda error: Trouble.RETRY if isinstance(error, Deadlock) else trouble(error)
    )
    add(app, 1, 2)
    app.open(worker=True)
    app.settle_down()
    assert Unlucky.tries == 5
    assert (totals(app, Unlucky), status(app).failures) == ({"a": 3}, 0)


def test_a_setup_that_fails_blocks_and_cannot_be_skipped(timeless: Timeless) -> None:
    class Unready(Totals):
        ready = False

        def setup(self, view: View) -> None:
            if not self.ready:
                raise ValueError("not yet")
            view["account:from setup"] = 1

    app = timeless(Unready)
    add(app, 1)
    app.settle_down()
    assert (status(app).blocked, status(app).blocked_at) == (True, None)
    assert status(app).error == "ValueError: not yet"
    with pytest.raises(ProjectionNotBlocked):
        app.projections.skip(Unready)
    Unready.ready = True
    app.clock.advance(seconds=1)
    app.settle_down()
    assert totals(app, Unready) == {"a": 1, "from setup": 1}


def test_a_blocked_projection_does_not_hold_up_another(timeless: Timeless) -> None:
    class Other(Totals):
        name = "other"

    app = timeless(Picky(13), Other)
    add(app, 13, 1)
    app.settle_down()
    assert totals(app, Other) == {"a": 14}


def test_an_event_that_ends_the_transaction_of_its_batch_blocks(timeless: Timeless) -> None:
    class Ending(Projection):
        name = "ending"

        def apply(self, event: Recorded[Any], view: View) -> None:
            view["seen"] = event.position
            if event.event.amount == 13:
                view.tx.connection.commit()

    app = timeless(Ending)
    add(app, 1, 13, 2)
    app.settle_down()
    assert (status(app).position, status(app).blocked_at) == (1, 2)
    assert "has ended the transaction" in (status(app).error or "")
    assert app.projections.view(Ending).get("seen") == 1


@pytest.mark.parametrize("module_url", ["mysql"], indirect=True)
def test_an_event_that_creates_a_table_blocks_where_that_commits(timeless: Timeless) -> None:
    class Creating(Projection):
        name = "creating"

        def apply(self, event: Recorded[Any], view: View) -> None:
            view.tx.execute(f"CREATE TABLE IF NOT EXISTS {view.table('ledger')} (amount INTEGER)")

    app = timeless(Creating)
    add(app, 1)
    app.settle_down()
    assert status(app).blocked_at == 1
    assert "create tables in `setup`" in (status(app).error or "")


def test_an_error_while_the_app_is_closed_says_nothing_about_the_event(timeless: Timeless) -> None:
    class Interrupted(Totals):
        def apply(self, event: Recorded[Any], view: View) -> None:
            assert app.engine.worker is not None
            app.engine.worker.projector._runner.ending.set()
            raise ValueError("the ground has gone")

    app = timeless(Interrupted)
    client = timeless(Totals, worker=False)
    add(app, 1)
    app.close()
    assert (status(client).position, status(client).blocked) == (0, False)


@pytest.mark.parametrize("module_url", ["postgres", "mysql"], indirect=True)
def test_a_connection_that_is_lost_in_a_batch_is_not_poison(timeless: Timeless) -> None:
    class Cut(Totals):
        cuts = 0

        def apply(self, event: Recorded[Any], view: View) -> None:
            super().apply(event, view)
            if event.position == 2 and self.cuts < 2:
                type(self).cuts += 1
                view.tx.execute(
                    "SELECT pg_terminate_backend(pg_backend_pid())"
                    if app.engine.store.dialect == "postgres"
                    else "KILL CONNECTION_ID()"
                )

    app = timeless(Cut)
    add(app, 1, 2, 3)
    app.settle_down()
    assert Cut.cuts == 2
    assert (totals(app, Cut), status(app).failures) == ({"a": 6}, 0)


def test_an_event_of_a_decider_that_the_app_does_not_include_blocks_rather_than_being_passed_over(
    timeless: Timeless,
) -> None:
    class Everything(Projection):
        name = "everything"

        def apply(self, event: Recorded[Any], view: View) -> None:
            view["count"] = view.get("count", 0) + 1

    old = timeless(Everything)
    newer = timeless(Everything, Talk, worker=False)
    add(old, 1)
    newer.execute(Talk, Say("t", "hello"))
    add(old, 2)
    old.settle_down()
    seen = status(old)
    assert (seen.position, seen.blocked_at) == (1, 2)
    assert "'talk' is not included in this app" in (seen.error or "")
    old.include(Talk)
    old.advance(seconds=1)
    assert old.projections.view(Everything).get("count") == 3


RESERVED = [StopIteration("no more"), SystemExit(3)]


@pytest.mark.parametrize("error", RESERVED, ids=repr)
def test_an_event_whose_application_raises_what_python_reserves_is_poison(
    timeless: Timeless, error: Any
) -> None:
    app = timeless(Picky(13, error=error))
    add(app, 1, 13)
    app.settle_down()
    seen = status(app)
    assert (seen.blocked, seen.position, seen.blocked_at) == (True, 1, 2)
    assert type(error).__name__ in (seen.error or "")


@pytest.mark.parametrize("error", RESERVED, ids=repr)
def test_an_event_that_is_applied_by_a_coroutine_that_exits_is_poison(
    timeless: Timeless, error: BaseException
) -> None:
    class Leaving(Projection):
        name = "totals"

        async def apply(self, event: Recorded[Any], view: AsyncView) -> None:
            raise error

    app = timeless(Leaving)
    add(app, 1)
    app.settle_down()
    assert (status(app).blocked_at, type(error).__name__ in (status(app).error or "")) == (1, True)


@pytest.mark.parametrize("coroutine", [False, True])
@pytest.mark.parametrize("error", RESERVED, ids=repr)
def test_a_setup_that_raises_what_python_reserves_blocks_and_is_tried_again(
    timeless: Timeless, error: BaseException, coroutine: bool
) -> None:
    tries: list[int] = []

    def fail() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise error

    class Leaving(Totals):
        def setup(self, view: View) -> None:
            fail()

    class LeavingLater(Totals):
        async def setup(self, view: AsyncView) -> None:
            fail()

    app = timeless(LeavingLater if coroutine else Leaving)
    add(app, 1)
    app.settle_down()
    assert status(app).blocked
    assert type(error).__name__ in (status(app).error or "")
    app.clock.advance(seconds=1)
    app.settle_down()
    assert (len(tries), status(app).position) == (2, 1)
