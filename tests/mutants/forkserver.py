"""Runs pytest again and again, each time in a process where nothing of Detent is imported yet.

    python -m tests.mutants.forkserver

Starting Python and importing pytest and the drivers takes longer than most tests.  This process does so
once.  Then it reads one request per line, forks a child that runs pytest, and answers with the exit status:

    {"arguments": [...], "environment": {...}, "output": "path of a file"}  ->  0
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from typing import Any

import pytest
from _pytest.config import default_plugins

# What the tests and Detent import, apart from each other.
LIBRARIES = "asyncio click concurrent.futures hypothesis msgspec multiprocessing psycopg pymysql rich.table"


def main() -> None:
    for name in [
        *(f"_pytest.{plugin}" for plugin in default_plugins),
        *LIBRARIES.split(),
        "click",
        "msgspec",
    ]:
        importlib.import_module(name)
    ours = [name for name in sys.modules if name.partition(".")[0] == "detent"]
    assert not ours, f"imported too early, and so not to be broken: {ours}"
    for line in sys.stdin:
        print(_in_child(json.loads(line)), flush=True)


def _in_child(request: dict[str, Any]) -> int:
    child = os.fork()
    if child == 0:
        _run(request)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _run(request: dict[str, Any]) -> None:
    """Run pytest, and end this process: threads that hang do not keep it alive."""
    code = 1
    try:
        output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
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
