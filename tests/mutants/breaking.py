"""A pytest plugin that breaks one module of Detent before anything imports it.

    python -m pytest -p tests.mutants.breaking ...

The environment says what to break (see mutant.py).  The source on disk stays as it is: the
module is compiled from the changed text, in this process only.  The outcomes of all tests
are written to a file, together with whether the broken module was used at all.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

OUTCOMES = "DETENT_MUTANT_OUTCOMES"  # the file to write to
CHANGE = "DETENT_MUTANT"  # JSON of {"module": ..., "old": ..., "new": ...}; nothing is broken without it

_loaded: list[str] = []
_outcomes: dict[str, str] = {}


class _Broken(SourceFileLoader):
    """Loads a module with one piece of its text replaced."""

    def __init__(self, name: str, path: str, old: str, new: str) -> None:
        super().__init__(name, path)
        self._old, self._new = old, new

    def get_code(self, fullname: str) -> CodeType:
        text = Path(self.path).read_text(encoding="utf-8")
        if text.count(self._old) != 1:
            raise ImportError(f"{self.path} does not contain {self._old!r} exactly once")
        _loaded.append(fullname)
        return compile(text.replace(self._old, self._new), self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    """Finds the module to break; all others are found as usual."""

    def __init__(self, module: str, old: str, new: str) -> None:
        self._module, self._old, self._new = module, old, new

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and spec.origin is not None:
            spec.loader = _Broken(fullname, spec.origin, self._old, self._new)
        return spec


def pytest_runtest_logreport(report: Any) -> None:
    """Keep the outcome of a test, or the phase around it that failed."""
    if report.when == "call" or report.outcome != "passed":
        outcome = report.outcome if report.when == "call" else f"{report.outcome} in {report.when}"
        _outcomes.setdefault(report.nodeid, outcome)


def pytest_sessionfinish() -> None:
    Path(os.environ[OUTCOMES]).write_text(json.dumps({"loaded": bool(_loaded), "tests": _outcomes}))


if CHANGE in os.environ:
    sys.meta_path.insert(0, _Finder(**json.loads(os.environ[CHANGE])))
