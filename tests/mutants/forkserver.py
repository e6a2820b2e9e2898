"""Runs pytest again and again, each time in a process where nothing of Detent is imported yet.

    python -m tests.mutants.forkserver

Starting Python and importing pytest and the drivers takes longer than most tests.  This process does so
once, and forks a child for each run of pytest (see tests/forkserver.py).
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import Any

import pytest
from _pytest.config import default_plugins

from tests.forkserver import serve

# What the tests and Detent import, apart from each other.
LIBRARIES = (
    "asyncio click concurrent.futures hypothesis msgspec multiprocessing psycopg psycopg.sql pymysql"
    " pytest_timeout rich.table sqlite3"
)


def main() -> None:
    for name in [*(f"_pytest.{plugin}" for plugin in default_plugins), *LIBRARIES.split()]:
        importlib.import_module(name)
    ours = [name for name in sys.modules if name.partition(".")[0] == "detent"]
    assert not ours, f"imported too early, and so not to be broken: {ours}"
    serve(_run)


def _run(request: dict[str, Any]) -> None:
    """Run pytest, and end this process: threads that hang do not keep it alive."""
    code = 1
    try:
        os.environ.update(request["environment"])
        code = int(pytest.main(request["arguments"]))
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
