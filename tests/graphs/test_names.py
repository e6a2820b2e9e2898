"""People name the nodes of a stored graph; what they read shows these names, never ids."""

import logging
import re
from datetime import timedelta
from typing import Any

import pytest

import detent
from detent import DefinitionError, Retry, RunPaused, step
from detent.testing import TestingApp
from tests.functions.world import Apps, Gate, crash, eventually, state

ID = re.compile(r"n_[0-9a-f]{8}")


@step(retry=Retry(attempts=2, first=timedelta(0)))
def failing() -> None:
    raise ValueError("no")


@step
def opaque() -> Any:
    return object()


@step
def number() -> int:
    return 5


gates: list[Gate] = []


@step
def killing() -> None:
    gates.append(Gate())
    gates[-1].pass_through()


def test_the_log_names_a_node_by_its_name(testing: TestingApp, caplog: pytest.LogCaptureFixture) -> None:
    testing.include(failing)
    g = detent.Graph("names")
    g.node("charge the card", job=failing)
    with caplog.at_level(logging.WARNING, "detent.worker"):
        testing.speedrun(testing.start(g))
    assert "node 'charge the card' (attempt 1) raised" in caplog.text
    assert not ID.search(caplog.text)


def test_the_history_names_nodes_by_their_names(testing: TestingApp) -> None:
    testing.include(failing)
    g = detent.Graph("names")
    g.node("charge", job=failing)
    run = testing.speedrun(testing.start(g))
    run.skip("charge")
    lines = [str(line.detail) for line in run.history()]
    assert any("'node': 'charge'" in line for line in lines)
    assert not ID.search(" ".join(lines))


def test_a_result_that_cannot_be_stored_names_its_node(testing: TestingApp) -> None:
    testing.include(opaque)
    g = detent.Graph("names")
    g.node("look", job=opaque)
    run = testing.speedrun(testing.start(g))
    with pytest.raises(RunPaused, match="the result of node 'look'"):
        run.result()


def test_an_expression_names_its_nodes_when_it_is_refused() -> None:
    g = detent.Graph("names")
    a, b = g.node("a", job=number), g.node("b", job=number)
    for refused in (
        lambda: bool(a.output + 1 > b.output),
        lambda: str(-a.output),
        lambda: len(a.output["x"]),
    ):
        with pytest.raises(DefinitionError, match=r"a\.output") as caught:
            refused()
        assert not ID.search(str(caught.value))
    assert repr([a.output, 1] == b.output) == "<recorded (b.output == [a.output, 1])>"
    assert repr(a.output.contains([b.output])) == "<recorded contains(a.output, [b.output])>"


def test_a_node_that_kills_its_workers_is_named_by_its_name(apps: Apps) -> None:
    gates.clear()
    app = apps(killing, worker=False)
    g = detent.Graph("names")
    g.node("work", job=killing)
    run = app.start(g)
    victim = apps(killing)
    eventually(lambda: len(gates) == 1, "it executes")
    gates[0].wait_for_arrival()
    crash(victim, reaped_by=app, max_recoveries=0)
    gates[0].open()
    assert state(run) == "paused"
    with pytest.raises(RunPaused, match="'work' crashed its worker"):
        run.result(timeout=60)


def test_what_is_wrong_with_an_imported_graph_is_said_by_name(testing: TestingApp) -> None:
    testing.include(number, failing)
    g = detent.Graph("names")
    a = g.node("a", job=number)
    g.value("double", a.output * 2)
    g.node("fail", job=failing)
    run = testing.speedrun(testing.start(g))
    broken = re.sub(r'"depends_on": \[\s*"[^"]+"\s*\],\s*"value"', '"value"', run.export_graph())
    with pytest.raises(detent.GraphInvalid, match="uses the output of 'a' without depending on it"):
        run.import_graph(broken)
