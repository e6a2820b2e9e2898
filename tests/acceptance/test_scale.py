"""Many at once: starts, sleepers, awakenings."""

import pytest

from detent import App
from tests.acceptance.programs import sleeping
from tests.acceptance.support import (
    Process,
    World,
    alive,
    all_finish,
    eventually,
    query,
    settled_once,
    states,
)

pytestmark = pytest.mark.acceptance

STARTS = 5_000
FEW_SLEEPERS = 2_000
SLEEPERS = 10_000
GROWTH = 16.0  # MiB that 8,000 more sleepers may add to a worker: the page cache of SQLite is that large
DUE_AT_ONCE = 1_000


def test_thousands_may_be_started_at_once(world: World) -> None:
    crowd = world.start("crowd", world.url, str(STARTS))
    assert crowd.wait() == 0, world.logs()[-5_000:]
    app = world.app()
    assert states(app) == {"finished": STARTS}
    settled_once(app, STARTS)


def test_a_sleeper_costs_rows_and_no_memory(world: World) -> None:
    app = world.app(sleeping)
    worker = world.worker("sleeping")
    eventually(lambda: alive(app, worker), "the worker has begun")
    put_to_sleep(app, FEW_SLEEPERS)
    few = resident(worker)
    put_to_sleep(app, SLEEPERS)
    many = resident(worker)
    print(f"{few:.1f} MiB with {FEW_SLEEPERS} asleep, {many:.1f} MiB with {SLEEPERS}")
    assert many - few < GROWTH
    # Any process sees them.
    assert states(world.app()) == {"ready": SLEEPERS}
    assert {run.state for run in world.app(sleeping).runs(limit=100)} == {"ready"}


def put_to_sleep(app: App, count: int) -> None:
    """Have so many asleep for an hour, half of them `def`, half `async def`."""
    calls = [(3600.0,)] * ((count - states(app)["ready"]) // 2)
    app.start_many(sleeping.sleeps, calls)
    app.start_many(sleeping.asleeps, calls)
    eventually(lambda: asleep(app) == count, f"{count} are asleep")


def asleep(app: App) -> int:
    return int(query(app, "SELECT COUNT(*) FROM detent_executions WHERE state = 'timer'")[0][0])


def resident(process: Process) -> float:
    """The process's memory in MiB."""
    with open(f"/proc/{process.pid}/status") as status:
        line = next(line for line in status if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def test_a_thousand_sleepers_wake_up_together(world: World) -> None:
    app = world.app(sleeping)
    calls = [(1.0,)] * (DUE_AT_ONCE // 2)
    worker = world.worker("sleeping")
    eventually(lambda: alive(app, worker), "the worker has begun")
    app.start_many(sleeping.sleeps, calls)
    app.start_many(sleeping.asleeps, calls)
    all_finish(world, app, DUE_AT_ONCE)
    settled_once(app, DUE_AT_ONCE)
