"""Start `python -m detent …` without waiting for its imports.

A command of the command line computes for a third of a second before its first line, and the tests run
hundreds of them.  Here one process imports Detent once, and forks for each command.  The command runs in a
process of its own, with its own folder and environment, as it does from a shell.
"""

from __future__ import annotations

import atexit
import json
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

ROOT = Path(__file__).resolve().parents[1]


def python(
    *arguments: str, cwd: Path, env: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Like `subprocess.run([sys.executable, *arguments])`; one at a time.

    For `-m detent …`, `-c …` and a script in `cwd`.
    """
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        request = {"argv": arguments, "cwd": str(cwd), "env": dict(env), "out": str(out), "err": str(err)}
        code = _server().run(request, timeout)
        return subprocess.CompletedProcess(arguments, code, out.read_text(), err.read_text())


class _Server:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.prefork"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self._end)

    def run(self, request: dict[str, Any], timeout: float) -> int:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({**request, "timeout": timeout}) + "\n")
        process.stdin.flush()
        code = int(process.stdout.readline())
        if code == -signal.SIGALRM:
            raise subprocess.TimeoutExpired(request["argv"], timeout)
        return code

    def _end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@cache
def _server() -> _Server:
    return _Server()


def _serve() -> None:
    """Fork for each line that comes; a child returns from here into its command."""
    import detent.cli.main  # what each command would import for itself
    import detent.stores.mysql.driver
    import detent.stores.postgres.driver
    import detent.stores.sqlite.driver  # noqa: F401

    while line := sys.stdin.readline():
        child = os.fork()
        if child == 0:
            _become(json.loads(line))
            return
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become(request: dict[str, Any]) -> None:
    """Be the process that was asked for."""
    for number, path in enumerate([os.devnull, request["out"], request["err"]]):
        file = os.open(path, os.O_RDWR | os.O_CREAT)
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [request["cwd"], *(folder for folder in folders if folder)]  # the first was our folder
    signal.alarm(int(request["timeout"]) + 1)  # the default of this signal ends the process
    kind, *arguments = request["argv"]
    if kind == "-c":
        exec(compile(arguments[0], "<string>", "exec"), {"__name__": "__main__"})
        return
    if kind.endswith(".py"):
        sys.argv = [kind, *arguments]
        runpy.run_path(kind, run_name="__main__")
        return
    assert (kind, arguments[0]) == ("-m", "detent"), request["argv"]
    sys.argv = ["detent", *arguments[1:]]
    from detent.cli import main

    main()


if __name__ == "__main__":
    _serve()
