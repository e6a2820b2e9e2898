"""Large graphs on several workers, one of them killed; deploys while runs are in flight."""

import json
import time
from collections import Counter

import pytest

from detent import App
from tests.acceptance.programs import deployed, nodes
from tests.acceptance.support import Process, World, alive, eventually

pytestmark = pytest.mark.acceptance

DELIVERIES = 60


@pytest.mark.parametrize("shape", ["fan_out", "chain", "layers"])
def test_a_large_graph_finishes_though_a_worker_is_killed_on_the_way(world: World, shape: str) -> None:
    finishes_though_killed(world, shape)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_graph_of_100_000_nodes_finishes_though_a_worker_is_killed_on_the_way(world: World) -> None:
    finishes_though_killed(world, "huge", within=1500)


def finishes_though_killed(world: World, shape: str, within: float = 120) -> None:
    """Four workers in two processes, one of which is killed in the middle."""
    app = world.app(nodes)
    graph = nodes.SHAPES[shape]()
    size = len(graph.documented(lambda value, _: value, lambda value, _: value))
    first, second = (world.worker("nodes", "pair") for _ in range(2))
    eventually(lambda: alive(app, first, second), "both processes have begun")
    began = time.monotonic()
    run = app.start(graph)
    some = eventually(lambda: done(app, run.id) > size * 0.2, "a fifth is done", within)
    assert some
    first.kill()
    run.result(timeout=within)
    seconds = time.monotonic() - began
    print(f"{shape}: {size} nodes in {seconds:.1f} s, {size / seconds:.0f} nodes/s, one process killed")
    completed = Counter(row.node for row in app.engine.store.executions(run.id) if row.state == "completed")
    assert len(completed) == size
    assert set(completed.values()) == {1}
    if shape == "fan_out":
        assert run.result() == 1000
    assert run.verify() == []


def done(app: App, run_id: str) -> int:
    """How many nodes have completed; cheap enough to ask again and again."""
    with app.engine.store._reading() as tx:
        statement = tx.driver.adapt(
            "SELECT COUNT(*) FROM detent_executions WHERE run_id = :id AND state = 'completed'"
        )
        return int(tx.query(statement, id=run_id)[0][0])


def test_two_versions_of_a_class_at_work_lose_nothing_and_do_nothing_twice(world: World) -> None:
    app = world.app(deployed)
    runs = [app.start(deployed.Delivery, number=number) for number in range(DELIVERIES)]
    old = version(world, "1")
    eventually(lambda: len(world.effects()) > DELIVERIES // 4, "the old version has begun")
    new = version(world, "2")
    eventually(lambda: alive(app, old, new), "both versions are at work")
    # On a slow machine the old one has finished everything by now.
    more = [app.start(deployed.Delivery, number=number) for number in range(DELIVERIES)]
    eventually(lambda: any(effect.place == "weigh" for effect in world.effects()), "the new one runs, too")
    for run in [*runs, *more]:
        run.result(timeout=90)
    assert old.end() == 0
    assert new.end() == 0
    begun = Counter((effect.run, effect.place) for effect in world.effects() if effect.kind == "begin")
    assert set(begun.values()) == {1}, "a node ran twice"
    for run in [*runs, *more]:
        assert {node for id, node in begun if id == run.id} >= {"pick", "pack", "send"}
        assert run.verify() == []


def test_a_deploy_that_replaces_all_workers_heals_the_runs_in_flight(world: World) -> None:
    app = world.app(deployed)
    runs = [app.start(deployed.Delivery, number=number) for number in range(DELIVERIES)]
    old = version(world, "1")
    eventually(lambda: len(world.effects()) > DELIVERIES, "the old version is in the middle of it")
    old.kill()
    left = [run for run in runs if run.refresh().state != "finished"]
    version(world, "2")
    for run in left:
        run.result(timeout=90)
    ended = Counter((effect.run, effect.place) for effect in world.effects() if effect.kind == "end")
    weighed = {id for id, place in ended if place == "weigh"}
    assert weighed, "runs that had not been packed are weighed now"
    for run in left:
        assert {place for id, place in ended if id == run.id} >= {"pick", "pack", "send", "announce"}
        states = {node.name: node.outcome for node in run.nodes()}
        assert states["weigh"] == ("success" if run.id in weighed else "bypassed_by_deploy")


def version(world: World, number: str) -> Process:
    """A worker with one version of the class, whose nodes take long enough to be met by the other."""
    settings = json.dumps({"url": world.url, "concurrency": 8})
    environment = {deployed.VERSION: number, "DETENT_ACCEPTANCE_PAUSE": "0.15"}
    return world.start("worker", "tests.acceptance.programs.deployed", settings, **environment)
