"""Start `python -m detent …` without waiting for its imports.

A command of the command line computes for a third of a second before its first line, and the tests run
hundreds of them.  Here one process imports Detent once, and forks for each command (see forkserver.py).
The command has a process, a folder and an environment of its own, as it has from a shell.
"""

from __future__ import annotations

import importlib
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tests.forkserver import ForkServer, serve

DRIVERS = [f"detent.stores.{database}.driver" for database in ("mysql", "postgres", "sqlite")]


def python(
    *arguments: str, cwd: Path, env: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Like `subprocess.run([sys.executable, *arguments])`; one at a time.

    For `-m detent …`, `-c …` and a script in `cwd`.
    """
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        code = _server().run(
            {
                "arguments": arguments,
                "cwd": str(cwd),
                "environment": dict(env),
                "out": str(out),
                "err": str(err),
                "timeout": timeout,
            }
        )
        if code == -signal.SIGALRM:
            raise subprocess.TimeoutExpired(arguments, timeout)
        return subprocess.CompletedProcess(arguments, code, out.read_text(), err.read_text())


@cache
def _server() -> ForkServer:
    return ForkServer("tests.prefork")


def _work(request: dict[str, Any]) -> None:
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [request["cwd"], *(folder for folder in folders if folder)]  # the first was our folder
    signal.alarm(int(request["timeout"]) + 1)  # by default this signal ends the process
    kind, *arguments = request["arguments"]
    if kind == "-c":
        exec(compile(arguments[0], "<string>", "exec"), {"__name__": "__main__"})
    elif kind.endswith(".py"):
        sys.argv = [kind, *arguments]
        runpy.run_path(kind, run_name="__main__")
    else:
        assert (kind, arguments[0]) == ("-m", "detent"), request["arguments"]
        sys.argv = ["detent", *arguments[1:]]
        importlib.import_module("detent.cli").main()


def main() -> None:
    commands = importlib.import_module("detent.cli.main").COMMANDS
    for name in [*(f"detent.cli.{module}" for module, _ in commands.values()), *DRIVERS]:
        importlib.import_module(name)
    serve(_work)


if __name__ == "__main__":
    main()
