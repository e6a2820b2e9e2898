"""Faults at random moments, judged by a ledger and a log: the short form.  `make soak` has the long one:

python -m tools.chaos all --count 1000
"""

from pathlib import Path

import pytest

from tools.chaos.campaign import Plan, conduct
from tools.chaos.faults import Fault, Interrupts, Kill9, Sessions
from tools.chaos.judge import Evidence, judge

pytestmark = pytest.mark.acceptance

SHORT: tuple[tuple[type[Fault], str, int], ...] = (
    (Kill9, "sqlite", 5),
    (Kill9, "postgres", 5),
    (Kill9, "mysql", 5),
    (Sessions, "postgres", 10),
    (Sessions, "mysql", 10),
    (Interrupts, "sqlite", 25),
)


@pytest.mark.parametrize(
    ("fault", "database", "count"), SHORT, ids=[f"{fault.name}-{database}" for fault, database, _ in SHORT]
)
def test_nothing_is_stuck_lost_or_done_twice(
    fault: type[Fault], database: str, count: int, tmp_path: Path
) -> None:
    if reason := fault.impossible():
        pytest.skip(reason)
    verdict = conduct(
        Plan(fault=fault, database=database, count=count, seed=7, folder=tmp_path, in_flight=20)
    )
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
