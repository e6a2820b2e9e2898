"""Repairing a run with another graph: what is yet to begin goes by it, what was done stays."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import detent
from detent import step
from detent.testing import TestingApp


@step
def number(n: int) -> int:
    return n


@step
def numbers() -> list[int]:
    return [1, 2, 3]


@step
def broken(n: int) -> int:
    raise ValueError(f"cannot do {n}")


@step
def odd_only(n: int) -> int:
    if n == 2:
        raise ValueError("even")
    return n * 10


@step
def mended(n: int, by: int = 100) -> int:
    return n * by


@pytest.fixture
def app(url: str) -> Any:
    with TestingApp(
        url, include=[number, numbers, broken, odd_only, mended], queues=["default", "other"]
    ) as app:
        yield app


def _edit(run: detent.Run[Any], change: Callable[[dict[str, Any]], None]) -> None:
    """Export, edit and import, as an operator would."""
    document = json.loads(run.export_graph())
    change({node["name"]: node for node in document["nodes"].values()})
    run.import_graph(json.dumps(document))


def _graph(job: Any, **options: Any) -> detent.Graph:
    g = detent.Graph("repair")
    first = g.node("first", job=number, args={"n": 7})
    g.node("second", job=job, args={"n": first.output}, **options)
    return g


def test_a_node_that_failed_begins_again_with_the_job_and_the_arguments_of_the_new_graph(
    app: TestingApp,
) -> None:
    run = app.speedrun(app.start(_graph(broken)))
    assert run.state == "paused"

    def mend(nodes: dict[str, Any]) -> None:
        nodes["second"]["job"] = "mended"
        nodes["second"]["args"]["by"] = 3
        nodes["second"]["queue"] = "other"

    _edit(run, mend)
    assert run.refresh().state == "paused"
    run.resume()
    assert app.speedrun(run).result() == 21
    assert [(node.name, node.attempts) for node in run.nodes()] == [("first", 1), ("second", 2)]
    assert run.verify() == []


def test_one_that_waits_takes_it_over_too_and_keeps_its_time(app: TestingApp) -> None:
    run = app.start(_graph(broken, wait=timedelta(days=2)))
    app.settle_down()
    due = run.nodes()[1].scheduled_for
    run.pause()
    _edit(run, lambda nodes: nodes["second"].update(job="mended"))
    run.resume()
    assert run.nodes()[1].scheduled_for == due
    assert app.speedrun(run).result() == 700
    assert [node.attempts for node in run.nodes()] == [1, 1]


def test_an_item_of_a_spread_keeps_its_item(app: TestingApp) -> None:
    g = detent.Graph("repair")
    g.spread("each", over=g.node("list", job=numbers).output, job=odd_only, arg="n")
    run = app.speedrun(app.start(g))
    assert run.state == "paused"
    _edit(run, lambda nodes: nodes["each"].update(job="mended", args={"by": 1000}))
    run.resume()
    assert app.speedrun(run).result() == [10, 2000, 30]


def test_a_queue_that_nobody_declares_is_refused_wherever_it_stands(app: TestingApp) -> None:
    """Otherwise the run would wait there for ever, without a word."""
    with pytest.raises(detent.DetentError, match="queue 'nowhere' is not declared"):
        app.start(_graph(number, queue="nowhere"))

    class Lost(detent.Workflow):
        @step
        def first(self) -> None: ...

        @step(queue="nowhere")
        def second(self) -> None: ...

    with pytest.raises(detent.DetentError, match="queue 'nowhere' is not declared"):
        app.start(Lost)
    assert app.runs() == []
