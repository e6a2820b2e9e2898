"""Processes side by side: on one SQLite file, and waking each other on every database."""

from datetime import timedelta
from pathlib import Path
from unittest import mock

import pytest

from detent.app import waiters
from tests.acceptance.programs import chains, crowd
from tests.acceptance.support import (
    World,
    alive,
    eventually,
    recorded_bodies_stay,
    settled_once,
    states,
    written_once,
)

pytestmark = pytest.mark.acceptance

PROCESSES = 4
RUNS_EACH = 150
CALLS = 20
NEVER = 3600.0  # seconds


def test_processes_share_one_sqlite_file(sqlite_url: str, tmp_path: Path) -> None:
    world = World(sqlite_url, tmp_path)
    app = world.chains()
    processes = [world.start("busy", world.url, str(RUNS_EACH)) for _ in range(PROCESSES)]
    try:
        assert [process.wait() for process in processes] == [0] * PROCESSES, world.logs()[-5_000:]
        assert "locked" not in world.logs()
        assert states(app) == {"finished": PROCESSES * RUNS_EACH}
        settled_once(app, PROCESSES * RUNS_EACH)
        written_once(app, PROCESSES * RUNS_EACH)
        recorded_bodies_stay(world)
    finally:
        world.close()


def test_a_run_begins_elsewhere_and_its_result_comes_back_without_polling(world: World) -> None:
    app = world.app(crowd)
    worker = world.worker("crowd", program="attentive")
    eventually(lambda: alive(app, worker), "the worker has begun")
    with mock.patch.object(waiters, "LOOK_AGAIN", NEVER):
        for number in range(CALLS):
            definition = crowd.one_step if number % 2 else crowd.aone_step
            run = app.options(id=f"call-{number}").start(definition, number)
            assert run.result(timeout=timedelta(seconds=60)) == 2 * number


def test_processes_start_and_work_on_any_database(world: World) -> None:
    app = world.chains()
    processes = [world.start("busy", world.url, str(RUNS_EACH // 3)) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0], world.logs()[-5_000:]
    assert states(app) == {"finished": 2 * (RUNS_EACH // 3)}
    settled_once(app, 2 * (RUNS_EACH // 3))
    written_once(app, 2 * (RUNS_EACH // 3))
    assert len({effect.place for effect in world.effects()}) == chains.PLACES
