"""Faults at random moments, judged by a ledger and a log: the short form.  `make soak` has the long one.

python -m tools.chaos kill9 --count 1000 --database postgres
"""

from pathlib import Path

import pytest

from tools.chaos.campaign import Plan, conduct
from tools.chaos.faults import Clocks, Fault, Interrupts, Kill9, Sessions
from tools.chaos.judge import Evidence, judge
from tools.chaos.server_faults import FullDisk, Network, ReadOnly, Restarts
from tools.chaos.standby import SynchronousFailover

pytestmark = pytest.mark.acceptance

SHORT: tuple[tuple[type[Fault], str, int], ...] = (
    (Kill9, "sqlite", 5),
    (Kill9, "postgres", 5),
    (Kill9, "mysql", 5),
    (Sessions, "postgres", 10),
    (Sessions, "mysql", 10),
    (Interrupts, "sqlite", 25),
)
LONG: tuple[tuple[type[Fault], str, int], ...] = (
    *((fault, database, 40) for fault in (Interrupts, Clocks) for database in fault.databases),
    *((Restarts, database, 20) for database in Restarts.databases),
    *((ReadOnly, database, 20) for database in ReadOnly.databases),
    *((FullDisk, database, 20) for database in FullDisk.databases),
    *((Network, database, 40) for database in Network.databases),
    (SynchronousFailover, "postgres", 10),
)


def names(campaigns: tuple[tuple[type[Fault], str, int], ...]) -> list[str]:
    return [f"{fault.name}-{database}" for fault, database, _ in campaigns]


@pytest.mark.parametrize(("fault", "database", "count"), SHORT, ids=names(SHORT))
def test_nothing_is_stuck_lost_or_done_twice(
    fault: type[Fault], database: str, count: int, tmp_path: Path
) -> None:
    endure(fault, database, count, tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("fault", "database", "count"), LONG, ids=names(LONG))
def test_nothing_is_stuck_lost_or_done_twice_for_long(
    fault: type[Fault], database: str, count: int, tmp_path: Path
) -> None:
    endure(fault, database, count, tmp_path)


def endure(fault: type[Fault], database: str, count: int, folder: Path) -> None:
    if reason := fault.impossible():
        pytest.skip(reason)
    verdict = conduct(Plan(fault=fault, database=database, count=count, seed=7, folder=folder, in_flight=20))
    print(verdict.figures)
    assert verdict.broken == []
    assert verdict.figures["faults"] == count
    assert verdict.figures["runs ended"] > 0


def test_the_judge_sees_what_is_broken() -> None:
    """Or the promise above would be worth nothing: one row too many, one run that has written nothing."""
    ledger = [("run-0", place) for place in ("book 0", "book 1", "book 2", "end", "end")]
    verdict = judge(Evidence(log=[], ledger=ledger, states={0: "finished", 1: "ready"}, faults=[], killed={}))
    assert verdict.figures["transactional effects too many"] == 1
    assert verdict.figures["runs stuck"] == 1
    assert len(verdict.broken) == 3
