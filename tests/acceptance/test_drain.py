"""SIGTERM: what runs comes to its end or is handed back, and nobody is blamed."""

from typing import Any

import pytest

from detent import Run
from tests.acceptance.programs import hanging
from tests.acceptance.support import (
    World,
    alive,
    all_finish,
    eventually,
    journals_agree,
    query,
    recorded_bodies_stay,
    settled_once,
    start_chains,
    states,
    written_once,
)

pytestmark = pytest.mark.acceptance

RUNS = 200
PAUSE = 1.0


def test_a_worker_that_leaves_in_good_order_leaves_nothing_half_done(world: World) -> None:
    app = world.chains()
    first = world.worker(pause=PAUSE)
    eventually(lambda: alive(app, first), "the first worker has begun")
    runs = start_chains(app, RUNS)
    eventually(lambda: states(app)["finished"], "some of it is done")

    assert first.end() == 0, world.logs()
    assert not alive(app, first)
    bodies = [(effect.run, effect.place, effect.kind) for effect in world.effects()]
    begun = {(run, place) for run, place, kind in bodies if kind == "begin"}
    ended = {(run, place) for run, place, kind in bodies if kind == "end"}
    assert begun == ended  # what it began, it ended

    world.worker()
    all_finish(world, app, RUNS)
    settled_once(app, RUNS)
    written_once(app, RUNS)
    journals_agree(world, app, runs)
    recorded_bodies_stay(world)
    bodies_run = [(effect.run, effect.place) for effect in world.effects() if effect.kind == "begin"]
    assert len(bodies_run) == len(set(bodies_run))  # nothing ran twice
    assert recoveries(world) == 0


def test_a_step_that_does_not_end_is_handed_back(world: World) -> None:
    app = world.app(hanging)
    first = world.worker("hanging", grace=0.5)
    eventually(lambda: alive(app, first), "the first worker has begun")
    runs: list[Run[Any]] = [
        *app.start_many(hanging.hangs, [()] * 5),
        *app.start_many(hanging.ahangs, [()] * 5),
    ]
    eventually(lambda: len(world.effects()) == len(runs), "all of them hang")

    assert first.end() == 0, world.logs()
    assert states(app) == {"ready": len(runs)}

    second = world.worker("hanging")
    eventually(lambda: alive(app, second), "the second worker has begun")
    world.release()
    assert {run.result(timeout=30) for run in runs} == {second.pid}
    settled_once(app, len(runs))
    assert recoveries(world) == 0


def recoveries(world: World) -> int:
    found = query(world.app(), "SELECT COALESCE(MAX(recoveries), 0) FROM detent_executions")
    return int(found[0][0])
