"""Rounds over everything: for each round, for each shape, each system in turn."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version

from detent.stores.open import open_store

from .catalogue import COMPARED, ONCE, SYSTEMS
from .databases import fresh_database
from .measuring import Failed, measure
from .peers.venvs import NotInstalled, python_of, version_of
from .results import Results


@dataclass(frozen=True)
class Plan:
    databases: list[str]
    shapes: list[str]
    systems: list[str]
    repeat: int
    limit: float


@dataclass(frozen=True)
class Turn:
    """One measurement that is to be made, again in each round."""

    shape: str
    system: str
    database: str

    @property
    def title(self) -> str:
        return COMPARED.get(self.shape, self.shape)

    def __str__(self) -> str:
        return f"{self.shape}: {self.system} on {self.database}"


def run(plan: Plan) -> Results:
    """Make every measurement of the plan; one that fails is reported, and the rest go on."""
    results = Results()
    pythons = _environments(plan, results)
    turns = [turn for turn in _turns(plan) if turn.system in pythons]
    try:
        for number in range(plan.repeat):
            for turn in list(turns):
                begun = time.monotonic()
                _say(f"round {number + 1}/{plan.repeat}: {turn}", end=" ")
                if not _take(turn, pythons[turn.system], plan.limit, results):
                    turns.remove(turn)  # it would say the same again
                _say(f"({time.monotonic() - begun:.1f} s)")
    except KeyboardInterrupt:
        _say("interrupted: what was measured so far is shown and written")
    results.versions |= _versions(plan)
    return results


def _take(turn: Turn, python: str, limit: float, results: Results) -> bool:
    """One measurement; False if there is no use in another try, as the system has no such thing."""
    module = "bench.ours" if turn.system == "detent" else f"bench.peers.{turn.system}"
    try:
        answer = measure([python, "-m", module], turn.shape, turn.database, limit)
    except Exception as error:  # of whatever kind: an hour of other figures must not be lost by it
        why = str(error) if isinstance(error, Failed) else f"the harness failed: {error!r}"
        _say(f"FAILED: {why}", end=" ")
        results.fail(turn.title, turn.database, turn.system, why)
        return True
    if answer.missing:
        results.fail(turn.title, turn.database, turn.system, answer.missing)
        _say(f"none: {answer.missing}", end=" ")
        return False
    for figure in answer.figures:
        if not figure.system.startswith("limit:"):
            figure.system = turn.system
        if figure.value is None:
            results.fail(figure.shape, turn.database, turn.system, figure.note)
        else:
            results.keep(turn.database, figure)
            _say(f"{figure.value:,.4g} {figure.unit}", end=" ")
    return True


def _turns(plan: Plan) -> Iterator[Turn]:
    for shape in plan.shapes:
        for system in plan.systems:
            if system != "detent" and shape not in COMPARED:
                continue
            databases = [d for d in SYSTEMS[system] if d in plan.databases or d in ("redis", "own")]
            for database in databases[:1] if shape in ONCE else databases:
                yield Turn(shape, system, database)


def _environments(plan: Plan, results: Results) -> dict[str, str]:
    """The Python of each system; one that cannot be installed is missing, with its reason kept."""
    found = {}
    for system in plan.systems:
        try:
            found[system] = sys.executable if system == "detent" else str(python_of(system))
        except NotInstalled as why:
            _say(f"{system} cannot be installed: {why}")
            for turn in _turns(plan):
                if turn.system == system:
                    results.fail(turn.title, turn.database, system, f"not installed: {why}")
    return found


def _versions(plan: Plan) -> dict[str, str]:
    found = {name: version_of(name) for name in plan.systems if name != "detent"}
    found["detent"] = version("detent")
    if "celery" in plan.systems and shutil.which("redis-server"):
        found["redis"] = subprocess.check_output(["redis-server", "--version"], text=True).strip()
    for kind in plan.databases:
        with fresh_database(kind) as url:
            cursor = open_store(url).driver.connect().cursor()
            cursor.execute("SELECT sqlite_version()" if kind == "sqlite" else "SELECT version()")
            found[kind] = str(cursor.fetchone()[0])
    return found


def _say(text: str, end: str = "\n") -> None:
    print(text, end=end, file=sys.stderr, flush=True)
