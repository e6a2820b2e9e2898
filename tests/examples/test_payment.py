"""The payment: what becomes of a run when a node raises, or says so itself."""

from collections.abc import Iterator
from datetime import timedelta
from http.client import BadStatusLine
from typing import Any

import pytest

import detent
import payment
from detent.testing import TestingApp
from payment import GatewayDown, InvalidCard, PatientPayment, PaymentWorkflow, RateLimited, pay
from running import lines


@pytest.fixture
def app(url: str) -> Iterator[TestingApp]:
    with payment.make_app(url) as app:
        yield app


def _all_good(*nodes: str) -> list[str]:
    return [f"{node}: completed (success)" for node in nodes]


def test_an_exception_is_reattempted_and_a_rate_limit_waits_as_long_as_it_says(app: TestingApp) -> None:
    begin = app.clock()
    run = pay(app, PaymentWorkflow, gateway=[GatewayDown("503"), RateLimited(timedelta(minutes=5)), "ok"])
    assert run.state == "finished"
    assert lines(run) == [
        "initiate_payment: failed (reattempted_by_exception)",
        "  GatewayDown: 503",
        "initiate_payment: completed (reattempted)",
        *_all_good("initiate_payment", "send_receipt", "update_inventory", "book_revenue"),
    ]
    assert timedelta(minutes=5) <= app.clock() - begin < timedelta(minutes=6)
    assert payment.CALLS == ["gateway"] * 3 + ["mail", "inventory", "ledger"]


def test_an_invalid_card_cancels_the_run(app: TestingApp) -> None:
    run = pay(app, PaymentWorkflow, gateway=[InvalidCard("4242")])
    assert lines(run) == ["initiate_payment: canceled (canceled_by_flow_control)"]
    with pytest.raises(detent.RunCanceled):
        run.result()
    assert payment.CALLS == ["gateway"]


def test_a_receipt_that_cannot_be_sent_is_skipped_and_its_error_kept(app: TestingApp) -> None:
    run = pay(app, PaymentWorkflow, mail=[ConnectionError("no route")])
    assert run.state == "finished"
    assert lines(run)[1:3] == ["send_receipt: skipped (skipped_by_exception)", "  ConnectionError: no route"]


def test_an_inventory_that_fails_cancels_the_run(app: TestingApp) -> None:
    run = pay(app, PaymentWorkflow, inventory=[ValueError("no such item")])
    assert run.state == "canceled"
    assert lines(run)[-2:] == [
        "update_inventory: failed (canceled_by_exception)",
        "  ValueError: no such item",
    ]
    assert "ledger" not in payment.CALLS


def test_any_other_exception_pauses_and_resuming_tries_again(app: TestingApp) -> None:
    run = pay(app, PaymentWorkflow, ledger=[ValueError("the year is closed")])
    with pytest.raises(detent.RunPaused, match="the year is closed") as paused:
        run.result()
    assert isinstance(paused.value.__cause__, ValueError)
    assert [found.id for found in app.runs.paused(type=PaymentWorkflow)] == [run.id]
    run.resume()
    assert app.speedrun(run).state == "finished"
    assert lines(run)[-3:] == [
        "book_revenue: failed (paused_by_exception)",
        "  ValueError: the year is closed",
        "book_revenue: completed (success)",
    ]


@pytest.mark.parametrize(
    "trouble",
    [ConnectionResetError("reset"), BadStatusLine("503"), RuntimeError("busy"), OSError("they are busy")],
    ids=["subclass", "dotted name", "callable", "callable again"],
)
def test_a_policy_of_the_class_is_for_what_its_matchers_match(app: TestingApp, trouble: Any) -> None:
    begin = app.clock()
    run = pay(app, PatientPayment, gateway=[trouble, trouble, "ok"])
    assert run.state == "finished"
    assert payment.CALLS == ["gateway"] * 3 + ["mail"]
    assert app.clock() - begin == timedelta(minutes=1)


def test_when_its_reattempts_are_used_up_a_policy_does_what_comes_then(app: TestingApp) -> None:
    run = pay(app, PatientPayment, gateway=[ConnectionError(str(number)) for number in range(4)])
    assert run.state == "canceled"
    assert [item.outcome for item in run.executions()] == ["reattempted_by_exception"] * 3 + [
        "canceled_by_exception"
    ]


def test_what_no_matcher_matches_goes_to_the_blanket_policy(app: TestingApp) -> None:
    run = pay(app, PatientPayment, gateway=[ValueError("odd")])
    assert run.state == "paused"


def test_a_nodes_own_policy_comes_first(app: TestingApp) -> None:
    run = pay(app, PatientPayment, mail=[ConnectionError("no route")])
    assert run.state == "finished"
    assert lines(run)[-2] == "send_receipt: skipped (skipped_by_exception)"
