"""Every test runs once, however the tests are spread over processes."""

import random

import pytest

from tests.distribution import TOGETHER, in_order, unit_of

AWAY = "tests/acceptance/test_database_away.py"


def test_every_unit_is_given_out_once() -> None:
    chance = random.Random(1)
    folders = ["acceptance", "mutants", "simulation", "unit", "graphs"]
    units = {f"tests/{chance.choice(folders)}/test_{n}.py": chance.randint(1, 300) for n in range(200)}
    assert sorted(in_order(units)) == sorted(units)


def test_tests_that_share_a_database_stay_together() -> None:
    assert unit_of("tests/graphs/test_control.py::test_a[sqlite]") == "tests/graphs/test_control.py"
    assert unit_of("tests/acceptance/test_drain.py::test_a") == "tests/acceptance/test_drain.py::test_a"


@pytest.mark.parametrize("file", TOGETHER)
def test_tests_that_share_a_server_stay_together(file: str) -> None:
    assert unit_of(f"{file}::test_a[postgres]") == file


def test_units_that_compute_begin_with_the_longest() -> None:
    units = {"tests/unit/test_few.py": 3, "tests/unit/test_many.py": 300, "tests/unit/test_some.py": 30}
    assert in_order(units) == ["tests/unit/test_many.py", "tests/unit/test_some.py", "tests/unit/test_few.py"]


def test_acceptance_tests_alternate_with_units_that_compute() -> None:
    waiting = {f"tests/acceptance/test_drain.py::test_{n}": 1 for n in range(10)}
    computing = {f"tests/unit/test_{n}.py": 20 for n in range(10)}
    ordered = in_order(waiting | computing)
    assert all(len({unit.split("/")[1] for unit in ordered[n : n + 2]}) == 2 for n in range(0, 20, 2))


def test_one_kind_alone_is_fine() -> None:
    assert in_order({}) == []
    assert in_order({AWAY: 8}) == [AWAY]
