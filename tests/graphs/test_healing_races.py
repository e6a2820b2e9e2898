"""Two who heal the same run at the same moment."""

from datetime import timedelta
from typing import Any

import pytest

import detent
from detent import step
from detent.stores.store import Store
from detent.testing import ManualClock, TestingApp
from detent.worker.upkeep import Upkeep


def test_a_node_that_was_claimed_before_another_healed_its_run_waits_for_what_is_new(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one saw it executing and left it alone; but it had not begun."""
    calls: list[str] = []

    class Today(detent.Workflow, name="order"):
        @step
        def pay(self) -> None:
            calls.append("pay")

        @step(wait=timedelta(days=2))
        def ship(self) -> None: ...

    class Tomorrow(detent.Workflow, name="order"):
        @step
        def pay(self) -> None: ...

        @step
        def pack(self) -> None:
            calls.append("pack")

        @step(wait=timedelta(days=2))
        def ship(self) -> None:
            calls.append("ship")

    clock = ManualClock()
    with TestingApp(url, clock=clock) as app:
        run = app.start(Today)
        app.settle_down()

    reconcile = Store.reconcile

    def beaten(self: Store, run_id: str, *, mine: str | None = None, **how: Any) -> bool:
        if mine is not None:
            reconcile(self, run_id, **how)
        return reconcile(self, run_id, mine=mine, **how)

    monkeypatch.setattr(Upkeep, "heal", lambda self: 0)
    monkeypatch.setattr(Store, "reconcile", beaten)
    with TestingApp(url, clock=clock, include=[Tomorrow]) as app:
        run = app.speedrun(app.run(run.id))
        assert run.state == "finished"
        assert calls == ["pay", "pack", "ship"]
        assert [(item.node, item.outcome) for item in run.executions()] == [
            ("pay", "success"),
            ("pack", "success"),
            ("ship", "bypassed_by_deploy"),
            ("ship", "success"),
        ]
        assert run.verify() == []
