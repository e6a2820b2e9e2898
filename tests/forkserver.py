"""A process that imports much once, and forks a child for each request.

Starting Python and importing libraries takes longer than most tests.  Here is what both sides share:
`ForkServer` is used by tests, `serve` by the module that the server runs.  Requests and answers are lines:

    {"out": "path of a file", "err": "path of a file", ...}  ->  0
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


class ForkServer:
    """Runs `python -m MODULE`, which calls `serve`, until this process ends."""

    def __init__(self, module: str, environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            cwd=ROOT,
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        atexit.register(self._close)

    def run(self, request: dict[str, Any]) -> int:
        """Let a child do this; return its exit status."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def _close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def serve(work: Callable[[dict[str, Any]], None]) -> None:
    """Fork a child for each request.  A child does its work and returns."""
    gc.collect()
    gc.freeze()  # a child need not look through what we have imported
    while line := sys.stdin.readline():
        child = os.fork()
        if child == 0:
            request = json.loads(line)
            for number, path in enumerate([os.devnull, request["out"], request["err"]]):
                file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
                os.dup2(file, number)
                os.close(file)
            work(request)
            return
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
