"""A step that kills its process is stopped; its neighbours, who die with it, are not."""

import pytest

from detent.errors import RunPaused
from tests.acceptance.programs import chains, poison
from tests.acceptance.support import Process, World, eventually, query, start_chains, states, written_once

pytestmark = pytest.mark.acceptance

RUNS = 40
PAUSE = 0.1  # seconds; less than the wait between two turns of those that died together
MAX_RECOVERIES = 3
WORKERS = 2


def test_what_kills_its_worker_is_paused_and_everything_else_finishes(world: World) -> None:
    world.chains()
    app = world.app(chains, poison)

    def new_worker() -> Process:
        return world.worker("poisoned", pause=PAUSE, max_recoveries=MAX_RECOVERIES)

    workers = [new_worker() for _ in range(WORKERS)]
    deadly = app.start(poison.poison)
    start_chains(app, RUNS)

    def over() -> bool:
        for place, worker in enumerate(workers):
            if not worker.alive:
                workers[place] = new_worker()
        return states(app) == {"finished": RUNS, "paused": 1}

    eventually(over, "all but one finish")
    with pytest.raises(RunPaused, match="TooManyRecoveries"):
        deadly.result(timeout=10)
    begun = [effect for effect in world.effects() if effect.run == deadly.id and effect.kind == "begin"]
    assert len(begun) == MAX_RECOVERIES + 1
    assert len({effect.pid for effect in begun}) == MAX_RECOVERIES + 1
    written_once(app, RUNS)
    assert query(app, "SELECT COUNT(*) FROM detent_executions WHERE outcome = 'success'") == [(RUNS,)]
