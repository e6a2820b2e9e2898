"""A mutant: Detent with one rule broken, and the tests that notice it.

    Mutant("a stale token settles", "stores/batch/apply.py", old, new, ("conformance/test_settle.py::…",))

A mutant is a replacement of text in one module.  `old` must occur exactly once in the file.
The named tests run in a process of their own (see forkserver.py), against the broken module:
each of them has to fail.  Without the mutant each of them has to pass.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import detent
from tests.forkserver import ForkServer
from tests.mutants import breaking

PACKAGE = Path(detent.__file__).parent
TIMEOUT = 120  # seconds for one test
HANGS_AFTER = 5  # seconds for a test that a mutant makes hang
UPDATE = "The source has changed: update or replace this mutant in tests/mutants"


@dataclass(frozen=True)
class Mutant:
    """`name` says what is broken; `file` is relative to the package, `tests` to tests/.

    `hangs`: the tests notice it by waiting in vain, so do not wait for long.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    hangs: bool = False

    @property
    def module(self) -> str:
        return "detent." + self.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def check(self) -> None:
        """Fail if the text to replace is not in the source exactly once."""
        found = (PACKAGE / self.file).read_text(encoding="utf-8").count(self.old)
        if found != 1:
            pytest.fail(f"{self.file} contains the text {found} times, not once. {UPDATE}.\n\n{self.old}")


def expect_caught(mutant: Mutant, folder: Path) -> None:
    """Fail unless every test of the mutant fails because of it."""
    mutant.check()
    change = {"module": mutant.module, "old": mutant.old, "new": mutant.new}
    timeout = HANGS_AFTER if mutant.hangs else TIMEOUT
    ran = _run(mutant.tests, folder, {breaking.CHANGE: json.dumps(change)}, timeout)
    survived = [test for test in mutant.tests if ran.outcomes.get(f"tests/{test}") != "failed"]
    if not ran.loaded:
        pytest.fail(f"the tests did not import {mutant.module}\n\n{ran.output}")
    if survived:
        shown = "\n".join(f"  {test}: {ran.outcomes.get(f'tests/{test}', 'not run')}" for test in survived)
        pytest.fail(f"{mutant.name}: not caught by\n{shown}\n\n{ran.output}")


def expect_passing(mutants: Sequence[Mutant], folder: Path) -> None:
    """Fail unless all tests of these mutants pass with the source as it is."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    ran = _run(tests, folder, {}, TIMEOUT)
    bad = [test for test in tests if ran.outcomes.get(f"tests/{test}") != "passed"]
    if bad:
        pytest.fail(f"these tests do not pass without a mutant: {bad}\n\n{ran.output}")


@dataclass(frozen=True)
class Ran:
    """What came of a run of tests."""

    loaded: bool
    outcomes: dict[str, str]
    output: str


@cache
def fork_server() -> ForkServer:
    left_out = {name for name in os.environ if name.startswith(("PYTEST_", "COV_"))}
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return ForkServer("tests.mutants.forkserver", environment | {"PYTHONPATH": str(PACKAGE.parent)})


def _run(tests: Sequence[str], folder: Path, more: dict[str, str], timeout: int) -> Ran:
    outcomes, output = folder / "outcomes.json", folder / "output.txt"
    arguments = ["-p", "tests.mutants.breaking", "-q", "--tb=short", f"--timeout={timeout}"]
    arguments += ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:hypothesispytest", "-p", "no:anyio"]
    # The server has imported hypothesis before pytest could change its assertions; there are none.
    arguments += ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]
    arguments += [f"--basetemp={folder / 'tmp'}", *(f"tests/{test}" for test in tests)]
    environment = {breaking.OUTCOMES: str(outcomes), **more}
    request = {"arguments": arguments, "environment": environment, "out": str(output), "err": str(output)}
    code = fork_server().run(request)
    shown = output.read_text(errors="replace")
    if not outcomes.exists():
        pytest.fail(f"the tests could not be run (exit status {code})\n\n{shown}")
    told: dict[str, Any] = json.loads(outcomes.read_text())
    return Ran(told["loaded"], told["tests"], shown[-4000:])
