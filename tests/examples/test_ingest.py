"""The ingest through a rate-limited API: its log says that both limits held, also when a worker is killed."""

from pathlib import Path

import pytest

import ingest
from ingest import Line

DOCUMENTS = 30


def test_both_limits_hold_when_a_worker_is_killed_halfway(database_url: str, tmp_path: Path) -> None:
    lines, killed = ingest.trial(database_url, tmp_path / "calls.log", DOCUMENTS)
    assert {line.document for line in lines if line.what == "end"} == set(range(DOCUMENTS))
    assert len(killed) == 1
    assert ingest.judge(lines, killed) == []


def calls(number: int, *, apart: float, last: float = 0.1) -> list[Line]:
    begins = [Line(place * apart, "begin", "a", place, 1) for place in range(number)]
    return sorted([*begins, *(line._replace(at=line.at + last, what="end") for line in begins)])


def test_the_judge_accepts_a_log_within_the_limits() -> None:
    assert ingest.judge(calls(60, apart=0.0501), {}) == []


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        (calls(21, apart=0.049), "more than 20 calls began"),
        (calls(6, apart=0.1, last=0.7), "6 calls for a at a time"),
    ],
)
def test_the_judge_complains_when_a_limit_is_exceeded(lines: list[Line], complaint: str) -> None:
    assert complaint in ingest.judge(lines, {})[0]


def test_what_a_killed_process_had_begun_ends_when_it_is_killed() -> None:
    dead = [Line(place * 0.1, "begin", "a", place, 1) for place in range(5)]
    after = [line._replace(at=line.at + 2, pid=2) for line in dead]
    assert ingest.judge([*dead, *after], {1: 1.0}) == []
    assert ingest.judge([*dead, *after], {}) != []
