"""Limits of queues, while workers are killed: a log that the bodies write is the judge."""

import random
import time
from collections import Counter

import pytest

from tests.acceptance.programs import metered
from tests.acceptance.support import World, alive, eventually

pytestmark = pytest.mark.acceptance

RUNS = 100
CUSTOMERS = 7
KILLS = 4


def test_no_limit_is_exceeded_while_workers_are_killed(world: World) -> None:
    chance = random.Random(5)
    app = world.app(metered, queues=metered.QUEUES)
    workers = [world.worker("metered", "metered") for _ in range(2)]
    eventually(lambda: alive(app, *workers), "both workers have begun")
    runs = [
        app.options(key=f"customer-{number % CUSTOMERS}").start(
            metered.document, f"customer-{number % CUSTOMERS}"
        )
        for number in range(RUNS)
    ]
    killed: dict[int, float] = {}
    for _ in range(KILLS):
        time.sleep(chance.uniform(0.3, 0.9))
        victim = chance.randrange(2)
        workers[victim].kill()
        killed[workers[victim].pid] = time.monotonic()
        workers[victim] = world.worker("metered", "metered")
    for run in runs:
        run.result(timeout=90)
    lines = metered.read(str(world.effects_file))
    executing_at_a_time(lines, killed)
    begins = [line.at for line in lines if line.what == "begin"]
    assert len(begins) >= RUNS
    for begin in begins:
        window = [at for at in begins if begin <= at < begin + metered.RATE.per.total_seconds()]
        assert len(window) <= metered.RATE.count, "a window has more begins than the rate"


def executing_at_a_time(lines: list[metered.Line], killed: dict[int, float]) -> None:
    """Replay the log: what a killed process had begun ends when it was killed."""
    deaths = [metered.Line(at, "killed", "", pid) for pid, at in killed.items()]
    executing: Counter[tuple[int, str]] = Counter()
    for line in sorted([*lines, *deaths]):
        if line.what == "killed":
            executing = Counter({key: number for key, number in executing.items() if key[0] != line.pid})
            continue
        executing[line.pid, line.customer] += 1 if line.what == "begin" else -1
        of_customer = sum(number for key, number in executing.items() if key[1] == line.customer)
        of_worker = sum(number for key, number in executing.items() if key[0] == line.pid)
        assert executing.total() <= metered.CONCURRENCY
        assert of_customer <= metered.PER_CUSTOMER
        assert of_worker <= metered.PER_WORKER
