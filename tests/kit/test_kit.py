"""The test kit: virtual time, an app in memory, crashes on purpose."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

import detent
from detent import step, workflow
from detent.errors import DetentError
from detent.testing import ManualClock, TestingApp, WorkflowNotCrashSafe, crash_everywhere


@step(retry=detent.Retry(attempts=3))
def charge(order_id: int) -> str:
    return f"receipt-{order_id}"


@step
def ship(order_id: int, receipt: str) -> None: ...


@workflow
def fulfil(order_id: int) -> str:
    receipt = charge(order_id)
    detent.sleep(days=2)
    ship(order_id, receipt)
    return receipt


@step(transactional=True)
def book(tx: detent.Transaction, amount: int) -> int:
    tx.execute("CREATE TABLE IF NOT EXISTS ledger (amount INTEGER)")
    tx.execute("INSERT INTO ledger VALUES (?)", (amount,))
    rows: int = tx.execute("SELECT COUNT(*) FROM ledger").fetchone()[0]
    return rows


@workflow
def everything(width: int) -> tuple[list[str], int, bool, str]:
    receipts = charge.map(range(width))
    rows = book(5)
    approved: bool = detent.receive("approval")
    return receipts, rows, approved, fulfil(9)


@step
async def double(number: int) -> int:
    return 2 * number


@workflow
async def concurrent(width: int) -> tuple[int, str]:
    doubled = await asyncio.gather(*(double(number) for number in range(width)))
    await detent.aio.sleep(hours=2)
    return sum(doubled), await charge.spawn(1)


@workflow
def forgetful() -> str:
    """Keeps something outside of steps, which a replay does not see."""
    forgetful_calls.append(1)
    detent.sleep(hours=1)
    return f"begun {len(forgetful_calls)} times"


forgetful_calls: list[int] = []


def test_two_days_pass_at_once(detent_app: TestingApp) -> None:
    begun = detent_app.clock()
    run = detent_app.start(fulfil, 42)
    detent_app.speedrun(run)
    assert run.result() == "receipt-42"
    assert detent_app.clock() - begun == timedelta(days=2)


def test_time_stands_still_until_it_is_moved(detent_app: TestingApp) -> None:
    run = detent_app.start(fulfil, 42)
    detent_app.settle_down()
    detent_app.clock.advance(days=1)
    detent_app.settle_down()
    assert run.refresh().state == "ready"
    detent_app.clock.advance(days=1)
    assert run.result() == "receipt-42"


def test_speedrun_stops_where_only_the_test_can_help(detent_app: TestingApp) -> None:
    run = detent_app.start(everything, 2)
    detent_app.speedrun(run)
    assert run.state == "ready"
    run.send("approval", True)
    detent_app.speedrun(run)
    assert run.result() == (["receipt-0", "receipt-1"], 1, True, "receipt-9")


def test_speedrun_stops_at_a_pause(detent_app: TestingApp) -> None:
    run = detent_app.start(fulfil, 42)
    detent_app.settle_down()
    run.pause()
    assert detent_app.speedrun(run).state == "paused"


def test_a_manual_clock_never_goes_back() -> None:
    clock = ManualClock(datetime(2031, 1, 1, tzinfo=UTC))
    clock.move_to(datetime(2030, 1, 1, tzinfo=UTC))
    assert clock() == datetime(2031, 1, 1, tzinfo=UTC)


def test_a_workflow_survives_a_crash_at_every_point() -> None:
    assert crash_everywhere(fulfil, 42) >= 8


def test_spawned_steps_children_messages_and_transactions_survive_too() -> None:
    assert crash_everywhere(everything, 3, with_=lambda run: run.send("approval", True)) >= 20


def test_an_async_workflow_survives_a_crash_at_every_point() -> None:
    assert crash_everywhere(concurrent, 3) >= 10


def test_crash_everywhere_names_the_points_where_the_outcome_differs() -> None:
    with pytest.raises(WorkflowNotCrashSafe, match=r"(?s)forgetful is not safe.*the commit of a wait"):
        crash_everywhere(forgetful)


# -- Graphs ----------------------------------------------------------------------------------------


class Parcel(detent.Workflow):
    number: int

    @step
    def pick(self) -> None: ...

    @detent.task(depends_on=pick)
    async def weigh(self) -> None: ...

    @detent.task(depends_on=pick)
    def label(self) -> None: ...

    @step(depends_on=[weigh, label], wait=3600)
    def send(self) -> int:
        return self.number


@step
def numbers() -> list[int]:
    return [1, 2, 3]


@step
def doubled(number: int) -> int:
    return 2 * number


@detent.template
def sums(g: detent.Graph, more: int) -> None:
    listing = g.node("numbers", job=numbers)
    parts = g.spread("doubled", over=listing.output, job=doubled, arg="number")
    with g.when(parts.output[0] == 2):
        extra = g.node("extra", job=doubled, args={"number": more})
    with g.otherwise():
        pass
    g.result([parts.output, extra.output])


def test_a_workflow_class_is_crashed_at_the_end_of_every_node() -> None:
    assert crash_everywhere(Parcel, number=7) == 2 * 4


def test_a_template_is_crashed_at_the_end_of_every_node_and_item() -> None:
    assert crash_everywhere(sums, 4) == 2 * 5


def test_what_is_started_with_options_need_not_be_included_either(detent_app: TestingApp) -> None:
    run = detent_app.options(id="order-42", hero=("Order", 42)).start(fulfil, 42)
    assert detent_app.speedrun(run).result() == "receipt-42"
    [other] = detent_app.start_many(stubborn, [()])
    assert detent_app.speedrun(other).state == "finished"


@workflow
def stubborn() -> None: ...


def test_the_graph_of_a_class_that_was_only_started_is_kept(sqlite_url: str) -> None:
    class Order(detent.Workflow):
        @step
        def pay(self) -> None: ...

    with TestingApp(sqlite_url) as app:
        run = app.speedrun(app.start(Order))
    with TestingApp(sqlite_url) as app:
        assert [(node.name, node.state) for node in app.run(run.id).nodes()] == [("pay", "completed")]


def test_a_speedrun_of_an_endless_reattempt_ends_with_the_name_of_the_node(
    detent_app: TestingApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("detent.testing.apps.MOST_MOVES", 20)

    class Poll(detent.Workflow):
        @step
        def ask(self) -> None:
            self.reattempt(wait=timedelta(hours=1))

    run = detent_app.start(Poll)
    with pytest.raises(DetentError, match="'ask' is at attempt 2"):
        detent_app.speedrun(run)


def test_a_speedrun_of_a_reattempt_without_a_wait_ends_with_the_name_of_the_node(
    detent_app: TestingApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("detent.testing.apps.PATIENCE", 0.5)

    class Poll(detent.Workflow):
        @step
        def ask(self) -> None:
            self.reattempt()

    run = detent_app.start(Poll)
    with pytest.raises(DetentError, match=r"did not become idle.*'ask' is at attempt \d+"):
        detent_app.speedrun(run)
    run.cancel()


def test_retention_goes_by_the_clock_of_the_test() -> None:
    @workflow
    def flow() -> int:
        return 1

    with TestingApp(include=[flow], retention=timedelta(days=1)) as app:
        run = app.start(flow)
        app.speedrun(run)
        app.advance(hours=23)
        assert app.runs.finished() != []
        app.advance(hours=2)
        assert app.runs.finished() == []
