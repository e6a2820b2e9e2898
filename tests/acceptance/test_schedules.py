"""Schedules and workers that are killed without warning: every second has its run, and one only."""

import random
import time
from datetime import timedelta

import pytest

from detent.kernel.schedules import scheduled_for
from tests.acceptance.programs import sleeping
from tests.acceptance.support import World, alive, eventually

pytestmark = pytest.mark.acceptance
KILLS = 6


def test_every_firing_is_one_run_however_often_the_workers_are_killed(world: World) -> None:
    chance = random.Random(14)
    app = world.app(sleeping)
    workers = [world.worker("sleeping") for _ in range(2)]
    eventually(lambda: alive(app, *workers), "both workers have begun")
    schedule = app.schedules.create("tick", sleeping.sleeps, args=(0.0,), every=1, catch_up="all")
    [first] = schedule.next()
    for _ in range(KILLS):
        time.sleep(chance.uniform(0.1, 1.5))
        victim = chance.randrange(2)
        workers[victim].kill()
        workers[victim] = world.worker("sleeping")
    eventually(lambda: schedule.refresh().fired > KILLS, "it goes on")
    schedule.pause()
    eventually(lambda: not app.runs.active(), "all runs are over")
    times = sorted(moment for run in app.runs.each() if (moment := scheduled_for(run.id)) is not None)
    assert times[0] == first
    assert times == [first + timedelta(seconds=n) for n in range(len(times))]
    assert len(times) == schedule.refresh().fired
    assert {run.state for run in app.runs.each()} == {"finished"}
