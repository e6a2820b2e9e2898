"""How `make test` spreads the tests over its worker processes.

pytest-xdist gives each process one unit of work after the other.  Here a unit is

    one test      of the acceptance tests, the mutants and the simulation of the engine: these tests take
                  seconds and share nothing
    one file      everywhere else: its tests share a database, and most of them take milliseconds

Two rules for the order:

    1. The longest units come first, so that the processes finish at about the same time.
    2. Acceptance tests mostly wait.  They are mixed with units that compute, so that the processor is
       always busy.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from xdist.scheduler import LoadScopeScheduling

ACCEPTANCE = "tests/acceptance/"
SINGLE = (ACCEPTANCE, "tests/mutants/", "tests/simulation/test_engine.py")
# The tests of one of these files share a server of their own, and starting one takes seconds.
TOGETHER = (
    "tests/acceptance/test_database_away.py",
    "tests/acceptance/test_frozen_server.py",
    "tests/acceptance/test_tls.py",
)

# About how many seconds a test takes.  Only the order depends on it.
SECONDS = {
    "tests/acceptance/test_database_away.py": 10.0,
    "tests/acceptance/test_frozen_server.py": 10.0,
    "tests/acceptance/test_tls.py": 1.0,
    "tests/acceptance/": 4.0,
    "tests/mutants/": 1.5,
    "tests/simulation/": 10.0,
    "tests/kit/test_random_workflows.py": 10.0,
    "tests/docs/": 1.0,
    "tests/examples/": 1.0,
    "tests/functions/test_processes.py": 1.0,
    "": 0.15,
}


class Distribution(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives out units of work as described above."""

    _ordered = False

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        if not self._ordered:  # the queue is complete when the first unit is given out
            for unit in in_order({unit: len(tests) for unit, tests in self.workqueue.items()}):
                self.workqueue.move_to_end(unit)
            self._ordered = True
        super()._assign_work_unit(node)


def unit_of(nodeid: str) -> str:
    """The unit that a test belongs to."""
    if nodeid.startswith(SINGLE) and not nodeid.startswith(TOGETHER):
        return nodeid
    return nodeid.partition("::")[0]


def in_order(units: Mapping[str, int]) -> list[str]:
    """All units, in the order in which they are given out; the numbers are those of their tests."""
    seconds = {unit: tests * _seconds(unit) for unit, tests in units.items()}
    longest_first = sorted(units, key=lambda unit: -seconds[unit])
    waiting = [unit for unit in longest_first if unit.startswith(ACCEPTANCE)]
    computing = [unit for unit in longest_first if not unit.startswith(ACCEPTANCE)]
    places = dict([*_places(waiting, seconds), *_places(computing, seconds)])
    return sorted(units, key=lambda unit: places[unit])


def _seconds(unit: str) -> float:
    return next(seconds for start, seconds in SECONDS.items() if unit.startswith(start))


def _places(units: list[str], seconds: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """Where each of these begins, as a fraction of the time that all of them take."""
    total = sum(seconds[unit] for unit in units)
    begun = 0.0
    for unit in units:
        yield unit, begun / total
        begun += seconds[unit]
