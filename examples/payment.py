"""A payment: exception policies and flow control of a run.

The gateway and the other services return scripted answers, one after the other.
"""

import logging
from datetime import timedelta
from http.client import BadStatusLine
from typing import Any

import detent
from detent import on_exception, step
from detent.testing import TestingApp
from running import database_url, show


class InvalidCard(Exception):
    pass


class GatewayDown(Exception):
    pass


class RateLimited(Exception):
    def __init__(self, retry_after: timedelta) -> None:
        super().__init__(f"come back in {retry_after}")
        self.retry_after = retry_after


# service -> its answers: an exception to raise, or "ok".  Stand-ins for real services.
ANSWERS: dict[str, list[Any]] = {}
CALLS: list[str] = []


def call(service: str) -> None:
    CALLS.append(service)
    answers = ANSWERS.get(service) or ["ok"]
    answer = answers.pop(0)
    if isinstance(answer, Exception):
        raise answer


class PaymentWorkflow(detent.Workflow):
    order_id: int

    @step(on_exception="reattempt")  # up to 100 times, with growing waits
    def initiate_payment(self) -> None:
        try:
            call("gateway")
        except InvalidCard:
            self.cancel()  # nothing can be done: the run ends here
        except RateLimited as error:
            self.reattempt(wait=error.retry_after)

    @step(on_exception="skip")  # a failure does not stop the run
    def send_receipt(self) -> None:
        call("mail")

    @step(on_exception="cancel")
    def update_inventory(self) -> None:
        call("inventory")

    @step  # the default is "pause": an operator resumes the run
    def book_revenue(self) -> None:
        call("ledger")


class PatientPayment(detent.Workflow):
    """The same with policies of the class; the latest that matches applies."""

    order_id: int

    on_exception(action="pause")
    on_exception(
        ConnectionError,  # a class and its subclasses
        "http.client.HTTPException",  # a dotted name: nothing needs to be imported
        lambda error: "busy" in str(error),
        action="reattempt",
        max_reattempts=3,
        wait=timedelta(seconds=30),
        then="cancel",
    )

    @step
    def initiate_payment(self) -> None:
        call("gateway")

    @step(on_exception="skip")  # the node's own option comes first
    def send_receipt(self) -> None:
        call("mail")


def make_app(url: str) -> TestingApp:
    return TestingApp(url, include=[PaymentWorkflow, PatientPayment])


def pay(app: TestingApp, workflow: type[detent.Workflow], **answers: list[Any]) -> detent.Run[Any]:
    CALLS.clear()
    ANSWERS.clear()
    ANSWERS.update(answers)
    return app.speedrun(app.start(workflow, order_id=1))


def main(url: str) -> None:
    logging.getLogger("detent.worker").setLevel(logging.ERROR)  # it logs every exception in a node
    with make_app(url) as app:  # waits pass at once
        show(pay(app, PaymentWorkflow, gateway=[GatewayDown("503"), RateLimited(timedelta(minutes=5)), "ok"]))
        show(pay(app, PaymentWorkflow, gateway=[InvalidCard("4242")]))
        show(pay(app, PaymentWorkflow, mail=[ConnectionError("no route")]))
        show(pay(app, PaymentWorkflow, inventory=[KeyError("sku")]))
        show(pay(app, PatientPayment, gateway=[BadStatusLine("503"), ConnectionError("reset"), "ok"]))
        show(pay(app, PatientPayment, gateway=[RuntimeError("busy") for _ in range(4)]))

        pay(app, PaymentWorkflow, ledger=[ValueError("the year is closed")])
        for run in app.runs.paused(type=PaymentWorkflow):
            run.resume()  # the ledger was repaired in the meantime
            show(app.speedrun(run))


if __name__ == "__main__":
    main(database_url())
