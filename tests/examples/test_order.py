"""The order: steps and tasks in one graph, chain insertion, cancel_if, checks at the same time."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

import detent
import order
from detent.definitions.blueprint import blueprint
from running import lines


@pytest.fixture
def app(url: str) -> Iterator[detent.App]:
    order.ORDERS.clear()
    with order.make_app(url) as app:
        yield app


def test_steps_and_tasks_are_nodes_of_one_graph() -> None:
    graph = blueprint(order.OrderWorkflow).graph
    assert {name: set(needs) for name, needs in graph.needs.items()} == {
        "validate": set(),
        "audit": {"validate"},
        "enrich_data": {"audit"},  # it followed validate before audit was inserted
        "check_inventory": {"validate"},
        "check_fraud": {"validate"},
        "ready_to_charge": {"check_inventory", "check_fraud"},
        "charge_card": {"ready_to_charge"},
        "send_receipt": {"charge_card"},
        "update_analytics": {"charge_card"},
        "confirm_address": {"charge_card"},
        "ship_order": {"charge_card", "confirm_address"},
        "complete": {"ship_order", "send_receipt", "update_analytics"},
    }


def test_every_node_runs_once_and_after_what_it_depends_on(app: detent.App) -> None:
    run = order.place(app, 123, order.CUSTOMERS[1])
    run.result(timeout=30)
    done = order.ORDERS[123].done
    assert order.ORDERS[123].status == "complete"
    assert sorted(done) == sorted(node.name for node in run.nodes())
    for node in run.nodes():
        assert (node.state, node.outcome, node.attempts) == ("completed", "success", 1)
        assert all(done.index(needed) < done.index(node.name) for needed in node.depends_on)
    assert run.verify() == []


def test_the_two_checks_run_at_the_same_time(app: detent.App, monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2, timeout=20)  # each lets the other through

    async def ask_warehouse(order: order.Order) -> bool:
        await asyncio.to_thread(both.wait)
        return True

    def ask_fraud_service(order: order.Order) -> bool:
        both.wait()
        return True

    monkeypatch.setattr(order, "ask_warehouse", ask_warehouse)
    monkeypatch.setattr(order, "ask_fraud_service", ask_fraud_service)
    order.place(app, 123, order.CUSTOMERS[1]).result(timeout=30)
    assert order.ORDERS[123].status == "complete"


def test_a_closed_account_cancels_the_run_before_anything_is_done(app: detent.App) -> None:
    run = order.place(app, 124, order.CUSTOMERS[2])
    with pytest.raises(detent.RunCanceled):
        run.result(timeout=30)
    assert order.ORDERS[124].done == []
    assert lines(run) == ["validate: canceled (canceled_by_condition)"]


def test_a_suspicious_order_is_canceled_by_its_own_check(
    app: detent.App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order, "ask_fraud_service", lambda order: False)
    run = order.place(app, 125, order.CUSTOMERS[1])
    with pytest.raises(detent.RunCanceled):
        run.result(timeout=30)
    assert "check_fraud: canceled (canceled_by_flow_control)" in lines(run)
    assert "charge_card" not in order.ORDERS[125].done


def test_a_customer_has_one_order_under_way(app: detent.App, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    monkeypatch.setattr(order, "ask_fraud_service", lambda order: gate.wait(20))
    first = order.place(app, 126, order.CUSTOMERS[1])
    try:
        with pytest.raises(detent.AlreadyRunning) as refused:
            order.place(app, 127, order.CUSTOMERS[1])
        assert refused.value.run_id == first.id
    finally:
        gate.set()
    first.result(timeout=30)
    order.place(app, 127, order.CUSTOMERS[1]).result(timeout=30)
