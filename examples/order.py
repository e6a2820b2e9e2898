"""An order: a chain of steps, and tasks that run in parallel.

validate -> audit -> enrich_data
validate -> check_inventory, check_fraud            at the same time
            -> ready_to_charge -> charge_card
               -> send_receipt, update_analytics, confirm_address
                  -> ship_order -> complete
"""

import asyncio
import time
from dataclasses import dataclass, field

import detent
from detent import cancel_if, step, task
from running import database_url, show


@dataclass
class Customer:
    id: int
    name: str
    closed: bool = False


@dataclass
class Order:
    id: int
    customer: Customer
    status: str = "new"
    done: list[str] = field(default_factory=list)


# Stand-ins for your database: nodes share data by writing it there.
CUSTOMERS = {1: Customer(1, "Ada"), 2: Customer(2, "Bob", closed=True)}
ORDERS: dict[int, Order] = {}


async def ask_warehouse(order: Order) -> bool:
    await asyncio.sleep(0.05)
    return True


def ask_fraud_service(order: Order) -> bool:
    time.sleep(0.05)
    return True


class OrderWorkflow(detent.Workflow):
    order_id: int

    @cancel_if
    def customer_has_left(self) -> bool:
        """Checked before every node."""
        return bool(self.hero.closed)

    @step
    def validate(self) -> None:
        self.order.status = "valid"
        self.note("validate")

    @step
    def enrich_data(self) -> None:
        self.note("enrich_data")

    @task(depends_on=validate)
    async def check_inventory(self) -> None:
        assert self.order.status == "valid"  # written by `validate`
        if not await ask_warehouse(self.order):
            self.cancel()
        self.note("check_inventory")

    @task(depends_on="validate")
    def check_fraud(self) -> None:
        if not ask_fraud_service(self.order):
            self.cancel()
        self.note("check_fraud")

    @step(depends_on=[check_inventory, check_fraud])  # a step can name its dependencies
    def ready_to_charge(self) -> None:
        self.note("ready_to_charge")

    @step  # in the chain again: after ready_to_charge
    def charge_card(self) -> None:
        self.order.status = "paid"
        self.note("charge_card")

    @task(depends_on=charge_card)
    def send_receipt(self) -> None:
        self.note("send_receipt")

    @task(depends_on=charge_card)
    def update_analytics(self) -> None:
        self.note("update_analytics")

    @task(depends_on=charge_card)
    def confirm_address(self) -> None:
        self.note("confirm_address")

    @step(also_depends_on=confirm_address)  # after charge_card, and after this one
    def ship_order(self) -> None:
        self.order.status = "shipped"
        self.note("ship_order")

    @step(depends_on=[ship_order, send_receipt, update_analytics])
    def complete(self) -> None:
        self.order.status = "complete"
        self.note("complete")

    @step(after_step=validate)  # inserted: enrich_data now follows audit
    def audit(self) -> None:
        self.note("audit")

    @property
    def order(self) -> Order:
        return ORDERS[self.order_id]

    def note(self, what: str) -> None:
        self.order.done.append(what)


def make_app(url: str) -> detent.App:
    app = detent.App(url, include=[OrderWorkflow], migrate=True)
    app.hero(Customer, key=lambda customer: customer.id, load=lambda id: CUSTOMERS.get(int(id)))
    return app


def place(app: detent.App, order_id: int, customer: Customer) -> detent.Run[None]:
    ORDERS[order_id] = Order(order_id, customer)
    return app.options(hero=customer).start(OrderWorkflow, order_id=order_id)


def main(url: str) -> None:
    with make_app(url) as app:
        run = place(app, 123, CUSTOMERS[1])
        run.result()
        show(run)
        print("order 123 is", ORDERS[123].status)
        print(run.to_mermaid())

        canceled = place(app, 124, CUSTOMERS[2])
        try:
            canceled.result()
        except detent.RunCanceled:
            show(canceled)


if __name__ == "__main__":
    main(database_url())
