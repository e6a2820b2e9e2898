"""Anonymous steps over deploys: what was done is neither done again nor left out, silently."""

from datetime import timedelta
from typing import Any

import pytest

import detent
from detent import RunPaused, step
from detent.app.check import Verdict, check
from detent.errors import AnonymousStepMoved
from tests.functions.world import Apps, eventually, result, wait_for

DAY = timedelta(days=1)
ran: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


def charging() -> Any:
    class Order(detent.Workflow, name="order"):
        @step
        def _(self) -> None:
            ran.append("charge")

        @step(wait=DAY)
        def ship(self) -> str:
            ran.append("ship")
            return "shipped"

    return Order


def checking(wait: timedelta = timedelta(0)) -> Any:
    class Order(detent.Workflow, name="order"):
        @step
        def _(self) -> None:
            ran.append("check")

        @step
        def _(self) -> None:
            ran.append("charge")

        @step(wait=wait)
        def ship(self) -> str:
            ran.append("ship")
            return "shipped"

    return Order


def named() -> Any:
    class Order(detent.Workflow, name="order"):
        @step
        def check(self) -> None:
            ran.append("check")

        @step
        def step_1(self) -> None:
            ran.append("charge")

        @step
        def ship(self) -> str:
            ran.append("ship")
            return "shipped"

    return Order


def begun(apps: Apps, flow: Any, *done: str) -> str:
    """The id of a run that has done this, and sleeps; its worker is gone."""
    app = apps(flow)
    run = app.start(flow)
    eventually(lambda: ran == list(done), "it has come to its sleep")
    eventually(lambda: run.nodes()[-1].state == "scheduled", "it sleeps")
    app.close()
    return run.id


def test_a_completed_body_does_not_run_again_when_one_is_inserted_before_it(apps: Apps) -> None:
    run_id = begun(apps, charging(), "charge")
    run = apps(checking()).run(run_id)
    wait_for(run, "paused")
    with pytest.raises(RunPaused, match=r"AnonymousStepMoved: run .* has done 'step_1'"):
        run.result(timeout=60)
    assert ran == ["charge"]


def test_a_resume_without_a_cure_pauses_it_again(apps: Apps) -> None:
    run_id = begun(apps, charging(), "charge")
    run = apps(checking()).run(run_id)
    wait_for(run, "paused")
    run.resume()
    wait_for(run, "paused")
    assert ran == ["charge"]


def test_with_names_in_the_code_it_goes_on(apps: Apps) -> None:
    run_id = begun(apps, charging(), "charge")
    app = apps(checking())
    wait_for(app.run(run_id), "paused")
    app.close()
    run = apps(named()).run(run_id)
    run.resume()
    eventually(lambda: run.refresh().state != "paused", "it goes on")
    states = {node.name: node.outcome for node in run.nodes()}
    assert (states["check"], states["step_1"]) == ("bypassed_by_deploy", "success")
    assert ran == ["charge"]  # and ships when a day has passed


def test_a_body_whose_number_a_completed_one_had_is_not_left_out(apps: Apps) -> None:
    run_id = begun(apps, checking(DAY), "check", "charge")
    run = apps(charging()).run(run_id)  # check is gone, and charge is step_1 now
    wait_for(run, "paused")
    assert ran == ["check", "charge"]


def test_an_edited_body_keeps_its_number(apps: Apps) -> None:
    def edited() -> Any:
        class Order(detent.Workflow, name="order"):
            @step(priority=3)
            def _(self) -> None:
                ran.append("charge with a receipt")

            @step
            def ship(self) -> str:
                ran.append("ship")
                return "shipped"

        return Order

    run_id = begun(apps, charging(), "charge")
    app = apps(edited())
    run = app.run(run_id)
    run.skip("ship")
    wait_for(run, "finished")
    assert ran == ["charge"]


def test_what_has_not_begun_takes_the_new_order(apps: Apps) -> None:
    flow = charging()
    old = apps(flow, worker=False)
    run = old.start(flow)
    old.close()
    app = apps(checking())
    assert result(app.run(run.id)) == "shipped"
    assert ran == ["check", "charge", "ship"]


def test_check_says_before_a_deploy_which_runs_would_pause(apps: Apps) -> None:
    begun(apps, charging(), "charge")
    [checked] = check(apps(checking(), worker=False).engine)
    assert checked.verdict is Verdict.CANNOT_CONTINUE
    assert "has done 'step_1'" in checked.reasons[0]


def test_a_frozen_run_pauses_as_well(apps: Apps) -> None:
    flow = charging()
    app = apps(flow)
    run = app.start(flow)
    eventually(lambda: ran == ["charge"], "charged")
    eventually(lambda: run.nodes()[-1].state == "scheduled", "it sleeps")
    run.freeze()
    app.close()
    other = apps(checking(), worker=False)
    with pytest.raises(AnonymousStepMoved):
        other.run(run.id).nodes()
