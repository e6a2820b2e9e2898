"""Two who heal the same run at the same moment."""

from datetime import timedelta
from typing import Any

import pytest

import detent
from detent import step
from detent.kernel.external_changes import Change, Reconcile
from detent.stores.driver import Tx
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

    change_as_before = Store.change

    def beaten(self: Store, change: Change[Any], *, now: int, within: Tx | None = None) -> Any:
        if isinstance(change, Reconcile) and change.mine is not None:
            change_as_before(self, Reconcile(change.run_id, change.run_graph), now=now)
        return change_as_before(self, change, now=now, within=within)

    monkeypatch.setattr(Upkeep, "heal", lambda self: 0)
    monkeypatch.setattr(Store, "change", beaten)
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
