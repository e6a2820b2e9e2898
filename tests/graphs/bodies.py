"""What tests of bodies share."""

from __future__ import annotations

from typing import Any

import detent
from detent import Workflow, step


class Small(Workflow):
    order_id: int

    @step
    def work(self) -> None: ...


@step
async def acharge(order_id: int) -> str:
    return f"async {order_id}"


def places(app: detent.App, run: detent.Run[Any]) -> dict[str, tuple[str, int]]:
    with app.engine.store._reading() as tx:
        rows = tx.query(f"SELECT node, queue, precedence FROM detent_executions WHERE run_id = '{run.id}'")
    return {node: (queue, -precedence) for node, queue, precedence in rows}


QUEUES = ["default", "slow", "fast", "night"]
