"""A count that cannot be, by a bug or by somebody's hand: the run pauses with that error, and can go on."""

import pytest

import detent
from detent import RunPaused, step
from tests.functions.world import Apps, Gate, eventually, result, wait_for
from tests.graphs.world import states


def test_a_count_that_cannot_be_pauses_the_run_with_that_error(apps: Apps) -> None:
    gate = Gate()

    @step
    def quick() -> int:
        return 1

    @step
    def slow() -> int:
        gate.pass_through()
        return 2

    g = detent.Graph("counting")
    parents = [g.node("quick", job=quick, depends_on=None), g.node("slow", job=slow, depends_on=None)]
    g.node("join", job=quick, depends_on=parents)
    app = apps(quick, slow)
    run = app.start(g)
    gate.wait_for_arrival()
    eventually(lambda: states(run).get("quick") == "completed", "`quick` has settled")
    with app.engine.store._writer.transaction() as tx:
        assert tx.run(f"UPDATE detent_readiness SET settled = 2 WHERE run_id = '{run.id}'") == 1
    gate.open()
    wait_for(run, "paused")
    with pytest.raises(RunPaused) as caught:
        result(run)
    assert "has 3 settled predecessors of 2" in str(caught.value)
    run.resume()  # which recounts
    assert result(run) == 1
    assert run.verify() == []
